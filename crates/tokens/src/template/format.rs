//! Detects whether a template iterates over the parts of a message's content or prints it as a text.
//!
//! vLLM decides it once per template, by reading its syntax tree: a loop over the content of something that is itself
//! looped over in `messages` means parts. The answer changes prompts, so this follows vLLM's rules (0.32,
//! `renderers/hf.py`) rather than better ones. A variable named `content` counts by its name alone. The arguments of
//! a macro count if it is called directly. Scopes do not exist.

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use super::tree::{self, Child};
use crate::options::ContentFormat;

pub(super) fn detect(source: &str, syntax: &SyntaxConfig) -> ContentFormat {
    let Ok(root) = parse(source, "chat", syntax.clone()) else { return ContentFormat::Text };
    let mut nodes = Nodes::default();
    nodes.visit_statement(&root);
    match nodes.message_names() {
        Some(messages) if nodes.walks_over_content(&messages) => ContentFormat::Parts,
        _ => ContentFormat::Text,
    }
}

/// The nodes that the rules examine, anywhere in the template.
#[derive(Default)]
struct Nodes<'n> {
    /// Each loop with its enclosing macro.
    loops: Vec<(&'n ForLoop<'n>, Option<usize>)>,
    sets: Vec<(&'n Expr<'n>, &'n Expr<'n>)>,
    macros: Vec<&'n Macro<'n>>,
    calls: Vec<(&'n Expr<'n>, &'n [CallArg<'n>])>,
    inside: Option<usize>,
}

impl<'n> Nodes<'n> {
    /// Names that stand for one message, or `None` if vLLM gives up.
    fn message_names(&self) -> Option<Vec<&'n str>> {
        let mut lists = vec!["messages"];
        let mut at = 0;
        while let Some(&list) = lists.get(at) {
            at += 1;
            for (target, value) in &self.sets {
                if is_of(value, list, None) {
                    let name = name(target)?;
                    if !lists.contains(&name) {
                        lists.push(name);
                    }
                }
            }
        }
        let over_messages =
            self.loops.iter().filter(|it| lists.iter().any(|list| is_of(&it.0.iter, list, None)));
        over_messages.map(|it| name(&it.0.target)).collect()
    }

    fn walks_over_content(&self, messages: &[&str]) -> bool {
        self.loops.iter().any(|(it, inside)| {
            let of_message = messages.iter().any(|message| is_of(&it.iter, message, Some("content")));
            let by_name = name(&it.iter).is_some_and(|name| match inside {
                Some(inside) => self.takes_content(self.macros[*inside], name, messages),
                None => name == "content",
            });
            of_message || by_name
        })
    }

    /// Whether some call passes the content of a message to this parameter of a macro.
    fn takes_content(&self, called: &Macro<'_>, parameter: &str, messages: &[&str]) -> bool {
        let is_content = |it: &Expr<'_>| messages.iter().any(|message| is_of(it, message, Some("content")));
        let calls = self.calls.iter().filter(|(callee, _)| name(callee) == Some(called.name));
        calls.flat_map(|(_, arguments)| arguments.iter().enumerate()).any(|(at, argument)| match argument {
            CallArg::Pos(value) => called.args.get(at).and_then(name) == Some(parameter) && is_content(value),
            CallArg::Kwarg(key, value) => *key == parameter && is_content(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => false,
        })
    }

    // No deeper than the template nests, which its parser limits.
    fn visit_statement(&mut self, statement: &'n Stmt<'n>) {
        let outside = self.inside;
        match statement {
            Stmt::ForLoop(it) => self.loops.push((it, self.inside)),
            Stmt::Set(it) => self.sets.push((&it.target, &it.expr)),
            Stmt::CallBlock(it) => self.calls.push((&it.call.expr, &it.call.args)),
            Stmt::Do(it) => self.calls.push((&it.call.expr, &it.call.args)),
            Stmt::Macro(it) => {
                self.inside = Some(self.macros.len());
                self.macros.push(it);
            }
            _ => {}
        }
        tree::children_of(statement, |it| match it {
            Child::Expression(it) => self.visit_expression(it),
            Child::Statement(it) => self.visit_statement(it),
        });
        self.inside = outside;
    }

    fn visit_expression(&mut self, expression: &'n Expr<'n>) {
        if let Expr::Call(it) = expression {
            self.calls.push((&it.expr, &it.args));
        }
        tree::expressions_of(expression, |it| self.visit_expression(it));
    }
}

fn name<'n>(expression: &Expr<'n>) -> Option<&'n str> {
    match expression {
        Expr::Var(it) => Some(it.id),
        _ => None,
    }
}

/// Whether an expression is the variable `of` (or its member `key`), perhaps filtered, tested or sliced.
fn is_of(expression: &Expr<'_>, of: &str, key: Option<&str>) -> bool {
    match expression {
        Expr::Filter(it) => it.expr.as_ref().is_some_and(|it| is_of(it, of, key)),
        Expr::Test(it) => is_of(&it.expr, of, key),
        Expr::Slice(it) => is_of(&it.expr, of, key),
        Expr::Var(it) => key.is_none() && it.id == of,
        Expr::GetAttr(it) => key == Some(it.name) && name(&it.expr) == Some(of),
        Expr::GetItem(it) => match &it.subscript_expr {
            Expr::Const(subscript) => {
                key.is_some() && subscript.value.as_str() == key && name(&it.expr) == Some(of)
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: ContentFormat) {
        assert_eq!(detect(source, &SyntaxConfig::default()), expected, "template: {source}");
    }

    #[test]
    fn a_template_that_prints_content_takes_text() {
        check("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat::Text);
        check(
            "{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}{% endfor %}",
            ContentFormat::Text,
        );
        check("{{ messages[0]['content'] }}", ContentFormat::Text);
        check("{% syntax error", ContentFormat::Text);
    }

    #[test]
    fn a_loop_over_content_takes_parts() {
        check(
            "{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            ContentFormat::Parts,
        );
        check(
            "{% for m in messages %}{% for c in m['content'] | list %}x{% endfor %}{% endfor %}",
            ContentFormat::Parts,
        );
        check(
            "{% set rest = messages[1:] %}{% for m in rest %}{% for c in m['content'] %}x{% endfor %}{% endfor %}",
            ContentFormat::Parts,
        );
        check(
            "{% set content = messages[0].content %}{% for c in content %}x{% endfor %}",
            ContentFormat::Parts,
        );
    }

    #[test]
    fn a_macro_counts_by_what_it_is_called_with() {
        let body = "{% macro show(it) %}{% for c in it %}x{% endfor %}{% endmacro %}";
        let call = "{% for m in messages %}{{ show(m.content) }}{% endfor %}";
        check(&format!("{body}{call}"), ContentFormat::Parts);
        check(
            &format!("{body}{{% for m in messages %}}{{{{ show(it=m.content) }}}}{{% endfor %}}"),
            ContentFormat::Parts,
        );
        check(
            &format!("{body}{{% for m in messages %}}{{{{ show(m.tool_calls) }}}}{{% endfor %}}"),
            ContentFormat::Text,
        );
        check(
            "{% macro show(content) %}{% for c in content %}x{% endfor %}{% endmacro %}",
            ContentFormat::Text,
        );
    }

    #[test]
    fn a_list_of_messages_kept_in_a_namespace_is_where_vllm_gives_up() {
        check(
            "{% set ns.all = messages %}{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            ContentFormat::Text,
        );
    }
}

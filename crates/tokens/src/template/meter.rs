//! Bounds what a template builds in memory on its way to its output.
//!
//! Fuel bounds the steps, but one step can double a text. Forty such steps make a terabyte, and the failed allocation
//! would abort the process, because nothing can catch it. So all text that a template builds is counted, and a
//! rendering that builds too much is stopped before the allocation.
//!
//! The engine has no hook for its operators. Their operands are therefore passed through filters of ours, inserted into
//! the source: `a ~ b` becomes `((a)|__text) ~ ((b)|__text)`. Output, also that of macros and blocks, goes through the
//! formatter; filters and methods that can multiply their input are replaced by ones that count first.
//!
//! One rendering is one call on one thread, so the count is kept per thread.

use std::cell::Cell;
use std::fmt::{self, Write as _};

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Filter, ForLoop, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Rest;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter, filters};

use super::tree::{self, Child};
thread_local! {
    /// Bytes that the present rendering may still build.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Begins a rendering that may build this many bytes.
pub(super) fn begin(bytes: usize) {
    LEFT.set(bytes);
}

#[derive(Debug, thiserror::Error)]
#[error("the template builds too much text")]
struct Overfull;

/// Whether the rendering was stopped because it builds too much.
pub(super) fn is_overfull(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(it) = source {
        if it.is::<Overfull>() {
            return true;
        }
        source = it.source();
    }
    false
}

fn overfull() -> Error {
    Error::new(ErrorKind::InvalidOperation, "too much text").with_source(Overfull)
}

/// Counts a text that is about to be built.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    LEFT.set(LEFT.get().checked_sub(bytes).ok_or_else(overfull)?);
    Ok(())
}

/// Fails if a text of this length, which was not fully counted yet, is too long.
pub(super) fn check(bytes: usize) -> Result<(), Error> {
    if bytes > LEFT.get() { Err(overfull()) } else { Ok(()) }
}

/// Counts the text of a value that is about to be printed.
pub(super) fn charge_text(value: &Value) -> Result<(), Error> {
    charge(text_len(value)?)
}

/// The length of a value's text. Stops once that exceeds what is left: a list may hold one text many times.
fn text_len(value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    let mut counter = Counter { bytes: 0, limit: LEFT.get() };
    write!(counter, "{value}").map_err(|_| overfull())?;
    Ok(counter.bytes)
}

struct Counter {
    bytes: usize,
    limit: usize,
}

impl fmt::Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes += text.len();
        if self.bytes > self.limit { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Bytes of one item of a list, without what it refers to.
const ITEM_BYTES: usize = 24;

/// An operand, or a value that was just built: a text by its length, a list by its items.
fn part(value: &Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => charge(text.len())?,
        None => charge(value.len().unwrap_or(0).saturating_mul(ITEM_BYTES))?,
    }
    Ok(value.clone())
}

/// A value that a function returned, if it is a text.
fn made(value: &Value) -> Result<Value, Error> {
    charge(value.as_str().map_or(0, str::len))?;
    Ok(value.clone())
}

/// An operand that is about to be printed.
fn text(value: &Value) -> Result<Value, Error> {
    charge_text(value)?;
    Ok(value.clone())
}

/// A list to loop over, each time with this much text of the template's own.
fn each(value: &Value, bytes: usize) -> Result<Value, Error> {
    charge(value.len().unwrap_or(0).saturating_mul(bytes))?;
    Ok(value.clone())
}

/// Filters that print their input.
const PRINTING: [&str; 12] = [
    "string",
    "upper",
    "lower",
    "title",
    "capitalize",
    "escape",
    "e",
    "pprint",
    "urlencode",
    "split",
    "lines",
    "trim",
];

pub(super) fn teach(environment: &mut Environment<'_>) {
    environment.set_formatter(|out, state, value| {
        charge_text(value)?;
        match (value.as_str(), state.auto_escape()) {
            // The usual case: a single text.
            (Some(text), AutoEscape::None) => out.write_str(text).map_err(Error::from),
            _ => escape_formatter(out, state, value),
        }
    });
    environment.add_filter("__part", part);
    environment.add_filter("__text", text);
    environment.add_filter("__made", made);
    environment.add_filter("__each", each);
    environment.add_filter("__join", filters::join);
    environment.add_filter("join", |state: &mut State<'_, '_>, args: Rest<Value>| {
        charge_join(args.first(), args.get(1))?;
        state.apply_filter("__join", &args)
    });
    environment.add_filter("__replace", filters::replace);
    environment.add_filter("replace", |state: &mut State<'_, '_>, args: Rest<Value>| {
        charge_replace(&args)?;
        state.apply_filter("__replace", &args)
    });
    environment.add_filter("__format", filters::format);
    environment.add_filter("format", |state: &mut State<'_, '_>, args: Rest<Value>| {
        charge_format(&args)?;
        state.apply_filter("__format", &args)
    });
}

/// Counts what a method of a text is about to build.
pub(super) fn charge_method(text: &Value, name: &str, args: &[Value]) -> Result<(), Error> {
    match name {
        "replace" => charge_replace(&[std::slice::from_ref(text), args].concat()),
        "join" => charge_join(args.first(), Some(text)),
        "format" => charge_format(&[std::slice::from_ref(text), args].concat()),
        // The others return a part of it, or all of it changed.
        _ => charge_text(text),
    }
}

fn charge_join(list: Option<&Value>, joiner: Option<&Value>) -> Result<(), Error> {
    let Some(list) = list else { return Ok(()) };
    let joiner = joiner.and_then(Value::as_str).map_or(0, str::len);
    charge(list.len().unwrap_or(0).saturating_mul(joiner))?;
    charge_text(list)
}

fn charge_replace(args: &[Value]) -> Result<(), Error> {
    let [text, old, new, ..] = args else { return Ok(()) };
    let (Some(text), Some(old)) = (text.as_str(), old.as_str()) else { return charge_text(text) };
    let times = if old.is_empty() { text.len() + 1 } else { text.matches(old).count() };
    charge(text.len().saturating_add(times.saturating_mul(text_len(new)?)))
}

/// Most digits of a width in a format. Chosen: no line of a prompt is padded to more than 9,999.
const WIDTH_DIGITS_MAX: usize = 4;

fn charge_format(args: &[Value]) -> Result<(), Error> {
    let Some((format, values)) = args.split_first() else { return Ok(()) };
    let format = format.as_str().unwrap_or_default();
    if format.split(|it: char| !it.is_ascii_digit()).any(|it| it.len() > WIDTH_DIGITS_MAX) {
        return Err(overfull());
    }
    // A format may name one value as often as it likes.
    let longest = values.iter().map(text_len).try_fold(0, |most, it| it.map(|it| most.max(it)))?;
    charge(format.len().saturating_mul(longest.saturating_add(1)))
}

/// The source with its operands metered; `None` if that cannot be done.
pub(super) fn metered(source: &str, syntax: &SyntaxConfig) -> Option<String> {
    let root = parse(source, "chat", syntax.clone()).ok()?;
    let mut meter = Meter { source, inserts: Vec::new() };
    meter.statement(&root);
    let mut inserts = meter.inserts;
    // Inserts at one place keep their order: outer before inner at the beginning, and the reverse at the end.
    inserts.sort_by_key(|it| it.0);
    let (mut text, mut at) = (String::with_capacity(source.len() * 2), 0);
    for (place, insert) in inserts {
        text.push_str(source.get(at..place)?);
        text.push_str(&insert);
        at = place;
    }
    text.push_str(source.get(at..)?);
    parse(&text, "chat", syntax.clone()).ok()?;
    Some(text)
}

/// Whether a filter makes a text of its input.
fn prints(filter: &Filter<'_>) -> bool {
    PRINTING.contains(&filter.name)
        || filter.name == "map" && filter.args.iter().any(|it| matches!(it, CallArg::Pos(_)))
}

/// What to insert into a template, in the order in which its tree is visited.
struct Meter<'s> {
    source: &'s str,
    inserts: Vec<(usize, String)>,
}

impl Meter<'_> {
    /// Visits an expression and passes its value through a filter.
    fn through(&mut self, filter: &str, expression: &Expr<'_>) {
        self.around(filter, expression, |it| it.expression(expression));
    }

    /// Passes the value of an expression through a filter, and visits what `inner` does.
    fn around(&mut self, filter: &str, expression: &Expr<'_>, inner: impl FnOnce(&mut Self)) {
        let (start, end) = (start(expression), expression.span().end_offset as usize);
        // The span of `a if b else c` begins one token early. Within an operation that is its opening bracket.
        if matches!(expression, Expr::IfExpr(_)) && !self.source[start..].starts_with('(') {
            return inner(self);
        }
        self.inserts.push((start, "((".to_owned()));
        inner(self);
        self.inserts.push((end, format!(")|{filter})")));
    }

    // No deeper than the template nests, which its parser limits.
    fn expression(&mut self, expression: &Expr<'_>) {
        let whole = |meter: &mut Self| tree::expressions_of(expression, |it| meter.expression(it));
        match expression {
            Expr::Slice(it) => {
                self.through("__part", &it.expr);
                [&it.start, &it.stop, &it.step].into_iter().flatten().for_each(|it| self.expression(it));
            }
            Expr::BinOp(it) if matches!(it.op, BinOpKind::Concat | BinOpKind::Add) => {
                let filter = if matches!(it.op, BinOpKind::Concat) { "__text" } else { "__part" };
                [&it.left, &it.right].into_iter().for_each(|it| self.through(filter, it));
            }
            // The engine itself limits one product.
            Expr::BinOp(it) if matches!(it.op, BinOpKind::Mul) => self.around("__part", expression, whole),
            Expr::Filter(it) if let Some(input) = it.expr.as_ref().filter(|_| prints(it)) => {
                self.through("__text", input);
                tree::arguments(&it.args, |it| self.expression(it));
            }
            // Macros return the text that they print. Methods count for themselves.
            Expr::Call(it) if matches!(it.expr, Expr::Var(_)) => self.around("__made", expression, whole),
            _ => whole(self),
        }
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::ForLoop(it) => self.for_loop(it),
            _ => tree::children_of(statement, |it| match it {
                Child::Expression(it) => self.expression(it),
                Child::Statement(it) => self.statement(it),
            }),
        }
    }

    fn for_loop(&mut self, it: &ForLoop<'_>) {
        let bytes: usize = it.body.iter().map(raw_bytes).sum();
        self.through(&format!("__each({bytes})"), &it.iter);
        it.filter_expr.iter().for_each(|it| self.expression(it));
        it.body.iter().chain(&it.else_body).for_each(|it| self.statement(it));
    }
}

/// Where an expression begins. The engine lets a second call, member or item begin after the first. A bracket before
/// the place found here closes within the expression, so an insert after it is still correct.
fn start(expression: &Expr<'_>) -> usize {
    let own = expression.span().start_offset as usize;
    let inner = match expression {
        Expr::Slice(it) => start(&it.expr),
        Expr::BinOp(it) => start(&it.left),
        Expr::Compare(it) => start(&it.expr),
        Expr::Filter(it) => it.expr.as_ref().map_or(own, start),
        Expr::Test(it) => start(&it.expr),
        Expr::GetAttr(it) => start(&it.expr),
        Expr::GetItem(it) => start(&it.expr),
        Expr::Call(it) => start(&it.expr),
        _ => own,
    };
    own.min(inner)
}

/// The template's own text in a statement, without that of inner loops, which count their own.
fn raw_bytes(statement: &Stmt<'_>) -> usize {
    let sum = |body: &[Stmt<'_>]| body.iter().map(raw_bytes).sum::<usize>();
    match statement {
        Stmt::EmitRaw(it) => it.raw.len(),
        Stmt::IfCond(it) => sum(&it.true_body) + sum(&it.false_body),
        Stmt::WithBlock(it) => sum(&it.body),
        Stmt::SetBlock(it) => sum(&it.body),
        Stmt::AutoEscape(it) => sum(&it.body),
        Stmt::FilterBlock(it) => sum(&it.body),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(metered(source, &SyntaxConfig::default()).as_deref(), Some(expected), "{source}");
    }

    #[test]
    fn operands_are_metered() {
        check("{{ a }}", "{{ a }}");
        check("{{ a ~ b }}", "{{ ((a)|__text) ~ ((b)|__text) }}");
        check("{{ a + 'x' ~ c }}", "{{ ((a)|__part) + (((('x')|__text) ~ ((c)|__text))|__part) }}");
        check("{{ (a ~ b) ~ c }}", "{{ (((((a)|__text) ~ ((b)|__text))|__text)) ~ ((c)|__text) }}");
        check("{{ a ~ (b if c else d) }}", "{{ ((a)|__text) ~ (((b if c else d)|__text)) }}");
        check("{{ a[1:]|upper }}", "{{ ((((a)|__part)[1:])|__text)|upper }}");
        check("{{ f(a + b) }}", "{{ ((f(((a)|__part) + ((b)|__part)))|__made) }}");
        check("{{ 'x' * 5 }}", "{{ (('x' * 5)|__part) }}");
        check("{{ a.b(c)['d'] + 1 }}", "{{ ((a.b(c)['d'])|__part) + ((1)|__part) }}");
        check(
            "{{ (a ~ b)[1:] + c }}",
            "{{ (((((((a)|__text) ~ ((b)|__text))|__part))[1:])|__part) + ((c)|__part) }}",
        );
        check("{{ a.b().c().d + e }}", "{{ ((a.b().c().d)|__part) + ((e)|__part) }}");
        check("{{ -a + b }}", "{{ ((-a)|__part) + ((b)|__part) }}");
    }

    #[test]
    fn loops_are_metered_by_the_text_in_them() {
        check("{% for a in b %}xyz{% endfor %}", "{% for a in ((b)|__each(3)) %}xyz{% endfor %}");
        check(
            "{% for a in b if a %}{% if c %}x{% else %}y{% endif %}{% endfor %}",
            "{% for a in ((b)|__each(2)) if a %}{% if c %}x{% else %}y{% endif %}{% endfor %}",
        );
    }
}

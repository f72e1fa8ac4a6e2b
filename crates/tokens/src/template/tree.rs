//! The syntax tree of a template, one step down at a time, for code that visits all of it.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

/// What a statement is made of.
pub(super) enum Child<'n> {
    Expression(&'n Expr<'n>),
    Statement(&'n Stmt<'n>),
}

/// Visits the expressions that an expression is made of, in the order of the source.
pub(super) fn expressions_of<'n>(expression: &'n Expr<'n>, mut visit: impl FnMut(&'n Expr<'n>)) {
    match expression {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(it) => {
            visit(&it.expr);
            [&it.start, &it.stop, &it.step].into_iter().flatten().for_each(visit);
        }
        Expr::UnaryOp(it) => visit(&it.expr),
        Expr::BinOp(it) => [&it.left, &it.right].into_iter().for_each(visit),
        Expr::Compare(it) => {
            visit(&it.expr);
            it.ops.iter().for_each(|it| visit(&it.expr));
        }
        Expr::IfExpr(it) => {
            [&it.true_expr, &it.test_expr].into_iter().for_each(&mut visit);
            it.false_expr.iter().for_each(visit);
        }
        Expr::Filter(it) => {
            it.expr.iter().for_each(&mut visit);
            arguments(&it.args, visit);
        }
        Expr::Test(it) => {
            visit(&it.expr);
            arguments(&it.args, visit);
        }
        Expr::GetAttr(it) => visit(&it.expr),
        Expr::GetItem(it) => [&it.expr, &it.subscript_expr].into_iter().for_each(visit),
        Expr::Call(it) => {
            visit(&it.expr);
            arguments(&it.args, visit);
        }
        Expr::List(it) => it.items.iter().for_each(visit),
        Expr::Tuple(it) => it.items.iter().for_each(visit),
        Expr::Map(it) => it.keys.iter().zip(&it.values).for_each(|(key, value)| {
            visit(key);
            visit(value);
        }),
    }
}

/// Visits what a call, a filter or a test is given.
pub(super) fn arguments<'n>(arguments: &'n [CallArg<'n>], mut visit: impl FnMut(&'n Expr<'n>)) {
    for argument in arguments {
        match argument {
            CallArg::Pos(it) | CallArg::Kwarg(_, it) | CallArg::PosSplat(it) | CallArg::KwargSplat(it) => {
                visit(it)
            }
        }
    }
}

/// Visits the expressions and the statements that a statement is made of.
pub(super) fn children_of<'n>(statement: &'n Stmt<'n>, mut visit: impl FnMut(Child<'n>)) {
    let mut expressions: Vec<&Expr<'n>> = Vec::new();
    let mut bodies: [&[Stmt<'n>]; 2] = [&[], &[]];
    match statement {
        Stmt::Template(it) => bodies[0] = &it.children,
        Stmt::EmitExpr(it) => expressions.push(&it.expr),
        Stmt::ForLoop(it) => {
            expressions.push(&it.iter);
            expressions.extend(&it.filter_expr);
            bodies = [&it.body, &it.else_body];
        }
        Stmt::IfCond(it) => {
            expressions.push(&it.expr);
            bodies = [&it.true_body, &it.false_body];
        }
        Stmt::WithBlock(it) => {
            expressions.extend(it.assignments.iter().map(|it| &it.1));
            bodies[0] = &it.body;
        }
        Stmt::Set(it) => expressions.push(&it.expr),
        Stmt::SetBlock(it) => bodies[0] = &it.body,
        Stmt::AutoEscape(it) => bodies[0] = &it.body,
        Stmt::FilterBlock(it) => bodies[0] = &it.body,
        Stmt::Block(it) => bodies[0] = &it.body,
        Stmt::Macro(it) => {
            expressions.extend(&it.defaults);
            bodies[0] = &it.body;
        }
        Stmt::CallBlock(it) => {
            arguments(&it.call.args, |it| expressions.push(it));
            bodies[0] = &it.macro_decl.body;
        }
        Stmt::Do(it) => arguments(&it.call.args, |it| expressions.push(it)),
        Stmt::EmitRaw(_)
        | Stmt::Import(_)
        | Stmt::FromImport(_)
        | Stmt::Extends(_)
        | Stmt::Include(_)
        | Stmt::Continue(_)
        | Stmt::Break(_) => {}
    }
    expressions.into_iter().for_each(|it| visit(Child::Expression(it)));
    bodies.into_iter().flatten().for_each(|it| visit(Child::Statement(it)));
}

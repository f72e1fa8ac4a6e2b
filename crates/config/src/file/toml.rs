//! TOML as a tree with line numbers.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ListNode, Node, SyntaxError, TableNode, line_at};

/// The entries in the order in which they are written.
pub(super) fn parse(text: &str) -> Result<Vec<TableNode>, SyntaxError> {
    match DeTable::parse(text) {
        Ok(table) => Ok(entries(&Lines::of(text), table.get_ref())),
        Err(error) => {
            let line = line_at(text.as_bytes(), error.span().map_or(0, |it| it.start));
            // An address without quotes begins like a number.
            let hint = if error.message().starts_with("invalid float") {
                "; quote texts: \"127.0.0.1:8080\""
            } else {
                ""
            };
            Err(SyntaxError { line, what: format!("is not TOML: {}{hint}", error.message()) })
        }
    }
}

/// Where lines end. A file may hold thousands of entries, and each asks for its line.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        Lines(text.match_indices('\n').map(|it| it.0).collect())
    }

    /// The line that byte `offset` is on, counted from one.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|&end| end < offset)
    }
}

fn entries(lines: &Lines, table: &DeTable<'_>) -> Vec<TableNode> {
    let mut written: Vec<_> = table.iter().collect();
    // By place and not by line: the order of classes counts also where all are on one.
    written.sort_by_key(|(name, _)| name.span().start);
    let entries = written.into_iter().map(|(name, value)| TableNode {
        name: name.get_ref().to_string(),
        line: lines.at(name.span().start),
        value: to_value(lines, value.get_ref()),
    });
    entries.collect()
}

/// Recursion ends where the parser's own limit on nesting does.
fn to_value(lines: &Lines, value: &DeValue<'_>) -> Node {
    let item = |it: &Spanned<DeValue<'_>>| ListNode {
        line: lines.at(it.span().start),
        value: to_value(lines, it.get_ref()),
    };
    match value {
        DeValue::String(it) => Node::Text(it.to_string()),
        DeValue::Integer(it) => Node::Text(it.to_string()),
        DeValue::Float(it) => Node::Text(it.to_string()),
        DeValue::Boolean(it) => Node::Text(it.to_string()),
        DeValue::Datetime(it) => Node::Text(it.to_string()),
        DeValue::Array(items) => Node::List(items.iter().map(item).collect()),
        DeValue::Table(table) => Node::Table(entries(lines, table)),
    }
}

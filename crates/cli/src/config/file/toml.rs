//! TOML, as a tree that knows its lines.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Entry, Fault, Item, Value, line_at};

/// The entries in the order of their lines.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, Fault> {
    match DeTable::parse(text) {
        Ok(table) => Ok(entries(text, table.get_ref())),
        Err(error) => {
            let line = line_at(text.as_bytes(), error.span().map_or(0, |it| it.start));
            Err(Fault { line, what: format!("is not TOML: {}", error.message()) })
        }
    }
}

fn entries(text: &str, table: &DeTable<'_>) -> Vec<Entry> {
    let entries = table.iter().map(|(name, value)| Entry {
        name: name.get_ref().to_string(),
        line: line_at(text.as_bytes(), name.span().start),
        value: to_value(text, value.get_ref()),
    });
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|it| it.line);
    entries
}

/// Recursion ends where the parser's own limit on nesting does.
fn to_value(text: &str, value: &DeValue<'_>) -> Value {
    let item = |it: &Spanned<DeValue<'_>>| Item {
        line: line_at(text.as_bytes(), it.span().start),
        value: to_value(text, it.get_ref()),
    };
    match value {
        DeValue::String(it) => Value::Text(it.to_string()),
        DeValue::Integer(it) => Value::Text(it.to_string()),
        DeValue::Float(it) => Value::Text(it.to_string()),
        DeValue::Boolean(it) => Value::Text(it.to_string()),
        DeValue::Datetime(it) => Value::Text(it.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(item).collect()),
        DeValue::Table(table) => Value::Table(entries(text, table)),
    }
}

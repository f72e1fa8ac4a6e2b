//! The file: TOML or YAML, read into one tree of texts that knows its lines.
//!
//! Leaves stay text whatever type the language gives them: the knob reads `5`, `"5"` and `5.0` as it would read a
//! flag. So YAML's guesses (`no` as false, `1e3` as a number) have no effect.

mod toml;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::error::{ConfigError, Origin};
use crate::form::{ItemTable, ValueShape};
use crate::knob::{Assignment, Knob, RawValue};
use crate::{SourceValues, near, table};

/// Thousands of workers fit; a log file given by mistake does not.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// A key with nothing after it, as YAML allows: the same as no key.
    Nothing,
    Text(String),
    List(Vec<ListNode>),
    Table(Vec<TableNode>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ListNode {
    line: usize,
    value: Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TableNode {
    name: String,
    line: usize,
    value: Node,
}

/// Why a text is neither TOML nor YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SyntaxError {
    line: usize,
    what: String,
}

pub(super) fn read(path: &Path) -> SourceValues {
    let name: Arc<str> = path.display().to_string().into();
    let whole = |what| {
        let error = ConfigError { origin: Origin::File(name.clone()), key: None, what };
        SourceValues { given: Vec::new(), errors: vec![error] }
    };
    let bytes = match read_bytes(path) {
        Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => {
            return whole(format!("is larger than {} KiB", FILE_BYTES_MAX >> 10));
        }
        // A file that is being written is empty for a moment. Taken at its word, a reload would drop workers and keys.
        Ok(bytes) if bytes.trim_ascii().is_empty() => return whole("is empty".to_owned()),
        Ok(bytes) => bytes,
        Err(error) => return whole(format!("cannot be read: {error}")),
    };
    parse(&name, &bytes)
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What a file called `name` gives if it holds `bytes`.
pub(super) fn parse(name: &Arc<str>, bytes: &[u8]) -> SourceValues {
    let tree = match std::str::from_utf8(bytes) {
        Ok(text) if is_toml(name, text) => toml::parse(text),
        Ok(text) => yaml::parse(text),
        Err(error) => {
            let line = line_at(bytes, error.valid_up_to());
            Err(SyntaxError { line, what: "is not UTF-8".to_owned() })
        }
    };
    let mut reader =
        TreeReader { file: name.clone(), lines: BTreeMap::new(), found: SourceValues::default() };
    match tree {
        Ok(entries) => reader.entries("", entries),
        Err(SyntaxError { line, what }) => {
            let origin = Origin::Line(name.clone(), line);
            reader.found.errors.push(ConfigError { origin, key: None, what });
        }
    }
    reader.found
}

fn is_toml(name: &str, text: &str) -> bool {
    match name.rsplit_once('.').map(|it| it.1) {
        Some("toml") => true,
        Some("yaml" | "yml") => false,
        // The first line with content opens a section or sets a key, which look different in the two languages.
        _ => {
            let mut lines = text.lines().map(str::trim_start);
            let first = lines.find(|it| !it.is_empty() && !it.starts_with('#')).unwrap_or("");
            first.starts_with('[') || first.split(':').next().is_some_and(|it| it.contains('='))
        }
    }
}

/// The line that byte `offset` is on, counted from one.
fn line_at(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|&&it| it == b'\n').count()
}

/// Turns a tree into assignments to knobs.
struct TreeReader {
    file: Arc<str>,
    /// The first line of each key.
    lines: BTreeMap<&'static str, usize>,
    found: SourceValues,
}

impl TreeReader {
    /// Descends only where there are knobs, so no deeper than the longest key.
    fn entries(&mut self, section: &str, entries: Vec<TableNode>) {
        for entry in entries {
            let key = if section.is_empty() { entry.name } else { format!("{section}.{}", entry.name) };
            let below = keys_below(&key);
            match (table::all().find(|knob| knob.key == key), entry.value) {
                (_, Node::Nothing) => {}
                (Some(knob), value) => self.knob(knob, entry.line, value),
                (None, Node::Table(entries)) if !below.is_empty() => self.entries(&key, entries),
                (None, _) if !below.is_empty() => {
                    let what = format!("takes no value itself; it holds {}", below.join(", "));
                    self.fail(entry.line, &key, what);
                }
                (None, value) => {
                    let is_table = matches!(value, Node::Table(_));
                    let names = if is_table { sections() } else { keys() };
                    // At the top level, those in tables would be a hundred more.
                    let beside = if is_table || !section.is_empty() {
                        keys_below(section)
                    } else {
                        keys_of_no_table()
                    };
                    let hint = near::hint(&key, &names, &beside);
                    self.fail(entry.line, &key, format!("no such key; {hint}"));
                }
            }
        }
    }

    fn knob(&mut self, knob: &'static Knob, line: usize, value: Node) {
        if let Some(first) = self.lines.insert(knob.key, line) {
            return self.fail(line, knob.key, format!("is set on line {first} already"));
        }
        let value = match (value, knob.field.shape()) {
            (Node::List(items), shape) => RawValue::List(self.items(knob, &shape, items)),
            (Node::Table(entries), ValueShape::List(Some(table))) if table.by_name => {
                RawValue::List(self.tables(knob, &table, entries))
            }
            (Node::Table(entries), ValueShape::Map(what)) => RawValue::List(self.pairs(knob, what, entries)),
            (Node::Text(text), _) => RawValue::One(text),
            (Node::Table(_) | Node::Nothing, _) => {
                return self.fail(line, knob.key, "takes a value, not a table".to_owned());
            }
        };
        self.found.given.push(Assignment { knob, value, origin: self.origin(line) });
    }

    fn items(&mut self, knob: &Knob, shape: &ValueShape, items: Vec<ListNode>) -> Vec<(String, Origin)> {
        let mut texts = Vec::new();
        for ListNode { line, value } in items {
            match (value, shape) {
                (Node::Text(text), _) => texts.push((text, self.origin(line))),
                (Node::Table(entries), ValueShape::List(Some(table))) => {
                    texts.extend(self.item(knob, table, line, entries));
                }
                _ => self.fail(line, knob.key, "an item of this list is one text".to_owned()),
            }
        }
        texts
    }

    /// An item as a table: one key has its name, the others are its options.
    fn item(
        &mut self,
        knob: &Knob,
        table: &ItemTable,
        line: usize,
        mut entries: Vec<TableNode>,
    ) -> Option<(String, Origin)> {
        let is_name = |it: &TableNode| it.name == table.key && matches!(it.value, Node::Text(_));
        let found = entries.iter().position(is_name).map(|at| entries.remove(at).value);
        let options = self.options(knob, table.what, entries);
        let Some(Node::Text(name)) = found else {
            self.fail(
                line,
                knob.key,
                format!("{} has no {key}; write {key} = \"…\"", table.what, key = table.key),
            );
            return None;
        };
        Some(((table.join)(&name, &options), self.origin(line)))
    }

    /// Items as a table of tables by their names.
    fn tables(&mut self, knob: &Knob, table: &ItemTable, entries: Vec<TableNode>) -> Vec<(String, Origin)> {
        let mut texts = Vec::new();
        for TableNode { name, line, value } in entries {
            let shown = (table.shown)(&name);
            let options = match value {
                Node::Table(entries) => self.options(knob, &shown, entries),
                Node::Nothing => String::new(),
                _ => {
                    self.fail(line, knob.key, format!("{shown}: takes a table"));
                    continue;
                }
            };
            texts.push(((table.join)(&name, &options), self.origin(line)));
        }
        texts
    }

    fn options(&mut self, knob: &Knob, of: &str, entries: Vec<TableNode>) -> String {
        let mut options = Vec::new();
        for TableNode { name, line, value } in entries {
            match value {
                Node::Text(text) => options.push(format!("{name}={text}")),
                Node::Nothing => {}
                _ => self.fail(line, knob.key, format!("{name} of {of} takes one value")),
            }
        }
        options.join("&")
    }

    fn pairs(&mut self, knob: &Knob, what: &str, entries: Vec<TableNode>) -> Vec<(String, Origin)> {
        let mut texts = Vec::new();
        for TableNode { name, line, value } in entries {
            match value {
                Node::Text(text) => texts.push((format!("{name}={text}"), self.origin(line))),
                _ => self.fail(line, knob.key, format!("{name}: takes {what}")),
            }
        }
        texts
    }

    fn origin(&self, line: usize) -> Origin {
        Origin::Line(self.file.clone(), line)
    }

    fn fail(&mut self, line: usize, key: &str, what: String) {
        self.found.errors.push(ConfigError { origin: self.origin(line), key: Some(key.to_owned()), what });
    }
}

fn keys() -> Vec<String> {
    table::all().map(|knob| knob.key.to_owned()).collect()
}

/// What may hold a table: the sections, and knobs that are tables themselves.
fn sections() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for knob in table::all() {
        let name = knob.key.rsplit_once('.').map_or(knob.key, |it| it.0);
        let is_table =
            name != knob.key || matches!(knob.field.shape(), ValueShape::List(Some(_)) | ValueShape::Map(_));
        if is_table && !names.iter().any(|it| it == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn keys_of_no_table() -> Vec<String> {
    keys().into_iter().filter(|key| !key.contains('.')).collect()
}

fn keys_below(section: &str) -> Vec<String> {
    let is_below = |key: &str| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
    keys().into_iter().filter(|key| is_below(key)).collect()
}

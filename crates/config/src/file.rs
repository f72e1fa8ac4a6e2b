//! The file: TOML or YAML, read into one tree of texts that knows its lines.
//!
//! Leaves stay text whatever the language calls them: `5`, `"5"` and `5.0` are for the knob to judge, as
//! they would be from a flag. So YAML's guesses (`no` as false, `1e3` as a number) never come up.

mod toml;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use maitre_queue::settings::masked;

use super::error::{Error, Place};
use super::field::Field;
use super::knob::{self, Given, Knob, Written};
use super::{Found, near};

/// Thousands of workers fit; a log file given by mistake does not.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// A key with nothing after it, as YAML allows: the same as no key.
    Nothing,
    Text(String),
    List(Vec<Item>),
    Table(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    line: usize,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    line: usize,
    value: Value,
}

/// Why a text is not TOML or not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    line: usize,
    what: String,
}

pub(super) fn read(path: &Path) -> Found {
    let name: Arc<str> = path.display().to_string().into();
    let whole = |what| {
        let error = Error { place: Place::File(name.clone()), key: None, what };
        Found { given: Vec::new(), errors: vec![error] }
    };
    let bytes = match read_bytes(path) {
        Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => {
            return whole(format!("is larger than {} KiB", FILE_BYTES_MAX >> 10));
        }
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
pub(super) fn parse(name: &Arc<str>, bytes: &[u8]) -> Found {
    let tree = match std::str::from_utf8(bytes) {
        Ok(text) if is_toml(name, text) => toml::parse(text),
        Ok(text) => yaml::parse(text),
        Err(error) => {
            let line = line_at(bytes, error.valid_up_to());
            Err(Fault { line, what: "is not UTF-8".to_owned() })
        }
    };
    let mut reader = Reader { file: name.clone(), lines: BTreeMap::new(), found: Found::default() };
    match tree {
        Ok(entries) => reader.entries("", entries),
        Err(Fault { line, what }) => {
            let place = Place::Line(name.clone(), line);
            reader.found.errors.push(Error { place, key: None, what });
        }
    }
    reader.found
}

fn is_toml(name: &str, text: &str) -> bool {
    match name.rsplit_once('.').map(|it| it.1) {
        Some("toml") => true,
        Some("yaml" | "yml") => false,
        // The first line that says something opens a section or sets a key, each in its own way.
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

/// From a tree to what it says about each knob.
struct Reader {
    file: Arc<str>,
    /// Where each key was first met.
    lines: BTreeMap<&'static str, usize>,
    found: Found,
}

impl Reader {
    /// Goes down only where there are knobs, so no deeper than the longest key.
    fn entries(&mut self, section: &str, entries: Vec<Entry>) {
        for entry in entries {
            let key = if section.is_empty() { entry.name } else { format!("{section}.{}", entry.name) };
            let below = keys_below(&key);
            match (knob::all().find(|knob| knob.key == key), entry.value) {
                (_, Value::Nothing) => {}
                (Some(knob), value) => self.knob(knob, entry.line, value),
                (None, Value::Table(entries)) if !below.is_empty() => self.entries(&key, entries),
                (None, _) if !below.is_empty() => {
                    self.fail(
                        entry.line,
                        &key,
                        format!("takes no value itself; it holds {}", below.join(", ")),
                    );
                }
                (None, _) => {
                    self.fail(entry.line, &key, format!("no such key; {}", near::hint(&key, &keys())))
                }
            }
        }
    }

    fn knob(&mut self, knob: &'static Knob, line: usize, value: Value) {
        if let Some(first) = self.lines.insert(knob.key, line) {
            return self.fail(line, knob.key, format!("is set on line {first} already"));
        }
        let written = match (value, &knob.field) {
            (Value::List(items), _) => Written::List(self.items(knob, items)),
            (Value::Table(entries), Field::Classes(_) | Field::Tenants(_)) => {
                Written::List(self.tables(knob, entries))
            }
            (Value::Table(entries), field) if field.is_table() => Written::List(self.pairs(knob, entries)),
            (Value::Text(text), _) => Written::One(text),
            (Value::Table(_) | Value::Nothing, _) => {
                return self.fail(line, knob.key, "takes a value, not a table".to_owned());
            }
        };
        self.found.given.push(Given { knob, written, place: Place::Line(self.file.clone(), line) });
    }

    fn items(&mut self, knob: &Knob, items: Vec<Item>) -> Vec<(String, Place)> {
        let mut texts = Vec::new();
        for Item { line, value } in items {
            match (value, head_of(knob)) {
                (Value::Text(text), _) => texts.push((text, Place::Line(self.file.clone(), line))),
                (Value::Table(entries), Some(head)) => texts.extend(self.whole(knob, line, head, entries)),
                _ => self.fail(line, knob.key, "an item of this list is one text".to_owned()),
            }
        }
        texts
    }

    /// An item as a table: what stands before the question mark under a key of its own, as further entries what
    /// would follow it.
    fn whole(
        &mut self,
        knob: &Knob,
        line: usize,
        (what, head): (&str, &str),
        mut entries: Vec<Entry>,
    ) -> Option<(String, Place)> {
        let is_head = |it: &Entry| it.name == head && matches!(it.value, Value::Text(_));
        let found = entries.iter().position(is_head).map(|at| entries.remove(at).value);
        let options = self.options(knob, what, entries);
        let Some(Value::Text(name)) = found else {
            self.fail(line, knob.key, format!("{what} has a {head}"));
            return None;
        };
        let text = match knob.field {
            Field::Workers(_) if options.is_empty() => name,
            // With its mark even where nothing follows, lest one within the name be taken for it.
            _ => format!("{name}?{options}"),
        };
        Some((text, Place::Line(self.file.clone(), line)))
    }

    /// Items as a table of tables, by their names.
    fn tables(&mut self, knob: &Knob, entries: Vec<Entry>) -> Vec<(String, Place)> {
        let mut texts = Vec::new();
        for Entry { name, line, value } in entries {
            let options = match value {
                Value::Table(entries) => self.options(knob, &shown(knob, &name), entries),
                Value::Nothing => String::new(),
                _ => {
                    let shown = shown(knob, &name);
                    self.fail(line, knob.key, format!("{shown}: takes a table"));
                    continue;
                }
            };
            texts.push((format!("{name}?{options}"), Place::Line(self.file.clone(), line)));
        }
        texts
    }

    fn options(&mut self, knob: &Knob, of: &str, entries: Vec<Entry>) -> String {
        let mut options = Vec::new();
        for Entry { name, line, value } in entries {
            match value {
                Value::Text(text) => options.push(format!("{name}={text}")),
                Value::Nothing => {}
                _ => self.fail(line, knob.key, format!("{name} of {of} takes one value")),
            }
        }
        options.join("&")
    }

    fn pairs(&mut self, knob: &Knob, entries: Vec<Entry>) -> Vec<(String, Place)> {
        let mut texts = Vec::new();
        for Entry { name, line, value } in entries {
            match value {
                Value::Text(text) => {
                    texts.push((format!("{name}={text}"), Place::Line(self.file.clone(), line)));
                }
                _ => self.fail(line, knob.key, format!("{name}: takes {}", value_of(knob))),
            }
        }
        texts
    }

    fn fail(&mut self, line: usize, key: &str, what: String) {
        let place = Place::Line(self.file.clone(), line);
        self.found.errors.push(Error { place, key: Some(key.to_owned()), what });
    }
}

/// What an item of a list is if it is a table, and the key it goes by.
fn head_of(knob: &Knob) -> Option<(&'static str, &'static str)> {
    match knob.field {
        Field::Workers(_) => Some(("a worker", "url")),
        Field::Classes(_) => Some(("a class", "name")),
        Field::Tenants(_) => Some(("a tenant", "name")),
        Field::Keys(_) => Some(("a key", "key")),
        _ => None,
    }
}

/// As much of an item's name as a message may say.
fn shown(knob: &Knob, name: &str) -> String {
    match knob.field {
        Field::Tenants(_) => masked(name),
        _ => name.to_owned(),
    }
}

/// What a table's entries are set to.
fn value_of(knob: &Knob) -> &'static str {
    match knob.field {
        Field::Folders(_) => "the path of a folder",
        _ => "the name of a strategy",
    }
}

fn keys() -> Vec<String> {
    knob::all().map(|knob| knob.key.to_owned()).collect()
}

fn keys_below(section: &str) -> Vec<String> {
    let is_below = |key: &str| key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
    keys().into_iter().filter(|key| is_below(key)).collect()
}

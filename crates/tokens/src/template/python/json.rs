//! `json.dumps`, reproduced exactly.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use crate::json::{Exponent, float};
use crate::template::meter;

/// Deeper than any JSON we read; a template that nests further is stopped.
const DEPTH_MAX: usize = 256;

/// The `tojson` transformers gives to templates: `json.dumps` with characters beyond ASCII left as they are.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let (items, keys): (Option<String>, Option<String>) = match options.get::<Option<Value>>("separators")? {
        Some(it) if !it.is_none() => (text_at(&it, 0), text_at(&it, 1)),
        _ => (None, None),
    };
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(it) if !it.is_none() => Some(match it.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(it).unwrap_or(0).min(DEPTH_MAX)),
        }),
        _ => None,
    };
    let layout = JsonLayout {
        after_item: items.unwrap_or_else(|| if indent.is_some() { "," } else { ", " }.to_owned()),
        after_key: keys.unwrap_or_else(|| ": ".to_owned()),
        indent,
        flags: JsonFlags {
            ascii: options.get::<Option<bool>>("ensure_ascii")? == Some(true),
            sorted: options.get::<Option<bool>>("sort_keys")? == Some(true),
        },
    };
    options.assert_all_used()?;
    let mut text = String::new();
    layout.write(&mut text, value, 0)?;
    meter::charge(text.len())?;
    Ok(text)
}

fn text_at(pair: &Value, at: usize) -> Option<String> {
    pair.get_item_by_index(at).ok()?.as_str().map(str::to_owned)
}

struct JsonLayout {
    after_item: String,
    after_key: String,
    indent: Option<String>,
    flags: JsonFlags,
}

struct JsonFlags {
    ascii: bool,
    sorted: bool,
}

impl JsonLayout {
    fn write(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        meter::check(text.len())?;
        if depth > DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deep"));
        }
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&number(value)),
            ValueKind::String => self.write_string(text, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.write_list(text, value, depth)?,
            ValueKind::Map => self.write_map(text, value, depth)?,
            ValueKind::Plain if value.downcast_object_ref::<Exponent>().is_some() => {
                text.push_str(&value.to_string());
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} has no JSON")));
            }
        }
        Ok(())
    }

    fn write_list(&self, text: &mut String, list: &Value, depth: usize) -> Result<(), Error> {
        text.push('[');
        let mut any = false;
        for item in list.try_iter()? {
            self.separate(text, any, depth + 1);
            any = true;
            self.write(text, &item, depth + 1)?;
        }
        self.close(text, any, depth);
        text.push(']');
        Ok(())
    }

    fn write_map(&self, text: &mut String, map: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.flags.sorted {
            keys.sort();
        }
        text.push('{');
        let mut any = false;
        for key in keys {
            self.separate(text, any, depth + 1);
            any = true;
            match key.kind() {
                ValueKind::String => self.write_string(text, key.as_str().unwrap_or_default()),
                // Python writes numbers, booleans and `None` as texts if they are keys.
                _ => {
                    text.push('"');
                    self.write(text, &key, depth + 1)?;
                    text.push('"');
                }
            }
            text.push_str(&self.after_key);
            self.write(text, &map.get_item(&key)?, depth + 1)?;
        }
        self.close(text, any, depth);
        text.push('}');
        Ok(())
    }

    fn separate(&self, text: &mut String, any: bool, depth: usize) {
        if any {
            text.push_str(&self.after_item);
        }
        self.new_line(text, depth);
    }

    fn close(&self, text: &mut String, any: bool, depth: usize) {
        if any {
            self.new_line(text, depth);
        }
    }

    fn new_line(&self, text: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            (0..depth).for_each(|_| text.push_str(indent));
        }
    }

    fn write_string(&self, text: &mut String, string: &str) {
        text.push('"');
        let mut rest = string;
        let special = |it: char| it < ' ' || it == '"' || it == '\\' || (self.flags.ascii && !it.is_ascii());
        while let Some(at) = rest.find(special) {
            text.push_str(&rest[..at]);
            let mut after = rest[at..].chars();
            if let Some(char) = after.next() {
                escape(text, char);
            }
            rest = after.as_str();
        }
        text.push_str(rest);
        text.push('"');
    }
}

fn escape(text: &mut String, char: char) {
    match char {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\x0c' => text.push_str("\\f"),
        '\x08' => text.push_str("\\b"),
        char => char.encode_utf16(&mut [0; 2]).iter().for_each(|it| text.push_str(&format!("\\u{it:04x}"))),
    }
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        value.to_string()
    } else {
        float(f64::try_from(value.clone()).unwrap_or(f64::NAN))
    }
}

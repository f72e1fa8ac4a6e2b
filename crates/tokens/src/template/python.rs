//! Python features that templates use: `json.dumps`, string methods and tests with Python's semantics.
//!
//! The engine's own library covers most of it (`minijinja_contrib::pycompat`). This module has what it lacks or does
//! differently, where the difference changes prompts: white space includes four more control characters, lines end at
//! more characters, a string is a sequence, JSON has a space after its commas.

mod json;
#[cfg(test)]
mod tests;

use std::fmt;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::json::Exponent;
use crate::template::{TemplateError, meter};

/// What transformers appends to the last message to find where it ends.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Wider than any page; a template that asks for more is mistaken.
const INDENT_MAX: usize = 256;

pub(super) fn teach(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", trim);
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("items", items);
    environment.add_filter("indent", indent);
    environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Refusal(why)))
    });
    let is_sequence = |it: &Value| {
        matches!(it.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    };
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", move |it: &Value| is_sequence(it) || it.kind() == ValueKind::Iterable);
    let is_exponent = |it: &Value| it.downcast_object_ref::<Exponent>().is_some();
    environment.add_test("number", move |it: &Value| {
        matches!(it.kind(), ValueKind::Number | ValueKind::Bool) || is_exponent(it)
    });
    environment.add_test("float", move |it: &Value| {
        is_exponent(it) || (it.kind() == ValueKind::Number && !it.is_integer())
    });
}

/// Why the template refused, if the error is a refusal.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(it) = source {
        if let Some(Refusal(why)) = it.downcast_ref() {
            return Some(why.clone());
        }
        source = it.source();
    }
    None
}

/// The source with two tags rewritten that this engine reads differently from Jinja2.
///
/// `generation` encloses what an assistant said. Transformers uses it for training; otherwise it only opens a scope,
/// as `with` does. The line feed after `raw` is text, whether blocks are trimmed or not.
pub(super) fn in_our_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (before, tag, after) =
            (&rest[..start], &rest[start..start + length + 2], &rest[start + length + 2..]);
        text.push_str(before);
        match tag[2..tag.len() - 2].trim_matches(['-', '+']).trim() {
            "generation" => text.push_str(&tag.replace("generation", "with")),
            "endgeneration" => text.push_str(&tag.replace("endgeneration", "endwith")),
            "raw" if after.starts_with('\n') && !tag.ends_with("-%}") => {
                text.push_str(tag);
                text.push('\n');
            }
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text.push_str(rest);
    text
}

/// Whether a template adds to a text that it marked safe. Python then escapes what is added, and we do not.
pub(super) fn adds_to_safe(source: &str) -> bool {
    let dense: String = source.split_whitespace().collect();
    dense.contains("|safe+")
}

/// The messages with a tag after the last one's text, and that text.
pub(super) fn tag_last(messages: &[Value]) -> Result<(Vec<Value>, String), TemplateError> {
    let nothing = TemplateError::NothingToContinue { why: "the last message has no text" };
    let mut tagged = messages.to_vec();
    let Some(last) = tagged.last_mut() else { return Err(nothing) };
    let content = last.get_attr("content").unwrap_or_default();
    let (content, text) = match content.as_str() {
        Some(text) => (Value::from(format!("{text}{TAG}")), text.to_owned()),
        None => {
            let mut parts: Vec<Value> = content.try_iter().into_iter().flatten().collect();
            let text_of = |it: &Value| it.get_attr("text").ok()?.as_str().map(str::to_owned);
            let found = parts.iter_mut().rev().find_map(|it| Some((text_of(it)?, it)));
            let Some((text, part)) = found else { return Err(nothing) };
            *part = with(part, "text", Value::from(format!("{text}{TAG}")));
            (Value::from(parts), text)
        }
    };
    *last = with(last, "content", content);
    Ok((tagged, text))
}

/// The text up to the tag. If the template trimmed the text, the space before the tag goes too.
pub(super) fn cut_at_tag(mut text: String, last: &str) -> Result<String, TemplateError> {
    let dropped =
        TemplateError::NothingToContinue { why: "the template drops the last message or part of it" };
    if !text.contains(strip(last)) {
        return Err(dropped);
    }
    let Some(at) = text.rfind(strip(TAG)) else { return Err(dropped) };
    let kept = match text[at..].starts_with(TAG) {
        true => at,
        false => text[..at].trim_end_matches(is_space).len(),
    };
    text.truncate(kept);
    Ok(text)
}

/// The map with one member changed.
fn with(map: &Value, key: &str, value: Value) -> Value {
    let keys = map.try_iter().into_iter().flatten();
    Value::from_pairs(keys.map(|it| {
        let kept = map.get_item(&it).unwrap_or_default();
        if it.as_str() == Some(key) { (it, value.clone()) } else { (it, kept) }
    }))
}

#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Python's white space: Unicode's, and four separators that only Python includes.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\x1c'..='\x1f')
}

fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// An undefined value has no length, and no members.
fn length(value: &Value) -> Result<usize, Error> {
    let none = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
    if value.is_undefined() { Ok(0) } else { value.len().ok_or_else(none) }
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { minijinja::filters::items(value) }
}

/// Jinja2's, which keeps a last line feed and reads lines as Python does.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = match options.get::<Option<Value>>("width")?.or(width) {
        Some(it) if it.as_str().is_some() => it.to_string(),
        Some(it) => " ".repeat(usize::try_from(it)?.min(INDENT_MAX)),
        None => " ".repeat(4),
    };
    let first = options.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    meter::charge_text(value)?;
    let text = format!("{value}\n");
    meter::charge(text.len().saturating_add(text.matches(is_end).count().saturating_mul(width.len())))?;
    let mut indented = String::with_capacity(text.len() * 2);
    for (at, line) in lines(&text, false).into_iter().enumerate() {
        if at > 0 {
            indented.push('\n');
        }
        let wanted = if at == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if wanted { &width } else { "" });
        indented.push_str(line);
    }
    Ok(indented)
}

fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    let text = value.to_string();
    Ok(Value::from(match chars {
        None => strip(&text),
        Some(chars) => text.trim_matches(|it| chars.contains(it)),
    }))
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if value.as_str().is_some() {
        meter::charge_method(value, name, args)?;
    }
    match value.as_str().map(|text| string_method(text, name, args)) {
        Some(Ok(Some(result))) => Ok(result),
        Some(Err(error)) => Err(error),
        Some(Ok(None)) | None => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `None` if the library's own method is enough.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let drops = |it: char| chars.map_or_else(|| is_space(it), |chars| chars.contains(it));
            Value::from(match name {
                "strip" => text.trim_matches(drops),
                "lstrip" => text.trim_start_matches(drops),
                _ => text.trim_end_matches(drops),
            })
        }
        "split" | "rsplit" => return split(text, name, args),
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            lines(text, keep_ends == Some(true)).into_iter().map(Value::from).collect()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(text, separator, name == "rpartition")
        }
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_space)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn partition(text: &str, separator: &str, from_end: bool) -> Value {
    let found = if from_end { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    parts.into_iter().map(Value::from).collect()
}

fn split(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let (separator, times): (Option<&str>, Option<i64>) = from_args(args)?;
    // A negative number means no limit.
    let times = times.and_then(|it| usize::try_from(it).ok());
    let from_end = name == "rsplit";
    let parts: Vec<&str> = match (separator, times) {
        (Some(""), _) => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
        (Some(separator), None) => text.split(separator).collect(),
        (Some(separator), Some(times)) if from_end => {
            let mut parts: Vec<&str> = text.rsplitn(times + 1, separator).collect();
            parts.reverse();
            parts
        }
        (Some(separator), Some(times)) => text.splitn(times + 1, separator).collect(),
        (None, None) => text.split(is_space).filter(|it| !it.is_empty()).collect(),
        (None, Some(_)) if from_end => {
            return Err(Error::new(ErrorKind::InvalidOperation, "rsplit by space, so often"));
        }
        (None, Some(times)) => words(text, times),
    };
    Ok(Some(parts.into_iter().map(Value::from).collect()))
}

/// At most `times` words, and the rest unchanged.
fn words(text: &str, times: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = rest.find(is_space).filter(|_| parts.len() < times).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

/// Whether a line ends here.
fn is_end(it: char) -> bool {
    matches!(it, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.find(is_end) {
        let one = rest[end..].chars().next().map_or(0, char::len_utf8);
        let whole = end + if rest[end..].starts_with("\r\n") { 2 } else { one };
        lines.push(&rest[..if keep_ends { whole } else { end }]);
        rest = &rest[whole..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

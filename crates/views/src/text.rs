//! Names from outside, made safe to print on a terminal when they are deserialized.
//!
//! Names of models, tenants and workers come from clients, engines and config files. Printed as they are, they could
//! move the cursor, change the terminal's title or reverse the reading direction. `Text` replaces such characters when
//! it is deserialized, so a client of the admin API cannot print a name that it forgot to check.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};

/// Replaces each character that a terminal would act on.
const REPLACEMENT: char = '\u{fffd}';

/// The longest text that is read. Chosen: longer than any name that people give.
const CHARS_MAX: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Text(Cow<'static, str>);

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Text(Cow::Borrowed(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(Cow::Owned(text))
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        String::deserialize(deserializer).map(|it| Text::from(clean(&it, CHARS_MAX)))
    }
}

/// At most this many characters of a text, with characters replaced that a terminal would act on.
pub fn clean(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|it| if is_active(it) { REPLACEMENT } else { it }).collect()
}

/// The same JSON, with every character escaped that a terminal would act on.
pub fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for it in json.chars() {
        // Line breaks are between tokens only: JSON strings have them escaped already.
        if it == '\n' || !is_active(it) {
            out.push(it);
            continue;
        }
        let mut units = [0; 2];
        for unit in it.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    out
}

/// Control characters, and those that reverse, join or hide text.
fn is_active(it: char) -> bool {
    it.is_control()
        || matches!(it,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Text {
        serde_json::from_value(serde_json::json!(text)).unwrap()
    }

    #[test]
    fn reading_a_text_replaces_what_a_terminal_acts_on() {
        for (text, expected) in [
            ("llama-3", "llama-3"),
            ("\x1b[2J\x1b]0;hi\x07", "\u{fffd}[2J\u{fffd}]0;hi\u{fffd}"),
            ("a\nb\tc\rd", "a\u{fffd}b\u{fffd}c\u{fffd}d"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("abc\u{202e}fed", "abc\u{fffd}fed"),
            ("zero\u{200b}width", "zero\u{fffd}width"),
            ("mod\u{e8}le", "mod\u{e8}le"),
        ] {
            assert_eq!(&*read(text), expected);
        }
        assert_eq!(read(&"x".repeat(10_000)).len(), CHARS_MAX);
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value = serde_json::json!({"model": "a\u{9b}31m\u{202e}b\u{e0041}", "other": "line\nbreak"});
        let text = escaped(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|it| it == '\n' || !is_active(it)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}

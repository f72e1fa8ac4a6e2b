//! Text of somebody else's that a terminal can be shown.
//!
//! Names of models, tenants and workers come from clients, engines and config files. Written to a terminal as they
//! are, they could move the cursor, change its title or turn the reading direction around. So nothing of that kind
//! gets past here: the type is the proof, and every name the admin API tells is read as one.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer};

/// Stands for each character that does more than be seen.
const HARMLESS: char = '\u{fffd}';

/// The longest name that is kept. Chosen: beyond any that people gave on purpose.
const CHARS_MAX: usize = 256;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plain(String);

impl Plain {
    pub(crate) fn new(text: &str) -> Plain {
        Plain(clean(text, CHARS_MAX))
    }
}

impl Deref for Plain {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Plain, D::Error> {
        String::deserialize(deserializer).map(|it| Plain::new(&it))
    }
}

/// At most so many characters of a text, all of them harmless.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).map(|it| if acts(it) { HARMLESS } else { it }).collect()
}

/// JSON with whatever could act on a terminal written as an escape, which means the same.
pub(crate) fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for it in json.chars() {
        // Line breaks stand between tokens only: within strings they are escaped already.
        if it == '\n' || !acts(it) {
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

/// Whether a character does something other than be seen: controls, and those that turn, join or hide text.
fn acts(it: char) -> bool {
    it.is_control()
        || matches!(it,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_gets_through() {
        for (text, expected) in [
            ("llama-3", "llama-3"),
            ("\x1b[2J\x1b]0;hi\x07", "\u{fffd}[2J\u{fffd}]0;hi\u{fffd}"),
            ("a\nb\tc\rd", "a\u{fffd}b\u{fffd}c\u{fffd}d"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("abc\u{202e}fed", "abc\u{fffd}fed"),
            ("zero\u{200b}width", "zero\u{fffd}width"),
            ("mod\u{e8}le", "mod\u{e8}le"),
        ] {
            assert_eq!(&*Plain::new(text), expected);
        }
        assert_eq!(Plain::new(&"x".repeat(10_000)).len(), CHARS_MAX);
    }

    #[test]
    fn json_stays_the_same_value_and_is_harmless() {
        let value = serde_json::json!({"model": "a\u{9b}31m\u{202e}b\u{e0041}", "other": "line\nbreak"});
        let text = escaped(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|it| it == '\n' || !acts(it)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}

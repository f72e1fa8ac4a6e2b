//! Replaces the client's cache salt with ours. Together with `priority.rs` this is the only code that changes
//! a body.
//!
//! A salt separates caches. A client that chooses its own salt can share the cache of another tenant whose
//! salt it knows or guesses, and then learn from response times what that tenant has asked before. Where the
//! operator wants tenants separated, the router therefore sets the salt. As in `priority.rs`, everything else
//! stays as the client wrote it, byte for byte.

use std::borrow::Cow;
use std::ops::Range;

use crate::json::{Cursor, Fault};

/// The engines' names for the field. SGLang joins the values of both.
const NAMES: [&str; 2] = ["cache_salt", "extra_key"];

/// The body with a top-level `salt` under the name `field`, which is one of the two that engines know. Every
/// value of the client under that name is replaced; under the other name it becomes `null`. A body that is
/// not an object is returned unchanged.
pub fn with_salt<'a>(body: &'a [u8], field: &str, salt: &str) -> Cow<'a, [u8]> {
    debug_assert!(NAMES.contains(&field), "no engine has a salt called {field}");
    let Ok(text) = simdutf8::basic::from_utf8(body) else { return Cow::Borrowed(body) };
    let Ok(found) = find(text, field) else { return Cow::Borrowed(body) };
    let salt = serde_json::Value::from(salt).to_string();
    let mut changed = Vec::with_capacity(body.len() + field.len() + salt.len() + 4);
    // Just after the brace, which only whitespace can precede.
    let mut at = 1 + text.len() - text.trim_ascii_start().len();
    changed.extend_from_slice(&body[..at]);
    if !found.places.iter().any(|it| it.is_ours) {
        let comma = if found.is_empty { "" } else { "," };
        changed.extend_from_slice(format!("\"{field}\":{salt}{comma}").as_bytes());
    }
    for SaltPosition { range, is_ours } in found.places {
        changed.extend_from_slice(&body[at..range.start]);
        changed.extend_from_slice(if is_ours { salt.as_bytes() } else { b"null" });
        at = range.end;
    }
    changed.extend_from_slice(&body[at..]);
    Cow::Owned(changed)
}

struct Found {
    is_empty: bool,
    /// In the order of the text.
    places: Vec<SaltPosition>,
}

/// A salt that the client wrote.
struct SaltPosition {
    range: Range<usize>,
    /// Under the name that we use for ours.
    is_ours: bool,
}

fn find(text: &str, field: &str) -> Result<Found, Fault> {
    let mut cursor = Cursor::new(text);
    let mut found = Found { is_empty: true, places: Vec::new() };
    cursor.members(|key, raw| {
        found.is_empty = false;
        if NAMES.contains(&&*key) {
            // A value is a slice of the text, so its offset from the beginning is its position.
            let at = raw.text.as_ptr().addr() - text.as_ptr().addr();
            found.places.push(SaltPosition { range: at..at + raw.text.len(), is_ours: key == field });
        }
    })?;
    cursor.end()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    #[track_caller]
    fn check(body: &str, expected: &str) {
        let actual = with_salt(body.as_bytes(), "cache_salt", "s");
        assert_eq!(String::from_utf8_lossy(&actual), expected, "body: {body}");
    }

    #[test]
    fn the_salt_is_inserted_and_nothing_else_changes() {
        check("{}", r#"{"cache_salt":"s"}"#);
        check(" {\n } ", " {\"cache_salt\":\"s\"\n } ");
        check(r#" { "a" : 1.0e0 } "#, r#" {"cache_salt":"s", "a" : 1.0e0 } "#);
        check(r#"{"b":[{"cache_salt":"x"}]}"#, r#"{"cache_salt":"s","b":[{"cache_salt":"x"}]}"#);
    }

    #[test]
    fn no_salt_from_the_client_remains() {
        check(r#"{"cache_salt" : "x" , "a":1}"#, r#"{"cache_salt" : "s" , "a":1}"#);
        check(r#"{"cache_salt":null}"#, r#"{"cache_salt":"s"}"#);
        // Engines differ in which of several values counts.
        check(r#"{"cache_salt":"x","a":2,"cache_salt":[3]}"#, r#"{"cache_salt":"s","a":2,"cache_salt":"s"}"#);
        check(r#"{"extra_key":"x","a":2}"#, r#"{"cache_salt":"s","extra_key":null,"a":2}"#);
        check(r#"{"cache_salt":"x","extra_key":"y"}"#, r#"{"cache_salt":"s","extra_key":null}"#);
        check(r#"{"cache\u005fsalt":"x"}"#, r#"{"cache\u005fsalt":"s"}"#);
        let native = with_salt(br#"{"cache_salt":"x","text":"a"}"#, "extra_key", "s");
        assert_eq!(&*native, br#"{"extra_key":"s","cache_salt":null,"text":"a"}"#);
    }

    #[test]
    fn a_body_that_is_not_an_object_is_unchanged() {
        for body in ["", " ", "[1]", "7", "\"cache_salt\"", "{", "{\"a\":}", "{} {}", "{\"a\":1}x"] {
            check(body, body);
        }
        assert!(matches!(with_salt(b"{\"a\":\"\xff\"}", "cache_salt", "s"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn only_the_salts_differ(
            names in prop::collection::btree_set(prop::sample::select(vec!["a", "cache_salt", "extra_key", "é\""]), 0..4),
            salt in ".{0,8}",
            is_pretty: bool,
        ) {
            let body: Map<String, Value> = names.iter().map(|&it| (it.to_owned(), json!({"cache_salt": [it]}))).collect();
            let mut expected = body.clone();
            expected.insert("cache_salt".to_owned(), salt.clone().into());
            expected.get_mut("extra_key").map(Value::take);
            let body = Value::from(body);
            let text = if is_pretty { format!("{body:#}") } else { body.to_string() };
            let changed: Value = serde_json::from_slice(&with_salt(text.as_bytes(), "cache_salt", &salt)).unwrap();
            prop_assert_eq!(changed, Value::from(expected));
        }

        #[test]
        fn arbitrary_bytes_never_panic(body: Vec<u8>) {
            with_salt(&body, "extra_key", "s");
        }
    }
}

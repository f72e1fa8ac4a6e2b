//! Writes the priority of a request into its body. Together with `salt.rs` this is the only code that changes
//! a body.
//!
//! Everything else in the body stays as the client wrote it, byte for byte. So the text is not parsed and
//! rewritten; a number is inserted into it.

use std::borrow::Cow;
use std::ops::Range;

use crate::json::{Cursor, Fault};

/// The body with a top-level `"priority": number`. A value from the client is replaced; of several the last, but a
/// body with several is refused when it is parsed. A body that is not an object is returned unchanged.
pub fn with_priority(body: &[u8], number: i64) -> Cow<'_, [u8]> {
    let Ok(text) = simdutf8::basic::from_utf8(body) else { return Cow::Borrowed(body) };
    let Ok(gap) = gap(text) else { return Cow::Borrowed(body) };
    let (place, value) = match gap {
        Gap::Value(place) => (place, format!("{number}")),
        Gap::First(at) => (at..at, format!(r#""priority":{number},"#)),
        Gap::Only(at) => (at..at, format!(r#""priority":{number}"#)),
    };
    let mut changed = Vec::with_capacity(body.len() + value.len());
    changed.extend_from_slice(&body[..place.start]);
    changed.extend_from_slice(value.as_bytes());
    changed.extend_from_slice(&body[place.end..]);
    Cow::Owned(changed)
}

/// Where the number goes.
enum Gap {
    /// In place of this value.
    Value(Range<usize>),
    /// Before all other members.
    First(usize),
    /// Into an empty object.
    Only(usize),
}

fn gap(text: &str) -> Result<Gap, Fault> {
    let mut cursor = Cursor::new(text);
    let (mut is_empty, mut value) = (true, None);
    cursor.members(|key, raw| {
        is_empty = false;
        if key == "priority" {
            value = Some(raw.text);
        }
    })?;
    cursor.end()?;
    // Just after the brace, which only whitespace can precede.
    let start = 1 + text.len() - text.trim_ascii_start().len();
    Ok(match value {
        // A value is a slice of the text, so its offset from the beginning is its position.
        Some(value) => {
            let at = value.as_ptr().addr() - text.as_ptr().addr();
            Gap::Value(at..at + value.len())
        }
        None if is_empty => Gap::Only(start),
        None => Gap::First(start),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    #[track_caller]
    fn check(body: &str, expected: &str) {
        let actual = with_priority(body.as_bytes(), -2);
        assert_eq!(String::from_utf8_lossy(&actual), expected, "body: {body}");
    }

    #[test]
    fn the_number_is_inserted_and_nothing_else_changes() {
        check("{}", r#"{"priority":-2}"#);
        check(" {\n } ", " {\"priority\":-2\n } ");
        check(r#" { "a" : 1.0e0 } "#, r#" {"priority":-2, "a" : 1.0e0 } "#);
        check(
            r#"{"a":"\u00e9","b":[{"priority":1}]}"#,
            r#"{"priority":-2,"a":"\u00e9","b":[{"priority":1}]}"#,
        );
    }

    #[test]
    fn the_clients_last_value_is_replaced() {
        check(r#"{"priority" : 7 , "a":1}"#, r#"{"priority" : -2 , "a":1}"#);
        check(r#"{"priority":"batch"}"#, r#"{"priority":-2}"#);
        check(r#"{"priority":{"a":[1]},"b":2}"#, r#"{"priority":-2,"b":2}"#);
        check(r#"{"priority":1,"a":2,"priority":3}"#, r#"{"priority":1,"a":2,"priority":-2}"#);
        check(r#"{"prior\u0069ty":null}"#, r#"{"prior\u0069ty":-2}"#);
    }

    #[test]
    fn a_body_that_is_not_an_object_is_unchanged() {
        for body in ["", " ", "[1]", "7", "\"priority\"", "{", "{\"a\":}", "{} {}", "{\"a\":1}x"] {
            check(body, body);
        }
        assert!(matches!(with_priority(b"{\"a\":\"\xff\"}", 1), Cow::Borrowed(_)));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            let key = prop_oneof![Just("priority".to_owned()), ".{0,6}".prop_map(String::from)];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|it| Value::Object(it.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn only_the_priority_field_differs(body in json(), number: i64, is_pretty: bool) {
            let text = if is_pretty { format!("{body:#}") } else { body.to_string() };
            let changed: Value = serde_json::from_slice(&with_priority(text.as_bytes(), number)).unwrap();
            let mut expected = body;
            if let Some(object) = expected.as_object_mut() {
                object.insert("priority".to_owned(), number.into());
            }
            prop_assert_eq!(changed, expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic(body: Vec<u8>, number: i64) {
            with_priority(&body, number);
        }
    }
}

//! Writes the priority of a request into its body. Everything else stays as the client wrote it, byte for byte.

use std::borrow::Cow;

use crate::json::edit::set;
use crate::openai::edited;

/// The body with a top-level `"priority": number`, in place of any value from the client. A body that is not an object is
/// returned unchanged.
pub fn with_priority(body: &[u8], number: i64) -> Cow<'_, [u8]> {
    edited(body, &[set("priority", &number)]).map_or(Cow::Borrowed(body), Cow::Owned)
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
    fn the_clients_value_is_replaced() {
        check(r#"{"priority" : 7 , "a":1}"#, r#"{"priority" : -2 , "a":1}"#);
        check(r#"{"priority":"batch"}"#, r#"{"priority":-2}"#);
        check(r#"{"priority":{"a":[1]},"b":2}"#, r#"{"priority":-2,"b":2}"#);
        check(r#"{"priority":1,"a":2,"priority":3}"#, r#"{"priority":-2,"a":2}"#);
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

//! Replaces the client's cache salt with ours.
//!
//! A salt separates caches. A client that chooses its own salt can share the cache of another tenant whose
//! salt it knows or guesses, and then learn from response times what that tenant has asked before. Where the
//! operator wants tenants separated, the router therefore sets the salt. Everything else stays as the client wrote it,
//! byte for byte.

use std::borrow::Cow;

use crate::json::edit::{Quoted, replace, set};
use crate::openai::edited;

/// The engines' names for the field. SGLang joins the values of both.
const NAMES: [&str; 2] = ["cache_salt", "extra_key"];

/// The body with a top-level `salt` under the name `field`, which is one of the two that engines know. Every
/// value of the client under that name is replaced; under the other name it becomes `null`. A body that is
/// not an object is returned unchanged.
pub fn with_salt<'a>(body: &'a [u8], field: &str, salt: &str) -> Cow<'a, [u8]> {
    debug_assert!(NAMES.contains(&field), "no engine has a salt called {field}");
    let other = if field == NAMES[0] { NAMES[1] } else { NAMES[0] };
    edited(body, &[set(field, &Quoted(salt)), replace(other, &"null")])
        .map_or(Cow::Borrowed(body), Cow::Owned)
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
        check(r#"{"cache_salt":"x","a":2,"cache_salt":[3]}"#, r#"{"cache_salt":"s","a":2}"#);
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

//! Texts that are read, and texts that are refused.

use super::*;
use crate::form::Form;
use crate::form::tests::check;

#[test]
fn paths_begin_with_a_slash() {
    check(
        |it| URL_PATH.read(it),
        &["/", "/health", "/health?deep=1"],
        &["", "health", "/a b", "http://a/b", "/a#b"],
    );
    check(|it| PATH_PATTERN.read(it), &["/a", "/a/*", "/*"], &["", "*", "a", "/*/b", "/a?b"]);
}

#[test]
fn a_star_stands_for_the_rest_of_a_url() {
    check(
        |it| URL_PATTERN.read(it),
        &["http://a:1", "http://10.0.*", "https://*", "*"],
        &["", "10.0.0.1", "http://a?events=1", "**"],
    );
}

#[test]
fn a_file_is_not_a_folder() {
    check(|it| FILE.read(it), &["", "a", "/a/b.jsonl", "a b"], &["/a/"]);
    assert_eq!(FILE.read(""), Ok(None));
    assert!(FILE.read("a\nb").is_err());
}

#[test]
fn names_are_made_of_letters_that_headers_allow() {
    check(|it| HEADER.read(it), &["x-session-id", "X-User"], &["", "a b", "a:"]);
    check(|it| COOKIE.read(it), &["sid", "maitre_session"], &["", "a b", "a=b", "a;"]);
}

#[test]
fn the_value_of_a_header_is_not_shown() {
    let (name, value) = secret_header("Authorization = Bearer a=b").unwrap();
    assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer a=b"));
    assert!(!format!("{value:?}").contains("Bearer"));
    for bad in ["", "sk-secret", "a b=sk-secret", "=sk-secret", "a=", "a=sk\nsk-secret"] {
        let what = secret_header(bad).expect_err(bad);
        assert!(!what.contains("sk-secret"), "{what}");
    }
    check(|it| COLLECTOR.read(it), &["", "http://a:4318", "https://a/otlp"], &["a:4318", "grpc://a:4317"]);
}

#[test]
fn only_known_levels_are_accepted() {
    let bad = ["", "inof", "info,", "hyper", "hyper=", "=info", "hyper=loud", "a[b]=info"];
    check(|it| LOG_LEVEL.read(it), &["off", "info", "TRACE", "info,hyper=warn", "a::b=debug"], &bad);
}

#[test]
fn every_level_we_take_is_a_filter() {
    for text in ["off", "info", "TRACE", "info,hyper=warn", "a::b-c_d=debug,warn"] {
        assert!(
            LOG_LEVEL.read(text).is_ok() && tracing_subscriber::EnvFilter::try_new(text).is_ok(),
            "{text}"
        );
    }
}

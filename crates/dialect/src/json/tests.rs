//! Compares the cursor with serde_json, the reference it must match.

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

fn verdict(text: &str) -> Result<(), Fault> {
    let mut cursor = Cursor::new(text);
    cursor.value()?;
    cursor.end()
}

/// serde_json without building values: its verdict on grammar, regardless of number sizes.
fn oracle(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[track_caller]
fn check_agrees(text: &str) {
    // Written out because serde_json supports neither the three words nor our depth limit.
    let differs_by_design = text.contains("NaN") || text.contains("Infinity") || {
        matches!(verdict(text), Err(Fault::TooDeep { .. }))
    };
    if !differs_by_design {
        assert_eq!(verdict(text).is_ok(), oracle(text), "{text:?}: {:?}", verdict(text));
    }
    if serde_json::from_str::<serde_json::Value>(text).is_ok() {
        assert_eq!(verdict(text), Ok(()), "{text:?}");
    }
}

#[track_caller]
fn check_fault(text: &str, what: &str, offset: usize) {
    match verdict(text) {
        Err(Fault::Expected { what: actual, offset: at }) => {
            assert_eq!((actual, at), (what, offset), "{text:?}");
        }
        other => panic!("{text:?}: {other:?}"),
    }
}

/// Separated by `|`, which JSON does not use. More cases, with control bytes, are in the test itself.
const CORNERS: &str = r#"| |{}|[]|[ ]|{ }| { } |[1]|[1,]|[,1]|[1 2]|[1|]|}|{]|[}|{"a":1}|{"a" : 1 , "b":2}|{"a":1,}|{,}|{a:1}|{"a"}|{"a":}|
|{1:2}|0|-0|-|01|1.|.5|1.5|1e5|1E+5|1e-5|1e|1e+|+1|0x1|1_0|--1|123456789012345678901234567890|1e999|-1e999|null|nul|nulll|true|True|
|false|falsey|[truefalse]|[true,false,null]|""|"a|a"|"\n"|"\x"|"\"|"\u00e9"|"\u00g9"|"\u12"|"\u+123"|"\ud83d\ude00"|"\ud83d"|
|"\ude00"|"\ud83d\n"|{"a":{"b":[{},[],[[]],{"c":"d"}]}}|{}{}|[] x|'a'|/* */1|"é"|{"a":[}|[{"a":1]"#;

#[test]
fn matches_serde_json_on_grammar_edge_cases() {
    for case in CORNERS.split('|').map(|it| it.trim_matches('\n')) {
        check_agrees(case);
    }
    for case in [
        " {\t}\r\n",
        "\"\t\"",
        "\"\n\"",
        "\"a\u{1f}\"",
        "\"\u{7f}\"",
        "\"\u{2028}\"",
        "\u{feff}{}",
        "[1\u{c}]",
    ] {
        check_agrees(case);
    }
}

#[test]
fn words_that_only_python_accepts_are_accepted() {
    for text in ["NaN", "[NaN,Infinity,-Infinity]", "{\"a\":-Infinity}"] {
        assert_eq!(verdict(text), Ok(()), "{text}");
    }
    check_fault("nan", "a value", 0);
    check_fault("-NaN", "a digit", 1);
}

#[test]
fn depth_is_bounded_and_the_bound_is_exact() {
    let limit = MAX_DEPTH as usize;
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(verdict(&nested(limit)), Ok(()));
    assert_eq!(verdict(&nested(limit + 1)), Err(Fault::TooDeep { offset: limit + 1 }));
    assert_eq!(verdict(&"[{\"a\":".repeat(100_000)), Err(Fault::TooDeep { offset: 6 * 64 + 1 }));
}

#[test]
fn errors_name_what_was_expected_and_where() {
    check_fault("", "a value", 0);
    check_fault("{\"a\" 1}", "`:`", 5);
    check_fault("{\"a\":1 \"b\":2}", "`,` or `}`", 7);
    check_fault("[1 2]", "`,` or `]`", 3);
    check_fault("{1:2}", "a string as the name of a member", 1);
    check_fault("\"a\nb\"", "an escape in place of a control character", 2);
    check_fault("\"abc", "a closing quote", 4);
    check_fault("\"a\\qb\"", "a valid escape", 2);
    check_fault("1.x", "a digit", 2);
    check_fault("1 2", "the end of the body", 2);
}

#[test]
fn positions_count_characters_from_one() {
    assert_eq!(place("abc", 0), (1, 1));
    assert_eq!(place("a\nbc", 3), (2, 2));
    assert_eq!(place("a\né€x", 7), (2, 3));
    assert_eq!(place("", 10), (1, 1));
}

#[test]
fn escapes_decode_as_serde_json_decodes_them() {
    for quoted in ["", "plain", r#"a\"b\\c\/d\b\f\n\r\t"#, r"\u00e9\u4e2d", r"\ud83d\ude00x", r"é\u0000"] {
        let expected: String = serde_json::from_str(&format!("\"{quoted}\"")).unwrap();
        assert_eq!(decode(quoted), expected, "{quoted}");
    }
    // serde_json refuses these; Python does not.
    assert_eq!(decode(r"\ud83dx"), "\u{fffd}x");
    assert_eq!(decode(r"\ude00\ud83d"), "\u{fffd}\u{fffd}");
    assert_eq!(decode(r"\ud83d\u0041"), "\u{fffd}A");
}

#[test]
fn encoded_images_and_sounds_are_not_text() {
    let long = "A".repeat(MEDIA_BYTES_MIN);
    let check = |text: String, expected: usize| {
        assert_eq!(Cursor::new(&text).value().unwrap().media_bytes, expected, "{text}");
    };
    check(format!(r#"{{"url":"data:image/png;base64,{long}"}}"#), 22 + long.len());
    check(format!(r#"{{"data" : "{long}"}}"#), long.len());
    check(format!(r#"{{"text":"{long}"}}"#), 0);
    check(r#"{"data":"short"}"#.to_owned(), 0);
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,40}".prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::vec((".{0,6}", inner), 0..5)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

/// All strings of a value, and the names of its members, in their order.
fn strings(raw: Raw<'_>, knows: bool) -> Vec<String> {
    let raw = Raw { longest: if knows { raw.longest } else { LongestString::default() }, ..raw };
    let mut found = Vec::from_iter(raw.string().map(Cow::into_owned));
    raw.members(|key, value| {
        found.push(key.into_owned());
        found.extend(strings(value, knows));
    });
    let mut elements = Vec::new();
    let _all = raw.records(
        |members: &mut Vec<String>, key, value| {
            members.push(key.into_owned());
            members.extend(strings(value, knows));
        },
        |element, members| {
            elements.extend(strings(element, knows));
            elements.extend(members);
            ControlFlow::Continue(())
        },
    );
    found.extend(elements);
    found
}

#[test]
fn the_longest_string_is_known_to_be_plain_or_not() {
    let check = |text: &str, expected: bool| {
        assert_eq!(Cursor::new(text).value().unwrap().is_plain(), expected, "{text}");
    };
    check(r#""plain""#, true);
    check(r#""""#, true);
    check(r#""a\nb""#, false);
    check(r#"["plain"]"#, false);
    check("1", false);
}

proptest! {
    #[test]
    fn a_value_is_read_again_as_without_its_longest_string(value in any_json()) {
        for text in [value.to_string(), format!("{value:#}"), format!("[0, {value}, \"é\\n\"]")] {
            let raw = Cursor::new(&text).value().unwrap();
            prop_assert_eq!(strings(raw, true), strings(raw, false));
        }
    }

    #[test]
    fn every_value_serde_json_writes_is_accepted(value in any_json()) {
        prop_assert_eq!(verdict(&value.to_string()), Ok(()));
        prop_assert_eq!(verdict(&format!("{value:#}")), Ok(()));
    }

    #[test]
    fn matches_serde_json_after_one_byte_is_changed(value in any_json(), at: prop::sample::Index, byte in 0u8..128) {
        let mut bytes = value.to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            check_agrees(text);
        }
    }

    #[test]
    fn matches_serde_json_on_truncated_text(value in any_json(), at: prop::sample::Index) {
        let text = value.to_string();
        let at = at.index(text.len());
        if let Some(cut) = text.get(..at) {
            check_agrees(cut);
        }
    }

    #[test]
    fn matches_serde_json_on_random_json_tokens(text in r#"[\[\]{}:,"\\0-9eE.+\-a-fnrtu \n]{0,40}"#) {
        check_agrees(&text);
    }

    #[test]
    fn strings_decode_to_what_was_encoded(text in "\\PC{0,80}|[\"\\\\\\n\\t\\u{0}-\\u{1f}é😀a]{0,80}") {
        let encoded = serde_json::Value::from(text.as_str()).to_string();
        let raw = Cursor::new(&encoded).value().unwrap();
        prop_assert_eq!(raw.string().unwrap(), text);
    }
}

//! Responses in, whole and in pieces; the counts found in them out.

use proptest::prelude::*;

use super::*;

type Counts = (Option<u64>, Option<u64>, Option<u64>);

fn find<'a>(route: Route, chunks: impl IntoIterator<Item = &'a [u8]>) -> Option<Counts> {
    let mut finder = Finder::new(route);
    for chunk in chunks {
        finder.feed(chunk);
    }
    finder.finish().map(|it| (it.prompt_tokens, it.completion_tokens, it.cached_tokens))
}

/// Checks the response whole, byte by byte, and cut in two at every position.
#[track_caller]
fn check(route: Route, response: &str, expected: Option<Counts>) {
    let bytes = response.as_bytes();
    assert_eq!(find(route, [bytes]), expected, "whole: {response}");
    assert_eq!(find(route, bytes.chunks(1)), expected, "byte by byte: {response}");
    for cut in 0..=bytes.len() {
        assert_eq!(find(route, [&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}: {response}");
    }
}

#[test]
fn the_counts_of_each_api_are_found() {
    check(
        Route::Chat,
        r#"{"choices":[],"usage":{"prompt_tokens":9,"total_tokens":14,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":8}}}"#,
        Some((Some(9), Some(5), Some(8))),
    );
    check(
        Route::Chat,
        r#"data: {"usage" : { "prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": null } }"#,
        Some((Some(9), Some(5), None)),
    );
    check(
        Route::Responses,
        r#"{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4},"output_tokens":5}}"#,
        Some((Some(9), Some(5), Some(4))),
    );
    check(
        Route::Generate,
        r#"{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"length"},"prompt_tokens":9,"completion_tokens":5,"cached_tokens":0}}"#,
        Some((Some(9), Some(5), Some(0))),
    );
}

#[test]
fn the_counts_of_a_real_sglang_are_found() {
    let stream = include_str!("../../tests/fixtures/sglang-0.5.23/completion.sse");
    check(Route::Completions, stream, Some((Some(6), Some(12), Some(0))));
    let stream = include_str!("../../tests/fixtures/sglang-0.5.23/generate.sse");
    check(Route::Generate, stream, Some((Some(25), Some(4), Some(0))));
}

#[test]
fn counts_spread_over_events_are_merged_and_the_last_wins() {
    check(
        Route::Messages,
        "data: {\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\ndata: {\"usage\":{\"output_tokens\":15}}\n\n",
        Some((Some(25), Some(15), None)),
    );
    check(
        Route::Messages,
        r#"{"usage":{"input_tokens":25,"cache_read_input_tokens":70,"cache_creation_input_tokens":5,"output_tokens":1}}"#,
        Some((Some(100), Some(1), Some(70))),
    );
    check(
        Route::Chat,
        "{\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}{\"usage\":null}{\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}",
        Some((Some(9), Some(2), None)),
    );
}

#[test]
fn generated_text_is_not_taken_for_usage() {
    for text in [
        r#"{"content":"\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"content":"\"usage":{"prompt_tokens":1}}"#,
        r#"{"a":"usage","b":{"prompt_tokens":1}}"#,
        r#"{"a":["usage",{"prompt_tokens":1}]}"#,
        r#"{"usage":[{"prompt_tokens":1}]}"#,
        r#"{"usages":{"prompt_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":1"#,
        r#"{"usage":{}}"#,
        r#"{"usage":{"prompt_tokens":1,}}"#,
        r#"{"usage":{"prompt_tokens":-1}}"#,
    ] {
        check(Route::Chat, text, None);
    }
}

#[test]
fn similar_names_do_not_hide_the_real_one() {
    for before in
        ["\"", "\"usage\"", "\"usage\":", "\"usage\" \"usage\"", "\"us\"", "\\\"usage\"", "\"usage\":{]}"]
    {
        check(
            Route::Chat,
            &format!("{before}\"usage\":{{\"prompt_tokens\":3}}"),
            Some((Some(3), None, None)),
        );
    }
}

#[test]
fn braces_and_quotes_within_strings_do_not_end_the_object() {
    check(Route::Chat, r#"{"usage":{"note":"}\"}\\","prompt_tokens":3}}"#, Some((Some(3), None, None)));
}

#[test]
fn an_object_over_the_limit_is_skipped_and_the_next_is_read() {
    let padding = "x".repeat(OBJECT_BYTES_MAX);
    let response =
        format!(r#"{{"usage":{{"prompt_tokens":1,"x":"{padding}"}}}}{{"usage":{{"prompt_tokens":2}}}}"#);
    for size in [1, 7, 100, 1000, response.len()] {
        assert_eq!(
            find(Route::Chat, response.as_bytes().chunks(size)),
            Some((Some(2), None, None)),
            "in chunks of {size}"
        );
    }
    let mut finder = Finder::new(Route::Chat);
    finder.feed(b"\"usage\":{");
    for _ in 0..1000 {
        finder.feed(&[b'1'; 100]);
        assert!(finder.kept.len() <= OBJECT_BYTES_MAX);
    }
}

#[test]
fn an_object_of_exactly_the_limit_is_read() {
    let object = |length: usize| {
        let bare = r#"{"prompt_tokens":1,"x":""}"#.len();
        format!(r#""usage":{{"prompt_tokens":1,"x":"{}"}}"#, "x".repeat(length - bare))
    };
    for size in [1, 100, 4096] {
        let fits = object(OBJECT_BYTES_MAX);
        assert!(find(Route::Chat, fits.as_bytes().chunks(size)).is_some(), "chunks of {size}");
        let exceeds = object(OBJECT_BYTES_MAX + 1);
        assert!(find(Route::Chat, exceeds.as_bytes().chunks(size)).is_none(), "chunks of {size}");
    }
}

#[test]
fn counts_that_no_answer_can_have_are_no_counts() {
    let counts = |number: &str| {
        let body = format!(r#"{{"usage":{{"prompt_tokens":7,"completion_tokens":{number}}}}}"#);
        find(Route::Chat, [body.as_bytes()]).and_then(|it| it.1)
    };
    assert_eq!(counts("4294967295"), Some(4_294_967_295));
    for absurd in ["4294967296", "18446744073709551615", "-1", "1e9"] {
        assert_eq!(counts(absurd), None, "{absurd}");
    }
}

fn any_response() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "\"usage\"",
        "\"",
        "\\",
        "usage",
        ":",
        " ",
        "{",
        "}",
        "{\"prompt_tokens\":7}",
        "{\"completion_tokens\":3}",
        "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6}",
        "null",
        "\"us",
        "age\"",
        "data: ",
        "\n\n",
        "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn chunk_boundaries_make_no_difference(response in any_response(), sizes in prop::collection::vec(1usize..20, 1..8)) {
        let mut chunks = Vec::new();
        let mut rest = &response[..];
        for &size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(find(Route::Chat, chunks), find(Route::Chat, [&response[..]]));
    }

    #[test]
    fn arbitrary_bytes_never_panic(chunks: Vec<Vec<u8>>) {
        find(Route::Chat, chunks.iter().map(Vec::as_slice));
        find(Route::Generate, chunks.iter().map(Vec::as_slice));
    }
}

//! Streams in, whole and in pieces; the observed state out.

use proptest::prelude::*;

use super::*;

/// The state after a stream: begun, ended, failed, between events.
type Progression = (bool, bool, bool, bool);

fn watch<'a>(route: Route, chunks: impl IntoIterator<Item = &'a [u8]>) -> Progression {
    let mut tracker = Tracker::new(route);
    for chunk in chunks {
        tracker.feed(chunk);
    }
    (tracker.begun(), tracker.ended(), tracker.failed(), tracker.between_events())
}

/// Checks the stream whole, byte by byte, and cut in two at every position.
#[track_caller]
fn check(route: Route, stream: &str, expected: Progression) {
    let bytes = stream.as_bytes();
    assert_eq!(watch(route, [bytes]), expected, "whole: {stream:?}");
    assert_eq!(watch(route, bytes.chunks(1)), expected, "byte by byte: {stream:?}");
    for cut in 0..=bytes.len() {
        assert_eq!(watch(route, [&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}: {stream:?}");
    }
}

const ENDED: Progression = (true, true, false, true);
const CUT_BETWEEN: Progression = (true, false, false, true);
const CUT_INSIDE: Progression = (true, false, false, false);

#[test]
fn an_openai_stream_ends_with_done() {
    check(Route::Chat, "", (false, false, false, true));
    check(Route::Chat, "data: {\"a\":1}\n\ndata: [DONE]\n\n", ENDED);
    check(Route::Chat, "data: {\"a\":1}\r\n\r\ndata: [DONE]\r\n\r\n", ENDED);
    check(Route::Generate, "data:[DONE]\n\n", ENDED);
    check(Route::Chat, "data: {\"a\":1}\n\n", CUT_BETWEEN);
    check(Route::Chat, "data: {\"a\":1}\n", CUT_INSIDE);
    check(Route::Chat, "data: {\"a\":", CUT_INSIDE);
    check(Route::Chat, "data: {\"content\":\"data: [DONE]\"}\n\n", CUT_BETWEEN);
    check(Route::Chat, "data: [DONE]x\n\n", CUT_BETWEEN);
}

#[test]
fn a_done_without_its_blank_line_still_ends_the_stream() {
    check(Route::Chat, "data: [DONE]", (true, true, false, false));
    check(Route::Chat, "data: [DONE]\n", (true, true, false, false));
}

#[test]
fn a_messages_stream_ends_with_message_stop() {
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    check(Route::Messages, stop, ENDED);
    check(Route::Messages, "data: {\"type\": \"message_stop\"}\n\n", ENDED);
    check(Route::Messages, &format!("{stop}data: [DONE]\n\n"), ENDED);
    check(Route::Messages, "event: message_stop\n", CUT_INSIDE);
    check(Route::Messages, "event: message_delta\ndata: {}\n\ndata: [DONE]\n\n", CUT_BETWEEN);
}

#[test]
fn a_responses_stream_ends_in_one_of_three_ways() {
    let long = "x".repeat(5000);
    for kind in ["completed", "incomplete"] {
        let stream = format!("event: response.{kind}\ndata: {{\"response\":\"{long}\"}}\n\n");
        assert_eq!(watch(Route::Responses, [stream.as_bytes()]), ENDED, "{kind}");
        assert_eq!(watch(Route::Responses, stream.as_bytes().chunks(7)), ENDED, "{kind}");
    }
    check(Route::Responses, "event: response.failed\ndata: {}\n\n", (true, true, true, true));
    check(Route::Responses, "data: {\"type\":\"response.incomplete\"}\n\n", ENDED);
    check(Route::Responses, "event: response.completed\ndata: {\"resp", CUT_INSIDE);
    check(Route::Responses, "event: response.output_text.delta\ndata: {}\n\n", CUT_BETWEEN);
}

#[test]
fn an_error_within_the_stream_is_seen() {
    check(Route::Chat, "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", (true, true, true, true));
    check(Route::Chat, "data: {\"error\": {}}\n\n", (true, false, true, true));
    check(Route::Chat, "data: {\"object\":\"error\",\"message\":\"x\"}\n\n", (true, false, true, true));
    check(Route::Messages, "event: error\ndata: {}\n\n", (true, false, true, true));
    check(Route::Chat, "data: {\"content\":\"{\\\"error\\\"\"}\n\n", CUT_BETWEEN);
}

#[test]
fn comments_are_not_tokens() {
    check(Route::Chat, ": ping\n\n: pong\n\n", (false, false, false, true));
    check(Route::Chat, "\r\n: ping", (false, false, false, false));
    let mut tracker = Tracker::new(Route::Chat);
    for (chunk, carried) in [
        (": pi", false),
        ("ng\n\n", false),
        ("\r\n", false),
        (": a\n\nda", true),
        ("ta: {}", true),
        ("\n\n", true),
        ("\n", false),
        (": b\n", false),
        ("event: x\n", true),
    ] {
        assert_eq!(tracker.feed(chunk.as_bytes()), carried, "{chunk:?}");
    }
}

#[test]
fn an_appended_failure_never_becomes_part_of_an_unfinished_event() {
    let failure = Failure::server("worker_failed", "gone");
    let event = |stream: &str| {
        let mut tracker = Tracker::new(Route::Chat);
        tracker.feed(stream.as_bytes());
        tracker.failure_event(&failure)
    };
    assert!(event("").starts_with("data: {\"error\""));
    assert!(event("data: 1\n\n").starts_with("data: {\"error\""));
    assert!(event(": ping\n\n").starts_with("data: {\"error\""));
    for cut in ["data: 1\n", "data: {\"a", ": pi", "event: x\n"] {
        assert!(event(cut).starts_with("\n\ndata: {\"error\""), "{cut:?}");
    }
}

#[test]
fn the_appended_event_is_recognised_as_a_failure() {
    for route in [Route::Chat, Route::Completions, Route::Generate, Route::Messages, Route::Responses] {
        let mut tracker = Tracker::new(route);
        tracker.feed(b"data: {\"a");
        let event = tracker.failure_event(&Failure::server("worker_failed", "gone"));
        tracker.feed(event.as_bytes());
        assert!(tracker.failed() && tracker.between_events(), "{route:?}");
    }
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "data: {\"a\":1}",
        "data: [DONE]",
        "event: message_stop",
        "event: response.completed",
        ": ping",
        "\n",
        "\n\n",
        "\r\n",
        "data: {\"error\"",
        "data: {\"type\":\"message_stop\"}",
        "x",
        "event: error",
        " ",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn chunk_boundaries_make_no_difference(stream in any_stream(), size in 1usize..9) {
        for route in [Route::Chat, Route::Messages, Route::Responses] {
            prop_assert_eq!(watch(route, stream.chunks(size)), watch(route, [&stream[..]]));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(chunks: Vec<Vec<u8>>) {
        for route in Route::ALL {
            watch(route, chunks.iter().map(Vec::as_slice));
        }
    }
}

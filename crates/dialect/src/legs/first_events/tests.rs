//! Beginnings of streams in, whole and in pieces; what they commit to out.

use super::StreamStart::{Announced, Content, Failed};
use super::*;

const DECODE: &str = include_str!("../../../tests/fixtures/vllm-0.32-legs/decode.sse");
const FAILED: &str = include_str!("../../../tests/fixtures/vllm-0.32-legs/failed.sse");

/// Reads the stream as it grows by `step` bytes: the first decision, or that there was none.
fn watch(route: Route, stream: &[u8], step: usize) -> StreamStart {
    let mut first = FirstEvents::new(route);
    let ends = (step..stream.len()).step_by(step).chain([stream.len()]);
    let mut starts = ends.map(|end| first.read(&stream[..end]));
    starts.find(|it| *it != StreamStart::Announced).unwrap_or(StreamStart::Announced)
}

#[track_caller]
fn check(route: Route, stream: &str, expected: StreamStart) {
    for step in [stream.len().max(1), 1, 2, 7] {
        assert_eq!(watch(route, stream.as_bytes(), step), expected, "by {step} bytes: {stream:?}");
    }
    let windows = stream.replace('\n', "\r\n");
    assert_eq!(watch(route, windows.as_bytes(), 1), expected, "with CRLF: {stream:?}");
}

/// One event of data.
#[track_caller]
fn check_data(route: Route, data: &str, expected: StreamStart) {
    check(route, &format!("data: {data}\n\n"), expected);
}

#[test]
fn a_real_stream_is_held_back_up_to_its_first_content() {
    check(Route::Chat, DECODE, Content);
    let (role, _) = DECODE.split_once("\n\n").unwrap();
    check(Route::Chat, &format!("{role}\n\n"), Announced);
    let mut first = FirstEvents::new(Route::Chat);
    let second_end = DECODE.match_indices("\n\n").nth(1).unwrap().0 + 2;
    for end in 0..second_end {
        assert_eq!(first.read(&DECODE.as_bytes()[..end]), Announced, "{end} bytes");
    }
    assert_eq!(first.read(&DECODE.as_bytes()[..second_end]), Content);
}

#[test]
fn the_error_of_a_real_decode_worker_comes_before_content() {
    check(Route::Chat, FAILED, Failed);
}

#[test]
fn a_chunk_of_openai_commits_with_its_first_token() {
    let chunk = |choice: &str| format!(r#"{{"choices":[{{"index":0,{choice}}}]}}"#);
    for choice in [
        r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#,
        r#""delta":{"role":"assistant","content":null,"tool_calls":[ ],"reasoning":null}"#,
        r#""delta":{}"#,
        r#""text":"","token_ids":null"#,
    ] {
        check_data(Route::Chat, &chunk(choice), Announced);
        check_data(Route::Completions, &chunk(choice), Announced);
    }
    for choice in [
        r#""delta":{"content":" "}"#,
        r#""delta":{"reasoning":"a"}"#,
        r#""delta":{"tool_calls":[{"index":0}]}"#,
        r#""delta":{"content":""},"finish_reason":"length""#,
        r#""delta":{"content":""},"token_ids":[5]"#,
        r#""text":"a""#,
    ] {
        check_data(Route::Chat, &chunk(choice), Content);
    }
    let second = r#"{"choices":[{"delta":{}},{"delta":{"content":"a"}}]}"#;
    check_data(Route::Chat, second, Content);
}

/// vLLM and SGLang end an answer so that they give up, with status 200.
#[test]
fn an_answer_that_is_aborted_before_it_begins_has_failed() {
    let role = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
    let aborted = r#"{"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}"#;
    check(Route::Chat, &format!("data: {role}\n\ndata: {aborted}\n\ndata: [DONE]\n\n"), Failed);
    check_data(Route::Completions, r#"{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}"#, Failed);
    let generated =
        r#"{"text":"","output_ids":[],"meta_info":{"finish_reason":{"type":"abort","message":"x"}}}"#;
    check_data(Route::Generate, generated, Failed);
    check_data(Route::Generate, &generated.replace("abort", "length"), Content);
    check_data(Route::Chat, &aborted.replace("abort", "stop"), Content);
}

#[test]
fn usage_commits_once_tokens_are_counted() {
    let chunk =
        |usage: &str| format!(r#"{{"choices":[{{"delta":{{"role":"assistant"}}}}],"usage":{usage}}}"#);
    check_data(Route::Chat, &chunk("null"), Announced);
    check_data(Route::Chat, &chunk(r#"{"prompt_tokens":9,"completion_tokens":0}"#), Announced);
    check_data(Route::Chat, &chunk(r#"{"prompt_tokens":9,"completion_tokens":1}"#), Content);
    check_data(Route::Chat, r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":0}}"#, Content);
}

#[test]
fn an_error_is_seen_in_every_shape() {
    for route in [Route::Chat, Route::Completions, Route::Messages, Route::Responses, Route::Generate] {
        check_data(route, r#"{"error":{"message":"x"}}"#, Failed);
        check_data(route, r#"{"id":"x","error":"gone","choices":[]}"#, Failed);
        check_data(route, r#"{"object":"error","message":"x"}"#, Failed);
        check(route, "event: error\ndata: {\"message\":\"x\"}\n\n", Failed);
    }
    check_data(Route::Responses, r#"{"type":"response.failed","response":{}}"#, Failed);
    // Once content has come, it is too late.
    check(
        Route::Chat,
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"code\":500}}\n\n",
        Content,
    );
    check_data(Route::Chat, r#"{"error":null,"choices":[{"delta":{}}]}"#, Announced);
}

#[test]
fn events_of_anthropic_announce_until_the_first_delta() {
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
    let block = |it: &str| {
        format!(
            "{start}event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{it}}}\n\n"
        )
    };
    check(Route::Messages, start, Announced);
    check(Route::Messages, &block(r#"{"type":"text","text":""}"#), Announced);
    check(Route::Messages, &block(r#"{"type":"thinking","thinking":"","signature":""}"#), Announced);
    check(Route::Messages, &block(r#"{"type":"text","text":"a"}"#), Content);
    check(Route::Messages, &block(r#"{"type":"tool_use","id":"t","name":"f","input":{}}"#), Content);
    check(
        Route::Messages,
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n",
        Content,
    );
    check(Route::Messages, "event: message_delta\ndata: {}\n\n", Content);
    check(Route::Messages, &format!("{start}event: error\ndata: {{\"type\":\"error\"}}\n\n"), Failed);
}

#[test]
fn events_of_responses_announce_until_the_first_delta() {
    for (data, expected) in [
        (r#"{"type":"response.created","response":{"error":null}}"#, Announced),
        (r#"{"type":"response.in_progress"}"#, Announced),
        (r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#, Announced),
        (r#"{"type":"response.content_part.added","part":{"type":"output_text","text":""}}"#, Announced),
        (r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}"#, Content),
        (r#"{"type":"response.output_text.delta","delta":"a"}"#, Content),
        (r#"{"type":"response.completed"}"#, Content),
    ] {
        check_data(Route::Responses, data, expected);
    }
}

#[test]
fn chunks_of_sglang_commit_with_their_text() {
    check_data(Route::Generate, r#"{"text":"","meta_info":{"finish_reason":null}}"#, Announced);
    check_data(Route::Generate, r#"{"text":"a","meta_info":{"finish_reason":null}}"#, Content);
    check_data(Route::Generate, r#"{"text":"","meta_info":{"finish_reason":{"type":"stop"}}}"#, Content);
    check_data(Route::Generate, r#"{"output_ids":[1]}"#, Content);
}

#[test]
fn nothing_is_held_that_is_not_understood() {
    for data in ["[DONE]", "{", "7", "{}", r#"{"choices":{}}"#, r#"{"choices":[7]}"#, r#"{"choices":[]}"#] {
        check_data(Route::Chat, data, Content);
        check_data(Route::Generate, data, Content);
        check_data(Route::Messages, data, Content);
    }
    check(Route::Chat, "data: {\"choices\":\ndata: [{}]}\n\n", Content);
    check(Route::Chat, "", Announced);
    check(Route::Chat, ": keep-alive\n\n\nid: 7\n\n", Announced);
    let mut first = FirstEvents::new(Route::Chat);
    let mut held = vec![b':'; HELD_BYTES_MAX];
    assert_eq!(first.read(&held), Announced);
    held.push(b':');
    assert_eq!(first.read(&held), Content);
}

//! Messages as chats and back, against what vLLM 0.32 does itself: the same request to `/v1/messages` and, translated by hand, to
//! `/v1/chat/completions` of one server, both recorded.

use serde_json::{Value, json};

use super::super::*;

const REQUEST: &str = include_str!("../../../tests/fixtures/vllm-0.32-messages/request.json");
const MESSAGES: &str = include_str!("../../../tests/fixtures/vllm-0.32-messages/messages.sse");
const CHAT: &str = include_str!("../../../tests/fixtures/vllm-0.32-messages/chat.sse");

fn stream(request: &str) -> ContinuableStream {
    ContinuableStream::new(StreamTerms::read(Route::Messages, request.as_bytes()).unwrap())
}

#[track_caller]
fn fed(stream: &mut ContinuableStream, chunk: &str) -> String {
    let mut out = Vec::new();
    assert_eq!(stream.feed(chunk.as_bytes(), &mut out), Flow::On);
    String::from_utf8(out).unwrap()
}

fn chat_of(request: &str) -> Value {
    serde_json::from_slice(&as_chat(request.as_bytes()).unwrap()).unwrap()
}

/// A request with these members.
fn with(more: Value) -> String {
    let mut request = json!({"model": "m", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "hi"}]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request.to_string()
}

#[test]
fn a_chat_is_written_as_the_message_that_vllm_writes() {
    let mut stream = stream(REQUEST);
    assert_eq!(fed(&mut stream, CHAT), MESSAGES);
    assert_eq!(stream.obstacle(), None);
}

#[test]
fn the_chunks_of_a_chat_may_end_anywhere() {
    let mut stream = stream(REQUEST);
    let given: String = CHAT.split_inclusive(|_: char| true).map(|it| fed(&mut stream, it)).collect();
    assert_eq!(given, MESSAGES);
}

#[test]
fn a_message_becomes_the_chat_that_vllm_makes_of_it() {
    let chat = chat_of(REQUEST);
    let long = &serde_json::from_str::<Value>(REQUEST).unwrap()["messages"][0]["content"];
    let expected = json!({"model": "tiny-llama", "temperature": 0, "max_tokens": 8, "max_completion_tokens": 8,
    "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    "messages": [
        {"role": "system", "content": "Be é brief.\n"},
        {"role": "user", "content": long},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two."}]},
    ]});
    assert_eq!(chat, expected);
    let fields = json!({"system": "s", "stop_sequences": ["x"], "top_k": 3, "metadata": {"user_id": "u"}});
    let chat = chat_of(&with(fields));
    assert_eq!(chat["messages"][0], json!({"role": "system", "content": "s"}));
    assert_eq!((&chat["stop"], &chat["top_k"], chat.get("metadata")), (&json!(["x"]), &json!(3), None));
    // What is empty is left out.
    for system in [json!(""), json!([]), json!([{"type": "text", "text": ""}]), json!(null)] {
        assert_eq!(chat_of(&with(json!({"system": system})))["messages"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn what_versions_of_vllm_may_translate_differently_is_not_translated() {
    let block = |it: Value| json!({"messages": [{"role": "user", "content": [it]}]});
    for (more, obstacle) in [
        (json!({"tools": [{"name": "f"}]}), Obstacle::Tools),
        (json!({"tool_choice": {"type": "auto"}}), Obstacle::Tools),
        (block(json!({"type": "tool_result", "tool_use_id": "t"})), Obstacle::Tools),
        (block(json!({"type": "image", "source": {}})), Obstacle::Media),
        (block(json!({"type": "thinking", "thinking": "t"})), Obstacle::Reasoning),
        (block(json!({"type": "text", "text": ""})), Obstacle::Engine),
        (json!({"thinking": {"type": "disabled"}}), Obstacle::Reasoning),
        (json!({"output_config": {"effort": "low"}}), Obstacle::Guided),
        (json!({"kv_transfer_params": {"do_remote_decode": true}}), Obstacle::Steering),
        (json!({"messages": [{"role": "system", "content": "s"}]}), Obstacle::Engine),
        (json!({"system": [{"type": "text", "text": "x-anthropic-billing-header: a"}]}), Obstacle::Engine),
        (json!({"max_tokens": 9.5}), Obstacle::Engine),
        (json!({"messages": "hi"}), Obstacle::Engine),
        (json!({"model": null}), Obstacle::Engine),
        (json!({"model": ""}), Obstacle::Engine),
        (block(json!({"type": "text", "text": 5})), Obstacle::Engine),
        (json!({"stop_sequences": "END"}), Obstacle::Engine),
        (json!({"container": "c"}), Obstacle::Engine),
        (json!({"vllm_xargs": {"x": 1}}), Obstacle::Engine),
    ] {
        let request = with(more);
        let read = StreamTerms::read(Route::Messages, request.as_bytes());
        assert_eq!(read.map(|_| ()), Err(obstacle), "{request}");
    }
    let request = with(json!({"tools": [], "thinking": null, "stop_sequences": [], "cache_salt": "s"}));
    assert!(StreamTerms::read(Route::Messages, request.as_bytes()).is_ok());
}

#[test]
fn a_broken_message_goes_on_from_its_ids() {
    let whole: Vec<&str> = CHAT.split_inclusive("\n\n").collect();
    for cut in 1..whole.len() {
        let mut stream = stream(REQUEST);
        let mut given = fed(&mut stream, &whole[..cut].concat());
        match stream.break_off() {
            Break::Rest { tokens } => {
                let chat = as_chat(REQUEST.as_bytes()).unwrap();
                let request = stream.request(EngineKind::Vllm, &chat).unwrap();
                let request: Value = serde_json::from_slice(&request).unwrap();
                assert_eq!(request["max_tokens"], 8 - tokens, "after {cut} events");
                given += &fed(&mut stream, &rest(&whole, tokens, &request));
            }
            Break::Ending(events) => given += &events,
            Break::Lost(obstacle) => panic!("{obstacle} after {cut} events"),
        }
        // What was cached is the last worker's to tell, and nobody's if only the end was missing.
        let counts = |it: &str| it.split("\"usage\"").next().map(str::to_owned);
        assert_eq!(texts(&given), texts(MESSAGES), "after {cut} events");
        assert_eq!(counts(&given), counts(MESSAGES));
        assert_eq!(names(&given), names(MESSAGES), "after {cut} events");
        assert!(given.contains(r#""output_tokens":8"#), "{given}");
    }
}

/// The events of the recorded chat after so many tokens, as another worker would send them.
fn rest(whole: &[&str], tokens: u64, request: &Value) -> String {
    let first: Value = serde_json::from_str(whole[0].strip_prefix("data: ").unwrap().trim()).unwrap();
    let mut role = first;
    if tokens > 0 {
        role["prompt_token_ids"] = request["kv_transfer_params"]["prompt_token_ids"].clone();
    }
    let count = |it: &&&str| it.contains("\"token_ids\":[") && !it.contains("prompt_token_ids");
    let mut left = tokens as usize;
    let mut events = format!("data: {role}\n\n");
    for event in &whole[1..] {
        if left > 0 && count(&event) {
            left -= 1;
            continue;
        }
        let answer: u64 = 8 - tokens;
        events += &event.replace("\"completion_tokens\":8", &format!("\"completion_tokens\":{answer}"));
    }
    events
}

fn texts(events: &str) -> String {
    let payloads = events.lines().filter_map(|it| it.strip_prefix("data: "));
    let text = |it: &str| {
        let event: Value = serde_json::from_str(it).unwrap();
        event.pointer("/delta/text").and_then(Value::as_str).map(str::to_owned)
    };
    payloads.filter_map(text).collect()
}

fn names(events: &str) -> Vec<&str> {
    events.lines().filter_map(|it| it.strip_prefix("event: ")).collect()
}

#[test]
fn a_stop_sequence_is_the_routers_and_ends_the_message() {
    let text = texts(MESSAGES);
    let (before, stop) = (text.len() / 2, &text[text.len() / 2..text.len() / 2 + 4]);
    let request: Value = serde_json::from_str(REQUEST).unwrap();
    let mut request = request.as_object().unwrap().clone();
    request.insert("stop_sequences".into(), json!([stop]));
    let mut stream = stream(&Value::from(request).to_string());
    let mut out = Vec::new();
    assert_eq!(stream.feed(CHAT.as_bytes(), &mut out), Flow::Ended);
    let given = String::from_utf8(out).unwrap();
    assert_eq!(texts(&given), text[..before]);
    let end = format!(r#"{{"stop_reason":"stop_sequence","stop_sequence":{}}}"#, json!(stop));
    assert!(given.contains(&end), "{given}");
    assert!(given.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
}

#[test]
fn a_model_that_reasons_is_asked_again_as_the_client_wrote_it() {
    let role = CHAT.split_inclusive("\n\n").next().unwrap();
    let thought = r#"data: {"id":"a","choices":[{"index":0,"delta":{"reasoning":"hm"},"token_ids":[2]}]}"#;
    let mut stream = stream(REQUEST);
    assert_eq!(fed(&mut stream, role), "");
    let mut out = Vec::new();
    assert_eq!(stream.feed(format!("{thought}\n\n").as_bytes(), &mut out), Flow::Unfit);
    assert!(out.is_empty());
}

#[test]
fn a_thought_in_the_middle_is_a_block_of_its_own() {
    let mut stream = stream(REQUEST);
    let whole: Vec<&str> = CHAT.split_inclusive("\n\n").collect();
    fed(&mut stream, &whole[..2].concat());
    let thought = r#"data: {"id":"a","choices":[{"index":0,"delta":{"reasoning":"hm"},"token_ids":[2]}]}"#;
    let given = fed(&mut stream, &format!("{thought}\n\n{}", whole[2]));
    let block = ["content_block_start", "content_block_delta"];
    let thinking =
        [&["content_block_stop"], &block[..], &["content_block_delta", "content_block_stop"]].concat();
    assert_eq!(names(&given), [&thinking[..], &block[..]].concat());
    assert!(given.contains(r#""index":2"#) && given.contains(r#"{"type":"thinking_delta","thinking":"hm"}"#));
    assert_eq!(stream.break_off(), Break::Lost(Obstacle::Reasoning));
}

#[test]
fn an_error_of_a_stream_that_is_not_covered_has_the_form_of_messages() {
    let mut stream = stream(REQUEST);
    let given = fed(&mut stream, "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n");
    assert!(given.starts_with("event: error\ndata: {\"type\":\"error\""), "{given}");
}

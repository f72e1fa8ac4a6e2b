//! Requests by table; streams of vLLM 0.32, recorded; and one law: however often a stream breaks, the client cannot tell.

mod laws;
mod messages;

use serde_json::{Value, json};

use super::*;

/// A chat of vLLM 0.32 with `return_token_ids`, whole.
const UNBROKEN: &str = include_str!("../../tests/fixtures/vllm-0.32-continuation/unbroken.sse");
/// The same chat, whose server was killed after 17 tokens.
const CUT: &str = include_str!("../../tests/fixtures/vllm-0.32-continuation/cut.sse");
/// The rest from another server, by `kv_transfer_params.prompt_token_ids`.
const REST: &str = include_str!("../../tests/fixtures/vllm-0.32-continuation/chat-rest.sse");
/// The rest as a completion.
const COMPLETION: &str = include_str!("../../tests/fixtures/vllm-0.32-continuation/completion-rest.sse");

const BODY: &str =
    r#"{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"max_tokens":48}"#;

#[track_caller]
fn check_terms(route: Route, field: &str, expected: Result<(), Obstacle>) {
    let body =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"prompt":"hi",{field}}}"#);
    assert_eq!(StreamTerms::read(route, body.as_bytes()).map(|_| ()), expected, "{field}");
}

#[test]
fn requests_that_a_continuation_would_get_wrong_are_named() {
    let obstacles = [
        (r#""n":2"#, Obstacle::Several),
        (r#""best_of":3"#, Obstacle::Several),
        (r#""use_beam_search":true"#, Obstacle::Several),
        (r#""prompt":["a","b"]"#, Obstacle::Several),
        (r#""prompt":[[1],[2]]"#, Obstacle::Several),
        (r#""response_format":{"type":"json_object"}"#, Obstacle::Guided),
        (r#""guided_regex":"a+""#, Obstacle::Guided),
        (r#""structured_outputs":{"choice":["a"]}"#, Obstacle::Guided),
        (r#""logprobs":true"#, Obstacle::Logprobs),
        (r#""logprobs":0"#, Obstacle::Logprobs),
        (r#""prompt_logprobs":0"#, Obstacle::Prompt),
        (r#""echo":true"#, Obstacle::Prompt),
        (r#""presence_penalty":0.5"#, Obstacle::Penalties),
        (r#""repetition_penalty":1.1"#, Obstacle::Penalties),
        (r#""vllm_xargs":{"x":1}"#, Obstacle::Penalties),
        (r#""repetition_detection":{"max_pattern_size":4}"#, Obstacle::Penalties),
        (r#""return_hidden_states":"last""#, Obstacle::Prompt),
        (r#""return_routed_experts":true"#, Obstacle::Prompt),
        (r#""session_params":{"id":"a"}"#, Obstacle::Steering),
        (r#""thinking_token_budget":100"#, Obstacle::Reasoning),
        (r#""stop":"x","min_tokens":5"#, Obstacle::StopStrings),
        (r#""stop_regex":"x+""#, Obstacle::StopStrings),
        (r#""tools":[{"type":"function"}]"#, Obstacle::Tools),
        (r#""include_reasoning":false"#, Obstacle::Reasoning),
        (r#""messages":[{"role":"user","content":[{"type":"image_url"}]}]"#, Obstacle::Media),
        (r#""prompt_embeds":"AAAA""#, Obstacle::Media),
        (r#""kv_transfer_params":{}"#, Obstacle::Steering),
        (r#""truncate_prompt_tokens":5"#, Obstacle::Steering),
    ];
    for (field, obstacle) in obstacles {
        check_terms(Route::Chat, field, Err(obstacle));
    }
    check_terms(Route::Messages, r#""stream":true"#, Err(Obstacle::Engine));
    check_terms(Route::Responses, r#""stream":true"#, Err(Obstacle::Engine));
}

#[test]
fn fields_that_change_nothing_are_no_obstacles() {
    for field in [
        r#""n":1,"best_of":null"#,
        r#""prompt":["a"]"#,
        r#""prompt":[1,2,3]"#,
        r#""response_format":{"type":"text"},"guided_json":null"#,
        r#""logprobs":false,"prompt_logprobs":null,"echo":false"#,
        r#""presence_penalty":0.0,"frequency_penalty":null,"repetition_penalty":1"#,
        r#""stop":[],"stop_token_ids":[7]"#,
        r#""stop":["x"],"min_tokens":0"#,
        r#""tools":[{"type":"function"}],"tool_choice":"none""#,
        r#""tools":[]"#,
        r#""messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]"#,
        r#""temperature":0.7,"seed":3"#,
    ] {
        check_terms(Route::Chat, field, Ok(()));
    }
}

#[test]
fn obstacles_have_distinct_names() {
    let names: std::collections::HashSet<_> = Obstacle::ALL.iter().map(|it| it.name()).collect();
    assert_eq!(names.len(), Obstacle::ALL.len());
}

#[test]
fn asking_for_ids_changes_nothing_else() {
    let asked = with_ids(br#"{ "model":"m","temperature":1.0e0}"#).unwrap();
    assert_eq!(asked, br#"{"return_token_ids":true, "model":"m","temperature":1.0e0}"#);
}

fn stream(body: &str) -> ContinuableStream {
    ContinuableStream::new(StreamTerms::read(Route::Chat, body.as_bytes()).unwrap())
}

#[track_caller]
fn fed(stream: &mut ContinuableStream, chunk: &str) -> String {
    let mut out = Vec::new();
    assert_eq!(stream.feed(chunk.as_bytes(), &mut out), Flow::On);
    String::from_utf8(out).unwrap()
}

fn events(text: &str) -> Vec<Value> {
    let payloads = text.split("\n\n").filter_map(|it| it.strip_prefix("data: ")).filter(|it| *it != "[DONE]");
    payloads.map(|it| serde_json::from_str(it).unwrap()).collect()
}

fn content(text: &str) -> String {
    let piece =
        |it: &Value| it.pointer("/choices/0/delta/content").and_then(Value::as_str).map(str::to_owned);
    events(text).iter().filter_map(piece).collect()
}

fn ids(text: &str) -> Vec<u64> {
    let list = |it: &Value| it.pointer("/choices/0/token_ids").and_then(Value::as_array).cloned();
    events(text).iter().filter_map(list).flatten().filter_map(|it| it.as_u64()).collect()
}

#[test]
fn ids_that_the_client_did_not_ask_for_become_null_and_nothing_else_changes() {
    let given = fed(&mut stream(BODY), UNBROKEN);
    let mut expected = String::new();
    for event in UNBROKEN.split_inclusive("\n\n") {
        let hidden = match event.split_once("token_ids\":[") {
            Some((before, after)) => format!("{before}token_ids\":null{}", after.split_once(']').unwrap().1),
            None => event.to_owned(),
        };
        expected.push_str(&hidden);
    }
    assert_eq!(given, expected);
    let asked = BODY.replace("\"model\"", "\"return_token_ids\":true,\"model\"");
    assert_eq!(fed(&mut stream(&asked), UNBROKEN), UNBROKEN);
}

#[test]
fn a_killed_vllm_server_goes_unnoticed() {
    let asked = BODY.replace("\"model\"", "\"return_token_ids\":true,\"model\"");
    let mut stream = stream(&asked);
    let mut given = fed(&mut stream, CUT);
    assert_eq!(stream.break_off(), Break::Rest { tokens: 17 });
    let request = stream.request(EngineKind::Vllm, asked.as_bytes()).unwrap();
    let request: Value = serde_json::from_slice(&request).unwrap();
    let rest = events(REST);
    assert_eq!(request["kv_transfer_params"]["prompt_token_ids"], rest[0]["prompt_token_ids"]);
    assert_eq!((&request["max_tokens"], &request["return_token_ids"]), (&json!(31), &json!(true)));
    given.push_str(&fed(&mut stream, REST));
    assert_eq!((content(&given), ids(&given)), (content(UNBROKEN), ids(UNBROKEN)));
    let (events, unbroken) = (events(&given), events(UNBROKEN));
    for key in ["id", "created", "model", "object"] {
        assert!(events.iter().all(|it| it[key] == events[0][key]), "{key}");
    }
    let usage = |events: &[Value]| events.last().unwrap()["usage"].clone();
    for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage(&events)[key], usage(&unbroken)[key], "{key}");
    }
    let roles = events.iter().filter(|it| it.pointer("/choices/0/delta/role").is_some()).count();
    assert_eq!((roles, given.matches("data: [DONE]\n\n").count()), (1, 1));
    assert_eq!(stream.break_off(), Break::Ending("data: [DONE]\n\n".to_owned()));
}

#[test]
fn each_engine_gets_the_ids_in_its_own_field() {
    let mut stream = stream(BODY);
    fed(&mut stream, CUT);
    stream.break_off();
    let request = stream.request(EngineKind::Sglang, BODY.as_bytes()).unwrap();
    let request: Value = serde_json::from_slice(&request).unwrap();
    assert_eq!(request["input_ids"], events(REST)[0]["prompt_token_ids"]);
    assert_eq!(request.get("kv_transfer_params"), None);
}

#[test]
fn a_completion_goes_on_with_its_ids_as_the_prompt() {
    let body = r#"{"model":"m","prompt":"hi","stream":true,"max_tokens":31,"min_tokens":5}"#;
    let terms = StreamTerms::read(Route::Completions, body.as_bytes()).unwrap();
    let mut stream = ContinuableStream::new(terms);
    let whole: Vec<&str> = COMPLETION.split_inclusive("\n\n").collect();
    fed(&mut stream, &whole[..10].concat());
    let Break::Rest { tokens } = stream.break_off() else { panic!("not continued") };
    let request: Value =
        serde_json::from_slice(&stream.request(EngineKind::Vllm, body.as_bytes()).unwrap()).unwrap();
    let first = &events(COMPLETION)[0]["choices"][0]["prompt_token_ids"];
    let sent = request["prompt"].as_array().unwrap();
    assert_eq!(sent.len() as u64, first.as_array().unwrap().len() as u64 + tokens);
    assert!(sent.starts_with(first.as_array().unwrap()));
    assert_eq!((&request["max_tokens"], &request["min_tokens"]), (&json!(31 - tokens), &json!(0)));
    // Without a limit of the client's, engines stop after 16 tokens.
    let terms = StreamTerms::read(Route::Completions, br#"{"prompt":"hi"}"#).unwrap();
    assert_eq!(terms.tokens_max, Some(16));
}

#[test]
fn a_completion_of_a_real_sglang_continues() {
    let recorded = include_str!("../../tests/fixtures/sglang-0.5.23/completion.sse");
    let body = r#"{"model":"m","prompt":"hi","stream":true,"max_tokens":12}"#;
    let terms = StreamTerms::read(Route::Completions, body.as_bytes()).unwrap();
    let mut stream = ContinuableStream::new(terms);
    let whole: Vec<&str> = recorded.split_inclusive("\n\n").collect();
    fed(&mut stream, &whole[..5].concat());
    assert_eq!(stream.break_off(), Break::Rest { tokens: 5 });
    let request = stream.request(EngineKind::Sglang, body.as_bytes()).unwrap();
    let request: Value = serde_json::from_slice(&request).unwrap();
    let ids = |event: &Value| event["choices"][0]["token_ids"][0].clone();
    let mut expected = events(recorded)[0]["choices"][0]["prompt_token_ids"].as_array().unwrap().clone();
    expected.extend(events(recorded)[..5].iter().map(ids));
    assert_eq!((&request["prompt"], &request["max_tokens"]), (&json!(expected), &json!(7)));
}

#[test]
fn a_worker_that_ignores_the_ids_is_not_passed_on() {
    for rest in [UNBROKEN, CUT] {
        let mut stream = stream(BODY);
        fed(&mut stream, CUT);
        stream.break_off();
        let mut out = Vec::new();
        assert_eq!(stream.feed(rest.as_bytes(), &mut out), Flow::Broken);
        assert_eq!((out.len(), stream.break_off()), (0, Break::Lost(Obstacle::Refused)));
    }
}

#[test]
fn a_stream_without_ids_or_with_more_than_text_is_not_covered() {
    let role = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#;
    for (chunk, obstacle) in [
        (r#"{"choices":[{"delta":{"content":"a"},"token_ids":null}]}"#, Obstacle::NoIds),
        (r#"{"choices":[{"delta":{"content":"a"},"token_ids":["x"]}]}"#, Obstacle::TooLong),
        (r#"{"choices":[{"delta":{"reasoning":"a"},"token_ids":[2]}]}"#, Obstacle::Reasoning),
        (r#"{"choices":[{"delta":{"tool_calls":[{}]},"token_ids":[2]}]}"#, Obstacle::Tools),
        (r#"{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"a"}}]}"#, Obstacle::Several),
        (r#"{"error":{"message":"no","code":400}}"#, Obstacle::NoIds),
        ("{", Obstacle::NoIds),
    ] {
        let mut stream = stream(BODY);
        fed(&mut stream, &format!("{role}\n\n"));
        let event = format!("data: {chunk}\n\n");
        let expected = event.replace("[2]", "null").replace("[\"x\"]", "null");
        assert_eq!(fed(&mut stream, &event), expected);
        assert_eq!(stream.break_off(), Break::Lost(obstacle), "{chunk}");
    }
}

#[test]
fn an_engine_that_reports_its_failure_has_broken_off() {
    let mut stream = stream(BODY);
    fed(&mut stream, CUT);
    let mut out = Vec::new();
    let failure = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\ndata: [DONE]\n\n";
    assert_eq!((stream.feed(failure.as_bytes(), &mut out), out.len()), (Flow::Broken, 0));
    assert_eq!(stream.break_off(), Break::Rest { tokens: 17 });
}

/// What vLLM 0.32 sends when it shuts down: the answer ends as if it were complete, and so does the stream.
#[test]
fn an_engine_that_aborts_an_answer_has_broken_off() {
    let choice =
        r#"{"index":0,"delta":{"content":""},"finish_reason":"abort","stop_reason":null,"token_ids":[]}"#;
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":219,"total_tokens":236,"completion_tokens":17}}"#;
    let aborted =
        format!("data: {{\"id\":\"c\",\"choices\":[{choice}]}}\n\ndata: {usage}\n\ndata: [DONE]\n\n");
    let mut stream = stream(BODY);
    fed(&mut stream, CUT);
    let mut out = Vec::new();
    assert_eq!((stream.feed(aborted.as_bytes(), &mut out), out.len()), (Flow::Broken, 0));
    assert_eq!(stream.break_off(), Break::Rest { tokens: 17 });
    // Where nobody can go on, the client sees what the engine says.
    let mut stream = stream_without_ids();
    let given = fed(&mut stream, &aborted);
    assert_eq!(given, aborted.replace("\"token_ids\":[]", "\"token_ids\":null"));
}

fn stream_without_ids() -> ContinuableStream {
    let mut stream = stream(BODY);
    stream.give_up(Obstacle::NoMemory);
    stream
}

#[test]
fn a_stream_that_lacks_only_its_end_gets_it() {
    let whole: Vec<&str> = UNBROKEN.split_inclusive("\n\n").collect();
    let tail = |missing: usize| {
        let mut stream = stream(BODY);
        fed(&mut stream, &whole[..whole.len() - missing].concat());
        let Break::Ending(ending) = stream.break_off() else { panic!("not an ending") };
        ending
    };
    assert_eq!(tail(1), "data: [DONE]\n\n");
    let usage = events(&tail(2));
    let counts = json!({"prompt_tokens": 219, "total_tokens": 267, "completion_tokens": 48});
    assert_eq!((&usage[0]["usage"], usage.len()), (&counts, 1));
    // All tokens are there, and the finish reason went with a line that did not come.
    let mut stream = stream(&BODY.replace("48", "17"));
    fed(&mut stream, CUT);
    let Break::Ending(ending) = stream.break_off() else { panic!("not an ending") };
    assert_eq!(events(&ending)[0]["choices"][0]["finish_reason"], "length");
    assert_eq!(events(&ending)[0]["id"], events(CUT)[0]["id"]);
}

#[test]
fn an_event_longer_than_any_passes_as_it_is() {
    let mut stream = stream(BODY);
    let mut given = String::new();
    let piece = "1,".repeat(1 << 19);
    given.push_str(&fed(&mut stream, "data: {\"prompt_token_ids\":["));
    for _ in 0..5 {
        given.push_str(&fed(&mut stream, &piece));
    }
    given.push_str(&fed(&mut stream, "1]}\n\n"));
    assert_eq!(given, format!("data: {{\"prompt_token_ids\":[{}1]}}\n\n", piece.repeat(5)));
    assert_eq!(stream.break_off(), Break::Lost(Obstacle::TooLong));
}

/// What the worker that goes on sends, after a stream that was cut after 17 tokens.
fn rest_of(rest: &str) -> (ContinuableStream, Flow, String) {
    let mut stream = stream(BODY);
    fed(&mut stream, CUT);
    stream.break_off();
    let mut out = Vec::new();
    let flow = stream.feed(rest.as_bytes(), &mut out);
    (stream, flow, String::from_utf8(out).unwrap())
}

#[test]
fn a_rest_that_ends_without_a_reason_has_broken_off() {
    let announced = REST.split_inclusive("\n\n").next().unwrap();
    for rest in ["data: [DONE]\n\n".to_owned(), format!("{announced}data: [DONE]\n\n")] {
        let (mut stream, flow, given) = rest_of(&rest);
        assert_eq!((flow, given.as_str()), (Flow::Broken, ""), "{rest}");
        assert_eq!(stream.break_off(), Break::Rest { tokens: 17 }, "another worker may do better");
    }
}

#[test]
fn nothing_of_a_rest_is_passed_on_that_is_not_understood() {
    for rest in ["data: {\n\n", "event: x\ndata: {}\n\n", "data: {\"error\":{\"code\":400}}\n\n"] {
        let (mut stream, flow, given) = rest_of(rest);
        assert_eq!((flow, given.as_str()), (Flow::Broken, ""), "{rest}");
        assert_eq!(stream.break_off(), Break::Lost(Obstacle::Refused), "{rest}");
    }
    let mut stream = stream(BODY);
    fed(&mut stream, CUT);
    stream.break_off();
    let mut out = Vec::new();
    assert_eq!((stream.feed(b"data: \xff\n\n", &mut out), out.len()), (Flow::Broken, 0));
}

#[test]
fn a_rest_that_repeats_its_counts_or_counts_beyond_all_numbers_is_corrected_once() {
    let (announced, rest) = REST.split_once("\n\n").unwrap();
    let many = "\"prompt_tokens\":1,".repeat(20);
    let usage = format!(
        "data: {{\"id\":\"x\",\"choices\":[],\"usage\":{{{many}\"completion_tokens\":{}}}}}\n\n",
        u64::MAX
    );
    let finish = rest.split_inclusive("\n\n").find(|it| it.contains("\"length\"")).unwrap();
    let (_, flow, given) = rest_of(&format!("{announced}\n\n{finish}{usage}"));
    assert_eq!(flow, Flow::On);
    let last = events(&given).pop().unwrap();
    assert_eq!(last["usage"]["prompt_tokens"], 219);
    assert_eq!(last["usage"]["completion_tokens"], u64::MAX);
}

#[test]
fn ids_that_no_vocabulary_has_are_not_kept() {
    let role = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#;
    for ids in ["123456789012345678901234567890", "-1", "1e3", "1.5", "null"] {
        let mut stream = stream(BODY);
        fed(&mut stream, &format!("{role}\n\n"));
        let event =
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"a\"}},\"token_ids\":[{ids}]}}]}}\n\n");
        fed(&mut stream, &event);
        assert_eq!(stream.break_off(), Break::Lost(Obstacle::TooLong), "{ids}");
    }
}

#[test]
fn ordinary_events_of_a_long_stream_are_kept_like_all_others() {
    let asked = BODY.replace("\"model\"", "\"return_token_ids\":true,\"model\"");
    let mut stream = stream(&asked);
    let whole: Vec<&str> = UNBROKEN.split_inclusive("\n\n").collect();
    for (index, event) in whole.iter().take(30).enumerate() {
        assert_eq!(fed(&mut stream, event), *event, "event {index}");
    }
    let Break::Rest { tokens } = stream.break_off() else { panic!("not continued") };
    assert_eq!(tokens as usize, ids(&whole[..30].concat()).len());
}

/// A chat with these events of one or more tokens, broken off.
fn broken_off(body: &str, events: &[(&str, &str)]) -> ContinuableStream {
    let mut stream = stream(body);
    let mut text = r#"data: {"id":"c","created":1,"model":"m","prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

"#.to_owned();
    for (content, ids) in events {
        text += &format!(
            "data: {{\"id\":\"c\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"token_ids\":[{ids}]}}]}}\n\n"
        );
    }
    fed(&mut stream, &text);
    assert!(matches!(stream.break_off(), Break::Rest { .. }));
    stream
}

#[test]
fn an_event_of_several_tokens_may_end_within_a_character() {
    let doubtful = |events: &[(&str, &str)], kind| {
        let stream = broken_off(BODY, events);
        stream.doubtful_end(kind).map(|it| it.join(","))
    };
    let several = [("Hello", "10"), ("Hi", "11,12")];
    assert_eq!(doubtful(&several, EngineKind::Vllm).as_deref(), Some("10,11,12"));
    assert_eq!(doubtful(&several[..1], EngineKind::Vllm), None);
    // Half a character waited for the other half.
    assert_eq!(doubtful(&[("Hi", "10,11"), ("a", "12")], EngineKind::Vllm), None);
    assert_eq!(doubtful(&[("Hi", "10"), (" ", "11")], EngineKind::Sglang).as_deref(), Some("10,11"));
    let long: Vec<(&str, &str)> = vec![("a", "5,6"); 9];
    assert_eq!(doubtful(&long, EngineKind::Vllm).as_deref(), Some("5,6,5,6,5,6,5,6"));
}

#[test]
fn tokens_that_are_taken_back_are_generated_again() {
    let mut stream = broken_off(BODY, &[("Hello", "10"), ("Hi", "11,12,13")]);
    assert!(stream.take_back(2));
    let request: Value =
        serde_json::from_slice(&stream.request(EngineKind::Vllm, BODY.as_bytes()).unwrap()).unwrap();
    assert_eq!(request["kv_transfer_params"]["prompt_token_ids"], json!([1, 2, 10, 11]));
    assert_eq!(request["max_tokens"], 46);
    let rest = r#"data: {"id":"d","created":2,"model":"m","prompt_token_ids":[1,2,10,11],"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"id":"d","created":2,"model":"m","choices":[{"index":0,"delta":{"content":"!"},"token_ids":[12,14],"finish_reason":"stop"}]}

data: {"id":"d","created":2,"model":"m","choices":[],"usage":{"prompt_tokens":4,"total_tokens":6,"completion_tokens":2}}

data: [DONE]

"#;
    let given = fed(&mut stream, rest);
    assert_eq!(content(&given), "!");
    let usage = events(&given).into_iter().find_map(|it| it.get("usage").cloned()).unwrap();
    assert_eq!(usage, json!({"prompt_tokens": 2, "total_tokens": 6, "completion_tokens": 4}));
}

#[test]
fn tokens_that_the_client_has_by_their_ids_are_not_taken_back() {
    let body = BODY.replacen('{', r#"{"return_token_ids":true,"#, 1);
    assert!(!broken_off(&body, &[("Hi", "11,12")]).take_back(1));
    assert!(!broken_off(BODY, &[("Hi", "11,12")]).take_back(2), "nothing would be left");
    assert!(broken_off(&body, &[("Hi", "11,12")]).take_back(0));
}

//! An engine that is a function of its prompt's ids, killed at any byte, any number of times: the client's text, ids and
//! usage are those of an unbroken stream.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::events;
use crate::continuation::{Break, ContinuableStream, Flow, StreamTerms};
use crate::engine::EngineKind;
use crate::route::Route;

/// Letters of one to four bytes. Tokens are pieces of their bytes, so that a character may have several.
const ANSWER: &str = "aé漢😀 \"\\\nß";
const PROMPT: [u64; 3] = [7, 8, 9];
const FIRST_ID: u64 = 100;

/// The engine: its answer's tokens, each some bytes of the text.
#[derive(Clone, Debug)]
struct ToyEngine {
    tokens: Vec<Vec<u8>>,
    kind: EngineKind,
    route: Route,
}

impl ToyEngine {
    fn new(lengths: &[usize], kind: EngineKind, route: Route) -> ToyEngine {
        let (mut tokens, mut rest) = (Vec::new(), ANSWER.as_bytes());
        for length in lengths.iter().cycle() {
            let (token, after) = rest.split_at((*length).min(rest.len()));
            tokens.push(token.to_vec());
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        ToyEngine { tokens, kind, route }
    }

    /// The stream of its answer to a request, with an id and a time of its own.
    fn respond(&self, body: &[u8], number: u64) -> String {
        let body: Value = serde_json::from_slice(body).unwrap();
        assert!(body.get("stop").is_none_or(Value::is_null), "stop strings are the router's");
        let prompt = self.prompt(&body);
        let done = prompt.len() - PROMPT.len();
        let expected: Vec<u64> = PROMPT.into_iter().chain((0..done as u64).map(|it| FIRST_ID + it)).collect();
        assert_eq!(prompt, expected, "the prompt is what was delivered");
        assert!(
            std::str::from_utf8(&self.tokens[..done].concat()).is_ok(),
            "asked to go on inside a character: real engines lose it"
        );
        let limit = body["max_tokens"].as_u64().unwrap_or(u64::MAX);
        let generated = &self.tokens[done..];
        let count = (generated.len() as u64).min(limit) as usize;
        let is_cut_short = count < generated.len();
        let head = json!({"id": format!("r{number}"), "created": 1_000 + number, "model": "m"});
        let event = |members: Value| {
            let mut all = head.clone();
            all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            format!("data: {all}\n\n")
        };
        let mut stream = ": hello\n\n".to_owned();
        let is_chat = self.route == Route::Chat;
        if is_chat {
            let role = json!([{"index": 0, "delta": {"role": "assistant", "content": ""}}]);
            stream += &event(json!({"choices": role, "prompt_token_ids": prompt}));
        }
        let mut pending = Vec::new();
        for (index, token) in generated[..count].iter().enumerate() {
            pending.extend_from_slice(token);
            let text = std::str::from_utf8(&pending).map(str::to_owned).unwrap_or_default();
            if !text.is_empty() {
                pending.clear();
            }
            let reason = if is_cut_short { "length" } else { "stop" };
            let finish = (index + 1 == count).then_some(reason);
            let ids = json!([FIRST_ID + (done + index) as u64]);
            let choice = match is_chat {
                true => json!({"delta": {"content": text}, "token_ids": ids, "finish_reason": finish}),
                false => json!({"text": text, "token_ids": ids, "finish_reason": finish,
                    "prompt_token_ids": if index == 0 { json!(prompt) } else { Value::Null }}),
            };
            stream += &event(json!({"choices": [choice]}));
        }
        let (prompt, answer) = (prompt.len(), count);
        let usage =
            json!({"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer});
        stream += &event(json!({"choices": [], "usage": usage}));
        stream + "data: [DONE]\n\n"
    }

    fn prompt(&self, body: &Value) -> Vec<u64> {
        let ids = match (self.route, self.kind) {
            (Route::Completions, _) => &body["prompt"],
            (_, EngineKind::Sglang) => &body["input_ids"],
            _ => &body["kv_transfer_params"]["prompt_token_ids"],
        };
        ids.as_array().map_or(PROMPT.to_vec(), |it| it.iter().filter_map(Value::as_u64).collect())
    }
}

/// What a client makes of a stream.
#[derive(Debug, PartialEq)]
struct ClientView {
    text: String,
    ids: Vec<u64>,
    finishes: Vec<String>,
    usage: Vec<Value>,
    roles: usize,
    ends: usize,
}

fn view(stream: &str) -> ClientView {
    let events = events(stream);
    for key in ["id", "created", "model"] {
        assert!(events.iter().all(|it| it[key] == events[0][key]), "one {key}: {stream}");
    }
    let all = |path: &str| events.iter().filter_map(|it| it.pointer(path)).cloned().collect::<Vec<_>>();
    let strings =
        |path: &str| all(path).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
    ClientView {
        text: strings("/choices/0/delta/content").concat() + &strings("/choices/0/text").concat(),
        ids: all("/choices/0/token_ids")
            .iter()
            .filter_map(Value::as_array)
            .flatten()
            .filter_map(Value::as_u64)
            .collect(),
        finishes: strings("/choices/0/finish_reason"),
        usage: all("/usage"),
        roles: strings("/choices/0/delta/role").len(),
        ends: stream.matches("data: [DONE]\n\n").count(),
    }
}

/// Plays a stream that breaks after so many bytes of each worker's stream; the last worker lives.
fn play(engine: &ToyEngine, body: &str, breaks: &[usize], chunk_bytes: usize) -> String {
    let terms = StreamTerms::read(engine.route, body.as_bytes()).unwrap();
    let mut stream = ContinuableStream::new(terms);
    let (mut given, mut request) = (Vec::new(), crate::continuation::with_ids(body.as_bytes()).unwrap());
    let mut lives = breaks.iter().map(Some).chain([None]);
    for number in 0.. {
        let answer = engine.respond(&request, number);
        let life = lives.next().flatten().map_or(answer.len(), |it| *it);
        let bytes = &answer.as_bytes()[..life.min(answer.len())];
        for chunk in bytes.chunks(chunk_bytes) {
            match stream.feed(chunk, &mut given) {
                Flow::On => {}
                Flow::Ended => return String::from_utf8(given).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        if given.ends_with(b"data: [DONE]\n\n") {
            break;
        }
        match stream.break_off() {
            Break::Rest { .. } => request = stream.request(engine.kind, body.as_bytes()).unwrap(),
            Break::Ending(ending) => {
                given.extend_from_slice(ending.as_bytes());
                break;
            }
            Break::Lost(obstacle) => panic!("{obstacle}: {}", String::from_utf8_lossy(&given)),
        }
    }
    String::from_utf8(given).unwrap()
}

fn body(route: Route, limit: Option<u64>, wants_ids: bool) -> String {
    let limit = limit.map_or(String::new(), |it| format!(",\"max_tokens\":{it}"));
    let limit = if route == Route::Completions && limit.is_empty() { ",\"max_tokens\":999" } else { &limit };
    format!(
        r#"{{"model":"m","messages":[],"prompt":"x","stream_options":{{"include_usage":true}},"return_token_ids":{wants_ids}{limit}}}"#
    )
}

#[test]
fn a_stream_cut_at_any_byte_is_the_unbroken_one() {
    for (kind, route, wants_ids) in [
        (EngineKind::Vllm, Route::Chat, false),
        (EngineKind::Sglang, Route::Chat, true),
        (EngineKind::Vllm, Route::Completions, false),
    ] {
        let engine = ToyEngine::new(&[1, 3, 2], kind, route);
        let body = body(route, None, wants_ids);
        let unbroken = view(&play(&engine, &body, &[], usize::MAX));
        assert_eq!(unbroken.text, ANSWER);
        for cut in 0..engine.respond(body.as_bytes(), 0).len() {
            assert_eq!(view(&play(&engine, &body, &[cut], 64)), unbroken, "{route:?} cut at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_that_breaks_often_is_the_unbroken_one(
        breaks in prop::collection::vec(0usize..3_000, 0..6),
        lengths in prop::collection::vec(1usize..5, 1..5),
        chunk_bytes in 1usize..400,
        limit in prop::option::of(1u64..30),
        wants_ids in any::<bool>(),
        is_chat in any::<bool>(),
        stop in prop::option::of(0usize..6),
    ) {
        let route = if is_chat { Route::Chat } else { Route::Completions };
        let engine = ToyEngine::new(&lengths, EngineKind::Vllm, route);
        let body = body(route, limit, wants_ids);
        let body = match stop {
            None => body,
            Some(at) => {
                let text: String = ANSWER.chars().skip(at).take(2).collect();
                stopping(&body, &format!("[{}]", json!(text)))
            }
        };
        let unbroken = play(&engine, &body, &[], usize::MAX);
        prop_assert_eq!(view(&play(&engine, &body, &breaks, chunk_bytes)), view(&unbroken));
    }
}

/// The body with stop strings.
fn stopping(body: &str, stop: &str) -> String {
    body.replacen('{', &format!("{{\"stop\":{stop},"), 1)
}

#[test]
fn a_stop_string_is_found_wherever_the_stream_is_cut() {
    for (kind, route, stop, expected) in [
        (EngineKind::Vllm, Route::Chat, r#""\u6f22\ud83d\ude00""#, "aé"),
        (EngineKind::Vllm, Route::Completions, "[\"zz\",\"\\\"\\\\\"]", "aé漢😀 "),
        (EngineKind::Sglang, Route::Chat, "\"ß?\"", ANSWER),
    ] {
        let engine = ToyEngine::new(&[1, 3, 2], kind, route);
        let body = stopping(&body(route, None, true), stop);
        let unbroken = view(&play(&engine, &body, &[], usize::MAX));
        assert_eq!(
            (unbroken.text.as_str(), unbroken.finishes.as_slice()),
            (expected, &["stop".to_owned()][..])
        );
        assert_eq!(unbroken.usage[0]["completion_tokens"], unbroken.ids.len(), "{unbroken:?}");
        for cut in 0..engine.respond(body.replace(stop, "null").as_bytes(), 0).len() {
            assert_eq!(view(&play(&engine, &body, &[cut], 64)), unbroken, "{route:?} cut at {cut}");
        }
    }
}

#[test]
fn the_event_that_ends_at_a_stop_string_says_which() {
    let engine = ToyEngine::new(&[1], EngineKind::Vllm, Route::Chat);
    let given = play(&engine, &stopping(&body(Route::Chat, None, false), "\" \""), &[], usize::MAX);
    let last = events(&given).into_iter().rfind(|it| it.pointer("/choices/0").is_some()).unwrap();
    assert_eq!(last["choices"][0]["stop_reason"], " ");
    assert_eq!(last["choices"][0]["delta"]["content"], "");
}

#[test]
fn text_that_waits_for_a_stop_string_is_neither_lost_nor_overtaken() {
    let body = stopping(&body(Route::Chat, None, false), "\"<|end|>\"");
    let text = |it: &str, ids: &str| {
        let delta = format!(r#"{{"index":0,"delta":{{"content":"{it}"}}{ids}}}"#);
        format!("data: {{\"id\":\"a\",\"created\":1,\"model\":\"m\",\"choices\":[{delta}]}}\n\n")
    };
    let (hello, world) = (text("Hello", ",\"token_ids\":[1]"), text(" world", ",\"token_ids\":[2]"));
    let foreign = format!("event: note\n{}", text("!", ""));
    let error = "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n";
    for (last, expected) in [("", "Hello world"), (&foreign, "Hello world!"), (error, "Hello world")] {
        let mut stream = ContinuableStream::new(StreamTerms::read(Route::Chat, body.as_bytes()).unwrap());
        let mut out = Vec::new();
        for event in [&hello, &world, last, "data: [DONE]\n\n"] {
            assert!(matches!(stream.feed(event.as_bytes(), &mut out), Flow::On), "{event}");
        }
        let given = String::from_utf8(out).unwrap();
        // The client's parser does not mind what kind an event is.
        assert_eq!(view(&given.replace("event: note\n", "").replace(error, "")).text, expected, "{given}");
        assert!(given.ends_with("data: [DONE]\n\n"), "{given}");
    }
}

#[test]
fn an_engine_that_separates_reasoning_is_asked_again_for_its_own_stop_strings() {
    let body = stopping(&body(Route::Chat, None, false), "\"x\"");
    let terms = StreamTerms::read(Route::Chat, body.as_bytes()).unwrap();
    assert!(terms.needs_text());
    let mut stream = ContinuableStream::new(terms);
    let mut out = Vec::new();
    let role = r#"data: {"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1]}"#;
    let reasoning = r#"data: {"id":"a","choices":[{"index":0,"delta":{"reasoning":"hm"},"token_ids":[2]}]}"#;
    assert_eq!(stream.feed(format!("{role}\n\n").as_bytes(), &mut out), Flow::On);
    assert_eq!(stream.feed(format!("{reasoning}\n\n").as_bytes(), &mut out), Flow::Unfit);
    assert_eq!(out, b"", "nothing was passed on");
}

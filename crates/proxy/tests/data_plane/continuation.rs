//! Streams whose worker fails in the middle go on at another one, and their clients do not notice.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use http::Request;
use http_body_util::BodyExt;
use maitre_base::Rng;
use maitre_proxy::settings::BrokenStreams;
use maitre_proxy::{RouterSettings, Secret};
use maitre_sim::http::HostConfig;
use maitre_sim::http::brand::Brand;
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::http::misconfiguration::{Misconfiguration, Misconfigurations};
use maitre_sim::profile::H200_8B;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::fixture::{
    Client, Fixture, TestResponse, chat, engine_settings, fixture_with, metric, post, read, settings,
    until_counted, within,
};

fn continuing() -> RouterSettings {
    RouterSettings { broken_streams: BrokenStreams::Continue, ..settings() }
}

async fn fleet(count: usize) -> Fixture {
    fleet_of(count, engine_settings(), continuing()).await
}

async fn fleet_of(count: usize, engine: HostConfig, settings: RouterSettings) -> Fixture {
    let fixture = fixture_with(count, HostConfig { bodies_max: 8, ..engine }, settings).await;
    // Once its metrics are read, the engine is detected.
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    fixture
}

fn question(more: Value) -> Value {
    let mut body = json!({"model": "maitre-sim", "messages": [{"role": "user", "content": "a table for two"}],
        "max_tokens": 24, "stream": true, "stream_options": {"include_usage": true}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Asks under one request id, which is also the id of the response.
async fn ask(addr: SocketAddr, path: &str, body: &Value) -> TestResponse {
    let mut request = post(path, body.to_string());
    request.headers_mut().insert("x-request-id", "one".parse().unwrap());
    Client::connect(addr).await.ask(request).await.unwrap()
}

/// The events of a stream, without the time at which each began and what was cached.
fn events(response: &TestResponse) -> Vec<Value> {
    let text = response.text();
    let payloads =
        text.split("\n\n").filter(|it| !it.is_empty()).map(|it| it.strip_prefix("data: ").unwrap());
    let event = |it: &str| {
        let mut event: Value = serde_json::from_str(it).unwrap_or_else(|_| json!(it));
        if let Some(event) = event.as_object_mut() {
            event.remove("created");
            event
                .get_mut("usage")
                .and_then(Value::as_object_mut)
                .map(|it| it.remove("prompt_tokens_details"));
        }
        event
    };
    payloads.map(event).collect()
}

const RESUMED: &str = r#"maitre_continuations_total{outcome="resumed"}"#;
const COMPLETED: &str = r#"maitre_continuations_total{outcome="completed"}"#;

#[tokio::test]
async fn a_stream_cut_at_any_byte_reaches_its_client_whole() {
    for (path, body) in [
        ("/v1/chat/completions", question(json!({}))),
        ("/v1/chat/completions", question(json!({"return_token_ids": true}))),
        ("/v1/completions", question(json!({"prompt": "a table for two", "messages": null}))),
    ] {
        let fixture = fleet(2).await;
        let unbroken = ask(fixture.router.listen(), path, &body).await;
        assert_eq!(unbroken.header("x-maitre-continue"), "on");
        let expected = events(&unbroken);
        assert!(expected.len() > 24, "{}", unbroken.text());
        let mut asked = body.clone();
        asked["return_token_ids"] = json!(true);
        let length = ask(fixture.engines[0].addr(), path, &asked).await.body.len();
        for bytes in (0..length).step_by(211).chain(length - 15..length) {
            for engine in &fixture.engines {
                engine.handle().clear_fault();
            }
            fixture.engines[bytes % 2].handle().inject(Injection::times(Fault::CloseAfterBytes { bytes }, 1));
            for _ in 0..2 {
                let broken = ask(fixture.router.listen(), path, &body).await;
                assert_eq!(events(&broken), expected, "{path} cut at {bytes}");
            }
        }
        fixture.until_nothing_is_open().await;
        let page = fixture.router.metrics();
        assert!(metric(&page, RESUMED) > 20.0 && metric(&page, COMPLETED) > 2.0, "{page}");
        assert!(!page.contains(r#"outcome="broke""#), "{page}");
    }
}

/// The events of a message, without what was cached and the first worker's counts.
fn messages(response: &TestResponse) -> Vec<Value> {
    let text = response.text();
    let payloads = text.lines().filter_map(|it| it.strip_prefix("data: "));
    let event = |it: &str| {
        let mut event: Value = serde_json::from_str(it).unwrap();
        if let Some(usage) = event.get_mut("usage").and_then(Value::as_object_mut) {
            // Counted apart, in sum the prompt.
            let input: u64 =
                usage.iter().filter(|it| it.0 != "output_tokens").filter_map(|it| it.1.as_u64()).sum();
            let output = usage["output_tokens"].clone();
            event["usage"] = json!({"input": input, "output": output});
        }
        event
    };
    payloads.map(event).collect()
}

fn message(more: Value) -> Value {
    let mut body = json!({"model": "maitre-sim", "messages": [{"role": "user", "content": "a table for two"}],
        "max_tokens": 24, "stream": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_message_cut_at_any_byte_reaches_its_client_whole() {
    let fixture = fleet(2).await;
    let body = message(json!({"system": "Be brief."}));
    let unbroken = ask(fixture.router.listen(), "/v1/messages", &body).await;
    assert_eq!(unbroken.header("x-maitre-continue"), "on");
    let expected = messages(&unbroken);
    // The engine's own message has the same text, and ends for the same reason.
    let own = messages(&ask(fixture.engines[0].addr(), "/v1/messages", &body).await);
    let text = |events: &[Value]| -> String {
        events.iter().filter_map(|it| it["delta"]["text"].as_str()).collect()
    };
    assert_eq!(text(&expected), text(&own));
    let end = |events: &[Value]| events.iter().find(|it| it["type"] == "message_delta").cloned();
    assert_eq!(end(&expected), end(&own));
    for bytes in (0..unbroken.body.len()).step_by(173) {
        for engine in &fixture.engines {
            engine.handle().clear_fault();
        }
        fixture.engines[bytes % 2].handle().inject(Injection::times(Fault::CloseAfterBytes { bytes }, 1));
        for _ in 0..2 {
            let broken = ask(fixture.router.listen(), "/v1/messages", &body).await;
            assert_eq!(messages(&broken), expected, "cut at {bytes}");
        }
    }
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert!(metric(&page, RESUMED) > 10.0, "{page}");
    assert!(!page.contains(r#"outcome="broke""#), "{page}");
}

#[tokio::test]
async fn a_message_that_is_not_covered_passes_as_it_is() {
    let fixture = fleet(1).await;
    let tools = message(json!({"tools": [{"name": "seat", "input_schema": {"type": "object"}}]}));
    let answer = ask(fixture.router.listen(), "/v1/messages", &tools).await;
    assert_eq!(answer.header("x-maitre-continue"), "tools");
    let whole = ask(fixture.router.listen(), "/v1/messages", &message(json!({"stream": false}))).await;
    assert_eq!((whole.status.as_u16(), whole.header("x-maitre-continue")), (200, ""));
    let asked = fixture.engines[0].handle().bodies();
    assert!(asked.iter().any(|it| it.body == tools.to_string()));
}

#[tokio::test]
async fn a_worker_that_refuses_the_chat_of_a_message_gets_the_message() {
    let misconfigurations = Misconfigurations(vec![Misconfiguration::RefusesTokenIds]);
    let engine = HostConfig { misconfigurations, ..engine_settings() };
    let fixture = fleet_of(1, engine, continuing()).await;
    let body = message(json!({}));
    let own = messages(&ask(fixture.engines[0].addr(), "/v1/messages", &body).await);
    for asked in [3, 4] {
        let answer = ask(fixture.router.listen(), "/v1/messages", &body).await;
        assert_eq!(answer.header("x-maitre-continue"), "engine");
        // The first event tells what was cached.
        assert_eq!(messages(&answer)[1..], own[1..]);
        assert_eq!(fixture.engines[0].handle().bodies().len(), asked, "refused once, then known");
    }
}

#[tokio::test]
async fn the_error_of_a_messages_chat_has_the_form_of_messages() {
    let fixture = fleet(1).await;
    let body = message(json!({}));
    assert_eq!(ask(fixture.router.listen(), "/v1/messages", &body).await.header("x-maitre-continue"), "on");
    fixture.engines[0].handle().inject(Injection::always(Fault::Status { status: 500 }));
    let refused = ask(fixture.router.listen(), "/v1/messages", &body).await;
    let error: Value = serde_json::from_str(&refused.text()).unwrap();
    assert!(refused.status.is_server_error(), "{}", refused.status);
    assert_eq!((&error["type"], error["error"]["type"].is_string()), (&json!("error"), true), "{error}");
}

#[tokio::test]
async fn a_stream_survives_one_worker_after_another() {
    let fixture = fleet(4).await;
    let body = question(json!({"max_tokens": 60, "ignore_eos": true}));
    let expected = events(&ask(fixture.engines[0].addr(), "/v1/chat/completions", &body).await);
    for engine in &fixture.engines {
        engine.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes: 2_500 }, 1));
    }
    let broken = ask(fixture.router.listen(), "/v1/chat/completions", &body).await;
    assert_eq!(events(&broken), expected);
    fixture.until_nothing_is_open().await;
    assert!(metric(&fixture.router.metrics(), RESUMED) >= 3.0);
}

#[tokio::test]
async fn the_next_worker_gets_the_ids_and_what_is_left_of_the_limit() {
    let fixture = fleet(4).await;
    for engine in &fixture.engines {
        engine.handle().inject(Injection::times(Fault::CloseAfterChunks { chunks: 9 }, 1));
    }
    let answer = ask(fixture.router.listen(), "/v1/chat/completions", &question(json!({}))).await;
    assert_eq!(events(&answer).last(), Some(&json!("[DONE]")));
    let bodies: Vec<Value> = fixture
        .engines
        .iter()
        .flat_map(|it| it.handle().bodies())
        .map(|it| serde_json::from_slice(&it.body).unwrap())
        .collect();
    let mut limits: Vec<u64> = bodies.iter().map(|it| it["max_tokens"].as_u64().unwrap()).collect();
    limits.sort_unstable();
    assert_eq!(limits, [8, 16, 24], "eight tokens of each attempt arrive");
    let rest = bodies.iter().find(|it| it["max_tokens"] == 16).unwrap();
    let ids = rest["kv_transfer_params"]["prompt_token_ids"].as_array().unwrap();
    let usage = events(&answer).iter().find_map(|it| it.get("usage").cloned()).unwrap();
    assert_eq!(ids.len() as u64, usage["prompt_tokens"].as_u64().unwrap() + 8);
    assert_eq!((&usage["completion_tokens"], &rest["return_token_ids"]), (&json!(24), &json!(true)));
}

#[tokio::test]
async fn with_continuation_off_nothing_is_asked_for_and_a_break_ends_the_stream() {
    let fixture = fleet_of(2, engine_settings(), settings()).await;
    let body = question(json!({}));
    fixture.engines.iter().for_each(|it| {
        it.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes: 1_000 }, 1));
    });
    let answer = ask(fixture.router.listen(), "/v1/chat/completions", &body).await;
    assert_eq!(events(&answer).last().unwrap()["error"]["code"], "worker_failed");
    assert_eq!(answer.header("x-maitre-continue"), "");
    let bodies = fixture.engines.iter().flat_map(|it| it.handle().bodies());
    assert!(bodies.into_iter().all(|it| it.body == body.to_string()));
}

#[tokio::test]
async fn a_stream_that_cannot_be_continued_says_so_and_ends_as_before() {
    let fixture = fleet(2).await;
    for (more, word) in [
        (json!({"stop": ["x"], "min_tokens": 2}), "stop-strings"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
    ] {
        for engine in &fixture.engines {
            engine.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes: 1_000 }, 1));
        }
        let answer = ask(fixture.router.listen(), "/v1/chat/completions", &question(more)).await;
        assert_eq!(answer.header("x-maitre-continue"), word);
        assert_eq!(events_end(&answer)["error"]["code"], "worker_failed");
        until_counted(&fixture.router, &format!(r#"maitre_stream_coverage_total{{coverage="{word}"}}"#), 1.0)
            .await;
        fixture.engines.iter().for_each(|it| it.handle().clear_fault());
    }
    fixture.until_nothing_is_open().await;
}

/// The last event of a stream that broke anywhere.
fn events_end(response: &TestResponse) -> Value {
    let text = response.text();
    let last = text.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
    serde_json::from_str(last).unwrap()
}

#[tokio::test]
async fn without_another_worker_the_stream_ends_with_an_error() {
    let fixture = fleet(1).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::CloseAfterBytes { bytes: 1_500 }));
    let answer = ask(fixture.router.listen(), "/v1/chat/completions", &question(json!({}))).await;
    assert_eq!(events(&answer).last().unwrap()["error"]["code"], "worker_failed");
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, r#"maitre_continuations_total{outcome="refused"}"#), 1.0);
    assert_eq!(metric(&page, r#"maitre_requests_total{route="chat",outcome="broke",code=""}"#), 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_while_its_stream_moves_leaves_nothing_behind() {
    let mut fixture = fleet(2).await;
    let endless = question(json!({"max_tokens": 100_000, "ignore_eos": true}));
    let mut client = fixture.client().await;
    let response = client.send(post("/v1/chat/completions", endless.to_string())).await.unwrap();
    let worker = response.headers()["x-maitre-worker"].to_str().unwrap().to_owned();
    let at = fixture.engines.iter().position(|it| worker.ends_with(&it.addr().to_string())).unwrap();
    let failing = fixture.engines.remove(at);
    // The worker that is asked to go on never answers.
    let silent = fixture.engines[0].handle();
    silent.inject(Injection::always(Fault::Stall));
    failing.stop().await;
    let mut stream = response.into_body();
    let reading = async { while stream.frame().await.is_some() {} };
    tokio::select! {
        () = reading => panic!("the stream ended"),
        _ = within(silent.until(|it| it.requests_open > 0)) => {}
    }
    drop((stream, client));
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn sglang_gets_the_ids_in_its_own_field() {
    let engine = HostConfig { bodies_max: 8, brand: Brand::Sglang, ..engine_settings() };
    let fixture = fixture_with(2, engine, continuing()).await;
    let body = question(json!({}));
    let covered = || async {
        let answer = ask(fixture.router.listen(), "/v1/chat/completions", &body).await;
        answer.header("x-maitre-continue") == "on"
    };
    // Its metrics are not played, so that nothing tells when it is detected.
    within(async { while !(covered().await && covered().await) {} }).await;
    let expected = events(&ask(fixture.router.listen(), "/v1/chat/completions", &body).await);
    for engine in &fixture.engines {
        engine.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes: 2_000 }, 1));
    }
    let broken = ask(fixture.router.listen(), "/v1/chat/completions", &body).await;
    assert_eq!(events(&broken), expected);
    let bodies = fixture.engines.iter().flat_map(|it| it.handle().bodies());
    assert!(bodies.into_iter().any(|it| it.body.windows(9).any(|it| it == b"input_ids")));
}

#[tokio::test]
async fn a_worker_that_refuses_the_field_is_asked_without_it() {
    let misconfigurations = Misconfigurations(vec![Misconfiguration::RefusesTokenIds]);
    let engine = HostConfig { misconfigurations, ..engine_settings() };
    let fixture = fleet_of(1, engine, continuing()).await;
    for asked in [2, 3] {
        let answer = fixture.client().await.post("/v1/chat/completions", chat(3, true)).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-maitre-continue")), (200, "engine"));
        assert_eq!(fixture.engines[0].handle().bodies().len(), asked, "refused once, then known");
    }
}

#[tokio::test]
async fn a_class_may_say_otherwise() {
    let mut settings = continuing();
    settings.brain.queue.classes[2].continues = Some(false);
    let fixture = fleet_of(1, engine_settings(), settings).await;
    for (class, word) in [("interactive", "on"), ("batch", "")] {
        let mut request = post("/v1/chat/completions", chat(3, true));
        request.headers_mut().insert("x-maitre-class", class.parse().unwrap());
        let answer = fixture.client().await.ask(request).await.unwrap();
        assert_eq!(answer.header("x-maitre-continue"), word, "{class}");
    }
}

#[tokio::test]
async fn a_killed_engine_is_not_missed() {
    let mut fixture = fleet(3).await;
    let body = question(json!({"max_tokens": 3_000, "ignore_eos": true}));
    let expected = events(&ask(fixture.engines[0].addr(), "/v1/chat/completions", &body).await);
    let mut client = fixture.client().await;
    let mut request = post("/v1/chat/completions", body.to_string());
    request.headers_mut().insert("x-request-id", "one".parse().unwrap());
    let (head, stream) = client.send(request).await.unwrap().into_parts();
    let worker = head.headers["x-maitre-worker"].to_str().unwrap().to_owned();
    let at = fixture.engines.iter().position(|it| worker.ends_with(&it.addr().to_string())).unwrap();
    fixture.engines.remove(at).stop().await;
    let (stream, broke) = within(read(stream)).await;
    let response = TestResponse { status: head.status, headers: head.headers, body: stream, broke };
    assert_eq!((events(&response), broke), (expected, false));
    fixture.until_nothing_is_open().await;
}

/// Streams in flight at once, and breaks of each engine, at a byte of its own each time.
const STORM_STREAMS: usize = 240;
const STORM_BREAKS: usize = 6;

#[tokio::test]
async fn streams_survive_a_fleet_that_breaks_at_random_bytes() {
    // A stream may be alone at two workers that break before its next token, and would be taken for what they fail of.
    let mut settings = continuing();
    settings.brain.failovers_max = 8;
    let fixture = fleet_of(8, engine_settings(), settings).await;
    let body = |number: usize| {
        let messages = json!([{"role": "user", "content": format!("table {number}")}]);
        question(json!({"messages": messages, "max_tokens": 20 + number % 60, "ignore_eos": true,
            "return_token_ids": number.is_multiple_of(2)}))
    };
    let mut expected = Vec::new();
    for number in 0..STORM_STREAMS {
        let answer = ask(fixture.engines[0].addr(), "/v1/chat/completions", &body(number)).await;
        expected.push(events(&answer));
    }
    let mut rng = Rng::new(7);
    let mut asked = JoinSet::new();
    for number in 0..STORM_STREAMS {
        let (addr, body) = (fixture.router.listen(), body(number));
        if number.is_multiple_of(STORM_STREAMS / STORM_BREAKS) {
            for engine in &fixture.engines {
                let bytes = 300 + rng.below(4_000);
                engine.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes }, 1));
            }
        }
        asked.spawn(async move { (number, ask(addr, "/v1/chat/completions", &body).await) });
        if asked.len() >= STORM_STREAMS / STORM_BREAKS {
            let (number, answer) = within(asked.join_next()).await.unwrap().unwrap();
            assert_eq!(events(&answer), expected[number], "stream {number}");
        }
    }
    for (number, answer) in within(asked.join_all()).await {
        assert_eq!(events(&answer), expected[number], "stream {number}");
    }
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert!(metric(&page, RESUMED) >= (STORM_BREAKS * fixture.engines.len() / 2) as f64, "{page}");
    assert_eq!(metric(&page, r#"maitre_requests_total{route="chat",outcome="answered",code=""}"#), 240.0);
}

/// The text of a stream's answer.
fn text(response: &TestResponse) -> String {
    let piece =
        |it: &Value| it.pointer("/choices/0/delta/content").and_then(Value::as_str).map(str::to_owned);
    events(response).iter().filter_map(piece).collect()
}

#[tokio::test]
async fn a_stop_string_ends_a_stream_wherever_its_worker_fails() {
    let fixture = fleet(2).await;
    let path = "/v1/chat/completions";
    let body = question(json!({"max_tokens": 40, "ignore_eos": true}));
    let whole = text(&ask(fixture.engines[0].addr(), path, &body).await);
    // Across tokens, which have four letters here.
    let stop = &whole[58..65];
    let body = question(json!({"max_tokens": 40, "ignore_eos": true, "stop": [stop]}));
    let unbroken = ask(fixture.router.listen(), path, &body).await;
    let expected = events(&unbroken);
    assert_eq!((text(&unbroken).as_str(), unbroken.header("x-maitre-continue")), (&whole[..58], "on"));
    let last = expected.iter().rfind(|it| it.pointer("/choices/0").is_some()).unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["choices"][0]["stop_reason"], stop);
    for bytes in (200..unbroken.body.len()).step_by(307) {
        fixture.engines.iter().for_each(|it| it.handle().clear_fault());
        fixture.engines[bytes % 2].handle().inject(Injection::times(Fault::CloseAfterBytes { bytes }, 1));
        for _ in 0..2 {
            let broken = ask(fixture.router.listen(), path, &body).await;
            assert_eq!(events(&broken), expected, "cut at {bytes}");
        }
    }
    let bodies = fixture.engines.iter().flat_map(|it| it.handle().bodies());
    let stops = bodies.map(|it| serde_json::from_slice::<Value>(&it.body).unwrap()["stop"].clone());
    assert!(stops.into_iter().all(|it| it.is_null()), "the router matches them");
    fixture.until_nothing_is_open().await;
}

const HANDED_OVER: &str = r#"maitre_continuations_total{outcome="handed-over"}"#;

/// Asks an operator's question with the key of `operated`.
async fn operate(fixture: &Fixture, path: &str) -> TestResponse {
    let request = post(path, "");
    let (mut parts, body) = request.into_parts();
    parts.headers.insert("authorization", format!("Bearer {OPERATOR_KEY}").parse().unwrap());
    Client::connect(fixture.router.admin()).await.ask(Request::from_parts(parts, body)).await.unwrap()
}

const OPERATOR_KEY: &str = "the-key-of-an-operator-of-tests";

fn operated() -> RouterSettings {
    RouterSettings { admin_key: Some(Secret::of(OPERATOR_KEY.as_bytes())), ..continuing() }
}

#[tokio::test]
async fn a_drained_worker_hands_its_streams_over_and_loses_none() {
    let slow = HostConfig::new(H200_8B.slower(2.0));
    let fixture = fleet_of(4, slow, operated()).await;
    let body = |number: usize| {
        let messages = json!([{"role": "user", "content": format!("table {number}")}]);
        question(
            json!({"messages": messages, "max_tokens": 300, "ignore_eos": true, "return_token_ids": true}),
        )
    };
    let ask_all = |addr| {
        let mut asked = JoinSet::new();
        for number in 0..16 {
            let body = body(number);
            asked.spawn(async move { (number, ask(addr, "/v1/chat/completions", &body).await) });
        }
        asked
    };
    let asked = ask_all(fixture.router.listen());
    let handle = fixture.engines[0].handle();
    within(handle.until(|it| it.requests_open == 4)).await;
    let answer = operate(&fixture, "/admin/v1/workers/0/drain?hand_over=true").await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text());
    within(handle.until(|it| it.requests_open == 0)).await;
    assert!(!asked.is_empty(), "the streams go on");
    until_counted(&fixture.router, HANDED_OVER, 4.0).await;
    let answers: BTreeMap<_, _> = within(asked.join_all()).await.into_iter().collect();
    for (number, expected) in within(ask_all(fixture.engines[1].addr()).join_all()).await {
        assert_eq!(events(&answers[&number]), events(&expected), "stream {number}");
    }
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert!(!page.contains(r#"maitre_continuations_total{outcome="resumed"}"#), "no worker failed: {page}");
    let refused = operate(&fixture, "/admin/v1/workers/0/drain?hand_over=maybe").await;
    assert_eq!(refused.status.as_u16(), 400);
}

#[tokio::test]
async fn streams_that_no_other_worker_takes_stay_where_they_are() {
    let fixture = fleet_of(1, HostConfig::new(H200_8B), operated()).await;
    let body = question(json!({"max_tokens": 40, "ignore_eos": true}));
    let (addr, asked) = (fixture.router.listen(), body.clone());
    let mut answers = JoinSet::new();
    answers.spawn(async move { ask(addr, "/v1/chat/completions", &asked).await });
    within(fixture.engines[0].handle().until(|it| it.requests_open == 1)).await;
    operate(&fixture, "/admin/v1/workers/0/drain?hand_over=true").await;
    let answer = within(answers.join_next()).await.unwrap().unwrap();
    assert_eq!(events(&answer).last(), Some(&json!("[DONE]")));
    fixture.until_nothing_is_open().await;
}

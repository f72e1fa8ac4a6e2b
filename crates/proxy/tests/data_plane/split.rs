//! One worker prefills and another answers: the client gets the text of one engine, whatever fails between the two.

use std::time::Duration;

use maitre_policy::split::SplitRule;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::http::transfer::{Connector, NixlConfig, TransferConfig};
use maitre_sim::http::{Host, HostConfig};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Fixture, TestResponse, engine_settings, metric, post, settings, within};

/// How long a decode engine waits for an unknown peer.
const HANDSHAKE: Duration = Duration::from_millis(50);

fn engine() -> HostConfig {
    let config = engine_settings();
    let nixl = NixlConfig { handshake_timeout: HANDSHAKE, ..NixlConfig::default() };
    let transfer = TransferConfig::new(Connector::Nixl(nixl), ANYWHERE, &config.engine.profile);
    HostConfig { transfer: Some(transfer), bodies_max: 100, ..config }
}

/// A router that splits all it can, in front of engines of both roles, those that prefill first.
async fn fleet(prefill: usize, decode: usize) -> Fixture {
    let mut settings = settings();
    settings.brain.split = SplitRule::Always;
    fleet_with(prefill, decode, settings).await
}

async fn fleet_with(prefill: usize, decode: usize, mut settings: RouterSettings) -> Fixture {
    let mut engines = Vec::new();
    for number in 0..prefill + decode {
        let host = Host::bind(ANYWHERE, engine()).await.unwrap();
        let role = if number < prefill { "prefill" } else { "decode" };
        settings.workers.push(format!("http://{}?role={role}", host.addr()).parse().unwrap());
        engines.push(host);
    }
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines }
}

pub(crate) fn chat(number: usize, stream: bool) -> String {
    let text = "a table for two near the window, please ".repeat(20);
    format!(
        r#"{{"model":"maitre-sim","messages":[{{"role":"user","content":"{number} {text}"}}],"max_tokens":12,"stream":{stream}}}"#
    )
}

/// The text of an answer, in one piece or as a stream.
pub(crate) fn text(answer: &TestResponse) -> String {
    let of =
        |it: &Value, part: &str| it["choices"][0][part]["content"].as_str().unwrap_or_default().to_owned();
    let body = answer.text();
    if !body.starts_with("data:") {
        return of(&answer.json(), "message");
    }
    let events = body.lines().filter_map(|it| it.strip_prefix("data: ")).filter(|it| *it != "[DONE]");
    events.map(|it| of(&serde_json::from_str(it).unwrap(), "delta")).collect()
}

/// What one engine answers.
pub(crate) async fn right_text(number: usize) -> String {
    let alone = crate::fixture::fixture(1).await;
    text(&alone.client().await.post("/v1/chat/completions", chat(number, false)).await)
}

async fn engine_metric(host: &Host, name: &str) -> f64 {
    let mut client = crate::fixture::Client::connect(host.addr()).await;
    let page = client.ask(crate::fixture::get("/metrics")).await.unwrap().text();
    metric(&page, &format!("vllm:{name}"))
}

const FETCHED: &str =
    r#"prompt_tokens_by_source_total{engine="0",model_name="maitre-sim",source="external_kv_transfer"}"#;
const COMPUTED: &str =
    r#"prompt_tokens_by_source_total{engine="0",model_name="maitre-sim",source="local_compute"}"#;

/// Asks, and checks that the client cannot tell.
async fn check_right(fixture: &Fixture, number: usize, stream: bool) -> TestResponse {
    let answer = fixture.client().await.post("/v1/chat/completions", chat(number, stream)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(text(&answer), right_text(number).await);
    let body = answer.text();
    assert!(!body.contains("remote_block_ids"), "{body}");
    if stream {
        assert_eq!(body.matches(r#""role":"assistant""#).count(), 1, "{body}");
        assert!(body.matches("[DONE]").count() == 1 && !body.contains("error"), "{body}");
    }
    answer
}

#[tokio::test]
async fn the_client_gets_the_text_of_one_engine() {
    let fixture = fleet(1, 1).await;
    for number in 0..4 {
        let answer = check_right(&fixture, number, number % 2 == 0).await;
        assert_eq!(answer.header("x-maitre-worker"), format!("http://{}", fixture.engines[1].addr()));
        assert_eq!(answer.header("x-maitre-prefill-worker"), format!("http://{}", fixture.engines[0].addr()));
    }
    let [prefill, decode] = &fixture.engines[..] else { panic!("two engines") };
    assert!(engine_metric(decode, FETCHED).await > 0.0);
    assert_eq!(engine_metric(decode, COMPUTED).await, 0.0, "the decode worker has prefilled nothing");
    assert_eq!(engine_metric(prefill, FETCHED).await, 0.0);
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, r#"maitre_prefill_legs_total{outcome="answered"}"#), 4.0);
    assert_eq!(metric(&page, "maitre_transfer_seconds_count"), 4.0);
}

#[tokio::test]
async fn the_decode_worker_gets_the_clients_own_body() {
    let fixture = fleet(1, 1).await;
    check_right(&fixture, 1, true).await;
    let body = |engine: &Host| -> Value {
        serde_json::from_slice(&engine.handle().bodies().last().unwrap().body).unwrap()
    };
    let [prefill, mut decode] = [0, 1].map(|it: usize| body(&fixture.engines[it]));
    assert_eq!((&prefill["max_tokens"], &prefill["stream"]), (&1.into(), &false.into()));
    let params = decode.as_object_mut().unwrap().remove("kv_transfer_params").unwrap();
    assert_eq!(params["do_remote_prefill"], true);
    assert_eq!(decode, serde_json::from_str::<Value>(&chat(1, true)).unwrap());
}

#[tokio::test]
async fn a_prefill_worker_that_fails_is_not_noticed() {
    for fault in [Fault::CloseBeforeHeaders, Fault::Status { status: 500 }, Fault::RefuseConnections] {
        let fixture = fleet(1, 1).await;
        fixture.engines[0].handle().inject(Injection::always(fault));
        check_right(&fixture, 1, true).await;
        assert!(engine_metric(&fixture.engines[1], COMPUTED).await > 0.0, "{fault:?}");
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_transfer_that_fails_is_not_noticed() {
    for stream in [true, false] {
        let fixture = fleet(1, 1).await;
        fixture.engines[0].handle().inject(Injection::always(Fault::SilentSideChannel));
        for number in 0..4 {
            check_right(&fixture, number, stream).await;
        }
        let page = fixture.router.metrics();
        let failed = metric(&page, r#"maitre_attempts_failed_total{failure="handoff"}"#);
        assert_eq!(failed, 1.0, "the prefill worker is left alone for a while");
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_decode_worker_that_fails_is_replaced_without_reusing_the_handoff() {
    for fault in [Fault::CloseAfterHeaders, Fault::CloseBeforeHeaders, Fault::CloseAfterChunks { chunks: 1 }]
    {
        let fixture = fleet(1, 2).await;
        let faulty = &fixture.engines[1];
        faulty.handle().inject(Injection::always(fault));
        for number in 0..4 {
            check_right(&fixture, number, true).await;
        }
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn with_prefill_workers_alone_the_router_is_not_ready() {
    let fixture = fleet(1, 0).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &"no_worker".into()));
    let mut admin = crate::fixture::Client::connect(fixture.router.admin()).await;
    let ready = admin.ask(crate::fixture::get("/readyz")).await.unwrap();
    assert_eq!((ready.status.as_u16(), ready.text().as_str()), (503, "no worker is ready\n"));
}

#[tokio::test]
async fn what_cannot_be_split_is_answered_whole() {
    let fixture = fleet(1, 1).await;
    let body = chat(1, false).replacen('{', r#"{"prompt_logprobs":1,"#, 1);
    let answer = fixture.client().await.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-maitre-prefill-worker"), "");
    assert_eq!(fixture.engines[0].handle().bodies().len(), 0);
}

#[tokio::test]
async fn an_error_of_the_client_is_passed_on() {
    let fixture = fleet(1, 1).await;
    let invalid =
        fixture.client().await.post("/v1/chat/completions", chat(1, false).replacen("12", "-1", 1)).await;
    assert_eq!(invalid.status, 400, "by the decode worker: {}", invalid.text());
    fixture.engines[0].handle().inject(Injection::always(Fault::Status { status: 400 }));
    let refused = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(refused.status, 400, "by the prefill worker: {}", refused.text());
    assert_eq!(fixture.engines[1].handle().bodies().len(), 1, "which gets the first one only");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_client_that_leaves_during_the_prefill_leaves_nothing() {
    let fixture = fleet(1, 1).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::Stall));
    let mut client = fixture.client().await;
    let mut request = JoinSet::new();
    request.spawn(async move { drop(client.ask(post("/v1/chat/completions", chat(1, true))).await) });
    within(fixture.engines[0].handle().until(|it| it.requests_open > 0)).await;
    request.abort_all();
    fixture.until_nothing_is_open().await;
    within(fixture.engines[0].handle().until(|it| it.requests_open == 0)).await;
    assert_eq!(fixture.engines[1].handle().bodies().len(), 0);
}

#[tokio::test]
async fn engines_that_restart_under_load_never_give_wrong_text() {
    const REQUESTS: usize = 200;
    let fixture = fleet(2, 2).await;
    let mut right = Vec::new();
    for number in 0..10 {
        right.push(right_text(number).await);
    }
    let mut clients = JoinSet::new();
    for lane in 0..4 {
        let (listen, right) = (fixture.router.listen(), right.clone());
        let engines: Vec<_> = fixture.engines.iter().map(Host::handle).collect();
        clients.spawn(async move {
            let mut answered = 0;
            for number in 0..REQUESTS / 4 {
                if lane == 0 && number % 5 == 4 {
                    engines[number / 5 % 4].restart_engine();
                }
                let which = (number + lane) % right.len();
                let mut client = crate::fixture::Client::connect(listen).await;
                let answer = client.post("/v1/chat/completions", chat(which, number % 2 == 0)).await;
                let is_cut = answer.broke || answer.text().contains(r#""error""#) || answer.status != 200;
                assert!(right[which].starts_with(&text_of_part(&answer)), "wrong text: {}", answer.text());
                assert!(is_cut || text(&answer) == right[which], "{}", answer.text());
                answered += usize::from(!is_cut);
            }
            answered
        });
    }
    let answered: usize = within(clients.join_all()).await.into_iter().sum();
    assert!(answered > REQUESTS / 2, "{answered} of {REQUESTS} answered");
    fixture.until_nothing_is_open().await;
}

/// As much of the text as came.
fn text_of_part(answer: &TestResponse) -> String {
    match answer.status.is_success() && answer.text().starts_with("data:") {
        true => answer
            .text()
            .lines()
            .filter_map(|it| it.strip_prefix("data: "))
            .filter_map(|it| serde_json::from_str::<Value>(it).ok())
            .filter_map(|it| it["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect(),
        false => String::new(),
    }
}

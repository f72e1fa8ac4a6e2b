//! Workers that fail, in every way and at every moment.

use std::time::Duration;

use maitre_fleet::HealthState;
use maitre_sim::http::Host;
use maitre_sim::http::fault::{Fault, Injection, Scope};
use tokio::task::JoinSet;

use crate::table::{
    Client, Table, chat, engine_settings, metric, post, read, settings, table, table_with, within,
};

#[tokio::test]
async fn a_worker_that_fails_before_its_first_byte_is_replaced_unseen() {
    let faults = [
        Fault::RefuseConnections,
        Fault::CloseBeforeHeaders,
        Fault::CloseAfterHeaders,
        Fault::CloseAfterChunks { chunks: 0 },
        Fault::Status { status: 500 },
        Fault::Status { status: 503 },
    ];
    for fault in faults {
        let table = table(3).await;
        table.engines[0].handle().inject(Injection::always(fault));
        let mut client = table.client().await;
        for number in 0..6 {
            let answer = client.post("/v1/chat/completions", chat(3, number % 2 == 0)).await;
            assert!(answer.status == 200 && !answer.broke, "{fault:?}: {answer:?}");
        }
        table.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_worker_that_dies_in_mid_stream_is_told_and_never_hidden() {
    let table = table(2).await;
    for engine in &table.engines {
        engine.handle().inject(Injection::always(Fault::CloseAfterChunks { chunks: 3 }));
    }
    let answer = table.client().await.post("/v1/chat/completions", chat(20, true)).await;
    let text = answer.text();
    assert!(!answer.broke, "the stream itself ends in good order");
    assert!(!text.contains("[DONE]"), "{text}");
    let last = text.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
    let event: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["error"]["code"], "worker_failed");
    table.until_nothing_is_open().await;
    let page = table.router.metrics();
    assert_eq!(metric(&page, r#"maitre_requests_total{route="chat",outcome="broke",code=""}"#), 1.0);
}

#[tokio::test]
async fn when_all_workers_are_dead_the_client_is_told_so() {
    let mut table = table(2).await;
    for engine in table.engines.drain(..) {
        engine.stop().await;
    }
    let answer = table.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "worker_failed");
    assert_eq!(answer.header("retry-after"), "1");
    table.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_workers_own_refusal_reaches_the_client_when_nobody_does_better() {
    let table = table(2).await;
    for engine in &table.engines {
        engine.handle().inject(Injection::always(Fault::Status { status: 503 }));
    }
    let answer = table.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 503);
    assert_ne!(answer.json()["error"]["code"], "worker_failed", "the engine's own words: {}", answer.text());
    table.until_nothing_is_open().await;
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(table.router.look(|brain| brain.fleet().workers().all(ready)), "full is not broken");
}

#[tokio::test]
async fn a_client_error_is_the_clients_and_costs_the_worker_nothing() {
    let table = table(1).await;
    let mut client = table.client().await;
    for _ in 0..20 {
        let body = r#"{"model":"maitre-sim","prompt":"x","max_tokens":99999999}"#;
        let answer = client.post("/v1/completions", body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    table.until_nothing_is_open().await;
    let declined = r#"maitre_requests_total{route="completions",outcome="declined",code="4xx"}"#;
    assert_eq!(metric(&table.router.metrics(), declined), 20.0);
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(table.router.look(|brain| brain.fleet().workers().all(ready)));
}

#[tokio::test]
async fn a_worker_that_hangs_is_out_within_three_seconds_and_ramps_when_it_is_back() {
    let table = table(3).await;
    let hung = table.engines[1].handle();
    hung.inject(Injection { fault: Fault::Stall, times: None, scope: Scope::All });
    let state = |brain: &maitre_dispatch::Brain| brain.fleet().workers().nth(1).unwrap().health.state();
    let out = table.router.until(|brain| state(brain) != HealthState::Ready);
    tokio::time::timeout(Duration::from_secs(3), out).await.expect("out of rotation within 3 s");
    within(table.router.until(|brain| matches!(state(brain), HealthState::Ejected { .. }))).await;
    let received = hung.stats().requests_received;
    let mut client = table.client().await;
    for _ in 0..10 {
        assert_eq!(client.post("/v1/chat/completions", chat(1, false)).await.status, 200);
    }
    hung.clear_fault();
    within(table.router.until(|brain| matches!(state(brain), HealthState::Warming { .. }))).await;
    assert!(hung.stats().requests_received < received + 10, "no chat went to the hung worker");
}

#[tokio::test]
async fn a_request_that_has_seen_no_byte_leaves_a_worker_that_hangs() {
    let table = table(2).await;
    table.engines[0].handle().inject(Injection { fault: Fault::Stall, times: None, scope: Scope::All });
    for _ in 0..2 {
        let mut client = table.client().await;
        let asked = client.post("/v1/chat/completions", chat(1, false));
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await.expect("moved to the other");
        assert_eq!(answer.status, 200);
    }
    table.until_nothing_is_open().await;
}

/// Streams and answers, until told to stop: how many there were, and what went wrong with any that had
/// not begun to answer.
async fn load(
    table: &Table,
    seed: usize,
    stop: tokio_util::sync::CancellationToken,
) -> (usize, usize, Vec<String>) {
    let (mut asked, mut broken, mut lost) = (0, 0, Vec::new());
    let mut client = Client::connect(table.router.listen()).await;
    while !stop.is_cancelled() {
        asked += 1;
        let body = chat(40, !(asked + seed).is_multiple_of(3));
        match client.send(post("/v1/chat/completions", body)).await {
            Err(error) => {
                lost.push(error.to_string());
                client = Client::connect(table.router.listen()).await;
            }
            Ok(response) if response.status() != 200 => {
                let status = response.status();
                let (body, _) = read(response.into_body()).await;
                lost.push(format!("{status} {}", String::from_utf8_lossy(&body)));
            }
            Ok(response) => {
                let (body, broke) = within(read(response.into_body())).await;
                let text = String::from_utf8_lossy(&body);
                let told = text.contains("worker_failed");
                broken += usize::from(broke || told);
                if broke {
                    client = Client::connect(table.router.listen()).await;
                } else if !told && !text.contains("[DONE]") && !text.contains("\"usage\"") {
                    lost.push(format!("silently cut: {text}"));
                }
            }
        }
    }
    (asked, broken, lost)
}

#[tokio::test]
async fn a_worker_killed_every_second_loses_no_request_that_had_not_begun() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    engine.speedup = 4.0;
    let mut table = table_with(4, engine.clone(), settings()).await;
    let engines: Vec<Host> = table.engines.drain(..).collect();
    let table = std::sync::Arc::new(table);
    let stop = tokio_util::sync::CancellationToken::new();
    let mut clients = JoinSet::new();
    for number in 0..24 {
        let (table, stop) = (table.clone(), stop.clone());
        clients.spawn(async move { load(&table, number, stop).await });
    }
    let mut turns = tokio::time::interval(Duration::from_secs(1));
    turns.tick().await;
    let mut engines: std::collections::VecDeque<Host> = engines.into();
    for _ in 0..6 {
        turns.tick().await;
        let victim = engines.pop_front().unwrap();
        let addr = victim.addr();
        victim.stop().await;
        engines.push_back(Host::bind(addr, engine.clone()).await.unwrap());
    }
    stop.cancel();
    let ends = within(clients.join_all()).await;
    let asked: usize = ends.iter().map(|it| it.0).sum();
    let broken: usize = ends.iter().map(|it| it.1).sum();
    let lost: Vec<&String> = ends.iter().flat_map(|it| &it.2).collect();
    assert!(lost.is_empty(), "{} of {asked} lost: {lost:?}", lost.len());
    assert!(asked > 200 && broken > 0, "the kills must have hurt somebody: {broken} of {asked}");
    table.until_nothing_is_open().await;
}

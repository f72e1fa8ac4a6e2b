//! Workers that fail, in every way and at every moment.

use std::time::Duration;

use maitre_fleet::HealthState;
use maitre_sim::http::Host;
use maitre_sim::http::fault::{Fault, Injection, Scope};
use tokio::task::JoinSet;

use crate::fixture::{
    Client, Fixture, chat, engine_settings, fixture, fixture_with, get, metric, post, read, settings, within,
};

#[tokio::test]
async fn a_worker_that_fails_before_its_first_byte_is_replaced_unnoticed() {
    let faults = [
        Fault::RefuseConnections,
        Fault::CloseBeforeHeaders,
        Fault::CloseAfterHeaders,
        Fault::CloseAfterChunks { chunks: 0 },
        Fault::Status { status: 500 },
        Fault::Status { status: 503 },
    ];
    for fault in faults {
        let fixture = fixture(3).await;
        fixture.engines[0].handle().inject(Injection::always(fault));
        let mut client = fixture.client().await;
        for number in 0..6 {
            let answer = client.post("/v1/chat/completions", chat(3, number % 2 == 0)).await;
            assert!(answer.status == 200 && !answer.broke, "{fault:?}: {answer:?}");
        }
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn failures_are_counted_by_worker() {
    let fixture = fixture(2).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::Status { status: 500 }));
    let mut client = fixture.client().await;
    for _ in 0..4 {
        assert_eq!(client.post("/v1/chat/completions", chat(3, false)).await.status, 200);
    }
    let page = fixture.router.metrics();
    let failed = |number: usize| {
        let url = fixture.router.look(|brain| brain.fleet().workers().nth(number).unwrap().url.clone());
        metric(&page, &format!("maitre_worker_failures_total{{worker=\"{url}\"}}"))
    };
    let all = metric(&page, r#"maitre_attempts_failed_total{failure="failed"}"#);
    assert!(all >= 1.0, "{page}");
    assert_eq!((failed(0), failed(1)), (all, 0.0));
}

#[tokio::test]
async fn a_worker_that_dies_in_mid_stream_is_reported_to_the_client() {
    let fixture = fixture(2).await;
    for engine in &fixture.engines {
        engine.handle().inject(Injection::always(Fault::CloseAfterChunks { chunks: 3 }));
    }
    let answer = fixture.client().await.post("/v1/chat/completions", chat(20, true)).await;
    let text = answer.text();
    assert!(!answer.broke, "the stream itself ends in good order");
    assert!(!text.contains("[DONE]"), "{text}");
    let last = text.trim_end().rsplit("\n\n").next().unwrap().strip_prefix("data: ").unwrap();
    let event: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(event["error"]["code"], "worker_failed");
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, r#"maitre_requests_total{route="chat",outcome="broke",code=""}"#), 1.0);
}

#[tokio::test]
async fn with_all_workers_dead_the_client_gets_an_error() {
    let mut fixture = fixture(2).await;
    for engine in fixture.engines.drain(..) {
        engine.stop().await;
    }
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "worker_failed");
    assert_eq!(answer.header("retry-after"), "1");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_workers_error_reaches_the_client_if_no_other_worker_succeeds() {
    let fixture = fixture(2).await;
    for engine in &fixture.engines {
        engine.handle().inject(Injection::always(Fault::Status { status: 503 }));
    }
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 503);
    assert_ne!(answer.json()["error"]["code"], "worker_failed", "the engine's own words: {}", answer.text());
    fixture.until_nothing_is_open().await;
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(fixture.router.look(|brain| brain.fleet().workers().all(ready)), "full is not broken");
}

#[tokio::test]
async fn a_client_error_does_not_count_against_the_worker() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    for _ in 0..20 {
        let body = r#"{"model":"maitre-sim","prompt":"x","max_tokens":99999999}"#;
        let answer = client.post("/v1/completions", body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    fixture.until_nothing_is_open().await;
    let declined = r#"maitre_requests_total{route="completions",outcome="declined",code="4xx"}"#;
    assert_eq!(metric(&fixture.router.metrics(), declined), 20.0);
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    assert!(fixture.router.look(|brain| brain.fleet().workers().all(ready)));
}

#[tokio::test]
async fn a_worker_that_hangs_is_ejected_within_three_seconds_and_ramps_up_again() {
    let fixture = fixture(3).await;
    let hung = fixture.engines[1].handle();
    hung.inject(Injection { fault: Fault::Stall, times: None, scope: Scope::All });
    let state = |brain: &maitre_dispatch::Brain| brain.fleet().workers().nth(1).unwrap().health.state();
    let out = fixture.router.until(|brain| state(brain) != HealthState::Ready);
    tokio::time::timeout(Duration::from_secs(3), out).await.expect("out of rotation within 3 s");
    within(fixture.router.until(|brain| matches!(state(brain), HealthState::Ejected { .. }))).await;
    let received = hung.stats().requests_received;
    let mut client = fixture.client().await;
    for _ in 0..10 {
        assert_eq!(client.post("/v1/chat/completions", chat(1, false)).await.status, 200);
    }
    hung.clear_fault();
    within(fixture.router.until(|brain| matches!(state(brain), HealthState::Warming { .. }))).await;
    assert!(hung.stats().requests_received < received + 10, "no chat went to the hung worker");
}

#[tokio::test]
async fn a_request_without_a_first_byte_leaves_a_worker_that_hung_before_it_came() {
    let mut settings = settings();
    settings.probes.interval = Duration::from_millis(20);
    settings.admin_key = Some(maitre_proxy::Secret::of(b"key"));
    let fixture = fixture_with(2, engine_settings(), settings).await;
    fixture.engines[0].handle().inject(Injection { fault: Fault::Stall, times: None, scope: Scope::All });
    // Until it is silent. Its probe times out, and ejects it, a second later.
    let mut operator = Client::connect(fixture.router.admin()).await;
    within(async {
        loop {
            let mut request = get("/admin/v1/workers");
            request.headers_mut().insert("authorization", http::HeaderValue::from_static("Bearer key"));
            let workers = operator.ask(request).await.unwrap().json();
            if workers["workers"][0]["last_seen_ms"].as_u64().unwrap() > 100 {
                break;
            }
        }
    })
    .await;
    for _ in 0..2 {
        let mut client = fixture.client().await;
        let asked = client.post("/v1/chat/completions", chat(1, false));
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await.expect("moved to the other");
        assert_eq!(answer.status, 200);
    }
    fixture.until_nothing_is_open().await;
}

/// The worker answered probes until it got the request. Tried elsewhere, such a request would block one worker after the other.
#[tokio::test]
async fn a_request_under_which_a_worker_falls_silent_blocks_no_other_worker() {
    let fixture = fixture(2).await;
    let hung = fixture.engines[0].handle();
    hung.inject(Injection { fault: Fault::Stall, times: None, scope: Scope::All });
    let statuses = async {
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let mut client = fixture.client().await;
            statuses.push(client.post("/v1/chat/completions", chat(1, false)).await.status.as_u16());
        }
        statuses
    };
    let statuses = tokio::time::timeout(Duration::from_secs(10), statuses).await.unwrap();
    // One of the two went to the worker that hangs.
    assert!(statuses == [502, 200] || statuses == [200, 502], "{statuses:?}");
    fixture.until_nothing_is_open().await;
}

/// Sends requests until stopped. Returns how many there were, and the errors of those without a first byte.
async fn load(
    fixture: &Fixture,
    seed: usize,
    stop: tokio_util::sync::CancellationToken,
) -> (usize, usize, Vec<String>) {
    let (mut asked, mut broken, mut lost) = (0, 0, Vec::new());
    let mut client = Client::connect(fixture.router.listen()).await;
    while !stop.is_cancelled() {
        asked += 1;
        let body = chat(40, !(asked + seed).is_multiple_of(3));
        match client.send(post("/v1/chat/completions", body)).await {
            Err(error) => {
                lost.push(error.to_string());
                client = Client::connect(fixture.router.listen()).await;
            }
            Ok(response) if response.status() != 200 => {
                let status = response.status();
                let (body, _) = read(response.into_body()).await;
                lost.push(format!("{status} {}", String::from_utf8_lossy(&body)));
            }
            Ok(response) => {
                let (body, broke) = within(read(response.into_body())).await;
                let text = String::from_utf8_lossy(&body);
                let is_reported = text.contains("worker_failed");
                broken += usize::from(broke || is_reported);
                if broke {
                    client = Client::connect(fixture.router.listen()).await;
                } else if !is_reported && !text.contains("[DONE]") && !text.contains("\"usage\"") {
                    lost.push(format!("silently cut: {text}"));
                }
            }
        }
    }
    (asked, broken, lost)
}

#[tokio::test]
async fn a_worker_killed_every_second_loses_no_request_before_its_first_byte() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    engine.speedup = 4.0;
    let mut fixture = fixture_with(4, engine.clone(), settings()).await;
    let engines: Vec<Host> = fixture.engines.drain(..).collect();
    let fixture = std::sync::Arc::new(fixture);
    let stop = tokio_util::sync::CancellationToken::new();
    let mut clients = JoinSet::new();
    for number in 0..24 {
        let (fixture, stop) = (fixture.clone(), stop.clone());
        clients.spawn(async move { load(&fixture, number, stop).await });
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
    assert!(asked > 200 && broken > 0, "the kills must have broken some streams: {broken} of {asked}");
    fixture.until_nothing_is_open().await;
}

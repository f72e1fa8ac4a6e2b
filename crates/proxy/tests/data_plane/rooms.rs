//! Both legs at once, as SGLang wants it: the workers meet in a room, neither serves a request alone, and none waits for a
//! worker that has failed.

use std::time::Duration;

use maitre_proxy::Router;
use maitre_sim::http::brand::Brand;
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::http::transfer::{BootstrapConfig, Connector, RoomRole, TransferConfig};
use maitre_sim::http::{Host, HostConfig};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Fixture, TestResponse, engine_settings, get, metric, post, settings, within};
use crate::split::{chat, right_text, text};

/// Longer than any test: an engine that waits for it hangs.
const HANGS: Duration = Duration::from_secs(600);

fn engine(role: RoomRole) -> HostConfig {
    let config = engine_settings();
    let rooms = BootstrapConfig { timeout: HANGS, ..BootstrapConfig::new(role) };
    let transfer = TransferConfig::new(Connector::Bootstrap(rooms), ANYWHERE, &config.engine.profile);
    HostConfig { transfer: Some(transfer), bodies_max: 100, brand: Brand::Sglang, ..config }
}

/// Engines that tell their roles themselves, those that prefill first, and a plain one if that is wanted.
async fn fleet(prefill: usize, decode: usize) -> Fixture {
    let mut settings = settings();
    let mut engines = Vec::new();
    for number in 0..prefill + decode {
        let role = if number < prefill { RoomRole::Prefill } else { RoomRole::Decode };
        let host = Host::bind(ANYWHERE, engine(role)).await.unwrap();
        settings.workers.push(format!("http://{}", host.addr()).parse().unwrap());
        engines.push(host);
    }
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines }
}

async fn check_right(fixture: &Fixture, number: usize, stream: bool) -> TestResponse {
    let answer =
        within(async { fixture.client().await.post("/v1/chat/completions", chat(number, stream)).await });
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(text(&answer), right_text(number).await);
    answer
}

fn bodies(engine: &Host) -> Vec<Value> {
    engine.handle().bodies().iter().map(|it| serde_json::from_slice(&it.body).unwrap()).collect()
}

#[tokio::test]
async fn the_workers_meet_in_a_room_that_no_other_request_has() {
    let fixture = fleet(1, 1).await;
    for number in 0..4 {
        let answer = check_right(&fixture, number, number % 2 == 0).await;
        let [prefill, decode] = [0, 1].map(|it: usize| format!("http://{}", fixture.engines[it].addr()));
        assert_eq!(answer.header("x-maitre-worker"), decode);
        assert_eq!(answer.header("x-maitre-prefill-worker"), prefill);
    }
    let [prefill, decode] = [0, 1].map(|it: usize| bodies(&fixture.engines[it]));
    assert_eq!(prefill, decode, "one body for both");
    let mut rooms: Vec<u64> = prefill.iter().map(|it| it["bootstrap_room"].as_u64().unwrap()).collect();
    rooms.sort_unstable();
    rooms.dedup();
    assert_eq!(rooms.len(), 4);
    let mut client = decode[3].clone();
    let fields = ["bootstrap_host", "bootstrap_port", "bootstrap_room"];
    fields.iter().for_each(|it| drop(client.as_object_mut().unwrap().remove(*it).unwrap()));
    assert_eq!(client, serde_json::from_str::<Value>(&chat(3, false)).unwrap());
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, r#"maitre_prefill_legs_total{outcome="answered"}"#), 4.0);
}

#[tokio::test]
async fn a_prefill_worker_that_fails_cancels_the_decode_leg_at_once() {
    for fault in [Fault::CloseBeforeHeaders, Fault::Status { status: 500 }, Fault::RefuseConnections] {
        let fixture = fleet(2, 1).await;
        fixture.engines[0].handle().inject(Injection::always(fault));
        for number in 0..3 {
            check_right(&fixture, number, true).await;
        }
        fixture.until_nothing_is_open().await;
        within(fixture.engines[2].handle().until(|it| it.requests_open == 0)).await;
    }
}

#[tokio::test]
async fn a_decode_worker_that_fails_is_replaced_and_its_prefill_leg_cancelled() {
    for fault in [Fault::CloseBeforeHeaders, Fault::Status { status: 500 }, Fault::RefuseConnections] {
        let fixture = fleet(2, 2).await;
        fixture.engines[2].handle().inject(Injection::always(fault));
        for number in 0..3 {
            check_right(&fixture, number, true).await;
        }
        fixture.until_nothing_is_open().await;
        for engine in &fixture.engines[..2] {
            within(engine.handle().until(|it| it.requests_open == 0)).await;
        }
    }
}

#[tokio::test]
async fn without_a_prefill_worker_nothing_is_sent_to_a_worker_that_cannot_answer_alone() {
    let fixture = fleet(0, 1).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &"no_worker".into()));
    assert_eq!(fixture.engines[0].handle().bodies().len(), 0);
    let mut admin = crate::fixture::Client::connect(fixture.router.admin()).await;
    let ready = admin.ask(get("/readyz")).await.unwrap();
    assert_eq!((ready.status.as_u16(), ready.text().as_str()), (503, "no worker is ready\n"));
}

#[tokio::test]
async fn what_cannot_be_split_goes_to_no_worker_that_needs_a_partner() {
    let fixture = fleet(1, 1).await;
    let body = chat(1, false).replacen('{', r#"{"n":2,"#, 1);
    let answer = fixture.client().await.post("/v1/chat/completions", body).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (503, &"no_worker".into()));
    assert!(fixture.engines.iter().all(|it| it.handle().bodies().is_empty()));
}

#[tokio::test]
async fn an_error_of_the_client_is_passed_on() {
    let fixture = fleet(1, 1).await;
    let invalid = chat(1, false).replacen("12", "-1", 1);
    let answer = within(async { fixture.client().await.post("/v1/chat/completions", invalid).await }).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_both_workers() {
    let fixture = fleet(1, 1).await;
    fixture.engines[1].handle().inject(Injection::always(Fault::Stall));
    let mut client = fixture.client().await;
    let mut request = JoinSet::new();
    request.spawn(async move { drop(client.ask(post("/v1/chat/completions", chat(1, true))).await) });
    for engine in &fixture.engines {
        within(engine.handle().until(|it| it.requests_open > 0)).await;
    }
    request.abort_all();
    fixture.until_nothing_is_open().await;
    for engine in &fixture.engines {
        within(engine.handle().until(|it| it.requests_open == 0)).await;
    }
}

#[tokio::test]
async fn engines_that_restart_under_load_never_give_wrong_text() {
    const REQUESTS: usize = 120;
    let fixture = fleet(2, 2).await;
    let mut right = Vec::new();
    for number in 0..6 {
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
                let answer = client.post("/v1/chat/completions", chat(which, false)).await;
                let is_right = answer.status == 200 && !answer.broke && text(&answer) == right[which];
                assert!(is_right || answer.status != 200 || answer.broke, "wrong text: {}", answer.text());
                answered += usize::from(is_right);
            }
            answered
        });
    }
    let answered: usize = within(clients.join_all()).await.into_iter().sum();
    assert!(answered > REQUESTS / 2, "{answered} of {REQUESTS} answered");
    fixture.until_nothing_is_open().await;
}

//! New workers reuse the numbers of workers that left, and nothing else of theirs.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use maitre_base::WorkerId;
use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings, Secret};
use maitre_sim::http::Host;
use maitre_sim::http::fault::{Fault, Injection};
use serde_json::{Value, json};

use crate::events::{prompt, publisher};
use crate::fixture::{
    ANYWHERE, Client, Fixture, TEST_TIMEOUT, chat, engine_settings, fixture_with, metric, post, settings,
    within,
};

const KEY: &str = "the-key-of-the-operator";

/// Numbers are reused at once, and idle connections are kept for as long as the test may take.
fn hasty() -> RouterSettings {
    let mut settings = RouterSettings { admin_key: Some(Secret::of(KEY.as_bytes())), ..settings() };
    settings.brain.quarantine = Duration::ZERO;
    settings.brain.shadows = vec![Name::Random];
    settings.timeouts.worker_idle = TEST_TIMEOUT;
    settings
}

fn recorded() -> maitre_sim::http::HostConfig {
    maitre_sim::http::HostConfig { bodies_max: 100, ..engine_settings() }
}

fn url(engine: &Host) -> String {
    format!("http://{}", engine.addr())
}

/// Sets the fleet to these engines.
async fn set_workers(router: &Router, settings: &RouterSettings, engines: &[&Host]) {
    let workers = engines.iter().map(|it| url(it).parse().unwrap()).collect();
    router.reload(RouterSettings { workers, ..settings.clone() }).unwrap();
    within(router.until(|brain| brain.fleet().workers().count() == engines.len())).await;
    within(router.until_all_ready()).await;
}

fn number_of(router: &Router, engine: &Host) -> Option<WorkerId> {
    let url = url(engine);
    router.look(|brain| brain.fleet().workers().find(|it| it.url == url).map(|it| it.id))
}

fn chats(engine: &Host) -> usize {
    engine.handle().bodies().iter().filter(|it| it.path == "/v1/chat/completions").count()
}

async fn ask(client: &mut Client) -> String {
    let answer = client.post("/v1/chat/completions", chat(4, true)).await;
    assert!(answer.status.is_success() && !answer.broke, "{}", answer.text());
    answer.header("x-maitre-worker").to_owned()
}

async fn see(fixture: &Fixture, path: &str) -> Value {
    let request = Request::builder().uri(path).header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}")).body(Full::default()).unwrap();
    Client::connect(fixture.router.admin()).await.ask(request).await.unwrap().json()
}

#[tokio::test]
async fn a_reused_number_reuses_no_connection_and_no_decision() {
    let settings = hasty();
    let fixture = fixture_with(1, recorded(), settings.clone()).await;
    let (first, second) = (&fixture.engines[0], Host::bind(ANYWHERE, recorded()).await.unwrap());
    let mut client = fixture.client().await;
    assert_eq!(ask(&mut client).await, url(first));
    fixture.until_nothing_is_open().await;
    set_workers(&fixture.router, &settings, &[]).await;
    set_workers(&fixture.router, &settings, &[&second]).await;
    assert_eq!(number_of(&fixture.router, &second), Some(WorkerId(0)), "the number of the first");
    for _ in 0..5 {
        assert_eq!(ask(&mut client).await, url(&second));
    }
    fixture.until_nothing_is_open().await;
    // The first engine still listens on our idle connection; no request was sent there.
    assert_eq!((chats(first), chats(&second)), (1, 5));
    let before = see(&fixture, "/admin/v1/decisions/1").await;
    assert_eq!((&before["worker"], &before["url"]), (&json!(0), &Value::Null));
    assert_eq!(before["candidates"][0]["url"], Value::Null);
    assert_eq!(before["shadows"][0]["url"], Value::Null);
    let after = see(&fixture, "/admin/v1/decisions/2").await;
    assert_eq!((&after["worker"], &after["url"]), (&json!(0), &json!(url(&second))));
    assert_eq!(after["shadows"][0]["url"], json!(url(&second)));
    assert_eq!(see(&fixture, "/admin/v1/workers/0").await["requests_total"], 5, "of its own");
}

#[tokio::test]
async fn a_number_is_not_reused_while_its_last_worker_streams() {
    let mut settings = hasty();
    // The removal does not wait for the stream.
    settings.timeouts.drain = Duration::ZERO;
    let fixture = fixture_with(1, engine_settings(), settings.clone()).await;
    let first = &fixture.engines[0];
    let second = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let third = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    first.handle().inject(Injection::always(Fault::StallAfterChunks { chunks: 2 }));
    let mut client = fixture.client().await;
    let begun = client.send(post("/v1/chat/completions", chat(50, true))).await.unwrap();
    set_workers(&fixture.router, &settings, &[]).await;
    set_workers(&fixture.router, &settings, &[&second]).await;
    assert_eq!(number_of(&fixture.router, &second), Some(WorkerId(1)));
    drop(begun);
    drop(client);
    within(fixture.router.until(|brain| brain.open() == 0)).await;
    assert!(fixture.nothing_is_open());
    set_workers(&fixture.router, &settings, &[&second, &third]).await;
    assert_eq!(number_of(&fixture.router, &third), Some(WorkerId(0)));
}

#[tokio::test]
async fn metrics_drop_a_worker_that_left_and_no_other() {
    let settings = hasty();
    let fixture = fixture_with(2, publisher(|_| {}), settings.clone()).await;
    fixture.until_all_is_known().await;
    let mut client = fixture.client().await;
    for number in 0..4 {
        client.post("/v1/chat/completions", prompt(number, number)).await;
    }
    fixture.until_all_is_known().await;
    let [first, second] = [0, 1].map(|it| format!("worker=\"{}\"", url(&fixture.engines[it])));
    let page = fixture.router.metrics();
    for name in ["maitre_events_batches_total", "maitre_events_lag_seconds", "maitre_worker_state"] {
        let has = |it: &str| page.lines().any(|line| line.starts_with(name) && line.contains(it));
        assert!(has(&first) && has(&second), "{name}:\n{page}");
    }
    set_workers(&fixture.router, &settings, &[&fixture.engines[1]]).await;
    within(async {
        while fixture.router.metrics().contains(&first) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let page = fixture.router.metrics();
    assert!(page.lines().any(|it| it.starts_with("maitre_events_batches_total") && it.contains(&second)));
}

#[tokio::test]
async fn a_worker_listed_again_while_it_drains_has_the_requests_of_both_in_metrics() {
    let settings = hasty();
    let fixture = fixture_with(2, engine_settings(), settings.clone()).await;
    let engine = &fixture.engines[1];
    // The number of the other is free for the new one, which is then before the old one.
    set_workers(&fixture.router, &settings, &[engine]).await;
    engine.handle().inject(Injection::always(Fault::StallAfterChunks { chunks: 2 }));
    let mut streams = Vec::new();
    for query in ["?events=off", "?store=a"] {
        let mut client = fixture.client().await;
        let begun = client.send(post("/v1/chat/completions", chat(50, true))).await.unwrap();
        streams.push((client, begun));
        let workers = vec![format!("{}{query}", url(engine)).parse().unwrap()];
        fixture.router.reload(RouterSettings { workers, ..settings.clone() }).unwrap();
        let line = format!("maitre_worker_requests{{worker=\"{}\"}}", url(engine));
        assert_eq!(metric(&fixture.router.metrics(), &line), streams.len() as f64);
        within(fixture.router.until_all_ready()).await;
        let state = format!("maitre_worker_state{{worker=\"{}\",state=\"ready\"}}", url(engine));
        assert_eq!(metric(&fixture.router.metrics(), &state), 1.0);
    }
}

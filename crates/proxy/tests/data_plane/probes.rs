//! Probes are answered however many connections are open.

use std::sync::atomic::Ordering;
use std::time::Duration;

use maitre_fleet::HealthState;
use maitre_sim::http::brand::Brand;
use maitre_sim::http::misconfiguration::{Misconfiguration, Misconfigurations};
use maitre_sim::http::{Host, HostConfig};
use maitre_testkit::log::Log;
use tokio::net::TcpStream;

use crate::events::front;
use crate::fixture::{
    ANYWHERE, Client, Fixture, engine_settings, fixture, fixture_with, get, settings, within,
};
use crate::tokenize::chat;

/// How long a kubelet waits is a second by default; machines that run tests are slower.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

async fn check_probes(fixture: &Fixture) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let probe =
            async { Client::connect(fixture.router.admin()).await.ask(get(path)).await.unwrap().status };
        let status = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
        assert_eq!(status.unwrap_or_else(|_| panic!("{path} is silent")), 200, "{path}");
    }
}

#[tokio::test]
async fn strangers_on_the_admin_listener_keep_no_probe_out() {
    let fixture = fixture(1).await;
    let mut strangers = Vec::new();
    for round in 0..3 {
        for _ in 0..140 {
            strangers.push(TcpStream::connect(fixture.router.admin()).await.unwrap());
        }
        check_probes(&fixture).await;
        assert_eq!(strangers.len(), 140 * (round + 1));
    }
}

/// SGLang generates a token for it, and looks once a second whether the token has come.
#[tokio::test]
async fn an_engine_that_takes_a_second_to_say_that_it_is_healthy_is_healthy() {
    let engine = HostConfig { brand: Brand::Sglang, ..engine_settings() };
    // Waits until it is ready.
    let fixture = fixture_with(1, engine, settings()).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(&["What is the time?"])).await;
    assert_eq!(answer.status, 200);
}

/// No token comes while SGLang prefills a long prompt, and its health check waits for one.
#[tokio::test]
async fn an_engine_in_a_long_step_stays_healthy_while_it_answers_otherwise() {
    let config = HostConfig { brand: Brand::Sglang, ..engine_settings() };
    let engine = Host::bind(ANYWHERE, config).await.unwrap();
    let mut front = front(&engine, "/health", 0).await;
    let mut settings = settings();
    (settings.probes.interval, settings.probes.timeout) =
        (Duration::from_millis(10), Duration::from_millis(50));
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    front.fails.store(true, Ordering::Relaxed);
    // The third begins after two were given up.
    for _ in 0..3 {
        within(front.noes.recv()).await.unwrap();
        let state = router.look(|brain| brain.fleet().workers().next().map(|it| it.health.state()));
        assert_eq!(state, Some(HealthState::Ready));
    }
}

/// Until now no line said why the worker got no requests.
#[tokio::test]
async fn an_engine_that_is_healthy_and_does_not_list_its_models_is_reported_once() {
    let log = Log::new();
    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let mut front = front(&engine, "/v1/models", 0).await;
    front.fails.store(true, Ordering::Relaxed);
    let mut settings = settings();
    (settings.probes.interval, settings.probes.timeout) =
        (Duration::from_millis(10), Duration::from_millis(50));
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    // The engine of unknown brand is asked once more, for what it is. The last one begins after the first was given up.
    for _ in 0..5 {
        within(front.noes.recv()).await.unwrap();
    }
    log.check_once("first probe failed: GET /v1/models timed out");
    front.fails.store(false, Ordering::Relaxed);
    within(router.until_all_ready()).await;
}

#[tokio::test]
async fn a_router_that_is_found_as_its_own_worker_gets_nothing_from_itself() {
    let log = Log::new();
    let mut settings = settings();
    settings.probes.interval = Duration::from_millis(10);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let other = crate::fixture::fixture(1).await;
    let urls =
        [fixture.router.listen(), other.router.listen()].map(|it| format!("http://{it}").parse().unwrap());
    fixture.router.discovered(&urls, Vec::new());
    let state = |brain: &maitre_dispatch::Brain, url: &str| {
        brain.fleet().workers().find(|it| &*it.url == url).map(|it| it.health.state())
    };
    let [own, behind] = urls.map(|it| it.to_string());
    let is_settled = |brain: &maitre_dispatch::Brain| {
        state(brain, &behind) == Some(HealthState::Ready) && log.with("this is the router itself").len() == 1
    };
    within(fixture.router.until(is_settled)).await;
    assert_ne!(fixture.router.look(|brain| state(brain, &own)), Some(HealthState::Ready));
    log.check_once("first probe failed: this is the router itself, not an engine");
    log.check_once("the worker is a Maitre router, not an engine");
}

/// It gets requests, because it may serve any model: clients see 401 while the router is ready.
#[tokio::test]
async fn a_worker_whose_models_need_a_key_is_named_with_the_setting() {
    let log = Log::new();
    let locked = Misconfigurations(vec![Misconfiguration::RequiresKey("the-key-of-the-engine")]);
    let config = HostConfig { misconfigurations: locked, ..engine_settings() };
    let engine = Host::bind(ANYWHERE, config).await.unwrap();
    let mut settings = settings();
    (settings.probes.interval, settings.probes.models_interval) =
        (Duration::from_millis(10), Duration::from_millis(10));
    settings.workers = vec![format!("http://{}", engine.addr()).parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    let is_ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    within(router.until(|brain| brain.fleet().workers().all(is_ready))).await;
    log.check_once("/v1/models answered 401 without a list");
    log.check_once("set worker_key to the key that it requires");
}

/// A worker behind a gateway that fails now and then logged a line at each interval.
#[tokio::test]
async fn a_missing_list_of_models_is_reported_once_and_not_after_one_was_read() {
    let log = Log::new();
    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let mut front = front(&engine, "/v1/models", 503).await;
    front.fails.store(true, Ordering::Relaxed);
    let mut settings = settings();
    (settings.probes.interval, settings.probes.models_interval) =
        (Duration::from_millis(10), Duration::from_millis(10));
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    for status in [502, 503] {
        front.status.store(status, Ordering::Relaxed);
        front.fail_thrice().await;
    }
    log.check_once("without a list: the worker gets requests");
    front.fails.store(false, Ordering::Relaxed);
    within(router.until_all_ready()).await;
    front.fail_thrice().await;
    log.check_once("without a list");
}

#[tokio::test]
async fn a_worker_that_listed_its_models_once_is_not_said_to_list_none() {
    let log = Log::new();
    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let mut front = front(&engine, "/v1/models", 503).await;
    let mut settings = settings();
    (settings.probes.interval, settings.probes.models_interval) =
        (Duration::from_millis(10), Duration::from_millis(10));
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    front.fail_thrice().await;
    assert_eq!(log.with("without a list"), [""; 0]);
}

//! The router's knowledge of caches compared with the caches themselves: with events that arrive in order, and with
//! events that are lost, duplicated, reordered, truncated, or forgotten by a restart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use maitre_base::{Rng, WorkerId};
use maitre_index::feed::Trust;
use maitre_net::worker_url::WorkerUrl;
use maitre_policy::Name;
use maitre_proxy::RouterSettings;
use maitre_sim::events::disturbance::Disturbance;
use maitre_sim::events::{self, Form, ReplayShape};
use maitre_sim::http::Host;
use maitre_sim::http::brand::Brand;
use maitre_sim::profile::{INSTANT, Profile};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fixture::{
    ANYWHERE, Client, Fixture, TEST_TIMEOUT, TestResponse, fixture_with, metric, settings, until_counted,
    within,
};

/// Small enough that a few dozen prompts evict each other.
const KV_BLOCKS: u32 = 400;

pub(crate) fn publisher(change: impl FnOnce(&mut events::PublisherConfig)) -> maitre_sim::http::HostConfig {
    let mut events =
        events::PublisherConfig { replay: Some(ANYWHERE), ..events::PublisherConfig::new(ANYWHERE) };
    change(&mut events);
    let profile = Profile { kv_blocks: KV_BLOCKS, ..INSTANT };
    maitre_sim::http::HostConfig { events: Some(events), ..maitre_sim::http::HostConfig::new(profile) }
}

pub(crate) fn by_delay() -> RouterSettings {
    let mut settings = settings();
    settings.brain.strategy = Name::LeastDelay;
    // Long enough for a slow machine: how prompts are tokenized must not depend on it.
    settings.tokenize_timeout = TEST_TIMEOUT;
    settings
}

/// A prompt of a group: prompts of a group share a prefix.
pub(crate) fn prompt(group: usize, number: usize) -> String {
    let shared = format!("This is the handbook of group {group}. ").repeat(20);
    let own = format!("Question {number} of group {group}. ").repeat(1 + number % 5);
    json!({
        "model": "maitre-sim",
        "messages": [{"role": "system", "content": shared}, {"role": "user", "content": own}],
        "max_tokens": 1 + number % 30,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
    .to_string()
}

/// The cached tokens that the router expected, and those that the engine found.
pub(crate) fn believed_and_found(answer: &TestResponse) -> (u64, u64) {
    let text = answer.text();
    let usage =
        text.lines().rev().find_map(|it| it.strip_prefix("data: ").filter(|it| it.contains("\"usage\":{")));
    let usage: serde_json::Value = serde_json::from_str(usage.unwrap_or_else(|| panic!("{text}"))).unwrap();
    let found = usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (answer.header("x-maitre-cached-tokens").parse().unwrap(), found)
}

impl Fixture {
    /// Waits until the index equals every engine's cache.
    pub(crate) async fn until_all_is_known(&self) {
        for (number, engine) in self.engines.iter().enumerate() {
            let (worker, handle) = (WorkerId(number as u32), engine.handle());
            let settled = self.router.until(|brain| {
                let there = handle.resident().len() as u32;
                let known = brain.cache().numbers(worker).map(|it| it.reported_blocks);
                brain.cache().trust(worker) == Trust::Fresh && known == Some(there)
            });
            if tokio::time::timeout(Duration::from_secs(10), settled).await.is_err() {
                let there = handle.resident().len();
                let numbers = self.router.look(|brain| brain.cache().numbers(worker));
                panic!("{worker} holds {there} blocks, and we know {numbers:?}\n{}", self.router.metrics());
            }
        }
    }
}

async fn check_exact(engine: maitre_sim::http::HostConfig) {
    let fixture = fixture_with(3, engine, by_delay()).await;
    fixture.until_all_is_known().await;
    let mut client = fixture.client().await;
    for number in 0..120 {
        let answer = client.post("/v1/chat/completions", prompt(number % 7, number)).await;
        let (believed, found) = believed_and_found(&answer);
        assert_eq!(believed, found, "request {number} at {}", answer.header("x-maitre-worker"));
        // The index has this prompt before the next request.
        fixture.until_all_is_known().await;
    }
    let page = fixture.router.metrics();
    let read = metric(&page, "maitre_prompts_read_total{model=\"maitre-sim\",level=\"engine\"}");
    assert_eq!(read, 120.0, "every prompt was read by an engine");
    assert_eq!(
        metric(&page, "maitre_expected_cached_tokens_total"),
        metric(&page, "maitre_cached_tokens_total"),
        "{page}"
    );
}

#[tokio::test]
async fn expected_cached_tokens_equal_those_the_engine_finds() {
    check_exact(publisher(|_| {})).await;
}

#[tokio::test]
async fn older_engines_are_understood_as_well() {
    check_exact(publisher(|it| {
        it.form = Form::Arrays;
        it.replay_shape = ReplayShape::WithoutTopic;
        it.topic = "kv@here@model".to_owned();
    }))
    .await;
}

#[tokio::test]
async fn a_router_that_starts_late_learns_the_caches_by_replay() {
    let engine = publisher(|_| {});
    let first = fixture_with(2, engine, by_delay()).await;
    let mut client = first.client().await;
    for number in 0..20 {
        client.post("/v1/chat/completions", prompt(number % 3, number)).await;
    }
    let mut settings = by_delay();
    settings.workers = first.engines.iter().map(worker).collect();
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    let Fixture { engines, .. } = first;
    let second = Fixture { router, engines };
    second.until_all_is_known().await;
    let mut client = second.client().await;
    let (believed, found) = believed_and_found(&client.post("/v1/chat/completions", prompt(1, 1)).await);
    assert!(believed > 0 && believed == found, "{believed} believed, {found} found");
}

/// Puts a router in front of an engine that has long been in use and replays only its last four batches.
async fn late_router() -> Fixture {
    let engine = Host::bind(ANYWHERE, publisher(|it| it.buffer_steps = 4)).await.unwrap();
    let mut client = Client::connect(engine.addr()).await;
    for number in 0..40 {
        client.post("/v1/chat/completions", prompt(number % 3, number)).await;
    }
    let mut settings = by_delay();
    settings.workers = vec![worker(&engine)];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    within(router.until(|brain| brain.cache().trust(WorkerId(0)) == Trust::Cold)).await;
    Fixture { router, engines: vec![engine] }
}

impl Fixture {
    /// Waits until the router has applied every batch that the engine has published. `skipped` were not replayed.
    async fn until_heard(&self, skipped: f64) {
        let engine = &self.engines[0];
        let line = format!("maitre_events_batches_total{{worker=\"http://{}\"}}", engine.addr());
        let published = engine.handle().stats().events.batches as f64;
        within(until_counted(&self.router, &line, published - skipped)).await;
    }
}

/// Three groups' shared prefixes are older than the router, and in use all the time: they are never evicted, and so never
/// stored again.
#[tokio::test]
async fn a_late_router_becomes_fresh_though_no_replay_reaches_back() {
    let fixture = late_router().await;
    let skipped = (fixture.engines[0].handle().stats().events.batches - 4) as f64;
    let mut client = fixture.client().await;
    let trust = || fixture.router.look(|it| it.cache().trust(WorkerId(0)));
    let mut requests = 0;
    while trust() == Trust::Cold {
        client.post("/v1/chat/completions", prompt(requests % 3, 100 + requests)).await;
        fixture.until_heard(skipped).await;
        requests += 1;
        assert!(requests < 200, "{}", fixture.router.metrics());
    }
    assert_eq!(trust(), Trust::Fresh);
    assert!(requests > 10, "fresh after {requests} requests, less than its cache holds");
    for number in 0..60 {
        let answer = client.post("/v1/chat/completions", prompt(number % 4, 300 + number)).await;
        let (believed, found) = believed_and_found(&answer);
        assert_eq!(believed, found, "request {number} after {requests}");
        fixture.until_heard(skipped).await;
    }
}

#[tokio::test]
async fn a_cleared_cache_holds_nothing_unknown() {
    let fixture = late_router().await;
    let mut engine = Client::connect(fixture.engines[0].addr()).await;
    assert!(engine.post("/reset_prefix_cache", String::new()).await.status.is_success());
    // The engine publishes with its next step.
    engine.post("/v1/chat/completions", prompt(0, 0)).await;
    fixture.until_all_is_known().await;
}

fn worker(engine: &Host) -> WorkerUrl {
    format!("http://{}", engine.addr()).parse().unwrap()
}

#[tokio::test]
async fn the_ports_can_be_configured() {
    let engine = Host::bind(ANYWHERE, publisher(|_| {})).await.unwrap();
    let addrs = engine.events().unwrap();
    let mut settings = by_delay();
    let (events, replay) = (addrs.stream.port(), addrs.replay.unwrap().port());
    let text = format!("http://{}?events={events}&replay=tcp://127.0.0.1:{replay}", engine.addr());
    settings.workers = vec![text.parse().unwrap()];
    let router = maitre_proxy::Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines: vec![engine] }.until_all_is_known().await;
}

#[tokio::test]
async fn an_sglang_is_asked_for_the_tokens_of_chats() {
    let config = maitre_sim::http::HostConfig { brand: Brand::Sglang, ..publisher(|_| {}) };
    let engine = Host::bind(ANYWHERE, config).await.unwrap();
    let addrs = engine.events().unwrap();
    let (events, replay) = (addrs.stream.port(), addrs.replay.unwrap().port());
    let mut settings = by_delay();
    let text = format!("http://{}?events={events}&replay={replay}", engine.addr());
    settings.workers = vec![text.parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    let fixture = Fixture { router, engines: vec![engine] };
    fixture.until_all_is_known().await;
    let mut client = fixture.client().await;
    for number in 0..5 {
        let answer = client.post("/v1/chat/completions", prompt(number % 2, number)).await;
        let (believed, found) = believed_and_found(&answer);
        assert_eq!((believed, found > 0), (found, number > 1), "request {number}");
        fixture.until_all_is_known().await;
    }
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, "maitre_prompts_read_total{model=\"maitre-sim\",level=\"engine\"}"), 5.0);
}

/// vLLM's ranks may have an address each, or each host one for its own. They are numbered over all of them.
#[tokio::test]
async fn an_engine_whose_first_rank_is_not_zero_is_followed() {
    for is_configured in [false, true] {
        let engine = Host::bind(ANYWHERE, publisher(|it| it.rank = 4)).await.unwrap();
        let addrs = engine.events().unwrap();
        let mut settings = by_delay();
        let (events, replay) = (addrs.stream.port(), addrs.replay.unwrap().port());
        let text = match is_configured {
            true => format!("http://{}?events={events}&replay={replay}&ranks=2", engine.addr()),
            false => format!("http://{}", engine.addr()),
        };
        settings.workers = vec![text.parse().unwrap()];
        let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
        within(router.until_all_ready()).await;
        let mut client = Client::connect(engine.addr()).await;
        client.post("/v1/chat/completions", prompt(1, 1)).await;
        let there = engine.handle().resident().len() as u32;
        assert!(there > 0);
        let known = |brain: &maitre_dispatch::Brain| {
            brain.cache().numbers(WorkerId(0)).map_or(0, |it| it.reported_blocks)
        };
        within(router.until(|brain| known(brain) == there)).await;
    }
}

#[tokio::test]
async fn events_of_another_rank_are_counted_and_not_applied() {
    let engine = Host::bind(ANYWHERE, publisher(|_| {})).await.unwrap();
    let addrs = engine.events().unwrap();
    let mut settings = by_delay();
    // The ports are off by one, so the worker of rank 1 subscribes to the engine's rank 0.
    let (events, replay) = (addrs.stream.port() - 1, addrs.replay.unwrap().port() - 1);
    let text = format!("http://{}?events={events}&replay={replay}&ranks=2", engine.addr());
    settings.workers = vec![text.parse().unwrap()];
    let router = within(maitre_proxy::Router::start(settings)).await.unwrap();
    within(router.until_all_ready()).await;
    let fixture = Fixture { router, engines: vec![engine] };
    let mut client = fixture.client().await;
    let count =
        format!("maitre_events_unreadable_total{{worker=\"http://{}#1\"}}", fixture.engines[0].addr());
    within(async {
        let is_counted = |page: &str| page.contains(&count) && metric(page, &count) > 0.0;
        while !is_counted(&fixture.router.metrics()) {
            client.post("/v1/chat/completions", prompt(1, 1)).await;
        }
    })
    .await;
    within(fixture.router.until(|brain| brain.cache().trust(WorkerId(1)) != Trust::None)).await;
    let reported =
        fixture.router.look(|brain| brain.cache().numbers(WorkerId(1)).map(|it| it.reported_blocks));
    assert_eq!(reported, Some(0), "{}", fixture.router.metrics());
}

#[tokio::test]
async fn without_events_usage_corrects_the_predictions() {
    let mut engine = publisher(|_| {});
    engine.events = None;
    let fixture = fixture_with(2, engine, by_delay()).await;
    let mut client = fixture.client().await;
    let (mut near, mut asked) = (0, 0);
    for round in 0..4 {
        for number in 0..60 {
            let answer = client.post("/v1/chat/completions", prompt(number % 6, number)).await;
            let (believed, found) = believed_and_found(&answer);
            // The caches have begun to evict after the first round.
            if round > 0 {
                asked += 1;
                // The tokens are unknown: the fraction of the prompt's bytes stands for the fraction of its tokens.
                near += u32::from(believed.abs_diff(found) <= 32);
            }
        }
    }
    assert!(f64::from(near) > 0.8 * f64::from(asked), "{near} of {asked}");
    let page = fixture.router.metrics();
    let read = metric(&page, "maitre_prompts_read_total{model=\"maitre-sim\",level=\"words\"}");
    assert_eq!(read, 240.0, "no engine was asked");
}

/// One disturbance.
fn disturbance(rng: &mut Rng) -> Disturbance {
    match rng.below(7) {
        0 => Disturbance::Drop { batches: 1 + rng.below(5) as u32 },
        1 => Disturbance::Double { batches: 1 + rng.below(5) as u32 },
        2 => Disturbance::Swap { pairs: 1 + rng.below(3) as u32 },
        3 => Disturbance::Truncate { batches: 1 },
        4 => Disturbance::CutReplay { messages: rng.below(4) as u32 },
        5 => Disturbance::MuteReplay,
        _ => Disturbance::CloseConnections,
    }
}

/// Traffic on several connections at once; every response must be complete.
async fn wave(fixture: &Fixture, rng: &mut Rng) {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::connect(fixture.router.listen()).await);
    }
    let mut asks = tokio::task::JoinSet::new();
    for mut client in clients {
        let prompts: Vec<String> = (0..6).map(|_| prompt(rng.below(9), rng.below(200))).collect();
        asks.spawn(async move {
            for prompt in prompts {
                let answer = client.post("/v1/chat/completions", prompt).await;
                assert!(answer.status.is_success() && !answer.broke, "{}", answer.text());
                assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
            }
        });
    }
    within(asks.join_all()).await;
}

async fn check_disturbed(seed: u64) {
    let mut rng = Rng::new(seed);
    let fixture = fixture_with(3, publisher(|it| it.buffer_steps = 300), by_delay()).await;
    fixture.until_all_is_known().await;
    for _ in 0..12 {
        for engine in &fixture.engines {
            if rng.below(2) == 0 {
                engine.handle().disturb(disturbance(&mut rng));
            }
        }
        wave(&fixture, &mut rng).await;
        if rng.below(3) == 0 {
            fixture.engines[rng.below(3)].handle().restart_engine();
        }
    }
    // Then no traffic.
    fixture.engines.iter().for_each(|it| it.handle().clear_disturbances());
    wave(&fixture, &mut rng).await;
    fixture.until_all_is_known_or_partly().await;
    fixture.until_nothing_is_open().await;
}

impl Fixture {
    /// The index has no block that the cache lacks. It has every block of the cache, unless events were lost for good; then
    /// the router reports that.
    pub(crate) async fn until_all_is_known_or_partly(&self) {
        for (number, engine) in self.engines.iter().enumerate() {
            let (worker, handle) = (WorkerId(number as u32), engine.handle());
            let settled = self.router.until(|brain| {
                let there = handle.resident().len() as u32;
                let known = brain.cache().numbers(worker).map_or(0, |it| it.reported_blocks);
                match brain.cache().trust(worker) {
                    Trust::Fresh => known == there,
                    Trust::Cold => known <= there,
                    Trust::Suspect | Trust::None => false,
                }
            });
            if tokio::time::timeout(Duration::from_secs(20), settled).await.is_err() {
                let there = handle.resident().len();
                let numbers = self.router.look(|brain| brain.cache().numbers(worker));
                panic!("{worker} holds {there} blocks, and we know {numbers:?}\n{}", self.router.metrics());
            }
        }
    }
}

#[tokio::test]
async fn after_any_disturbance_of_events_the_index_recovers() {
    for seed in 0..4 {
        check_disturbed(seed).await;
    }
}

#[tokio::test]
async fn a_restarted_engine_is_noticed_within_a_second() {
    let fixture = fixture_with(2, publisher(|_| {}), by_delay()).await;
    let mut client = fixture.client().await;
    for number in 0..20 {
        client.post("/v1/chat/completions", prompt(number % 3, number)).await;
    }
    fixture.until_all_is_known().await;
    for engine in &fixture.engines {
        engine.handle().restart_engine();
    }
    for engine in &fixture.engines {
        within(engine.handle().until(|it| it.events.subscribers > 0)).await;
    }
    let forgotten = fixture.router.until(|brain| {
        let held = |worker| {
            brain.cache().numbers(WorkerId(worker)).map_or(0, |it| it.reported_blocks + it.predicted_blocks)
        };
        held(0) + held(1) == 0
    });
    let in_time = tokio::time::timeout(Duration::from_secs(1), forgotten).await;
    assert!(in_time.is_ok(), "phantoms:\n{}", fixture.router.metrics());
}

/// A proxy for an engine that fails one path on demand, and reports each failure.
pub(crate) struct Front {
    pub(crate) addr: SocketAddr,
    pub(crate) fails: Arc<AtomicBool>,
    pub(crate) status: Arc<AtomicU16>,
    pub(crate) noes: mpsc::UnboundedReceiver<()>,
    _tasks: JoinSet<()>,
}

impl Front {
    /// Until it has failed three times from now on: two of them have been received.
    pub(crate) async fn fail_thrice(&mut self) {
        while self.noes.try_recv().is_ok() {}
        self.fails.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            within(self.noes.recv()).await.unwrap();
        }
    }
}

/// With a status of zero it does not answer.
pub(crate) async fn front(engine: &Host, path: &'static str, status: u16) -> Front {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let (addr, behind) = (listener.local_addr().unwrap(), engine.addr());
    let fails = Arc::new(AtomicBool::new(false));
    let status = Arc::new(AtomicU16::new(status));
    let (is_failing, status_now, mut tasks) = (fails.clone(), status.clone(), JoinSet::new());
    let (said_no, noes) = mpsc::unbounded_channel();
    tasks.spawn(async move {
        let mut unanswered = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let bytes = stream.read(&mut head).await.unwrap_or(0);
            if is_failing.load(Ordering::Relaxed) && head.starts_with(format!("GET {path} ").as_bytes()) {
                let status = status_now.load(Ordering::Relaxed);
                let no = format!("HTTP/1.1 {status} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                match status {
                    0 => unanswered.push(stream),
                    _ => drop(stream.write_all(no.as_bytes()).await),
                }
                let _ = said_no.send(());
                continue;
            }
            // One request a connection, whole in its first packet.
            let Ok(mut inner) = TcpStream::connect(behind).await else { continue };
            let head =
                String::from_utf8_lossy(&head[..bytes]).replacen("\r\n", "\r\nconnection: close\r\n", 1);
            inner.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = inner.read_to_end(&mut answer).await;
            let _ = stream.write_all(&answer).await;
        }
    });
    Front { addr, fails, status, noes, _tasks: tasks }
}

/// In vLLM's development mode the first answer of `/server_info` takes seconds.
#[tokio::test]
async fn an_engine_that_is_silent_at_a_path_of_other_brands_is_recognised() {
    let engine = Host::bind(ANYWHERE, publisher(|_| {})).await.unwrap();
    let front = front(&engine, "/server_info", 0).await;
    front.fails.store(true, Ordering::Relaxed);
    Client::connect(engine.addr()).await.post("/v1/chat/completions", prompt(0, 0)).await;
    let mut settings = by_delay();
    settings.probes.interval = Duration::from_millis(20);
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = maitre_proxy::Router::start(settings).await.unwrap();
    let fixture = Fixture { router, engines: vec![engine] };
    // Only a known brand says where it publishes.
    fixture.until_all_is_known().await;
}

/// A failure at this path must not remove the knowledge of the cache.
async fn check_stays_known(path: &'static str, status: u16) {
    let engine = Host::bind(ANYWHERE, publisher(|_| {})).await.unwrap();
    let mut front = front(&engine, path, status).await;
    let mut client = Client::connect(engine.addr()).await;
    for number in 0..6 {
        client.post("/v1/chat/completions", prompt(number, number)).await;
    }
    let mut settings = by_delay();
    settings.probes.interval = Duration::from_millis(20);
    settings.probes.models_interval = Duration::from_millis(20);
    settings.workers = vec![format!("http://{}", front.addr).parse().unwrap()];
    let router = maitre_proxy::Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    let fixture = Fixture { router, engines: vec![engine] };
    fixture.until_all_is_known().await;
    front.fails.store(true, Ordering::Relaxed);
    // A second failed request means that the router has handled the first.
    for _ in 0..20 {
        within(front.noes.recv()).await.unwrap();
        let (trust, numbers) =
            fixture.router.look(|it| (it.cache().trust(WorkerId(0)), it.cache().numbers(WorkerId(0))));
        let known = numbers.map_or(0, |it| it.reported_blocks);
        assert_eq!((trust, known > 0), (Trust::Fresh, true), "{path} {status}: {known} blocks");
    }
    fixture.until_all_is_known().await;
}

#[tokio::test]
async fn a_subscription_survives_an_engine_too_busy_to_report_its_ports() {
    check_stays_known("/kv_event_sources", 503).await;
}

#[tokio::test]
async fn a_failed_health_check_does_not_end_a_subscription() {
    check_stays_known("/health", 503).await;
}

/// The thread that reads events also accepts connections and probes workers.
#[tokio::test]
async fn other_tasks_run_while_a_long_replay_is_applied() {
    let mut engine = publisher(|_| {});
    engine.engine.profile.kv_blocks = 100_000;
    let engine = Host::bind(ANYWHERE, engine).await.unwrap();
    let mut client = Client::connect(engine.addr()).await;
    for number in 0..150 {
        client.post("/v1/chat/completions", prompt(number, number)).await;
    }
    let there = engine.handle().resident().len() as u32;
    let mut settings = by_delay();
    settings.workers = vec![worker(&engine)];
    let router = maitre_proxy::Router::start(settings).await.unwrap();
    let (mut known, mut most) = (0, 0);
    let watched = async {
        while known < there {
            let now = router.look(|it| it.cache().numbers(WorkerId(0))).map_or(0, |it| it.reported_blocks);
            most = most.max(now - known);
            known = now;
            tokio::task::yield_now().await;
        }
    };
    within(watched).await;
    assert!(most < there / 10, "{most} of {there} blocks in one go");
}

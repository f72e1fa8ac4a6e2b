//! Several routers in front of one fleet share what they know, over both transports.

use std::time::Duration;

use http::StatusCode;
use http_body_util::Full;
use maitre_base::{Instant, PromisedWork};
use maitre_cluster::HEARTBEAT;
use maitre_cluster::{Incarnation, Node};
use maitre_dispatch::Brain;
use maitre_peer::seal::ClusterKey;
use maitre_peer::{Incoming, Outgoing, Transport, mesh};
use maitre_policy::Name;
use maitre_proxy::cluster::{self, Via};
use maitre_proxy::{Router, RouterSettings, Secret, Stopped};
use maitre_sim::http::Host;
use maitre_sim::http::fault::{Fault, Injection};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::events::{believed_and_found, prompt};
use crate::fixture::{
    ANYWHERE, Client, TEST_TIMEOUT, chat, engine_settings, get, metric, post, settings, within,
};
use maitre_testkit::redis::Redis;

const OPERATOR: &str = "the-key-of-the-operator";

fn shared_key() -> ClusterKey {
    ClusterKey::new(b"what all these routers share")
}

fn member(name: &str, via: Via) -> cluster::ClusterSettings {
    // Long enough for a slow machine.
    let (group, join_timeout) = ("tests".to_owned(), TEST_TIMEOUT);
    cluster::ClusterSettings { via, name: name.to_owned(), group, key: Some(shared_key()), join_timeout }
}

fn mesh_of(peers: Vec<String>) -> Via {
    Via::Mesh { listen: ANYWHERE, advertise: None, peers }
}

/// Routers of one cluster, and the engines behind them.
struct Company {
    routers: Vec<Router>,
    engines: Vec<Host>,
    /// None if the routers are a mesh.
    redis: Option<Redis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mesh,
    Redis,
}

impl Company {
    async fn of(count: usize, way: Way) -> Company {
        let mut engines = Vec::new();
        for _ in 0..3 {
            engines.push(Host::bind(ANYWHERE, engine_settings()).await.unwrap());
        }
        let redis = match way {
            Way::Mesh => None,
            Way::Redis => Some(Redis::start(&[]).await),
        };
        let mut company = Company { routers: Vec::new(), engines, redis };
        for _ in 0..count {
            company.join(|_| {}).await;
        }
        company
    }

    /// Adds a router, which is ready when this returns.
    async fn join(&mut self, change: impl FnOnce(&mut RouterSettings)) {
        let mut settings = self.settings();
        change(&mut settings);
        let router = within(Router::start(settings)).await.unwrap();
        within(router.until_all_ready()).await;
        until_ready(&router).await;
        self.routers.push(router);
        let all = self.routers.len();
        for router in &self.routers {
            until(router, |page| metric(page, "maitre_cluster_routers{state=\"live\"}") == all as f64).await;
        }
    }

    fn settings(&self) -> RouterSettings {
        let mut settings = settings();
        settings.brain.strategy = Name::LeastDelay;
        settings.tokenize_timeout = Duration::ZERO;
        settings.admin_key = Some(Secret::of(OPERATOR.as_bytes()));
        let address = |it: &Host| format!("http://{}", it.addr()).parse().unwrap();
        settings.workers = self.engines.iter().map(address).collect();
        let via = match &self.redis {
            Some(redis) => Via::Redis(redis.url()),
            None => mesh_of(self.routers.iter().filter_map(Router::mesh).map(|it| it.to_string()).collect()),
        };
        settings.cluster = Some(member(&format!("router-{}", self.routers.len()), via));
        settings
    }

    async fn client(&self, router: usize) -> Client {
        Client::connect(self.routers[router].listen()).await
    }

    fn inject(&self, fault: Fault) {
        self.engines.iter().for_each(|it| it.handle().inject(Injection::always(fault)));
    }
}

/// Work that other routers have promised, over all workers.
fn elsewhere(brain: &Brain) -> u32 {
    brain.fleet().workers().map(|it| it.promised_by_others.work.requests).sum()
}

fn nothing_is_promised_elsewhere(brain: &Brain) -> bool {
    brain.fleet().workers().all(|it| it.promised_by_others.work == PromisedWork::default())
}

/// Waits until the metrics satisfy the condition.
async fn until(router: &Router, wanted: impl Fn(&str) -> bool) {
    within(async {
        while !wanted(&router.metrics()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

async fn readiness(router: &Router) -> (StatusCode, String) {
    let answer = Client::connect(router.admin()).await.ask(get("/readyz")).await.unwrap();
    (answer.status, answer.text())
}

async fn until_ready(router: &Router) {
    within(async {
        while readiness(router).await.0 != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

async fn see(router: &Router, path: &str) -> Value {
    let request = http::Request::builder().uri(path).header("host", "maitre");
    let request =
        request.header("authorization", format!("Bearer {OPERATOR}")).body(Full::default()).unwrap();
    let answer = Client::connect(router.admin()).await.ask(request).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
    answer.json()
}

/// When one router has placed a prompt, the others know its blocks.
async fn check_prefixes_are_shared(way: Way) {
    let company = Company::of(3, way).await;
    let first = company.client(0).await.post("/v1/chat/completions", prompt(1, 1)).await;
    assert_eq!(believed_and_found(&first).0, 0, "no router had placed it");
    let worker = first.header("x-maitre-worker").to_owned();
    for (number, router) in company.routers.iter().enumerate().skip(1) {
        let knows = |brain: &Brain| {
            let there = brain.fleet().workers().find(|it| it.url == worker);
            // The request that filled the cache has ended, too, or the worker would cost more than an idle one.
            let is_idle = nothing_is_promised_elsewhere(brain);
            is_idle
                && there
                    .is_some_and(|it| brain.cache().numbers(it.id).is_some_and(|it| it.predicted_blocks > 0))
        };
        within(router.until(knows)).await;
        let answer = company.client(number).await.post("/v1/chat/completions", prompt(1, 1)).await;
        assert_eq!(answer.header("x-maitre-worker"), worker);
        let (believed, found) = believed_and_found(&answer);
        assert!(believed > 0 && found > 0, "{believed} believed, {found} found");
    }
}

/// Work that one router has promised counts for the others, and no longer than it lasts.
async fn check_load_is_shared(way: Way) {
    let company = Company::of(3, way).await;
    company.inject(Fault::StallAfterChunks { chunks: 2 });
    let mut clients = JoinSet::new();
    for _ in 0..5 {
        let mut client = company.client(0).await;
        clients.spawn(async move { client.post("/v1/chat/completions", chat(100, true)).await });
    }
    for router in &company.routers[1..] {
        within(router.until(|brain| elsewhere(brain) == 5)).await;
        let page = router.metrics();
        let own = company
            .engines
            .iter()
            .map(|it| format!("maitre_worker_requests{{worker=\"http://{}\"}}", it.addr()));
        assert_eq!(own.map(|it| metric(&page, &it)).sum::<f64>(), 0.0, "ours are ours alone");
        let workers = see(router, "/admin/v1/workers").await;
        let others = workers["workers"].as_array().unwrap().iter().map(|it| &it["other_routers"]);
        let [requests, tokens] = ["requests", "decode_tokens"]
            .map(|field| others.clone().map(|it| it[field].as_u64().unwrap()).sum::<u64>());
        assert!(requests == 5 && tokens > 0, "{workers}");
    }
    assert_eq!(company.routers[0].look(elsewhere), 0);
    clients.shutdown().await;
    for router in &company.routers[1..] {
        within(router.until(nothing_is_promised_elsewhere)).await;
    }
}

/// A router that stops says goodbye: the others do not wait for its silence.
async fn check_nothing_outlives_its_router(way: Way) {
    let mut company = Company::of(2, way).await;
    company.join(|it| it.timeouts.drain = Duration::ZERO).await;
    company.inject(Fault::StallAfterChunks { chunks: 2 });
    let mut client = company.client(2).await;
    let mut clients = JoinSet::new();
    clients.spawn(async move { client.post("/v1/chat/completions", chat(100, true)).await });
    within(company.routers[0].until(|brain| elsewhere(brain) == 1)).await;
    let leaving = company.routers.pop().unwrap();
    assert_eq!(within(leaving.stop()).await, Stopped::Cut { open: 1 });
    for router in &company.routers {
        within(router.until(nothing_is_promised_elsewhere)).await;
        until(router, |page| metric(page, "maitre_cluster_routers{state=\"live\"}") == 2.0).await;
        let page = router.metrics();
        assert_eq!(metric(&page, "maitre_cluster_routers{state=\"lost\"}"), 0.0, "it said goodbye");
        assert_eq!(metric(&page, "maitre_cluster_limit_share{}"), 1.0);
    }
}

/// A router that joins late learns what happened before.
async fn check_who_joins_is_warm(way: Way) {
    let mut company = Company::of(2, way).await;
    let first = company.client(0).await.post("/v1/chat/completions", prompt(1, 1)).await;
    company.join(|_| {}).await;
    let answer = company.client(2).await.post("/v1/chat/completions", prompt(1, 1)).await;
    assert_eq!(answer.header("x-maitre-worker"), first.header("x-maitre-worker"));
    let (believed, found) = believed_and_found(&answer);
    assert!(believed > 0 && found > 0, "{believed} believed, {found} found");
}

#[tokio::test]
async fn in_a_mesh_a_prefix_is_known_to_all() {
    check_prefixes_are_shared(Way::Mesh).await;
}

#[tokio::test]
async fn with_redis_a_prefix_is_known_to_all() {
    check_prefixes_are_shared(Way::Redis).await;
}

#[tokio::test]
async fn in_a_mesh_load_counts_for_all() {
    check_load_is_shared(Way::Mesh).await;
}

#[tokio::test]
async fn with_redis_load_counts_for_all() {
    check_load_is_shared(Way::Redis).await;
}

#[tokio::test]
async fn in_a_mesh_nothing_outlives_its_router() {
    check_nothing_outlives_its_router(Way::Mesh).await;
}

#[tokio::test]
async fn with_redis_nothing_outlives_its_router() {
    check_nothing_outlives_its_router(Way::Redis).await;
}

#[tokio::test]
async fn in_a_mesh_a_router_that_joins_is_synced() {
    check_who_joins_is_warm(Way::Mesh).await;
}

#[tokio::test]
async fn with_redis_a_router_that_joins_is_synced() {
    check_who_joins_is_warm(Way::Redis).await;
}

#[tokio::test]
async fn an_operator_sees_every_router() {
    let company = Company::of(3, Way::Mesh).await;
    let router = &company.routers[1];
    let mut client = company.client(2).await;
    for _ in 0..3 {
        client.post("/v1/chat/completions", chat(4, false)).await;
    }
    until(router, |page| page.contains("maitre_cluster_lag_seconds{router=\"router-2\"}")).await;
    let is_shared = |view: &Value| view["routers"].as_array().unwrap().iter().any(|it| it["served"] == 3);
    within(async {
        while !is_shared(&see(router, "/admin/cluster").await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let view = see(router, "/admin/v1/cluster").await;
    let fields = ["via", "name", "connected", "error", "synced", "limit_share"].map(|it| view[it].clone());
    assert_eq!(Value::from(fields.to_vec()), serde_json::json!(["mesh", "router-1", true, null, true, 1.0]));
    let names: Vec<_> =
        view["routers"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["router-1", "router-0", "router-2"], "itself first");
    for it in view["routers"].as_array().unwrap() {
        let is_self = it["name"] == "router-1";
        assert_eq!((it["self"].as_bool(), it["state"].as_str()), (Some(is_self), Some("live")), "{it}");
        assert_eq!(it["lag_ms"].is_null(), is_self, "{it}");
        assert!(
            it["last_seen_ms"].as_u64().unwrap() < 3_000 && it["incarnation"].as_u64().unwrap() > 0,
            "{it}"
        );
        assert!(it["share"].is_null() || it["share"].as_f64().unwrap() <= 1.0, "{it}");
    }
    for number in ["bytes_out", "bytes_in", "dropped", "repairs"] {
        assert!(view[number].is_u64(), "{number}: {view}");
    }
    assert_eq!(see(router, "/admin/v1/overview").await["cluster"]["name"], "router-1");
    let page = router.metrics();
    assert_eq!(metric(&page, "maitre_cluster_connected{}"), 1.0);
    for direction in ["in", "out"] {
        assert!(metric(&page, &format!("maitre_cluster_frames_total{{direction=\"{direction}\"}}")) > 0.0);
        assert!(metric(&page, &format!("maitre_cluster_bytes_total{{direction=\"{direction}\"}}")) > 0.0);
    }
    assert_eq!(metric(&page, "maitre_cluster_dropped_total{what=\"frames\"}"), 0.0);
}

#[tokio::test]
async fn a_router_alone_shows_no_cluster() {
    let mut settings = settings();
    settings.admin_key = Some(Secret::of(OPERATOR.as_bytes()));
    let router = Router::start(settings).await.unwrap();
    assert_eq!(router.mesh(), None);
    assert_eq!(see(&router, "/admin/v1/cluster").await, Value::Null);
    assert_eq!(see(&router, "/admin/v1/overview").await["cluster"], Value::Null);
    let page = router.metrics();
    let lines: Vec<&str> = page.lines().filter(|it| it.starts_with("maitre_cluster")).collect();
    assert_eq!(lines, [""; 0]);
}

/// A hand-made router that sends what the test wants.
struct Stranger {
    node: Node,
    line: Transport,
    now: Instant,
    _transport: JoinSet<()>,
    address: String,
}

impl Stranger {
    async fn new() -> Stranger {
        let settings = mesh::MeshConfig {
            listen: ANYWHERE,
            advertise: None,
            peers: Vec::new(),
            name: "stranger".to_owned(),
            key: shared_key(),
        };
        let (line, address, transport) = mesh::join(settings).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(transport);
        let (name, incarnation) = ("stranger".to_owned(), Incarnation(1));
        let node = Node::new(maitre_cluster::NodeConfig { name, incarnation, silence_max: TEST_TIMEOUT });
        Stranger { node, line, now: Instant::ZERO, _transport: tasks, address: address.to_string() }
    }

    async fn until_connected(&mut self) {
        while !matches!(within(self.line.incoming.recv()).await, Some(Incoming::Connected)) {}
    }

    async fn say(&self, frame: Vec<u8>) {
        self.line.outgoing.send(Outgoing::Frame(frame.into())).await.unwrap();
    }

    /// A heartbeat, and time goes on.
    async fn beat(&mut self) {
        self.now = self.now + HEARTBEAT;
        let beat = self.node.heartbeat(self.now);
        self.say(beat).await;
    }

    /// Receives and answers until the router has everything.
    async fn answer(&mut self, router: &Router) {
        within(async {
            while readiness(router).await.0 != StatusCode::OK {
                while let Ok(incoming) = self.line.incoming.try_recv() {
                    if let Incoming::Frame(frame) = incoming {
                        self.node.receive(self.now, &frame, &mut Vec::new()).unwrap();
                    }
                }
                let mut frames = Vec::new();
                self.beat().await;
                self.node.flush(self.now, &mut frames);
                for frame in frames {
                    self.say(frame).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

async fn beside(stranger: &Stranger, join_timeout: Duration) -> (Router, Host) {
    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let mut settings = settings();
    settings.workers = vec![format!("http://{}", engine.addr()).parse().unwrap()];
    let via = mesh_of(vec![stranger.address.clone()]);
    settings.cluster = Some(cluster::ClusterSettings { join_timeout, ..member("router", via) });
    (within(Router::start(settings)).await.unwrap(), engine)
}

#[tokio::test]
async fn a_router_is_ready_once_it_has_the_others_snapshots() {
    let mut stranger = Stranger::new().await;
    let (router, _engine) = beside(&stranger, TEST_TIMEOUT).await;
    stranger.until_connected().await;
    stranger.beat().await;
    until(&router, |page| metric(page, "maitre_cluster_routers{state=\"live\"}") == 2.0).await;
    within(router.until_all_ready()).await;
    let joining = (StatusCode::SERVICE_UNAVAILABLE, "joining the other routers\n".to_owned());
    assert_eq!(readiness(&router).await, joining);
    // A request that comes anyway is served.
    let mut client = Client::connect(router.listen()).await;
    let answer = client.ask(post("/v1/chat/completions", chat(4, false))).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(readiness(&router).await, joining);
    stranger.answer(&router).await;
    assert_eq!(readiness(&router).await, (StatusCode::OK, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_router_waits_for_snapshots_no_longer_than_its_limit() {
    let mut stranger = Stranger::new().await;
    let (router, _engine) = beside(&stranger, Duration::from_secs(2)).await;
    stranger.until_connected().await;
    within(async {
        while readiness(&router).await.0 != StatusCode::OK {
            stranger.beat().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn bad_frames_are_rejected_and_counted_by_cause() {
    let mut stranger = Stranger::new().await;
    let (router, _engine) = beside(&stranger, Duration::ZERO).await;
    stranger.until_connected().await;
    stranger.say(b"GET / HTTP/1.1\r\n\r\n".to_vec()).await;
    let beat = stranger.node.heartbeat(stranger.now);
    stranger.say(beat[..beat.len() - 1].to_vec()).await;
    let mut newer = beat.clone();
    newer[2] += 1;
    stranger.say(newer).await;
    let name = "router".to_owned();
    let settings =
        maitre_cluster::NodeConfig { name, incarnation: Incarnation(u64::MAX), silence_max: TEST_TIMEOUT };
    stranger.say(Node::new(settings).heartbeat(stranger.now)).await;
    for cause in ["foreign", "malformed", "version", "namesake"] {
        let line = format!("maitre_cluster_frames_refused_total{{cause=\"{cause}\"}}");
        until(&router, |page| metric(page, &line) == 1.0).await;
    }
    // Valid frames are still applied.
    stranger.beat().await;
    until(&router, |page| metric(page, "maitre_cluster_routers{state=\"live\"}") == 2.0).await;
}

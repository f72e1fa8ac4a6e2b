//! Simulated fleets over loopback, each with one fault: doctor must find that fault and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod tls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use maitre_base::Role;
use maitre_doctor::code::Code;
use maitre_doctor::report::Finding;
use maitre_doctor::{DoctorPlan, judge, look};
use maitre_proxy::{Router, RouterSettings, Secret};
use maitre_sim::events;
use maitre_sim::events::disturbance::Disturbance;
use maitre_sim::http::brand::Brand;
use maitre_sim::http::fault::{Fault, Injection, Scope};
use maitre_sim::http::misconfiguration::{Misconfiguration, Misconfigurations};
use maitre_sim::http::transfer::{BootstrapConfig, Connector, NixlConfig, RoomRole, TransferConfig};
use maitre_sim::http::{self, Host};
use maitre_sim::profile::{H200_8B, Profile};
use maitre_tokens::chat::Chat;
use maitre_tokens::date::Date;
use maitre_tokens::model::Model;
use maitre_tokens::options::ModelOptions;
use tokio::net::TcpListener;

const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const MODEL: &str = "maitre-sim";

/// Engines, and the doctor's settings for them.
struct Ward {
    hosts: Vec<Host>,
    plan: DoctorPlan,
}

fn engine() -> http::HostConfig {
    let events = events::PublisherConfig { replay: Some(ANYWHERE), ..events::PublisherConfig::new(ANYWHERE) };
    // Fast enough that a busy test machine does not make an engine the slow one.
    http::HostConfig { speedup: 4.0, events: Some(events), ..http::HostConfig::new(H200_8B) }
}

fn odd(misconfiguration: Misconfiguration) -> http::HostConfig {
    http::HostConfig { misconfigurations: Misconfigurations(vec![misconfiguration]), ..engine() }
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokens/tests/fixtures/chatml")
}

impl Ward {
    /// Three engines; the second has the fault.
    async fn with(patient: http::HostConfig) -> Ward {
        Ward::of([engine(), patient, engine()]).await
    }

    async fn of(engines: impl IntoIterator<Item = http::HostConfig>) -> Ward {
        let mut hosts = Vec::new();
        for settings in engines {
            hosts.push(Host::bind(ANYWHERE, settings).await.unwrap());
        }
        let workers = hosts.iter().map(|it| url(it.addr()).parse().unwrap()).collect();
        let mut settings = RouterSettings { workers, ..RouterSettings::default() };
        // Any limit of the test machine is enough.
        (settings.limits.connections, settings.threads) = (16, 1);
        Ward { hosts, plan: DoctorPlan::new(settings) }
    }

    fn url(&self, number: usize) -> String {
        self.plan.settings.workers[number].address.to_string()
    }

    async fn findings(&self) -> Vec<Finding> {
        let fleet = tokio::time::timeout(LIMIT, look(&self.plan)).await.expect("within the limit").unwrap();
        judge(&fleet).findings
    }

    async fn check_well(&self) {
        let findings = self.findings().await;
        assert!(findings.is_empty(), "{findings:#?}");
    }

    /// Exactly one finding, for the second worker; its evidence and fix contain these words.
    async fn check(&self, code: Code, what: &str, fix: &str) {
        self.check_at(Some(1), code, what, fix).await;
    }

    async fn check_at(&self, worker: Option<usize>, code: Code, what: &str, fix: &str) {
        let findings = self.findings().await;
        let [finding] = &findings[..] else { panic!("one finding expected: {findings:#?}") };
        assert_eq!(
            (finding.code, finding.worker.clone()),
            (code, worker.map(|it| self.url(it))),
            "{finding:#?}"
        );
        assert!(finding.what.contains(what), "{finding:#?}");
        assert!(finding.fix.contains(fix), "{finding:#?}");
    }
}

/// A free port: bound, then released.
async fn closed() -> SocketAddr {
    TcpListener::bind(ANYWHERE).await.unwrap().local_addr().unwrap()
}

/// The tokens that an engine with our own tokenizer returns for a chat.
fn tokenize(body: &[u8]) -> Option<Vec<u32>> {
    static OURS: LazyLock<Model> = LazyLock::new(|| Model::load(&folder(), ModelOptions::default()).unwrap());
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let messages = body["messages"].to_string();
    // The fixture's template prints no date.
    Some(OURS.chat(&Chat::new(&messages, Date::of_unix_seconds(0))).ok()?.tokens)
}

#[tokio::test]
async fn a_prefill_worker_must_hand_something_over() {
    let nixl = || {
        let config = engine();
        let connector = Connector::Nixl(NixlConfig::default());
        let transfer = TransferConfig::new(connector, ANYWHERE, &config.engine.profile);
        http::HostConfig { transfer: Some(transfer), ..config }
    };
    for (prefill, expected) in [(nixl(), vec![]), (engine(), vec![Code::HandoffMissing])] {
        let mut ward = Ward::of([prefill, nixl()]).await;
        let roles = [Role::Prefill, Role::Decode];
        ward.plan.settings.workers.iter_mut().zip(roles).for_each(|(it, role)| it.options.role = role);
        let codes: Vec<Code> = ward.findings().await.iter().map(|it| it.code).collect();
        assert_eq!(codes, expected);
        ward.plan.requests = false;
        ward.check_well().await;
    }
}

#[tokio::test]
async fn workers_that_answer_in_pairs_only_are_asked_nothing() {
    let sglang = |role: RoomRole| {
        let config = http::HostConfig { brand: Brand::Sglang, ..engine() };
        let connector = Connector::Bootstrap(BootstrapConfig::new(role));
        let transfer = TransferConfig::new(connector, ANYWHERE, &config.engine.profile);
        http::HostConfig { transfer: Some(transfer), ..config }
    };
    let ward = Ward::of([sglang(RoomRole::Prefill), sglang(RoomRole::Decode)]).await;
    let report = judge(&look(&ward.plan).await.unwrap());
    let fails: Vec<&Finding> = report.findings.iter().filter(|it| it.code == Code::RequestsFail).collect();
    assert!(fails.is_empty(), "{fails:#?}");
    let said = &report.checks.iter().find(|it| it.name == "requests").unwrap().said;
    assert_eq!(said, "none sent: SGLang's workers with a role answer in pairs only");
}

#[tokio::test]
async fn a_healthy_fleet_with_events_and_a_tokenizer_has_no_finding() {
    let healthy = || odd(Misconfiguration::Tokenizes(tokenize));
    let mut ward = Ward::of([healthy(), healthy(), healthy()]).await;
    ward.plan.settings.tokenizers.insert(MODEL.to_owned(), folder());
    let fleet = look(&ward.plan).await.unwrap();
    assert_eq!(judge(&fleet).findings, []);
    let said = |name: &str| judge(&fleet).checks.into_iter().find(|it| it.name == name).unwrap().said;
    assert_eq!(said("tokens"), "9 of 9 chats give the same tokens here and there");
    assert_eq!(said("KV events"), "reachable at 3 of 3 workers");
    assert_eq!(said("cached tokens"), "reported by 3 of 3 workers");
    assert_eq!(said("salts"), "separated by 3 of 3 workers");
}

#[tokio::test]
async fn at_most_six_requests_and_none_if_disabled() {
    let mut ward = Ward::of([engine()]).await;
    let prompts = |ward: &Ward| ward.hosts[0].handle().stats().engine.counters.prompt_tokens;
    ward.plan.requests = false;
    ward.check_well().await;
    assert_eq!(prompts(&ward), 0);
    ward.plan.requests = true;
    let recorded = http::HostConfig { bodies_max: 100, ..engine() };
    let ward = Ward::of([recorded]).await;
    ward.check_well().await;
    assert_eq!(ward.hosts[0].handle().bodies().len(), 6);
}

#[tokio::test]
async fn a_worker_that_refuses() {
    let mut ward = Ward::with(engine()).await;
    ward.plan.settings.workers[1] = url(closed().await).parse().unwrap();
    ward.check(Code::Unreachable, "refused", "start the engine").await;
}

#[tokio::test]
async fn a_worker_that_hangs() {
    let mut ward = Ward::with(engine()).await;
    let hang = Injection { scope: Scope::All, ..Injection::always(Fault::Stall) };
    ward.hosts[1].handle().inject(hang);
    ward.plan.timeout = Duration::from_secs(2);
    ward.check(Code::Unreachable, "no answer within 2s", "hangs").await;
}

#[tokio::test]
async fn a_name_that_does_not_resolve() {
    let mut ward = Ward::with(engine()).await;
    // A label may have 63 letters: the resolver sends no query for a longer one.
    ward.plan.settings.workers[1] = format!("http://{}:8000", "x".repeat(64)).parse().unwrap();
    ward.check(Code::Unreachable, "does not resolve", "fix the host").await;
}

#[tokio::test]
async fn a_server_that_is_no_engine() {
    let ward = Ward::with(engine()).await;
    let lost = Injection { scope: Scope::All, ..Injection::always(Fault::Status { status: 404 }) };
    ward.hosts[1].handle().inject(lost);
    ward.check(Code::NotAnEngine, "/health answers 404", "without /v1").await;
}

#[tokio::test]
async fn another_model() {
    let ward = Ward::with(http::HostConfig { model: "other".to_owned(), ..engine() }).await;
    ward.check(Code::ModelsDiffer, "serves other, while 2 of 3 serve maitre-sim", "--served-model-name")
        .await;
}

#[tokio::test]
async fn no_model_at_all() {
    let ward = Ward::with(odd(Misconfiguration::NoModels)).await;
    ward.check(Code::NoModels, "lists nothing", "loaded").await;
}

#[tokio::test]
async fn a_missing_key() {
    let mut ward = Ward::with(odd(Misconfiguration::RequiresKey("sesame"))).await;
    ward.check(Code::KeyWanted, "401", "MAITRE_DOCTOR_KEY").await;
    ward.plan.key = Some("Bearer sesame".parse().unwrap());
    ward.check_well().await;
}

#[tokio::test]
async fn another_block_size() {
    let mut settings = engine();
    settings.engine.profile = Profile { block_tokens: 32, ..H200_8B };
    Ward::with(settings).await.check(Code::BlockSizesDiffer, "32 tokens", "--block-size").await;
}

#[tokio::test]
async fn another_context() {
    let mut settings = engine();
    settings.engine.profile = Profile { context_tokens_max: 4_096, ..H200_8B };
    Ward::with(settings).await.check(Code::ContextsDiffer, "4096", "--max-model-len").await;
}

#[tokio::test]
async fn another_version() {
    let ward = Ward::with(odd(Misconfiguration::Version("0.31.0"))).await;
    ward.check(Code::VersionsDiffer, "0.31.0", "update it to maitre-sim-").await;
}

#[tokio::test]
async fn no_metrics() {
    let ward = Ward::with(odd(Misconfiguration::NoMetrics)).await;
    ward.check(Code::MetricsMissing, "/metrics answers 404", "start it").await;
}

#[tokio::test]
async fn no_prefix_caching() {
    let ward = Ward::with(odd(Misconfiguration::NoPrefixCaching)).await;
    ward.check(Code::PrefixCachingOff, "reports that", "--enable-prefix-caching").await;
}

#[tokio::test]
async fn no_prefix_caching_where_nothing_says_so() {
    let mut ward = Ward::with(http::HostConfig {
        misconfigurations: Misconfigurations(vec![
            Misconfiguration::NoPrefixCaching,
            Misconfiguration::NoMetrics,
        ]),
        ..engine()
    })
    .await;
    ward.plan.settings.workers.truncate(2);
    let codes: Vec<Code> = ward.findings().await.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::PrefixCachingOff, Code::MetricsMissing]);
}

#[tokio::test]
async fn no_cached_tokens_in_usage() {
    let ward = Ward::with(odd(Misconfiguration::NoCachedTokens)).await;
    ward.check(Code::CachedTokensHidden, "cached_tokens", "--enable-prompt-tokens-details").await;
}

#[tokio::test]
async fn salts_that_are_refused_or_ignored() {
    let ward = Ward::with(odd(Misconfiguration::RefusesSalts)).await;
    ward.check(Code::SaltRefused, "answers 400", "cache_salt").await;
    let ward = Ward::with(odd(Misconfiguration::IgnoresSalts)).await;
    ward.check(Code::SaltIgnored, "cached tokens of a prompt under a new cache_salt", "tenants").await;
}

#[tokio::test]
async fn another_tokenizer() {
    let ours = || odd(Misconfiguration::Tokenizes(tokenize));
    // The second engine tokenizes differently.
    let mut ward = Ward::of([ours(), engine(), ours()]).await;
    ward.plan.settings.tokenizers.insert(MODEL.to_owned(), folder());
    ward.check(Code::TokensDiffer, "differ from token 0", "tokenizers.\"maitre-sim\"").await;
}

#[tokio::test]
async fn a_tokenizer_that_is_not_there() {
    let mut ward = Ward::with(engine()).await;
    ward.plan.settings.tokenizers.insert(MODEL.to_owned(), folder().join("nowhere"));
    ward.check_at(None, Code::TokenizerUnusable, MODEL, "tokenizer.json").await;
}

#[tokio::test]
async fn no_events() {
    let ward = Ward::with(http::HostConfig { events: None, ..engine() }).await;
    ward.check(Code::EventsOff, "publishes none", "--kv-events-config").await;
}

#[tokio::test]
async fn events_that_are_not_wanted() {
    let mut ward = Ward::with(http::HostConfig { events: None, ..engine() }).await;
    let quiet = format!("{}?events=off", ward.url(1));
    ward.plan.settings.workers[1] = quiet.parse().unwrap();
    ward.check_well().await;
}

#[tokio::test]
async fn events_at_another_port() {
    let mut ward = Ward::with(engine()).await;
    let (port, replay) = (closed().await.port(), ward.hosts[1].events().unwrap().replay.unwrap().port());
    let elsewhere = format!("{}?events={port}&replay={replay}", ward.url(1));
    ward.plan.settings.workers[1] = elsewhere.parse().unwrap();
    ward.check(Code::EventsUnreachable, "no publisher at the configured address", "?events=").await;
}

#[tokio::test]
async fn events_that_the_engine_dials() {
    let ward = Ward::with(odd(Misconfiguration::EventsReportedAt("tcp://127.0.0.1:9"))).await;
    ward.check(Code::EventsUnreachable, "connects instead of listening", "tcp://*:9").await;
}

#[tokio::test]
async fn events_on_loopback_only() {
    let mut ward = Ward::with(engine()).await;
    // Another address of this machine, where the engine answers but its publisher, on 127.0.0.1, does not.
    let other = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 0);
    let host = Host::bind(other, engine()).await.unwrap();
    ward.plan.settings.workers[1] = url(host.addr()).parse().unwrap();
    ward.check(Code::EventsUnreachable, "loopback only", "tcp://*:").await;
}

#[tokio::test]
async fn events_under_another_topic() {
    let mut settings = engine();
    settings.events.as_mut().unwrap().topic = "kv@b".to_owned();
    let mut ward = Ward::with(settings).await;
    ward.plan.settings.events.topic = "kv@a".to_owned();
    let addrs = ward.hosts[1].events().unwrap();
    let (events, replay) = (addrs.stream.port(), addrs.replay.unwrap().port());
    ward.plan.settings.workers[1] =
        format!("{}?events={events}&replay={replay}", ward.url(1)).parse().unwrap();
    ward.check(Code::EventsTopic, "\"kv@b\"", "events.topic").await;
}

#[tokio::test]
async fn events_that_do_not_come_or_cannot_be_read() {
    let ward = Ward::with(engine()).await;
    ward.hosts[1].handle().disturb(Disturbance::Drop { batches: 1_000 });
    ward.check(Code::EventsSilent, "published nothing", "--kv-events-config").await;
    let ward = Ward::with(engine()).await;
    ward.hosts[1].handle().disturb(Disturbance::Truncate { batches: 1_000 });
    ward.check(Code::EventsUnreadable, "cannot be read", "newer").await;
}

#[tokio::test]
async fn no_replay_or_one_that_does_not_answer() {
    let mut settings = engine();
    settings.events.as_mut().unwrap().replay = None;
    let ward = Ward::with(settings).await;
    ward.check(Code::EventsReplay, "offers no replay", "replay_endpoint").await;
    let mut ward = Ward::with(engine()).await;
    ward.plan.timeout = Duration::from_secs(2);
    ward.hosts[1].handle().disturb(Disturbance::MuteReplay);
    ward.check(Code::EventsReplay, "does not answer", "open").await;
}

#[tokio::test]
async fn a_slow_worker() {
    let ward = Ward::with(engine()).await;
    ward.hosts[1].handle().inject(Injection::always(Fault::Slow { factor: 100.0 }));
    ward.check(Code::Slow, "to the first token", "GPU").await;
}

#[tokio::test]
async fn another_time() {
    let ward = Ward::with(odd(Misconfiguration::Date("Sun, 06 Nov 1994 08:49:37 GMT"))).await;
    ward.check(Code::ClockOff, "behind", "NTP").await;
}

#[tokio::test]
async fn requests_that_fail() {
    let ward = Ward::with(engine()).await;
    ward.hosts[1].handle().inject(Injection::always(Fault::Status { status: 500 }));
    ward.check(Code::RequestsFail, "status 500", "log").await;
}

#[tokio::test]
async fn too_few_descriptors_and_an_open_admin() {
    let mut ward = Ward::of([engine()]).await;
    // More than Linux allows any process.
    ward.plan.settings.limits.connections = 1 << 40;
    ward.plan.settings.admin = "0.0.0.0:8081".parse().unwrap();
    let codes: Vec<Code> = ward.findings().await.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::Descriptors, Code::AdminOpen]);
}

#[tokio::test]
async fn an_admin_listener_open_to_others_needs_tls() {
    let mut ward = Ward::of([engine()]).await;
    ward.plan.settings.admin = "0.0.0.0:8081".parse().unwrap();
    ward.check_at(None, Code::AdminOpen, "without a key", "firewall").await;
    ward.plan.settings.admin_key = Some(Secret::of(b"0123456789abcdef"));
    ward.check_at(None, Code::AdminOpen, "key crosses the network in clear text", "admin_tls.cert").await;
    ward.plan.settings.admin_tls.cert = Some("admin.crt".into());
    ward.check_well().await;
    ward.plan.settings.admin_tls.cert = None;
    ward.plan.settings.admin = ANYWHERE;
    ward.check_well().await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_running_router_reports_its_own_file_limit() {
    let mut ward = Ward::of([engine()]).await;
    let router = router(&ward).await;
    ward.plan.admin = Some(url(router.admin()).parse().unwrap());
    let fleet = look(&ward.plan).await.unwrap();
    let machine = judge(&fleet).checks.into_iter().find(|it| it.name == "this machine").unwrap();
    assert!(machine.said.contains("the router may open "), "{}", machine.said);
    ward.plan.settings.limits.connections = 1 << 40;
    ward.check_at(None, Code::Descriptors, "the router may open", "ulimit -n").await;
}

/// A router in front of these engines that has found them all.
async fn router(ward: &Ward) -> Router {
    let mut settings = ward.plan.settings.clone();
    (settings.listen, settings.admin) = (ANYWHERE, ANYWHERE);
    let router = Router::start(settings).await.unwrap();
    until_well(&router, ward).await;
    router
}

/// Waits until the router has found all engines and trusts their events.
async fn until_well(router: &Router, ward: &Ward) {
    let until = async {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        let wanted = ward.plan.settings.workers.len();
        let count = |page: &str, name: &str, value: &str| {
            page.lines().filter(|it| it.starts_with(name) && it.contains(value) && it.ends_with(" 1")).count()
        };
        loop {
            let page = router.metrics();
            let ready = count(&page, "maitre_worker_state{", "state=\"ready\"");
            if ready == wanted && count(&page, "maitre_worker_trust{", "trust=\"fresh\"") == wanted {
                break;
            }
            looks.tick().await;
        }
    };
    tokio::time::timeout(LIMIT, until).await.expect("within the limit");
}

#[tokio::test]
async fn a_router_is_checked_with_its_own_workers() {
    let mut ward = Ward::of([engine(), engine()]).await;
    let router = router(&ward).await;
    ward.plan.admin = Some(url(router.admin()).parse().unwrap());
    ward.plan.router = Some(url(router.listen()).parse().unwrap());
    ward.check_well().await;
    // The router knows its workers, so they need not be named.
    let workers = std::mem::take(&mut ward.plan.settings.workers);
    let fleet = look(&ward.plan).await.unwrap();
    assert_eq!(judge(&fleet).findings, []);
    let mut seen: Vec<String> = fleet.workers.iter().map(|it| it.url.clone()).collect();
    let mut known: Vec<String> = workers.iter().map(|it| it.address.to_string()).collect();
    seen.sort();
    known.sort();
    assert_eq!(seen, known);
    // A worker that the router does not have.
    let newcomer = Host::bind(ANYWHERE, engine()).await.unwrap();
    ward.plan.settings.workers = vec![workers[0].clone(), url(newcomer.addr()).parse().unwrap()];
    ward.check(Code::WorkerUnknown, "no such worker", "add it to workers").await;
}

#[tokio::test]
async fn a_router_among_the_workers() {
    let mut ward = Ward::of([engine()]).await;
    let router = router(&ward).await;
    ward.plan.settings.workers.push(url(router.listen()).parse().unwrap());
    ward.check(Code::NotAnEngine, "this is a Maitre router", "--admin-url").await;
}

/// The engine published before the router came, and replays only its last batch.
#[tokio::test]
async fn a_router_that_came_late() {
    let mut late = engine();
    late.events.as_mut().unwrap().buffer_steps = 1;
    let mut ward = Ward::of([late]).await;
    ward.check_well().await;
    let mut settings = ward.plan.settings.clone();
    (settings.listen, settings.admin) = (ANYWHERE, ANYWHERE);
    let router = Router::start(settings).await.unwrap();
    let is_cold = async {
        let mut looks = tokio::time::interval(Duration::from_millis(20));
        while !router.metrics().lines().any(|it| it.ends_with("trust=\"cold\"} 1")) {
            looks.tick().await;
        }
    };
    tokio::time::timeout(LIMIT, is_cold).await.expect("within the limit");
    ward.plan.admin = Some(url(router.admin()).parse().unwrap());
    ward.check_at(Some(0), Code::EventsCold, "its replay does not reach back; it knows", "buffer_steps")
        .await;
}

#[tokio::test]
async fn a_router_that_is_not_there() {
    let mut ward = Ward::with(engine()).await;
    ward.plan.admin = Some(url(closed().await).parse().unwrap());
    ward.check_at(None, Code::RouterUnreachable, "refused", "--admin-url").await;
    // An engine is not a router.
    ward.plan.admin = Some(url(ward.hosts[0].addr()).parse().unwrap());
    ward.check_at(None, Code::RouterUnreachable, "without metrics of Maitre;", "--admin-url").await;
    // It lists models too.
    (ward.plan.admin, ward.plan.router) = (None, ward.plan.admin.take());
    ward.check_at(None, Code::RouterUnreachable, "not a Maitre router", "fix --router").await;
}

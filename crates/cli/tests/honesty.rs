//! Checks the simulator: a trace over sockets in real time and the same trace in virtual time must agree.
//!
//! Virtual time is useful only if nothing happens in it that would not happen in real time. So `maitre bench`
//! sends requests to simulated engines over HTTP, alone and behind a router that receives their KV events,
//! and the lab plays the same requests against the same profiles. Hit ratios and first-token times must
//! match. To show that the comparison can fail, labs with one deliberate error must differ by more than the
//! tolerance.
//!
//! The tolerance covers what real time adds: a timer's resolution at every hand-over, and the overhead of a
//! debug build. So the engines are slow ones, and 10 % of a first token are tens of milliseconds.
//!
//! The router uses a strategy that depends on caches, not on times. Under `least-delay` a few milliseconds,
//! or the moments at which the router scrapes and ticks, change some placements, and one placement changes
//! those after it: with it, this very trace was 17 % off in first-token times and 0.019 in hits, and others
//! up to 48 %. So this shows that both modes work alike, not that a replay of `least-delay` predicts a single
//! run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "how near the two worlds are is worth a look when they agree, too")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use maitre_base::{Instant, Rng};
use maitre_cli::bench::play::play;
use maitre_cli::bench::played::Played;
use maitre_cli::bench::{Api, Plan};
use maitre_policy::Name;
use maitre_proxy::Router;
use maitre_sim::events;
use maitre_sim::http::{self, Handle, Host};
use maitre_sim::lab::{self, AnswerLimits, Knowledge, PreparedTrace};
use maitre_sim::profile::{A10G_8B, Profile, StepModel};
use maitre_sim::report::{ReportRow, Targets};
use maitre_sim::trace::{Piece, Request, Trace};
use tokio::sync::oneshot;

/// The allowed differences.
const HIT_RATIO: f64 = 0.01;
const FIRST_TOKEN: f64 = 0.1;

/// On a machine so busy that requests are sent late, the generator is measured. Such a run does not count,
/// and the trace is played again; the last run always counts.
const PLAYS_MAX: u32 = 3;
const LATE_REQUESTS_MAX: u64 = 1;

const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const MODEL: &str = "maitre-sim";
const BLOCK_TOKENS: u32 = 16;
/// A block size that is deliberately wrong.
const COARSE_TOKENS: u32 = 96;

/// An A10G with a small cache and few sequences: requests queue, and cached blocks are soon evicted.
const SMALL: Profile = Profile { kv_blocks: 141, running_max: 4, ..A10G_8B };

/// Prompts in groups with a shared beginning.
struct Traffic {
    requests: u64,
    per_second: f64,
    groups: u64,
    shared_tokens: u32,
    own_tokens: u32,
    seed: u64,
}

/// Before the load each group is sent once, this far apart, so that the router learns the engines' speed.
const WARM_UP_SECONDS: f64 = 0.6;

impl Traffic {
    fn trace(&self) -> Trace {
        let mut rng = Rng::new(self.seed);
        let mut seconds = 0.0;
        let mut request = |number: u64| {
            let gap = (0.3 + 1.4 * rng.unit()) / self.per_second;
            let any = rng.below(self.groups as usize) as u64;
            let (gap, group) = if number < self.groups { (WARM_UP_SECONDS, number) } else { (gap, any) };
            seconds += gap;
            let shared = Piece { text: group, tokens: self.shared_tokens };
            let own = Piece { text: 1_000 + number, tokens: self.own_tokens };
            Request {
                at: Instant::from_nanos((seconds * 1e9) as u64),
                prompt: [shared, own].into(),
                answer_tokens: 8 + rng.below(9) as u32,
                answer: 2_000 + number,
                ..Request::default()
            }
        };
        Trace { requests: (0..self.requests).map(&mut request).collect() }
    }
}

/// Conversations whose prompts contain the earlier answers: real ones over HTTP, the trace's in the lab.
fn conversations(count: u64, turns: u64, turn_ms: u64) -> Trace {
    let mut requests = Vec::new();
    for turn in 0..turns {
        for session in 0..count {
            let name = |what: u64, turn: u64| 1_000 * (session + 1) + 10 * turn + what;
            let mut prompt = vec![Piece { text: 1, tokens: 200 }];
            for before in 0..turn {
                prompt.push(Piece { text: name(2, before), tokens: 256 });
                prompt.push(Piece { text: name(3, before), tokens: 12 });
            }
            prompt.push(Piece { text: name(2, turn), tokens: 256 });
            requests.push(Request {
                at: Instant::from_millis(turn_ms * turn + turn_ms * session / count),
                prompt: prompt.into(),
                answer_tokens: 12,
                answer: name(3, turn),
                session: Some(session),
                ..Request::default()
            });
        }
    }
    Trace { requests }
}

/// Engines on a thread of their own.
struct Engines {
    hosts: Vec<(SocketAddr, Handle)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Engines {
    async fn start(fleet: &[Profile]) -> Engines {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let settings = |profile: &Profile| {
            let events =
                events::PublisherConfig { replay: Some(ANYWHERE), ..events::PublisherConfig::new(ANYWHERE) };
            http::HostConfig { events: Some(events), ..http::HostConfig::new(*profile) }
        };
        let settings: Vec<http::HostConfig> = fleet.iter().map(settings).collect();
        let body = async move {
            let mut hosts = Vec::new();
            for settings in settings {
                hosts.push(Host::bind(ANYWHERE, settings).await.unwrap());
            }
            drop(tell.send(hosts.iter().map(|it| (it.addr(), it.handle())).collect()));
            let _ = stopped.await;
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = std::thread::Builder::new().spawn(move || runtime.block_on(body)).unwrap();
        Engines { hosts: told.await.unwrap(), stop: Some(stop), thread: Some(thread) }
    }

    fn evictions(&self) -> u64 {
        self.hosts.iter().map(|it| it.1.stats().engine.counters.evictions).sum()
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A router in front of them that has received reports from all.
async fn router(engines: &Engines, strategy: Name) -> Router {
    let workers = engines.hosts.iter().map(|it| format!("http://{}", it.0).parse().unwrap()).collect();
    let mut settings = maitre_proxy::RouterSettings {
        workers,
        threads: 1,
        listen: ANYWHERE,
        admin: ANYWHERE,
        // However busy the machine, prompts are tokenized exactly as the engine does.
        tokenize_timeout: Duration::from_secs(2),
        ..maitre_proxy::RouterSettings::default()
    };
    settings.brain = brain(strategy);
    let router = Router::start(settings).await.unwrap();
    router.until_all_ready().await;
    let known = |brain: &maitre_dispatch::Brain| {
        brain
            .fleet()
            .workers()
            .all(|it| it.capacity().is_some() && brain.cache().trust(it.id).name() == "fresh")
    };
    router.until(known).await;
    router
}

/// No request waits in the queue: when it drains depends on milliseconds, as prices do.
fn brain(strategy: Name) -> maitre_dispatch::BrainSettings {
    let queue = maitre_queue::QueueSettings { enabled: false, ..maitre_queue::QueueSettings::default() };
    maitre_dispatch::BrainSettings { strategy, queue, seed: 1, ..maitre_dispatch::BrainSettings::default() }
}

async fn ask(address: SocketAddr, trace: &Trace) -> Played {
    let address = format!("http://{address}").parse().unwrap();
    // As one text, so that engines receive exactly the trace's tokens.
    let plan = Plan { api: Api::Completions, ..Plan::new(address, MODEL) };
    play(&plan, trace).await
}

/// Which endpoint is used, and with which traffic.
struct Stage {
    fleet: Vec<Profile>,
    /// None: no router, the bench sends to the single engine.
    strategy: Option<Name>,
    trace: Trace,
}

impl Stage {
    async fn play_really(&self) -> (Played, u64) {
        let engines = Engines::start(&self.fleet).await;
        let played = match self.strategy {
            None => ask(engines.hosts[0].0, &self.trace).await,
            Some(strategy) => {
                let router = router(&engines, strategy).await;
                let played = ask(router.listen(), &self.trace).await;
                router.stop().await;
                played
            }
        };
        (played, engines.evictions())
    }

    fn settings(&self) -> lab::LabConfig {
        let settings =
            lab::LabConfig::new(self.fleet.clone(), brain(self.strategy.unwrap_or(Name::RoundRobin)));
        lab::LabConfig { limits: AnswerLimits::Stated, ..settings }
    }

    fn play_virtually(&self, settings: &lab::LabConfig, block_tokens: u32) -> ReportRow {
        let prepared = PreparedTrace::new(&self.trace, block_tokens);
        lab::play(settings, &prepared, &mut ()).row("virtual", &Targets::default())
    }

    /// The lab with one error at a time.
    fn mistakes(&self) -> Vec<(&'static str, ReportRow)> {
        let honest = self.settings();
        let change = |change: fn(&Profile) -> Profile| lab::LabConfig {
            fleet: self.fleet.iter().map(change).collect(),
            ..honest.clone()
        };
        let slow = change(|it| {
            let prefill_token_ms = 1.2 * it.step.prefill_token_ms;
            Profile { step: StepModel { prefill_token_ms, ..it.step }, ..*it }
        });
        // The same number of tokens in total.
        let coarse = change(|it| it.with_cache(it.kv_tokens(), COARSE_TOKENS));
        let mut rows = vec![
            ("a prefill 20 % slower", self.play_virtually(&slow, BLOCK_TOKENS)),
            ("coarse blocks", self.play_virtually(&coarse, COARSE_TOKENS)),
        ];
        if self.strategy.is_some_and(|it| it.needs().cache) {
            let blind = lab::LabConfig { knowledge: Knowledge::None, ..honest };
            rows.push(("a router that knows no caches", self.play_virtually(&blind, BLOCK_TOKENS)));
        }
        rows
    }

    async fn check(&self) {
        let mut plays = 1;
        let (mut played, mut evictions) = self.play_really().await;
        while plays < PLAYS_MAX && played.late.requests > LATE_REQUESTS_MAX {
            (played, evictions) = self.play_really().await;
            plays += 1;
        }
        assert_eq!(played.seen.len(), self.trace.requests.len(), "{:?}", played.troubles);
        assert_eq!(played.missing_answers, 0, "an answer came later than the prompt that continues it");
        let real = &played.rows("real", &Targets::default())[0];
        let honest = self.play_virtually(&self.settings(), BLOCK_TOKENS);
        println!("{} ({plays} plays, {evictions} evictions, {:?})", line(real, &honest), played.late);
        assert!(evictions > 0 && honest.evictions > Some(0), "a cache that is never full proves little");
        assert!(agree(real, &honest), "{}; {:?}", line(real, &honest), played.late);
        // Compared with the lab and not with the run, so that a busy machine changes nothing here.
        for (what, wrong) in self.mistakes() {
            println!("  {what}: {}", line(&honest, &wrong));
            assert!(!agree(&honest, &wrong), "{what} passes for the truth: {}", line(&honest, &wrong));
        }
    }
}

/// The first is measured, the second predicted.
fn agree(one: &ReportRow, other: &ReportRow) -> bool {
    let late = one.ttft_mean_s / other.ttft_mean_s - 1.0;
    (one.hit_ratio - other.hit_ratio).abs() <= HIT_RATIO && late.abs() <= FIRST_TOKEN
}

fn line(one: &ReportRow, other: &ReportRow) -> String {
    format!(
        "hit ratio {:.4} and {:.4}, first token {:.4} s and {:.4} s ({:+.1} %)",
        one.hit_ratio,
        other.hit_ratio,
        one.ttft_mean_s,
        other.ttft_mean_s,
        100.0 * (one.ttft_mean_s / other.ttft_mean_s - 1.0)
    )
}

#[tokio::test]
async fn one_engine_has_the_same_speed_and_hits_in_virtual_time() {
    let traffic =
        Traffic { requests: 60, per_second: 7.5, groups: 6, shared_tokens: 320, own_tokens: 64, seed: 4 };
    Stage { fleet: vec![SMALL], strategy: None, trace: traffic.trace() }.check().await;
}

#[tokio::test]
async fn conversations_hit_their_answers_in_both_modes() {
    let engine = Profile { kv_blocks: 401, running_max: 8, ..SMALL };
    Stage { fleet: vec![engine], strategy: None, trace: conversations(7, 4, 2_600) }.check().await;
}

#[tokio::test]
async fn round_robin_is_the_same_in_virtual_time() {
    let traffic =
        Traffic { requests: 54, per_second: 7.5, groups: 6, shared_tokens: 640, own_tokens: 64, seed: 12 };
    let engine = Profile { kv_blocks: 181, ..SMALL }.slower(1.5);
    Stage { fleet: vec![engine; 3], strategy: Some(Name::RoundRobin), trace: traffic.trace() }.check().await;
}

#[tokio::test]
async fn routing_by_reported_caches_is_the_same_in_virtual_time() {
    let traffic =
        Traffic { requests: 48, per_second: 7.0, groups: 6, shared_tokens: 1_280, own_tokens: 192, seed: 10 };
    let engine = Profile { kv_blocks: 301, ..SMALL };
    Stage { fleet: vec![engine; 3], strategy: Some(Name::CacheAware), trace: traffic.trace() }.check().await;
}

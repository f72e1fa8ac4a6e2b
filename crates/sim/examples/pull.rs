//! Fleets that pull KV from each other, or share a store, and those that do neither: the tables of `docs/kv-pull.md`.
//!
//! `cargo run --release -p maitre-sim --example pull -- 4` plays four seeds and prints one line per traffic, link and
//! fleet. Further arguments: a part of the traffic's name or a workload, a part of the link's name, and how many runs
//! at once.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for a table in docs")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use maitre_base::Instant;
use maitre_dispatch::BrainSettings;
use maitre_sim::generate::Plan;
use maitre_sim::lab::{
    ChunkKnowledge, LabConfig, LinkChange, PreparedTrace, PullingWorkers, Script, StoreConfig, block_tokens,
    play,
};
use maitre_sim::profile::{H100X2_32B, Profile};
use maitre_sim::report::{Targets, mean, quantile};
use maitre_sim::trace::Trace;

const TRAFFIC: [(&str, &str); 11] = [
    ("groups 12/s", "groups:groups=60,prompts=2000,shared=24000,own=400,out=200,zipf=1.2,qps=12,seconds=300"),
    (
        "hot groups 16/s",
        "groups:groups=60,prompts=2000,shared=24000,own=400,out=200,zipf=1.5,qps=16,seconds=300",
    ),
    ("hot 15/s", "hot:shared=8000,own=200,out=200,qps=15,seconds=300"),
    ("hot agents 2/s", "agents:rate=2,steps=6,kinds=12,system=24000,seconds=300"),
    ("hot agents 3/s", "agents:rate=3,steps=6,kinds=12,system=24000,seconds=300"),
    ("many agents 2/s", "agents:rate=2,steps=6,kinds=60,system=24000,seconds=300"),
    ("many agents 3/s", "agents:rate=3,steps=6,kinds=60,system=24000,seconds=300"),
    (
        "short groups 20/s",
        "groups:groups=40,prompts=2000,shared=500,own=100,out=200,zipf=1,qps=20,seconds=300",
    ),
    ("RAG 2/s", "rag:qps=2,per_prompt=4,shuffled=1,seconds=90"),
    ("RAG 3/s", "rag:qps=3,per_prompt=4,shuffled=1,seconds=90"),
    ("joining", "groups:groups=20,prompts=200,shared=24000,own=400,out=200,zipf=1,qps=8,seconds=90"),
];

/// Gigabytes a second, to other workers and to the store.
const LINKS: [(&str, f64); 2] = [("fast", 17.0), ("slow", 1.0)];

const FLEETS: [&str; 4] = ["alone", "pull", "store", "pull, store"];

/// Engines that reuse KV at any position, with a router that knows it and one that does not.
const CHUNK_FLEETS: [&str; 3] = ["alone", "unknown chunks", "chunks"];

/// A part of each chunk that is computed again.
const RECOMPUTED: &str = "0.15";

/// Four workers, and four that join; measured from then on.
const JOINING_FLEETS: [&str; 2] = ["alone", "pull"];
const JOIN_AT: Duration = Duration::from_secs(45);
const JOIN_MEASURED: Duration = Duration::from_secs(15);

fn fleets(traffic: &str) -> &'static [&'static str] {
    match traffic {
        "joining" => &JOINING_FLEETS,
        it if it.starts_with("RAG") => &CHUNK_FLEETS,
        _ => &FLEETS,
    }
}

const WORKERS: usize = 8;
const PROFILE: Profile = H100X2_32B;

/// Mean and p90 of TTFT and the mean of E2E, in seconds; the hit ratio; requests that pulled, and thousands of tokens
/// that were pulled and loaded; lost requests.
type Measured = [f64; 8];

fn config(link: usize, (traffic, fleet): (&str, &str), seed: u64) -> LabConfig {
    let brain = BrainSettings { seed, ..BrainSettings::default() };
    let link = LinkChange { floor: None, bytes_per_second: Some(LINKS[link].1 * 1e9) };
    let is_joining = traffic == "joining";
    let workers = if is_joining { WORKERS / 2 } else { WORKERS };
    let joining = format!("{}s join {}xh100x2-32b", JOIN_AT.as_secs(), WORKERS / 2);
    let chunks = ChunkKnowledge {
        engines: fleet.contains("chunks").then(|| RECOMPUTED.parse().unwrap()),
        is_hidden: fleet.contains("unknown"),
    };
    let script = if is_joining { joining.parse().unwrap() } else { Script::default() };
    let plain = LabConfig { link, chunks, script, ..LabConfig::new(vec![PROFILE; workers], brain) };
    let store = StoreConfig { tokens: 4 * WORKERS as u64 * PROFILE.kv_tokens(), link };
    LabConfig {
        pulls: if fleet.contains("pull") { PullingWorkers::All } else { PullingWorkers::None },
        store: fleet.contains("store").then_some(store),
        ..plain
    }
}

fn measure(config: &LabConfig, prepared: &PreparedTrace<'_>) -> Measured {
    let mut outcome = play(config, prepared, &mut ());
    if !config.script.is_empty() {
        let from = Instant::ZERO + JOIN_AT;
        outcome.answers.retain(|it| it.metrics.at >= from && it.metrics.at.since(from) < JOIN_MEASURED);
    }
    let sorted = |of: &dyn Fn(&maitre_sim::report::AnswerMetrics) -> f64| {
        let mut all: Vec<f64> = outcome.answers.iter().map(|it| of(&it.metrics)).collect();
        all.sort_unstable_by(f64::total_cmp);
        all
    };
    let first = sorted(&|it| it.first_token.as_secs_f64());
    let whole = sorted(&|it| it.total.as_secs_f64());
    let arrived = || outcome.answers.iter().map(|it| it.arrived);
    let pulled: f64 = arrived().map(|it| f64::from(it.pulled_tokens)).sum();
    let loaded: f64 = arrived().map(|it| f64::from(it.loaded_tokens)).sum();
    let pulls = arrived().filter(|it| it.pulled_tokens > 0).count();
    let lost = (outcome.refused + outcome.failed) as f64;
    let hit = outcome.row("", &Targets::default()).hit_ratio;
    [mean(&first), quantile(&first, 0.9), mean(&whole), hit, pulls as f64, pulled / 1e3, loaded / 1e3, lost]
}

/// The means over all seeds of one traffic, link and fleet.
fn cell(traces: &[Trace], link: usize, fleet: (&str, &str)) -> Measured {
    let mut sums = [0.0; 8];
    for (seed, trace) in (1..).zip(traces) {
        let prepared = PreparedTrace::new(trace, block_tokens(trace));
        let measured = measure(&config(link, fleet, seed), &prepared);
        sums.iter_mut().zip(measured).for_each(|(sum, it)| *sum += it);
    }
    sums.map(|it| it / traces.len() as f64)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seeds: u64 = args.next().map_or(1, |it| it.parse().unwrap());
    let [traffic, link] = [args.next(), args.next()].map(Option::unwrap_or_default);
    let jobs: usize = args.next().map_or(2, |it| it.parse().unwrap());
    let own = [("own", traffic.as_str())];
    let is_workload = traffic.contains(':');
    let traces: Vec<(&str, Vec<Trace>)> = (if is_workload { &own[..] } else { &TRAFFIC })
        .iter()
        .filter(|it| is_workload || it.0.contains(&traffic))
        .map(|&(name, line)| (name, line.parse::<Plan>().unwrap()))
        .map(|(name, plan)| (name, (1..=seeds).map(|seed| plan.generate(seed)).collect()))
        .collect();
    let mut tasks = Vec::new();
    for (name, traces) in &traces {
        for number in (0..LINKS.len()).filter(|&it| LINKS[it].0.contains(&link)) {
            tasks.extend(fleets(name).iter().map(|&fleet| (*name, traces, number, fleet)));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&(name, traces, number, fleet)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let [ttft, ttft_p90, e2e, hit, pulls, pulled, loaded, lost] = cell(traces, number, (name, fleet));
            println!(
                "{name}\t{}\t{fleet}\t{ttft:.4}\t{ttft_p90:.4}\t{e2e:.3}\t{hit:.3}\t{pulls:.0}\t{pulled:.0}\t{loaded:.0}\t{lost:.1}",
                LINKS[number].0
            );
        }
    };
    std::thread::scope(|scope| {
        (0..jobs).for_each(|_| drop(scope.spawn(work)));
    });
}

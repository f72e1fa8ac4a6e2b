//! Rules for which prompts go to prefill workers, compared in virtual time: the table of `docs/prefill-decode.md`.
//!
//! `cargo run --release -p maitre-sim --example split -- 3` plays three seeds and prints one line per traffic, fleet and
//! rule. Further arguments: only traffic whose name contains this, only such fleets, how many runs at once, and only this
//! rule.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for a table in docs")]

use std::sync::atomic::{AtomicUsize, Ordering};

use maitre_base::Role;
use maitre_dispatch::BrainSettings;
use maitre_policy::split::SplitRule;
use maitre_sim::generate::Plan;
use maitre_sim::lab::{LabConfig, LinkChange, PreparedTrace, block_tokens, play};
use maitre_sim::profile::{H100X2_32B, Profile};
use maitre_sim::report::{mean, quantile};
use maitre_sim::trace::Trace;

const TRAFFIC: [(&str, &str); 5] = [
    ("conversation", "chat:rate=6,turns=6,think=8,seconds=90"),
    ("agents", "agents:rate=1,steps=12,seconds=90"),
    ("rag", "rag:qps=5,seconds=90"),
    ("documents", "noreuse:prompt=8000,out=40,qps=5,seconds=90"),
    ("stories", "noreuse:prompt=300,out=800,qps=24,seconds=90"),
];

/// Prefill, decode and other workers, and gigabytes a second over the link.
const FLEETS: [(&str, [usize; 3], f64); 5] = [
    ("8", [0, 0, 8], 17.0),
    ("4+4", [4, 4, 0], 17.0),
    ("2+4+2", [2, 4, 2], 17.0),
    ("4+4 slow link", [4, 4, 0], 1.0),
    ("1+7", [1, 7, 0], 17.0),
];

const RULES: [&str; 12] = [
    "price",
    "always",
    "never",
    "threshold-16",
    "threshold-512",
    "isl-bounding",
    "prefill-load-32768",
    "isl-or-load-32768",
    "unmatched-0",
    "unmatched-512",
    "edpp-1000",
    "deflection-50",
];

const PROFILE: Profile = H100X2_32B;

/// Mean and p90 of TTFT and TPOT, and the mean of E2E, in seconds; requests that were lost.
type Measured = [f64; 6];

fn config(fleet: usize, rule: &str, seed: u64) -> LabConfig {
    let (_, [prefill, decode, both], gigabytes) = FLEETS[fleet];
    let mut roles = vec![Role::Prefill; prefill];
    roles.resize(prefill + decode, Role::Decode);
    roles.resize(prefill + decode + both, Role::Both);
    let split: SplitRule = rule.parse().unwrap();
    let brain = BrainSettings { seed, split, ..BrainSettings::default() };
    LabConfig {
        link: LinkChange { floor: None, bytes_per_second: Some(gigabytes * 1e9) },
        ..LabConfig { roles, ..LabConfig::new(vec![PROFILE; prefill + decode + both], brain) }
    }
}

fn measure(config: &LabConfig, prepared: &PreparedTrace<'_>) -> Measured {
    let outcome = play(config, prepared, &mut ());
    let answers = outcome.metrics();
    let sorted = |of: &dyn Fn(&maitre_sim::report::AnswerMetrics) -> f64| {
        let mut all: Vec<f64> = answers.iter().map(of).collect();
        all.sort_unstable_by(f64::total_cmp);
        all
    };
    let first = sorted(&|it| it.first_token.as_secs_f64());
    let later = |it: &maitre_sim::report::AnswerMetrics| (it.total - it.first_token).as_secs_f64();
    let per_token = sorted(&|it| later(it) / f64::from(it.answer_tokens.saturating_sub(1).max(1)));
    let whole = sorted(&|it| it.total.as_secs_f64());
    let lost = (outcome.refused + outcome.failed) as f64;
    [mean(&first), quantile(&first, 0.9), mean(&per_token), quantile(&per_token, 0.9), mean(&whole), lost]
}

/// The means over all seeds of one traffic, fleet and rule.
fn cell(traces: &[Trace], fleet: usize, rule: &str) -> Measured {
    let mut sums = [0.0; 6];
    for (seed, trace) in (1..).zip(traces) {
        let prepared = PreparedTrace::new(trace, block_tokens(trace));
        let measured = measure(&config(fleet, rule, seed), &prepared);
        sums.iter_mut().zip(measured).for_each(|(sum, it)| *sum += it);
    }
    sums.map(|it| it / traces.len() as f64)
}

fn main() {
    let mut args = std::env::args().skip(1);
    let seeds: u64 = args.next().map_or(1, |it| it.parse().unwrap());
    let [traffic, fleet] = [args.next(), args.next()].map(Option::unwrap_or_default);
    let jobs: usize = args.next().map_or(2, |it| it.parse().unwrap());
    let rule = args.next();
    let is_asked = |name: &str, asked: &str| name.contains(asked);
    let traces: Vec<(&str, Vec<Trace>)> = (TRAFFIC.iter())
        .filter(|it| is_asked(it.0, &traffic))
        .map(|&(name, line)| (name, line.parse::<Plan>().unwrap()))
        .map(|(name, plan)| (name, (1..=seeds).map(|seed| plan.generate(seed)).collect()))
        .collect();
    let mut tasks = Vec::new();
    for (name, traces) in &traces {
        for (number, it) in FLEETS.iter().enumerate().filter(|(_, it)| is_asked(it.0, &fleet)) {
            let rules = match &rule {
                _ if it.1[0] == 0 => vec!["never"],
                Some(rule) => vec![rule.as_str()],
                None => RULES.to_vec(),
            };
            tasks.extend(rules.into_iter().map(|rule| (*name, traces, number, rule)));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&(name, traces, number, rule)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let [ttft, ttft_p90, tpot, tpot_p90, e2e, lost] = cell(traces, number, rule);
            println!(
                "{name}\t{}\t{rule}\t{ttft:.4}\t{ttft_p90:.4}\t{tpot:.5}\t{tpot_p90:.5}\t{e2e:.4}\t{lost:.1}",
                FLEETS[number].0
            );
        }
    };
    std::thread::scope(|scope| {
        (0..jobs).for_each(|_| drop(scope.spawn(work)));
    });
}

//! A worker slows down for a minute and recovers: its share of the requests, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use maitre_base::{Instant, Rng};
use maitre_dispatch::BrainSettings;
use maitre_sim::lab::{ClosedLoop, LabConfig, PreparedTrace, RunOutcome, play};
use maitre_sim::profile::{H200_8B, Profile};
use maitre_sim::trace::{Piece, Request, Trace};

const WORKERS: usize = 4;
/// The worker that slows down, and when it does and recovers.
const SLOW: u32 = 1;
const SLOWS: u64 = 20;
const RECOVERS: u64 = 80;
const ENDS: u64 = 125;

/// Slow steps and short answers: a minute takes few steps to simulate.
const ENGINE: Profile = H200_8B.slower(16.0);

/// Prompts that have nothing in common.
fn traffic(seed: u64, requests: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let request = |number: u64| Request {
        at: Instant::from_nanos(number),
        prompt: [Piece { text: number, tokens: 100 + rng.below(400) as u32 }].into(),
        answer_tokens: 2 + rng.below(8) as u32,
        answer: 1_000_000 + number,
        ..Request::default()
    };
    Trace { requests: (0..requests).map(request).collect() }
}

fn run(seed: u64, factor: f64, clients: u32) -> RunOutcome {
    let script = format!("{SLOWS}s slow {SLOW} {factor}\n{RECOVERS}s slow {SLOW} 1");
    let until = Instant::from_millis(ENDS * 1_000);
    let config = LabConfig {
        script: script.parse().unwrap(),
        closed_loop: Some(ClosedLoop { clients, until }),
        ..LabConfig::new(vec![ENGINE; WORKERS], BrainSettings { seed, ..BrainSettings::default() })
    };
    let trace = traffic(seed, 600 * u64::from(clients));
    let outcome = play(&config, &PreparedTrace::new(&trace, 16), &mut ());
    assert!(outcome.answers.len() < trace.requests.len(), "the trace is too short");
    outcome
}

/// The worker's share of the requests that arrived from one second to another; 1 is as many as the others get.
fn share(outcome: &RunOutcome, from: u64, until: u64) -> f64 {
    let (from, until) = (Instant::from_millis(from * 1_000), Instant::from_millis(until * 1_000));
    let within = || outcome.answers.iter().filter(|it| (from..until).contains(&it.metrics.at));
    let there = within().filter(|it| it.worker.0 == SLOW).count();
    there as f64 / within().count() as f64 * WORKERS as f64
}

#[track_caller]
fn check(factor: f64, clients: u32) {
    for seed in 1..=20 {
        let outcome = run(seed, factor, clients);
        let [before, slow, recovered] = [(10, SLOWS), (SLOWS + 5, RECOVERS), (RECOVERS + 30, ENDS)]
            .map(|(from, until)| share(&outcome, from, until));
        let of = format!("{clients} clients, seed {seed}");
        assert!((0.7..1.3).contains(&before), "{of}: {before:.2} before it slows down");
        assert!(slow < 0.45, "{of}: {slow:.2} from five seconds after it slows down");
        assert!(recovered > 0.8, "{of}: {recovered:.2} from thirty seconds after it recovers");
    }
}

#[test]
fn a_worker_ten_times_slower_loses_its_share_and_gets_it_back() {
    for clients in [4, 16, 32] {
        check(10.0, clients);
    }
}

#[test]
fn a_worker_four_times_slower_loses_its_share_and_gets_it_back() {
    check(4.0, 4);
}

//! Second attempts: what they save when one worker stalls at random, what they cost, and that they lose nothing.

use std::fmt::Write as _;
use std::time::Duration;

use super::*;

const STALL_SECONDS: f64 = 60.0;

/// Chats for eight workers, at two fifths of what they can do.
fn chats(seed: u64) -> Trace {
    let mut rng = Rng::new(seed);
    let (mut requests, mut now) = (Vec::new(), 0.0);
    while now < STALL_SECONDS {
        now += rng.exponential(1.0 / 60.0);
        let number = requests.len() as u64;
        requests.push(Request {
            at: Instant::from_nanos((now * 1e9) as u64),
            prompt: [Piece { text: 1_000 + number, tokens: 400 + rng.below(400) as u32 }].into(),
            answer_tokens: 50 + rng.below(100) as u32,
            answer: 1_000_000 + number,
            class: Some("interactive".into()),
            ..Request::default()
        });
    }
    Trace { requests }
}

/// One worker at a time, chosen at random, does nothing for two seconds, about every two seconds.
fn stalls(seed: u64) -> String {
    let (mut rng, mut script, mut now) = (Rng::new(seed), String::new(), 2.0);
    while now < STALL_SECONDS {
        now += 2.0 + rng.exponential(0.3);
        let _ = writeln!(script, "{now:.3}s stall {} 2s", rng.below(8));
    }
    script
}

fn hedging(script: &str, are_on: bool) -> LabConfig {
    let mut brain = maitre_dispatch::BrainSettings { seed: 1, ..maitre_dispatch::BrainSettings::default() };
    brain.hedges.are_on = are_on;
    for class in &mut brain.queue.classes {
        class.deadline = Some(Duration::from_millis(500));
    }
    LabConfig { script: script.parse().unwrap(), ..LabConfig::new(vec![H200_8B.slower(4.0); 8], brain) }
}

/// The 99th percentile of first-token times in seconds, the work of all engines in seconds, and the hedges.
fn measured(config: &LabConfig, trace: &Trace) -> (f64, f64, u64) {
    let outcome = run(config, trace);
    let mut times: Vec<f64> = outcome.answers.iter().map(|it| it.metrics.first_token.as_secs_f64()).collect();
    times.sort_unstable_by(f64::total_cmp);
    let work = outcome.workers.iter().map(|it| it.busy.as_secs_f64()).sum();
    assert_eq!((outcome.refused, outcome.failed), (0, 0));
    (times[times.len() * 99 / 100], work, outcome.hedges)
}

#[test]
fn hedges_halve_the_tail_that_a_stalling_worker_makes_and_cost_little() {
    for seed in 1..=3 {
        let (trace, script) = (chats(seed), stalls(seed));
        let plain = measured(&hedging(&script, false), &trace);
        let hedged = measured(&hedging(&script, true), &trace);
        println!(
            "seed {seed}: p99 {:.3} s, hedged {:.3} s; work {:.1} s, hedged {:.1} s; {} hedges",
            plain.0, hedged.0, plain.1, hedged.1, hedged.2
        );
        assert!(hedged.0 <= plain.0 / 2.0, "p99 {:.3} s, hedged {:.3} s", plain.0, hedged.0);
        assert!(hedged.1 <= plain.1 * 1.05, "work {:.1} s, hedged {:.1} s", plain.1, hedged.1);
    }
}

#[test]
fn without_stalls_hedges_lose_nothing() {
    let trace = chats(1);
    let plain = measured(&hedging("", false), &trace);
    let hedged = measured(&hedging("", true), &trace);
    println!("without stalls: {plain:?}, hedged {hedged:?}");
    assert!(hedged.0 <= plain.0 * 1.01 && hedged.1 <= plain.1 * 1.005, "{plain:?} {hedged:?}");
}

//! A worker is ten times slower for a minute: how many requests it and its fleet get in each second, in virtual time.
//!
//! `cargo run --release -p maitre-sim --example slowdown -- 20` prints one line of JSON per seed and number of clients, as
//! `scripts/slowdown` reads them.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for a figure in docs")]

use maitre_base::{Instant, Rng};
use maitre_dispatch::BrainSettings;
use maitre_sim::lab::{ClosedLoop, LabConfig, PreparedTrace, play};
use maitre_sim::profile::H200_8B;
use maitre_sim::trace::{Piece, Request, Trace};

const WORKERS: usize = 4;
const SLOW: u32 = 1;
const ENDS: u64 = 125;
/// More requests than a client sends until then.
const REQUESTS: u64 = 2_000;

fn request(number: u64, rng: &mut Rng) -> Request {
    Request {
        at: Instant::from_nanos(number),
        prompt: [Piece { text: number, tokens: 100 + rng.below(900) as u32 }].into(),
        answer_tokens: 8 + rng.below(16) as u32,
        answer: 1_000_000 + number,
        ..Request::default()
    }
}

fn run(clients: u32, seed: u64) -> [Vec<u32>; 2] {
    let mut rng = Rng::new(seed);
    let trace = Trace {
        requests: (0..u64::from(clients) * REQUESTS).map(|number| request(number, &mut rng)).collect(),
    };
    let config = LabConfig {
        script: format!("20s slow {SLOW} 10\n80s slow {SLOW} 1").parse().unwrap(),
        closed_loop: Some(ClosedLoop { clients, until: Instant::from_millis(ENDS * 1_000) }),
        ..LabConfig::new(
            vec![H200_8B.slower(10.0); WORKERS],
            BrainSettings { seed, ..BrainSettings::default() },
        )
    };
    let mut counts = [vec![0; ENDS as usize], vec![0; ENDS as usize]];
    for answer in play(&config, &PreparedTrace::new(&trace, 16), &mut ()).answers {
        let second = (answer.metrics.at.as_secs_f64() as usize).min(ENDS as usize - 1);
        counts[0][second] += u32::from(answer.worker.0 == SLOW);
        counts[1][second] += 1;
    }
    counts
}

fn main() {
    let seeds = std::env::args().nth(1).map_or(20, |it| it.parse().unwrap());
    for clients in [4, 16, 32] {
        for seed in 1..=seeds {
            let [there, all] = run(clients, seed);
            println!(r#"{{"clients":{clients},"seed":{seed},"there":{there:?},"all":{all:?}}}"#);
        }
    }
}

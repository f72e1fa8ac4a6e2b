//! How fast the engine model runs in virtual time: many long requests over a few workers.
//!
//! `cargo bench -p maitre-sim` plays 12,000 requests of about 12,000 tokens over eight workers; `cargo test` plays a
//! hundredth of that, so that it keeps working. Three numbers: wall seconds, steps, hit ratio.

use std::time::Duration;

use maitre_base::{Instant, Rng};
use maitre_sim::engine::{Engine, EngineConfig, Finish, Job};
use maitre_sim::kv::{Names, Root};
use maitre_sim::profile::H200_8B;

const WORKERS: usize = 8;
const FULL_REQUESTS: u64 = 12_000;

/// A conversation's prompt: each turn of a session repeats the previous one and adds to it.
fn job(request: u64, rng: &mut Rng) -> Job {
    let (session, turn) = (request / 4 % 500, request % 4);
    let prompt_tokens = 6_000 + 3_000 * turn as u32 + rng.below(1_000) as u32;
    let prompt = (0..prompt_tokens).map(|index| session as u32 * 100_000 + index).collect();
    Job {
        prompt,
        root: Root::new(Names { model: "bench", adapter: None, salt: "" }),
        seed: request,
        answer_tokens: 100 + rng.below(500) as u32,
        finish: Finish::Stop,
    }
}

struct Worker {
    engine: Engine,
    /// When the present step ends.
    ends: Option<Instant>,
}

impl Worker {
    fn begin(&mut self, now: Instant) {
        self.ends = self.engine.begin_step().map(|span| now + span);
    }
}

fn play(requests: u64) -> Vec<Worker> {
    let mut rng = Rng::new(1);
    let engine = || Engine::new(EngineConfig::new(H200_8B));
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| Worker { engine: engine(), ends: None }).collect();
    let mut outputs = Vec::new();
    let (mut sent, mut arrival) = (0, Instant::ZERO);
    loop {
        let next_step = workers.iter().enumerate().filter_map(|(index, it)| Some((it.ends?, index))).min();
        match next_step {
            Some((now, index)) if sent == requests || now < arrival => {
                workers[index].engine.finish_step(now, &mut outputs);
                outputs.clear();
                workers[index].begin(now);
            }
            None if sent == requests => return workers,
            _ => {
                let worker = &mut workers[(sent / 4) as usize % WORKERS];
                let job = job(sent, &mut rng);
                assert!(worker.engine.submit(arrival, job).is_ok(), "request {sent} fits");
                if worker.ends.is_none() {
                    worker.begin(arrival);
                }
                sent += 1;
                arrival = arrival + Duration::from_secs_f64(rng.exponential(0.02));
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#[expect(clippy::print_stdout, reason = "a benchmark prints its numbers")]
fn main() {
    let is_bench = std::env::args().any(|it| it == "--bench");
    let requests = if is_bench { FULL_REQUESTS } else { FULL_REQUESTS / 100 };
    let begin = std::time::Instant::now();
    let workers = play(requests);
    let seconds = begin.elapsed().as_secs_f64();
    let counters: Vec<_> = workers.iter().map(|it| it.engine.stats().counters).collect();
    let steps: u64 = counters.iter().map(|it| it.steps).sum();
    let hits: u64 = counters.iter().map(|it| it.hit_tokens).sum();
    let queries: u64 = counters.iter().map(|it| it.queried_tokens).sum();
    println!(
        "{requests} requests in {seconds:.2} s, {steps} steps, hit ratio {:.3}",
        hits as f64 / queries as f64
    );
}

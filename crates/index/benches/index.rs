//! Prints three numbers: a look-up of 512 blocks among 64 workers, one among 1,000, and reported blocks a
//! second.
//!
//! `cargo test` runs it with small inputs, so that it keeps working.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench reads the clock and prints")]

use maitre_base::{Rng, StoredBlocks, WorkerId};
use maitre_index::prefix::{self, Unit};
use maitre_index::{Chain, Holdings, Index, IndexSettings, PrefixHash, Root};
use std::hint::black_box;
use std::time::Instant;

const BLOCK_TOKENS: usize = 16;
const PROMPT_BLOCKS: usize = 512;
const SHARED_BLOCKS: usize = 48;
const EVENT_BLOCKS: usize = 32;

fn main() {
    let is_bench = std::env::args().any(|it| it == "--bench");
    let (prompts, look_ups) = if is_bench { (200, 200_000) } else { (1, 10) };
    let mut small = BenchFleet::new(64, prompts);
    println!("look-up, 64 workers, 512 blocks:    {:8.0} ns", small.look_up_nanos(look_ups));
    println!("stored blocks a second:             {:8.2} M", small.stored_per_s / 1e6);
    let mut large = BenchFleet::new(1_000, prompts.div_ceil(10));
    println!("look-up, 1,000 workers, 512 blocks: {:8.0} ns", large.look_up_nanos(look_ups));
}

struct BenchFleet {
    index: Index,
    prompts: Vec<Vec<PrefixHash>>,
    stored_per_s: f64,
}

impl BenchFleet {
    /// Every worker holds the same system prompt, and this many conversations of its own.
    fn new(workers: u32, prompts_per_worker: usize) -> BenchFleet {
        let root = Root::new(Unit::Tokens, "m", None, None);
        let mut rng = Rng::new(1);
        let mut fleet = BenchFleet {
            index: Index::new(IndexSettings { budget_bytes: 4 << 30, seed: 1 }),
            prompts: Vec::new(),
            stored_per_s: 0.0,
        };
        (0..workers).for_each(|it| fleet.index.join(WorkerId(it)));
        let mut tokens: Vec<u32> = (0..PROMPT_BLOCKS * BLOCK_TOKENS).map(|it| it as u32).collect();
        let (mut nanos, mut stored) = (0, 0);
        for prompt in 0..prompts_per_worker * workers as usize {
            let own = &mut tokens[SHARED_BLOCKS * BLOCK_TOKENS..];
            own.iter_mut().for_each(|it| *it = rng.next_u64() as u32);
            let mut chain = Vec::new();
            prefix::chain(root, &tokens, BLOCK_TOKENS, &mut chain);
            let names: Vec<u64> = chain.iter().map(|it| it.0 ^ 1).collect();
            let worker = WorkerId((prompt % workers as usize) as u32);
            let first = if prompt < workers as usize { 0 } else { SHARED_BLOCKS };
            let start = Instant::now();
            for from in (first..PROMPT_BLOCKS).step_by(EVENT_BLOCKS) {
                let to = (from + EVENT_BLOCKS).min(PROMPT_BLOCKS);
                let stored = StoredBlocks {
                    parent: from.checked_sub(1).map(|it| names[it]),
                    ..StoredBlocks::plain(
                        &names[from..to],
                        &tokens[from * BLOCK_TOKENS..to * BLOCK_TOKENS],
                        BLOCK_TOKENS as u32,
                    )
                };
                fleet.index.store(worker, "m", &stored);
            }
            nanos += start.elapsed().as_nanos();
            stored += PROMPT_BLOCKS - first;
            fleet.prompts.push(chain);
        }
        fleet.stored_per_s = stored as f64 * 1e9 / nanos.max(1) as f64;
        fleet
    }

    fn look_up_nanos(&mut self, count: usize) -> f64 {
        let (mut out, mut rng) = (Holdings::new(), Rng::new(2));
        let start = Instant::now();
        for _ in 0..count {
            let prefixes = &self.prompts[rng.below(self.prompts.len())];
            self.index.look_up(Chain { block_tokens: BLOCK_TOKENS as u32, prefixes }, &mut out);
            black_box(out.of(WorkerId(0)));
        }
        start.elapsed().as_nanos() as f64 / count as f64
    }
}

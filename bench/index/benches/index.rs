//! Prints how each index handles the same work: stores and removals per second, drain included; look-ups; bytes per
//! block and worker. `--json` prints the raw numbers, `--quick` a tenth of the work once.
//!
//! Look-ups are measured twice: with prompts whose hashes were computed long ago, so that reading them takes a part
//! of the time, and with other prompts that were hashed just before, as in a router.
//!
//! Rounds of the contestants are interleaved and medians taken, so that a slow minute of a shared machine affects
//! all. Answers are compared with ours on the way.

use maitre_base::Rng;
use maitre_bench_index::contestants::{Contestant, NAMES, Prompt, Removal, Store, contestant};
use maitre_bench_index::heap;
use maitre_bench_index::work::Workload;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const LENGTHS: [usize; 3] = [100, 512, 2_048];
const BATCH: usize = 1_024;

struct Scale {
    workers: usize,
    blocks_per_worker: usize,
    prompts: usize,
    rounds: usize,
}

/// The results of one contestant in one round.
struct Round {
    stores_per_s: f64,
    removals_per_s: f64,
    bytes_per_block: f64,
    /// Median and 99th percentile by length, in nanoseconds. The prompts were hashed long ago.
    look_ups: Vec<(f64, f64)>,
    /// The same for other prompts, which were hashed just before, as in a router.
    hashed_look_ups: Vec<(f64, f64)>,
    /// What every worker held of every prompt.
    held: Vec<u32>,
}

fn main() {
    let has = |flag: &str| std::env::args().any(|it| it == flag);
    let (share, rounds, prompts) = if has("--quick") { (10usize, 1, 200) } else { (1, 3, 2_000) };
    let scale = |workers, blocks| Scale { workers, blocks_per_worker: blocks / share, prompts, rounds };
    let mut raw = Vec::new();
    for scale in [scale(8, 100_000), scale(64, 100_000), scale(256, 20_000)] {
        raw.extend(compete(&scale, !has("--json")));
    }
    if has("--json") {
        println!("{}", Value::Array(raw));
    }
}

fn compete(scale: &Scale, print: bool) -> Vec<Value> {
    let work = Workload::new(scale.workers, scale.blocks_per_worker, 7);
    let mut rng = Rng::new(11);
    let mut draw = || -> Vec<Vec<Prompt>> {
        let mut draw =
            |length| (0..scale.prompts).map(|_| Prompt::new(&work.prompt(length, &mut rng))).collect();
        LENGTHS.iter().map(|&length| draw(length)).collect()
    };
    let prompts = [draw(), draw()];
    let mut rounds: Vec<Vec<Round>> = NAMES.iter().map(|_| Vec::new()).collect();
    for _ in 0..scale.rounds {
        for (at, name) in NAMES.iter().enumerate() {
            rounds[at].push(round(name, &work, &prompts));
        }
    }
    if print {
        println!("{} workers, {} blocks in all", scale.workers, work.stored_blocks);
        println!(
            "  {:18} {:>8} {:>9} {:>7}   look-up p50 / p99 ns at {LENGTHS:?} blocks | just hashed; differing answers",
            "", "M sto/s", "M rem/s", "B/block"
        );
    }
    let expected = rounds[0][0].held.clone();
    let table = NAMES.iter().zip(&rounds).map(|(name, rounds)| row(name, rounds, &expected, scale, print));
    table.collect()
}

fn round(name: &str, work: &Workload, [prompts, hashed]: &[Vec<Vec<Prompt>>; 2]) -> Round {
    let mut contestant = contestant(name, work.workers);
    let (before, mut stores) = (heap::bytes(), Duration::ZERO);
    for changes in work.stores.chunks(BATCH) {
        let batch: Vec<Store<'_>> = changes.iter().map(|&it| Store::new(work, it)).collect();
        let start = Instant::now();
        contestant.store(&batch);
        stores += start.elapsed();
    }
    let bytes = heap::bytes() - before;
    let tare = tare();
    let mut held = Vec::new();
    let cold = prompts.iter().map(|prompts| look_ups(contestant.as_mut(), prompts, tare, |_, _| {}));
    let cold = cold.collect();
    let read = |it: &dyn Contestant, prompt: &Prompt| it.read(prompt);
    let warm = hashed.iter().map(|prompts| look_ups(contestant.as_mut(), prompts, tare, read)).collect();
    for prompt in prompts.iter().flat_map(|it| it.iter().step_by(10)) {
        contestant.look_up(prompt);
        held.extend((0..work.workers).map(|it| contestant.held(it)));
    }
    let mut removals = Duration::ZERO;
    for changes in work.removals.chunks(BATCH) {
        let batch: Vec<Removal> = changes.iter().map(|&it| Removal::new(work, it)).collect();
        let start = Instant::now();
        contestant.remove(&batch);
        removals += start.elapsed();
    }
    for prompt in prompts.iter().flat_map(|it| it.iter().step_by(10)) {
        contestant.look_up(prompt);
        held.extend((0..work.workers).map(|it| contestant.held(it)));
    }
    Round {
        stores_per_s: work.stored_blocks as f64 / stores.as_secs_f64(),
        removals_per_s: work.removed_blocks as f64 / removals.as_secs_f64(),
        bytes_per_block: bytes as f64 / work.stored_blocks as f64,
        look_ups: cold,
        hashed_look_ups: warm,
        held,
    }
}

/// The cost of reading the clock twice, which is subtracted from each look-up.
fn tare() -> f64 {
    let mut nanos: Vec<f64> = (0..1_001).map(|_| Instant::now().elapsed().as_nanos() as f64).collect();
    median(&mut nanos)
}

fn look_ups(
    contestant: &mut dyn Contestant,
    prompts: &[Prompt],
    tare: f64,
    prepare: impl Fn(&dyn Contestant, &Prompt),
) -> (f64, f64) {
    let mut nanos: Vec<f64> = prompts
        .iter()
        .map(|prompt| {
            prepare(contestant, prompt);
            let start = Instant::now();
            contestant.look_up(prompt);
            start.elapsed().as_nanos() as f64 - tare
        })
        .collect();
    (median(&mut nanos), nanos[nanos.len() * 99 / 100])
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(name: &str, rounds: &[Round], expected: &[u32], scale: &Scale, print: bool) -> Value {
    let of = |number: &dyn Fn(&Round) -> f64| median(&mut rounds.iter().map(number).collect::<Vec<f64>>());
    let (stores, removals) = (of(&|it| it.stores_per_s), of(&|it| it.removals_per_s));
    let bytes = of(&|it| it.bytes_per_block);
    let by_length = |times: &dyn Fn(&Round) -> &Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        (0..LENGTHS.len()).map(|at| (of(&|it| times(it)[at].0), of(&|it| times(it)[at].1))).collect()
    };
    let (look_ups, hashed) = (by_length(&|it| &it.look_ups), by_length(&|it| &it.hashed_look_ups));
    let differing = rounds[0].held.iter().zip(expected).filter(|(held, expected)| held != expected).count();
    // Contestants with our semantics must agree. They differ only for holes, which this work does not make.
    if name.starts_with("maitre") || name.starts_with("kv-index") || name.contains("compressed") {
        assert_eq!(differing, 0, "{name} and ours differ");
    }
    if print {
        let text = |times: &[(f64, f64)]| -> String {
            times.iter().map(|it| format!("{:5.0} / {:5.0}  ", it.0, it.1)).collect()
        };
        println!(
            "  {name:18} {:8.2} {:9.2} {bytes:7.1}   {} | {} {differing}",
            stores / 1e6,
            removals / 1e6,
            text(&look_ups),
            text(&hashed)
        );
    }
    json!({
        "contestant": name,
        "workers": scale.workers,
        "stored_blocks_per_s": stores,
        "removed_blocks_per_s": removals,
        "bytes_per_worker_block": bytes,
        "look_up_blocks": LENGTHS,
        "look_up_p50_ns": look_ups.iter().map(|it| it.0).collect::<Vec<f64>>(),
        "look_up_p99_ns": look_ups.iter().map(|it| it.1).collect::<Vec<f64>>(),
        "hashed_look_up_p50_ns": hashed.iter().map(|it| it.0).collect::<Vec<f64>>(),
        "hashed_look_up_p99_ns": hashed.iter().map(|it| it.1).collect::<Vec<f64>>(),
        "differing_answers": differing,
        "rounds": rounds.iter().map(|it| json!({
            "stored_blocks_per_s": it.stores_per_s,
            "removed_blocks_per_s": it.removals_per_s,
            "bytes_per_worker_block": it.bytes_per_block,
            "look_up_ns": it.look_ups,
            "hashed_look_up_ns": it.hashed_look_ups,
        })).collect::<Vec<Value>>(),
    })
}

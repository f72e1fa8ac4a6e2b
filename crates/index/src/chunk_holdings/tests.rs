//! Tables, and random histories against a plain model.

use std::collections::VecDeque;

use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

const WORKERS: u32 = 3;
const UNITS: u32 = 100;

/// Chunks of a hundred units each.
fn prompt(hashes: &[u64]) -> Vec<PromptChunk> {
    let ends = (1..).map(|it| it * UNITS);
    hashes.iter().zip(ends).map(|(&hash, end)| PromptChunk { hash, end }).collect()
}

fn holdings(workers: u32) -> ChunkHoldings {
    let mut holdings = ChunkHoldings::new(1 << 20);
    (0..workers).for_each(|it| holdings.join(WorkerId(it)));
    holdings
}

/// What worker 0 could reuse of the prompt, if its prefix ends there.
#[track_caller]
fn check(holdings: &ChunkHoldings, hashes: &[u64], prefix: u64, expected: u64) {
    let mut reused = ReusedUnits::default();
    holdings.reused(&prompt(hashes), |_| prefix, &mut reused);
    assert_eq!(reused.of(WorkerId(0)), expected, "{hashes:?} after {prefix}");
}

#[test]
fn chunks_count_in_any_order_and_only_after_the_prefix() {
    let mut holdings = holdings(1);
    holdings.hold(WorkerId(0), &prompt(&[1, 2, 3, 4]));
    check(&holdings, &[4, 3, 2, 1], 0, 400);
    check(&holdings, &[9, 8, 3, 4], 0, 200);
    check(&holdings, &[1, 2, 3, 4], 250, 150);
    check(&holdings, &[1, 2, 3, 4], 4_000, 0);
    check(&holdings, &[7, 8, 9], 0, 0);
    check(&holdings, &[], 0, 0);
}

#[test]
fn the_border_of_two_held_documents_counts() {
    let mut holdings = holdings(1);
    holdings.hold(WorkerId(0), &prompt(&[1, 2, 3, 4]));
    check(&holdings, &[1, 2, 77, 3, 4], 0, 500);
    // A longer gap is a separate document.
    check(&holdings, &[1, 2, 77, 78, 3, 4], 0, 400);
    // The gap after the prefix counts; the one before the first chunk and the one after the last do not.
    check(&holdings, &[90, 91, 3, 4, 92], 150, 250);
    check(&holdings, &[77, 1, 2, 78], 0, 200);
}

#[test]
fn the_least_recently_used_chunk_goes_first() {
    let mut holdings = holdings(1);
    holdings.set_capacity(WorkerId(0), 300);
    holdings.hold(WorkerId(0), &prompt(&[1, 2, 3]));
    holdings.hold(WorkerId(0), &prompt(&[1]));
    holdings.hold(WorkerId(0), &prompt(&[4]));
    assert_eq!(holdings.len(), 3);
    check(&holdings, &[2], 0, 0);
    check(&holdings, &[4, 1, 3], 0, 300);
    holdings.set_capacity(WorkerId(0), 100);
    check(&holdings, &[4], 0, 100);
    assert_eq!(holdings.len(), 1);
}

#[test]
fn workers_share_the_memory_and_one_that_reuses_nothing_holds_nothing() {
    let mut holdings = ChunkHoldings::new(8 * ENTRY_BYTES);
    let many = prompt(&(0..100).collect::<Vec<u64>>());
    assert!(!holdings.has(WorkerId(0)));
    holdings.hold(WorkerId(0), &many);
    assert!(holdings.is_empty());
    holdings.join(WorkerId(0));
    holdings.hold(WorkerId(0), &many);
    assert_eq!(holdings.len(), 8);
    holdings.join(WorkerId(5));
    assert_eq!(holdings.len(), 4, "the second worker gets half");
    holdings.hold(WorkerId(5), &many);
    assert_eq!(holdings.len(), 8);
    holdings.leave(WorkerId(0));
    holdings.leave(WorkerId(5));
    assert!(holdings.is_empty() && !holdings.has(WorkerId(0)) && holdings.holders.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Hold(u32, Vec<u64>),
    Clear(u32),
    Leave(u32),
    Join(u32),
    Capacity(u32, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 0..WORKERS;
    prop_oneof![
        6 => (worker.clone(), prop::collection::vec(0u64..24, 0..12)).prop_map(|it| Step::Hold(it.0, it.1)),
        1 => worker.clone().prop_map(Step::Clear),
        1 => worker.clone().prop_map(Step::Leave),
        1 => worker.clone().prop_map(Step::Join),
        1 => (worker, prop_oneof![Just(50), 100u64..2_000]).prop_map(|it| Step::Capacity(it.0, it.1)),
    ]
}

/// One worker in the plainest way: its chunks, the oldest first, and how many fit.
#[derive(Clone, Debug)]
struct Model {
    chunks: VecDeque<u64>,
    capacity: u64,
}

impl Model {
    fn trim(&mut self) {
        while self.chunks.len() as u64 * u64::from(UNITS) > self.capacity {
            self.chunks.pop_front();
        }
    }

    fn hold(&mut self, hashes: &[u64]) {
        for &hash in hashes {
            self.chunks.retain(|&it| it != hash);
            self.chunks.push_back(hash);
            self.trim();
        }
    }

    /// Looks at each unit of the prompt after its prefix.
    fn reused(&self, hashes: &[u64], prefix: u64) -> u64 {
        let all = hashes.len() as u64 * u64::from(UNITS);
        let holds =
            |unit: u64| unit < prefix || self.chunks.contains(&hashes[(unit / u64::from(UNITS)) as usize]);
        let is_bridged = |unit: u64| {
            let before = (0..unit).rev().find(|&it| holds(it));
            let after = (unit..all).find(|&it| holds(it));
            before.zip(after).is_some_and(|(before, after)| after - before <= BRIDGED_MAX + 1)
        };
        (prefix..all).filter(|&it| holds(it) || is_bridged(it)).count() as u64
    }
}

proptest! {
    #[test]
    fn holdings_are_those_of_a_plain_model(
        steps in prop::collection::vec(step(), 0..60),
        asked in prop::collection::vec(0u64..24, 0..12),
        prefix in 0u64..1_300,
    ) {
        let mut holdings = holdings(WORKERS);
        let empty = Model { chunks: VecDeque::new(), capacity: CAPACITY_DEFAULT };
        let mut models = vec![Some(empty.clone()); WORKERS as usize];
        for step in steps {
            match step {
                Step::Hold(worker, hashes) => {
                    holdings.hold(WorkerId(worker), &prompt(&hashes));
                    models[worker as usize].iter_mut().for_each(|it| it.hold(&hashes));
                }
                Step::Clear(worker) => {
                    holdings.clear(WorkerId(worker));
                    models[worker as usize].iter_mut().for_each(|it| it.chunks.clear());
                }
                Step::Leave(worker) => {
                    holdings.leave(WorkerId(worker));
                    models[worker as usize] = None;
                }
                Step::Join(worker) => {
                    holdings.join(WorkerId(worker));
                    models[worker as usize] = Some(empty.clone());
                }
                Step::Capacity(worker, tokens) => {
                    holdings.set_capacity(WorkerId(worker), tokens);
                    models[worker as usize].iter_mut().for_each(|it| {
                        it.capacity = tokens;
                        it.trim();
                    });
                }
            }
            let entries: usize = models.iter().flatten().map(|it| it.chunks.len()).sum();
            prop_assert_eq!(holdings.len(), entries);
        }
        let mut reused = ReusedUnits::default();
        holdings.reused(&prompt(&asked), |it| prefix + u64::from(it.0), &mut reused);
        for (worker, model) in (0..).zip(&models) {
            let expected = model.as_ref().map_or(0, |it| it.reused(&asked, prefix + u64::from(worker)));
            prop_assert_eq!(reused.of(WorkerId(worker)), expected, "worker {}", worker);
        }
        (0..WORKERS).for_each(|it| holdings.leave(WorkerId(it)));
        prop_assert!(holdings.is_empty() && holdings.holders.is_empty());
    }
}

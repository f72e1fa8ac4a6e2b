//! Compares the index with a plain model under random operations; single facts are in `facts`.

mod facts;
mod model;

use crate::prefix::{PrefixHash, Root, Unit};
use crate::worker::CacheSource;
use crate::{Chain, Holdings, Index, IndexSettings, PredictedBlocks, Trace};
use maitre_base::hash::pair;
use maitre_base::{Instant, Rng, WorkerId};
use maitre_base::{StoredBlocks, Tier};
use model::{PlainIndex, tokens};
use std::cell::RefCell;
use std::collections::HashMap;

const BLOCK_TOKENS: u32 = 16;

fn root() -> Root {
    Root::new(Unit::Tokens, "m", None, None)
}

/// A prompt is a list of bytes, one per block; each byte stands for this many tokens.
fn tokens_of(block: u8, block_tokens: u32) -> impl Iterator<Item = u32> {
    (0..block_tokens).map(move |it| u32::from(block) * 100 + it)
}

/// Cached, because the model asks for every prefix repeatedly.
fn hash_of(prompt: &[u8]) -> u64 {
    thread_local! {
        static KNOWN: RefCell<HashMap<Vec<u8>, u64>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| match known.get(prompt) {
        Some(&hash) => hash,
        None => {
            let hash = root().start().then_all(&tokens(prompt)).0;
            known.insert(prompt.to_vec(), hash);
            hash
        }
    })
}

fn chain_of(prompt: &[u8]) -> Vec<PrefixHash> {
    let mut chain = Vec::new();
    crate::prefix::chain(root(), &tokens(prompt), BLOCK_TOKENS as usize, &mut chain);
    chain
}

fn chain(prefixes: &[PrefixHash]) -> Chain<'_> {
    Chain { block_tokens: BLOCK_TOKENS, prefixes }
}

/// The engine's name for a block. Some engines have two names for one block.
fn name_of(prompt: &[u8], variant: u64) -> u64 {
    pair(hash_of(prompt), 77 + variant)
}

fn index() -> Index {
    Index::new(IndexSettings { budget_bytes: 64 << 20, seed: 3 })
}

/// Applies random operations to both and compares all answers.
struct Duel {
    index: Index,
    model: PlainIndex,
    rng: Rng,
    /// Decides whether a joining worker reuses a number; `None` if numbers are never reused.
    numbers: Option<Rng>,
    /// Decides whether an engine gives a block a name that another block had; `None` if it never does.
    reused: Option<Rng>,
    now: Instant,
    next_worker: u32,
    predicted_blocks: Vec<(u32, Vec<u8>, PredictedBlocks, model::PredictedBlocks)>,
    out: Holdings,
    /// A trace from before the last write, or from it. Most are out of date.
    trace: Trace,
    trail: Vec<String>,
}

impl Duel {
    fn new(seed: u64, numbers: Option<Rng>) -> Duel {
        let mut duel = Duel {
            index: index(),
            model: PlainIndex::default(),
            rng: Rng::new(seed),
            numbers,
            reused: None,
            now: Instant::from_millis(10_000),
            next_worker: 0,
            predicted_blocks: Vec::new(),
            out: Holdings::new(),
            trace: Trace::default(),
            trail: Vec::new(),
        };
        for _ in 0..3 {
            duel.join();
        }
        duel
    }

    /// Prompts diverge in few places and continue alone for long, so that runs are split, filled and
    /// overflow.
    fn prompt(&mut self) -> Vec<u8> {
        const LENGTHS: [usize; 8] = [3, 1, 9, 70, 2, 60, 5, 8];
        let mut prompt = Vec::new();
        for length in LENGTHS {
            let choice = self.rng.below(2) as u8;
            prompt.extend((0..length).map(|it| choice * 100 + it as u8));
        }
        prompt.truncate(1 + self.rng.below(prompt.len()));
        prompt
    }

    fn worker(&mut self) -> u32 {
        self.rng.below(self.next_worker as usize) as u32
    }

    fn tier(&mut self) -> Tier {
        [Tier::Gpu, Tier::Gpu, Tier::Gpu, Tier::Cpu, Tier::Disk][self.rng.below(5)]
    }

    /// Joins with a new number, or with one that an earlier worker had. The model starts empty either way.
    fn join(&mut self) {
        let vacant = (0..self.next_worker).find(|it| !self.model.workers.contains_key(it));
        let is_used_again = self.numbers.as_mut().is_some_and(|it| it.below(4) > 0);
        let worker = vacant.filter(|_| is_used_again).unwrap_or(self.next_worker);
        self.trail.push(format!("join w{worker}"));
        self.index.join(WorkerId(worker));
        self.model.join(worker);
        assert_eq!(self.index.block_tokens(WorkerId(worker)), None, "kept an earlier block size");
        self.next_worker = self.next_worker.max(worker + 1);
    }

    fn store(&mut self) {
        let (worker, prompt, tier) = (self.worker(), self.prompt(), self.tier());
        let from = [0, 0, self.rng.below(prompt.len())][self.rng.below(3)];
        // The model does not know what waits for a name that is used again.
        let from = if self.reused.is_some() { 0 } else { from };
        let variant = self.rng.below(12) as u64 / 11;
        let mut names: Vec<u64> = (from..prompt.len()).map(|it| name_of(&prompt[..=it], variant)).collect();
        self.reuse_names(&mut names);
        let parent = (from > 0).then(|| name_of(&prompt[..from], variant));
        self.trail.push(format!("store w{worker} {from}..{} {tier:?} v{variant}", prompt.len()));
        let tokens = tokens(&prompt[from..]);
        let stored = StoredBlocks { parent, tier, ..StoredBlocks::plain(&names, &tokens, BLOCK_TOKENS) };
        let is_cut_known = tier == Tier::Gpu || self.index.block_tokens(WorkerId(worker)).is_some();
        self.index.store(WorkerId(worker), "m", &stored);
        if let Some(worker) = self.model.workers.get_mut(&worker)
            && is_cut_known
        {
            worker.store(&names, parent, &prompt[from..], tier);
        }
    }

    /// Gives some of these blocks the name of another one.
    fn reuse_names(&mut self, names: &mut [u64]) {
        let Some(rng) = &mut self.reused else { return };
        for _ in 0..[0, 0, 1, 3][rng.below(4)] {
            let other = rng.below(names.len());
            names[rng.below(names.len())] = names[other];
        }
    }

    fn remove(&mut self) {
        let (worker, prompt, tier) = (self.worker(), self.prompt(), self.tier());
        let from = self.rng.below(prompt.len());
        let variant = self.rng.below(8) as u64 / 7;
        let mut names: Vec<u64> = (from..prompt.len()).map(|it| name_of(&prompt[..=it], variant)).collect();
        names.reverse();
        self.trail.push(format!("remove w{worker} {from}..{} {tier:?} v{variant}", prompt.len()));
        self.index.remove(WorkerId(worker), &names, tier);
        if let Some(worker) = self.model.workers.get_mut(&worker) {
            names.iter().for_each(|&name| worker.remove(name, tier));
        }
    }

    fn placeholder(&mut self) {
        let (worker, prompt, tier) = (self.worker(), self.prompt(), self.tier());
        let names = [name_of(&prompt, 0)];
        let stored = StoredBlocks { tier, ..StoredBlocks::plain(&names, &[], 0) };
        self.trail.push(format!("placeholder w{worker} {} {tier:?}", prompt.len()));
        self.index.store(WorkerId(worker), "m", &stored);
        if let Some(worker) = self.model.workers.get_mut(&worker) {
            worker.store_known(&names, tier);
        }
    }

    fn predict(&mut self) {
        let (worker, prompt) = (self.worker(), self.prompt());
        self.trail.push(format!("predict w{worker} {}", prompt.len()));
        let (id, hashes) = (WorkerId(worker), chain_of(&prompt));
        if self.trail.len().is_multiple_of(2) {
            self.index.trace(chain(&hashes), &mut self.trace);
        }
        let actual = self.index.predict_along(self.now, id, chain(&hashes), &mut self.trace);
        if let Some(expected) = self.model.predict(self.now, worker, &prompt) {
            assert_eq!(actual.from as usize, expected.from);
            self.predicted_blocks.push((worker, prompt, actual, expected));
        }
    }

    /// Fails, prefills or corrects an earlier request.
    fn follow_up(&mut self) {
        if self.predicted_blocks.is_empty() {
            return;
        }
        let at = self.rng.below(self.predicted_blocks.len());
        let (worker, prompt, actual, expected) = self.predicted_blocks[at].clone();
        let (id, hashes) = (WorkerId(worker), chain_of(&prompt));
        match self.rng.below(4) {
            0 => {
                self.trail.push(format!("forget w{worker} {}", prompt.len()));
                self.index.forget(id, chain(&hashes), actual);
                self.model.forget(worker, &prompt, expected);
                self.predicted_blocks.swap_remove(at);
            }
            1 | 2 => {
                self.trail.push(format!("prefilled w{worker} {}", prompt.len()));
                self.index.prefilled_along(self.now, id, (chain(&hashes), &mut self.trace), actual);
                self.model.prefilled(self.now, worker, &prompt, expected);
                self.index.adopt(id, chain(&hashes));
                if let Some(worker) = self.model.workers.get_mut(&worker) {
                    worker.adopt(&prompt);
                }
            }
            _ => {
                let found = self.rng.below(prompt.len() + 1);
                self.trail.push(format!("correct w{worker} {} {found}", prompt.len()));
                self.index.correct(id, chain(&hashes), actual, found as u32);
                self.model.correct(worker, &prompt, expected, found);
                self.predicted_blocks.swap_remove(at);
            }
        }
    }

    fn turn(&mut self) {
        let worker = self.worker();
        let id = WorkerId(worker);
        match self.rng.below(8) {
            0 => {
                self.trail.push(format!("clear w{worker}"));
                self.index.clear(id);
                self.model.clear(worker);
            }
            1 => {
                self.trail.push(format!("clear reported w{worker}"));
                self.index.clear_reported(id);
                self.model.clear_reported(worker);
            }
            2 => {
                self.trail.push(format!("leave w{worker}"));
                self.index.leave(id);
                self.model.workers.remove(&worker);
                // The number may stay free for a while, and reports for it still arrive.
                if self.numbers.as_mut().is_none_or(|it| it.below(2) == 0) {
                    self.join();
                }
            }
            3 => {
                let source = [CacheSource::Predicted, CacheSource::Reported][self.rng.below(2)];
                self.trail.push(format!("source w{worker} {source:?}"));
                self.index.set_source(id, source);
                if let Some(worker) = self.model.workers.get_mut(&worker) {
                    worker.source = source;
                    worker.trim();
                }
            }
            4 => {
                let blocks = 1 + self.rng.below(300) as u32;
                self.trail.push(format!("capacity w{worker} {blocks}"));
                self.index.set_capacity(id, blocks);
                self.model.set_capacity(worker, blocks);
            }
            _ => {
                let most = if self.rng.below(20) == 0 { 700_000 } else { 2_000 };
                self.now = self.now + std::time::Duration::from_millis(self.rng.below(most) as u64);
                self.trail.push("tick".to_owned());
                self.index.tick(self.now);
                self.model.tick(self.now);
                if self.numbers.as_mut().is_some_and(|it| it.below(3) == 0) && self.model.workers.len() < 5 {
                    self.join();
                }
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..6 => self.store(),
            6..11 => self.remove(),
            11 => self.placeholder(),
            12..15 => self.predict(),
            15..19 => self.follow_up(),
            _ => self.turn(),
        }
    }

    fn compare(&mut self) {
        let prompt = self.prompt();
        self.index.look_up(chain(&chain_of(&prompt)), &mut self.out);
        for worker in 0..self.next_worker {
            let id = WorkerId(worker);
            let expected = self.model.look_up(worker, &prompt);
            assert_eq!(self.out.of(id), expected, "w{worker}, {prompt:?}");
            let (numbers, plain) = (self.index.numbers(id), self.model.workers.get(&worker));
            let numbers = numbers.map(|it| {
                (
                    it.reported_blocks as usize,
                    it.predicted_blocks as usize,
                    it.near_blocks as usize,
                    it.parked_blocks as usize,
                    it.capacity_blocks,
                )
            });
            let plain = plain.map(|it| {
                let (reported, predicted, near) = it.blocks();
                (reported, predicted, near, it.parked_blocks(), it.capacity())
            });
            assert_eq!(numbers, plain, "w{worker}: reported, predicted, near, parked, capacity");
        }
    }

    fn run(mut self, seed: u64, steps: usize) {
        for _ in 0..steps {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.step();
                self.compare();
            }));
            if outcome.is_err() {
                let from = self.trail.len().saturating_sub(60);
                panic!(
                    "seed {seed}, after {} operations, the last:\n{}",
                    self.trail.len(),
                    self.trail[from..].join("\n")
                );
            }
        }
        for worker in 0..self.next_worker {
            self.index.leave(WorkerId(worker));
        }
        assert_eq!(self.index.blocks(), 0, "seed {seed}: blocks without a holder remain");
    }
}

#[test]
fn matches_the_model_under_random_operations() {
    // Seed 1119 found a fault: a chain that diverged in the middle of a run touched blocks it did not cover.
    for seed in (0..16).chain([1119]) {
        Duel::new(seed, None).run(seed, 300);
    }
}

#[test]
fn doubted_reports_hold_what_they_held_on_the_gpu_until_the_cache_is_full() {
    for seed in 0..12 {
        let mut duel = Duel::new(seed, None);
        (0..120).for_each(|_| duel.step());
        let prompts: Vec<Vec<u8>> = (0..30).map(|_| duel.prompt()).collect();
        for worker in (0..duel.next_worker).map(WorkerId) {
            duel.index.set_capacity(worker, 10_000);
            let mut held = |index: &mut Index| -> Vec<(u32, u32)> {
                let look = |prompt: &Vec<u8>| {
                    index.look_up(chain(&chain_of(prompt)), &mut duel.out);
                    (duel.out.of(worker).blocks, duel.out.of(worker).lower)
                };
                prompts.iter().map(look).collect()
            };
            let before = held(&mut duel.index);
            duel.index.doubt_reported(worker);
            let near: Vec<(u32, u32)> = before.iter().map(|it| (it.0, 0)).collect();
            assert_eq!(held(&mut duel.index), near, "seed {seed}, {worker}");
            let numbers = duel.index.numbers(worker).unwrap_or_default();
            assert_eq!((numbers.reported_blocks, numbers.parked_blocks), (0, 0), "seed {seed}, {worker}");
            duel.index.set_capacity(worker, 20);
            assert!(duel.index.numbers(worker).unwrap_or_default().near_blocks <= 20);
        }
        (0..duel.next_worker).for_each(|it| duel.index.leave(WorkerId(it)));
        assert_eq!(duel.index.blocks(), 0, "seed {seed}: blocks that nobody holds are left");
    }
}

#[test]
fn a_worker_that_reuses_a_number_starts_with_no_holdings() {
    for seed in 0..6 {
        Duel::new(seed, Some(Rng::new(!seed))).run(seed, 250);
    }
}

#[test]
fn names_that_engines_use_again_leave_nothing_behind() {
    for seed in 0..6 {
        let reused = Some(Rng::new(!seed));
        let mut duel = Duel { reused, ..Duel::new(seed, None) };
        // Without predictions: the model does not know what such a name does to them.
        for step in 0..120 {
            if step % 3 == 2 {
                duel.remove()
            } else {
                duel.store()
            }
            duel.compare();
        }
        (0..duel.next_worker).for_each(|it| duel.index.leave(WorkerId(it)));
        assert_eq!(duel.index.blocks(), 0, "seed {seed}: blocks that nobody holds are left");
    }
}

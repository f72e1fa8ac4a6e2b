//! What a real engine published, read and applied, is what that engine held.
//!
//! The plain version of the index is a map: from the engine's name of a block to how many copies there are
//! and to all the tokens up to its end. After every message of the capture the index must know as many
//! blocks, and hold of every prompt that was ever there exactly the blocks that lie there without a gap.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../../dialect/tests/fixtures/capture.rs"]
mod fixture;

use std::collections::{BTreeMap, BTreeSet};

use maitre_base::{KvEvent, StoredBlocks, WorkerId};
use maitre_dialect::kv::{self, EventBatch, Groups};
use maitre_index::prefix::{self, Unit};
use maitre_index::{Chain, GRAIN, Holding, Holdings, Index, IndexSettings, PrefixHash, Root};

/// A block by all that its prefix hash stands for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    salt: Option<String>,
    /// Tokens per block of the index.
    block_tokens: u32,
    /// From the beginning of the prompt to the end of the block.
    tokens: Vec<u32>,
}

impl Block {
    fn root(&self) -> Root {
        root(self.salt.as_deref())
    }

    fn chain(&self) -> Vec<PrefixHash> {
        let mut chain = Vec::new();
        prefix::chain(self.root(), &self.tokens, self.block_tokens as usize, &mut chain);
        chain
    }
}

const MODEL: &str = "model";

fn root(salt: Option<&str>) -> Root {
    Root::new(Unit::Tokens, MODEL, None, salt)
}

/// What one replica holds in one lifetime.
#[derive(Default)]
struct Plain {
    copies: BTreeMap<u64, (u32, Block)>,
}

impl Plain {
    fn apply(&mut self, event: &KvEvent<'_>) {
        match *event {
            KvEvent::Stored(stored) => self.store(&stored),
            KvEvent::Removed { names, .. } => {
                for name in names {
                    let (copies, _) = self.copies.get_mut(name).expect("a block that is there");
                    *copies -= 1;
                    if *copies == 0 {
                        self.copies.remove(name);
                    }
                }
            }
            KvEvent::Cleared => self.copies.clear(),
        }
    }

    fn store(&mut self, stored: &StoredBlocks<'_>) {
        let parent = stored.parent.map(|it| self.copies[&it].1.clone());
        let mut block = parent.unwrap_or_else(|| Block {
            salt: stored.salt.map(str::to_owned),
            block_tokens: stored.block_tokens.max(GRAIN),
            tokens: Vec::new(),
        });
        for (name, tokens) in stored.names.iter().zip(stored.tokens.chunks(stored.block_tokens as usize)) {
            block.tokens.extend_from_slice(tokens);
            let (copies, known) = self.copies.entry(*name).or_insert_with(|| (0, block.clone()));
            assert!(*known == block, "one name, two blocks");
            *copies += 1;
        }
    }

    fn whole(&self) -> impl Iterator<Item = &Block> {
        let blocks = self.copies.values().map(|it| &it.1);
        blocks.filter(|it| it.tokens.len().is_multiple_of(it.block_tokens as usize))
    }

    /// The blocks that are there, by their hashes and lengths: a block in two copies, or under two names,
    /// is one. Of small pages, the last of each group stands for the group.
    fn resident(&self) -> BTreeSet<(u32, PrefixHash)> {
        let blocks: BTreeSet<&Block> = self.whole().collect();
        let hash = |it: &&Block| (it.block_tokens, it.root().start().then_all(&it.tokens));
        let hashes: BTreeSet<(u32, PrefixHash)> = blocks.iter().map(hash).collect();
        assert_eq!(hashes.len(), blocks.len(), "two blocks of one hash");
        hashes
    }
}

/// One replica, as it was and as the index sees it.
struct Replica {
    worker: WorkerId,
    plain: Plain,
    groups: Groups,
    lifetimes: usize,
}

fn apply(index: &mut Index, worker: WorkerId, event: &KvEvent<'_>) {
    match *event {
        KvEvent::Stored(blocks) => {
            index.store(worker, MODEL, &blocks);
        }
        KvEvent::Removed { names, tier } => {
            index.remove(worker, names, tier);
        }
        KvEvent::Cleared => index.clear(worker),
    }
}

#[derive(Default)]
struct Checker {
    /// Every chain that was ever there, by its length of block and its last hash.
    chains: BTreeMap<(u32, PrefixHash), Vec<PrefixHash>>,
    holdings: Holdings,
    /// How many answers were compared, and in how many of them something but not all was held.
    compared: usize,
    partial: usize,
}

impl Checker {
    fn remember(&mut self, plain: &Plain) {
        for block in plain.whole() {
            let key = (block.block_tokens, block.root().start().then_all(&block.tokens));
            self.chains.entry(key).or_insert_with(|| block.chain());
        }
    }

    fn check(&mut self, index: &mut Index, replicas: &BTreeMap<char, Replica>) {
        let resident: Vec<_> = replicas.values().map(|it| (it.worker, it.plain.resident())).collect();
        for (worker, blocks) in &resident {
            let numbers = index.numbers(*worker).unwrap();
            assert_eq!(numbers.reported_blocks as usize, blocks.len(), "of {worker:?}");
            assert_eq!(
                (numbers.unknown, numbers.ignored, numbers.dropped, numbers.parked_blocks),
                (0, 0, 0, 0)
            );
        }
        for (&(block_tokens, _), prefixes) in &self.chains {
            index.look_up(Chain { block_tokens, prefixes }, &mut self.holdings);
            for (worker, blocks) in &resident {
                let held = prefixes.iter().take_while(|&&it| blocks.contains(&(block_tokens, it))).count();
                let expected = Holding { blocks: held as u32, lower: 0 };
                assert_eq!(self.holdings.of(*worker), expected, "{worker:?}, {} blocks", prefixes.len());
                self.compared += 1;
                self.partial += usize::from(held > 0 && held < prefixes.len());
            }
        }
    }
}

/// Applies a capture, and counts its replicas and lifetimes.
#[track_caller]
fn check(records: impl Iterator<Item = fixture::Record>, expected: (usize, usize)) {
    let (mut index, mut batch) = (Index::new(IndexSettings::default()), EventBatch::default());
    let (mut replicas, mut checker) = (BTreeMap::<char, Replica>::new(), Checker::default());
    for record in records {
        let next = WorkerId(replicas.len() as u32);
        let replica = replicas.entry(record.replica).or_insert_with(|| {
            index.join(next);
            Replica { worker: next, plain: Plain::default(), groups: Groups::default(), lifetimes: 0 }
        });
        if record.seq == 0 {
            // Another process: nothing that was known of the last one holds.
            index.clear(replica.worker);
            (replica.plain, replica.groups) = (Plain::default(), Groups::default());
            replica.lifetimes += 1;
        }
        kv::decode(record.payload, &mut replica.groups, &mut batch).unwrap();
        for event in batch.events() {
            apply(&mut index, replica.worker, &event);
            replica.plain.apply(&event);
            checker.remember(&replica.plain);
        }
        checker.check(&mut index, &replicas);
    }
    let lifetimes: usize = replicas.values().map(|it| it.lifetimes).sum();
    assert_eq!((replicas.len(), lifetimes), expected);
    assert!(checker.compared > 10_000 && checker.partial > 100, "{} {}", checker.compared, checker.partial);
}

#[test]
fn the_index_holds_what_a_real_vllm_held_after_every_message() {
    check(fixture::of_vllm(), (2, 5));
}

#[test]
fn the_index_holds_what_a_real_sglang_held_after_every_message() {
    check(fixture::of_sglang(), (2, 3));
}

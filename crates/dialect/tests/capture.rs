//! Decodes what real engines published and applies it to a naive cache, which must never contradict it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "fixtures/capture.rs"]
mod fixture;

use std::collections::BTreeMap;

use maitre_base::{KvEvent, StoredBlocks, Tier};
use maitre_dialect::kv::{self, EventBatch, Groups};

/// The blocks of one replica during one lifetime, with the number of copies of each.
#[derive(Default)]
struct Cache {
    copies: BTreeMap<u64, u32>,
    next_seq: u64,
}

/// Totals of the whole capture.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    lifetimes: usize,
    stored_blocks: usize,
    removed_blocks: usize,
    salted_stores: usize,
    clears: usize,
}

impl Cache {
    fn apply(&mut self, event: KvEvent<'_>, sums: &mut Sums) {
        match event {
            KvEvent::Stored(stored) => self.store(stored, sums),
            KvEvent::Removed { names, tier } => {
                assert_eq!(tier, Tier::Gpu);
                sums.removed_blocks += names.len();
                names.iter().for_each(|name| self.remove(*name));
            }
            KvEvent::Cleared => {
                sums.clears += 1;
                self.copies.clear();
            }
        }
    }

    fn store(&mut self, stored: StoredBlocks<'_>, sums: &mut Sums) {
        assert!(!stored.names.is_empty());
        assert_eq!(stored.tokens.len(), stored.names.len() * stored.block_tokens as usize);
        assert!([1, 16, 32, 128].contains(&stored.block_tokens));
        assert!(stored.tokens.iter().all(|&token| token < 8192), "the model knows no more tokens");
        assert!(stored.parent.is_none_or(|it| self.copies.contains_key(&it)), "an unknown parent");
        // SGLang repeats the salt.
        let may_have_salt = stored.parent.is_none() || stored.block_tokens < 32;
        assert!(stored.salt.is_none() || may_have_salt, "a salt in the middle");
        assert_eq!((stored.adapter, stored.extras, stored.tier), (None, &[] as &[u64], Tier::Gpu));
        sums.stored_blocks += stored.names.len();
        sums.salted_stores += usize::from(stored.salt == Some("tenant-7"));
        stored.names.iter().for_each(|name| *self.copies.entry(*name).or_default() += 1);
    }

    fn remove(&mut self, name: u64) {
        let copies = self.copies.get_mut(&name).expect("a block that was never stored");
        *copies -= 1;
        if *copies == 0 {
            self.copies.remove(&name);
        }
    }
}

/// Applies messages in order.
fn run(records: impl Iterator<Item = (char, u64, Vec<u8>)>) -> (Sums, BTreeMap<char, Cache>) {
    let (mut sums, mut caches) = (Sums::default(), BTreeMap::<char, Cache>::new());
    let (mut batch, mut groups) = (EventBatch::default(), Groups::default());
    for (replica, seq, payload) in records {
        let cache = caches.entry(replica).or_default();
        if seq == 0 {
            *cache = Cache::default();
            sums.lifetimes += 1;
        }
        assert_eq!(seq, cache.next_seq, "of {replica}");
        cache.next_seq += 1;
        kv::decode(&payload, &mut groups, &mut batch).unwrap();
        assert_eq!((batch.rank(), batch.skipped()), (Some(0), kv::Skipped::default()));
        assert!((1.7e9..1.9e9).contains(&batch.unix_seconds()));
        batch.events().for_each(|event| cache.apply(event, &mut sums));
    }
    (sums, caches)
}

#[test]
fn every_message_of_a_real_vllm_is_read() {
    let records = fixture::of_vllm().map(|it| (it.replica, it.seq, it.payload.to_vec()));
    // A reader in another language counted these numbers from the same bytes.
    let (sums, caches) = run(records);
    let expected =
        Sums { lifetimes: 5, stored_blocks: 876, removed_blocks: 189, salted_stores: 4, clears: 1 };
    assert_eq!(sums, expected);
    let held: Vec<_> = caches.iter().map(|(replica, cache)| (*replica, cache.copies.len())).collect();
    assert_eq!(held, [('a', 71), ('b', 55)]);
}

#[test]
fn every_message_of_a_real_sglang_is_read() {
    let records = fixture::of_sglang().map(|it| (it.replica, it.seq, it.payload.to_vec()));
    let (sums, caches) = run(records);
    // Counted in another language too. Each lifetime begins with a clear.
    let expected =
        Sums { lifetimes: 3, stored_blocks: 5_344, removed_blocks: 4_405, salted_stores: 23, clears: 5 };
    assert_eq!(sums, expected);
    let held: Vec<_> = caches.iter().map(|(replica, cache)| (*replica, cache.copies.len())).collect();
    assert_eq!(held, [('a', 60), ('b', 78)]);
}

#[test]
fn every_truncated_real_message_is_malformed() {
    let (mut batch, mut groups) = (EventBatch::default(), Groups::default());
    // All messages would be a hundred million bytes to read; the shortest contain every kind of event.
    for record in fixture::of_vllm().filter(|it| it.payload.len() < 1_000) {
        for length in 0..record.payload.len() {
            assert!(
                kv::decode(&record.payload[..length], &mut groups, &mut batch).is_err(),
                "{length} bytes"
            );
            assert_eq!(batch.events().count(), 0);
        }
    }
}

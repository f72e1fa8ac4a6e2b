//! Ids of texts tokenized before, within a budget of bytes.
//!
//! Two generations: a used entry moves to the young one; when that is full it becomes the old one, and the old one is
//! dropped. This approximates least-recently-used without a list. The text itself is the key, compared in full, so a
//! collision cannot return the ids of another text. The map's hasher is seeded per process, so a client cannot aim at
//! one bucket.
//!
//! Sharded, because lanes on several threads share one model: a lock is held for one look-up.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

/// What an entry costs beyond its text and ids: two fat pointers, two reference counts and its share of
/// the map. Counted by hand, rounded up.
const ENTRY_BYTES: usize = 96;

/// Enough that two lanes seldom need the same lock.
const SHARDS: usize = 8;

pub(crate) struct PieceCache {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    young: HashMap<Box<str>, Arc<[u32]>>,
    old: HashMap<Box<str>, Arc<[u32]>>,
    young_bytes: usize,
    /// The limit of each generation: both together stay within the budget.
    generation_bytes: usize,
}

impl PieceCache {
    /// Holds at most `bytes` of texts, ids and bookkeeping. Zero remembers nothing.
    pub(crate) fn new(bytes: usize) -> PieceCache {
        let generation_bytes = bytes / SHARDS / 2;
        let shard = |_| Mutex::new(Shard { generation_bytes, ..Shard::default() });
        PieceCache { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }

    pub(crate) fn get(&self, text: &str) -> Option<Arc<[u32]>> {
        self.shard(text).lock().get(text)
    }

    /// Whether `get` would find it, without counting as a use.
    pub(crate) fn holds(&self, text: &str) -> bool {
        let shard = self.shard(text).lock();
        shard.young.contains_key(text) || shard.old.contains_key(text)
    }

    pub(crate) fn put(&self, text: &str, ids: &Arc<[u32]>) {
        self.shard(text).lock().put(text.into(), Arc::clone(ids));
    }

    fn shard(&self, text: &str) -> &Mutex<Shard> {
        // The head and the length spread keys well enough; the map hashes the whole text.
        let head = &text.as_bytes()[..text.len().min(64)];
        &self.shards[self.hasher.hash_one((head, text.len())) as usize % SHARDS]
    }
}

impl Shard {
    fn get(&mut self, text: &str) -> Option<Arc<[u32]>> {
        if let Some(ids) = self.young.get(text) {
            return Some(Arc::clone(ids));
        }
        let (text, ids) = self.old.remove_entry(text)?;
        self.put(text, Arc::clone(&ids));
        Some(ids)
    }

    fn put(&mut self, text: Box<str>, ids: Arc<[u32]>) {
        let bytes = text.len() + size_of_val::<[u32]>(&ids) + ENTRY_BYTES;
        if bytes > self.generation_bytes {
            return;
        }
        if self.young_bytes + bytes > self.generation_bytes {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(text, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(of: &str) -> Arc<[u32]> {
        of.bytes().map(u32::from).collect()
    }

    impl PieceCache {
        fn bytes(&self) -> usize {
            let of = |map: &HashMap<Box<str>, Arc<[u32]>>| -> usize {
                map.iter().map(|(text, ids)| text.len() + 4 * ids.len() + ENTRY_BYTES).sum()
            };
            self.shards.iter().map(|it| it.lock()).map(|it| of(&it.young) + of(&it.old)).sum()
        }
    }

    #[test]
    fn stored_entries_are_found_and_no_others() {
        let cache = PieceCache::new(1 << 20);
        cache.put("a", &ids("a"));
        assert_eq!(cache.get("a").as_deref(), Some(&[97][..]));
        assert!(cache.holds("a"));
        assert_eq!(cache.get("b"), None);
    }

    #[test]
    fn the_budget_holds_whatever_comes() {
        let cache = PieceCache::new(100_000);
        for at in 0..10_000 {
            let text = format!("{at} {}", "x".repeat(at % 97));
            cache.put(&text, &ids(&text));
            assert!(cache.bytes() <= 100_000, "{} bytes after {at}", cache.bytes());
        }
        assert!(cache.bytes() > 40_000, "a cache that holds nothing is no cache: {}", cache.bytes());
    }

    #[test]
    fn used_entries_outlive_unused_ones() {
        let cache = PieceCache::new(100_000);
        cache.put("used", &ids("used"));
        cache.put("unused", &ids("unused"));
        for at in 0..10_000 {
            let text = format!("other {at}");
            cache.put(&text, &ids(&text));
            assert!(cache.get("used").is_some(), "after {at}");
        }
        assert_eq!(cache.get("unused"), None);
    }

    #[test]
    fn an_entry_over_the_limit_is_not_kept_and_evicts_nothing() {
        let cache = PieceCache::new(20_000);
        cache.put("small", &ids("small"));
        let large = "x".repeat(50_000);
        cache.put(&large, &ids(&large));
        assert!(cache.get("small").is_some() && cache.get(&large).is_none());
        let none = PieceCache::new(0);
        none.put("a", &ids("a"));
        assert_eq!(none.get("a"), None);
    }
}

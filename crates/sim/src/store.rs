//! A KV store that several engines share: LMCache, Mooncake's store, pooled CPU memory.
//!
//! Blocks are known by their names, which are the same at all engines. An engine writes the prompts that it has
//! prefilled, and loads leading blocks that it lacks, at any cost, as LMCache does. The least recently used blocks
//! leave first, and within one prompt the tail before the head, because a tail is useless without its head.
//!
//! Left out: the time to write, answers (LMCache leaves them out too unless asked), and a store that fails.

use std::str::FromStr;
use std::sync::Arc;

use maitre_base::hash::NumberMap;
use parking_lot::Mutex;

/// Closes the list of blocks into a ring: after it the newest block, before it the oldest.
const RING: u32 = 0;

/// A store's content. It holds names only: the KV itself is time.
#[derive(Debug)]
pub struct KvStore {
    capacity: usize,
    places: NumberMap<u32>,
    blocks: Vec<StoreBlock>,
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct StoreBlock {
    name: u64,
    newer: u32,
    older: u32,
}

/// What writing a prompt changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreChange {
    /// The block with this index in the prompt is new.
    Written {
        index: usize,
    },
    Evicted {
        name: u64,
    },
}

/// How large a store is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoreSize {
    Tokens(u64),
    /// This many times the caches of all its members.
    Caches(f64),
}

/// Names and places of this many blocks take about 8 GB.
const BLOCKS_MAX: u64 = 1 << 28;

impl StoreSize {
    /// The size in blocks, for members whose caches have this many tokens together.
    pub fn blocks(self, cache_tokens: u64, block_tokens: u32) -> Result<usize, String> {
        let tokens = match self {
            StoreSize::Tokens(tokens) => tokens,
            StoreSize::Caches(times) => (cache_tokens as f64 * times) as u64,
        };
        let blocks = tokens / u64::from(block_tokens.max(1));
        match usize::try_from(blocks) {
            Ok(count) if (1..=BLOCKS_MAX).contains(&blocks) => Ok(count),
            _ => Err(format!("{blocks} blocks of {block_tokens} tokens; 1 to {BLOCKS_MAX} are possible")),
        }
    }
}

impl FromStr for StoreSize {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreSize, String> {
        let size = match text.strip_suffix('x') {
            Some(times) => times.parse().ok().filter(|it| *it > 0.0 && *it <= 1e6).map(StoreSize::Caches),
            None => text.parse().ok().filter(|it| *it > 0).map(StoreSize::Tokens),
        };
        size.ok_or_else(|| {
            "write tokens, such as 4000000, or a multiple of all caches, such as 4x".to_owned()
        })
    }
}

/// A member's handle to the store.
#[derive(Clone, Debug)]
pub struct SharedStore(Arc<Mutex<KvStore>>);

impl SharedStore {
    /// A store with room for this many blocks, at least one.
    pub fn new(capacity_blocks: usize) -> SharedStore {
        SharedStore(Arc::new(Mutex::new(KvStore::new(capacity_blocks))))
    }

    /// How many of these blocks it has, up to the first that it lacks. They now count as used.
    pub(crate) fn find(&self, names: &[u64]) -> usize {
        self.0.lock().find(names)
    }

    /// Writes the blocks of a prompt. Blocks that it has already now count as used.
    pub(crate) fn write(&self, names: &[u64], changed: impl FnMut(StoreChange)) {
        self.0.lock().write(names, changed);
    }

    pub fn capacity_blocks(&self) -> usize {
        self.0.lock().capacity
    }

    pub fn used_blocks(&self) -> usize {
        self.0.lock().places.len()
    }

    pub fn evictions(&self) -> u64 {
        self.0.lock().evictions
    }
}

impl KvStore {
    fn new(capacity: usize) -> KvStore {
        let ring = StoreBlock { name: 0, newer: RING, older: RING };
        let capacity = capacity.clamp(1, u32::MAX as usize - 1);
        KvStore { capacity, places: NumberMap::default(), blocks: vec![ring], evictions: 0 }
    }

    fn find(&mut self, names: &[u64]) -> usize {
        let found = names.iter().take_while(|it| self.places.contains_key(it)).count();
        for name in names[..found].iter().rev() {
            let place = self.places[name];
            self.unlink(place);
            self.link(place);
        }
        found
    }

    fn write(&mut self, names: &[u64], mut changed: impl FnMut(StoreChange)) {
        // The head last, so that it leaves last. If a prompt is larger than the store, its head stays.
        for (index, &name) in names.iter().enumerate().take(self.capacity).rev() {
            if let Some(&place) = self.places.get(&name) {
                self.unlink(place);
                self.link(place);
                continue;
            }
            let place = self.free_place(&mut changed);
            self.blocks[place as usize].name = name;
            self.places.insert(name, place);
            self.link(place);
            changed(StoreChange::Written { index });
        }
    }

    /// A place that is in no list: a new one, or the oldest block's.
    fn free_place(&mut self, changed: &mut impl FnMut(StoreChange)) -> u32 {
        if self.places.len() < self.capacity {
            self.blocks.push(StoreBlock { name: 0, newer: RING, older: RING });
            return self.blocks.len() as u32 - 1;
        }
        let oldest = self.blocks[RING as usize].newer;
        self.unlink(oldest);
        let name = self.blocks[oldest as usize].name;
        self.places.remove(&name);
        self.evictions += 1;
        changed(StoreChange::Evicted { name });
        oldest
    }

    fn unlink(&mut self, place: u32) {
        let StoreBlock { newer, older, .. } = self.blocks[place as usize];
        self.blocks[newer as usize].older = older;
        self.blocks[older as usize].newer = newer;
    }

    /// Makes a block the newest.
    fn link(&mut self, place: u32) {
        let newest = self.blocks[RING as usize].older;
        let block = &mut self.blocks[place as usize];
        (block.newer, block.older) = (RING, newest);
        self.blocks[newest as usize].newer = place;
        self.blocks[RING as usize].older = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::{any, prop, proptest};

    /// Writes prompts one after the other; returns what the last one changed.
    fn last_changes(capacity: usize, prompts: &[&[u64]]) -> Vec<StoreChange> {
        let mut store = KvStore::new(capacity);
        let mut changes = Vec::new();
        for prompt in prompts {
            changes.clear();
            store.write(prompt, |it| changes.push(it));
        }
        changes
    }

    use StoreChange::{Evicted, Written};

    #[test]
    fn the_least_recently_used_leave_first_and_tails_before_heads() {
        assert_eq!(last_changes(4, &[&[1, 2]]), [Written { index: 1 }, Written { index: 0 }]);
        assert_eq!(last_changes(4, &[&[1, 2], &[3, 4], &[5]]), [Evicted { name: 2 }, Written { index: 0 }]);
        // The first prompt was used again.
        assert_eq!(
            last_changes(4, &[&[1, 2], &[3, 4], &[1, 2], &[5]]),
            [Evicted { name: 4 }, Written { index: 0 }]
        );
    }

    #[test]
    fn of_a_prompt_larger_than_the_store_the_head_stays() {
        let mut store = KvStore::new(2);
        store.write(&[1, 2, 3, 4], |_| {});
        assert_eq!((store.find(&[1, 2, 3, 4]), store.evictions), (2, 0));
    }

    #[test]
    fn sizes_are_tokens_or_multiples_of_the_caches() {
        assert_eq!("4000000".parse(), Ok(StoreSize::Tokens(4_000_000)));
        assert_eq!("0.5x".parse(), Ok(StoreSize::Caches(0.5)));
        for text in ["", "x", "0", "-1x", "0x", "NaNx", "4 x", "many"] {
            assert!(text.parse::<StoreSize>().is_err(), "{text}");
        }
        assert_eq!(StoreSize::Caches(0.5).blocks(6_400, 16), Ok(200));
        assert_eq!(StoreSize::Tokens(100).blocks(0, 16), Ok(6));
        assert!(StoreSize::Tokens(15).blocks(0, 16).is_err());
        assert!(StoreSize::Caches(1e6).blocks(1 << 40, 1).is_err());
    }

    #[test]
    fn what_is_found_is_used() {
        let mut store = KvStore::new(3);
        store.write(&[1, 2], |_| {});
        store.write(&[3], |_| {});
        assert_eq!(store.find(&[1, 9, 2]), 1);
        store.write(&[4, 5], |_| {});
        assert_eq!([1, 2, 3].map(|it| store.find(&[it])), [1, 0, 0]);
    }

    proptest! {
        /// Against a list in order of use.
        #[test]
        fn it_is_a_list_in_order_of_use(
            capacity in 1..12_usize,
            prompts in prop::collection::vec((any::<bool>(), prop::collection::vec(0..20_u64, 0..8)), 0..60),
        ) {
            let mut store = KvStore::new(capacity);
            let mut plain: Vec<u64> = Vec::new();
            for (is_read, mut prompt) in prompts {
                prompt.sort_unstable();
                prompt.dedup();
                let mut evicted = Vec::new();
                let mut touched = match is_read {
                    true => {
                        let found = prompt.iter().take_while(|it| plain.contains(it)).count();
                        assert_eq!(store.find(&prompt), found);
                        prompt.truncate(found);
                        prompt
                    }
                    false => {
                        store.write(&prompt, |it| if let Evicted { name } = it { evicted.push(name) });
                        prompt.truncate(capacity);
                        prompt
                    }
                };
                let mut gone = Vec::new();
                while let Some(name) = touched.pop() {
                    match plain.iter().position(|&it| it == name) {
                        Some(place) => drop(plain.remove(place)),
                        None if plain.len() == capacity => gone.push(plain.remove(0)),
                        None => {}
                    }
                    plain.push(name);
                }
                assert_eq!(evicted, gone);
                assert_eq!(store.places.len(), plain.len());
                assert!(plain.iter().all(|it| store.places.contains_key(it)));
            }
        }
    }
}

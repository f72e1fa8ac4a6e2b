//! Stored blocks whose parent is unknown, kept until it arrives.
//!
//! Events may arrive out of order, and a subscriber may join late. A block without its position is useless,
//! and at a wrong position harmful. So it is parked here, within limits: the oldest are dropped first.
//!
//! When an engine removes a parked block, that block and those after it are dropped.

use maitre_base::{StoredBlocks, Tier};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum parked stores. Chosen: a scheduler step stores for some tens of requests, and events are out of
/// order by a step or two.
pub(crate) const STORES_MAX: usize = 256;

/// Maximum parked bytes. Chosen: a page of SGLang's default size takes 44 of them.
pub(crate) const BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) parent: u64,
    pub(crate) names: Vec<u64>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) extras: Vec<u64>,
    pub(crate) block_tokens: u32,
    pub(crate) tier: Tier,
}

impl Waiting {
    pub(crate) fn new(parent: u64, stored: &StoredBlocks<'_>) -> Waiting {
        Waiting {
            parent,
            names: stored.names.to_vec(),
            tokens: stored.tokens.to_vec(),
            extras: stored.extras.to_vec(),
            block_tokens: stored.block_tokens,
            tier: stored.tier,
        }
    }

    /// Includes the two indices, at about the size of a tree's entry of two words.
    fn bytes(&self) -> usize {
        256 + self.names.capacity() * 40 + self.tokens.capacity() * 4 + self.extras.capacity() * 8
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    /// In order of arrival.
    stores: BTreeMap<u64, Waiting>,
    by_parent: BTreeSet<(u64, u64)>,
    by_name: BTreeSet<(u64, u64)>,
    next: u64,
    bytes: usize,
}

impl Parked {
    pub(crate) fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    pub(crate) fn blocks(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Parks a store. Returns how many blocks were dropped to make room.
    pub(crate) fn park(&mut self, waiting: Waiting) -> usize {
        if waiting.bytes() > BYTES_MAX {
            return waiting.names.len();
        }
        let number = self.next;
        self.next += 1;
        self.bytes += waiting.bytes();
        self.by_parent.insert((waiting.parent, number));
        self.by_name.extend(waiting.names.iter().map(|&name| (name, number)));
        self.stores.insert(number, waiting);
        let mut dropped = 0;
        while (self.stores.len() > STORES_MAX || self.bytes > BYTES_MAX)
            && let Some((&oldest, _)) = self.stores.first_key_value()
        {
            dropped += self.take(oldest).map_or(0, |it| it.names.len());
        }
        dropped
    }

    /// The oldest parked store with this parent.
    pub(crate) fn take_child(&mut self, parent: u64) -> Option<Waiting> {
        let &(_, number) = self.by_parent.range((parent, 0)..=(parent, u64::MAX)).next()?;
        self.take(number)
    }

    /// The stores whose parent is not parked, newest first, and how many parked blocks follow that parent.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (&Waiting, usize)> {
        let is_parked = |name: u64| self.by_name.range((name, 0)..=(name, u64::MAX)).next().is_some();
        let roots = self.stores.values().rev().filter(move |it| !is_parked(it.parent));
        roots.map(|it| (it, self.blocks_from(it)))
    }

    /// The blocks of this store and of those that follow it. If several follow one block, the oldest counts.
    fn blocks_from(&self, first: &Waiting) -> usize {
        let (mut blocks, mut last) = (first.names.len(), first.names.last());
        for _ in 0..self.stores.len() {
            let Some(&parent) = last else { break };
            let child = self.by_parent.range((parent, 0)..=(parent, u64::MAX)).next();
            let Some(child) = child.and_then(|it| self.stores.get(&it.1)) else { break };
            blocks += child.names.len();
            last = child.names.last();
        }
        blocks
    }

    /// Drops one copy of a parked block and the blocks after it. False if there is none.
    pub(crate) fn remove(&mut self, name: u64) -> bool {
        let Some(&(_, number)) = self.by_name.range((name, 0)..=(name, u64::MAX)).next() else {
            return false;
        };
        let Some(mut waiting) = self.take(number) else { return false };
        let at = waiting.names.iter().position(|&it| it == name).unwrap_or(0);
        waiting.names.truncate(at);
        if at > 0 {
            self.bytes += waiting.bytes();
            self.by_parent.insert((waiting.parent, number));
            self.by_name.extend(waiting.names.iter().map(|&name| (name, number)));
            self.stores.insert(number, waiting);
        }
        true
    }

    fn take(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.stores.remove(&number)?;
        self.bytes -= waiting.bytes();
        self.by_parent.remove(&(waiting.parent, number));
        for &name in &waiting.names {
            self.by_name.remove(&(name, number));
        }
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(parent: u64, names: &[u64]) -> Waiting {
        Waiting {
            parent,
            names: names.to_vec(),
            tokens: Vec::new(),
            extras: Vec::new(),
            block_tokens: 16,
            tier: Tier::Gpu,
        }
    }

    #[test]
    fn the_oldest_stores_are_dropped_first() {
        let mut parked = Parked::default();
        let dropped: usize =
            (0..STORES_MAX as u64 + 3).map(|it| parked.park(waiting(it, &[1_000 + it]))).sum();
        assert_eq!(dropped, 3);
        assert!(parked.take_child(2).is_none());
        assert_eq!(parked.take_child(3).map(|it| it.names), Some(vec![1_003]));
        assert!(parked.bytes() <= BYTES_MAX);
    }

    #[test]
    fn a_store_over_the_byte_limit_is_dropped() {
        let mut parked = Parked::default();
        assert_eq!(parked.park(waiting(1, &vec![7; BYTES_MAX / 8])), BYTES_MAX / 8);
        assert!(parked.is_empty() && parked.bytes() == 0);
    }

    #[test]
    fn removing_a_block_drops_the_blocks_after_it() {
        let mut parked = Parked::default();
        parked.park(waiting(1, &[2, 3, 4]));
        assert!(parked.remove(3));
        assert!(!parked.remove(4));
        assert_eq!(parked.take_child(1).map(|it| it.names), Some(vec![2]));
        assert!(parked.is_empty() && parked.bytes() == 0 && parked.blocks() == 0);
    }
}

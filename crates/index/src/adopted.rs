//! Parents that `adopt` learned, and what to forget with each of them.

use std::collections::BTreeMap;

use maitre_base::hash::mix;

/// Maximum blocks held under names of our own, for one worker: half a megabyte of lists. Chosen: a million
/// tokens, most of a large cache.
const BLOCKS_MAX: usize = 65_536;

/// Adopted parents, each with the prefix hashes of its ancestors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted {
    ancestors: BTreeMap<u64, Box<[u64]>>,
    blocks: usize,
}

impl Adopted {
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        self.blocks + blocks <= BLOCKS_MAX
    }

    pub(crate) fn insert(&mut self, parent: u64, ancestors: Box<[u64]>) {
        self.remove(parent);
        self.blocks += ancestors.len();
        self.ancestors.insert(parent, ancestors);
    }

    pub(crate) fn remove(&mut self, parent: u64) -> Option<Box<[u64]>> {
        let ancestors = self.ancestors.remove(&parent)?;
        self.blocks -= ancestors.len();
        Some(ancestors)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ancestors.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.blocks * size_of::<u64>() + self.ancestors.len() * 64
    }
}

/// Our name for a block whose engine name is unknown.
pub(crate) fn name_of(hash: u64) -> u64 {
    mix(hash ^ 0x6164_6F70_7465_6421)
}

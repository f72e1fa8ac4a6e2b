//! The KV cache: a pool of blocks that doubles as a prefix cache, as vLLM's does.
//!
//! A block holds a fixed run of tokens. Once full it is named by a chained hash of itself and all before it, and
//! every request with that name shares it. When its last user leaves, the block joins the free queue but keeps its
//! name: it can be hit until it is allocated for new content. So "free" and "cached" overlap, and eviction happens
//! only on allocation. The order of the free queue *is* the eviction policy: least recently used first, and tails
//! before heads, since a sequence frees its last block first. Blocks without a name go to the front: they cannot be
//! hit.
//!
//! Everything is threaded through one vector of blocks, the free queue as a doubly linked list and the
//! name table as bucket chains, so that no operation allocates and each costs a few cache lines. Copies
//! are not merged: two sequences that prefill the same prefix side by side hold a block each, and either
//! may be evicted while the other stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use maitre_base::hash;
use maitre_index::prefix::PrefixHash;

/// Place of a block in the pool. Zero is the null block: never handed out.
pub type BlockId = u32;

/// Ends the chains of the name table and the free queue; also vLLM's null block, so capacity is one less
/// than the number of blocks.
const NULL: BlockId = 0;

/// A block without a name. `chain` never returns it.
const UNNAMED: u64 = 0;

/// The root of a prefix chain: only requests with the same root share blocks. Keeps the names it is made of, for KV
/// events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    hash: u64,
    adapter: Option<Arc<str>>,
    salt: Option<Arc<str>>,
}

/// What a root is made of.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    pub model: &'a str,
    pub adapter: Option<&'a str>,
    /// Empty for none.
    pub salt: &'a str,
}

impl Root {
    pub fn new(names: Names<'_>) -> Root {
        let weights = hash::bytes(1, names.adapter.unwrap_or(names.model).as_bytes());
        Root {
            hash: hash::pair(weights, hash::bytes(2, names.salt.as_bytes())),
            adapter: names.adapter.map(Arc::from),
            salt: (!names.salt.is_empty()).then(|| Arc::from(names.salt)),
        }
    }

    /// The root of an existing chain.
    pub fn of_chain(start: PrefixHash) -> Root {
        Root { hash: start.0, adapter: None, salt: None }
    }

    /// The parent of a first block, for `chain`.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Names a full block: a hash of the block and, through `parent`, of all before it. The parent of a first
/// block is its root, which stands for the model, the adapter and the cache salt.
pub fn chain(parent: u64, tokens: &[u32]) -> u64 {
    PrefixHash(parent).then_all(tokens).0.max(1)
}

/// The names of the full blocks of a sequence.
pub fn names(root: &Root, tokens: &[u32], block_tokens: usize) -> impl Iterator<Item = u64> {
    let mut parent = root.hash();
    tokens.chunks_exact(block_tokens).map(move |block| {
        parent = chain(parent, block);
        parent
    })
}

/// A change of what can be hit, with the fields of a KV event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Stored(Stored),
    Removed {
        hash: u64,
        medium: Medium,
    },
    /// The whole cache was cleared.
    Cleared,
}

/// Where a block was stored, or removed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Gpu,
    /// The store that the engine shares with others.
    Store,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub medium: Medium,
    pub hash: u64,
    /// `None` for the first block of a sequence.
    pub parent: Option<u64>,
    pub tokens: Box<[u32]>,
    pub adapter: Option<Arc<str>>,
    /// The salt, for the first block of a sequence; the others have it through their parent.
    pub salt: Option<Arc<str>>,
}

/// A full block on its way into the cache.
#[derive(Clone, Copy, Debug)]
pub struct Full<'a> {
    pub hash: u64,
    /// `None` for the first block of a sequence.
    pub parent: Option<u64>,
    pub tokens: &'a [u32],
    pub root: &'a Root,
}

impl Full<'_> {
    pub(crate) fn stored(&self, medium: Medium) -> Stored {
        Stored {
            medium,
            hash: self.hash,
            parent: self.parent,
            tokens: self.tokens.into(),
            adapter: self.root.adapter.clone(),
            salt: self.root.salt.clone().filter(|_| self.parent.is_none()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    hash: u64,
    users: u32,
    /// Neighbours in the free queue, while `users` is zero.
    before: BlockId,
    after: BlockId,
    /// Neighbours in the same bucket of the name table, while named. The last has none after it; the one
    /// before the first is the last.
    next_named: BlockId,
    previous_named: BlockId,
}

#[derive(Debug)]
pub struct Pool {
    /// Block 0 closes the free queue into a ring: its `after` is the next block to be handed out.
    blocks: Vec<Block>,
    buckets: Vec<BlockId>,
    free_blocks: u32,
    releases: u64,
    evictions: u64,
    changes: Changes,
}

#[derive(Debug, Default)]
struct Changes {
    list: Vec<Change>,
    limit: usize,
    lost: u64,
}

impl Pool {
    /// A pool of `kv_blocks` blocks, the null block among them; at least one more than that.
    /// Up to `changes_max` changes are kept between two calls of `take_changes`.
    pub fn new(kv_blocks: u32, changes_max: usize) -> Pool {
        let count = kv_blocks.max(2);
        let ring = |id: u32| Block {
            hash: UNNAMED,
            users: 0,
            before: if id == 0 { count - 1 } else { id - 1 },
            after: if id == count - 1 { 0 } else { id + 1 },
            next_named: NULL,
            previous_named: NULL,
        };
        Pool {
            blocks: (0..count).map(ring).collect(),
            // Twice as many buckets as blocks keeps a chain at one block or none.
            buckets: vec![NULL; (count as usize * 2).next_power_of_two()],
            free_blocks: count - 1,
            releases: 0,
            evictions: 0,
            changes: Changes { limit: changes_max, ..Changes::default() },
        }
    }

    pub fn capacity(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Unused blocks, cached or not.
    pub fn free(&self) -> u32 {
        self.free_blocks
    }

    pub fn used(&self) -> u32 {
        self.capacity() - self.free_blocks
    }

    /// How many changes are kept until they are taken.
    pub fn changes_max(&self) -> usize {
        self.changes.limit
    }

    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How often a block became free: while this is constant, nothing that did not fit can fit now.
    pub fn releases(&self) -> u64 {
        self.releases
    }

    /// The oldest block with this name.
    pub fn find(&self, hash: u64) -> Option<BlockId> {
        let mut id = self.buckets[self.bucket(hash)];
        while id != NULL {
            if self.blocks[id as usize].hash == hash {
                return Some(id);
            }
            id = self.blocks[id as usize].next_named;
        }
        None
    }

    pub fn is_used(&self, id: BlockId) -> bool {
        self.blocks[id as usize].users > 0
    }

    /// Adds a user to a block found by name.
    pub fn share(&mut self, id: BlockId) {
        if self.blocks[id as usize].users == 0 {
            self.unlink(id);
        }
        self.blocks[id as usize].users += 1;
    }

    /// Hands out fresh blocks until `held` has `target` of them: all or none.
    pub fn grow(&mut self, held: &mut Vec<BlockId>, target: usize) -> bool {
        let missing = target.saturating_sub(held.len());
        if missing > self.free_blocks as usize {
            return false;
        }
        for _ in 0..missing {
            let id = self.blocks[NULL as usize].after;
            self.unlink(id);
            self.evict(id);
            self.blocks[id as usize].users = 1;
            held.push(id);
        }
        true
    }

    /// Names a full block. From then on it can be hit.
    pub fn store(&mut self, id: BlockId, full: Full<'_>) {
        debug_assert!(self.is_used(id), "block {id} is stored without a user");
        debug_assert_eq!(self.blocks[id as usize].hash, UNNAMED, "block {id} already has a name");
        self.blocks[id as usize].hash = full.hash;
        self.link_named(id);
        self.changes.push(|| Change::Stored(full.stored(Medium::Gpu)));
    }

    /// Returns the blocks of one sequence to the pool, the last one first, and leaves `held` empty.
    pub fn release(&mut self, held: &mut Vec<BlockId>) {
        for id in held.drain(..).rev() {
            let block = &mut self.blocks[id as usize];
            debug_assert!(block.users > 0, "block {id} is released twice");
            block.users -= 1;
            if block.users > 0 {
                continue;
            }
            let named = block.hash != UNNAMED;
            match named {
                true => self.link_before(id, NULL),
                false => self.link_before(id, self.blocks[NULL as usize].after),
            }
            self.releases += 1;
        }
    }

    /// Clears every name, unless a block is in use. Returns whether it did. The order of the free queue stays.
    pub fn clear(&mut self) -> bool {
        if self.used() > 0 {
            return false;
        }
        for block in &mut self.blocks {
            block.hash = UNNAMED;
        }
        self.buckets.fill(NULL);
        self.changes.push(|| Change::Cleared);
        true
    }

    /// Every name that can be hit, and how many blocks have it.
    pub fn resident(&self) -> BTreeMap<u64, u32> {
        let mut copies = BTreeMap::new();
        for block in self.blocks.iter().filter(|it| it.hash != UNNAMED) {
            *copies.entry(block.hash).or_insert(0) += 1;
        }
        copies
    }

    /// The changes since the last call, in order, and how many were dropped at the limit.
    pub fn take_changes(&mut self) -> (Vec<Change>, u64) {
        (std::mem::take(&mut self.changes.list), std::mem::take(&mut self.changes.lost))
    }

    /// Adds a change of another medium to the list.
    pub(crate) fn push_change(&mut self, change: impl FnOnce() -> Change) {
        self.changes.push(change);
    }

    fn evict(&mut self, id: BlockId) {
        let hash = self.blocks[id as usize].hash;
        if hash == UNNAMED {
            return;
        }
        self.unlink_named(id);
        self.blocks[id as usize].hash = UNNAMED;
        self.evictions += 1;
        self.changes.push(|| Change::Removed { hash, medium: Medium::Gpu });
    }

    fn bucket(&self, hash: u64) -> usize {
        // The hash is well mixed already; its low bits are as good as any.
        hash as usize & (self.buckets.len() - 1)
    }

    /// Adds a block at the end of its bucket: of several copies the oldest is found first, as in vLLM. The way to the
    /// end must not lead through the copies. One prompt sent a thousand times leaves a thousand copies of its last
    /// block; walking them was 45 % of the samples of a load test, client included.
    fn link_named(&mut self, id: BlockId) {
        let bucket = self.bucket(self.blocks[id as usize].hash);
        let first = self.buckets[bucket];
        let last = match first {
            NULL => id,
            _ => self.blocks[first as usize].previous_named,
        };
        match first {
            NULL => self.buckets[bucket] = id,
            _ => {
                self.blocks[last as usize].next_named = id;
                self.blocks[first as usize].previous_named = id;
            }
        }
        self.blocks[id as usize].previous_named = last;
        self.blocks[id as usize].next_named = NULL;
    }

    fn unlink_named(&mut self, id: BlockId) {
        let Block { hash, next_named, previous_named, .. } = self.blocks[id as usize];
        let bucket = self.bucket(hash);
        let first = self.buckets[bucket];
        match first == id {
            true => self.buckets[bucket] = next_named,
            false => self.blocks[previous_named as usize].next_named = next_named,
        }
        match next_named {
            // It was the last: the first block, unless it is the same one, gets the new last as predecessor.
            NULL => self.blocks[first as usize].previous_named = previous_named,
            _ => self.blocks[next_named as usize].previous_named = previous_named,
        }
    }

    fn link_before(&mut self, id: BlockId, after: BlockId) {
        let before = self.blocks[after as usize].before;
        self.blocks[id as usize].before = before;
        self.blocks[id as usize].after = after;
        self.blocks[before as usize].after = id;
        self.blocks[after as usize].before = id;
        self.free_blocks += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { before, after, .. } = self.blocks[id as usize];
        self.blocks[before as usize].after = after;
        self.blocks[after as usize].before = before;
        self.free_blocks -= 1;
    }
}

impl Changes {
    /// Builds the change only if it is kept, which is not the default.
    fn push(&mut self, change: impl FnOnce() -> Change) {
        if self.list.len() < self.limit {
            self.list.push(change());
        } else if self.limit > 0 {
            self.lost += 1;
        }
    }
}

#[cfg(test)]
mod tests;

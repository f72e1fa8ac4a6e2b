//! Which worker's engine has stored which chunk.
//!
//! No engine reports this. So it is what a worker has prefilled, within the estimated size of its store; the least
//! recently used chunks are dropped first. One entry is one chunk at one worker. It stands in two lists: the holders
//! of its chunk, for look-ups, and the chunks of its worker in order of use, for eviction. Only workers whose engines
//! reuse chunks appear here.

use maitre_base::WorkerId;
use maitre_base::hash::NumberMap;

use crate::chunks::PromptChunk;

/// Bytes of an entry, with its part of the map.
const ENTRY_BYTES: usize = 64;
/// Assumed until the engine reports the size of its cache, as for prefixes.
const CAPACITY_DEFAULT: u64 = 131_072;

/// A gap of at most this many units between two held chunks counts as held: two documents meet there, and the chunks
/// in the gap exist only in this prompt. A border spans one to three chunks, of 48 tokens on average. With it 94 % of
/// four documents of 500 tokens in another order are found, without it 80 %.
const BRIDGED_MAX: u64 = 192;

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    worker: WorkerId,
    units: u32,
    newer: u32,
    older: u32,
    next_holder: u32,
}

/// The chunks of one worker.
#[derive(Clone, Copy, Debug)]
struct Store {
    newest: u32,
    oldest: u32,
    entries: usize,
    units: u64,
    capacity: u64,
}

impl Store {
    const EMPTY: Store =
        Store { newest: NONE, oldest: NONE, entries: 0, units: 0, capacity: CAPACITY_DEFAULT };
}

#[derive(Clone, Debug)]
pub struct ChunkHoldings {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The first holder of each chunk.
    holders: NumberMap<u32>,
    /// By worker id; `None` for workers that reuse no chunks.
    stores: Vec<Option<Store>>,
    entries_max: usize,
}

/// What each worker could reuse of one prompt, besides a prefix. Kept as scratch.
#[derive(Clone, Debug, Default)]
pub struct ReusedUnits {
    /// By worker id.
    workers: Vec<Reuse>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reuse {
    /// The end of its prefix, or of the last chunk that it holds.
    end: u64,
    units: u64,
}

impl ReusedUnits {
    /// Units after the prefix.
    pub fn of(&self, worker: WorkerId) -> u64 {
        self.workers.get(worker.index()).map_or(0, |it| it.units)
    }

    pub fn clear(&mut self) {
        self.workers.clear();
    }
}

impl ChunkHoldings {
    /// All workers together take at most this much memory.
    pub fn new(budget_bytes: usize) -> ChunkHoldings {
        ChunkHoldings {
            entries: Vec::new(),
            free: Vec::new(),
            holders: NumberMap::default(),
            stores: Vec::new(),
            entries_max: (budget_bytes / ENTRY_BYTES).clamp(1, NONE as usize),
        }
    }

    /// Whether this worker reuses chunks.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.store(worker).is_some()
    }

    /// Entries of all workers.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * size_of::<u32>()
            + self.holders.capacity() * size_of::<(u64, u32)>()
    }

    /// The worker's engine reuses chunks from now on. It holds none yet.
    pub fn join(&mut self, worker: WorkerId) {
        self.leave(worker);
        let places = self.stores.len().max(worker.index() + 1);
        self.stores.resize(places, None);
        self.stores[worker.index()] = Some(Store::EMPTY);
        // Every worker has an equal part of the memory, so existing workers get less.
        (0..places).for_each(|it| self.trim(WorkerId(it as u32)));
    }

    pub fn leave(&mut self, worker: WorkerId) {
        self.clear(worker);
        if let Some(store) = self.stores.get_mut(worker.index()) {
            *store = None;
        }
    }

    /// The worker's store is empty.
    pub fn clear(&mut self, worker: WorkerId) {
        while let Some(oldest) = self.store(worker).map(|it| it.oldest).filter(|&it| it != NONE) {
            self.drop_entry(oldest);
        }
    }

    /// Sets the estimated room of the store, in tokens.
    pub fn set_capacity(&mut self, worker: WorkerId, tokens: u64) {
        if let Some(store) = self.stores.get_mut(worker.index()).and_then(Option::as_mut) {
            store.capacity = tokens;
            self.trim(worker);
        }
    }

    /// The worker has prefilled these chunks: they are now the most recently used.
    pub fn hold(&mut self, worker: WorkerId, chunks: &[PromptChunk]) {
        if self.store(worker).is_none() {
            return;
        }
        let mut begin = 0;
        for chunk in chunks {
            match self.find(worker, chunk.hash) {
                Some(entry) => {
                    self.unlink(entry);
                    self.link_newest(entry);
                }
                None => self.add(worker, chunk.hash, chunk.end.saturating_sub(begin)),
            }
            begin = chunk.end;
            // Trim now and not at the end, so that no prompt takes more than its worker's part of the memory.
            self.trim(worker);
        }
    }

    /// How much of the prompt each worker could reuse after its prefix, which ends where `prefix` says.
    pub fn reused(&self, chunks: &[PromptChunk], prefix: impl Fn(WorkerId) -> u64, into: &mut ReusedUnits) {
        let end =
            |(index, store): (usize, &Option<Store>)| store.map_or(0, |_| prefix(WorkerId(index as u32)));
        into.workers.clear();
        into.workers.extend(self.stores.iter().enumerate().map(|it| Reuse { end: end(it), units: 0 }));
        let mut begin = 0;
        for chunk in chunks {
            let end = u64::from(chunk.end);
            let mut at = self.holders.get(&chunk.hash).copied().unwrap_or(NONE);
            while let Some(&Entry { worker, next_holder, .. }) = self.entries.get(at as usize) {
                let reuse = &mut into.workers[worker.index()];
                if end > reuse.end {
                    let is_bridged = reuse.end > 0 && begin <= reuse.end + BRIDGED_MAX;
                    reuse.units += end - if is_bridged { reuse.end } else { begin };
                    reuse.end = end;
                }
                at = next_holder;
            }
            begin = end;
        }
    }

    fn store(&self, worker: WorkerId) -> Option<&Store> {
        self.stores.get(worker.index())?.as_ref()
    }

    fn find(&self, worker: WorkerId, hash: u64) -> Option<u32> {
        let mut at = self.holders.get(&hash).copied()?;
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.worker == worker {
                return Some(at);
            }
            at = entry.next_holder;
        }
        None
    }

    fn add(&mut self, worker: WorkerId, hash: u64, units: u32) {
        let next_holder = self.holders.get(&hash).copied().unwrap_or(NONE);
        let entry = Entry { hash, worker, units, newer: NONE, older: NONE, next_holder };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.holders.insert(hash, at);
        self.link_newest(at);
    }

    fn drop_entry(&mut self, at: u32) {
        self.unlink(at);
        let Entry { hash, next_holder, .. } = self.entries[at as usize];
        let first = self.holders.get(&hash).copied().unwrap_or(NONE);
        if first == at {
            match next_holder {
                NONE => self.holders.remove(&hash),
                next => self.holders.insert(hash, next),
            };
        } else {
            let mut before = first;
            while let Some(entry) = self.entries.get_mut(before as usize) {
                if entry.next_holder == at {
                    entry.next_holder = next_holder;
                    break;
                }
                before = entry.next_holder;
            }
        }
        self.free.push(at);
    }

    /// Drops the oldest chunks of the worker until the others fit its store, and its part of the memory.
    fn trim(&mut self, worker: WorkerId) {
        let part = self.entries_max / self.stores.iter().flatten().count().max(1);
        while let Some(store) = self.store(worker)
            && (store.units > store.capacity || store.entries > part.max(1))
        {
            self.drop_entry(store.oldest);
        }
    }

    fn link_newest(&mut self, at: u32) {
        let Entry { worker, units, .. } = self.entries[at as usize];
        let Some(store) = self.stores.get_mut(worker.index()).and_then(Option::as_mut) else { return };
        let before = store.newest;
        (store.newest, store.entries) = (at, store.entries + 1);
        store.units += u64::from(units);
        if store.oldest == NONE {
            store.oldest = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
        if let Some(before) = self.entries.get_mut(before as usize) {
            before.newer = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { worker, units, newer, older, .. } = self.entries[at as usize];
        if let Some(newer) = self.entries.get_mut(newer as usize) {
            newer.older = older;
        }
        if let Some(older) = self.entries.get_mut(older as usize) {
            older.newer = newer;
        }
        let Some(store) = self.stores.get_mut(worker.index()).and_then(Option::as_mut) else { return };
        if store.newest == at {
            store.newest = older;
        }
        if store.oldest == at {
            store.oldest = newer;
        }
        store.entries -= 1;
        store.units -= u64::from(units);
    }
}

#[cfg(test)]
mod tests;

//! The order in which each worker's engine would evict its blocks: those that requests have used.
//!
//! An engine evicts the least recently used block first, and within one prompt the last block first. So each worker
//! has a list from oldest to newest, and a request moves its path to the newest end, deepest first. An entry is what
//! one worker is expected to hold of one run. All its blocks have the same history, because the table splits a run
//! where histories differ.
//!
//! The order is that in which requests were sent, so it is the engine's order once the last of them runs. The blocks
//! that will not fit by then are *leaving*: the oldest ones. Only the newest entry with such blocks may also have
//! others.

use crate::holders::WorkerMasks;
use crate::slab::{NONE, Slab};
use maitre_base::Instant;

/// Orders requests and their first tokens. Unique; zero is before all of them.
pub(crate) type Stamp = u64;

/// A request or its first token: its time and its order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) stamp: Stamp,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    pub(crate) run: u32,
    slot: u32,
    newer: u32,
    older: u32,
    /// The request that used it last.
    pub(crate) used: Stamp,
    pub(crate) used_at: Instant,
    /// The request that was to compute it.
    pub(crate) author: Stamp,
    /// When a request that uses it produced its first token; `None` while it is not known to exist.
    pub(crate) settled: Option<Moment>,
}

impl Default for Belief {
    fn default() -> Belief {
        Belief {
            run: NONE,
            slot: 0,
            newer: NONE,
            older: NONE,
            used: 0,
            used_at: Instant::ZERO,
            author: 0,
            settled: None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    blocks: u32,
    /// How many of them are not reported.
    unreported: u32,
    /// How many of them are leaving, and the newest entry that has any.
    leaving_blocks: u32,
    leaving: u32,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { oldest: NONE, newest: NONE, blocks: 0, unreported: 0, leaving_blocks: 0, leaving: NONE }
    }
}

#[derive(Debug)]
pub(crate) struct Beliefs {
    entries: Slab<Belief>,
    ends: Vec<Ends>,
}

impl Beliefs {
    pub(crate) fn new() -> Beliefs {
        Beliefs { entries: Slab::new(), ends: Vec::new() }
    }

    /// Adds room for a slot.
    pub(crate) fn join(&mut self, slot: u32) {
        if self.ends.len() <= slot as usize {
            self.ends.resize(slot as usize + 1, Ends::default());
        }
    }

    /// How many blocks are predicted at this slot.
    pub(crate) fn blocks(&self, slot: u32) -> u32 {
        self.ends[slot as usize].blocks
    }

    /// How many of them are not reported on the GPU.
    pub(crate) fn unreported(&self, slot: u32) -> u32 {
        self.ends[slot as usize].unreported
    }

    pub(crate) fn recount(&mut self, before: &WorkerMasks, after: &WorkerMasks) {
        let ends = &mut self.ends[after.slot as usize];
        ends.blocks = ends.blocks + after.predicted.count_ones() - before.predicted.count_ones();
        let unreported = |it: &WorkerMasks| (it.predicted & !it.gpu).count_ones();
        ends.unreported = ends.unreported + unreported(after) - unreported(before);
        let leaving = |it: &WorkerMasks| it.leaving().count_ones();
        ends.leaving_blocks = ends.leaving_blocks + leaving(after) - leaving(before);
    }

    pub(crate) fn oldest(&self, slot: u32) -> Option<&Belief> {
        let oldest = self.ends[slot as usize].oldest;
        (oldest != NONE).then(|| &self.entries[oldest])
    }

    pub(crate) fn newest(&self, slot: u32) -> Option<&Belief> {
        self.get(self.ends[slot as usize].newest)
    }

    /// The one before it in the order of its worker.
    pub(crate) fn older(&self, belief: &Belief) -> Option<&Belief> {
        self.get(belief.older)
    }

    pub(crate) fn leaving_blocks(&self, slot: u32) -> u32 {
        self.ends[slot as usize].leaving_blocks
    }

    /// The newest entry with blocks that are leaving. It may have none left.
    pub(crate) fn last_leaving(&self, slot: u32) -> Option<&Belief> {
        self.get(self.ends[slot as usize].leaving)
    }

    /// Makes the next entry the newest one with blocks that are leaving, if there is a next one.
    pub(crate) fn more_leaving(&mut self, slot: u32) -> Option<&Belief> {
        let ends = self.ends[slot as usize];
        let next = self.get(ends.leaving).map_or(ends.oldest, |it| it.newer);
        if next != NONE {
            self.ends[slot as usize].leaving = next;
        }
        self.get(next)
    }

    /// Makes the entry before the newest one.
    pub(crate) fn fewer_leaving(&mut self, slot: u32) {
        let last = self.ends[slot as usize].leaving;
        self.ends[slot as usize].leaving = self.get(last).map_or(NONE, |it| it.older);
    }

    /// All of this slot, oldest first.
    pub(crate) fn ids(&self, slot: u32) -> impl Iterator<Item = u32> {
        let id = |it: u32| (it != NONE).then_some(it);
        std::iter::successors(id(self.ends[slot as usize].oldest), move |&it| id(self.entries[it].newer))
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Belief> {
        (id != NONE).then(|| &self.entries[id])
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Belief> {
        (id != NONE).then(|| &mut self.entries[id])
    }

    /// Adds an entry at the newest end.
    pub(crate) fn insert(&mut self, slot: u32, run: u32) -> u32 {
        let id = self.entries.insert(Belief { run, slot, ..Belief::default() });
        self.link_newest(id);
        id
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.unlink(id);
        self.entries.remove(id);
    }

    pub(crate) fn renew(&mut self, id: u32) {
        self.unlink(id);
        self.link_newest(id);
    }

    /// Adds the deeper half of an entry whose run was split: same history, evicted right before the first
    /// half. `is_leaving`: the first half still has blocks that are leaving.
    pub(crate) fn split(&mut self, id: u32, run: u32, is_leaving: bool) -> u32 {
        let whole = self.entries[id];
        let half = self.entries.insert(Belief { run, newer: id, ..whole });
        self.entries[id].older = half;
        match whole.older {
            NONE => self.ends[whole.slot as usize].oldest = half,
            older => self.entries[older].newer = half,
        }
        if self.ends[whole.slot as usize].leaving == id && !is_leaving {
            self.ends[whole.slot as usize].leaving = half;
        }
        half
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes() + self.ends.capacity() * size_of::<Ends>()
    }

    pub(crate) fn bytes_to_grow(&self) -> usize {
        self.entries.bytes_to_grow()
    }

    fn link_newest(&mut self, id: u32) {
        let ends = &mut self.ends[self.entries[id].slot as usize];
        let older = std::mem::replace(&mut ends.newest, id);
        match older {
            NONE => ends.oldest = id,
            older => self.entries[older].newer = id,
        }
        self.entries[id].older = older;
        self.entries[id].newer = NONE;
    }

    fn unlink(&mut self, id: u32) {
        let Belief { slot, newer, older, .. } = self.entries[id];
        if self.ends[slot as usize].leaving == id {
            self.ends[slot as usize].leaving = older;
        }
        match newer {
            NONE => self.ends[slot as usize].newest = older,
            newer => self.entries[newer].older = older,
        }
        match older {
            NONE => self.ends[slot as usize].oldest = newer,
            older => self.entries[older].newer = newer,
        }
    }
}

//! Keeps the index within its memory budget: evicts the coldest blocks a little at a time, and drops new
//! blocks that still do not fit.
//!
//! A clock hand cycles through all workers' names and evicts those whose runs were looked up or stored least
//! recently. Before each cycle a sample of runs gives the age of the coldest quarter. A run is as recent as the
//! deepest look-up that passed it, so heads outlive their tails. One call moves the hand a bounded distance. If that
//! frees too little, the index drops and counts the new block: it never exceeds the budget.

use crate::Index;
use crate::predicted::PredictionWriter;
use crate::reported::{Applied, ReportApplier};
use std::sync::atomic::Ordering::Relaxed;

/// How far one call may move the hand. Chosen: about 20 µs.
const PLACES_MAX: usize = 2_048;

/// Runs sampled to estimate which are cold.
const SAMPLE: usize = 64;

/// Worst case for one block: it turns another worker's run into a shared one (a box, four masks, a plane) and
/// splits it (a run, a head).
const BLOCK_BYTES_MAX: usize = 1_024;

/// The minimum budget: an empty index with a page of each kind.
pub const BUDGET_MIN: usize = 256 * 1024;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hand {
    worker: usize,
    place: usize,
    /// Runs used no later than this are cold.
    cutoff: u32,
}

impl Index {
    /// How many of these blocks this worker may store, after evicting others to make room.
    pub(crate) fn room(&mut self, worker: usize, blocks: usize) -> usize {
        if !self.workers.get(worker).is_some_and(Option::is_some) {
            return 0;
        }
        if self.fits(worker, blocks) {
            return blocks;
        }
        let mut places = PLACES_MAX;
        while places > 0 && !self.fits(worker, blocks) {
            places = places.saturating_sub(self.sweep());
        }
        match self.fits(worker, blocks) {
            true => blocks,
            false => (0..blocks.min(8)).rev().find(|&it| self.fits(worker, it)).unwrap_or(0),
        }
    }

    fn fits(&self, worker: usize, blocks: usize) -> bool {
        let Some(Some(it)) = self.workers.get(worker) else { return false };
        let growth = self.table.bytes_to_grow(self.slots.len()) + blocks * BLOCK_BYTES_MAX;
        self.bytes() + growth + it.bytes_to_insert(blocks) <= self.budget_bytes
    }

    /// Moves the hand by one entry, or to the next worker. Returns the cost in places.
    fn sweep(&mut self) -> usize {
        let at = self.hand.worker;
        if at >= self.workers.len() {
            self.hand = Hand { worker: 0, place: 0, cutoff: self.cold() };
            return SAMPLE;
        }
        let Some(worker) = self.workers[at].as_deref_mut() else {
            self.hand.worker += 1;
            return 1;
        };
        if let Some(entry) = worker.names.at(self.hand.place) {
            let (run, _) = self.table.resolve((entry.run, entry.offset));
            if *self.table.runs[run].used.get_mut() > self.hand.cutoff {
                self.hand.place += 1;
                return 1;
            }
            let (applied, ready) = (&mut Applied::default(), &mut Vec::new());
            ReportApplier { table: &mut self.table, worker, clock: 0, applied, ready }
                .forget(self.hand.place);
            worker.numbers.evicted += 1;
            return 4;
        }
        if self.hand.place < worker.names.places() {
            self.hand.place += 1;
            return 1;
        }
        if self.evict_cold_prediction(at) {
            return 8;
        }
        if let Some(worker) = self.workers[at].as_deref_mut() {
            worker.names.shrink();
        }
        self.account(at);
        self.hand = Hand { worker: at + 1, place: 0, ..self.hand };
        1
    }

    fn evict_cold_prediction(&mut self, at: usize) -> bool {
        let Some(worker) = self.workers[at].as_deref_mut() else { return false };
        let Some(&oldest) = self.table.beliefs.oldest(worker.slot) else { return false };
        if *self.table.runs[oldest.run].used.get_mut() > self.hand.cutoff {
            return false;
        }
        let before = self.table.beliefs.blocks(worker.slot);
        PredictionWriter { table: &mut self.table, worker, path: &mut self.path, clock: 0 }.drop_oldest();
        worker.numbers.evicted += u64::from(before - self.table.beliefs.blocks(worker.slot));
        true
    }

    /// The time at which the coldest quarter was last used.
    fn cold(&self) -> u32 {
        let mut used = self.table.runs.sample(SAMPLE, |run| run.len() > 0, |run| run.used.load(Relaxed));
        used.sort_unstable();
        used.get(used.len() / 4).copied().unwrap_or(u32::MAX)
    }
}

//! The result of a look-up: how much of one prompt each worker holds.
//!
//! One value is reused by every look-up, so that none of them allocates. It is filled by slot and read by
//! worker; the map between the two is copied when it has changed.

use maitre_base::WorkerId;

/// Leading blocks of the prompt that one worker holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// On the GPU, reported or predicted.
    pub blocks: u32,
    /// The blocks that follow without a gap in any tier: these are loaded, not computed.
    pub lower: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Holdings {
    by_slot: Vec<Holding>,
    /// The slot of each worker, and the worker of each slot.
    slots: Vec<u32>,
    workers: Vec<WorkerId>,
    /// The version of the index's slot map that was copied.
    version: u64,
    /// Workers that hold everything so far, by slot. Used only during the look-up.
    pub(crate) alive: Vec<Alive>,
}

/// One bit for each of 64 slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alive {
    pub(crate) near: u64,
    pub(crate) any: u64,
}

impl Holdings {
    pub fn new() -> Holdings {
        Holdings::default()
    }

    /// Zero for an unknown worker.
    #[inline]
    pub fn of(&self, worker: WorkerId) -> Holding {
        let slot = self.slots.get(worker.index());
        slot.and_then(|&slot| self.by_slot.get(slot as usize)).copied().unwrap_or_default()
    }

    /// The workers that hold anything, in no order.
    pub fn holders(&self) -> impl Iterator<Item = (WorkerId, Holding)> {
        let all = self.workers.iter().zip(&self.by_slot);
        all.filter(|it| *it.1 != Holding::default()).map(|(&worker, &holding)| (worker, holding))
    }

    /// Clears the last result. `slots` has the slot of each worker, or `u32::MAX` for a worker that left.
    pub(crate) fn reset(&mut self, version: u64, workers: &[WorkerId], slots: impl Iterator<Item = u32>) {
        self.alive.clear();
        if self.version == version && self.by_slot.len() == workers.len() {
            return self.by_slot.fill(Holding::default());
        }
        self.version = version;
        self.workers.clear();
        self.workers.extend_from_slice(workers);
        self.slots.clear();
        self.slots.extend(slots);
        self.by_slot.clear();
        self.by_slot.resize(workers.len(), Holding::default());
    }

    /// This slot's GPU holds this many leading blocks and not the next one.
    #[inline]
    pub(crate) fn end_near(&mut self, slot: usize, blocks: usize) {
        self.by_slot[slot].blocks = blocks as u32;
    }

    /// This slot holds this many leading blocks on its GPU, and the next one in no tier.
    #[inline]
    pub(crate) fn end_both(&mut self, slot: usize, blocks: usize) {
        self.by_slot[slot] = Holding { blocks: blocks as u32, lower: 0 };
    }

    /// No tier of this slot holds more than this many leading blocks. Called once, after `end_near`.
    #[inline]
    pub(crate) fn end_any(&mut self, slot: usize, blocks: usize) {
        let holding = &mut self.by_slot[slot];
        holding.lower = blocks as u32 - holding.blocks;
    }
}

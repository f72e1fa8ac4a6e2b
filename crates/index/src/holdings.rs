//! The result of a look-up: how much of one prompt each worker holds.
//!
//! One value is made once and filled by every look-up, so that none of them allocates. It is filled by slot
//! and read by worker: the map between the two is copied when it has changed.

use maitre_base::WorkerId;

/// Blocks of the prompt, from its first on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// On the GPU, reported or predicted.
    pub blocks: u32,
    /// Those that follow, without a gap, in any tier: to be loaded, not computed.
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
    /// Workers that held everything so far, by slot. Used by the look-up only.
    pub(crate) alive: Vec<Alive>,
}

/// Sixty-four slots.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alive {
    pub(crate) near: u64,
    pub(crate) any: u64,
}

impl Holdings {
    pub fn new() -> Holdings {
        Holdings::default()
    }

    /// Nothing for an unknown worker.
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

    /// Clears the last result. `slots` has the slot of each worker; `u32::MAX` for those that left.
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

    /// This slot's GPU holds so many blocks and not the next.
    #[inline]
    pub(crate) fn end_near(&mut self, slot: usize, blocks: usize) {
        self.by_slot[slot].blocks = blocks as u32;
    }

    /// This slot holds so many blocks on its GPU and none of the next anywhere.
    #[inline]
    pub(crate) fn end_both(&mut self, slot: usize, blocks: usize) {
        self.by_slot[slot] = Holding { blocks: blocks as u32, lower: 0 };
    }

    /// No tier of this slot holds more than so many. Said once, after `end_near`.
    #[inline]
    pub(crate) fn end_any(&mut self, slot: usize, blocks: usize) {
        let holding = &mut self.by_slot[slot];
        holding.lower = blocks as u32 - holding.blocks;
    }
}

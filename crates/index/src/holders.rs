//! Which workers hold which blocks of one run.
//!
//! A run has at most 128 blocks, so one word per source says what a worker holds of it. Most runs belong to
//! one worker (a conversation stays where it began) and store that word inline. A run with several holders
//! keeps a list sorted by slot. For the look-up it also keeps bit planes indexed by slot: holds anything,
//! holds every block near (on the GPU, reported or predicted), holds every block in any tier. The planes only
//! summarise the list; the look-up consults the list for workers that the planes do not decide. The first
//! plane is inline, so that with up to 64 workers a look-up fetches only the run.

use crate::slab::NONE;

/// One bit per block of the run; the first block is the lowest bit.
pub(crate) type Mask = u128;

/// The longest run whose mask is one word.
pub(crate) const RUN_BLOCKS: usize = 128;

/// The mask of the first `blocks` blocks.
#[inline]
pub(crate) const fn low(blocks: usize) -> Mask {
    if blocks >= RUN_BLOCKS { Mask::MAX } else { (1 << blocks) - 1 }
}

/// What one worker holds of one run. Packed, because masks aligned to sixteen bytes would take a run over two
/// cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub(crate) struct WorkerMasks {
    pub(crate) slot: u32,
    /// The entry in the worker's eviction order; `NONE` without predicted blocks.
    pub(crate) belief: u32,
    pub(crate) gpu: Mask,
    pub(crate) predicted: Mask,
    /// In the CPU or disk tier.
    pub(crate) lower: Mask,
    /// From this one on, predicted blocks are leaving: the engine will have evicted them before a request that
    /// arrives now runs.
    staying: u8,
}

impl WorkerMasks {
    pub(crate) fn new(slot: u32) -> WorkerMasks {
        WorkerMasks { slot, belief: NONE, gpu: 0, lower: 0, predicted: 0, staying: RUN_BLOCKS as u8 }
    }

    /// On the GPU when a request that arrives now runs.
    #[inline]
    pub(crate) fn near(&self) -> Mask {
        (self.gpu | self.predicted) & !self.leaving()
    }

    #[inline]
    pub(crate) fn any(&self) -> Mask {
        self.near() | self.lower
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.gpu | self.predicted | self.lower == 0
    }

    /// The blocks that are leaving.
    #[inline]
    pub(crate) fn leaving(&self) -> Mask {
        self.predicted & !low(usize::from(self.staying))
    }

    /// Whether every block is on the GPU now, and stays.
    #[inline]
    pub(crate) fn is_whole(&self, full: Mask) -> bool {
        self.gpu == full && usize::from(self.staying) == RUN_BLOCKS
    }

    /// Marks up to this many more blocks as leaving, the last ones first.
    pub(crate) fn leave(&mut self, blocks: u32) {
        let staying = self.predicted & low(usize::from(self.staying));
        if blocks > 0 && staying != 0 {
            self.staying = nth_bit(staying, staying.count_ones().saturating_sub(blocks)) as u8;
        }
    }

    /// Marks up to this many blocks as no longer leaving, the first ones first.
    pub(crate) fn stay(&mut self, blocks: u32) {
        let leaving = self.leaving();
        if blocks >= leaving.count_ones() {
            self.staying = RUN_BLOCKS as u8;
        } else if blocks > 0 {
            self.staying = nth_bit(leaving, blocks - 1) as u8 + 1;
        }
    }
}

/// The position of the bit that has `below` set bits below it. There must be one.
fn nth_bit(mask: Mask, mut below: u32) -> u32 {
    let (mut at, mut width) = (0, RUN_BLOCKS as u32 / 2);
    while width > 0 {
        let lower = (mask >> at & low(width as usize)).count_ones();
        if below >= lower {
            below -= lower;
            at += width;
        }
        width /= 2;
    }
    at
}

#[derive(Debug, Default)]
pub(crate) enum Holders {
    #[default]
    Nobody,
    One(WorkerMasks),
    Crowd(Crowd),
}

#[derive(Debug, Default)]
pub(crate) struct Crowd {
    first: Plane,
    rest: Box<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    shares: Vec<WorkerMasks>,
    /// From the 64th slot on.
    planes: Vec<Plane>,
}

/// Three bits for each of 64 slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plane {
    /// Holds any block of the run.
    pub(crate) present: u64,
    /// Holds all blocks near.
    pub(crate) near: u64,
    /// Holds all blocks in some tier.
    pub(crate) any: u64,
}

impl Holders {
    pub(crate) fn shares(&self) -> &[WorkerMasks] {
        match self {
            Holders::Nobody => &[],
            Holders::One(share) => std::slice::from_ref(share),
            Holders::Crowd(crowd) => &crowd.rest.shares,
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&WorkerMasks> {
        match self {
            Holders::Nobody => None,
            Holders::One(share) => Some(share).filter(|it| it.slot == slot),
            Holders::Crowd(crowd) => crowd.get(slot),
        }
    }

    /// Changes the share of a slot. A missing share is created, and a share with no blocks left is dropped.
    /// `full` is the mask of the whole run.
    #[inline]
    pub(crate) fn update<R>(
        &mut self,
        slot: u32,
        full: Mask,
        change: impl FnOnce(&mut WorkerMasks) -> R,
    ) -> R {
        if let Holders::One(share) = self
            && share.slot == slot
        {
            let result = change(share);
            if share.is_empty() {
                *self = Holders::Nobody;
            }
            return result;
        }
        self.update_crowd(slot, full, change)
    }

    fn update_crowd<R>(&mut self, slot: u32, full: Mask, change: impl FnOnce(&mut WorkerMasks) -> R) -> R {
        let mut share = self.get(slot).copied().unwrap_or(WorkerMasks::new(slot));
        let result = change(&mut share);
        match self {
            Holders::Nobody if !share.is_empty() => *self = Holders::One(share),
            Holders::Nobody => {}
            Holders::One(_) if share.is_empty() => {}
            Holders::One(one) => {
                let one = *one;
                let mut crowd = Crowd::default();
                crowd.set(one, full);
                crowd.set(share, full);
                *self = Holders::Crowd(crowd);
            }
            Holders::Crowd(crowd) => {
                crowd.set(share, full);
                if let [one] = crowd.rest.shares[..] {
                    *self = Holders::One(one);
                }
            }
        }
        result
    }

    /// Keeps the holders of the first `blocks` blocks and returns those of the rest.
    pub(crate) fn split(&mut self, blocks: usize, rest_blocks: usize) -> Holders {
        let (mut first, mut rest) = (Holders::Nobody, Holders::Nobody);
        for share in self.shares() {
            let cut = |mask: Mask| mask & low(blocks);
            let mut left = WorkerMasks {
                gpu: cut(share.gpu),
                lower: cut(share.lower),
                predicted: cut(share.predicted),
                staying: if usize::from(share.staying) < blocks { share.staying } else { RUN_BLOCKS as u8 },
                ..*share
            };
            // A run is never split at its end, so the shift is smaller than the width.
            let mut right = WorkerMasks {
                gpu: share.gpu >> blocks,
                lower: share.lower >> blocks,
                predicted: share.predicted >> blocks,
                staying: match usize::from(share.staying) {
                    RUN_BLOCKS => RUN_BLOCKS as u8,
                    staying => staying.saturating_sub(blocks) as u8,
                },
                ..*share
            };
            // A part in which nothing is leaving must say so, or blocks that it gets later would be leaving at once.
            left.stay(0);
            right.stay(0);
            first.update(share.slot, low(blocks), |it| *it = left);
            rest.update(share.slot, low(rest_blocks), |it| *it = right);
        }
        *self = first;
        rest
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Holders::Crowd(crowd) => crowd.bytes(),
            Holders::Nobody | Holders::One(_) => 0,
        }
    }
}

impl Crowd {
    /// The number of planes.
    pub(crate) fn planes(&self) -> usize {
        1 + self.rest.planes.len()
    }

    /// Empty beyond the last plane.
    #[inline]
    pub(crate) fn plane(&self, word: usize) -> Plane {
        match word.checked_sub(1) {
            None => self.first,
            Some(word) => self.rest.planes.get(word).copied().unwrap_or_default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&WorkerMasks> {
        if self.plane(slot as usize / 64).present >> (slot % 64) & 1 == 0 {
            return None;
        }
        let shares = &self.rest.shares;
        shares.binary_search_by_key(&slot, |it| it.slot).ok().map(|at| &shares[at])
    }

    fn set(&mut self, share: WorkerMasks, full: Mask) {
        let shares = &mut self.rest.shares;
        match shares.binary_search_by_key(&share.slot, |it| it.slot) {
            Ok(at) if share.is_empty() => {
                shares.remove(at);
            }
            Ok(at) => shares[at] = share,
            Err(_) if share.is_empty() => return,
            Err(at) => {
                if shares.len() == shares.capacity() {
                    shares.reserve_exact(2 + shares.len() / 4);
                }
                shares.insert(at, share);
            }
        }
        let bit = share.slot % 64;
        let plane = self.plane_mut(share.slot as usize / 64);
        put(&mut plane.present, bit, !share.is_empty());
        put(&mut plane.near, bit, share.near() == full);
        put(&mut plane.any, bit, share.any() == full);
    }

    fn plane_mut(&mut self, word: usize) -> &mut Plane {
        let planes = &mut self.rest.planes;
        if word > planes.len() {
            planes.reserve_exact(word - planes.len());
            planes.resize(word, Plane::default());
        }
        match word.checked_sub(1) {
            None => &mut self.first,
            Some(word) => &mut self.rest.planes[word],
        }
    }

    fn bytes(&self) -> usize {
        size_of::<Rest>()
            + self.rest.shares.capacity() * size_of::<WorkerMasks>()
            + self.rest.planes.capacity() * size_of::<Plane>()
    }
}

fn put(word: &mut u64, bit: u32, on: bool) {
    *word = *word & !(1 << bit) | u64::from(on) << bit;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    /// One block at a time.
    fn leave_plainly(masks: &mut WorkerMasks, blocks: u32) {
        for _ in 0..blocks {
            let Some(last) = (masks.predicted & !masks.leaving()).checked_ilog2() else { return };
            masks.staying = last as u8;
        }
    }

    fn stay_plainly(masks: &mut WorkerMasks, blocks: u32) {
        for _ in 0..blocks {
            let leaving = masks.leaving();
            masks.staying = if leaving == 0 { RUN_BLOCKS as u8 } else { leaving.trailing_zeros() as u8 + 1 };
        }
        if masks.leaving() == 0 {
            masks.staying = RUN_BLOCKS as u8;
        }
    }

    proptest! {
        #[test]
        fn blocks_leave_and_stay_as_if_one_at_a_time(
            predicted in any::<Mask>(),
            sparse in any::<Mask>(),
            is_sparse in any::<bool>(),
            steps in proptest::collection::vec((any::<bool>(), 0u32..140), 1..8),
        ) {
            let mut masks = WorkerMasks::new(3);
            masks.predicted = if is_sparse { predicted & sparse } else { predicted };
            let mut plain = masks;
            for (leaves, blocks) in steps {
                match leaves {
                    true => (masks.leave(blocks), leave_plainly(&mut plain, blocks)),
                    false => (masks.stay(blocks), stay_plainly(&mut plain, blocks)),
                };
                prop_assert_eq!(masks, plain);
            }
        }
    }
}

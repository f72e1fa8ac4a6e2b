//! Walks a prompt's chain through the runs and notes where each worker falls behind.
//!
//! At each run the set of workers that held all so far meets the set that holds the whole run: a few words
//! of bits. Only who drops out is looked at one by one, to see how far into the run it got. So the cost
//! goes with the runs along the way and the workers that hold some of it, not with the blocks.

use crate::holders::{Holders, Plane, RUN_BLOCKS, Share, low};
use crate::holdings::{Alive, Holdings};
use crate::table::{Chain, Run, TOUCHED, Table};

/// Fills `out`, which must be empty. `clock` is noted as the time of use.
pub(crate) fn look_up(table: &mut Table, clock: u32, chain: Chain<'_>, out: &mut Holdings) {
    let (mut depth, mut touched) = (0, 0);
    while let Some((id, blocks)) = table.step(&chain.prefixes[depth..], chain.block_tokens) {
        let next = depth + blocks;
        if blocks == RUN_BLOCKS && next >= touched {
            table.touch_ahead(&chain.prefixes[next..]);
            touched = next + TOUCHED * RUN_BLOCKS;
        }
        let run = &mut table.runs[id];
        if run.used != clock {
            run.used = clock;
        }
        if depth == 0 {
            begin(run, out);
        }
        if !(Stretch { run, start: depth, blocks }).meet(out) {
            return;
        }
        depth = next;
    }
    end(depth, out);
}

/// What a chain and a run have in common.
struct Stretch<'a> {
    run: &'a Run,
    start: usize,
    blocks: usize,
}

impl Stretch<'_> {
    /// Notes who drops out here. False if nobody is left.
    #[inline]
    fn meet(&self, out: &mut Holdings) -> bool {
        let mut left = 0;
        for word in 0..out.alive.len() {
            let alive = out.alive[word];
            if alive.any == 0 {
                continue;
            }
            let plane = plane(self.run, word);
            let mut kept = Alive { near: alive.near & plane.near, any: alive.any & plane.any };
            out_of(word, alive, !plane.present, self.start, out);
            // Those who hold a part of the run.
            for slot in slots(word, alive.near & plane.present & !plane.near) {
                match self.held(slot, Share::near) {
                    blocks if blocks == self.blocks => kept.near |= 1 << (slot % 64),
                    blocks => out.end_near(slot, self.start + blocks),
                }
            }
            for slot in slots(word, alive.any & plane.present & !plane.any) {
                match self.held(slot, Share::any) {
                    blocks if blocks == self.blocks => kept.any |= 1 << (slot % 64),
                    blocks => out.end_any(slot, self.start + blocks),
                }
            }
            left |= kept.any;
            out.alive[word] = kept;
        }
        left != 0
    }

    fn held(&self, slot: usize, mask: impl Fn(&Share) -> u64) -> usize {
        let share = self.run.holders.get(slot as u32);
        share.map_or(0, |share| Table::leading(mask(share), self.blocks))
    }
}

fn begin(run: &Run, out: &mut Holdings) {
    match &run.holders {
        Holders::Nobody => {}
        Holders::One(share) => {
            out.alive.resize(share.slot as usize / 64 + 1, Alive::default());
            let present = 1 << (share.slot % 64);
            out.alive[share.slot as usize / 64] = Alive { near: present, any: present };
        }
        Holders::Crowd(crowd) => {
            out.alive.extend(crowd.planes().iter().map(|it| Alive { near: it.present, any: it.present }));
        }
    }
}

#[inline]
fn plane(run: &Run, word: usize) -> Plane {
    match &run.holders {
        Holders::Crowd(crowd) => crowd.planes().get(word).copied().unwrap_or_default(),
        Holders::One(share) if share.slot as usize / 64 == word => {
            let (full, bit) = (low(run.len()), share.slot % 64);
            Plane {
                present: 1 << bit,
                near: u64::from(share.near() == full) << bit,
                any: u64::from(share.any() == full) << bit,
            }
        }
        Holders::One(_) | Holders::Nobody => Plane::default(),
    }
}

fn end(depth: usize, out: &mut Holdings) {
    for word in 0..out.alive.len() {
        out_of(word, out.alive[word], u64::MAX, depth, out);
    }
}

/// Those of `alive` that are in `leaving` hold so many blocks. Most leave both sets at once.
#[inline]
fn out_of(word: usize, alive: Alive, leaving: u64, blocks: usize, out: &mut Holdings) {
    for slot in slots(word, alive.near & leaving) {
        out.end_both(slot, blocks);
    }
    for slot in slots(word, alive.any & !alive.near & leaving) {
        out.end_any(slot, blocks);
    }
}

/// The slots of the bits that are set in this word.
#[inline]
fn slots(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        slot
    })
}

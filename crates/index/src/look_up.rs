//! Walks a prompt's chain through the runs and records where each worker's prefix ends.
//!
//! At each run, the set of workers that held everything so far is intersected with the set that holds the
//! whole run: a few words of bits. Only workers that drop out are examined individually, to find how far into
//! the run they got. So the cost grows with the runs along the chain and the workers that hold part of it,
//! not with the blocks.

use crate::holders::{Holders, Mask, Plane, WorkerMasks, low};
use crate::holdings::{Alive, Holdings};
use crate::run::BlockRun;
use crate::table::{Ahead, Chain, PrefixTable};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

/// How many cache lines of the chain are prefetched at once: the chain may have been hashed long ago.
/// Prefixes that many prompts share are usually shorter.
const LINES_TOUCHED: usize = 9;
/// Prefixes per cache line.
const LINE: usize = 8;

/// Fills `out`, which must be empty. If the look-up counts as a use, `clock` is recorded as its time.
pub(crate) fn look_up(table: &PrefixTable, clock: Option<u32>, chain: Chain<'_>, out: &mut Holdings) {
    // A prompt that begins like no other needs only its first line.
    if chain.prefixes.first().is_none_or(|it| !table.may_begin_run(*it, 0)) {
        return;
    }
    let lines = chain.prefixes.iter().step_by(LINE).take(LINES_TOUCHED);
    black_box(lines.fold(0, |sum, it| sum ^ it.0));
    let (mut depth, mut ahead) = (0, None);
    loop {
        if depth > 0 && depth < chain.prefixes.len() && ahead.is_none_or(|it: Ahead| it.is_over(depth)) {
            ahead = table.look_ahead(chain.prefixes, depth);
            if ahead.is_none() {
                break;
            }
        }
        let found = match ahead.and_then(|it| it.at(depth)) {
            Some(guess) if depth < chain.prefixes.len() => table.step_to(guess, chain, depth),
            _ => table.step(chain, depth),
        };
        let Some((id, blocks)) = found else { break };
        let run = &table.runs[id];
        if let Some(clock) = clock
            && run.used.load(Relaxed) != clock
        {
            run.used.store(clock, Relaxed);
        }
        if depth == 0 {
            begin(run, out);
        }
        if !(Stretch { run, start: depth, blocks }).meet(out) {
            return;
        }
        depth += blocks;
    }
    end(depth, out);
}

/// What a chain and a run have in common.
struct Stretch<'a> {
    run: &'a BlockRun,
    start: usize,
    blocks: usize,
}

impl Stretch<'_> {
    /// Records which workers drop out here. Returns false if none is left.
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
            // Workers that hold part of the run.
            for slot in slots(word, alive.near & plane.present & !plane.near) {
                match self.held(slot, WorkerMasks::near) {
                    blocks if blocks == self.blocks => kept.near |= 1 << (slot % 64),
                    blocks => out.end_near(slot, self.start + blocks),
                }
            }
            for slot in slots(word, alive.any & plane.present & !plane.any) {
                match self.held(slot, WorkerMasks::any) {
                    blocks if blocks == self.blocks => kept.any |= 1 << (slot % 64),
                    blocks => out.end_any(slot, self.start + blocks),
                }
            }
            left |= kept.any;
            out.alive[word] = kept;
        }
        left != 0
    }

    fn held(&self, slot: usize, mask: impl Fn(&WorkerMasks) -> Mask) -> usize {
        let share = self.run.holders.get(slot as u32);
        share.map_or(0, |share| PrefixTable::leading(mask(share), self.blocks))
    }
}

fn begin(run: &BlockRun, out: &mut Holdings) {
    match &run.holders {
        Holders::Nobody => {}
        Holders::One(share) => {
            out.alive.resize(share.slot as usize / 64 + 1, Alive::default());
            let present = 1 << (share.slot % 64);
            out.alive[share.slot as usize / 64] = Alive { near: present, any: present };
        }
        Holders::Crowd(crowd) => {
            let present = (0..crowd.planes()).map(|word| crowd.plane(word).present);
            out.alive.extend(present.map(|it| Alive { near: it, any: it }));
        }
    }
}

#[inline]
fn plane(run: &BlockRun, word: usize) -> Plane {
    match &run.holders {
        Holders::Crowd(crowd) => crowd.plane(word),
        Holders::One(share) if share.slot as usize / 64 == word => {
            let (full, bit) = (low(run.len()), share.slot % 64);
            let present = 1 << bit;
            // The usual case: then the other masks, which are in another cache line, are not needed.
            if share.is_whole(full) {
                return Plane { present, near: present, any: present };
            }
            Plane {
                present,
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

/// Records that the workers in both `alive` and `leaving` hold this many blocks. Most leave both sets at
/// once.
#[inline]
fn out_of(word: usize, alive: Alive, leaving: u64, blocks: usize, out: &mut Holdings) {
    for slot in slots(word, alive.near & leaving) {
        out.end_both(slot, blocks);
    }
    for slot in slots(word, alive.any & !alive.near & leaving) {
        out.end_any(slot, blocks);
    }
}

/// The slots whose bits are set in this word.
#[inline]
fn slots(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        slot
    })
}

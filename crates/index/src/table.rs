//! All blocks anybody holds, as runs: stretches of blocks that follow each other.
//!
//! A prefix hash names all that comes before it, so one comparison, of a run's last hash, proves the whole
//! run, and a run is found by the hash of its first block alone. No run knows its parent or its children:
//! a walk takes the next hash of its own chain and asks for the run that begins with it. A block is in one
//! run only; everybody who holds it meets there.
//!
//! Runs are split where chains part, so that those who share a prefix hold whole runs of it. Names point
//! at runs (`names.rs`) and are not rewritten then: a split run keeps its first part and leads on to the
//! second, by `next`. Offsets add up along these links, hence the rule that a run with a `next` neither
//! grows nor goes away, even if nobody holds it.

use crate::believed::{Beliefs, Stamp};
use crate::heads::Heads;
use crate::holders::{Holders, Mask, RUN_BLOCKS, Share, low};
use crate::prefix::PrefixHash;
use crate::slab::{NONE, Slab};
use std::hint::black_box;

/// A prompt, cut into blocks: the prefix at the end of each full one.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// How the prompt was cut. Blocks of other lengths are other blocks, though the prefix be the same.
    pub block_tokens: u32,
    pub prefixes: &'a [PrefixHash],
}

/// How many runs a look-up fetches ahead. About what a core can wait for at once.
pub(crate) const TOUCHED: usize = 8;

/// A block: its run, and where in it.
pub(crate) type Position = (u32, u8);

/// Aligned so that a look-up that meets it pays for one fetch: two lines that come as a pair.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Run {
    /// The hash of the last block, here as well to spare the look-up a step.
    last: u64,
    hashes: Vec<u64>,
    pub(crate) holders: Holders,
    next: u32,
    previous: u32,
    /// When it was last looked up or stored, on the index's own clock.
    pub(crate) used: u32,
    block_tokens: u32,
}

impl Default for Run {
    fn default() -> Run {
        Run {
            last: 0,
            hashes: Vec::new(),
            holders: Holders::Nobody,
            next: NONE,
            previous: NONE,
            used: 0,
            block_tokens: 0,
        }
    }
}

impl Run {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// How many of the prefixes are this run's, from its first on.
    #[inline]
    fn matched(&self, prefixes: &[PrefixHash]) -> usize {
        let blocks = self.hashes.len();
        match prefixes.get(blocks - 1) {
            Some(prefix) if prefix.0 == self.last => blocks,
            _ => self.matched_part(prefixes),
        }
    }

    fn matched_part(&self, prefixes: &[PrefixHash]) -> usize {
        let (mut same, mut end) = (0, self.hashes.len().min(prefixes.len()));
        // What follows a difference differs, so the last block that is the same can be halved in on.
        while same < end {
            let middle = usize::midpoint(same, end);
            if self.hashes[middle] == prefixes[middle].0 { same = middle + 1 } else { end = middle }
        }
        same
    }
}

/// Where a walk along a chain met a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) run: u32,
    /// The first block of the run, counted along the chain.
    pub(crate) start: usize,
    /// How many blocks chain and run have in common.
    pub(crate) blocks: usize,
}

/// For whom blocks are placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placing {
    pub(crate) slot: u32,
    pub(crate) block_tokens: u32,
    /// The request, if this is a prediction.
    pub(crate) planter: Option<Stamp>,
    /// How many blocks are to come, this one included.
    pub(crate) left: usize,
    pub(crate) clock: u32,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) runs: Slab<Run>,
    heads: Heads,
    pub(crate) beliefs: Beliefs,
    /// Bytes of what the runs point at.
    heap: usize,
    blocks: usize,
}

impl Table {
    pub(crate) fn new(seed: u64) -> Table {
        Table { runs: Slab::new(), heads: Heads::new(seed), beliefs: Beliefs::new(), heap: 0, blocks: 0 }
    }

    /// Distinct blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> usize {
        self.runs.bytes() + self.heads.bytes() + self.beliefs.bytes() + self.heap
    }

    /// What a few blocks may add at once, however few: pages, shards, the longest list of holders.
    pub(crate) fn bytes_to_grow(&self, slots: usize) -> usize {
        self.runs.bytes_to_grow()
            + self.heads.bytes_to_grow()
            + self.beliefs.bytes_to_grow()
            + slots * size_of::<Share>()
    }

    /// The run that the chain is in from here on, and how far.
    #[inline]
    pub(crate) fn step(&self, prefixes: &[PrefixHash], block_tokens: u32) -> Option<(u32, usize)> {
        let first = prefixes.first()?;
        let mut blocks = 0;
        let run = self.heads.find(first.0, |run| {
            let run = &self.runs[run];
            run.block_tokens == block_tokens && {
                // Zero if the tag deceived.
                blocks = run.matched(prefixes);
                blocks > 0
            }
        })?;
        Some((run, blocks))
    }

    /// Fetches the runs that a chain will likely meet next, all at once. A chain that has just left a run
    /// of full length is in a long stretch, and its runs begin at every 64th block: without this a long
    /// look-up waits for memory three times a run, one after the other.
    pub(crate) fn touch_ahead(&self, prefixes: &[PrefixHash]) {
        let mut guesses = [NONE; TOUCHED];
        for (guess, prefix) in guesses.iter_mut().zip(prefixes.iter().step_by(RUN_BLOCKS)) {
            *guess = self.heads.touch(prefix.0).unwrap_or(NONE);
        }
        let lengths = guesses.iter().filter(|&&it| it != NONE).map(|&it| self.runs[it].hashes.len());
        black_box(lengths.fold(0, |sum, it| sum ^ it));
    }

    /// Fetches what `extend` will need to know of a block.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        u64::from(self.heads.touch(hash).unwrap_or(NONE))
    }

    /// All runs along the chain, also those beyond blocks that nobody holds: what follows such a block can
    /// only be the first of its run.
    pub(crate) fn trace(&self, chain: Chain<'_>, path: &mut Vec<Segment>) {
        path.clear();
        let mut start = 0;
        while start < chain.prefixes.len() {
            match self.step(&chain.prefixes[start..], chain.block_tokens) {
                None => start += 1,
                Some((run, blocks)) => {
                    path.push(Segment { run, start, blocks });
                    start += blocks;
                }
            }
        }
    }

    /// Where a block is now that was once at this position.
    #[inline]
    pub(crate) fn resolve(&self, (mut run, offset): Position) -> Position {
        let mut offset = usize::from(offset);
        loop {
            let it = &self.runs[run];
            if offset < it.len() || it.next == NONE {
                return (run, offset as u8);
            }
            offset -= it.len();
            run = it.next;
        }
    }

    pub(crate) fn hash(&self, (run, offset): Position) -> u64 {
        self.runs[run].hashes[usize::from(offset)]
    }

    #[inline]
    pub(crate) fn share(&self, run: u32, slot: u32) -> Option<&Share> {
        self.runs[run].holders.get(slot)
    }

    /// The place of the block that follows `at` (or begins a prompt), found or made. Nobody holds a new one:
    /// the caller must see to that at once.
    pub(crate) fn extend(&mut self, at: Option<Position>, hash: u64, placing: Placing) -> Position {
        if let Some((run, offset)) = at {
            let after = usize::from(offset) + 1;
            match self.runs[run].hashes.get(after) {
                Some(&next) if next == hash => return (run, after as u8),
                Some(_) => self.split(run, after),
                None => {}
            }
        }
        let known = self.heads.find(hash, |run| {
            let run = &self.runs[run];
            run.block_tokens == placing.block_tokens && run.hashes[0] == hash
        });
        match (known, at) {
            (Some(run), _) => (run, 0),
            (None, Some((run, _))) if self.may_grow(run, placing) => self.push(run, hash, placing),
            (None, _) => self.begin(hash, placing),
        }
    }

    fn may_grow(&self, run: u32, placing: Placing) -> bool {
        let run = &self.runs[run];
        let is_own = match &run.holders {
            Holders::Nobody => true,
            Holders::Crowd(_) => false,
            // One history an entry: what another request planted is not prolonged.
            Holders::One(share) => {
                share.slot == placing.slot
                    && match (placing.planter, self.beliefs.get(share.belief)) {
                        (Some(planter), Some(belief)) => belief.planter == planter,
                        _ => true,
                    }
            }
        };
        is_own && run.next == NONE && run.len() < RUN_BLOCKS
    }

    fn push(&mut self, id: u32, hash: u64, placing: Placing) -> Position {
        let run = &mut self.runs[id];
        if run.hashes.len() == run.hashes.capacity() {
            let room = RUN_BLOCKS - run.len();
            self.heap -= run.hashes.capacity() * 8;
            run.hashes.reserve_exact(placing.left.max(4 + run.len() / 4).min(room));
            self.heap += run.hashes.capacity() * 8;
        }
        run.hashes.push(hash);
        run.last = hash;
        run.used = placing.clock;
        self.blocks += 1;
        (id, (run.hashes.len() - 1) as u8)
    }

    fn begin(&mut self, hash: u64, placing: Placing) -> Position {
        let id = self.runs.insert(Run { block_tokens: placing.block_tokens, ..Run::default() });
        self.heads.insert(hash, id);
        self.push(id, hash, placing)
    }

    /// Cuts a run so that it ends after `blocks` blocks. What follows becomes a run of its own, or goes if
    /// nobody holds it.
    pub(crate) fn split(&mut self, id: u32, blocks: usize) {
        let run = &mut self.runs[id];
        self.heap -= run.hashes.capacity() * 8 + run.holders.heap_bytes();
        let hashes = run.hashes.split_off(blocks);
        run.hashes.shrink_to_fit();
        run.last = run.hashes[blocks - 1];
        let holders = run.holders.split(blocks, hashes.len());
        self.heap += run.hashes.capacity() * 8 + run.holders.heap_bytes();
        if matches!(holders, Holders::Nobody) && run.next == NONE {
            self.blocks -= hashes.len();
            return;
        }
        self.heap += hashes.capacity() * 8 + holders.heap_bytes();
        let (next, first) = (run.next, hashes[0]);
        let rest = Run {
            last: hashes[hashes.len() - 1],
            hashes,
            holders,
            next,
            previous: id,
            used: run.used,
            block_tokens: run.block_tokens,
        };
        let rest = self.runs.insert(rest);
        self.heads.insert(first, rest);
        if next != NONE {
            self.runs[next].previous = rest;
        }
        self.runs[id].next = rest;
        self.split_beliefs(id, rest);
    }

    fn split_beliefs(&mut self, id: u32, rest: u32) {
        for at in 0..self.runs[rest].holders.shares().len() {
            let share = self.runs[rest].holders.shares()[at];
            if share.belief == NONE {
                continue;
            }
            let stays = self.share(id, share.slot).is_some_and(|it| it.predicted != 0);
            let goes = share.predicted != 0;
            let belief = match (stays, goes) {
                (true, true) => self.beliefs.split(share.belief, rest),
                (true, false) => NONE,
                (false, _) => {
                    if let Some(belief) = self.beliefs.get_mut(share.belief) {
                        belief.run = rest;
                    }
                    share.belief
                }
            };
            self.set_belief(rest, share.slot, belief);
            if !stays && self.share(id, share.slot).is_some() {
                self.set_belief(id, share.slot, NONE);
            }
        }
    }

    fn set_belief(&mut self, id: u32, slot: u32, belief: u32) {
        let run = &mut self.runs[id];
        let full = low(run.len());
        run.holders.update(slot, full, |it| it.belief = belief);
    }

    /// Adds a block to those that a slot holds on its GPU, if the run is its alone and nothing else is
    /// to be seen to: by far the most frequent change, in a tenth of the steps of `change`.
    #[inline]
    pub(crate) fn hold_alone(&mut self, id: u32, slot: u32, bit: Mask) -> bool {
        match &mut self.runs[id].holders {
            Holders::One(share) if share.slot == slot && (share.gpu | share.predicted) & bit == 0 => {
                share.gpu |= bit;
                true
            }
            _ => false,
        }
    }

    /// Changes what a slot holds of a run. A run that nobody holds any more goes.
    #[inline]
    pub(crate) fn change(&mut self, id: u32, slot: u32, change: impl FnOnce(&mut Share)) {
        let run = &mut self.runs[id];
        let full = low(run.len());
        self.heap -= run.holders.heap_bytes();
        let (before, after) = run.holders.update(slot, full, |share| {
            let before = *share;
            change(share);
            if share.predicted == 0 {
                share.belief = NONE;
            }
            (before, *share)
        });
        self.heap += run.holders.heap_bytes();
        let is_held = !matches!(run.holders, Holders::Nobody);
        if before.predicted != after.predicted {
            self.account(id, before, after);
        }
        if !is_held {
            self.release(id);
        }
    }

    fn account(&mut self, id: u32, before: Share, after: Share) {
        self.beliefs.lose(before.slot, before.predicted.count_ones());
        self.beliefs.gain(after.slot, after.predicted.count_ones());
        match (before.predicted, after.predicted) {
            (0, _) => {
                let belief = self.beliefs.insert(after.slot, id);
                self.set_belief(id, after.slot, belief);
            }
            (_, 0) => self.beliefs.remove(before.belief),
            _ => {}
        }
    }

    /// Lets a run go that nobody holds and nothing leads through, and those before it that it kept.
    fn release(&mut self, mut id: u32) {
        loop {
            let run = &self.runs[id];
            if !matches!(run.holders, Holders::Nobody) || run.next != NONE {
                return;
            }
            self.heads.remove(run.hashes[0], id);
            let run = self.runs.remove(id);
            self.heap -= run.hashes.capacity() * 8;
            self.blocks -= run.hashes.len();
            if run.previous == NONE {
                return;
            }
            self.runs[run.previous].next = NONE;
            id = run.previous;
        }
    }

    /// Sees to it that what this slot is predicted to hold up to the cut, a block of the chain, and what
    /// it is or will be predicted to hold from there on, are not in one entry: each has one history.
    pub(crate) fn fence(&mut self, segment: Segment, cut: usize, slot: u32) {
        let Some(blocks) = cut.checked_sub(segment.start) else { return };
        if blocks == 0 || blocks >= self.runs[segment.run].len() {
            return;
        }
        if self.share(segment.run, slot).is_some_and(|it| it.predicted != 0) {
            self.split(segment.run, blocks);
        }
    }

    /// How many of the first `blocks` blocks a mask has, from the first on.
    #[inline]
    pub(crate) fn leading(mask: Mask, blocks: usize) -> usize {
        (mask.trailing_ones() as usize).min(blocks)
    }
}

//! All blocks anybody holds, as runs: stretches of blocks that follow each other.
//!
//! A prefix hash names all that comes before it, so one comparison, of a run's last hash, proves the whole
//! run, and a run is found by the hash of its first block alone. No run knows its parent or its children:
//! a walk takes the next hash of its own chain and asks for the run that begins with it. A block is in one
//! run only; everybody who holds it meets there.
//!
//! Runs end at every 128th block of their chain: so it is known beforehand where most runs along a chain
//! begin, and a look-up can fetch many at once instead of each after the one before.
//!
//! They are also split where chains part, so that those who share a prefix hold whole runs of it. Names point
//! at runs (`names.rs`) and are not rewritten then: a split run keeps its first part and leads on to the
//! second, by `next`. Offsets add up along these links, hence the rule that a run with a `next` neither
//! grows nor goes away, even if nobody holds it.

use crate::believed::{Beliefs, Stamp};
use crate::heads::Heads;
use crate::holders::{Holders, Mask, RUN_BLOCKS, WorkerMasks, low};
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

/// Few shards, so that few heads are in few lines.
const FIRST_SHARD_BITS: u32 = 3;
const SHARD_BITS: u32 = 6;

/// How many blocks share a mark. So many hashes fill a line of the cache.
const MARK_BLOCKS: usize = 8;

/// A block: its run, and where in it.
pub(crate) type Position = (u32, u8);

/// Aligned and in this order so that a look-up that passes through it fetches two lines that follow each other.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct BlockRun {
    /// The hash of the last block, here as well to spare the look-up a step.
    last: u64,
    /// When it was last looked up or stored, on the index's own clock.
    pub(crate) used: u32,
    block_tokens: u32,
    /// How many there are.
    blocks: u8,
    /// Where in its chain it begins, modulo `RUN_BLOCKS`.
    depth: u8,
    /// It begins a prompt.
    is_first: bool,
    next: u32,
    pub(crate) holders: Holders,
    previous: u32,
    hashes: Vec<u64>,
    /// Of the hash of every so manyth block a few bits, here as well to spare the look-up some fetches where
    /// chains part.
    marks: [u16; RUN_BLOCKS / MARK_BLOCKS],
}

impl Default for BlockRun {
    fn default() -> BlockRun {
        BlockRun {
            holders: Holders::Nobody,
            last: 0,
            used: 0,
            block_tokens: 0,
            blocks: 0,
            depth: 0,
            is_first: false,
            next: NONE,
            previous: NONE,
            hashes: Vec::new(),
            marks: Default::default(),
        }
    }
}

impl BlockRun {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.blocks)
    }

    /// How many blocks more it may get.
    #[inline]
    fn room(&self) -> usize {
        RUN_BLOCKS - usize::from(self.depth) - self.len()
    }

    /// How many of the prefixes are this run's, from its first on.
    #[inline]
    fn matched(&self, prefixes: &[PrefixHash]) -> usize {
        let blocks = self.len();
        match prefixes.get(blocks - 1) {
            Some(prefix) if prefix.0 == self.last => blocks,
            _ => self.matched_part(prefixes),
        }
    }

    fn matched_part(&self, prefixes: &[PrefixHash]) -> usize {
        let end = self.hashes.len().min(prefixes.len());
        let is_same = |at: usize| self.hashes[at] == prefixes[at].0;
        if is_same(end - 1) {
            return end;
        }
        // What follows a difference differs, so the last block that is the same can be halved in on. First
        // by the marks: of the hashes, far away, one line is then left to look at.
        let (mut same, mut differ) = (0, end.div_ceil(MARK_BLOCKS));
        while same < differ {
            let middle = usize::midpoint(same, differ);
            let at = middle * MARK_BLOCKS;
            if self.marks[middle] == prefixes[at].0 as u16 { same = middle + 1 } else { differ = middle }
        }
        let Some(group) = same.checked_sub(1) else { return 0 };
        let start = group * MARK_BLOCKS;
        if is_same(start) {
            let last = end.min(start + MARK_BLOCKS);
            return start + (start..last).take_while(|&at| is_same(at)).count();
        }
        (0..end).take_while(|&at| is_same(at)).count()
    }

    /// Brings what sums the hashes up in line with them.
    fn sum_up(&mut self) {
        self.blocks = self.hashes.len() as u8;
        self.last = self.hashes.last().copied().unwrap_or(0);
        for (mark, hash) in self.marks.iter_mut().zip(self.hashes.iter().step_by(MARK_BLOCKS)) {
            *mark = *hash as u16;
        }
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
    pub(crate) author: Option<Stamp>,
    /// How many blocks are to come, this one included.
    pub(crate) left: usize,
    pub(crate) clock: u32,
}

#[derive(Debug)]
pub(crate) struct PrefixTable {
    pub(crate) runs: Slab<BlockRun>,
    /// Of the runs that begin prompts: few, so that their part of a look-up is rarely out of the cache.
    first_heads: Heads,
    /// Of all others.
    heads: Heads,
    pub(crate) beliefs: Beliefs,
    /// Bytes of what the runs point at.
    heap: usize,
    blocks: usize,
}

impl PrefixTable {
    pub(crate) fn new(seed: u64) -> PrefixTable {
        PrefixTable {
            runs: Slab::new(),
            first_heads: Heads::new(seed, FIRST_SHARD_BITS),
            heads: Heads::new(seed, SHARD_BITS),
            beliefs: Beliefs::new(),
            heap: 0,
            blocks: 0,
        }
    }

    /// Distinct blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> usize {
        self.runs.bytes() + self.first_heads.bytes() + self.heads.bytes() + self.beliefs.bytes() + self.heap
    }

    /// What a few blocks may add at once, however few: pages, shards, the longest list of holders, the rest of a run.
    pub(crate) fn bytes_to_grow(&self, slots: usize) -> usize {
        self.runs.bytes_to_grow()
            + self.first_heads.bytes_to_grow()
            + self.heads.bytes_to_grow()
            + self.beliefs.bytes_to_grow()
            + slots * size_of::<WorkerMasks>()
            + RUN_BLOCKS * size_of::<u64>()
    }

    /// The run that the chain is in from `depth` on, and how far.
    #[inline]
    pub(crate) fn step(&self, chain: Chain<'_>, depth: usize) -> Option<(u32, usize)> {
        let prefixes = &chain.prefixes[depth..];
        let first = prefixes.first()?;
        let mut blocks = 0;
        let run = self.heads(depth == 0).find(first.0, |run| {
            let run = &self.runs[run];
            run.block_tokens == chain.block_tokens && {
                // Zero if the tag deceived.
                blocks = run.matched(prefixes);
                blocks > 0
            }
        })?;
        Some((run, blocks))
    }

    #[inline]
    fn heads(&self, is_first: bool) -> &Heads {
        if is_first { &self.first_heads } else { &self.heads }
    }

    fn heads_mut(&mut self, is_first: bool) -> &mut Heads {
        if is_first { &mut self.first_heads } else { &mut self.heads }
    }

    /// Fetches what `extend` will need to know of a block.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        self.heads.touch(hash)
    }

    /// Fetches the runs that a chain will likely meet from `depth` on, all at once, and says how far that
    /// reaches. One after the other, a long look-up would wait for memory three times a run.
    #[inline]
    pub(crate) fn touch_ahead(&self, prefixes: &[PrefixHash], depth: usize) -> usize {
        let mut guesses = [NONE; TOUCHED];
        let next = (depth / RUN_BLOCKS + 1) * RUN_BLOCKS;
        let later = prefixes.get(next..).unwrap_or_default().iter().step_by(RUN_BLOCKS);
        for (guess, prefix) in guesses.iter_mut().zip(prefixes[depth..].iter().take(1).chain(later)) {
            match self.heads.find(prefix.0, |_| true) {
                Some(run) => *guess = run,
                None => break,
            }
        }
        let blocks = guesses.iter().take_while(|&&it| it != NONE).map(|&it| self.runs[it].blocks);
        black_box(blocks.fold(0, |sum, it| sum ^ it));
        next + (TOUCHED - 1) * RUN_BLOCKS
    }

    /// All runs along the chain, also those beyond blocks that nobody holds: what follows such a block can
    /// only be the first of its run.
    pub(crate) fn trace(&self, chain: Chain<'_>, path: &mut Vec<Segment>) {
        path.clear();
        let mut start = 0;
        while start < chain.prefixes.len() {
            match self.step(chain, start) {
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
        let run = &self.runs[run];
        // Most ask for the last.
        if offset + 1 == run.blocks { run.last } else { run.hashes[usize::from(offset)] }
    }

    #[inline]
    pub(crate) fn share(&self, run: u32, slot: u32) -> Option<&WorkerMasks> {
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
        let known = self.heads(at.is_none()).find(hash, |run| {
            let run = &self.runs[run];
            run.block_tokens == placing.block_tokens && run.hashes[0] == hash
        });
        match (known, at) {
            (Some(run), _) => (run, 0),
            (None, Some((run, _))) if self.may_grow(run, placing) => self.push(run, hash, placing),
            (None, _) => self.begin(at, hash, placing),
        }
    }

    /// Adds a block that nobody has yet to those that a slot holds on its GPU, if it goes at the end of a run
    /// that is the slot's alone: by far the most frequent change, in a tenth of the steps of the others.
    #[inline]
    pub(crate) fn append(&mut self, (id, offset): Position, hash: u64, placing: Placing) -> Option<Position> {
        let run = &self.runs[id];
        let may_grow = offset + 1 == run.blocks && run.next == NONE && run.room() > 0;
        let is_own = matches!(&run.holders, Holders::One(share) if share.slot == placing.slot);
        if !may_grow || !is_own || self.heads.find(hash, |_| true).is_some() {
            return None;
        }
        let position = self.push(id, hash, placing);
        if let Holders::One(share) = &mut self.runs[id].holders {
            share.gpu |= 1 << position.1;
        }
        Some(position)
    }

    fn may_grow(&self, run: u32, placing: Placing) -> bool {
        let run = &self.runs[run];
        let is_own = match &run.holders {
            Holders::Nobody => true,
            Holders::Crowd(_) => false,
            // One history an entry: what another request predicted_blocks is not prolonged.
            Holders::One(share) => {
                share.slot == placing.slot
                    && match (placing.author, self.beliefs.get(share.belief)) {
                        (Some(author), Some(belief)) => belief.author == author,
                        _ => true,
                    }
            }
        };
        is_own && run.next == NONE && run.room() > 0
    }

    #[inline]
    fn push(&mut self, id: u32, hash: u64, placing: Placing) -> Position {
        let run = &mut self.runs[id];
        if run.hashes.len() == run.hashes.capacity() {
            let room = run.room();
            self.heap -= run.hashes.capacity() * 8;
            // What grew once will grow again.
            let more = if run.blocks == 0 { placing.left.max(4).min(room) } else { room };
            run.hashes.reserve_exact(more);
            self.heap += run.hashes.capacity() * 8;
        }
        if run.len().is_multiple_of(MARK_BLOCKS) {
            run.marks[run.len() / MARK_BLOCKS] = hash as u16;
        }
        run.hashes.push(hash);
        run.last = hash;
        run.blocks += 1;
        run.used = placing.clock;
        self.blocks += 1;
        (id, run.blocks - 1)
    }

    fn begin(&mut self, at: Option<Position>, hash: u64, placing: Placing) -> Position {
        let before = at.map_or(0, |(run, offset)| self.runs[run].depth + offset + 1);
        let depth = before % RUN_BLOCKS as u8;
        let (block_tokens, is_first) = (placing.block_tokens, at.is_none());
        let id = self.runs.insert(BlockRun { block_tokens, depth, is_first, ..BlockRun::default() });
        self.heads_mut(is_first).insert(hash, id);
        self.push(id, hash, placing)
    }

    /// Cuts a run so that it ends after `blocks` blocks. What follows becomes a run of its own, or goes if
    /// nobody holds it.
    pub(crate) fn split(&mut self, id: u32, blocks: usize) {
        let run = &mut self.runs[id];
        self.heap -= run.hashes.capacity() * 8 + run.holders.heap_bytes();
        let hashes = run.hashes.split_off(blocks);
        run.hashes.shrink_to_fit();
        run.sum_up();
        let holders = run.holders.split(blocks, hashes.len());
        self.heap += run.hashes.capacity() * 8 + run.holders.heap_bytes();
        if matches!(holders, Holders::Nobody) && run.next == NONE {
            self.blocks -= hashes.len();
            return;
        }
        self.heap += hashes.capacity() * 8 + holders.heap_bytes();
        let (next, first) = (run.next, hashes[0]);
        let mut rest = BlockRun {
            holders,
            used: run.used,
            block_tokens: run.block_tokens,
            depth: run.depth + blocks as u8,
            next,
            previous: id,
            hashes,
            ..BlockRun::default()
        };
        rest.sum_up();
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
    pub(crate) fn change(&mut self, id: u32, slot: u32, change: impl FnOnce(&mut WorkerMasks)) {
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

    fn account(&mut self, id: u32, before: WorkerMasks, after: WorkerMasks) {
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
            let (first, is_first) = (run.hashes[0], run.is_first);
            self.heads_mut(is_first).remove(first, id);
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

//! All blocks held by any worker, stored as runs: sequences of consecutive blocks.
//!
//! A prefix hash covers everything before it. So comparing a run's last hash proves the whole run, and the
//! hash of its first block is enough to find it. Runs have no links to parents or children: a walk takes the
//! next hash of its chain and looks up the run that begins with it. Each block is in exactly one run, which
//! records all its holders.
//!
//! Runs end at every 128th block of their chain. So the first blocks of most runs along a chain are known in
//! advance, and a look-up can fetch many runs at once instead of one after the other.
//!
//! Runs are also split where chains diverge, so that workers that share a prefix hold whole runs of it. Names
//! point at runs (`names.rs`) and are not rewritten by a split: the run keeps its first part and links to the
//! second by `next`. Offsets add up along these links. Therefore a run with a `next` neither grows nor is
//! removed, even if no worker holds it.

use crate::believed::{Beliefs, Stamp};
use crate::heads::{RunHeads, RunStart};
use crate::holders::{Holders, Mask, RUN_BLOCKS, WorkerMasks, low};
use crate::prefix::PrefixHash;
use crate::run::BlockRun;
use crate::slab::{NONE, Slab};
use std::hint::black_box;

/// A prompt cut into blocks: the prefix hash at the end of each full block.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// The block length the prompt was cut with. Blocks of different lengths are different blocks, even for
    /// the same prefix.
    pub block_tokens: u32,
    pub prefixes: &'a [PrefixHash],
}

/// How many runs a look-up prefetches besides the next one. About as many outstanding misses as a core supports.
const TOUCHED: usize = 7;

/// The position of a block: its run, and the offset in it.
pub(crate) type Position = (u32, u8);

/// Where a walk along a chain met a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) run: u32,
    /// The position in the chain of the run's first block.
    pub(crate) start: usize,
    /// How many blocks the chain and the run have in common.
    pub(crate) blocks: usize,
}

/// The runs along a chain, as of one state of an index. It is made with shared access, beside look-ups. The write that
/// follows, during which look-ups wait, then need not search.
#[derive(Debug, Default)]
pub struct Trace {
    pub(crate) segments: Vec<Segment>,
    /// The state of the table, the block length, and the last prefix of the chain, which stands for all of it. Chains of
    /// blocks of different lengths may end with the same prefix.
    of: Option<(u64, u32, PrefixHash)>,
}

/// Guesses which runs a chain meets: one at `depth`, and one at each 128th block from `next` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    depth: usize,
    next: usize,
    first: u32,
    later: [u32; TOUCHED],
}

impl Ahead {
    /// The guess for this depth; `None` if there is none, or if the guesses end before it.
    #[inline]
    pub(crate) fn at(&self, depth: usize) -> Option<u32> {
        if depth == self.depth {
            return Some(self.first);
        }
        let beyond = depth.checked_sub(self.next).filter(|it| it.is_multiple_of(RUN_BLOCKS))?;
        self.later.get(beyond / RUN_BLOCKS).copied().filter(|&it| it != NONE)
    }

    /// Whether it is time for the next guesses.
    #[inline]
    pub(crate) fn is_over(&self, depth: usize) -> bool {
        depth >= self.next + TOUCHED * RUN_BLOCKS
    }
}

/// What the table needs to know about the blocks it places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placing {
    pub(crate) slot: u32,
    pub(crate) block_tokens: u32,
    /// The request that predicts the block, if this is a prediction.
    pub(crate) author: Option<Stamp>,
    pub(crate) clock: u32,
}

#[derive(Debug)]
pub(crate) struct PrefixTable {
    pub(crate) runs: Slab<BlockRun>,
    heads: RunHeads,
    pub(crate) beliefs: Beliefs,
    /// Heap bytes that the runs point to.
    heap: usize,
    blocks: usize,
    /// How often a run began, grew, was split or was removed.
    state: u64,
}

impl PrefixTable {
    pub(crate) fn new(seed: u64) -> PrefixTable {
        PrefixTable {
            runs: Slab::new(),
            heads: RunHeads::new(seed),
            beliefs: Beliefs::new(),
            heap: 0,
            blocks: 0,
            state: 0,
        }
    }

    /// Distinct blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> usize {
        self.runs.bytes() + self.heads.bytes() + self.beliefs.bytes() + self.heap
    }

    /// Upper bound of the growth caused by any small number of blocks: pages, shards, the longest holder
    /// list, the rest of a run.
    pub(crate) fn bytes_to_grow(&self, slots: usize) -> usize {
        self.runs.bytes_to_grow()
            + self.heads.bytes_to_grow()
            + self.beliefs.bytes_to_grow()
            + slots * size_of::<WorkerMasks>()
            + RUN_BLOCKS * size_of::<u64>()
    }

    /// The run that contains the chain's block at `depth`, and how far it matches.
    #[inline]
    pub(crate) fn step(&self, chain: Chain<'_>, depth: usize) -> Option<(u32, usize)> {
        let prefixes = &chain.prefixes[depth..];
        let first = prefixes.first()?;
        let mut blocks = 0;
        let run = self.heads.at(depth).find(first.0, |run| {
            let run = &self.runs[run];
            run.block_tokens == chain.block_tokens && {
                // Zero if the tag matched by accident.
                blocks = run.matched(prefixes);
                blocks > 0
            }
        })?;
        Some((run, blocks))
    }

    /// Whether a run may begin with this block, which has this depth in its chain.
    #[inline]
    pub(crate) fn may_begin_run(&self, prefix: PrefixHash, depth: usize) -> bool {
        self.heads.may_have(prefix.0, depth)
    }

    /// The depth of the block after this one, or of the first block of a prompt. Whole runs before it do not count.
    #[inline]
    pub(crate) fn depth_after(&self, at: Option<Position>) -> usize {
        at.map_or(0, |(run, offset)| usize::from(self.runs[run].depth) + usize::from(offset) + 1)
    }

    /// The same for a run that `look_ahead` guessed.
    #[inline]
    pub(crate) fn step_to(&self, guess: u32, chain: Chain<'_>, depth: usize) -> Option<(u32, usize)> {
        let run = &self.runs[guess];
        match run.matched(&chain.prefixes[depth..]) {
            blocks if blocks > 0 && run.block_tokens == chain.block_tokens => Some((guess, blocks)),
            _ => self.step(chain, depth),
        }
    }

    /// The runs that a chain probably meets from `depth` on, prefetched all at once. Fetched one after the other, each run of
    /// a long look-up would wait for memory three times. `None` if no run begins there.
    #[inline]
    pub(crate) fn look_ahead(&self, prefixes: &[PrefixHash], depth: usize) -> Option<Ahead> {
        // Many prompts share only a system prompt: the filter shows that with one fetch from an eighth of the memory.
        // They took 301 ns and now take 240 (median, 100 blocks, 64 workers).
        let heads = self.heads.at(depth);
        if !heads.may_have(prefixes[depth].0) {
            return None;
        }
        let first = heads.find(prefixes[depth].0, |_| true)?;
        let next = (depth / RUN_BLOCKS + 1) * RUN_BLOCKS;
        let mut ahead = Ahead { depth, next, first, later: [NONE; TOUCHED] };
        let hashes = prefixes.get(next..).unwrap_or_default().iter().step_by(RUN_BLOCKS).take(TOUCHED);
        let heads = self.heads.of(RunStart::Boundary);
        black_box(hashes.clone().fold(0, |sum, it| sum ^ heads.touch(it.0)));
        let mut touched = self.runs[first].touch();
        for (guess, prefix) in ahead.later.iter_mut().zip(hashes) {
            let Some(run) = heads.find(prefix.0, |_| true) else { break };
            *guess = run;
            touched ^= self.runs[run].touch();
        }
        black_box(touched);
        Some(ahead)
    }

    /// All runs along the chain, including those after blocks that no worker holds: the block after such a
    /// gap can only be the first of its run.
    pub(crate) fn trace(&self, chain: Chain<'_>, path: &mut Vec<Segment>) {
        path.clear();
        let mut start = 0;
        while start < chain.prefixes.len() {
            match self.step(chain, start) {
                None => {
                    let end = chain.prefixes.len();
                    let may_begin = |&it: &usize| self.may_begin_run(chain.prefixes[it], it);
                    start = (start + 1..end).find(may_begin).unwrap_or(end);
                }
                Some((run, blocks)) => {
                    path.push(Segment { run, start, blocks });
                    start += blocks;
                }
            }
        }
    }

    /// The same, as a value that shows when it is out of date.
    pub(crate) fn trace_into(&self, chain: Chain<'_>, trace: &mut Trace) {
        let of = chain.prefixes.last().map(|&it| (self.state, chain.block_tokens, it));
        if of.is_none() || trace.of != of {
            self.trace(chain, &mut trace.segments);
            trace.of = of;
        }
    }

    /// The current position of a block that was once at this position.
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
        // Most callers ask for the last block.
        if offset + 1 == run.blocks { run.last } else { run.hashes()[usize::from(offset)] }
    }

    #[inline]
    pub(crate) fn share(&self, run: u32, slot: u32) -> Option<&WorkerMasks> {
        self.runs[run].holders.get(slot)
    }

    /// The positions of as many blocks after `at` (or at the beginning of a prompt) as are in one run: known blocks,
    /// or else new ones. Returns the first position, and how many there are. New blocks have no holder: the caller
    /// must add one at once. Runs can begin only with blocks for which `may_begin_run` returned true.
    pub(crate) fn extend_run(
        &mut self,
        at: Option<Position>,
        (prefixes, may_begin): (&[PrefixHash], u64),
        placing: Placing,
    ) -> (Position, usize) {
        if let Some((id, offset)) = at {
            match same(&self.runs[id].hashes()[usize::from(offset) + 1..], prefixes) {
                0 => {}
                blocks => return ((id, offset + 1), blocks),
            }
        }
        self.end_run(at);
        let depth = self.depth_after(at);
        let left = RUN_BLOCKS - depth % RUN_BLOCKS;
        let known = |block: usize| self.known(prefixes[block], depth + block, placing);
        let known = |block: usize| (may_begin >> block & 1 == 1).then(|| known(block)).flatten();
        if let Some(run) = known(0) {
            return ((run, 0), same(self.runs[run].hashes(), prefixes));
        }
        let later = 1..left.min(prefixes.len());
        let new = 1 + later.take_while(|&it| known(it).is_none()).count();
        let ((run, last), count) = self.extend_new(at, &prefixes[..new], placing);
        ((run, last + 1 - count as u8), count)
    }

    /// The run that begins with this block.
    #[inline]
    fn known(&self, prefix: PrefixHash, depth: usize, placing: Placing) -> Option<u32> {
        self.heads.at(depth).find(prefix.0, |run| {
            let run = &self.runs[run];
            run.block_tokens == placing.block_tokens && run.hashes()[0] == prefix.0
        })
    }

    /// Appends blocks that are known to be absent from the table, as many as fit into one run. Returns the position
    /// of the last one, and how many there are. They have no holder: the caller must add one at once.
    pub(crate) fn extend_new(
        &mut self,
        at: Option<Position>,
        prefixes: &[PrefixHash],
        placing: Placing,
    ) -> (Position, usize) {
        self.end_run(at);
        let id = match at {
            Some((run, _)) if self.may_grow(run, placing) => run,
            _ => self.begin(at, prefixes[0].0, placing.block_tokens),
        };
        let run = &mut self.runs[id];
        let (start, count) = (run.len(), prefixes.len().min(run.room()));
        if run.reserved() < count {
            self.heap -= run.heap_bytes();
            // A run that grew once will probably grow again.
            run.reserve(if start == 0 { count.max(4).min(run.room()) } else { run.room() });
            self.heap += run.heap_bytes();
        }
        run.append(&prefixes[..count]);
        self.state += 1;
        *run.used.get_mut() = placing.clock;
        self.blocks += count;
        ((id, run.blocks - 1), count)
    }

    /// Splits the run after this block if the run continues, because the chain does not.
    pub(crate) fn end_run(&mut self, at: Option<Position>) {
        if let Some((run, offset)) = at
            && offset + 1 < self.runs[run].blocks
        {
            self.split(run, usize::from(offset) + 1);
        }
    }

    fn may_grow(&self, run: u32, placing: Placing) -> bool {
        let run = &self.runs[run];
        let is_own = match &run.holders {
            Holders::Nobody => true,
            Holders::Crowd(_) => false,
            // Each entry has one history: do not extend a run that another request predicted.
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

    /// A run for a block with this hash, which the caller adds.
    fn begin(&mut self, at: Option<Position>, hash: u64, block_tokens: u32) -> u32 {
        let depth = self.depth_after(at);
        let mut run = BlockRun::new(block_tokens, (depth % RUN_BLOCKS) as u8);
        run.is_first = at.is_none();
        let id = self.runs.insert(run);
        self.heads.of_mut(RunStart::at(depth)).insert(hash, id);
        id
    }

    /// Splits a run after `blocks` blocks. The rest becomes a run of its own, or is removed if no worker
    /// holds it.
    pub(crate) fn split(&mut self, id: u32, blocks: usize) {
        let run = &mut self.runs[id];
        self.heap -= run.heap_bytes();
        let mut rest = run.split(blocks);
        self.state += 1;
        self.heap += run.heap_bytes();
        let next = run.next;
        if matches!(rest.holders, Holders::Nobody) && next == NONE {
            self.blocks -= rest.len();
            return;
        }
        self.heap += rest.heap_bytes();
        (rest.next, rest.previous) = (next, id);
        let first = rest.hashes()[0];
        let rest = self.runs.insert(rest);
        // `Between`, because a run is never longer than from one boundary to the next.
        self.heads.of_mut(RunStart::Between).insert(first, rest);
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
            let first = self.share(id, share.slot);
            let stays = first.is_some_and(|it| it.predicted != 0);
            let is_leaving = first.is_some_and(|it| it.leaving() != 0);
            let goes = share.predicted != 0;
            let belief = match (stays, goes) {
                (true, true) => self.beliefs.split(share.belief, rest, is_leaving),
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

    /// Adds blocks to those that a slot holds on its GPU, if no other slot holds any of the run and there is
    /// nothing else to update. This is by far the most frequent change, and takes a tenth of the steps of
    /// `change`.
    #[inline]
    pub(crate) fn hold_alone(&mut self, id: u32, slot: u32, bits: Mask) -> bool {
        match &mut self.runs[id].holders {
            Holders::One(share) if share.slot == slot && (share.gpu | share.predicted) & bits == 0 => {
                share.gpu |= bits;
                true
            }
            _ => false,
        }
    }

    /// Changes what a slot holds of a run. Removes the run if no worker holds it any more.
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
            share.stay(0);
            (before, *share)
        });
        self.heap += run.holders.heap_bytes();
        let is_held = !matches!(run.holders, Holders::Nobody);
        self.beliefs.recount(&before, &after);
        self.link_belief(id, before, after);
        if !is_held {
            self.release(id);
        }
    }

    fn link_belief(&mut self, id: u32, before: WorkerMasks, after: WorkerMasks) {
        match (before.predicted, after.predicted) {
            (0, 0) => {}
            (0, _) => {
                let belief = self.beliefs.insert(after.slot, id);
                self.set_belief(id, after.slot, belief);
            }
            (_, 0) => self.beliefs.remove(before.belief),
            _ => {}
        }
    }

    /// Removes a run that no worker holds and no link leads through, and any earlier runs that only it kept.
    fn release(&mut self, mut id: u32) {
        loop {
            let run = &self.runs[id];
            if !matches!(run.holders, Holders::Nobody) || run.next != NONE {
                return;
            }
            let (first, start) = (run.hashes()[0], run.start());
            self.heads.of_mut(start).remove(first, id);
            let run = self.runs.remove(id);
            self.state += 1;
            self.heap -= run.heap_bytes();
            self.blocks -= run.len();
            if run.previous == NONE {
                return;
            }
            self.runs[run.previous].next = NONE;
            id = run.previous;
        }
    }

    /// Splits the run at `cut`, a position in the chain, if this slot has predictions in it. The blocks
    /// before and after the cut then have separate entries, because each entry has one history.
    /// Returns whether it did.
    pub(crate) fn fence(&mut self, segment: Segment, cut: usize, slot: u32) -> bool {
        let Some(blocks) = cut.checked_sub(segment.start) else { return false };
        let is_within = blocks > 0 && blocks < self.runs[segment.run].len();
        let splits = is_within && self.share(segment.run, slot).is_some_and(|it| it.predicted != 0);
        if splits {
            self.split(segment.run, blocks);
        }
        splits
    }

    /// How many of the first `blocks` blocks are set in the mask, counted from the first.
    #[inline]
    pub(crate) fn leading(mask: Mask, blocks: usize) -> usize {
        (mask.trailing_ones() as usize).min(blocks)
    }
}

/// How many leading blocks are the same.
#[inline]
fn same(hashes: &[u64], prefixes: &[PrefixHash]) -> usize {
    hashes.iter().zip(prefixes).take_while(|(hash, prefix)| **hash == prefix.0).count()
}

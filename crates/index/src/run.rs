//! A run: consecutive blocks of one chain, and who holds them.

use std::sync::atomic::AtomicU32;

use crate::heads::RunStart;
use crate::holders::{Holders, RUN_BLOCKS};
use crate::prefix::PrefixHash;
use crate::slab::NONE;

/// How many blocks share a mark: as many as have their hashes in one cache line.
const MARK_BLOCKS: usize = 8;

/// Two cache lines, which the CPU fetches as one: a look-up that passes through a run waits for memory once.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct BlockRun {
    /// The hash of the last block, copied here to save the look-up an indirection.
    pub(crate) last: u64,
    /// When the run was last looked up or stored, on the index's own clock. Atomic, because look-ups share the table.
    pub(crate) used: AtomicU32,
    pub(crate) block_tokens: u32,
    /// Links, in both directions, the runs that a split has made of one.
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// The number of blocks.
    pub(crate) blocks: u8,
    /// The position of the first block in its chain, modulo `RUN_BLOCKS`.
    pub(crate) depth: u8,
    /// Whether the run begins a prompt.
    pub(crate) is_first: bool,
    pub(crate) holders: Holders,
    /// Zero after the last block.
    hashes: Box<[u64]>,
    /// A few bits of the hash of every `MARK_BLOCKS`th block, copied here to save the look-up fetches where
    /// chains diverge.
    marks: [u8; RUN_BLOCKS / MARK_BLOCKS],
}

const _: () = assert!(size_of::<BlockRun>() == 128, "a run has outgrown its two cache lines");

impl Default for BlockRun {
    fn default() -> BlockRun {
        BlockRun {
            last: 0,
            used: AtomicU32::new(0),
            block_tokens: 0,
            next: NONE,
            previous: NONE,
            blocks: 0,
            depth: 0,
            is_first: false,
            holders: Holders::Nobody,
            hashes: Box::default(),
            marks: Default::default(),
        }
    }
}

impl BlockRun {
    /// A run without blocks. `depth` is the position of its first in its chain, modulo `RUN_BLOCKS`.
    pub(crate) fn new(block_tokens: u32, depth: u8) -> BlockRun {
        BlockRun { block_tokens, depth, ..BlockRun::default() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.blocks)
    }

    #[inline]
    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes[..self.len()]
    }

    #[inline]
    pub(crate) fn start(&self) -> RunStart {
        if self.is_first { RunStart::Prompt } else { RunStart::at(RUN_BLOCKS + usize::from(self.depth)) }
    }

    /// How many more blocks the run can take.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        RUN_BLOCKS - usize::from(self.depth) - self.len()
    }

    /// Heap bytes that the run points to.
    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.hashes.len() * size_of::<u64>() + self.holders.heap_bytes()
    }

    /// Starts to fetch what a look-up needs when it passes through the run, without waiting for it.
    #[inline]
    pub(crate) fn touch(&self) -> u8 {
        self.blocks
    }

    /// How many leading prefixes match this run, from its first block on.
    #[inline]
    pub(crate) fn matched(&self, prefixes: &[PrefixHash]) -> usize {
        let blocks = self.len();
        match prefixes.get(blocks - 1) {
            Some(prefix) if prefix.0 == self.last => blocks,
            _ => self.matched_part(prefixes),
        }
    }

    fn matched_part(&self, prefixes: &[PrefixHash]) -> usize {
        let end = self.len().min(prefixes.len());
        let is_same = |at: &usize| self.hashes[*at] == prefixes[*at].0;
        // If the chain ends within the run, this waits for nothing that the marks need.
        if end == prefixes.len() && is_same(&(end - 1)) {
            return end;
        }
        // After the first difference all blocks differ. The marks leave one cache line of hashes to read. Compare all
        // of them, so that the fetches of the prefixes overlap.
        let groups = prefixes[..end].iter().step_by(MARK_BLOCKS).zip(&self.marks).enumerate();
        let differ = groups
            .fold(0u32, |differ, (at, (prefix, &mark))| differ | u32::from(prefix.0 as u8 != mark) << at);
        let same = (differ.trailing_zeros() as usize).min(end.div_ceil(MARK_BLOCKS));
        let Some(group) = same.checked_sub(1) else { return 0 };
        let start = group * MARK_BLOCKS;
        match (start..end.min(start + MARK_BLOCKS)).filter(is_same).count() {
            // A mark matched by accident.
            0 => (0..end).take_while(is_same).count(),
            count => start + count,
        }
    }

    /// Makes room for exactly `more` blocks.
    pub(crate) fn reserve(&mut self, more: usize) {
        let mut hashes = std::mem::take(&mut self.hashes).into_vec();
        hashes.truncate(self.len());
        hashes.reserve_exact(more);
        hashes.resize(self.len() + more, 0);
        self.hashes = hashes.into_boxed_slice();
    }

    /// How many blocks there is memory for.
    #[inline]
    pub(crate) fn reserved(&self) -> usize {
        self.hashes.len() - self.len()
    }

    /// Adds blocks, for which there must be memory.
    #[inline]
    pub(crate) fn append(&mut self, prefixes: &[PrefixHash]) {
        let (start, end) = (self.len(), self.len() + prefixes.len());
        for (hash, prefix) in self.hashes[start..end].iter_mut().zip(prefixes) {
            *hash = prefix.0;
        }
        self.blocks = end as u8;
        self.sum_up(start);
    }

    /// Cuts the run after `blocks` blocks, and returns a run with the rest, of the same holders.
    pub(crate) fn split(&mut self, blocks: usize) -> BlockRun {
        let rest: Box<[u64]> = self.hashes()[blocks..].into();
        let mut rest = BlockRun {
            used: AtomicU32::new(*self.used.get_mut()),
            block_tokens: self.block_tokens,
            blocks: rest.len() as u8,
            depth: self.depth + blocks as u8,
            holders: self.holders.split(blocks, rest.len()),
            hashes: rest,
            ..BlockRun::default()
        };
        rest.sum_up(0);
        self.blocks = blocks as u8;
        self.reserve(0);
        self.sum_up(blocks);
        rest
    }

    /// Updates the summary of the blocks from `start` on.
    #[inline]
    fn sum_up(&mut self, start: usize) {
        self.last = self.hashes().last().copied().unwrap_or(0);
        for group in start.div_ceil(MARK_BLOCKS)..self.len().div_ceil(MARK_BLOCKS) {
            self.marks[group] = self.hashes[group * MARK_BLOCKS] as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of these hashes has `expected` blocks in common with these prefixes.
    #[track_caller]
    fn check(hashes: &[u64], prefixes: &[u64], expected: usize) {
        let prefixes: Vec<PrefixHash> = prefixes.iter().map(|&it| PrefixHash(it)).collect();
        let mut run = BlockRun::new(16, 0);
        run.reserve(hashes.len());
        run.append(&hashes.iter().map(|&it| PrefixHash(it)).collect::<Vec<PrefixHash>>());
        assert_eq!(run.matched(&prefixes), expected, "{hashes:?} and {prefixes:?}");
    }

    #[test]
    fn a_chain_matches_up_to_its_first_difference() {
        let hashes: Vec<u64> = (1..=100).map(|it| it * 0x1_0001).collect();
        for same in 0..=100 {
            // All marks differ after the difference, or none does.
            for other in [1, 1 << 32] {
                let differ = hashes[same..].iter().map(|it| it + other);
                let prefixes: Vec<u64> = hashes[..same].iter().copied().chain(differ).collect();
                check(&hashes, &prefixes, same);
                check(&hashes[..same.max(1)], &prefixes, same);
                check(&hashes, &prefixes[..same.max(1)], same);
            }
        }
    }

    #[test]
    fn both_parts_of_a_split_are_summed_up() {
        let prefixes: Vec<PrefixHash> = (1..=60).map(PrefixHash).collect();
        let mut run = BlockRun::new(16, 0);
        run.reserve(60);
        run.append(&prefixes);
        let rest = run.split(21);
        assert_eq!((run.len(), run.last, run.reserved()), (21, 21, 0));
        assert_eq!((rest.len(), rest.last, rest.depth), (39, 60, 21));
        assert_eq!((run.matched(&prefixes[..13]), rest.matched(&prefixes[21..50])), (13, 29));
    }
}

//! Maps the prefix hash of a run's first block to the run.
//!
//! An open-addressing table of eight-byte words: half scrambled hash, half run number. The half hash also decides the
//! home place, so deletion can close gaps without reading the runs. A match is not proof: the caller compares the
//! run. The home place is the first of a cache line, so one fetch nearly always decides whether a hash is present. (A
//! separate array with one byte of each word, an eighth of the size, was faster for misses and slower for hits.
//! Stores, and prompts at the point where they may leave the known ones, ask a filter of that size first.) There are
//! many small shards because each grows alone; one table that doubles at once would exceed the budget.

use crate::holders::RUN_BLOCKS;

/// Words per cache line.
const LINE: usize = 8;
const LINE_BYTES: usize = LINE * size_of::<u64>();

/// Few shards, because there are few such heads and they should share few cache lines.
const PROMPT_SHARD_BITS: u32 = 3;
const SHARD_BITS: u32 = 6;

/// Where in its chain a run begins, in the order of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStart {
    /// Where chains diverge.
    Between,
    /// At a multiple of `RUN_BLOCKS`.
    Boundary,
    /// At the first block of a prompt.
    Prompt,
}

impl RunStart {
    #[inline]
    pub(crate) fn at(depth: usize) -> RunStart {
        match depth {
            depth if !depth.is_multiple_of(RUN_BLOCKS) => RunStart::Between,
            0 => RunStart::Prompt,
            _ => RunStart::Boundary,
        }
    }
}

/// The heads of all runs, with one table for each kind of start. A look-up that leaves the shared part of prompts
/// asks only the `Between` table, which has a fourth of all heads if conversations have 500 blocks. Nearly every
/// stored block does the same. So that table and its filter stay in the CPU's cache more often.
#[derive(Debug)]
pub(crate) struct RunHeads([Heads; 3]);

impl RunHeads {
    pub(crate) fn new(seed: u64) -> RunHeads {
        RunHeads([SHARD_BITS, SHARD_BITS, PROMPT_SHARD_BITS].map(|it| Heads::new(seed, it)))
    }

    #[inline]
    pub(crate) fn of(&self, start: RunStart) -> &Heads {
        &self.0[start as usize]
    }

    /// The table of runs that begin at this depth. Without a branch, which a look-up would often mispredict.
    #[inline]
    pub(crate) fn at(&self, depth: usize) -> &Heads {
        &self.0[usize::from(depth.is_multiple_of(RUN_BLOCKS)) + usize::from(depth == 0)]
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, start: RunStart) -> &mut Heads {
        &mut self.0[start as usize]
    }

    /// Whether there may be a run under this hash that begins at this depth.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64, depth: usize) -> bool {
        // With a branch: nearly all stored blocks are in between, and the address of that table comes from a
        // register.
        match RunStart::at(depth) {
            RunStart::Between => self.of(RunStart::Between).may_have(hash),
            start => self.of(start).may_have(hash),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(Heads::bytes).sum()
    }

    pub(crate) fn bytes_to_grow(&self) -> usize {
        self.0.iter().map(Heads::bytes_to_grow).sum()
    }
}

#[derive(Debug)]
pub(crate) struct Heads {
    /// Indexed by the top bits of the scrambled hash.
    shards: Vec<Shard>,
    shard_bits: u32,
    seed: u64,
    /// Words of all shards, filters included.
    words: usize,
}

/// Zero is an empty place.
#[derive(Clone, Debug, Default)]
struct Shard {
    /// Words before `first` and from `end` on stay empty; they only align the table to a cache line.
    words: Vec<u64>,
    /// For each line, two bits of each hash whose home it is.
    filter: Vec<u64>,
    first: usize,
    end: usize,
    len: usize,
}

impl Heads {
    /// A table of `1 << shard_bits` shards.
    pub(crate) fn new(seed: u64, shard_bits: u32) -> Heads {
        Heads { shards: vec![Shard::default(); 1 << shard_bits], shard_bits, seed, words: 0 }
    }

    /// The first run under this hash that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (shard, tag) = self.locate(hash);
        let shard = &self.shards[shard];
        let home = shard.home(tag);
        let line = shard.words.get(home..home + LINE)?;
        // Compare all eight words without branching: a branch would usually be mispredicted, and the work
        // started after it, such as the next fetch, repeated.
        let (mut hit, mut is_full) = (0, true);
        for &word in line {
            hit = if (word >> 32) as u32 == tag && word != 0 { word } else { hit };
            is_full &= word != 0;
        }
        match hit {
            0 if !is_full => None,
            hit if hit != 0 && is_it(hit as u32 - 1) => Some(hit as u32 - 1),
            _ => shard.find_beyond(home, tag, is_it),
        }
    }

    /// Whether there may be a run under this hash. Cheaper than `find`, which decides it.
    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let (shard, tag) = self.locate(hash);
        let shard = &self.shards[shard];
        shard.filter.get(shard.home_line(tag)).is_some_and(|it| it & filter_bits(tag) == filter_bits(tag))
    }

    /// Starts the fetch that `find` will need, without waiting for it.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        let (shard, tag) = self.locate(hash);
        let shard = &self.shards[shard];
        shard.words.get(shard.home(tag)).copied().unwrap_or(0)
    }

    pub(crate) fn insert(&mut self, hash: u64, run: u32) {
        let (shard, tag) = self.locate(hash);
        let shard = &mut self.shards[shard];
        if (shard.len + 1) * 4 > shard.capacity() * 3 {
            self.words -= shard.words.len() + shard.filter.len();
            shard.grow();
            self.words += shard.words.len() + shard.filter.len();
        }
        shard.put(u64::from(tag) << 32 | (u64::from(run) + 1));
        shard.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, run: u32) {
        let (shard, tag) = self.locate(hash);
        self.shards[shard].take(u64::from(tag) << 32 | (u64::from(run) + 1));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words * size_of::<u64>() + self.shards.capacity() * size_of::<Shard>()
    }

    /// Upper bound of the growth from inserting a few hashes: all shards may be about to grow, one after the other.
    pub(crate) fn bytes_to_grow(&self) -> usize {
        let (all, one) = (self.words / 2, (self.words * 3) >> self.shard_bits);
        (all + one) * size_of::<u64>() + self.shards.len() * 2 * LINE_BYTES
    }

    #[inline]
    fn locate(&self, hash: u64) -> (usize, u32) {
        let scrambled = (hash ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = (scrambled >> 32) >> (32 - self.shard_bits);
        (shard as usize, (scrambled >> (32 - self.shard_bits)) as u32)
    }
}

impl Shard {
    /// The capacity in words: always whole cache lines.
    #[inline]
    fn capacity(&self) -> usize {
        self.end - self.first
    }

    #[inline]
    fn home_line(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.filter.len() as u64) >> 32) as usize
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        self.first + self.home_line(tag) * LINE
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.end { self.first } else { at + 1 }
    }

    /// Compares word by word: for full lines and for tags that occur twice.
    #[cold]
    fn find_beyond(&self, mut at: usize, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        loop {
            let word = self.words[at];
            if word == 0 {
                return None;
            }
            if (word >> 32) as u32 == tag && is_it(word as u32 - 1) {
                return Some(word as u32 - 1);
            }
            at = self.after(at);
        }
    }

    fn grow(&mut self) {
        let capacity = LINE.max(self.capacity() + self.capacity() / 2).next_multiple_of(LINE);
        let old = std::mem::replace(&mut self.words, vec![0; capacity + LINE - 1]);
        self.first = self.words.as_ptr().align_offset(LINE_BYTES).min(LINE - 1);
        self.end = self.first + capacity;
        self.filter = vec![0; capacity / LINE];
        old.into_iter().filter(|&word| word != 0).for_each(|word| self.put(word));
    }

    fn put(&mut self, word: u64) {
        let tag = (word >> 32) as u32;
        let mut at = self.home(tag);
        let line = self.home_line(tag);
        self.filter[line] |= filter_bits(tag);
        while self.words[at] != 0 {
            at = self.after(at);
        }
        self.words[at] = word;
    }

    fn take(&mut self, word: u64) {
        let capacity = self.capacity();
        if capacity == 0 {
            return;
        }
        let home = self.home((word >> 32) as u32);
        let mut gap = home;
        while self.words[gap] != word {
            if self.words[gap] == 0 {
                return;
            }
            gap = self.after(gap);
        }
        self.len -= 1;
        let mut next = gap;
        loop {
            next = self.after(next);
            if self.words[next] == 0 {
                break;
            }
            // A word after the gap may move into it unless its home place lies after the gap.
            let home = self.home((self.words[next] >> 32) as u32);
            if (next + capacity - home) % capacity >= (next + capacity - gap) % capacity {
                self.words[gap] = self.words[next];
                gap = next;
            }
        }
        self.words[gap] = 0;
        self.filter_again(home);
    }

    /// Computes the filter of the line that begins here from the words that are left.
    fn filter_again(&mut self, home: usize) {
        let (mut at, mut filter) = (home, 0);
        while self.words[at] != 0 {
            let tag = (self.words[at] >> 32) as u32;
            filter |= if self.home(tag) == home { filter_bits(tag) } else { 0 };
            at = self.after(at);
        }
        self.filter[(home - self.first) / LINE] = filter;
    }
}

/// Chosen by the lowest bits, because the highest decide the home. Of 3,000 absent hashes, 24 pass.
#[inline]
fn filter_bits(tag: u32) -> u64 {
    1 << (tag % 64) | 1 << (tag >> 6 & 63) | 1 << (tag >> 12 & 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn a_depth_has_the_table_of_its_place() {
        let heads = RunHeads::new(5);
        for depth in 0..3 * RUN_BLOCKS {
            assert!(std::ptr::eq(heads.at(depth), heads.of(RunStart::at(depth))), "depth {depth}");
        }
        assert_eq!([0, 1, 127, 128, 129].map(RunStart::at), {
            use RunStart::{Between, Boundary, Prompt};
            [Prompt, Between, Between, Boundary, Between]
        });
    }

    #[test]
    fn the_filter_forgets_what_is_removed() {
        let mut heads = Heads::new(5, 2);
        (0..3_000).for_each(|it| heads.insert(it, it as u32));
        let false_hits = (3_000..6_000).filter(|&it| heads.may_have(it)).count();
        assert!(false_hits < 150, "{false_hits} of 3,000");
        (0..3_000).for_each(|it| heads.remove(it, it as u32));
        assert!((0..6_000).all(|it| !heads.may_have(it)));
    }

    #[test]
    fn finds_inserted_hashes_and_not_removed_ones() {
        let (mut heads, mut plain, mut rng) = (Heads::new(5, 2), BTreeMap::new(), Rng::new(1));
        for step in 0..20_000u32 {
            let hash = rng.next_u64() % 700;
            match plain.remove(&hash) {
                Some(run) => heads.remove(hash, run),
                None => {
                    heads.insert(hash, step);
                    plain.insert(hash, step);
                }
            }
            let probe = rng.next_u64() % 700;
            assert_eq!(heads.find(probe, |_| true), plain.get(&probe).copied(), "step {step}");
            assert!(heads.may_have(probe) || !plain.contains_key(&probe), "step {step}");
        }
    }
}

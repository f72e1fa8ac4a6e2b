//! From the prefix hash of a run's first block to the run.
//!
//! Open addressing in words of eight bytes: half a scrambled hash, half a run number. The half hash also
//! decides the place, so that deletion can close the gap without asking the runs. It is no proof: the
//! caller compares the run it is led to. Many small shards, because each grows alone and a table that
//! doubles all at once would pass the budget.

/// By the top bits of the scrambled hash.
const SHARD_BITS: u32 = 6;
const CAPACITY_MIN: usize = 8;

#[derive(Debug)]
pub(crate) struct Heads {
    shards: Vec<Shard>,
    seed: u64,
    slots: usize,
}

/// Zero is an empty place.
#[derive(Clone, Debug, Default)]
struct Shard {
    words: Vec<u64>,
    len: usize,
}

impl Heads {
    pub(crate) fn new(seed: u64) -> Heads {
        Heads { shards: vec![Shard::default(); 1 << SHARD_BITS], seed, slots: 0 }
    }

    /// The first run under this hash that `is_it` recognises.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let (shard, tag) = self.locate(hash);
        let words = &self.shards[shard].words;
        if words.is_empty() {
            return None;
        }
        let mut at = place(tag, words.len());
        loop {
            let word = words[at];
            if word == 0 {
                return None;
            }
            if (word >> 32) as u32 == tag && is_it(word as u32 - 1) {
                return Some(word as u32 - 1);
            }
            at = if at + 1 == words.len() { 0 } else { at + 1 };
        }
    }

    /// Fetches what `find` will need, without waiting for it, and guesses its answer from the first word.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> Option<u32> {
        let (shard, tag) = self.locate(hash);
        let words = &self.shards[shard].words;
        let word = *words.get(place(tag, words.len()))?;
        ((word >> 32) as u32 == tag && word != 0).then(|| word as u32 - 1)
    }

    pub(crate) fn insert(&mut self, hash: u64, run: u32) {
        let (shard, tag) = self.locate(hash);
        let shard = &mut self.shards[shard];
        if (shard.len + 1) * 4 > shard.words.len() * 3 {
            self.slots -= shard.words.len();
            shard.grow();
            self.slots += shard.words.len();
        }
        shard.put(u64::from(tag) << 32 | (u64::from(run) + 1));
        shard.len += 1;
    }

    pub(crate) fn remove(&mut self, hash: u64, run: u32) {
        let (shard, tag) = self.locate(hash);
        self.shards[shard].take(u64::from(tag) << 32 | (u64::from(run) + 1));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots * 8 + self.shards.capacity() * size_of::<Shard>()
    }

    /// The most that inserting a few may add: all shards may be about to grow.
    pub(crate) fn bytes_to_grow(&self) -> usize {
        self.slots * 4 + self.shards.len() * CAPACITY_MIN * 8
    }

    #[inline]
    fn locate(&self, hash: u64) -> (usize, u32) {
        let scrambled = (hash ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((scrambled >> (64 - SHARD_BITS)) as usize, (scrambled >> (32 - SHARD_BITS)) as u32)
    }
}

#[inline]
fn place(tag: u32, capacity: usize) -> usize {
    ((u64::from(tag) * capacity as u64) >> 32) as usize
}

impl Shard {
    fn grow(&mut self) {
        let capacity = CAPACITY_MIN.max(self.words.len() + self.words.len() / 2);
        let old = std::mem::replace(&mut self.words, vec![0; capacity]);
        old.into_iter().filter(|&word| word != 0).for_each(|word| self.put(word));
    }

    fn put(&mut self, word: u64) {
        let mut at = place((word >> 32) as u32, self.words.len());
        while self.words[at] != 0 {
            at = (at + 1) % self.words.len();
        }
        self.words[at] = word;
    }

    fn take(&mut self, word: u64) {
        let capacity = self.words.len();
        if capacity == 0 {
            return;
        }
        let mut gap = place((word >> 32) as u32, capacity);
        while self.words[gap] != word {
            if self.words[gap] == 0 {
                return;
            }
            gap = (gap + 1) % capacity;
        }
        self.len -= 1;
        let mut next = gap;
        loop {
            next = (next + 1) % capacity;
            if self.words[next] == 0 {
                break;
            }
            // What stands behind the gap may fill it unless its own place lies after the gap.
            let home = place((self.words[next] >> 32) as u32, capacity);
            if (next + capacity - home) % capacity >= (next + capacity - gap) % capacity {
                self.words[gap] = self.words[next];
                gap = next;
            }
        }
        self.words[gap] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn finds_what_was_put_and_not_what_was_taken() {
        let (mut heads, mut plain, mut rng) = (Heads::new(5), BTreeMap::new(), Rng::new(1));
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
        }
    }
}

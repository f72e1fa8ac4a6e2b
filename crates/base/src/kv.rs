//! KV cache events: what an engine reports of its own cache. One type from the decoder to the index.

/// Where a KV block is, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Gpu,
    Cpu,
    Disk,
    /// In a store that several workers share, and so not in the reporting engine's own cache.
    Shared,
}

/// One change of an engine's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvEvent<'a> {
    Stored(StoredBlocks<'a>),
    /// One copy of each of these blocks is gone from the tier; other copies may be left.
    Removed {
        names: &'a [u64],
        tier: Tier,
    },
    /// The cache is empty, in every tier.
    Cleared,
}

/// Consecutive blocks of one prompt that an engine has stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlocks<'a> {
    /// The engine's own names of the blocks: opaque, but the same bits in every event about the same block.
    pub names: &'a [u64],
    /// The name of the block before the first; `None` if the first block begins the prompt.
    pub parent: Option<u64>,
    /// The tokens of all blocks, concatenated. There may be too few, or none, if a slower tier does not know them;
    /// there may be too many.
    pub tokens: &'a [u32],
    /// May be zero if the tokens are unknown.
    pub block_tokens: u32,
    pub adapter: Option<&'a str>,
    /// Only known for the first block of a prompt.
    pub salt: Option<&'a str>,
    /// A hash per block of what else it holds, such as images; zero for nothing. Empty stands for all zeros;
    /// otherwise as many as names.
    pub extras: &'a [u64],
    pub tier: Tier,
}

impl<'a> KvEvent<'a> {
    /// The number of blocks that it names.
    pub fn blocks(&self) -> usize {
        match self {
            KvEvent::Stored(stored) => stored.names.len(),
            KvEvent::Removed { names, .. } => names.len(),
            KvEvent::Cleared => 0,
        }
    }

    /// The same change as several events in order, each of at most `blocks_max` blocks.
    pub fn pieces(self, blocks_max: usize) -> impl Iterator<Item = KvEvent<'a>> {
        let (all, size) = (self.blocks(), blocks_max.max(1));
        (0..all.max(1)).step_by(size).map(move |start| self.piece(start, all.min(start + size)))
    }

    fn piece(self, start: usize, end: usize) -> KvEvent<'a> {
        match self {
            KvEvent::Stored(stored) => KvEvent::Stored(stored.piece(start, end)),
            KvEvent::Removed { names, tier } => KvEvent::Removed { names: &names[start..end], tier },
            KvEvent::Cleared => KvEvent::Cleared,
        }
    }
}

impl<'a> StoredBlocks<'a> {
    /// Blocks on the GPU that begin a prompt, without adapter, salt or extras.
    pub const fn plain(names: &'a [u64], tokens: &'a [u32], block_tokens: u32) -> StoredBlocks<'a> {
        StoredBlocks {
            names,
            parent: None,
            tokens,
            block_tokens,
            adapter: None,
            salt: None,
            extras: &[],
            tier: Tier::Gpu,
        }
    }

    /// The blocks in this range: an event that continues after the block before it.
    fn piece(self, start: usize, end: usize) -> StoredBlocks<'a> {
        if start == 0 && end == self.names.len() {
            return self;
        }
        let token = |block: usize| self.tokens.len().min(block.saturating_mul(self.block_tokens as usize));
        // Tokens after the last block's end belong to the last piece.
        let tokens_end = if end == self.names.len() { self.tokens.len() } else { token(end) };
        let is_first = start == 0;
        StoredBlocks {
            names: &self.names[start..end],
            parent: if is_first { self.parent } else { self.names.get(start - 1).copied() },
            tokens: &self.tokens[token(start)..tokens_end],
            salt: self.salt.filter(|_| is_first),
            extras: self.extras.get(start..end).unwrap_or_default(),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [u64; 5] = [10, 11, 12, 13, 14];
    const TOKENS: [u32; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

    fn stored() -> StoredBlocks<'static> {
        StoredBlocks {
            names: &NAMES,
            parent: Some(9),
            tokens: &TOKENS,
            block_tokens: 2,
            adapter: Some("a"),
            salt: Some("s"),
            extras: &[],
            tier: Tier::Gpu,
        }
    }

    fn pieces(stored: StoredBlocks<'_>, blocks_max: usize) -> Vec<StoredBlocks<'_>> {
        let pieces = KvEvent::Stored(stored).pieces(blocks_max).map(|it| match it {
            KvEvent::Stored(stored) => stored,
            other => panic!("{other:?}"),
        });
        pieces.collect()
    }

    #[test]
    fn each_piece_of_a_store_continues_the_one_before() {
        let pieces = pieces(StoredBlocks { extras: &[5, 6, 7, 8, 9], ..stored() }, 2);
        let brief: Vec<_> = pieces.iter().map(|it| (it.parent, it.names, it.tokens, it.extras)).collect();
        assert_eq!(
            brief,
            [
                (Some(9), &NAMES[..2], &TOKENS[..4], &[5, 6][..]),
                (Some(11), &NAMES[2..4], &TOKENS[4..8], &[7, 8]),
                (Some(13), &NAMES[4..], &TOKENS[8..], &[9]),
            ]
        );
        assert_eq!(pieces.iter().map(|it| it.salt).collect::<Vec<_>>(), [Some("s"), None, None]);
    }

    #[test]
    fn missing_tokens_and_extras_stay_missing() {
        let few = pieces(StoredBlocks { tokens: &TOKENS[..3], ..stored() }, 2);
        assert_eq!(few.iter().map(|it| it.tokens.len()).collect::<Vec<_>>(), [3, 0, 0]);
        let none = pieces(StoredBlocks { tokens: &[], block_tokens: 0, ..stored() }, 3);
        assert!(none.iter().all(|it| it.tokens.is_empty() && it.extras.is_empty()));
    }

    #[test]
    fn what_fits_is_one_piece() {
        assert_eq!(pieces(stored(), 5), [stored()]);
        let empty = StoredBlocks { names: &[], ..stored() };
        assert_eq!(pieces(empty, 5), [empty]);
        assert_eq!(KvEvent::Cleared.pieces(1).collect::<Vec<_>>(), [KvEvent::Cleared]);
        let removed = KvEvent::Removed { names: &NAMES, tier: Tier::Cpu };
        let names: Vec<usize> = removed.pieces(2).map(|it| it.blocks()).collect();
        assert_eq!(names, [2, 2, 1]);
    }
}

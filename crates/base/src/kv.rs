//! KV cache events: what an engine reports of its own cache. One type from the decoder to the index.

/// Where a KV block is, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Gpu,
    Cpu,
    Disk,
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
    /// The name of the block before the first; none if the first block begins the prompt.
    pub parent: Option<u64>,
    /// The tokens of all blocks, concatenated. May be too few, or none, where a slower tier does not know
    /// them; may be too many.
    pub tokens: &'a [u32],
    /// May be zero where the tokens are not known.
    pub block_tokens: u32,
    pub adapter: Option<&'a str>,
    /// Only known for the first block of a prompt.
    pub salt: Option<&'a str>,
    /// A hash per block of what else it holds, such as images; zero for nothing. Empty stands for all zeros;
    /// otherwise as many as names.
    pub extras: &'a [u64],
    pub tier: Tier,
}

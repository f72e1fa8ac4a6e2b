//! What an engine says of its cache, in our words.

use crate::prefix::Root;

/// Where a block is, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    Gpu,
    Cpu,
    Disk,
}

/// One change of what a worker holds. The engine's names for its blocks are opaque numbers, its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report<'a> {
    Stored(Stored<'a>),
    /// One copy of each of these blocks is gone from the tier; others of the same name may be left.
    Removed {
        names: &'a [u64],
        tier: Tier,
    },
    /// Nothing is held any more, in any tier.
    Cleared,
}

/// Blocks that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    pub names: &'a [u64],
    /// The block before the first; none if the first begins the prompt.
    pub parent: Option<u64>,
    /// Where the chain begins; means something only without a parent.
    pub root: Root,
    /// Those of all blocks, one after the other. Blocks that it is too short for are ignored.
    pub tokens: &'a [u32],
    pub block_tokens: u32,
    /// What else each block holds, such as images; zero for nothing. Empty stands for all zeros.
    pub extras: &'a [u64],
    pub tier: Tier,
}

//! What the index keeps for one worker: its names, its parked blocks, and its block size.

use crate::adopted::Adopted;
use crate::believed::Stamp;
use crate::coverage::Coverage;
use crate::names::Names;
use crate::parked::Parked;
use crate::prefix::Running;
use maitre_base::hash::NumberMap;
use std::collections::BTreeMap;

/// Minimum tokens per block of the index. Smaller pages (SGLang's default is one token) are grouped: the
/// table is a sixteenth of the size, and engines with different page sizes share chains.
pub const GRAIN: u32 = 16;

/// Where the knowledge of a worker's cache comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSource {
    /// No fresh reports: predictions stay until the engine would have evicted them.
    #[default]
    Predicted,
    /// Reports are fresh: a prediction that they do not confirm soon is wrong.
    Reported,
}

/// Counts of one worker, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Blocks on its GPU, according to its reports.
    pub reported_blocks: u32,
    /// Blocks that only predictions say it has.
    pub predicted_blocks: u32,
    /// Blocks on its GPU, reported or predicted, once it has computed all that is predicted.
    pub near_blocks: u32,
    /// Blocks with unknown parents.
    pub parked_blocks: u32,
    /// Estimated capacity of its cache in blocks.
    pub capacity_blocks: u32,
    /// How much of what its engine stored lately has no known position, in thousandths.
    pub unplaced_permille: u32,
    /// Removals of unknown names. This and all counts below run since the worker joined.
    pub unknown: u64,
    /// Reported blocks that could not be used: too short, of another size, or placeholders of unknown blocks.
    pub ignored: u64,
    /// Parked blocks that were dropped, and blocks for which the budget had no room.
    pub dropped: u64,
    /// Blocks that the budget evicted.
    pub evicted: u64,
}

/// Assumed until the engine reports its cache size: about 128k tokens, a small GPU.
pub(crate) const CAPACITY_DEFAULT: u32 = 8_192;

/// A page inside a group: what a store needs to continue from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialPage {
    pub(crate) prefix: Running,
    /// The name of the last page of the previous group; none in the first group.
    pub(crate) previous: Option<u64>,
    pub(crate) filled_tokens: u8,
    pub(crate) copies: [u8; 3],
}

/// How many names of one worker refer to the same block. Kept only where there is more than one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    pub(crate) names: u32,
    /// How many of the names are in the GPU tier, and in lower tiers.
    pub(crate) near: u32,
    pub(crate) lower: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct WorkerBlocks {
    pub(crate) slot: u32,
    pub(crate) names: Names,
    pub(crate) pages: NumberMap<PartialPage>,
    pub(crate) parked: Parked,
    pub(crate) adopted: Adopted,
    pub(crate) coverage: Coverage,
    /// By prefix hash.
    pub(crate) aliases: BTreeMap<u64, Alias>,
    /// The engine's block size; `None` before its first report.
    pub(crate) page_tokens: Option<u32>,
    /// Whether the next report may be of smaller blocks: nothing was reported since another engine may have started.
    pub(crate) may_shrink: bool,
    pub(crate) source: CacheSource,
    /// When its reports began to count again after a gap. Blocks last used before that are not in them, and make
    /// room.
    pub(crate) reports_from: Stamp,
    /// The capacity that the engine reported.
    pub(crate) capacity_reported: u32,
    /// The estimated capacity, reduced by observed misses.
    pub(crate) capacity: u32,
    pub(crate) numbers: Numbers,
    /// This worker's part of the index's byte count.
    pub(crate) accounted: usize,
}

impl WorkerBlocks {
    pub(crate) fn new(slot: u32, seed: u64) -> WorkerBlocks {
        WorkerBlocks {
            slot,
            names: Names::new(seed),
            pages: NumberMap::default(),
            parked: Parked::default(),
            adopted: Adopted::default(),
            coverage: Coverage::default(),
            aliases: BTreeMap::new(),
            page_tokens: None,
            may_shrink: false,
            source: CacheSource::Predicted,
            reports_from: 0,
            capacity_reported: CAPACITY_DEFAULT,
            capacity: CAPACITY_DEFAULT,
            numbers: Numbers::default(),
            accounted: 0,
        }
    }

    /// The length of the index's blocks for this worker.
    pub(crate) fn block_tokens(&self) -> Option<u32> {
        self.page_tokens.map(|page| if page < GRAIN && GRAIN.is_multiple_of(page) { GRAIN } else { page })
    }

    /// Tokens that fit its cache, by its report.
    pub(crate) fn capacity_tokens(&self) -> u64 {
        u64::from(self.capacity_reported) * u64::from(self.block_tokens().unwrap_or(GRAIN))
    }

    pub(crate) fn bytes(&self) -> usize {
        // Bytes that std's map and tree spend per entry at their own load factor; they expose only their
        // capacity.
        let page_bytes = (size_of::<(u64, PartialPage)>() + 1) * 8 / 7;
        size_of::<WorkerBlocks>()
            + self.names.bytes()
            + self.pages.capacity() * page_bytes
            + self.aliases.len() * 64
            + self.parked.bytes()
            + self.adopted.bytes()
    }

    /// Maximum bytes that this many more names take while tables grow, or while they are parked.
    pub(crate) fn bytes_to_insert(&self, names: usize) -> usize {
        let Some(page_tokens) = self.page_tokens else { return 0 };
        let pages = match self.pages.len() + names {
            _ if page_tokens >= GRAIN => 0,
            len if len <= self.pages.capacity() => 0,
            len => len * 3 * size_of::<(u64, PartialPage)>() + 1_024,
        };
        let waiting = names * (64 + 4 * page_tokens as usize);
        self.names.bytes_to_insert(names) + pages + waiting + 1_024
    }
}

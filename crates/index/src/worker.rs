//! What the index keeps for one worker: its names, what waits for a place, and how its engine cuts blocks.

use crate::names::Names;
use crate::parked::Parked;
use crate::prefix::Running;
use maitre_base::hash::NumberMap;
use std::collections::BTreeMap;

/// Our blocks have at least so many tokens. Engines with smaller pages (SGLang's default is one token) get
/// them grouped: a sixteenth of the table, and chains that other engines share.
pub const GRAIN: u32 = 16;

/// Where our belief about a worker's cache comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSource {
    /// No fresh reports: predictions stay until the engine would have evicted them.
    #[default]
    Predicted,
    /// Reports are fresh: what they do not confirm soon is not there.
    Reported,
}

/// Numbers about one worker, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Blocks on its GPU, by its reports.
    pub reported_blocks: u32,
    pub predicted_blocks: u32,
    /// Blocks whose parents we do not know yet.
    pub parked_blocks: u32,
    /// How many blocks we believe its cache has room for.
    pub capacity_blocks: u32,
    /// All below: since it joined. Removals of names we do not know.
    pub unknown: u64,
    /// Blocks of reports that could not be used: too short, of a strange size, or placeholders of nothing.
    pub ignored: u64,
    /// Parked blocks that made way, and blocks for which the budget had no room.
    pub dropped: u64,
    /// Blocks that the budget evicted.
    pub evicted: u64,
}

/// Until the engine says how large its cache is: some 128k tokens, a small GPU's.
pub(crate) const CAPACITY_DEFAULT: u32 = 8_192;

/// Of a page in the middle of a group: what is needed to go on from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialPage {
    pub(crate) prefix: Running,
    /// The last page of the group before, by name; none in the first group.
    pub(crate) previous: Option<u64>,
    pub(crate) filled_tokens: u8,
    pub(crate) copies: [u8; 3],
}

/// How many names of one worker mean the same block. Kept for those with more than one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alias {
    pub(crate) names: u32,
    /// How many of them are in the GPU tier, and in lower ones.
    pub(crate) near: u32,
    pub(crate) lower: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct WorkerBlocks {
    pub(crate) slot: u32,
    pub(crate) names: Names,
    pub(crate) pages: NumberMap<PartialPage>,
    pub(crate) parked: Parked,
    /// By prefix hash.
    pub(crate) aliases: BTreeMap<u64, Alias>,
    /// As the engine cuts; none before its first report.
    pub(crate) page_tokens: Option<u32>,
    pub(crate) source: CacheSource,
    /// What the engine said its cache has room for.
    pub(crate) capacity_reported: u32,
    /// What is left of that by what we see.
    pub(crate) capacity: u32,
    pub(crate) numbers: Numbers,
    /// What this worker stands for in the index's sum of bytes.
    pub(crate) accounted: usize,
}

impl WorkerBlocks {
    pub(crate) fn new(slot: u32, seed: u64) -> WorkerBlocks {
        WorkerBlocks {
            slot,
            names: Names::new(seed),
            pages: NumberMap::default(),
            parked: Parked::default(),
            aliases: BTreeMap::new(),
            page_tokens: None,
            source: CacheSource::Predicted,
            capacity_reported: CAPACITY_DEFAULT,
            capacity: CAPACITY_DEFAULT,
            numbers: Numbers::default(),
            accounted: 0,
        }
    }

    /// The length of our blocks for this worker.
    pub(crate) fn block_tokens(&self) -> Option<u32> {
        self.page_tokens.map(|page| if page < GRAIN && GRAIN.is_multiple_of(page) { GRAIN } else { page })
    }

    pub(crate) fn bytes(&self) -> usize {
        // What std's map and tree spend on an entry, at their own load; they tell only their capacity.
        let page_bytes = (size_of::<(u64, PartialPage)>() + 1) * 8 / 7;
        size_of::<WorkerBlocks>()
            + self.names.bytes()
            + self.pages.capacity() * page_bytes
            + self.aliases.len() * 64
            + self.parked.bytes()
    }

    /// The most that so many more names take while tables grow, or while they wait.
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

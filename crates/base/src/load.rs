//! A worker's load: what its engine reports, and the room it has for one more request.

use crate::tokens::Tokens;

/// An engine's own account of its load, over all its data-parallel ranks or for one of them. Figures that it
/// does not report are absent, never guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    pub running: Option<u64>,
    pub waiting: Option<u64>,
    /// Share of the KV cache held by running requests, in [0, 1]; the mean over ranks. Cached blocks that no
    /// request uses do not count.
    pub kv_usage: Option<f64>,
    /// Tokens in a KV block.
    pub block_size: Option<u64>,
    /// Blocks in the KV cache.
    pub blocks: Option<u64>,
    /// Tokens that fit the KV cache. Known for engines that report it, or both numbers above.
    pub kv_tokens: Option<u64>,
    /// Prompt tokens looked up in the prefix cache since the engine started.
    pub queried_tokens: Option<u64>,
    /// How many of those were found.
    pub hit_tokens: Option<u64>,
}

/// The two figures of a recent `EngineLoad` that strategies use. Both are absent once the report is stale.
///
/// Kept apart from `EngineLoad` because a decision copies it for every worker: 32 bytes instead of 128.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FreshLoad {
    pub waiting: Option<u64>,
    pub kv_usage: Option<f64>,
}

/// The KV cache of a worker as room for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRoom {
    pub capacity: Tokens,
    /// What the requests there hold now, and will hold by their end.
    pub pinned: Tokens,
}

/// The load at which a worker's latency starts to rise: its times are twice those of an idle worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// Requests in a step, for the time between tokens.
    pub requests: f64,
    /// Tokens to prefill, for the time to the first token, counted as tokens that attend to nothing.
    pub prefill_tokens: f64,
}

/// Before anything was measured: about what the known engine profiles give if prompts are five times as long as
/// answers.
impl Default for Knee {
    fn default() -> Knee {
        Knee { requests: 40.0, prefill_tokens: 2_000.0 }
    }
}

/// What a request for a LoRA adapter means for a worker. Best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterSlot {
    /// The adapter is loaded, or the request names none.
    Ready,
    /// There is a free slot to load it into, as far as we know.
    Loads,
    /// All slots are taken: another adapter must be unloaded first.
    Waits,
}

//! What an engine last said of itself, and when.

use std::time::Duration;

use maitre_base::Instant;

/// An engine's own account of its load. Fields it does not report are absent, never guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    pub running: Option<u64>,
    pub waiting: Option<u64>,
    /// Part of the KV blocks that running requests hold, in [0, 1].
    pub kv_usage: Option<f64>,
    /// Tokens a KV block holds.
    pub block_size: Option<u64>,
    /// KV blocks the engine has.
    pub blocks: Option<u64>,
    /// Tokens the KV cache has room for.
    pub kv_tokens: Option<u64>,
}

/// A report, aged. Scrapes come every second; three missed ones make it stale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub load: Load,
    pub at: Instant,
}

pub const STALE_AFTER: Duration = Duration::from_millis(3_500);

impl Report {
    pub fn is_stale(&self, now: Instant) -> bool {
        now.since(self.at) > STALE_AFTER
    }
}

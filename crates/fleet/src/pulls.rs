//! How far a worker is trusted as a source of KV cache that others pull.
//!
//! A worker that is to pull from one that is dead or silent waits half a minute before it computes the prompt itself
//! (vLLM 0.32). So a source about which nothing is known serves one pull at a time, and one that failed rests.

use std::time::Duration;

use maitre_base::Instant;

/// How long a pull that succeeded speaks for its source.
const PROVEN: Duration = Duration::from_secs(60);
/// How long nobody pulls from a worker after a pull failed, and the one that could not pull asks nobody. On a real pair
/// that had met a dead address, all later pulls failed too.
const PAUSE: Duration = Duration::from_secs(60);

/// A worker that can pull, and be pulled from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pulls {
    pub(crate) proven: Option<Instant>,
    pub(crate) failed: Option<Instant>,
    /// Pulls from it that are under way.
    pub(crate) under_way: u32,
}

impl Pulls {
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.failed.is_some_and(|it| now.since(it) < PAUSE)
    }

    /// Whether a request that would notice a failure this way may pull from it.
    pub(crate) fn is_trusted(&self, now: Instant, watch: PullWatch) -> bool {
        let is_proven = self.proven.is_some_and(|it| now.since(it) < PROVEN);
        !self.is_paused(now) && (is_proven || watch == PullWatch::FirstToken && self.under_way == 0)
    }
}

/// How a request would notice that a source does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullWatch {
    /// Its first token is late.
    FirstToken,
    /// Not at all: its answer comes in one piece. It pulls only from proven sources.
    Nothing,
}

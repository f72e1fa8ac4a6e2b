//! How far a worker is trusted as a source of KV cache that others pull.
//!
//! A worker that pulls from a dead or silent one waits half a minute before it computes the prompt itself (vLLM
//! 0.32). So an unknown source serves one pull at a time, and one that failed rests.

use std::time::Duration;

use maitre_base::Instant;

/// How long a successful pull proves its source.
const PROVEN: Duration = Duration::from_secs(60);
/// After a failed pull, nobody pulls from that source for this long, and the worker that failed to pull asks nobody.
/// On a real pair that had met a dead address, all later pulls failed too.
const PAUSE: Duration = Duration::from_secs(60);

/// A worker that can pull, and that others can pull from.
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

    /// Whether a request that notices failures in this way may pull from it.
    pub(crate) fn is_trusted(&self, now: Instant, watch: PullWatch) -> bool {
        let is_proven = self.proven.is_some_and(|it| now.since(it) < PROVEN);
        !self.is_paused(now) && (is_proven || watch == PullWatch::FirstToken && self.under_way == 0)
    }
}

/// How a request notices that a source does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullWatch {
    /// By a late first token.
    FirstToken,
    /// Not at all, because its answer comes in one piece. It pulls only from proven sources.
    Nothing,
}

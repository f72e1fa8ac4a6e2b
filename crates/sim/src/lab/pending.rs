//! A request between its arrival and the end of its answer, as the simulation sees it.

use std::time::Duration;

use maitre_base::{Instant, WorkerId};

use super::legs::PrefillLeg;
use super::pulls::ArrivedKv;
use crate::engine::JobId;

/// A request in progress.
pub(super) struct PendingRequest {
    pub(super) number: usize,
    pub(super) router: usize,
    /// The worker that answers.
    pub(super) worker: WorkerId,
    /// The prompt, if another worker prefills it.
    pub(super) leg: Option<PrefillLeg>,
    /// The worker that it pulls its KV from.
    pub(super) source: Option<WorkerId>,
    /// What arrived of its prompt.
    pub(super) arrived: ArrivedKv,
    pub(super) believed_tokens: Option<u64>,
    /// The prompt's tokens, until it is submitted.
    pub(super) tokens: Vec<u32>,
    pub(super) first: Option<Instant>,
    /// Counts attempts: events of an earlier attempt are ignored.
    pub(super) attempt: u32,
    /// Set once it is submitted.
    pub(super) job: Option<JobId>,
    /// When it arrived, or was retried.
    pub(super) at: Instant,
    /// How often it was refused and retried.
    pub(super) retries: u32,
    /// When it was last placed, and the time to first token that the router predicted then.
    pub(super) placed_at: Instant,
    pub(super) predicted: Option<Duration>,
}

impl PendingRequest {
    pub(super) fn new(number: usize, router: usize, at: Instant) -> PendingRequest {
        PendingRequest {
            number,
            router,
            worker: WorkerId(0),
            leg: None,
            source: None,
            arrived: ArrivedKv::default(),
            believed_tokens: None,
            tokens: Vec::new(),
            first: None,
            attempt: 0,
            job: None,
            at,
            retries: 0,
            placed_at: at,
            predicted: None,
        }
    }
}

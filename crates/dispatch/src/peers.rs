//! What routers publish to each other, in the brain's terms.
//!
//! Workers are named by their keys and models by the hashes of their names, since ids differ between routers.

pub mod exchange;

use maitre_base::{PromisedWork, TenantId};
use maitre_cluster::{Spent, Verdict};
use maitre_fleet::rates::LinearFit;
use maitre_fleet::{HealthState, Worker};

use crate::cache::PromptChain;

/// What a router has learned of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Assessment {
    pub verdict: Verdict,
    /// Seconds to the first token by tokens to prefill, and between tokens by requests; none before they are learned.
    pub rates: Option<(LinearFit, LinearFit)>,
}

impl Assessment {
    /// What this router has learned of a worker; none of one that has never answered.
    pub(crate) fn of(worker: &Worker) -> Option<Assessment> {
        let verdict = match worker.health.state() {
            HealthState::Probing => return None,
            HealthState::Ready | HealthState::Warming { .. } => Verdict::Healthy,
            HealthState::Suspect { .. } => Verdict::Suspect,
            HealthState::Ejected { .. } => Verdict::Ejected,
        };
        Some(Assessment { verdict, rates: worker.rates.to_tell() })
    }
}

/// What another router published.
#[derive(Clone, Copy, Debug)]
pub enum PeerUpdate<'a> {
    /// What all other routers together have promised to this worker.
    Promised {
        worker: u64,
        work: PromisedWork,
    },
    Assessed {
        worker: u64,
        assessment: Assessment,
    },
    Pinned {
        model: u64,
        session: u64,
        worker: u64,
    },
    Spent {
        model: u64,
        tenant: TenantId,
        more: Spent,
    },
    /// A prompt was sent to this worker.
    Placed {
        worker: u64,
        prompt: &'a PromptChain,
    },
    /// How many routers are reachable, and how many there are, this one included.
    Routers {
        live: u32,
        known: u32,
    },
}

/// What is to be published, since the last time.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// What this router has promised, for each worker where that changed.
    pub promised: Vec<(u64, PromisedWork)>,
    pub assessed: Vec<(u64, Assessment)>,
    /// Workers that this router no longer has.
    pub gone: Vec<u64>,
    /// Model, session, worker.
    pub pinned: Vec<(u64, u64, u64)>,
    pub spent: Vec<(u64, TenantId, Spent)>,
    pub placed: Vec<(u64, PromptChain)>,
    /// How many items were dropped because they were not fetched in time.
    pub dropped: u64,
}

impl Outbox {
    /// Empties it and keeps its memory. Dropping many prompts takes time, so call it before `Brain::take_outbox`, which
    /// would do the same behind the brain's lock.
    pub fn clear(&mut self) {
        let Outbox { promised, assessed, gone, pinned, spent, placed, dropped } = self;
        promised.clear();
        assessed.clear();
        gone.clear();
        pinned.clear();
        spent.clear();
        placed.clear();
        *dropped = 0;
    }

    pub fn is_empty(&self) -> bool {
        let Outbox { promised, assessed, gone, pinned, spent, placed, dropped } = self;
        let of_workers = promised.is_empty() && assessed.is_empty() && gone.is_empty();
        of_workers && pinned.is_empty() && spent.is_empty() && placed.is_empty() && *dropped == 0
    }
}

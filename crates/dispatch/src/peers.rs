//! What is told to other routers, and what of theirs is heard, in the brain's words.
//!
//! Workers go by their keys, models by the hashes of their names: numbers differ between routers.

pub mod exchange;

use maitre_base::{PromisedWork, TenantId};
use maitre_cluster::{Spent, Verdict};
use maitre_fleet::rates::Fit;
use maitre_fleet::{State, Worker};

use crate::cache::Prompt;

/// What a router has learned of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judged {
    pub verdict: Verdict,
    /// Seconds to the first token by tokens to prefill, and between tokens by requests; none before they are learned.
    pub rates: Option<(Fit, Fit)>,
}

impl Judged {
    /// What we would tell of a worker; nothing of one that has never answered.
    pub(crate) fn of(worker: &Worker) -> Option<Judged> {
        let verdict = match worker.health.state() {
            State::Probing => return None,
            State::Ready | State::Warming { .. } => Verdict::Healthy,
            State::Suspect { .. } => Verdict::Suspect,
            State::Ejected { .. } => Verdict::Ejected,
        };
        Some(Judged { verdict, rates: worker.rates.to_tell() })
    }
}

/// What another router tells.
#[derive(Clone, Copy, Debug)]
pub enum PeerUpdate<'a> {
    /// All that others have promised to this worker now.
    Promised {
        worker: u64,
        work: PromisedWork,
    },
    Judged {
        worker: u64,
        judged: Judged,
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
        prompt: &'a Prompt,
    },
    /// How many routers can be heard, we included, and how many there are.
    Routers {
        heard: u32,
        known: u32,
    },
}

/// What others should be told, since they last were.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    /// All we have promised, for each worker where that changed.
    pub promised: Vec<(u64, PromisedWork)>,
    pub judged: Vec<(u64, Judged)>,
    /// Workers that we no longer have.
    pub gone: Vec<u64>,
    /// Model, session, worker.
    pub pinned: Vec<(u64, u64, u64)>,
    pub spent: Vec<(u64, TenantId, Spent)>,
    pub placed: Vec<(u64, Prompt)>,
    /// What was dropped because nobody fetched it.
    pub dropped: u64,
}

impl Outbox {
    /// Nothing, with room for as much as there was. To let many prompts go takes time: better before
    /// `Brain::take_outbox`, which does it too, than behind the lock that guards the brain.
    pub fn clear(&mut self) {
        let Outbox { promised, judged, gone, pinned, spent, placed, dropped } = self;
        promised.clear();
        judged.clear();
        gone.clear();
        pinned.clear();
        spent.clear();
        placed.clear();
        *dropped = 0;
    }

    pub fn is_empty(&self) -> bool {
        let Outbox { promised, judged, gone, pinned, spent, placed, dropped } = self;
        let of_workers = promised.is_empty() && judged.is_empty() && gone.is_empty();
        of_workers && pinned.is_empty() && spent.is_empty() && placed.is_empty() && *dropped == 0
    }
}

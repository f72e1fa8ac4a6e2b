//! One worker: what it is, what it serves, how it is.

use std::sync::Arc;

use maitre_base::{EngineLoad, Instant, Knee, PromisedWork, Tokens, WorkerId, hash};

use crate::adapters::Adapters;
use crate::backlog::Backlog;
use crate::health::{Health, HealthState};
use crate::knee::KneeEstimator;
use crate::load::LoadReport;
use crate::model::{ModelId, Wanted};
use crate::rates::Rates;

/// What rendezvous hashing goes by, the same in every router; and what tells a worker from another that had its
/// number before.
pub fn key(url: &str) -> u64 {
    hash::bytes(0, url.as_bytes())
}

/// The models a worker answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    /// It was not asked yet, or lists nothing: it may serve anything that nobody else lists.
    Unknown,
    Known(Arc<[ModelId]>),
}

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// Its address, which is also its name towards people.
    pub url: String,
    /// See `key`.
    pub key: u64,
    pub models: Models,
    pub health: Health,
    /// By us.
    pub promised: Backlog,
    /// By other routers, as far as they have reported.
    pub promised_by_others: Backlog,
    /// When an answer last began there.
    pub began: Instant,
    /// All that was ever prefilled there, for us and, as far as they tell, for others.
    pub prefilled: Tokens,
    pub report: Option<LoadReport>,
    /// What was promised to it when it last reported: in all, and to prefill.
    promised_then: (Tokens, Tokens),
    /// Requests there that no router has told of, as far as its last two reports agree.
    foreign: [u32; 2],
    pub rates: Rates,
    pub(crate) knee_estimator: KneeEstimator,
    /// What they come to, with the fleet to lean on.
    pub knee: Knee,
    pub adapters: Adapters,
    /// Takes no new work, finishes the old.
    pub draining: bool,
    /// What it should take beside a worker of weight one, as the operator sets it.
    pub weight: f64,
    /// When it was last probed for another router's doubt.
    pub(crate) doubted: Option<Instant>,
}

impl Worker {
    pub fn new(id: WorkerId, url: &str) -> Worker {
        Worker {
            id,
            url: url.to_owned(),
            key: key(url),
            models: Models::Unknown,
            health: Health::default(),
            promised: Backlog::default(),
            promised_by_others: Backlog::default(),
            began: Instant::ZERO,
            prefilled: Tokens::ZERO,
            report: None,
            promised_then: (Tokens::ZERO, Tokens::ZERO),
            foreign: [0; 2],
            rates: Rates::default(),
            knee_estimator: KneeEstimator::default(),
            knee: Knee::default(),
            adapters: Adapters::default(),
            draining: false,
            weight: 1.0,
            doubted: None,
        }
    }

    pub fn serves(&self, wanted: Wanted) -> bool {
        match (&self.models, wanted) {
            (_, Wanted::Anything) => true,
            (Models::Known(models), Wanted::Model(model)) => models.contains(&model),
            (Models::Unknown, Wanted::Unlisted) => true,
            (Models::Unknown, Wanted::Model(_)) | (Models::Known(_), Wanted::Unlisted) => false,
        }
    }

    /// Whether it may be given new work.
    pub fn is_fit(&self) -> bool {
        !self.draining && !matches!(self.health.state(), HealthState::Probing | HealthState::Ejected { .. })
    }

    /// All that is promised to it, by us and by others: what it has to do.
    pub fn promised_by_all(&self) -> Backlog {
        self.promised.plus(&self.promised_by_others)
    }

    pub(crate) fn hear(&mut self, now: Instant, load: EngineLoad) {
        let there = load.running.unwrap_or(0).saturating_add(load.waiting.unwrap_or(0));
        let promised = self.promised_by_all().work;
        let foreign = there.saturating_sub(u64::from(promised.requests));
        // One report may count a request that ended on its way here; two in a row will not.
        self.foreign = [self.foreign[1], u32::try_from(foreign).unwrap_or(u32::MAX)];
        self.promised_then = (promised.context, promised.prefill);
        self.report = Some(LoadReport { load, at: now });
    }

    /// What it said of itself, if that is not too long ago.
    pub fn fresh(&self, now: Instant) -> Option<EngineLoad> {
        self.report.filter(|it| !it.is_stale(now)).map(|it| it.load)
    }

    /// Requests there, whoever sent them.
    pub fn requests(&self, now: Instant) -> u32 {
        self.promised_by_all().work.requests.saturating_add(self.foreign(now))
    }

    /// Requests there that no router has told of, if it still says so.
    pub(crate) fn foreign(&self, now: Instant) -> u32 {
        self.fresh(now).map_or(0, |_| self.foreign[0].min(self.foreign[1]))
    }

    /// Tokens its cache has room for, if it ever said so: that does not change while it lives.
    pub fn capacity(&self) -> Option<Tokens> {
        let load = self.report?.load;
        let product = || Some(load.blocks?.saturating_mul(load.block_size?));
        load.kv_tokens.or_else(product).filter(|&it| it > 0).map(Tokens)
    }

    /// What the requests there hold of it, and what those in line there will: by its own account, where it
    /// gives one, and that of routers of what it has not let in.
    pub(crate) fn pinned(&self, now: Instant, capacity: Tokens, promised: &PromisedWork) -> Tokens {
        let Some(load) = self.fresh(now) else { return promised.context };
        let Some(usage) = load.kv_usage else { return promised.context };
        let used = usage * capacity.0 as f64;
        let answers = promised.decode.0.saturating_mul(u64::from(promised.prefilling))
            / u64::from(promised.requests.max(1));
        // Those who wait though their first token is out were thrown out for want of room, and go first.
        let thrown_out = load.waiting.unwrap_or(0).saturating_sub(u64::from(promised.prefilling));
        let each = used / load.running.unwrap_or(0).max(1) as f64;
        promised.prefill + Tokens(answers) + Tokens((used + each * thrown_out as f64) as u64)
    }

    /// What is in use of its cache now: what it last reported, and what came and went since by the account of
    /// routers. Answers
    /// that are still to be written are not in it.
    pub(crate) fn used(&self, now: Instant, capacity: Tokens, promised: &PromisedWork) -> Tokens {
        let context = promised.context - promised.decode;
        let Some(usage) = self.fresh(now).and_then(|it| it.kv_usage) else { return context };
        let (then, to_prefill) = self.promised_then;
        let reported = Tokens((usage * capacity.0 as f64) as u64) + to_prefill;
        (reported + promised.context) - then
    }
}

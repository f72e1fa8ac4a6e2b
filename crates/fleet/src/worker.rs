//! One worker: its identity, its models and its state.

use std::sync::Arc;
use std::time::Duration;

use maitre_base::{EngineLoad, Handoff, Instant, Knee, PromisedWork, Role, Tokens, WorkerId, hash};

use crate::adapters::Adapters;
use crate::backlog::Backlog;
use crate::health::{Health, HealthState};
use crate::knee::KneeEstimator;
use crate::load::LoadReport;
use crate::model::{ModelId, Wanted};
use crate::pulls::Pulls;
use crate::rates::Rates;
use crate::shared_rates::Group;
use crate::transfers::Fetches;

/// A worker's identity for rendezvous hashing, the same in every router. Also distinguishes a worker from an earlier
/// one with the same number.
pub fn key(url: &str) -> u64 {
    hash::bytes(0, url.as_bytes())
}

/// The models a worker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    /// Not asked yet, or lists nothing: it may serve any model that no other worker lists.
    Unknown,
    Known(Arc<[ModelId]>),
}

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// Its address, which is also its name in logs and views.
    pub url: String,
    /// See `key`.
    pub key: u64,
    pub role: Role,
    /// How it hands over KV cache, if its role requires that.
    pub handoff: Handoff,
    /// When another worker last could not fetch from it.
    pub(crate) handoff_failed: Option<Instant>,
    /// `None`: it cannot pull KV cache from others.
    pub(crate) pulls: Option<Pulls>,
    pub models: Models,
    /// The model that it runs, under all its names and adapters; `None` if it lists none.
    pub(crate) base: Option<ModelId>,
    pub health: Health,
    /// What this router has promised to it.
    pub promised: Backlog,
    /// What other routers have promised to it, as far as they have reported.
    pub promised_by_others: Backlog,
    /// When an answer last began there.
    pub began: Instant,
    /// Since when it owes the first token of a request that has left, and until when it is expected to owe it.
    overdue: Option<(Instant, Instant)>,
    /// All tokens ever prefilled there, in plain tokens, for this router and, as far as they report, for others.
    pub prefilled: Tokens,
    /// KV caches that other workers prefill or hold for it.
    pub fetches: Fetches,
    pub report: Option<LoadReport>,
    /// Tokens that fit its KV cache, as it last reported.
    capacity: Option<Tokens>,
    /// The kind of GPU whose workers it is compared with; none if it is compared with all workers of its model.
    pub(crate) kind: Option<Tokens>,
    /// What was promised to it at its last report: context and prefill.
    promised_then: (Tokens, Tokens),
    /// Requests there that no router has reported, by its last two reports.
    foreign: [u32; 2],
    pub rates: Rates,
    pub(crate) knee_estimator: KneeEstimator,
    /// The knee, from its own measurements and those of the workers of its group.
    pub knee: Knee,
    pub adapters: Adapters,
    /// Takes no new requests, finishes those it has.
    pub draining: bool,
    /// The operator's weight: how much work it gets relative to a worker of weight one.
    pub weight: f64,
    /// Mean requests of the other workers of its model at the last tick, scaled to its weight.
    pub(crate) requests_elsewhere: f64,
    /// When it was last probed for another router's suspicion.
    pub(crate) doubted: Option<Instant>,
}

impl Worker {
    pub fn new(id: WorkerId, url: &str) -> Worker {
        Worker {
            id,
            url: url.to_owned(),
            key: key(url),
            role: Role::Both,
            handoff: Handoff::default(),
            handoff_failed: None,
            pulls: None,
            models: Models::Unknown,
            base: None,
            health: Health::default(),
            promised: Backlog::default(),
            promised_by_others: Backlog::default(),
            began: Instant::ZERO,
            overdue: None,
            prefilled: Tokens::ZERO,
            fetches: Fetches::default(),
            report: None,
            capacity: None,
            kind: None,
            promised_then: (Tokens::ZERO, Tokens::ZERO),
            foreign: [0; 2],
            rates: Rates::default(),
            knee_estimator: KneeEstimator::default(),
            knee: Knee::default(),
            adapters: Adapters::default(),
            draining: false,
            weight: 1.0,
            requests_elsewhere: f64::INFINITY,
            doubted: None,
        }
    }

    /// Copies what changes of the fleet may have changed and a snapshot shows. Name, role and models do not change
    /// that way. What only the brain reads is left out.
    pub(crate) fn follow(&mut self, other: &Worker) {
        let Worker {
            ref health,
            promised,
            promised_by_others,
            began,
            overdue,
            report,
            capacity,
            promised_then,
            foreign,
            rates,
            ..
        } = *other;
        let Worker { knee, draining, weight, requests_elsewhere, .. } = *other;
        self.health.clone_from(health);
        (self.promised, self.promised_by_others) = (promised, promised_by_others);
        (self.began, self.overdue) = (began, overdue);
        (self.report, self.capacity) = (report, capacity);
        (self.promised_then, self.foreign) = (promised_then, foreign);
        (self.rates, self.knee) = (rates, knee);
        (self.draining, self.weight, self.requests_elsewhere) = (draining, weight, requests_elsewhere);
    }

    /// Whose rates it is compared with.
    #[inline]
    pub(crate) fn group(&self) -> Group {
        (self.base, self.kind)
    }

    /// It is compared with other workers than before: its rates hold once it has confirmed them.
    pub(crate) fn join_others(&mut self) {
        if !self.rates.is_blank() {
            self.rates.void();
        }
    }

    /// It runs another model than was known.
    pub(crate) fn change_model(&mut self) {
        self.join_others();
        if self.base.is_some() {
            self.knee_estimator = KneeEstimator::default();
        }
    }

    /// Whether it answers clients at all: not if it only prefills for others.
    pub fn answers(&self) -> bool {
        self.role != Role::Prefill
    }

    /// Whether it answers, but only requests that another worker prefills.
    pub(crate) fn is_dependent(&self) -> bool {
        self.answers() && self.handoff.needs_partner
    }

    /// Whether it answers such requests.
    #[inline]
    pub fn serves(&self, wanted: Wanted) -> bool {
        self.answers() && self.has(wanted)
    }

    /// Whether it prefills prompts of such requests for others.
    pub fn prefills(&self, wanted: Wanted) -> bool {
        !self.answers() && self.has(wanted)
    }

    #[inline]
    fn has(&self, wanted: Wanted) -> bool {
        match (&self.models, wanted) {
            (_, Wanted::Anything) => true,
            (Models::Known(models), Wanted::Model(model)) => models.contains(&model),
            (Models::Unknown, Wanted::Unlisted) => true,
            (Models::Unknown, Wanted::Model(_)) | (Models::Known(_), Wanted::Unlisted) => false,
        }
    }

    /// Whether it may take new requests.
    #[inline]
    pub fn is_fit(&self) -> bool {
        !self.draining && !matches!(self.health.state(), HealthState::Probing | HealthState::Ejected { .. })
    }

    /// Whether it is healthy and takes new requests. A suspect worker is not ready: it gets requests only if no other
    /// is left.
    pub fn is_ready(&self) -> bool {
        !self.draining && matches!(self.health.state(), HealthState::Ready | HealthState::Warming { .. })
    }

    /// A request that had waited for its first token since `since` has left, because another worker answered. This
    /// worker has shown nothing since, and its promise is gone: without this it would look idle. The router expects a
    /// worker that was silent for some time to stay silent for as long again.
    pub(crate) fn is_overdue(&mut self, now: Instant, since: Instant) {
        if self.began > since {
            return;
        }
        let since = self.overdue.map_or(since, |it| if self.began > it.0 { since } else { it.0.min(since) });
        self.overdue = Some((since, now + now.since(since)));
    }

    /// How much longer the router expects it to stay silent.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        match self.overdue {
            Some((since, until)) if self.began <= since => until.since(now),
            _ => Duration::ZERO,
        }
    }

    /// Whether no router has promised it anything.
    pub fn is_idle(&self) -> bool {
        self.promised.work.requests == 0 && self.promised_by_others.work.requests == 0
    }

    /// What this router and all others have promised to it.
    #[inline]
    pub fn promised_by_all(&self) -> Backlog {
        self.promised.plus(&self.promised_by_others)
    }

    pub(crate) fn hear(&mut self, now: Instant, load: EngineLoad) {
        let there = load.running.unwrap_or(0).saturating_add(load.waiting.unwrap_or(0));
        let promised = self.promised_by_all().work;
        let foreign = there.saturating_sub(u64::from(promised.requests));
        // One report may count a request that ended before the report arrived; two in a row do not.
        self.foreign = [self.foreign[1], u32::try_from(foreign).unwrap_or(u32::MAX)];
        self.promised_then = (promised.context, promised.prefill.tokens);
        let product = || Some(load.blocks?.saturating_mul(load.block_size?));
        let capacity = load.kv_tokens.or_else(product).filter(|&it| it > 0).map(Tokens);
        // While an engine restarts, its page may lack it.
        self.capacity = capacity.or(self.capacity);
        self.report = Some(LoadReport { load, at: now });
    }

    /// Its last reported load, if that is not stale.
    #[inline]
    pub fn fresh(&self, now: Instant) -> Option<&EngineLoad> {
        self.report.as_ref().filter(|it| !it.is_stale(now)).map(|it| &it.load)
    }

    /// Requests in flight there, including those that no router has reported.
    pub fn requests(&self, now: Instant) -> u32 {
        self.promised_by_all().work.requests.saturating_add(self.foreign(self.fresh(now)))
    }

    /// Requests there that no router has reported, if its report is `fresh`.
    #[inline]
    pub(crate) fn foreign(&self, fresh: Option<&EngineLoad>) -> u32 {
        fresh.map_or(0, |_| self.foreign[0].min(self.foreign[1]))
    }

    /// Tokens that fit its KV cache, if it ever reported so: that does not change while it runs.
    #[inline]
    pub fn capacity(&self) -> Option<Tokens> {
        self.capacity
    }

    /// KV tokens that running requests hold and queued ones will hold. It follows the engine's report if there is
    /// one, plus what routers have sent that the engine has not admitted.
    #[inline]
    pub(crate) fn pinned(
        &self,
        fresh: Option<&EngineLoad>,
        capacity: Tokens,
        promised: &PromisedWork,
    ) -> Tokens {
        let Some(load) = fresh else { return promised.context };
        let Some(usage) = load.kv_usage else { return promised.context };
        let used = usage * capacity.0 as f64;
        let answers = promised.decode.0.saturating_mul(u64::from(promised.prefilling))
            / u64::from(promised.requests.max(1));
        // Requests that wait although their first token has come were preempted for lack of room, and resume first.
        let thrown_out = load.waiting.unwrap_or(0).saturating_sub(u64::from(promised.prefilling));
        let each = used / load.running.unwrap_or(0).max(1) as f64;
        promised.prefill.tokens + Tokens(answers) + Tokens((used + each * thrown_out as f64) as u64)
    }

    /// KV tokens in use now: the engine's last report, corrected by what routers sent and finished since. Tokens
    /// still to be decoded do not count.
    #[inline]
    pub(crate) fn used(
        &self,
        fresh: Option<&EngineLoad>,
        capacity: Tokens,
        promised: &PromisedWork,
    ) -> Tokens {
        let context = promised.context - promised.decode;
        let Some(usage) = fresh.and_then(|it| it.kv_usage) else { return context };
        let (then, to_prefill) = self.promised_then;
        let reported = Tokens((usage * capacity.0 as f64) as u64) + to_prefill;
        (reported + promised.context) - then
    }
}

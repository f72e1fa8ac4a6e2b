//! How many workers each model should have: feeds `maitre_fleet::scaling` with what arrives and what there is.
//!
//! Nothing here is read by a decision. The number is for whatever starts and stops workers.

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{ClassId, Instant};
use maitre_fleet::fleet::MODELS_MAX;
use maitre_fleet::scaling::demand::{ArrivedWork, TokenCosts};
use maitre_fleet::scaling::{DesiredWorkers, PoolLoad, Scaler, ScalingSettings};
use maitre_fleet::{Fleet, ModelId, Worker};
use maitre_queue::settings::CLASSES_MAX;

use crate::request::{PendingRequest, PoolId};
use crate::scheduler::Scheduler;
use crate::scheduler::pool::Pool;

/// How often the numbers are computed.
const EVERY: Duration = Duration::from_secs(1);
/// How long a model has a number that no worker serves any more. Chosen: longer than any restart of a whole fleet takes.
const FORGET_AFTER: Duration = Duration::from_mins(10);

/// What one model's fleet should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelScaling {
    /// None for the workers that list no models.
    pub model: Option<ModelId>,
    /// Workers that take requests now.
    pub workers: u32,
    pub desired: DesiredWorkers,
}

#[derive(Debug, Default)]
pub(crate) struct Scaling {
    /// By `PoolId`; as many as there are models, at most.
    scalers: NumberMap<Scaler>,
    /// When each last had a reason to have a number.
    needed: NumberMap<Instant>,
    /// In order of the models' numbers.
    models: Vec<ModelScaling>,
    computed: Instant,
}

/// What the numbers are computed from.
#[derive(Clone, Copy)]
pub(crate) struct ScalingSources<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) scheduler: &'a Scheduler,
    pub(crate) settings: &'a ScalingSettings,
    /// Names of models that the operator says may have no worker.
    pub(crate) named: &'a [String],
}

impl ScalingSources<'_> {
    /// Whether a model has a number without any request: a worker that may be down serves it, the operator names it, or
    /// models without workers are usual here.
    fn is_needed(&self, pool: PoolId) -> bool {
        let fleet = self.fleet;
        let is_served = || fleet.workers().any(|it| PoolId::of(fleet.base_of(it.id)) == pool);
        let is_named =
            || self.named.iter().any(|it| fleet.expected(it).map(|it| fleet.base(it)) == pool.model());
        let is_waited_for = || {
            let waiting =
                |pool: &Pool| (0..CLASSES_MAX as u8).any(|it| pool.queue.waiting(ClassId(it)).requests > 0);
            self.scheduler.pool(pool).is_some_and(waiting)
        };
        !self.settings.idle.is_zero()
            || is_served()
            || is_waited_for()
            || (pool.model().is_some() && is_named())
    }
}

impl Scaling {
    pub(crate) fn models(&self) -> &[ModelScaling] {
        &self.models
    }

    pub(crate) fn arrived(&mut self, now: Instant, request: &PendingRequest, settings: &ScalingSettings) {
        let due = request.deadline.map_or(settings.ttft, |it| it.since(now));
        let (prompt_tokens, answer_tokens) = (request.ask.prefill.0, request.ask.decode.0);
        if let Some(scaler) = self.scaler(request.pool) {
            scaler.arrived(now, ArrivedWork { prompt_tokens, answer_tokens, due });
        }
    }

    /// A request was placed; so much of its prompt is to be computed, in plain tokens. Its first placement counts.
    pub(crate) fn placed(&mut self, now: Instant, request: &PendingRequest, plain_tokens: u64) {
        if request.ask.attempt > 0 || !request.recalled.is_empty() {
            return;
        }
        if let Some(scaler) = self.scaler(request.pool) {
            scaler.placed(now, request.ask.prefill.0, plain_tokens);
        }
    }

    fn scaler(&mut self, pool: PoolId) -> Option<&mut Scaler> {
        if self.scalers.len() > MODELS_MAX && !self.scalers.contains_key(&pool.0) {
            return None;
        }
        Some(self.scalers.entry(pool.0).or_default())
    }

    /// Whether a model has a number now, or has had a reason to a short while ago.
    fn has_number(&mut self, now: Instant, pool: PoolId, sources: ScalingSources<'_>) -> bool {
        if sources.is_needed(pool) {
            self.needed.insert(pool.0, now);
            return true;
        }
        let asked_for = self.scalers.get(&pool.0).and_then(Scaler::last_arrival);
        let last = asked_for.max(self.needed.get(&pool.0).copied());
        last.is_some_and(|it| now.since(it) < FORGET_AFTER)
    }

    /// Computes the numbers anew, once in a while: of all models that a worker serves or that requests came for.
    pub(crate) fn tick(&mut self, now: Instant, sources: ScalingSources<'_>) {
        if !self.models.is_empty() && now.since(self.computed) < EVERY {
            return;
        }
        self.computed = now;
        let answering = sources.fleet.workers().filter(|it| it.answers());
        let mut pools: Vec<PoolId> = answering.map(|it| PoolId::of(sources.fleet.base_of(it.id))).collect();
        pools.extend(self.scalers.keys().map(|&it| PoolId(it)));
        pools.extend(sources.fleet.expected_models().map(|it| PoolId::of(Some(it))));
        // A name under which requests came, and that turned out to be another name of a model.
        pools.retain(|it| it.model().is_none_or(|it| sources.fleet.base(it) == it));
        pools.sort_unstable_by_key(|it| it.0);
        pools.dedup();
        self.models.clear();
        for pool in pools {
            if !self.has_number(now, pool, sources) {
                self.scalers.remove(&pool.0);
                self.needed.remove(&pool.0);
                continue;
            }
            let load = pool_load(now, pool, sources);
            let routers = sources.scheduler.live_routers();
            let Some(scaler) = self.scaler(pool) else { continue };
            // Workers list nothing until they have been asked.
            if pool.model().is_none() && load.workers == 0 && scaler.last_arrival().is_none() {
                continue;
            }
            let desired = scaler.desired(now, &load, routers, sources.settings);
            self.models.push(ModelScaling { model: pool.model(), workers: load.workers, desired });
        }
    }
}

/// What the workers of a pool have, and what waits for them.
fn pool_load(now: Instant, pool: PoolId, sources: ScalingSources<'_>) -> PoolLoad {
    let ScalingSources { fleet, scheduler, .. } = sources;
    let costs = token_costs(pool, fleet);
    let mut load =
        PoolLoad { workers: 0, costs, waiting: 0, backlog_s: 0.0, kv_tokens: 0.0, kv_tokens_each: None };
    let (mut capacity, mut reporting) = (0.0, 0.0);
    let is_here = |it: &&Worker| it.answers() && it.is_fit() && PoolId::of(fleet.base_of(it.id)) == pool;
    for worker in fleet.workers().filter(is_here) {
        load.workers += 1;
        let Some(snapshot) = fleet.snapshot_of(now, worker.id) else { continue };
        load.backlog_s += snapshot.wait_seconds.max(0.0);
        let Some(room) = snapshot.room else { continue };
        load.kv_tokens += room.pinned.0 as f64;
        capacity += room.capacity.0 as f64;
        reporting += 1.0;
    }
    load.kv_tokens_each = (reporting > 0.0).then(|| capacity / reporting);
    if let Some(pool) = scheduler.pool(pool) {
        for class in (0..CLASSES_MAX as u8).map(ClassId) {
            let waiting = pool.queue.waiting(class);
            load.waiting += waiting.requests;
            load.backlog_s += waiting.cost * costs.prefill_s;
        }
    }
    load
}

/// What a token costs this model.
fn token_costs(pool: PoolId, fleet: &Fleet) -> TokenCosts {
    let rates = fleet.model_rates(pool.model()).rates();
    TokenCosts { prefill_s: rates.prefill.slope, answer_s: rates.decode.slope, step_s: rates.decode.base }
}

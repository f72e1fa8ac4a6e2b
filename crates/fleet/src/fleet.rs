//! All workers: which exist, which models each serves, which can take a new request now.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::hash::{self, NumberMap};
use maitre_base::{
    AdapterSlot, EngineLoad, FreshLoad, Instant, Knee, KvRoom, PrefillWork, Promise, PromisedWork, Tokens,
    WorkerId,
};

use crate::attention::PrefillFit;
use crate::backlog::Backlog;
use crate::estimate::Estimate;
use crate::health::{self, Evidence, HealthState, MayEject};
use crate::model::{Card, ModelId, Wanted};
use crate::rates::LinearFit;
use crate::shared_rates::RatesByModel;
use crate::transfers::Transfers;
use crate::worker::{Models, Worker};

/// Maximum number of model names that a fleet remembers; it ignores further names.
pub const MODELS_MAX: usize = 4_096;

/// Range of a worker's weight. Chosen: if one weighs a hundred times more, the other gets nothing.
pub const WEIGHTS: RangeInclusive<f64> = 0.01..=100.0;

mod expected;
mod learn;
pub mod mirror;
mod peers;
mod pulls;
mod roles;
mod snapshots;

use mirror::{ChangeLog, FleetChange};
pub use peers::ABSENT_WORKERS_MAX;

/// A model name that the fleet has seen.
#[derive(Clone, Debug)]
struct KnownModel {
    name: Arc<str>,
    /// Identifies the model between routers.
    hash: u64,
    /// The model behind this name: the base model of an adapter, the first name of a model with several, or itself.
    base: ModelId,
    is_adapter: bool,
    /// A worker has listed it, or the operator says that a worker will.
    is_expected: bool,
    estimate: Estimate,
}

/// A worker that could take a request, at one instant.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSnapshot {
    pub worker: WorkerId,
    pub key: u64,
    /// Promised by all routers.
    pub promised: PromisedWork,
    /// Requests in flight there, including those that no router has reported.
    pub requests: u32,
    /// Mean requests of the other workers of its model lately, scaled to its weight; infinite if there is no other.
    pub requests_elsewhere: f64,
    /// This router's part of the promised requests and of their prefill.
    pub ours: (u32, Tokens),
    /// Its weight, scaled down while it warms up.
    pub share: f64,
    /// Seconds to the first token by prefill work, and seconds between tokens by requests.
    pub prefill: PrefillFit,
    pub decode: LinearFit,
    /// The same rates, faded to its model's for lack of evidence; present only if the worker is idle and they have
    /// faded. A worker with requests is about to show its rates.
    pub faded: Option<(PrefillFit, LinearFit)>,
    /// The load at which its latency starts to rise.
    pub knee: Knee,
    pub wait_seconds: f64,
    pub room: Option<KvRoom>,
    /// KV tokens in use now.
    pub used: Tokens,
    /// How long ago it last began an answer for this router.
    pub idle: Duration,
    pub reported: FreshLoad,
    pub adapter: AdapterSlot,
}

impl WorkerSnapshot {
    /// The prefill work ahead of a request that arrives now.
    pub fn prefill_ahead(&self) -> PrefillWork {
        let promised = self.prefill.seconds(self.promised.prefill);
        if promised > 0.0 {
            return self.promised.prefill.times(self.wait_seconds / promised);
        }
        // It is silent for another reason, which counts as prefill work.
        PrefillWork { tokens: Tokens((self.wait_seconds / self.prefill.slope) as u64), attended: 0 }
    }
}

/// A worker's health state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthChange {
    pub worker: WorkerId,
    pub from: HealthState,
    pub to: HealthState,
}

/// What a fit worker has on average, at the last tick.
#[derive(Clone, Copy, Debug)]
struct MeanLoad {
    requests: f64,
    /// The share by which it counts: less than 1 while workers warm up.
    share: f64,
}

impl Default for MeanLoad {
    fn default() -> MeanLoad {
        MeanLoad { requests: 0.0, share: 1.0 }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// By number. A slot stays empty after its worker left until the number is used again.
    workers: Vec<Option<Worker>>,
    /// The empty slots, and since when they are empty.
    vacant: BTreeMap<WorkerId, Instant>,
    /// Worker numbers by key.
    keys: NumberMap<WorkerId>,
    /// What other routers have promised to workers that this fleet does not have, by key.
    absent_workers: NumberMap<Backlog>,
    names: BTreeMap<Arc<str>, ModelId>,
    /// By number.
    models: Vec<KnownModel>,
    /// Model numbers by the hashes of their names.
    hashes: NumberMap<ModelId>,
    rates: RatesByModel,
    mean: MeanLoad,
    /// How long KV transfers take.
    transfers: Transfers,
    /// How many workers only prefill.
    prefill_workers: usize,
    /// How many workers answer only requests that another worker prefills.
    dependent_workers: usize,
    /// How long pulls take, and how many workers can pull.
    pull_times: Transfers,
    /// How long loading from a shared store takes.
    load_times: Transfers,
    pulling_workers: usize,
    settings: health::HealthSettings,
    /// For mirrors of this fleet.
    log: ChangeLog,
}

impl Fleet {
    pub fn new(settings: health::HealthSettings) -> Fleet {
        Fleet { settings, ..Fleet::default() }
    }

    /// Adds a worker with a new number.
    pub fn add(&mut self, url: &str) -> WorkerId {
        self.log.upheaval();
        let id = WorkerId(self.workers.len() as u32);
        let worker = self.restore_promises(Worker::new(id, url));
        self.workers.push(Some(worker));
        id
    }

    /// Adds a worker with the number of one that has left; `None` if the number is not vacant. Nothing may
    /// still be promised or in flight under that number: the previous worker is forgotten.
    pub fn add_at(&mut self, id: WorkerId, url: &str) -> Option<WorkerId> {
        self.vacant.remove(&id)?;
        self.log.upheaval();
        let worker = self.restore_promises(Worker::new(id, url));
        self.workers[id.index()] = Some(worker);
        Some(id)
    }

    /// Numbers whose workers have left, the lowest first, and since when.
    pub fn vacant(&self) -> impl Iterator<Item = (WorkerId, Instant)> {
        self.vacant.iter().map(|(&id, &since)| (id, since))
    }

    /// How many numbers exist, vacant or not.
    pub fn numbers(&self) -> usize {
        self.workers.len()
    }

    /// Removes a worker; returns whether it existed.
    pub fn remove(&mut self, now: Instant, worker: WorkerId) -> bool {
        let left = self.workers.get_mut(worker.index()).and_then(Option::take);
        if let Some(left) = &left {
            self.log.upheaval();
            self.vacant.insert(worker, now);
            self.keep_promises(left);
            self.pulling_workers -= usize::from(left.pulls.is_some());
            self.count_roles();
            self.forget_ways(worker);
            self.find_kinds();
        }
        left.is_some()
    }

    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().flatten()
    }

    pub fn worker(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(id.index())?.as_ref()
    }

    fn worker_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.worker_and_rates(id).map(|it| it.0)
    }

    /// A worker that is about to change, and what others like it have shown.
    fn worker_and_rates(&mut self, id: WorkerId) -> Option<(&mut Worker, &mut RatesByModel)> {
        self.log.note(FleetChange::Worker(id));
        let worker = self.workers.get_mut(id.index())?.as_mut()?;
        Some((worker, &mut self.rates))
    }

    // Models.

    pub fn learn_models(&mut self, worker: WorkerId, cards: &[Card<'_>]) {
        // A worker runs one model; every card without a parent is a name of it. The name that the fleet saw first
        // stands for all, in whatever order workers list them.
        let first = cards.iter().filter(|it| it.parent.is_none()).filter_map(|it| self.intern(it.name)).min();
        let first = first.map(|it| self.base(it));
        let mut models = Vec::with_capacity(cards.len());
        // The router asks every worker every few seconds, and the list is mostly unchanged.
        let mut is_new = false;
        for card in cards {
            let Some(model) = self.intern(card.name) else { continue };
            let parent = card.parent.and_then(|it| self.intern(it));
            // The parent that an adapter names need not be a served name.
            let base = first.or(parent).unwrap_or(model);
            let known = &mut self.models[model.0 as usize];
            is_new |= (known.is_adapter, known.is_expected, known.base) != (parent.is_some(), true, base);
            (known.is_adapter, known.is_expected, known.base) = (parent.is_some(), true, base);
            models.push(model);
        }
        let models = Models::Known(self.share(models));
        let has_changed = is_new || self.worker(worker).is_none_or(|it| it.models != models);
        if let Some(worker) = self.worker_mut(worker) {
            worker.models = models;
        }
        if has_changed {
            self.log.upheaval();
            self.find_bases();
        }
    }

    /// Another worker's list, if one is equal. A decision reads every worker's list, and a shared one stays in the
    /// CPU's cache.
    fn share(&self, models: Vec<ModelId>) -> Arc<[ModelId]> {
        let same = self.workers().find_map(|it| match &it.models {
            Models::Known(list) if **list == *models => Some(list.clone()),
            _ => None,
        });
        same.unwrap_or_else(|| models.into())
    }

    pub fn name(&self, model: ModelId) -> Option<&Arc<str>> {
        self.models.get(model.0 as usize).map(|it| &it.name)
    }

    /// The model behind this name: itself, or the base of an adapter.
    pub fn base(&self, model: ModelId) -> ModelId {
        self.models.get(model.0 as usize).map_or(model, |it| it.base)
    }

    pub fn is_adapter(&self, model: ModelId) -> bool {
        self.models.get(model.0 as usize).is_some_and(|it| it.is_adapter)
    }

    /// The model that a worker runs, under all its names and adapters.
    pub fn base_of(&self, worker: WorkerId) -> Option<ModelId> {
        self.worker(worker)?.base
    }

    /// The model that such a request gets. Without a name that is any worker's.
    pub fn base_wanted(&self, wanted: Wanted) -> Option<ModelId> {
        match wanted {
            Wanted::Model(model) => Some(self.base(model)),
            Wanted::Anything => self.workers().find_map(|it| it.base),
            Wanted::Unlisted => None,
        }
    }

    /// The model of this name, if any worker lists it.
    pub fn model(&self, name: &str) -> Option<ModelId> {
        self.listed(name).or_else(|| self.adapter_after_its_model(name))
    }

    fn listed(&self, name: &str) -> Option<ModelId> {
        self.names.get(name).copied().filter(|&it| self.is_listed(it))
    }

    /// The adapter in `model:adapter`, the form of SGLang's clients. One of the two parts may contain colons, but not both: a
    /// name may be as long as a body.
    fn adapter_after_its_model(&self, name: &str) -> Option<ModelId> {
        let parts = [name.rsplit_once(':'), name.split_once(':')];
        parts.into_iter().flatten().find_map(|(model, adapter)| {
            let (model, adapter) = (self.listed(model)?, self.listed(adapter)?);
            let is_its_own = self.is_adapter(adapter) && !self.is_adapter(model);
            (is_its_own && self.base(adapter) == self.base(model)).then_some(adapter)
        })
    }

    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|(_, model)| self.is_listed(**model)).map(|(name, _)| &**name)
    }

    fn is_listed(&self, model: ModelId) -> bool {
        self.workers().any(|it| it.serves(Wanted::Model(model)))
    }

    /// Whether any worker has listed its models; before that no name is unknown.
    pub fn has_lists(&self) -> bool {
        self.workers().any(|it| it.answers() && it.models != Models::Unknown)
    }

    pub fn anyone_serves(&self, wanted: Wanted) -> bool {
        self.workers().any(|it| it.serves(wanted) && it.health.state() != HealthState::Probing)
    }

    /// Whether all workers that list models list the same ones: then a request need not name a model.
    pub fn all_alike(&self) -> bool {
        let listing = self.workers().filter(|it| it.answers() && it.models != Models::Unknown);
        let mut lists = listing.map(|it| &it.models);
        let first = lists.next();
        lists.all(|it| Some(it) == first)
    }

    fn intern(&mut self, name: &str) -> Option<ModelId> {
        if let Some(&model) = self.names.get(name) {
            return Some(model);
        }
        if self.names.len() >= MODELS_MAX {
            return None;
        }
        self.log.upheaval();
        let model = ModelId(self.models.len() as u32);
        let name: Arc<str> = name.into();
        let hash = hash::bytes(0, name.as_bytes());
        self.names.insert(name.clone(), model);
        self.hashes.insert(hash, model);
        self.models.push(KnownModel {
            name,
            hash,
            base: model,
            is_adapter: false,
            is_expected: false,
            estimate: Estimate::default(),
        });
        Some(model)
    }

    /// The estimate of the sizes of a model's prompts and answers.
    pub fn estimate(&self, model: Option<ModelId>) -> Estimate {
        let known = model.and_then(|it| self.models.get(it.0 as usize));
        known.map(|it| it.estimate).unwrap_or_default()
    }

    pub fn estimate_mut(&mut self, model: ModelId) -> Option<&mut Estimate> {
        self.log.note(FleetChange::Estimate(model));
        self.models.get_mut(model.0 as usize).map(|it| &mut it.estimate)
    }

    // Health.

    pub fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence) -> Option<HealthChange> {
        // To count the workers after each answer would take longer in a large fleet than all the rest.
        let spare = if evidence.is_answer() { MayEject::No } else { self.spare() };
        let settings = self.settings;
        let it = self.worker_mut(worker)?;
        let from = it.health.state();
        it.health.see(now, evidence, spare, &settings);
        if from.is_out() && !it.health.state().is_out() {
            it.rates.void();
        }
        change(worker, from, it.health.state())
    }

    /// An answer of the worker is complete.
    pub fn answer_completed(&mut self, worker: WorkerId) {
        if let Some(it) = self.worker_mut(worker) {
            it.health.answer_completed();
        }
    }

    /// Which adapters an engine reports as loaded, and how many it can hold.
    pub fn report_adapters(&mut self, worker: WorkerId, slots: u32, loaded: &[&str]) {
        let loaded: Vec<ModelId> = loaded.iter().filter_map(|name| self.names.get(*name).copied()).collect();
        if let Some(it) = self.worker_mut(worker) {
            it.adapters.hear(slots, loaded);
        }
    }

    /// Ends ramps that are over, and updates the rates of idle workers and the knees.
    pub fn settle(&mut self, now: Instant, changes: &mut Vec<HealthChange>) {
        let settings = self.settings;
        self.rates.settle();
        self.log.note_all();
        self.all_transfers().into_iter().for_each(|it| it.settle(now));
        self.mean = self.mean_load(now);
        self.compare_loads();
        for it in self.workers.iter_mut().flatten() {
            let shared = self.rates.of(it.group());
            it.rates.lean(shared.rates());
            it.knee = it.knee_estimator.knee(shared.knee_estimator());
            let from = it.health.state();
            it.health.settle(now, &settings);
            changes.extend(change(it.id, from, it.health.state()));
        }
    }

    pub fn report(&mut self, now: Instant, worker: WorkerId, load: EngineLoad) {
        let Some(it) = self.worker_mut(worker) else { return };
        let before = it.capacity();
        it.hear(now, load);
        if it.capacity() != before {
            self.find_kinds();
        }
    }

    pub fn drain(&mut self, worker: WorkerId, draining: bool) {
        // This changes the number of ready workers, and so whether suspects are needed.
        self.log.upheaval();
        if let Some(it) = self.worker_mut(worker) {
            it.draining = draining;
        }
    }

    /// Sets how much work it gets relative to others, clamped to `WEIGHTS`; NaN is ignored.
    pub fn weigh(&mut self, worker: WorkerId, weight: f64) {
        if let Some(it) = self.worker_mut(worker).filter(|_| !weight.is_nan()) {
            it.weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        }
    }

    /// Applies new settings, and keeps what the fleet knows of workers.
    pub fn retune(&mut self, settings: health::HealthSettings) {
        self.settings = settings;
        self.log.upheaval();
    }

    /// The fleet ejects at most half of its workers, whatever the evidence: the fault may be this router's.
    fn spare(&self) -> MayEject {
        let ejected =
            self.workers().filter(|it| matches!(it.health.state(), HealthState::Ejected { .. })).count();
        match (ejected + 1) * 2 <= self.workers().count() {
            true => MayEject::Yes,
            false => MayEject::No,
        }
    }

    // Promised work, and the rates learned from it.

    pub fn promise(&mut self, now: Instant, worker: WorkerId, promise: Promise) {
        let Some((it, rates)) = self.worker_and_rates(worker) else { return };
        if it.promised_by_all().work.requests == 0 {
            it.rates.place(now, rates.of(it.group()).rates());
        }
        let joins = it.promised.work.prefilling == 0 && it.promised_by_others.work.prefilling > 0;
        let before = it.promised.progress.max(it.promised_by_others.progress);
        it.promised.make(now, promise);
        // Our first request queues behind those of other routers, so the engine's last progress stays.
        if joins {
            it.promised.progress = before;
        }
    }

    pub fn prefilled(&mut self, now: Instant, worker: WorkerId, promise: &mut Promise) {
        match self.worker_mut(worker) {
            Some(it) if !promise.prefilled => {
                it.prefilled += Tokens(it.rates.prefill.plain_tokens(promise.prefill) as u64);
                it.began = now;
                it.promised.prefilled(now, promise);
            }
            _ => promise.prefill = PrefillWork::ZERO,
        }
    }

    /// A request has left the worker, which it had waited for since `since`, because another worker answered first.
    pub fn outpaced(&mut self, now: Instant, worker: WorkerId, since: Instant) {
        if let Some(it) = self.worker_mut(worker) {
            it.is_overdue(now, since);
        }
    }

    pub fn release(&mut self, worker: WorkerId, promise: Promise) {
        if let Some(it) = self.worker_mut(worker) {
            it.promised.release(promise);
        }
    }

    /// A request for an adapter was placed there, or has ended.
    pub fn hold_adapter(&mut self, worker: WorkerId, model: ModelId, held: AdapterUse) {
        if let Some(it) = self.worker_mut(worker) {
            match held {
                AdapterUse::Begins => it.adapters.begin(model),
                AdapterUse::Ends => it.adapters.end(model),
            }
        }
    }
}

/// Whether a request for an adapter begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterUse {
    Begins,
    Ends,
}

fn change(worker: WorkerId, from: HealthState, to: HealthState) -> Option<HealthChange> {
    let moved = from.name() != to.name() || from.is_out() != to.is_out();
    moved.then_some(HealthChange { worker, from, to })
}

#[cfg(test)]
mod tests;

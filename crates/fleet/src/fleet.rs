//! The workers together: who is in, who serves what, who is fit for a new request now.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::hash::{self, NumberMap};
use maitre_base::{
    AdapterSlot, EngineLoad, FreshLoad, Instant, Knee, KvRoom, Promise, PromisedWork, Tokens, WorkerId,
};

use crate::backlog::Backlog;
use crate::estimate::Estimate;
use crate::health::{self, Evidence, HealthState, MayEject};
use crate::knee::KneeEstimator;
use crate::model::{Card, ModelId, Wanted};
use crate::rates::{LinearFit, Rates};
use crate::worker::{Models, Worker};

/// Most model names a fleet remembers; a worker that lists more is heard up to here.
pub const MODELS_MAX: usize = 4_096;

/// What the weight of a worker may be. Chosen: a hundred times more or less than another is out, or alone.
pub const WEIGHTS: RangeInclusive<f64> = 0.01..=100.0;

mod peers;

pub use peers::ABSENT_WORKERS_MAX;

/// A name that the fleet has seen.
#[derive(Clone, Debug)]
struct KnownModel {
    name: Arc<str>,
    /// What it goes by between routers.
    hash: u64,
    /// What it is, if not itself: the model under an adapter, the first name of a model with several.
    base: ModelId,
    is_adapter: bool,
    estimate: Estimate,
}

/// A worker that could take a request, as it stands now.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSnapshot {
    pub worker: WorkerId,
    pub key: u64,
    /// By all routers.
    pub promised: PromisedWork,
    /// Requests there, whoever sent them.
    pub requests: u32,
    /// What of the promised requests and of their prefill is ours.
    pub ours: (u32, Tokens),
    /// Its weight, and of that a part while it warms up.
    pub share: f64,
    /// Seconds to the first token, by tokens to prefill; and between tokens, by requests.
    pub prefill: LinearFit,
    pub decode: LinearFit,
    /// The loads at which its times bend upward.
    pub knee: Knee,
    pub wait_seconds: f64,
    pub room: Option<KvRoom>,
    /// What of it is taken now.
    pub used: Tokens,
    /// How long ago it last began an answer for us.
    pub idle: Duration,
    pub reported: FreshLoad,
    pub adapter: AdapterSlot,
}

/// A worker's state moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthChange {
    pub worker: WorkerId,
    pub from: HealthState,
    pub to: HealthState,
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// By number; a place is empty when its worker has left, until another gets its number.
    workers: Vec<Option<Worker>>,
    /// The empty places, and since when they are.
    vacant: BTreeMap<WorkerId, Instant>,
    /// Numbers by the workers' keys.
    keys: NumberMap<WorkerId>,
    /// What others have promised to workers that are not here, by their keys.
    absent_workers: NumberMap<Backlog>,
    names: BTreeMap<Arc<str>, ModelId>,
    /// By number.
    models: Vec<KnownModel>,
    /// Numbers of models by the hashes of their names.
    hashes: NumberMap<ModelId>,
    rates: Rates,
    knee_estimator: KneeEstimator,
    knee: Knee,
    settings: health::HealthSettings,
}

impl Fleet {
    pub fn new(settings: health::HealthSettings) -> Fleet {
        Fleet { settings, ..Fleet::default() }
    }

    /// Takes a worker in, with a number that nobody ever had.
    pub fn add(&mut self, url: &str) -> WorkerId {
        let id = WorkerId(self.workers.len() as u32);
        let worker = self.restore_promises(Worker::new(id, url));
        self.workers.push(Some(worker));
        id
    }

    /// Takes a worker in with the number of one that has left; none if it is not vacant. What was known of the last one
    /// is forgotten, so nothing may be promised or under way there that is not over.
    pub fn add_at(&mut self, id: WorkerId, url: &str) -> Option<WorkerId> {
        self.vacant.remove(&id)?;
        let worker = self.restore_promises(Worker::new(id, url));
        self.workers[id.index()] = Some(worker);
        Some(id)
    }

    /// Numbers whose workers have left, the lowest first, and since when.
    pub fn vacant(&self) -> impl Iterator<Item = (WorkerId, Instant)> {
        self.vacant.iter().map(|(&id, &since)| (id, since))
    }

    /// Numbers there are, vacant or not.
    pub fn numbers(&self) -> usize {
        self.workers.len()
    }

    /// Lets a worker go; whether it was there.
    pub fn remove(&mut self, now: Instant, worker: WorkerId) -> bool {
        let left = self.workers.get_mut(worker.index()).and_then(Option::take);
        if let Some(left) = &left {
            self.vacant.insert(worker, now);
            self.keep_promises(left);
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
        self.workers.get_mut(id.index())?.as_mut()
    }

    // What it serves.

    pub fn learn_models(&mut self, worker: WorkerId, cards: &[Card<'_>]) {
        // A worker has one model; whatever has no parent is a name of it. The one we heard first stands for all,
        // in whatever order others list them.
        let first = cards.iter().filter(|it| it.parent.is_none()).filter_map(|it| self.intern(it.name)).min();
        let first = first.map(|it| self.base(it));
        let mut models = Vec::with_capacity(cards.len());
        for card in cards {
            let Some(model) = self.intern(card.name) else { continue };
            let parent = card.parent.and_then(|it| self.intern(it));
            let known = &mut self.models[model.0 as usize];
            known.is_adapter = parent.is_some();
            // What an adapter calls its parent need not be a name that is served.
            known.base = first.or(parent).unwrap_or(model);
            models.push(model);
        }
        let models = self.share(models);
        if let Some(worker) = self.worker_mut(worker) {
            worker.models = Models::Known(models);
        }
    }

    /// The list that others have, if any has the same: a decision asks every worker for its list, and one
    /// that all share stays near.
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

    /// The model that this name stands for: itself, or the one under an adapter.
    pub fn base(&self, model: ModelId) -> ModelId {
        self.models.get(model.0 as usize).map_or(model, |it| it.base)
    }

    pub fn is_adapter(&self, model: ModelId) -> bool {
        self.models.get(model.0 as usize).is_some_and(|it| it.is_adapter)
    }

    /// The model a worker runs, under all its names and adapters.
    pub fn base_of(&self, worker: WorkerId) -> Option<ModelId> {
        match &self.worker(worker)?.models {
            Models::Known(models) => models.first().map(|&it| self.base(it)),
            Models::Unknown => None,
        }
    }

    /// The model of this name, if any worker lists it.
    pub fn model(&self, name: &str) -> Option<ModelId> {
        self.names.get(name).copied().filter(|&it| self.anyone_lists(it))
    }

    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|(_, model)| self.anyone_lists(**model)).map(|(name, _)| &**name)
    }

    fn anyone_lists(&self, model: ModelId) -> bool {
        self.workers().any(|it| it.serves(Wanted::Model(model)))
    }

    /// Whether any worker has told its models; until one has, no name can be called unknown.
    pub fn anyone_listed(&self) -> bool {
        self.workers().any(|it| it.models != Models::Unknown)
    }

    pub fn anyone_serves(&self, wanted: Wanted) -> bool {
        self.workers().any(|it| it.serves(wanted) && it.health.state() != HealthState::Probing)
    }

    /// Whether all workers that told their models told the same: then a request need not name one.
    pub fn all_alike(&self) -> bool {
        let mut lists = self.workers().filter(|it| it.models != Models::Unknown).map(|it| &it.models);
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
            estimate: Estimate::default(),
        });
        Some(model)
    }

    /// What is known of the sizes of a model's prompts and answers.
    pub fn estimate(&self, model: Option<ModelId>) -> Estimate {
        let known = model.and_then(|it| self.models.get(it.0 as usize));
        known.map(|it| it.estimate).unwrap_or_default()
    }

    pub fn estimate_mut(&mut self, model: ModelId) -> Option<&mut Estimate> {
        self.models.get_mut(model.0 as usize).map(|it| &mut it.estimate)
    }

    // How it is.

    pub fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence) -> Option<HealthChange> {
        let (spare, settings) = (self.spare(), self.settings);
        let it = self.worker_mut(worker)?;
        let from = it.health.state();
        it.health.see(now, evidence, spare, &settings);
        change(worker, from, it.health.state())
    }

    /// Which adapters an engine says are loaded, and how many it can hold.
    pub fn report_adapters(&mut self, worker: WorkerId, slots: u32, loaded: &[&str]) {
        let loaded: Vec<ModelId> = loaded.iter().filter_map(|name| self.names.get(*name).copied()).collect();
        if let Some(it) = self.worker_mut(worker) {
            it.adapters.hear(slots, loaded);
        }
    }

    /// Ends ramps that are over, and looks again at the rates of those that have been idle and at where times bend.
    pub fn settle(&mut self, now: Instant, changes: &mut Vec<HealthChange>) {
        let settings = self.settings;
        let fleet = self.rates;
        self.knee = self.knee_estimator.knee(&self.knee_estimator);
        for it in self.workers.iter_mut().flatten() {
            it.rates.lean(&fleet);
            it.knee = it.knee_estimator.knee(&self.knee_estimator);
            let from = it.health.state();
            it.health.settle(now, &settings);
            changes.extend(change(it.id, from, it.health.state()));
        }
    }

    pub fn report(&mut self, now: Instant, worker: WorkerId, load: EngineLoad) {
        if let Some(it) = self.worker_mut(worker) {
            it.hear(now, load);
        }
    }

    pub fn drain(&mut self, worker: WorkerId, draining: bool) {
        if let Some(it) = self.worker_mut(worker) {
            it.draining = draining;
        }
    }

    /// How much it should take beside others, within `WEIGHTS`; what is no number is not heard.
    pub fn weigh(&mut self, worker: WorkerId, weight: f64) {
        if let Some(it) = self.worker_mut(worker).filter(|_| !weight.is_nan()) {
            it.weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        }
    }

    /// Other settings, from now on. What was seen of workers stays.
    pub fn retune(&mut self, settings: health::HealthSettings) {
        self.settings = settings;
    }

    /// At most half of the fleet is ejected, whatever it looks like from here: the fault may be ours.
    fn spare(&self) -> MayEject {
        let ejected =
            self.workers().filter(|it| matches!(it.health.state(), HealthState::Ejected { .. })).count();
        match (ejected + 1) * 2 <= self.workers().count() {
            true => MayEject::Yes,
            false => MayEject::No,
        }
    }

    // What is promised, and how fast it was kept.

    pub fn promise(&mut self, now: Instant, worker: WorkerId, promise: Promise) {
        if let Some(it) = self.worker_mut(worker) {
            let joins = it.promised.work.prefilling == 0 && it.promised_by_others.work.prefilling > 0;
            let before = it.promised.progress.max(it.promised_by_others.progress);
            it.promised.make(now, promise);
            // Ours is the first of ours, and not of those who stand there.
            if joins {
                it.promised.progress = before;
            }
        }
    }

    pub fn prefilled(&mut self, now: Instant, worker: WorkerId, promise: &mut Promise) {
        match self.worker_mut(worker) {
            Some(it) if !promise.prefilled => {
                it.prefilled += promise.prefill;
                it.began = now;
                it.promised.prefilled(now, promise);
            }
            _ => promise.prefill = Tokens::ZERO,
        }
    }

    pub fn release(&mut self, worker: WorkerId, promise: Promise) {
        if let Some(it) = self.worker_mut(worker) {
            it.promised.release(promise);
        }
    }

    /// A request for an adapter was seated there, or ended.
    pub fn hold_adapter(&mut self, worker: WorkerId, model: ModelId, held: AdapterUse) {
        if let Some(it) = self.worker_mut(worker) {
            match held {
                AdapterUse::Begins => it.adapters.begin(model),
                AdapterUse::Ends => it.adapters.end(model),
            }
        }
    }

    /// A first token came so long after its request was seated, with so many tokens to prefill before it.
    pub fn learn_first_token(&mut self, worker: WorkerId, tokens: u64, took: Duration) {
        let (usual, _) = Rates::usual();
        self.rates.first_token(tokens, took, usual);
        self.knee_estimator.first_token(tokens, took);
        let lean = self.rates.as_lean();
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.first_token(tokens, took);
            it.rates.first_token(tokens, took, lean);
        }
    }

    /// An answer's tokens came so far apart, among so many requests.
    pub fn learn_step(&mut self, worker: WorkerId, requests: f64, gap: Duration) {
        let (_, usual) = Rates::usual();
        self.rates.step(requests, gap, usual);
        let fleet = self.rates;
        if let Some(it) = self.worker_mut(worker) {
            it.rates.step_beside(&fleet, requests, gap);
        }
    }

    /// For a while steps took so long, with so many requests in them and so much to prefill in each.
    pub fn learn_knee(&mut self, worker: WorkerId, requests: f64, prefill: f64, took: Duration) {
        self.knee_estimator.step(requests, prefill, took);
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.step(requests, prefill, took);
        }
    }

    /// A request had so many tokens to prefill, and so many in its answer.
    pub fn learn_length(&mut self, prefill: Tokens, answer: u64) {
        self.knee_estimator.answer(prefill.0 as f64, answer as f64);
    }

    // Who is fit.

    /// Fills `seats` with the workers that may take a request now, in order of number, leaving out
    /// those already `tried`.
    ///
    /// The fit come first. Suspects join when less than half of the workers are fit (the fault may be
    /// ours, and the few left would drown), those known to refuse only when there is nobody else.
    pub fn snapshots(
        &self,
        now: Instant,
        wanted: Wanted,
        tried: &[WorkerId],
        seats: &mut Vec<WorkerSnapshot>,
    ) {
        let is_open = |it: &&Worker| !it.draining && it.serves(wanted) && !tried.contains(&it.id);
        // One pass over the workers, not one a question: to fetch a thousand of them from memory twice was
        // a fifth of a decision.
        let mut collect = |worst: Fitness| {
            let mut open = 0;
            seats.clear();
            for it in self.workers().filter(is_open) {
                open += 1;
                if fitness(it).is_some_and(|it| it <= worst) {
                    seats.push(self.snapshot(now, wanted, it));
                }
            }
            (seats.len(), open)
        };
        let (fit, open) = collect(Fitness::Fit);
        if fit * 2 < open && collect(Fitness::Doubtful).0 == 0 {
            collect(Fitness::Last);
        }
    }

    /// Whether anybody but those `tried` may take such a request, now or once it has room.
    pub fn anyone_takes(&self, wanted: Wanted, tried: &[WorkerId]) -> bool {
        self.workers().any(|it| it.is_fit() && it.serves(wanted) && !tried.contains(&it.id))
    }

    /// Whether there is anybody but those `tried` who may be able to take such a request one day: it may be unwell now.
    pub fn anyone_may_take(&self, wanted: Wanted, tried: &[WorkerId]) -> bool {
        self.workers().any(|it| !it.draining && it.serves(wanted) && !tried.contains(&it.id))
    }

    /// One worker as it stands, whatever it serves; none if it may not take anything.
    pub fn snapshot_of(&self, now: Instant, worker: WorkerId) -> Option<WorkerSnapshot> {
        let worker = self.worker(worker).filter(|it| !it.draining && fitness(it).is_some())?;
        Some(self.snapshot(now, Wanted::Anything, worker))
    }

    /// What is learned of all workers together.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Where times bend upward, in the fleet as a whole.
    pub fn knee(&self) -> Knee {
        self.knee
    }

    fn snapshot(&self, now: Instant, wanted: Wanted, worker: &Worker) -> WorkerSnapshot {
        let adapter = match wanted {
            Wanted::Model(model) if self.is_adapter(model) => worker.adapters.slot(model),
            _ => AdapterSlot::Ready,
        };
        let backlog = worker.promised_by_all();
        let promised = backlog.work;
        let capacity = worker.capacity();
        WorkerSnapshot {
            worker: worker.id,
            key: worker.key,
            promised,
            ours: (worker.promised.work.requests, worker.promised.work.prefill),
            requests: promised.requests.saturating_add(worker.foreign(now)),
            share: worker.health.share(now, &self.settings) * worker.weight,
            knee: worker.knee,
            prefill: worker.rates.prefill,
            decode: worker.rates.decode,
            wait_seconds: backlog.wait_seconds(now, worker.rates.prefill.slope),
            room: capacity
                .map(|capacity| KvRoom { capacity, pinned: worker.pinned(now, capacity, &promised) }),
            idle: now.since(worker.began),
            used: capacity.map_or(Tokens::ZERO, |it| worker.used(now, it, &promised)),
            reported: worker.fresh(now).map_or_else(FreshLoad::default, |it| FreshLoad {
                waiting: it.waiting,
                kv_usage: it.kv_usage,
            }),
            adapter,
        }
    }
}

/// Whether a request that holds an adapter comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterUse {
    Begins,
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fitness {
    Fit,
    Doubtful,
    Last,
}

fn fitness(worker: &Worker) -> Option<Fitness> {
    match worker.health.state() {
        HealthState::Ready | HealthState::Warming { proven: true, .. } => Some(Fitness::Fit),
        HealthState::Warming { proven: false, .. } if worker.promised_by_all().work.requests == 0 => {
            Some(Fitness::Fit)
        }
        HealthState::Warming { proven: false, .. } | HealthState::Suspect { refused: false } => {
            Some(Fitness::Doubtful)
        }
        HealthState::Suspect { refused: true } => Some(Fitness::Last),
        HealthState::Probing | HealthState::Ejected { .. } => None,
    }
}

fn change(worker: WorkerId, from: HealthState, to: HealthState) -> Option<HealthChange> {
    let moved = from.name() != to.name() || from.is_out() != to.is_out();
    moved.then_some(HealthChange { worker, from, to })
}

#[cfg(test)]
mod tests;

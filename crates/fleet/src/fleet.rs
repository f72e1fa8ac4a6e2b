//! The workers together: who is in, who serves what, who is fit for a new request now.

use std::collections::BTreeMap;

use maitre_base::{Instant, Tokens, WorkerId};

use crate::estimate::Estimate;
use crate::health::{self, Evidence, Spare, State};
use crate::load::{Load, Report};
use crate::promise::{Promise, Promised};
use crate::worker::{Models, Worker};

/// Most model names a fleet remembers; a worker that lists more is heard up to here.
pub const MODELS_MAX: usize = 4_096;

/// A model name the fleet has seen, as a dense number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// A worker that could take a request, as it stands now.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    pub worker: WorkerId,
    pub key: u64,
    pub promised: Promised,
    pub share: f64,
}

/// A worker's state moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub worker: WorkerId,
    pub from: State,
    pub to: State,
}

#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// By number; a slot is emptied when its worker leaves and never filled again.
    workers: Vec<Option<Worker>>,
    names: BTreeMap<String, ModelId>,
    estimates: Vec<Estimate>,
    settings: health::Settings,
}

impl Fleet {
    pub fn new(settings: health::Settings) -> Fleet {
        Fleet { settings, ..Fleet::default() }
    }

    pub fn add(&mut self, url: &str) -> WorkerId {
        let id = WorkerId(self.workers.len() as u32);
        self.workers.push(Some(Worker::new(id, url)));
        id
    }

    pub fn remove(&mut self, worker: WorkerId) {
        if let Some(slot) = self.workers.get_mut(worker.index()) {
            *slot = None;
        }
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

    pub fn learn_models<'a>(&mut self, worker: WorkerId, names: impl Iterator<Item = &'a str>) {
        let models: Vec<ModelId> = names.filter_map(|name| self.intern(name)).collect();
        if let Some(worker) = self.worker_mut(worker) {
            worker.models = Models::Known(models);
        }
    }

    /// The model of this name, if any worker lists it.
    pub fn model(&self, name: &str) -> Option<ModelId> {
        self.names.get(name).copied().filter(|&it| self.anyone_lists(it))
    }

    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter(|(_, model)| self.anyone_lists(**model)).map(|(name, _)| name.as_str())
    }

    fn anyone_lists(&self, model: ModelId) -> bool {
        self.workers().any(|it| it.serves(Wanted::Model(model)))
    }

    /// Whether any worker has told its models; until one has, no name can be called unknown.
    pub fn anyone_listed(&self) -> bool {
        self.workers().any(|it| it.models != Models::Unknown)
    }

    pub fn anyone_serves(&self, wanted: Wanted) -> bool {
        self.workers().any(|it| it.serves(wanted) && it.health.state() != State::Probing)
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
        let model = ModelId(self.estimates.len() as u32);
        self.names.insert(name.to_owned(), model);
        self.estimates.push(Estimate::default());
        Some(model)
    }

    /// What is known of the sizes of a model's prompts and answers.
    pub fn estimate(&self, model: Option<ModelId>) -> Estimate {
        let known = model.and_then(|it| self.estimates.get(it.0 as usize));
        known.copied().unwrap_or_default()
    }

    pub fn estimate_mut(&mut self, model: ModelId) -> Option<&mut Estimate> {
        self.estimates.get_mut(model.0 as usize)
    }

    // How it is.

    pub fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence) -> Option<Change> {
        let (spare, settings) = (self.spare(), self.settings);
        let it = self.worker_mut(worker)?;
        let from = it.health.state();
        it.health.see(now, evidence, spare, &settings);
        change(worker, from, it.health.state())
    }

    /// Ends ramps that are over.
    pub fn settle(&mut self, now: Instant, changes: &mut Vec<Change>) {
        let settings = self.settings;
        for it in self.workers.iter_mut().flatten() {
            let from = it.health.state();
            it.health.settle(now, &settings);
            changes.extend(change(it.id, from, it.health.state()));
        }
    }

    pub fn report(&mut self, now: Instant, worker: WorkerId, load: Load) {
        if let Some(it) = self.worker_mut(worker) {
            it.report = Some(Report { load, at: now });
        }
    }

    pub fn drain(&mut self, worker: WorkerId, draining: bool) {
        if let Some(it) = self.worker_mut(worker) {
            it.draining = draining;
        }
    }

    /// At most half of the fleet is ejected, whatever it looks like from here: the fault may be ours.
    fn spare(&self) -> Spare {
        let ejected = self.workers().filter(|it| matches!(it.health.state(), State::Ejected { .. })).count();
        match (ejected + 1) * 2 <= self.workers().count() {
            true => Spare::Yes,
            false => Spare::No,
        }
    }

    // What is promised.

    pub fn promise(&mut self, worker: WorkerId, promise: Promise) {
        if let Some(it) = self.worker_mut(worker) {
            it.promised.make(promise);
        }
    }

    pub fn prefilled(&mut self, worker: WorkerId, promise: &mut Promise) {
        match self.worker_mut(worker) {
            Some(it) => it.promised.prefilled(promise),
            None => promise.prefill = Tokens::ZERO,
        }
    }

    pub fn release(&mut self, worker: WorkerId, promise: Promise) {
        if let Some(it) = self.worker_mut(worker) {
            it.promised.release(promise);
        }
    }

    // Who is fit.

    /// Fills `seats` with the workers that may take a request now, in order of number, leaving out
    /// those already `tried`.
    ///
    /// The fit come first. Suspects join when less than half of the workers are fit (the fault may be
    /// ours, and the few left would drown), those known to refuse only when there is nobody else.
    pub fn standings(&self, now: Instant, wanted: Wanted, tried: &[WorkerId], seats: &mut Vec<Standing>) {
        let open = |it: &&Worker| !it.draining && it.serves(wanted) && !tried.contains(&it.id);
        let mut collect = |worst: Tier| {
            let fit = self.workers().filter(open).filter(|it| tier(it).is_some_and(|tier| tier <= worst));
            seats.clear();
            seats.extend(fit.map(|it| self.standing(now, it)));
            seats.len()
        };
        let fit = collect(Tier::Fit);
        if fit * 2 < self.workers().filter(open).count() && collect(Tier::Doubtful) == 0 {
            collect(Tier::Last);
        }
    }

    fn standing(&self, now: Instant, worker: &Worker) -> Standing {
        let share = worker.health.share(now, &self.settings);
        Standing { worker: worker.id, key: worker.key, promised: worker.promised, share }
    }
}

/// What a request needs of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Anything,
    Model(ModelId),
    /// A model nobody lists: only workers that list nothing can serve it.
    Unlisted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    Fit,
    Doubtful,
    Last,
}

fn tier(worker: &Worker) -> Option<Tier> {
    match worker.health.state() {
        State::Ready | State::Warming { proven: true, .. } => Some(Tier::Fit),
        State::Warming { proven: false, .. } if worker.promised.requests == 0 => Some(Tier::Fit),
        State::Warming { proven: false, .. } | State::Suspect { refused: false } => Some(Tier::Doubtful),
        State::Suspect { refused: true } => Some(Tier::Last),
        State::Probing | State::Ejected { .. } => None,
    }
}

fn change(worker: WorkerId, from: State, to: State) -> Option<Change> {
    let moved = from.name() != to.name() || from.is_out() != to.is_out();
    moved.then_some(Change { worker, from, to })
}

#[cfg(test)]
mod tests;

//! What other routers report about workers: the work they have promised, the rates they have learned, and which
//! workers they suspect.
//!
//! Workers are identified by their keys, because each router has its own numbers.
//!
//! Promises of other routers are kept beside our own and never mixed: ours must return to exactly zero, theirs are
//! what the others last reported. Promises to a worker that is not in this fleet are kept until it joins.
//!
//! Left out: which router to believe. A suspicion is only a reason to probe: the fault may be in the other
//! router's network.

use std::time::Duration;

use maitre_base::{Instant, PromisedWork, Tokens, WorkerId};

use super::{Fleet, ModelId};
use crate::health::HealthState;
use crate::rates::LinearFit;
use crate::worker::Worker;

/// Maximum number of absent workers whose promises are kept. Chosen: more than a fleet has, and a third of a
/// megabyte. Beyond it, a worker that joins starts with none and gets its promises with the next update.
pub const ABSENT_WORKERS_MAX: usize = 4_096;

/// Minimum time between two probes of a worker that other routers suspect.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

impl Fleet {
    /// The worker with this key, if it is in the fleet.
    pub fn by_key(&self, key: u64) -> Option<&Worker> {
        self.worker(*self.keys.get(&key)?)
    }

    /// The model whose name has this hash, if the fleet has seen it.
    pub fn model_by_hash(&self, hash: u64) -> Option<ModelId> {
        self.hashes.get(&hash).copied()
    }

    /// Identifies a model between routers; zero for one that the fleet has not seen.
    pub fn hash_of(&self, model: ModelId) -> u64 {
        self.models.get(model.0 as usize).map_or(0, |it| it.hash)
    }

    /// Model names seen so far, listed now or not.
    pub fn models_seen(&self) -> usize {
        self.models.len()
    }

    /// Sets the sum of what other routers have promised to the worker with this key. Their prefill progress
    /// follows from how the sum changes.
    pub fn set_promised_by_others(&mut self, now: Instant, key: u64, work: PromisedWork) {
        let id = self.keys.get(&key).copied();
        let Some(worker) = id.and_then(|it| self.worker_mut(it)) else {
            return self.set_promised_to_absent(now, key, work);
        };
        let others = &mut worker.promised_by_others;
        let joins = others.work.prefilling == 0 && work.prefilling > 0 && worker.promised.work.prefilling > 0;
        // Prefill that disappeared was mostly done. New prefill that others began at the same time hides some of it.
        let done = worker.rates.prefill.plain_tokens(others.work.prefill - work.prefill);
        worker.prefilled += Tokens(done as u64);
        others.update(now, work);
        // Their first request queues behind ours, so the engine's last progress stays.
        if joins {
            others.progress = worker.promised.progress;
        }
    }

    fn set_promised_to_absent(&mut self, now: Instant, key: u64, work: PromisedWork) {
        if work.requests == 0 {
            self.absent_workers.remove(&key);
        } else if self.absent_workers.len() < ABSENT_WORKERS_MAX || self.absent_workers.contains_key(&key) {
            self.absent_workers.entry(key).or_default().update(now, work);
        }
    }

    /// Another router has learned how fast this worker is.
    pub fn learn_peer_rates(&mut self, now: Instant, worker: WorkerId, rates: (LinearFit, LinearFit)) {
        let Some(it) = self.worker(worker) else { return };
        let (base, capacity, group) = (it.base, it.capacity(), it.group());
        // Before the worker lists its model, nobody knows which model the rates are about.
        if base.is_some() {
            self.rates.learn((base, capacity), |it| it.hear(rates));
        }
        let shared = *self.rates.of(group).rates();
        if let Some(it) = self.worker_mut(worker) {
            it.rates.hear(now, &shared, rates);
        }
    }

    /// Another router suspects this worker. Returns whether to probe it now: it is ready as far as we know,
    /// and was not probed for this a moment ago.
    pub fn doubt(&mut self, now: Instant, worker: WorkerId) -> bool {
        let Some(it) = self.worker_mut(worker) else { return false };
        let is_new = it.doubted.is_none_or(|at| now.since(at) >= DOUBTED_EVERY);
        let is_due = is_new && it.health.state() == HealthState::Ready;
        if is_due {
            it.doubted = Some(now);
        }
        is_due
    }

    /// What this router has promised to all workers with this worker's key. There are two of them if one was listed
    /// again while it drains.
    pub fn promised_to_key_of(&self, worker: &Worker) -> PromisedWork {
        let is_alone = self.keys.len() + self.vacant.len() == self.workers.len();
        if is_alone {
            return worker.promised.work;
        }
        let same = self.workers().filter(|it| it.key == worker.key).map(|it| it.promised.work);
        same.fold(PromisedWork::default(), |sum, it| sum.plus(&it))
    }

    /// Gives a worker that joins what other routers have promised to it. If a worker with the same key still drains,
    /// it gets that one's promises.
    pub(super) fn restore_promises(&mut self, mut worker: Worker) -> Worker {
        let absent = self.absent_workers.remove(&worker.key);
        let draining = self.keys.insert(worker.key, worker.id).and_then(|it| self.worker_mut(it));
        let kept = draining.map(|it| std::mem::take(&mut it.promised_by_others)).or(absent);
        worker.promised_by_others = kept.unwrap_or_default();
        worker
    }

    /// Keeps the promises of other routers: the worker may return while they still have it.
    pub(super) fn keep_promises(&mut self, worker: &Worker) {
        // If the worker has returned already, it has them.
        if self.keys.get(&worker.key) != Some(&worker.id) {
            return;
        }
        self.keys.remove(&worker.key);
        // An earlier worker with the same key may still drain.
        let draining = self.workers().find(|it| it.key == worker.key).map(|it| it.id);
        if let Some(draining) = draining {
            self.keys.insert(worker.key, draining);
            if let Some(draining) = self.worker_mut(draining) {
                draining.promised_by_others = worker.promised_by_others;
            }
            return;
        }
        if worker.promised_by_others.work.requests > 0 && self.absent_workers.len() < ABSENT_WORKERS_MAX {
            self.absent_workers.insert(worker.key, worker.promised_by_others);
        }
    }
}

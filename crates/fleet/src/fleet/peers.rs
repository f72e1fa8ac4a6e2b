//! What other routers tell of workers: what they have promised there, how fast they find them, whom they doubt.
//!
//! Workers go by their keys here, for each router has numbers of its own. What others promised is kept beside what
//! we did and never mixed with it: ours must come to exactly zero again, theirs is whatever they last said. What is
//! promised to a worker that is not here is kept for when it joins.
//!
//! Left out: whom to believe. A doubt is a reason to look, and no more: it may be the other router's network that is
//! unwell.

use std::time::Duration;

use maitre_base::{Instant, PromisedWork, WorkerId};

use super::{Fleet, ModelId};
use crate::health::HealthState;
use crate::rates::LinearFit;
use crate::worker::Worker;

/// Workers that are not here of which it is kept what others promised to them. Chosen: more than a fleet has, and
/// a third of a megabyte. Beyond it, who joins begins with nothing and hears more soon.
pub const ABSENT_WORKERS_MAX: usize = 4_096;

/// How often a worker is probed for the doubts of others, at most.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

impl Fleet {
    /// The worker of this key, if it is here.
    pub fn by_key(&self, key: u64) -> Option<&Worker> {
        self.worker(*self.keys.get(&key)?)
    }

    /// The model whose name has this hash, if the fleet has seen it.
    pub fn model_by_hash(&self, hash: u64) -> Option<ModelId> {
        self.hashes.get(&hash).copied()
    }

    /// What a model goes by between routers; zero for one that the fleet has not seen.
    pub fn hash_of(&self, model: ModelId) -> u64 {
        self.models.get(model.0 as usize).map_or(0, |it| it.hash)
    }

    /// Model names seen so far, listed now or not.
    pub fn models_seen(&self) -> usize {
        self.models.len()
    }

    /// Others have this promised to the worker of this key now, all of them together. When their prefill got on follows
    /// from how it changes.
    pub fn set_promised_by_others(&mut self, now: Instant, key: u64, work: PromisedWork) {
        let Some(worker) = self.keys.get(&key).and_then(|it| self.workers.get_mut(it.index())?.as_mut())
        else {
            return self.set_promised_to_absent(now, key, work);
        };
        let others = &mut worker.promised_by_others;
        let joins = others.work.prefilling == 0 && work.prefilling > 0 && worker.promised.work.prefilling > 0;
        // What is no longer to be prefilled was, mostly. If others began something in the same moment it does not show.
        worker.prefilled += others.work.prefill - work.prefill;
        others.update(now, work);
        // Theirs is the first of theirs, and not of those who stand there.
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
    pub fn learn_peer_rates(&mut self, worker: WorkerId, rates: (LinearFit, LinearFit)) {
        self.rates.hear_of_any(rates);
        let fleet = self.rates;
        if let Some(it) = self.worker_mut(worker) {
            it.rates.hear(&fleet, rates);
        }
    }

    /// Another router doubts this worker; whether that is a reason to probe it now. It is if all is well as far as we
    /// know, and nobody asked a moment ago.
    pub fn doubt(&mut self, now: Instant, worker: WorkerId) -> bool {
        let Some(it) = self.worker_mut(worker) else { return false };
        let is_new = it.doubted.is_none_or(|at| now.since(at) >= DOUBTED_EVERY);
        let is_due = is_new && it.health.state() == HealthState::Ready;
        if is_due {
            it.doubted = Some(now);
        }
        is_due
    }

    /// A worker that joins finds what others have promised to it.
    pub(super) fn restore_promises(&mut self, mut worker: Worker) -> Worker {
        self.keys.insert(worker.key, worker.id);
        worker.promised_by_others = self.absent_workers.remove(&worker.key).unwrap_or_default();
        worker
    }

    /// It may come again, while others still have it.
    pub(super) fn keep_promises(&mut self, worker: &Worker) {
        if self.keys.get(&worker.key) == Some(&worker.id) {
            self.keys.remove(&worker.key);
        }
        if worker.promised_by_others.work.requests > 0 && self.absent_workers.len() < ABSENT_WORKERS_MAX {
            self.absent_workers.insert(worker.key, worker.promised_by_others);
        }
    }
}

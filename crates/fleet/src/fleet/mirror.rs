//! A thread's own copy of the workers, which it reads while another thread changes the fleet.
//!
//! The fleet lists its changes. A mirror follows it under the fleet's lock and copies only those: a placement or a
//! first token changes one worker. Its owner then reads the mirror without the lock, as it would read the fleet.

use std::num::Wrapping;

use maitre_base::{Instant, WorkerId};

use super::snapshots::{Fitness, fitness};
use super::{Fleet, WorkerSnapshot};
use crate::barred::Barred;
use crate::estimate::Estimate;
use crate::model::{ModelId, Wanted};
use crate::worker::Worker;

/// How many changes the fleet remembers. Chosen: a thread that has missed more copies everything, which costs about
/// as much.
const CHANGES_KEPT: usize = 64;

/// Something that a copy must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetChange {
    /// A worker's state or numbers.
    Worker(WorkerId),
    /// What is known of the sizes of a model's requests.
    Estimate(ModelId),
}

/// A moment in the history of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Changes so far.
    changes: Wrapping<u64>,
    /// Counts changes that go beyond numbers: of workers, models or settings.
    upheavals: u64,
}

/// The last changes of a fleet.
#[derive(Clone, Debug)]
pub(super) struct ChangeLog {
    moment: Moment,
    /// By number, modulo its length.
    recent: [FleetChange; CHANGES_KEPT],
}

impl Default for ChangeLog {
    fn default() -> ChangeLog {
        ChangeLog { moment: Moment::default(), recent: [FleetChange::Worker(WorkerId(0)); CHANGES_KEPT] }
    }
}

impl ChangeLog {
    pub(super) fn note(&mut self, change: FleetChange) {
        self.recent[self.moment.changes.0 as usize % CHANGES_KEPT] = change;
        self.moment.changes += 1;
    }

    /// Numbers of all workers may have changed.
    pub(super) fn note_all(&mut self) {
        self.moment.changes += CHANGES_KEPT as u64 + 1;
    }

    pub(super) fn upheaval(&mut self) {
        self.moment.upheavals += 1;
    }
}

impl Fleet {
    pub fn moment(&self) -> Moment {
        self.log.moment
    }

    /// What has changed since then; one change may appear several times. `None` if the list no longer reaches back so
    /// far.
    pub fn changes_since(&self, then: Moment) -> Option<impl Iterator<Item = FleetChange>> {
        let Moment { changes, upheavals } = self.log.moment;
        let missed = (changes - then.changes).0;
        let is_listed = upheavals == then.upheavals && missed <= CHANGES_KEPT as u64;
        let place = move |back: u64| (changes - Wrapping(back)).0 as usize % CHANGES_KEPT;
        is_listed.then(|| (1..=missed).rev().map(move |it| self.log.recent[place(it)]))
    }

    /// The worker as `fit_snapshots` lists it; `None` if it does not list it.
    pub fn fit_snapshot(&self, now: Instant, wanted: Wanted, worker: WorkerId) -> Option<WorkerSnapshot> {
        let is_fit = |it: &&Worker| {
            !it.draining && it.serves(wanted) && fitness(it).is_some_and(|it| it <= Fitness::Fit)
        };
        let worker = self.worker(worker).filter(is_fit)?;
        Some(self.snapshot(now, wanted, worker))
    }
}

/// A copy of the fleet's workers that follows its changes.
#[derive(Clone, Debug)]
pub struct FleetMirror {
    fleet: Fleet,
}

impl FleetMirror {
    pub fn new(fleet: &Fleet) -> FleetMirror {
        FleetMirror { fleet: fleet.clone() }
    }

    /// Copies what has changed.
    pub fn follow(&mut self, fleet: &Fleet) {
        let then = self.moment();
        if fleet.moment().upheavals != then.upheavals {
            *self = FleetMirror::new(fleet);
            return;
        }
        match fleet.changes_since(then) {
            Some(changes) => self.apply(fleet, changes),
            None => {
                self.apply(fleet, fleet.workers().map(|it| FleetChange::Worker(it.id)));
                self.apply(
                    fleet,
                    (0..fleet.models.len()).map(|it| FleetChange::Estimate(ModelId(it as u32))),
                );
            }
        }
        if fleet.moment() != then {
            self.fleet.mean = fleet.mean;
            self.fleet.log.moment = fleet.log.moment;
        }
    }

    fn apply(&mut self, fleet: &Fleet, changes: impl Iterator<Item = FleetChange>) {
        let mut last = None;
        for change in changes {
            // A first token changes several numbers of one worker.
            if last.replace(change) == Some(change) {
                continue;
            }
            match change {
                FleetChange::Worker(id) => {
                    let own = self.fleet.workers.get_mut(id.index()).and_then(Option::as_mut);
                    if let (Some(own), Some(worker)) = (own, fleet.worker(id)) {
                        own.follow(worker);
                        self.fleet.rates.follow(worker.group(), &fleet.rates);
                    }
                }
                FleetChange::Estimate(model) => {
                    if let Some(own) = self.fleet.models.get_mut(model.0 as usize) {
                        own.estimate = fleet.estimate(Some(model));
                    }
                }
            }
        }
    }

    /// The moment of the fleet that this mirror shows.
    pub fn moment(&self) -> Moment {
        self.fleet.moment()
    }

    pub fn model(&self, name: &str) -> Option<ModelId> {
        self.fleet.model(name)
    }

    pub fn is_adapter(&self, model: ModelId) -> bool {
        self.fleet.is_adapter(model)
    }

    pub fn estimate(&self, model: Option<ModelId>) -> Estimate {
        self.fleet.estimate(model)
    }

    /// Like `Fleet::mean_prefill`.
    pub fn mean_prefill(&self, wanted: Wanted) -> f64 {
        self.fleet.mean_prefill(wanted)
    }

    /// Like `Fleet::snapshots`, if enough workers are fit.
    pub fn fit_snapshots(&self, now: Instant, wanted: Wanted, snapshots: &mut Vec<WorkerSnapshot>) -> bool {
        self.fleet.fit_snapshots(now, wanted, Barred::default(), snapshots)
    }
}

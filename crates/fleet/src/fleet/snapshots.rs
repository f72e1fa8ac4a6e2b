//! The workers that could take a request, at one instant.

use std::collections::BTreeMap;

use maitre_base::{AdapterSlot, FreshLoad, Instant, KvRoom, Tokens, WorkerId};

use super::{Fleet, MeanLoad, WorkerSnapshot};
use crate::barred::Barred;
use crate::health::HealthState;
use crate::model::{ModelId, Wanted};
use crate::worker::Worker;

impl Fleet {
    /// Fills `snapshots` with the workers that may take a request now, in order of number, without barred ones.
    ///
    /// Fit workers come first. Suspects join when less than half of the workers are fit: the fault may be this
    /// router's, and the few others would be overloaded. Workers known to refuse join only if there is no other.
    pub fn snapshots(
        &self,
        now: Instant,
        wanted: Wanted,
        barred: Barred<'_>,
        snapshots: &mut Vec<WorkerSnapshot>,
    ) {
        if self.fit_snapshots(now, wanted, barred, snapshots) {
            return;
        }
        if self.collect((now, wanted, barred), Fitness::Doubtful, snapshots).0 == 0 {
            self.collect((now, wanted, barred), Fitness::Last, snapshots);
        }
    }

    /// Fills `snapshots` with the fit workers. Returns whether they are enough.
    pub(super) fn fit_snapshots(
        &self,
        now: Instant,
        wanted: Wanted,
        barred: Barred<'_>,
        snapshots: &mut Vec<WorkerSnapshot>,
    ) -> bool {
        let (fit, open) = self.collect((now, wanted, barred), Fitness::Fit, snapshots);
        fit * 2 >= open
    }

    /// Fills `snapshots` with the workers whose health is no worse. Returns how many those are, and out of how many.
    /// One pass over the workers answers both questions: fetching a thousand of them from memory twice was a fifth of
    /// a decision.
    fn collect(
        &self,
        (now, wanted, barred): (Instant, Wanted, Barred<'_>),
        worst: Fitness,
        snapshots: &mut Vec<WorkerSnapshot>,
    ) -> (usize, usize) {
        let is_open = |it: &&Worker| !it.draining && it.serves(wanted) && !barred.bars(it.id);
        let mut open = 0;
        snapshots.clear();
        for it in self.workers().filter(is_open) {
            open += 1;
            if fitness(it).is_some_and(|it| it <= worst) {
                snapshots.push(self.snapshot(now, wanted, it));
            }
        }
        (snapshots.len(), open)
    }

    /// Whether any worker that is not barred may take such a request, now or once it has room.
    pub fn anyone_takes(&self, wanted: Wanted, barred: Barred<'_>) -> bool {
        self.workers().any(|it| it.is_fit() && it.serves(wanted) && !barred.bars(it.id))
    }

    /// Whether any worker that is not barred may ever take such a request: it may be unhealthy now.
    pub fn anyone_may_take(&self, wanted: Wanted, barred: Barred<'_>) -> bool {
        self.workers().any(|it| !it.draining && it.serves(wanted) && !barred.bars(it.id))
    }

    /// The snapshot of one worker, whatever it serves; `None` if it may not take requests.
    pub fn snapshot_of(&self, now: Instant, worker: WorkerId) -> Option<WorkerSnapshot> {
        let worker = self.worker(worker).filter(|it| !it.draining && fitness(it).is_some())?;
        Some(self.snapshot(now, Wanted::Anything, worker))
    }

    /// The part of its weight that a worker counts with. It is below 1 while the worker warms up, but only once the
    /// worker has that part of the mean load. With less load it is as good as any. When the share also applied to an
    /// idle worker, its price was ten times its own, and requests waited for seconds at others. With one of eight
    /// engines killed every second, workers stood idle beside workers with 24,000 tokens to prefill.
    ///
    /// Shares are relative to the fleet's mean: if all workers warm up, none can take load off the others. Without
    /// this the oldest had 190 requests and five others six, and when it died all its streams had to move at once.
    fn ramp(&self, now: Instant, worker: &Worker, requests: u32) -> f64 {
        let share = (worker.health.share(now, &self.settings) / self.mean.share).min(1.0);
        if f64::from(requests) < share * self.mean.requests.max(1.0) { 1.0 } else { share }
    }

    pub(super) fn mean_load(&self, now: Instant) -> MeanLoad {
        let fit = || self.workers().filter(|it| it.is_fit());
        let requests: u32 = fit().map(|it| it.promised_by_all().work.requests).sum();
        let shares: f64 = fit().map(|it| it.health.share(now, &self.settings)).sum();
        match fit().count() as f64 {
            0.0 => MeanLoad::default(),
            workers => MeanLoad { requests: f64::from(requests) / workers, share: shares / workers },
        }
    }

    /// Records for each worker the mean requests of the others of its model, scaled to its weight.
    pub(super) fn compare_loads(&mut self) {
        let takes = |it: &Worker| it.is_fit() && it.answers();
        let load = |it: &Worker| (f64::from(it.promised_by_all().work.requests), it.weight);
        let mut models: BTreeMap<Option<ModelId>, (f64, f64)> = BTreeMap::new();
        for it in self.workers().filter(|it| takes(it)) {
            let (requests, weight) = load(it);
            let all = models.entry(self.base_of(it.id)).or_default();
            *all = (all.0 + requests, all.1 + weight);
        }
        for place in 0..self.workers.len() {
            let all = models.get(&self.base_of(WorkerId(place as u32))).copied().unwrap_or_default();
            let Some(it) = &mut self.workers[place] else { continue };
            let own = if takes(it) { load(it) } else { (0.0, 0.0) };
            let (requests, weight) = (all.0 - own.0, all.1 - own.1);
            // The least weight is a hundredth; less is a rounding error.
            it.requests_elsewhere = if weight > 1e-3 { requests / weight * it.weight } else { f64::INFINITY };
        }
    }

    #[inline]
    pub(super) fn snapshot(&self, now: Instant, wanted: Wanted, worker: &Worker) -> WorkerSnapshot {
        let adapter = match wanted {
            Wanted::Model(model) if self.is_adapter(model) => worker.adapters.slot(model),
            _ => AdapterSlot::Ready,
        };
        let backlog = worker.promised_by_all();
        let promised = backlog.work;
        let capacity = worker.capacity();
        let fresh = worker.fresh(now);
        WorkerSnapshot {
            worker: worker.id,
            key: worker.key,
            promised,
            ours: (worker.promised.work.requests, worker.promised.work.prefill.tokens),
            requests: promised.requests.saturating_add(worker.foreign(fresh)),
            requests_elsewhere: worker.requests_elsewhere,
            share: self.ramp(now, worker, promised.requests) * worker.weight,
            knee: worker.knee,
            prefill: worker.rates.prefill,
            decode: worker.rates.decode,
            faded: match promised.requests {
                0 => worker.rates.faded(now, self.rates.of(worker.group()).rates()),
                _ => None,
            },
            wait_seconds: backlog.wait_seconds(now, &worker.rates.prefill)
                + worker.silence(now).as_secs_f64(),
            room: capacity
                .map(|capacity| KvRoom { capacity, pinned: worker.pinned(fresh, capacity, &promised) }),
            idle: now.since(worker.began),
            used: capacity.map_or(Tokens::ZERO, |it| worker.used(fresh, it, &promised)),
            reported: fresh.map_or_else(FreshLoad::default, |it| FreshLoad {
                waiting: it.waiting,
                kv_usage: it.kv_usage,
            }),
            adapter,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    Fit,
    Doubtful,
    Last,
}

#[inline]
pub(super) fn fitness(worker: &Worker) -> Option<Fitness> {
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

//! Queued requests that wait for one particular worker: not promised to it yet, but they will be.
//!
//! A reservation counts like a placement for the requests behind it: its work is added to what the worker has promised,
//! and its prompt to what the worker will have cached. So a strategy sees the same fleet whether requests wait in the
//! router or at the engines, and picks the same workers.
//!
//! A request that looks for a worker counts the reservations of its own class and of the classes above it. Lower classes
//! take what is left, so their reservations do not count.

use std::time::Duration;

use maitre_base::{ClassId, Instant, Promise, PromisedWork, WorkerId};
use maitre_policy::Why;
use maitre_queue::settings::CLASSES_MAX;

use crate::cache::Prediction;

/// The claim of one request on one worker.
#[derive(Clone, Debug)]
pub(crate) struct Reservation {
    pub(crate) worker: WorkerId,
    /// Why the strategy picked it.
    pub(crate) why: Why,
    /// What the request will cost there.
    pub(crate) promise: Promise,
    /// Whether the worker holds a part of the prompt, or its strategy does not look at that.
    pub(crate) is_kept: bool,
    pub(crate) since: Instant,
    /// How long it waits while the worker takes no request.
    pub(crate) patience: Duration,
    /// What its prompt is expected to leave in the cache, where that counts.
    pub(crate) prediction: Option<Prediction>,
    /// Whether its prompt counts as cached and as in use at the worker.
    pub(crate) is_counted: bool,
}

/// What is reserved at one worker.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerReservations {
    classes: [PromisedWork; CLASSES_MAX],
    /// When a request was last placed there.
    placed_at: Instant,
}

/// All reservations, by worker and class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    workers: Vec<WorkerReservations>,
    requests: u32,
}

impl Reservations {
    pub(crate) fn add(&mut self, class: ClassId, reservation: &Reservation) {
        let Reservation { worker, promise, .. } = *reservation;
        let it = &mut self.at_mut(worker).classes[class.index()];
        *it = it.plus(&work(&promise));
        self.requests += 1;
    }

    pub(crate) fn remove(&mut self, class: ClassId, reservation: &Reservation) {
        let Reservation { worker, promise, .. } = *reservation;
        let it = &mut self.at_mut(worker).classes[class.index()];
        debug_assert!(it.requests > 0 && it.prefill.contains(promise.prefill), "removed more than was added");
        *it = PromisedWork {
            requests: it.requests.saturating_sub(1),
            prefilling: it.prefilling.saturating_sub(1),
            prefill: it.prefill - promise.prefill,
            decode: it.decode - promise.decode,
            context: it.context - promise.context,
        };
        self.requests = self.requests.saturating_sub(1);
    }

    pub(crate) fn clear(&mut self) {
        self.workers.clear();
        self.requests = 0;
    }

    /// A request was placed at this worker.
    pub(crate) fn placed(&mut self, now: Instant, worker: WorkerId) {
        if self.requests > 0 {
            self.at_mut(worker).placed_at = now;
        }
    }

    /// When the worker last took a request, or the reservation was made, if that was later.
    pub(crate) fn progress(&self, reservation: &Reservation) -> Instant {
        let placed_at = self.workers.get(reservation.worker.index()).map_or(Instant::ZERO, |it| it.placed_at);
        placed_at.max(reservation.since)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Whether no request waits for this worker.
    pub(crate) fn is_clear(&self, worker: WorkerId) -> bool {
        let classes = self.workers.get(worker.index());
        self.requests == 0 || classes.is_none_or(|it| it.classes.iter().all(|it| it.requests == 0))
    }

    /// What this class and those above it have reserved at the worker.
    pub(crate) fn at(&self, worker: WorkerId, class: ClassId) -> PromisedWork {
        // Most of the time there are no reservations at all.
        if self.requests == 0 {
            return PromisedWork::default();
        }
        let classes = self.workers.get(worker.index()).map_or(&[][..], |it| &it.classes[..=class.index()]);
        classes.iter().fold(PromisedWork::default(), |sum, it| sum.plus(it))
    }

    fn at_mut(&mut self, worker: WorkerId) -> &mut WorkerReservations {
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, WorkerReservations::default());
        }
        &mut self.workers[worker.index()]
    }
}

fn work(promise: &Promise) -> PromisedWork {
    let Promise { prefill, decode, context, .. } = *promise;
    PromisedWork { requests: 1, prefilling: 1, prefill, decode, context }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{PrefillWork, Tokens};

    #[test]
    fn reservations_of_lower_classes_do_not_count() {
        let (worker, mut all) = (WorkerId(3), Reservations::default());
        let of = |prefill| Reservation {
            is_kept: true,
            worker,
            why: Why::Cached,
            promise: Promise { prefill: PrefillWork::whole(Tokens(prefill)), ..Promise::default() },
            since: Instant::ZERO,
            patience: Duration::ZERO,
            prediction: None,
            is_counted: false,
        };
        all.add(ClassId(0), &of(100));
        all.add(ClassId(2), &of(10_000));
        let above = all.at(worker, ClassId(1));
        assert_eq!((above.requests, above.prefill.tokens), (1, Tokens(100)));
        assert_eq!(all.at(worker, ClassId(2)).prefill.tokens, Tokens(10_100));
        assert_eq!(all.at(WorkerId(9), ClassId(2)), PromisedWork::default());
        all.remove(ClassId(2), &of(10_000));
        all.remove(ClassId(0), &of(100));
        assert_eq!(all.at(worker, ClassId(2)), PromisedWork::default());
    }
}

//! Queued requests that wait for one particular worker: not promised to it yet, but they will be.
//!
//! A request that looks for a worker counts the reservations of its own class and of the classes above it. Lower classes
//! take what is left, so their reservations do not count.

use maitre_base::{ClassId, Tokens, WorkerId};
use maitre_queue::settings::CLASSES_MAX;

/// The claim of one request on one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) worker: WorkerId,
    /// What the request will have to prefill there.
    pub(crate) prefill: Tokens,
}

/// What is reserved at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) requests: u32,
    pub(crate) prefill: Tokens,
}

/// All reservations, by worker and class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservations {
    workers: Vec<[Reserved; CLASSES_MAX]>,
    requests: u32,
}

impl Reservations {
    pub(crate) fn add(&mut self, class: ClassId, reservation: Reservation) {
        let Reservation { worker, prefill } = reservation;
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, [Reserved::default(); CLASSES_MAX]);
        }
        let it = &mut self.workers[worker.index()][class.index()];
        it.requests += 1;
        it.prefill += prefill;
        self.requests += 1;
    }

    pub(crate) fn remove(&mut self, class: ClassId, reservation: Reservation) {
        let Reservation { worker, prefill } = reservation;
        let Some(it) = self.workers.get_mut(worker.index()).map(|it| &mut it[class.index()]) else { return };
        debug_assert!(it.requests > 0 && it.prefill >= prefill, "removed more than was added");
        it.requests = it.requests.saturating_sub(1);
        it.prefill -= prefill;
        self.requests = self.requests.saturating_sub(1);
    }

    /// Whether no request waits for this worker.
    pub(crate) fn is_clear(&self, worker: WorkerId) -> bool {
        let classes = self.workers.get(worker.index());
        classes.is_none_or(|it| it.iter().all(|it| *it == Reserved::default()))
    }

    /// What this class and those above it have reserved at the worker.
    pub(crate) fn at(&self, worker: WorkerId, class: ClassId) -> Reserved {
        // Most of the time there are no reservations at all.
        if self.requests == 0 {
            return Reserved::default();
        }
        let classes = self.workers.get(worker.index()).map_or(&[][..], |it| &it[..=class.index()]);
        classes.iter().fold(Reserved::default(), |sum, it| Reserved {
            requests: sum.requests + it.requests,
            prefill: sum.prefill + it.prefill,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_of_lower_classes_do_not_count() {
        let (worker, mut all) = (WorkerId(3), Reservations::default());
        let of = |prefill| Reservation { worker, prefill: Tokens(prefill) };
        all.add(ClassId(0), of(100));
        all.add(ClassId(2), of(10_000));
        assert_eq!(all.at(worker, ClassId(1)), Reserved { requests: 1, prefill: Tokens(100) });
        assert_eq!(all.at(worker, ClassId(2)).prefill, Tokens(10_100));
        assert_eq!(all.at(WorkerId(9), ClassId(2)), Reserved::default());
        all.remove(ClassId(2), of(10_000));
        all.remove(ClassId(0), of(100));
        assert_eq!(all.at(worker, ClassId(2)), Reserved::default());
    }
}

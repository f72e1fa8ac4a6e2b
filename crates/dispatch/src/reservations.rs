//! Requests that stand in line for one worker and no other: not promised to it yet, but they will be.
//!
//! Whoever looks for a placement reckons with those of its own class and above that wait for it there. Those below wait for
//! what is left, and are not in the way.

use maitre_base::{ClassId, Tokens, WorkerId};
use maitre_queue::settings::CLASSES_MAX;

/// What waits for one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Awaited {
    pub(crate) requests: u32,
    pub(crate) prefill: Tokens,
}

/// By worker and class.
#[derive(Clone, Debug, Default)]
pub(crate) struct All {
    workers: Vec<[Awaited; CLASSES_MAX]>,
    requests: u32,
}

impl All {
    pub(crate) fn begin(&mut self, worker: WorkerId, class: ClassId, prefill: Tokens) {
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, [Awaited::default(); CLASSES_MAX]);
        }
        let it = &mut self.workers[worker.index()][class.index()];
        it.requests += 1;
        it.prefill += prefill;
        self.requests += 1;
    }

    pub(crate) fn end(&mut self, worker: WorkerId, class: ClassId, prefill: Tokens) {
        let Some(it) = self.workers.get_mut(worker.index()).map(|it| &mut it[class.index()]) else { return };
        debug_assert!(it.requests > 0 && it.prefill >= prefill, "ended more than began");
        it.requests = it.requests.saturating_sub(1);
        it.prefill -= prefill;
        self.requests = self.requests.saturating_sub(1);
    }

    /// Whether nobody waits for the worker.
    pub(crate) fn is_clear(&self, worker: WorkerId) -> bool {
        let classes = self.workers.get(worker.index());
        classes.is_none_or(|it| it.iter().all(|it| *it == Awaited::default()))
    }

    /// What of this class and those above waits for the worker.
    pub(crate) fn at(&self, worker: WorkerId, class: ClassId) -> Awaited {
        // Mostly nobody waits for anybody.
        if self.requests == 0 {
            return Awaited::default();
        }
        let classes = self.workers.get(worker.index()).map_or(&[][..], |it| &it[..=class.index()]);
        classes.iter().fold(Awaited::default(), |sum, it| Awaited {
            requests: sum.requests + it.requests,
            prefill: sum.prefill + it.prefill,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_below_are_not_in_the_way() {
        let (worker, mut all) = (WorkerId(3), All::default());
        all.begin(worker, ClassId(0), Tokens(100));
        all.begin(worker, ClassId(2), Tokens(10_000));
        assert_eq!(all.at(worker, ClassId(1)), Awaited { requests: 1, prefill: Tokens(100) });
        assert_eq!(all.at(worker, ClassId(2)).prefill, Tokens(10_100));
        assert_eq!(all.at(WorkerId(9), ClassId(2)), Awaited::default());
        all.end(worker, ClassId(2), Tokens(10_000));
        all.end(worker, ClassId(0), Tokens(100));
        assert_eq!(all.at(worker, ClassId(2)), Awaited::default());
    }
}

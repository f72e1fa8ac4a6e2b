//! Prompts longer than a worker's knee that are being prefilled, by worker and class.
//!
//! Such a prompt makes the worker's steps long. Requests of higher classes find short steps only at workers without one.

use maitre_base::{ClassId, WorkerId};
use maitre_queue::settings::CLASSES_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct LongPrefills {
    workers: Vec<[u32; CLASSES_MAX]>,
}

impl LongPrefills {
    pub(crate) fn begin(&mut self, worker: WorkerId, class: ClassId) {
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, [0; CLASSES_MAX]);
        }
        self.workers[worker.index()][class.index()] += 1;
    }

    pub(crate) fn end(&mut self, worker: WorkerId, class: ClassId) {
        if let Some(it) = self.workers.get_mut(worker.index()).map(|it| &mut it[class.index()]) {
            debug_assert!(*it > 0, "ended more than began");
            *it = it.saturating_sub(1);
        }
    }

    /// Whether this worker has one of this class or below.
    pub(crate) fn is_at(&self, worker: WorkerId, class: ClassId) -> bool {
        self.workers.get(worker.index()).is_some_and(|it| it[class.index()..].iter().any(|&it| it > 0))
    }
}

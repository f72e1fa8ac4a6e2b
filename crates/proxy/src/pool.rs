//! Idle connections to workers, one pool a thread: no connection ever moves between threads, so taking
//! one costs no wake-up elsewhere.

use std::time::Duration;

use maitre_base::{Instant, WorkerId};
use parking_lot::Mutex;

use crate::line::Line;

pub(crate) struct Pool {
    /// By worker number. The newest idle line is last, and is taken first: the old ones age out.
    idle: Mutex<Vec<Vec<Line>>>,
    idle_per_worker: usize,
}

impl Pool {
    pub(crate) fn new(idle_per_worker: usize) -> Pool {
        Pool { idle: Mutex::new(Vec::new()), idle_per_worker }
    }

    pub(crate) fn take(&self, worker: WorkerId) -> Option<Line> {
        let mut idle = self.idle.lock();
        let lines = idle.get_mut(worker.index())?;
        // One that was closed while it lay idle is dropped here.
        std::iter::from_fn(|| lines.pop()).find_map(|mut line| line.settle().then_some(line))
    }

    /// Keeps a line for the next request, if it can be used again and there is room.
    pub(crate) fn put(&self, now: Instant, worker: WorkerId, mut line: Line) {
        if !line.settle() {
            return;
        }
        line.idle_since = now;
        let mut idle = self.idle.lock();
        if idle.len() <= worker.index() {
            idle.resize_with(worker.index() + 1, Vec::new);
        }
        let lines = &mut idle[worker.index()];
        if lines.len() < self.idle_per_worker {
            lines.push(line);
        }
    }

    /// Drops what has been idle for longer than `limit`, and what was closed from the other end.
    pub(crate) fn sweep(&self, now: Instant, limit: Duration) {
        for lines in self.idle.lock().iter_mut() {
            lines.retain_mut(|line| now.since(line.idle_since) < limit && line.settle());
        }
    }
}

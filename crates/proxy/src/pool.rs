//! Idle connections to workers, one pool a thread: no connection ever moves between threads, so taking
//! one costs no wake-up elsewhere.
//!
//! Lines are kept by the serial of their link and not by the number of its worker: a number may be given to another
//! worker while lines to the last one still lie here.

use std::time::Duration;

use maitre_base::Instant;
use maitre_base::hash::NumberMap;
use parking_lot::Mutex;

use crate::line::Upstream;
use crate::link::Link;

pub(crate) struct Pool {
    /// By the serial of the link. The newest idle line is last, and is taken first: the old ones age out. So do the
    /// lists of workers that left.
    idle: Mutex<NumberMap<Vec<Upstream>>>,
    idle_per_worker: usize,
}

impl Pool {
    pub(crate) fn new(idle_per_worker: usize) -> Pool {
        Pool { idle: Mutex::new(NumberMap::default()), idle_per_worker }
    }

    pub(crate) fn take(&self, link: &Link) -> Option<Upstream> {
        let mut idle = self.idle.lock();
        let lines = idle.get_mut(&link.serial)?;
        // One that was closed while it lay idle is dropped here.
        std::iter::from_fn(|| lines.pop()).find_map(|mut line| line.settle().then_some(line))
    }

    /// Keeps a line for the next request, if it can be used again and there is room.
    pub(crate) fn put(&self, now: Instant, link: &Link, mut line: Upstream) {
        if !line.settle() {
            return;
        }
        line.idle_since = now;
        let mut idle = self.idle.lock();
        let lines = idle.entry(link.serial).or_default();
        if lines.len() < self.idle_per_worker {
            lines.push(line);
        }
    }

    /// Drops what has been idle for longer than `limit`, and what was closed from the other end.
    pub(crate) fn sweep(&self, now: Instant, limit: Duration) {
        self.idle.lock().retain(|_, lines| {
            lines.retain_mut(|line| now.since(line.idle_since) < limit && line.settle());
            !lines.is_empty()
        });
    }
}

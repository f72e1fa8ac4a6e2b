//! Idle connections to workers, one pool per thread. A connection never moves between threads, so taking one wakes no
//! other thread.
//!
//! The caller chooses the key of a worker. It must never be reused for another worker while connections to the old one
//! may still be in the pool.

use std::time::Duration;

use maitre_base::Instant;
use maitre_base::hash::NumberMap;
use parking_lot::Mutex;

use crate::upstream::Upstream;

pub struct UpstreamPool {
    /// By worker. The most recently used connection is last and is taken first, so the others age out. Lists of workers
    /// that left empty themselves the same way. Boxed for as long as they are open: a request moves its connection a dozen times.
    #[expect(clippy::vec_box, reason = "a connection is moved out of its list for each request")]
    idle: Mutex<NumberMap<Vec<Box<Upstream>>>>,
    idle_per_worker: usize,
}

impl UpstreamPool {
    pub fn new(idle_per_worker: usize) -> UpstreamPool {
        UpstreamPool { idle: Mutex::new(NumberMap::default()), idle_per_worker }
    }

    /// An idle connection that is still open. Drops those that the worker has closed.
    pub fn take(&self, key: u64) -> Option<Box<Upstream>> {
        let mut idle = self.idle.lock();
        let connections = idle.get_mut(&key)?;
        std::iter::from_fn(|| connections.pop()).find_map(|mut it| it.is_reusable().then_some(it))
    }

    /// Keeps a connection for the next request, if its response is done and the worker's list is not full. `take`
    /// looks at what arrives from now on.
    pub fn put(&self, now: Instant, key: u64, mut upstream: Box<Upstream>) {
        if !upstream.is_done() {
            return;
        }
        upstream.idle_since = now;
        let mut idle = self.idle.lock();
        let connections = idle.entry(key).or_default();
        if connections.len() < self.idle_per_worker {
            connections.push(upstream);
        }
    }

    /// Drops connections that have been idle for longer than `limit`, and those that the worker has closed.
    pub fn sweep(&self, now: Instant, limit: Duration) {
        self.idle.lock().retain(|_, connections| {
            connections.retain_mut(|it| now.since(it.idle_since) < limit && it.is_reusable());
            !connections.is_empty()
        });
    }
}

//! The machine of a worker: whether it is up, and its connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated::ConnectionHandle;
use parking_lot::Mutex;

pub(super) struct Host {
    pub(super) name: String,
    is_up: AtomicBool,
    is_unhealthy: AtomicBool,
    /// It does nothing before this time.
    thaws_ms: AtomicU64,
    /// It repeats the ids of requests in its responses.
    pub(super) repeats_ids: bool,
    connections: Mutex<Vec<ConnectionHandle>>,
    rng: Mutex<Rng>,
}

impl Host {
    pub(super) fn new(index: usize, rng: &mut Rng) -> Host {
        Host {
            name: format!("w{index}"),
            is_up: AtomicBool::new(true),
            is_unhealthy: AtomicBool::new(false),
            thaws_ms: AtomicU64::new(0),
            repeats_ids: rng.below(2) == 0,
            connections: Mutex::default(),
            rng: Mutex::new(Rng::new(rng.next_u64())),
        }
    }

    /// For one more connection.
    pub(super) fn next_seed(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    pub(super) fn connected(&self, connection: ConnectionHandle) {
        let mut connections = self.connections.lock();
        connections.retain(ConnectionHandle::is_peer_open);
        connections.push(connection);
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// Breaks all connections, and accepts no more.
    pub(super) fn crash(&self) {
        self.is_up.store(false, Relaxed);
        self.connections.lock().drain(..).for_each(|it| it.reset());
    }

    pub(super) fn restart(&self) {
        self.is_up.store(true, Relaxed);
    }

    pub(super) fn is_unhealthy(&self) -> bool {
        self.is_unhealthy.load(Relaxed)
    }

    pub(super) fn set_unhealthy(&self, is_unhealthy: bool) {
        self.is_unhealthy.store(is_unhealthy, Relaxed);
    }

    pub(super) fn freeze_until(&self, ms: u64) {
        self.thaws_ms.store(ms, Relaxed);
    }

    pub(super) fn is_frozen(&self, now_ms: u64) -> bool {
        self.frozen_for(now_ms).is_some()
    }

    /// How long it still does nothing.
    pub(super) fn frozen_for(&self, now_ms: u64) -> Option<Duration> {
        let left = self.thaws_ms.load(Relaxed).saturating_sub(now_ms);
        (left > 0).then_some(Duration::from_millis(left))
    }
}

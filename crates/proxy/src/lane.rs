//! What one thread serves requests with: the shared state, and connections to workers of its own.
//!
//! A client connection, its requests and their connections to workers all stay on the thread that accepted it, so a
//! request wakes no other core.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use crate::in_flight::LaneCounts;
use crate::state::RouterState;
use crate::upstreams::Upstreams;

pub(crate) struct Lane {
    pub(crate) state: Arc<RouterState>,
    pub(crate) upstreams: Upstreams,
    pub(crate) counts: Arc<LaneCounts>,
    /// What outlives its request for a moment: legs that a worker must not lose at once.
    pub(crate) tasks: TaskTracker,
}

impl Lane {
    pub(crate) fn new(state: Arc<RouterState>) -> Lane {
        let upstreams = Upstreams::new(state.tls.workers.clone(), state.settings.clone(), state.clock);
        let counts = state.recent.lanes.add();
        Lane { state, upstreams, counts, tasks: TaskTracker::new() }
    }
}

//! What a gateway that carries a request reports about it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use maitre_base::WorkerId;
use maitre_dispatch::{Event, Failure};
use maitre_fleet::Evidence;

use super::{RequestGuard, Scheduled};
use crate::brain::{Decision, SharedBrain, Waiter};
use crate::link::Link;

impl RequestGuard {
    pub(crate) fn brain(&self) -> &Arc<SharedBrain> {
        &self.lane.state.brain
    }

    /// The worker that the request is at, if any.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.scheduled.as_ref().and_then(Scheduled::link).cloned()
    }

    /// How long the request may take, from its arrival to the last byte.
    pub(crate) fn time_limit(&self) -> Duration {
        self.settings.timeouts.total
    }

    /// A gateway has sent the request to this worker instead of the one it was placed at, which failed.
    pub(in super::super) fn moved(&mut self, worker: WorkerId) {
        let state = &self.lane.state;
        let placed = self.scheduled.as_ref().and_then(Scheduled::link);
        if let Some(link) = placed {
            link.failed("the gateway sent a request elsewhere");
            link.tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        state.metrics.failed(Failure::Broke);
        if let Some(trace) = &mut self.trace {
            trace.failed(state.clock.now(), Failure::Broke);
        }
        if let Decision::Placed(placement) = state.brain.on(Event::Moved { request: self.number, worker }) {
            self.placed(placement);
        }
    }

    /// The worker answered with a failure that a gateway passes on: nothing more is promised there.
    pub(in super::super) fn passed_failure(&mut self, failure: Failure) {
        let state = &self.lane.state;
        state.metrics.failed(failure);
        let Some(scheduled) = &mut self.scheduled else { return };
        if let (Some((placement, link)), true) = (&scheduled.placed, scheduled.is_open) {
            if let Some(link) = link {
                link.tally.failures.fetch_add(1, Ordering::Relaxed);
            }
            if failure == Failure::Failed {
                state.brain.on(Event::Probed { worker: placement.worker, evidence: Evidence::Failed });
            }
            state.brain.on(Event::Left { request: self.number });
        }
        scheduled.is_open = false;
    }

    /// The request goes to its worker and cannot be taken back. Returns its place in the queue if that has just happened.
    pub(in super::super) fn hold_placement(&self) -> Option<Waiter> {
        let brain = &self.lane.state.brain;
        brain.on(Event::ResponseBegun { request: self.number });
        brain.take_recalled(self.number)
    }
}

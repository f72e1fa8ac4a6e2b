//! A second attempt of a request at another worker, while the first one is under way.
//!
//! Where the first token is overdue, the two compete: the first byte wins, and the other attempt is cancelled at once by
//! closing its connection. Where a drained worker hands a stream over, the second goes on with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use maitre_base::RequestId;
use maitre_dispatch::{Event, Placement, SecondCause};

use super::guard::RequestGuard;
use crate::brain::Decision;
use crate::lane::Lane;

/// A second attempt that the brain has placed. Dropped, it is over.
pub(super) struct SecondAttempt {
    lane: Arc<Lane>,
    pub(super) number: RequestId,
    pub(super) placement: Placement,
    is_over: bool,
}

impl SecondAttempt {
    /// Asks the brain for it. None: no other worker has room, or the budget is spent.
    pub(super) fn ask(guard: &RequestGuard, cause: SecondCause) -> Option<SecondAttempt> {
        let state = &guard.lane.state;
        let (request, number) = (guard.number, state.request_ids.second());
        let Decision::Placed(placement) = state.brain.on(Event::Second { request, number, cause }) else {
            return None;
        };
        state.request_ids.keep(number, &guard.id);
        state.metrics.picked(placement.why);
        if let Some(link) = state.brain.link(placement.worker) {
            link.tally.placed.fetch_add(1, Ordering::Relaxed);
        }
        Some(SecondAttempt { lane: guard.lane.clone(), number, placement, is_over: false })
    }

    /// The first attempt has answered.
    pub(super) fn lose(mut self, by: RequestId) {
        self.is_over = true;
        self.lane.state.brain.on(Event::Outpaced { request: self.number, by });
    }

    /// It is the request's attempt from now on.
    pub(super) fn win(mut self) -> (RequestId, Placement) {
        self.is_over = true;
        (self.number, self.placement)
    }
}

impl Drop for SecondAttempt {
    fn drop(&mut self) {
        if !self.is_over {
            self.lane.state.brain.on(Event::Left { request: self.number });
        }
    }
}

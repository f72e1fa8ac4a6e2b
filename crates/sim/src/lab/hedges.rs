//! Second attempts of requests whose first token is overdue: two entries of one request, until one of them answers.

use maitre_base::{Instant, RequestId};
use maitre_dispatch::{Event, SecondCause};

use super::Simulation;
use super::pending::PendingRequest;

/// The number of a second attempt is that of its request plus this.
const SECOND: u64 = 1 << 48;

/// The request that this number belongs to.
pub(super) const fn first_of(request: u64) -> u64 {
    request & (SECOND - 1)
}

/// The other attempt of the same request.
const fn other(request: u64) -> u64 {
    request ^ SECOND
}

impl Simulation<'_> {
    /// Time for a second attempt, unless the first has answered.
    pub(super) fn hedge(&mut self, now: Instant, request: u64) {
        let Some(pending) = self.pending.get(&request).filter(|it| it.first.is_none()) else { return };
        let (number, router, at, retries) = (pending.number, pending.router, pending.at, pending.retries);
        let second = other(request);
        // The event's dispatch places it, or it is never placed.
        self.pending.insert(second, PendingRequest { retries, ..PendingRequest::new(number, router, at) });
        let cause = SecondCause::Hedge;
        let event = Event::Second { request: RequestId(request), number: RequestId(second), cause };
        self.dispatch(router, now, event);
        match self.pending.get(&second) {
            Some(it) if it.attempt == 0 => drop(self.pending.remove(&second)),
            Some(_) => self.outcome.hedges += 1,
            None => {}
        }
    }

    /// This attempt answers, and the other one is cancelled.
    pub(super) fn outpace(&mut self, now: Instant, request: u64) {
        let loser = other(request);
        if !self.pending.contains_key(&loser) {
            return;
        }
        self.cancel(now, loser);
        let Some(pending) = self.pending.remove(&loser) else { return };
        let event = Event::Outpaced { request: RequestId(loser), by: RequestId(request) };
        self.dispatch(pending.router, now, event);
    }

    /// The router gave up on this attempt. Returns whether the other continues.
    pub(super) fn has_other(&self, request: u64) -> bool {
        self.pending.contains_key(&other(request))
    }
}

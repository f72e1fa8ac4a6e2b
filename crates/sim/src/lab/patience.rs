//! What becomes of a request that waits: its client is sent away and comes again, its time runs out, its worker has
//! to give it back.

use std::time::Duration;

use maitre_base::Instant;
use maitre_dispatch::{Event, Failure, Refusal};

use super::{Happens, Lab};

impl Lab<'_> {
    /// A router may want to know the time sooner than was foreseen.
    pub(super) fn foresee_due(&mut self, now: Instant, router: usize) {
        let Some(due) = self.routers[router].due().map(|it| it.max(now)) else { return };
        if self.due[router].is_none_or(|it| due < it) {
            self.due[router] = Some(due);
            self.foresee(due, Happens::Due { router });
        }
    }

    /// A router asked for this moment, and perhaps for an earlier one since.
    pub(super) fn be_due(&mut self, now: Instant, router: usize) {
        if self.due[router] != Some(now) {
            return;
        }
        self.due[router] = None;
        match self.routers[router].due() {
            // Something happened meanwhile, and it is not time yet.
            Some(due) if due > now => self.foresee_due(now, router),
            Some(_) => self.tell(router, now, Event::Tick),
            None => {}
        }
    }

    /// The router said no. A client that was told when to come again may do so.
    pub(super) fn turn_away(&mut self, now: Instant, request: u64, refusal: Refusal) {
        let retry_after = match refusal {
            Refusal::QueueFull { retry_after }
            | Refusal::RateLimited { retry_after }
            | Refusal::Deadline { retry_after } => Some(retry_after),
            _ => None,
        };
        let open = self.open.get_mut(&request).filter(|it| it.returns < self.settings.returns_max);
        match (open, retry_after) {
            (Some(open), Some(span)) => {
                open.returns += 1;
                open.trip += 1;
                open.job = None;
                // As the header says it.
                let seconds = span.as_millis().div_ceil(1_000).max(1) as u64;
                self.foresee(now + Duration::from_secs(seconds), Happens::Return { request });
            }
            _ => self.refuse(request),
        }
    }

    pub(super) fn come_again(&mut self, now: Instant, request: u64) {
        if let Some(open) = self.open.get_mut(&request) {
            open.at = now;
            self.outcome.returns += 1;
            self.ask(now, request);
        }
    }

    /// Its deadline is here: too late, unless its first token is out.
    pub(super) fn be_late(&mut self, now: Instant, request: u64) {
        if self.open.get(&request).is_some_and(|it| it.first.is_none()) {
            self.take_back(request);
            self.fail(now, request, Failure::Late);
        }
    }

    /// Breaks off what a worker was asked for.
    pub(super) fn take_back(&mut self, request: u64) {
        let Some(open) = self.open.get_mut(&request) else { return };
        open.trip += 1;
        if let Some(job) = open.job.take() {
            self.workers[open.worker.index()].engine.abort(job);
        }
    }
}

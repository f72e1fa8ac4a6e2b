//! Refusals, retries, deadlines and cancellation of requests.

use std::time::Duration;

use maitre_base::Instant;
use maitre_dispatch::{Event, Failure, Refusal};

use super::{SimEvent, Simulation};

impl Simulation<'_> {
    /// Schedules a wake-up if a router needs one earlier than scheduled.
    pub(super) fn schedule_wakeup(&mut self, now: Instant, router: usize) {
        let Some(due) = self.routers[router].due().map(|it| it.max(now)) else { return };
        if self.due[router].is_none_or(|it| due < it) {
            self.due[router] = Some(due);
            self.schedule(due, SimEvent::WakeUp { router });
        }
    }

    /// A router's wake-up, unless it was moved since.
    pub(super) fn wake_up(&mut self, now: Instant, router: usize) {
        if self.due[router] != Some(now) {
            return;
        }
        self.due[router] = None;
        match self.routers[router].due() {
            // The wake-up was postponed meanwhile.
            Some(due) if due > now => self.schedule_wakeup(now, router),
            Some(_) => self.dispatch(router, now, Event::Tick),
            None => {}
        }
    }

    /// The router refused a request. The client may retry if the refusal says when.
    pub(super) fn on_refusal(&mut self, now: Instant, request: u64, refusal: Refusal) {
        let retry_after = match refusal {
            Refusal::QueueFull { retry_after }
            | Refusal::RateLimited { retry_after, .. }
            | Refusal::Deadline { retry_after } => Some(retry_after),
            _ => None,
        };
        if self.has_other(request) {
            return self.refuse(now, request);
        }
        let pending = self.pending.get_mut(&request).filter(|it| it.retries < self.config.retries_max);
        match (pending, retry_after) {
            (Some(pending), Some(span)) => {
                pending.retries += 1;
                pending.attempt += 1;
                pending.job = None;
                // Rounded as in the `Retry-After` header.
                let seconds = span.as_millis().div_ceil(1_000).max(1) as u64;
                self.schedule(now + Duration::from_secs(seconds), SimEvent::Retry { request });
            }
            _ => self.refuse(now, request),
        }
    }

    pub(super) fn retry(&mut self, now: Instant, request: u64) {
        if let Some(pending) = self.pending.get_mut(&request) {
            pending.at = now;
            self.outcome.returns += 1;
            self.ask(now, request);
        }
    }

    /// A deadline fails the attempt, unless its first token has arrived.
    pub(super) fn on_deadline(&mut self, now: Instant, request: u64, failure: Failure) {
        if self.pending.get(&request).is_some_and(|it| it.first.is_none()) {
            self.cancel(now, request);
            self.fail(now, request, failure);
        }
    }

    /// Cancels the request on the worker that has it.
    pub(super) fn cancel(&mut self, now: Instant, request: u64) {
        let Some(pending) = self.pending.get_mut(&request) else { return };
        pending.attempt += 1;
        let worker = pending.worker_now().index();
        if let Some(job) = pending.job.take() {
            self.workers[worker].engine.abort(job);
            self.begin_fetches(now, worker);
        }
    }
}

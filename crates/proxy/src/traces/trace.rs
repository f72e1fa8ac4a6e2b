//! What a sampled request keeps for its spans, beyond what every request keeps.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use maitre_base::Instant;
use maitre_dialect::route::Route;
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Failure, Placement};

use super::Context;
use crate::link::Link;
use crate::outcome::RequestOutcome;
use crate::refuse::echo;

/// Attempts and queue waits kept of one request. The brain allows fewer attempts; a request that is recalled again and
/// again may have more, and loses the last ones.
const INTERVALS_MAX: usize = 16;

/// The error of an attempt that was recalled into the queue. It is not a fault.
pub(super) const RECALLED: &str = "recalled";

pub(crate) struct Trace {
    pub(super) context: Context,
    /// The caller's span.
    pub(super) parent: Option<u64>,
    pub(super) state: Option<String>,
    pub(super) method: Method,
    pub(super) path: Option<String>,
    pub(super) model: Option<String>,
    pub(super) status: Option<StatusCode>,
    pub(super) decide: Option<Interval>,
    pub(super) queue: Vec<Interval>,
    pub(super) attempts: Vec<TracedAttempt>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) from: Instant,
    /// None: until the end of the request.
    pub(super) to: Option<Instant>,
}

pub(super) struct TracedAttempt {
    pub(super) interval: Interval,
    pub(super) placement: Placement,
    pub(super) link: Arc<Link>,
    /// How it failed, or `RECALLED`.
    pub(super) error: Option<&'static str>,
}

/// What every request knows when it ends.
pub(crate) struct TraceEnding {
    pub(crate) id: HeaderValue,
    pub(crate) route: Option<Route>,
    pub(crate) outcome: RequestOutcome,
    pub(crate) usage: Option<Usage>,
    pub(crate) class: Option<String>,
    pub(crate) waited: Duration,
    pub(crate) arrived: Instant,
    pub(crate) ended: Instant,
    /// When the first and the last chunk of the response arrived.
    pub(crate) chunks: Option<(Instant, Instant)>,
}

/// The trace of a request that ended.
pub(crate) struct FinishedTrace {
    pub(super) trace: Box<Trace>,
    pub(super) ending: TraceEnding,
}

impl Trace {
    pub(super) fn new(
        context: Context,
        parent: Option<u64>,
        state: Option<String>,
        (method, path): (Method, Option<String>),
    ) -> Trace {
        Trace {
            context,
            parent,
            state,
            method,
            path,
            model: None,
            status: None,
            decide: None,
            queue: Vec::new(),
            attempts: Vec::new(),
        }
    }

    /// For the headers to workers.
    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The body is complete; from now on the request is parsed and placed.
    pub(crate) fn received(&mut self, now: Instant) {
        self.decide = Some(Interval { from: now, to: None });
    }

    pub(crate) fn decided(&mut self, now: Instant, model: Option<&str>) {
        self.model = model.map(echo);
        end(self.decide.as_mut(), now);
    }

    /// The request is queued; an attempt that was under way is over.
    pub(crate) fn queued(&mut self, now: Instant) {
        self.gave_up(now, RECALLED);
        if self.queue.len() < INTERVALS_MAX {
            self.queue.push(Interval { from: now, to: None });
        }
    }

    pub(crate) fn left_queue(&mut self, now: Instant) {
        end(self.queue.last_mut(), now);
    }

    pub(crate) fn placed(&mut self, now: Instant, placement: Placement, link: Arc<Link>) {
        if self.attempts.len() < INTERVALS_MAX {
            let interval = Interval { from: now, to: None };
            self.attempts.push(TracedAttempt { interval, placement, link, error: None });
        }
    }

    pub(crate) fn failed(&mut self, now: Instant, failure: Failure) {
        self.gave_up(now, failure.name());
    }

    fn gave_up(&mut self, now: Instant, error: &'static str) {
        if let Some(attempt) = self.attempts.last_mut().filter(|it| it.interval.to.is_none()) {
            attempt.interval.to = Some(now);
            attempt.error = Some(error);
        }
    }

    pub(crate) fn responded(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    pub(crate) fn finish(self: Box<Self>, ending: TraceEnding) -> FinishedTrace {
        FinishedTrace { trace: self, ending }
    }
}

fn end(interval: Option<&mut Interval>, now: Instant) {
    if let Some(interval) = interval.filter(|it| it.to.is_none()) {
        interval.to = Some(now);
    }
}

impl FinishedTrace {
    /// How many spans it has.
    pub(crate) fn spans(&self) -> usize {
        let Trace { decide, queue, attempts, .. } = &*self.trace;
        1 + usize::from(decide.is_some())
            + queue.len()
            + attempts.len()
            + usize::from(self.stream().is_some())
    }

    /// From the first chunk of a response to the last, if there was more than one, and its attempt.
    pub(super) fn stream(&self) -> Option<(Instant, Instant, &TracedAttempt)> {
        let (first, last) = self.ending.chunks.filter(|it| it.0 < it.1)?;
        Some((first, last, self.trace.attempts.last().filter(|it| it.error.is_none())?))
    }
}

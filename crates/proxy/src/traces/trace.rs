//! What a sampled visit keeps of its way, beyond what every visit knows.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use maitre_base::Instant;
use maitre_dialect::route::Route;
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Failure, Placement};

use super::Context;
use crate::link::Link;
use crate::metrics::Outcome;
use crate::refuse::echo;

/// Attempts and times in line that are kept of one request. The brain allows fewer attempts; only one that is called
/// back again and again has more, and loses the last.
const STEPS_MAX: usize = 16;

/// How an attempt ends that is wanted elsewhere, or later: the one end that is nobody's fault.
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
    pub(super) decide: Option<Step>,
    pub(super) queue: Vec<Step>,
    pub(super) attempts: Vec<Attempt>,
}

/// Something that takes time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: Instant,
    /// None: until the end of all.
    pub(super) to: Option<Instant>,
}

pub(super) struct Attempt {
    pub(super) step: Step,
    pub(super) placement: Placement,
    pub(super) link: Arc<Link>,
    /// How it failed, or `RECALLED`.
    pub(super) error: Option<&'static str>,
}

/// What every visit knows when it is over.
pub(crate) struct Ending {
    pub(crate) id: HeaderValue,
    pub(crate) route: Option<Route>,
    pub(crate) outcome: Outcome,
    pub(crate) usage: Option<Usage>,
    pub(crate) class: Option<String>,
    pub(crate) waited: Duration,
    pub(crate) arrived: Instant,
    pub(crate) ended: Instant,
    /// When the first and the last piece of the answer came.
    pub(crate) pieces: Option<(Instant, Instant)>,
}

/// A request that is over.
pub(crate) struct Record {
    pub(super) trace: Box<Trace>,
    pub(super) ending: Ending,
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

    /// For the requests to workers.
    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The request is here, whole: from now on it is read and decided about.
    pub(crate) fn read(&mut self, now: Instant) {
        self.decide = Some(Step { from: now, to: None });
    }

    pub(crate) fn decided(&mut self, now: Instant, model: Option<&str>) {
        self.model = model.map(echo);
        end(self.decide.as_mut(), now);
    }

    /// It stands in line; whatever was tried is over.
    pub(crate) fn queued(&mut self, now: Instant) {
        self.gave_up(now, RECALLED);
        if self.queue.len() < STEPS_MAX {
            self.queue.push(Step { from: now, to: None });
        }
    }

    pub(crate) fn left_line(&mut self, now: Instant) {
        end(self.queue.last_mut(), now);
    }

    pub(crate) fn seated(&mut self, now: Instant, placement: Placement, link: Arc<Link>) {
        if self.attempts.len() < STEPS_MAX {
            let step = Step { from: now, to: None };
            self.attempts.push(Attempt { step, placement, link, error: None });
        }
    }

    pub(crate) fn failed(&mut self, now: Instant, failure: Failure) {
        self.gave_up(now, failure.name());
    }

    fn gave_up(&mut self, now: Instant, error: &'static str) {
        if let Some(attempt) = self.attempts.last_mut().filter(|it| it.step.to.is_none()) {
            attempt.step.to = Some(now);
            attempt.error = Some(error);
        }
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    pub(crate) fn end(self: Box<Self>, ending: Ending) -> Record {
        Record { trace: self, ending }
    }
}

fn end(step: Option<&mut Step>, now: Instant) {
    if let Some(step) = step.filter(|it| it.to.is_none()) {
        step.to = Some(now);
    }
}

impl Record {
    /// How many spans it is.
    pub(crate) fn spans(&self) -> usize {
        let Trace { decide, queue, attempts, .. } = &*self.trace;
        1 + usize::from(decide.is_some())
            + queue.len()
            + attempts.len()
            + usize::from(self.stream().is_some())
    }

    /// From the first piece of an answer to the last, if there was more than one, and at whose attempt.
    pub(super) fn stream(&self) -> Option<(Instant, Instant, &Attempt)> {
        let (first, last) = self.ending.pieces.filter(|it| it.0 < it.1)?;
        Some((first, last, self.trace.attempts.last().filter(|it| it.error.is_none())?))
    }
}

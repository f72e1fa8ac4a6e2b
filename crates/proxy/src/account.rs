//! The answer's body on its way out: every byte passes untouched, and is counted as it passes.
//!
//! A piece costs a look at its ends, a search for `"usage"` and one reading of the clock; nothing is
//! copied and nothing is parsed. Back-pressure is free: a client that does not read is not polled for,
//! so the worker is not read from either.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::HeaderValue;
use http_body::{Body, Frame, SizeHint};
use maitre_dialect::failure::Failure;
use maitre_dialect::sse::Tracker;
use maitre_dialect::usage::Finder;
use maitre_net::upstream::Upstream;
use maitre_net::wake_gate::Gated;
use tokio::time::Sleep;

use crate::admin::decisions;
use crate::forward::{Begun, streams};
use crate::headers;
use crate::link::Link;
use crate::metrics::Outcome;
use crate::refuse::outcome;
use crate::visit::RequestGuard;

/// The body of a response: ours, whole; or a worker's, as it comes.
pub(crate) enum Out {
    Whole(Bytes),
    Answer(Box<Answer>),
}

pub(crate) struct Answer {
    visit: RequestGuard,
    link: Arc<Link>,
    /// None once the answer is over.
    line: Option<Upstream>,
    first: Option<Bytes>,
    /// Only for event streams.
    events: Option<Tracker>,
    usage: Option<Finder>,
    /// What it counts as when it is complete.
    outcome: Outcome,
    /// Armed while we wait for the worker.
    patience: Option<Gated<Sleep>>,
}

/// A worker's answer broke off where we can say so only by breaking off too.
#[derive(Debug, thiserror::Error)]
#[error("the worker's answer broke off")]
pub(crate) struct BrokeOff;

/// Dresses an answer that has begun for the client.
pub(crate) fn answer(mut visit: RequestGuard, begun: Begun) -> Response<Out> {
    let Begun { placement, link, line, mut head, first } = begun;
    headers::strip_hop_by_hop(&mut head.headers);
    let extra = &mut head.headers;
    extra.insert(headers::REQUEST_ID, visit.id.clone());
    visit.tell_queued(extra);
    if visit.settings.explain {
        extra.insert(headers::WORKER, link.name.clone());
        extra.insert(headers::WHY, HeaderValue::from_static(placement.why.name()));
        if let Some(held) = placement.held {
            extra.insert(headers::HELD, HeaderValue::from(held.0));
        }
    }
    if visit.explains
        && let Some(explained) = explained(&visit)
    {
        extra.insert(headers::EXPLAIN, explained);
    }
    visit.answered(head.status);
    let events = visit.route.filter(|_| streams(extra)).map(Tracker::new);
    let usage = visit.route.map(Finder::new);
    let outcome = outcome(head.status);
    let mut answer = Answer { visit, link, line: Some(line), first, events, usage, outcome, patience: None };
    if let Some(first) = answer.first.take() {
        answer.pass(&first);
        answer.first = Some(first);
    } else {
        answer.finish();
    }
    let mut response = Response::new(Out::Answer(Box::new(answer)));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

fn explained(visit: &RequestGuard) -> Option<HeaderValue> {
    let house = &visit.lane.house;
    let decision = house.look(|brain| brain.decisions().of(visit.request).cloned())?;
    HeaderValue::from_str(&decisions::compact(house, &decision)).ok()
}

impl Answer {
    /// Counts a piece on its way.
    fn pass(&mut self, data: &Bytes) {
        let now = self.visit.lane.house.now();
        self.link.hear(now);
        if let Some(usage) = &mut self.usage {
            usage.feed(data);
        }
        // Comments keep a connection alive; they are no tokens.
        if self.events.as_mut().is_none_or(|it| it.feed(data)) {
            self.visit.piece(now, self.outcome);
        }
        // One that was cut short is left for the next poll, which says so.
        if self.line.as_mut().is_some_and(Upstream::is_complete) && !self.is_cut() {
            self.finish();
        }
    }

    /// The worker has sent all it will send.
    fn finish(&mut self) {
        let Some(line) = self.line.take() else { return };
        self.visit.usage = self.usage.take().and_then(Finder::finish);
        let whole = self.events.as_ref().is_none_or(Tracker::ended);
        self.visit.outcome = if whole { self.outcome } else { Outcome::Broke };
        let lane = &self.visit.lane;
        lane.pool.put(lane.house.now(), self.link.serial, line);
    }

    /// Whether an event stream has had its end mark, whatever becomes of the connection.
    fn has_ended(&self) -> bool {
        self.events.as_ref().is_some_and(Tracker::ended)
    }

    /// Whether an event stream stops where no event stream ends. One that told of a failure itself does.
    fn is_cut(&self) -> bool {
        self.events.as_ref().is_some_and(|it| !it.ended() && !it.failed())
    }

    /// The answer ends here, in the middle. An event stream ends with an event that says so, and without
    /// its end mark; anything else breaks off, for there is no way to say it.
    fn fail(&mut self, outcome: Outcome) -> Option<Result<Frame<Bytes>, BrokeOff>> {
        self.line = None;
        self.visit.outcome = outcome;
        let Some(events) = &self.events else { return Some(Err(BrokeOff)) };
        let failure = match outcome {
            Outcome::Stalled => Failure::server("worker_stalled", "the worker stopped answering"),
            Outcome::Overdue => Failure::server("timed_out", "the answer took longer than is allowed here"),
            _ => Failure::server("worker_failed", "the worker failed before the answer was complete"),
        };
        Some(Ok(Frame::data(Bytes::from(events.failure_event(&failure)))))
    }

    /// Whether the last piece already came too late. No look at the clock: `pass` has had one.
    fn is_overdue(&self) -> bool {
        self.visit.last().since(self.visit.arrived) >= self.visit.settings.timeouts.total
    }

    /// How long the worker may stay silent now, counted from what it last said.
    fn limit(&self) -> Duration {
        let timeouts = &self.visit.settings.timeouts;
        match &self.events {
            Some(_) if self.visit.has_begun() => timeouts.inter_token,
            Some(_) => timeouts.first_token,
            None => timeouts.headers,
        }
    }

    /// Whether it is time to give up, and as what. One timer a stream: it is not moved by each piece, but
    /// when it rings, by as much as was left when the last piece came.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            if let Some(timer) = &mut self.patience {
                ready!(Pin::new(timer).poll(cx));
            }
            let house = &self.visit.lane.house;
            let now = house.now();
            let silence_left = self.limit().saturating_sub(now.since(self.visit.last()));
            let time_left = self.visit.settings.timeouts.total.saturating_sub(now.since(self.visit.arrived));
            match silence_left.min(time_left) {
                Duration::ZERO if time_left.is_zero() => return Poll::Ready(Outcome::Overdue),
                Duration::ZERO => return Poll::Ready(Outcome::Stalled),
                left => self.patience = Some(Gated::new(tokio::time::sleep(left))),
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(line) = &mut self.line else { return Poll::Ready(None) };
        match line.poll_chunk(cx) {
            // With a slow client there is always more to read, and patience is never asked.
            Poll::Ready(Some(Ok(_))) if self.is_overdue() => Poll::Ready(self.fail(Outcome::Overdue)),
            Poll::Ready(Some(Ok(data))) => {
                self.pass(&data);
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            // All of it is here: only the frame around it was lost.
            Poll::Ready(Some(Err(_))) if self.has_ended() => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.fail(Outcome::Broke)),
            Poll::Ready(None) if self.is_cut() => Poll::Ready(self.fail(Outcome::Broke)),
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending => match ready!(self.poll_patience(cx)) {
                Outcome::Stalled if self.has_ended() => {
                    self.finish();
                    Poll::Ready(None)
                }
                outcome => Poll::Ready(self.fail(outcome)),
            },
        }
    }
}

impl Body for Out {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        match self.get_mut() {
            Out::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Out::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Out::Answer(answer) => answer.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Out::Whole(bytes) => bytes.is_empty(),
            Out::Answer(answer) => answer.first.is_none() && answer.line.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Out::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Out::Answer(answer) => {
                let held = answer.first.as_ref().map_or(0, |it| it.len() as u64);
                let left = answer.line.as_ref().map_or(Some(0), Upstream::bytes_left);
                left.map_or_else(SizeHint::new, |left| SizeHint::with_exact(left + held))
            }
        }
    }
}

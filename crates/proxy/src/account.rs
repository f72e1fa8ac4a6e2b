//! The answer's body on its way out: every byte passes untouched, and is counted as it passes.
//!
//! A piece costs a look at its ends, a search for `"usage"` and one reading of the clock; nothing is
//! copied and nothing is parsed. Back-pressure is free: a client that does not read is not polled for,
//! so the worker is not read from either.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use maitre_dialect::failure::Failure;
use maitre_dialect::sse::Tracker;
use maitre_dialect::usage::Finder;
use tokio::time::Sleep;

use crate::forward::Begun;
use crate::headers;
use crate::line::Line;
use crate::link::Link;
use crate::metrics::Outcome;
use crate::visit::Visit;

/// The body of a response: ours, whole; or a worker's, as it comes.
pub(crate) enum Out {
    Whole(Bytes),
    Answer(Box<Answer>),
}

pub(crate) struct Answer {
    visit: Visit,
    link: Arc<Link>,
    /// None once the answer is over.
    line: Option<Line>,
    body: Incoming,
    first: Option<Bytes>,
    /// Only for event streams.
    events: Option<Tracker>,
    usage: Option<Finder>,
    /// Armed while we wait for the worker.
    patience: Option<Pin<Box<Sleep>>>,
}

/// A worker's answer broke off where we can say so only by breaking off too.
#[derive(Debug, thiserror::Error)]
#[error("the worker's answer broke off")]
pub(crate) struct BrokeOff;

/// Dresses an answer that has begun for the client.
pub(crate) fn answer(visit: Visit, begun: Begun) -> Response<Out> {
    let Begun { seat, link, line, mut head, first, body } = begun;
    headers::strip_hop_by_hop(&mut head.headers);
    let extra = &mut head.headers;
    extra.insert(headers::REQUEST_ID, visit.id.clone());
    if visit.lane.house.settings.explain {
        extra.insert(headers::WORKER, link.name.clone());
        extra.insert(headers::WHY, HeaderValue::from_static(seat.why.name()));
    }
    let events = visit.route.filter(|_| streams(extra)).map(Tracker::new);
    let usage = visit.route.map(Finder::new);
    let mut answer = Answer { visit, link, line: Some(line), body, first, events, usage, patience: None };
    if let Some(first) = answer.first.take() {
        answer.pass(&first);
        answer.first = Some(first);
    } else {
        answer.finish();
    }
    Response::from_parts(head, Out::Answer(Box::new(answer)))
}

fn streams(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"text/event-stream"))
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
            self.visit.piece(now);
        }
        if self.body.is_end_stream() {
            self.finish();
        }
    }

    /// The worker has sent all it will send.
    fn finish(&mut self) {
        let Some(line) = self.line.take() else { return };
        self.visit.usage = self.usage.take().and_then(Finder::finish);
        let whole = self.events.as_ref().is_none_or(Tracker::ended);
        self.visit.outcome = if whole { Outcome::Answered } else { Outcome::Broke };
        let lane = &self.visit.lane;
        lane.pool.put(lane.house.now(), self.link.worker, line);
    }

    /// The worker failed in the middle. An event stream ends with an event that says so, and without
    /// its end mark; anything else breaks off, for there is no way to say it.
    fn fail(&mut self, outcome: Outcome) -> Option<Result<Frame<Bytes>, BrokeOff>> {
        self.line = None;
        self.visit.outcome = outcome;
        let Some(events) = &self.events else { return Some(Err(BrokeOff)) };
        let failure = match outcome {
            Outcome::Stalled => Failure::server("worker_stalled", "the worker stopped answering"),
            _ => Failure::server("worker_failed", "the worker failed before the answer was complete"),
        };
        Some(Ok(Frame::data(Bytes::from(events.failure_event(&failure)))))
    }

    /// How long the worker may stay silent now, counted from what it last said.
    fn limit(&self) -> Duration {
        let timeouts = &self.visit.lane.house.settings.timeouts;
        match &self.events {
            Some(_) if self.visit.has_begun() => timeouts.inter_token,
            Some(_) => timeouts.first_token,
            None => timeouts.headers,
        }
    }

    /// Whether the worker has been silent for too long. One timer a stream: it is not moved by each
    /// piece, but when it rings, by as much as was left when the last piece came.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let house = &self.visit.lane.house;
            let silence = house.now().since(self.visit.last());
            let lifetime = house.now().since(self.visit.arrived);
            let left = self.limit().saturating_sub(silence);
            let left = left.min(house.settings.timeouts.total.saturating_sub(lifetime));
            if left.is_zero() {
                return true;
            }
            let timer = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            match timer.as_mut().poll(cx) {
                Poll::Pending => return false,
                Poll::Ready(()) => self.patience = None,
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(line) = &mut self.line else { return Poll::Ready(None) };
        match line.poll_body(&mut self.body, cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.pass(&data.clone());
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.fail(Outcome::Broke)),
            Poll::Ready(None) if self.events.as_ref().is_some_and(|it| !it.ended()) => {
                Poll::Ready(self.fail(Outcome::Broke))
            }
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending if self.poll_patience(cx) => Poll::Ready(self.fail(Outcome::Stalled)),
            Poll::Pending => Poll::Pending,
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
                answer
                    .body
                    .size_hint()
                    .exact()
                    .map_or_else(SizeHint::new, |it| SizeHint::with_exact(it + held))
            }
        }
    }
}

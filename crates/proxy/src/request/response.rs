//! The last stage: the response's body streams to the client. Every byte passes unchanged, and is counted as it passes.
//!
//! A chunk costs a look at its ends, a search for `"usage"` and one reading of the clock; nothing is copied and nothing
//! is parsed. Back-pressure is free: a client that does not read is not polled for, so the worker is not read from.
//!
//! A stream that can go on at another worker (`continuation`) passes event by event, without the token ids that it was
//! asked for.

mod continuation;
mod hand_over;
mod whole_character;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use maitre_base::Instant;
use maitre_dialect::continuation::Flow;
use maitre_dialect::failure::Failure;
use maitre_dialect::sse::Tracker;
use maitre_dispatch::Placement;
use maitre_net::upstream::Upstream;
use maitre_net::wake_gate::Gated;
use tokio::time::Sleep;

use super::exchange::StartedResponse;
use super::guard::RequestGuard;
use super::reader::ResponseReader;
use crate::client::streams::{self, CHUNK_BYTES_MAX};
use crate::explain;
use crate::headers;
use crate::link::{Link, TokenIdReply};
use crate::outcome::RequestOutcome;
pub(super) use continuation::Cover;
use continuation::{Continuation, Continuing};

/// The body of a response: the router's own, complete; or a worker's, as it arrives.
pub(crate) enum ResponseBody {
    Whole(Bytes),
    Stream(Box<ResponseStream>),
    /// A worker's, which has failed, while another is asked to go on.
    Continuing(Continuing),
}

pub(crate) struct ResponseStream {
    guard: Box<RequestGuard>,
    link: Arc<Link>,
    /// None once the response has ended.
    upstream: Option<Box<Upstream>>,
    /// Counted, and not yet given to the client: the first chunk, or the rest of a long one.
    ready: Option<Bytes>,
    reader: ResponseReader,
    /// Set while we wait for the worker.
    timer: Option<Gated<Sleep>>,
    /// The response breaks off, once everything before is sent.
    is_broken: bool,
    /// None if the response ends with its worker.
    continuation: Option<Box<Continuation>>,
    /// What the last chunk says of the stream, besides its text. The next poll acts on that.
    flow: Flow,
}

/// What comes next of a stream.
enum Next {
    Chunk(Bytes),
    End,
    BreakOff,
    /// The worker failed, as this outcome says, and the client has this many tokens: another worker can go on.
    Continue(RequestOutcome, u64),
    /// The request is to be sent again as the client wrote it.
    SendPlain,
    /// The worker is drained: another one should go on.
    HandOver,
}

/// The worker's response broke off, and the only way to say so is to break off, too.
#[derive(Debug, thiserror::Error)]
#[error("the worker's response broke off")]
pub(crate) struct BrokeOff;

/// The response to the client, with our headers. `explain`: with the whole decision in one of them.
pub(super) fn stream(
    mut guard: Box<RequestGuard>,
    started: Box<StartedResponse>,
    cover: Cover,
    explain: bool,
) -> Response<ResponseBody> {
    let StartedResponse { placement, form, link, upstream, sent, mut head, is_stream, first } = *started;
    guard.sent(sent);
    headers::toward_client(&mut head.headers);
    let added = &mut head.headers;
    add_headers(&guard, (&placement, &link), explain, added);
    let reader = ResponseReader::new(&mut guard, head.status, is_stream);
    let outcome = reader.outcome;
    let mut continuation = None;
    if reader.events.is_some() && outcome == RequestOutcome::Answered {
        continuation = cover.begin(&guard, (&link, form), added).map(Box::new);
    }
    if reader.events.is_some() {
        // It may end with an event more than the worker announced.
        added.remove(CONTENT_LENGTH);
    }
    let upstream = Some(upstream);
    let mut stream = ResponseStream {
        guard,
        link,
        upstream,
        ready: None,
        reader,
        timer: None,
        is_broken: false,
        continuation,
        flow: Flow::On,
    };
    if outcome == RequestOutcome::Answered {
        stream.guard.note_state(&stream.link, first.as_deref().unwrap_or_default());
    }
    match first {
        Some(first) => {
            stream.ready = stream.take(first);
            stream.guard.response_begun(outcome);
        }
        None => stream.finish(),
    }
    let mut response = Response::new(ResponseBody::Stream(Box::new(stream)));
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

/// Adds to a worker's response what the router says about it.
pub(super) fn add_headers(
    guard: &RequestGuard,
    (placement, link): (&Placement, &Link),
    explain: bool,
    added: &mut HeaderMap,
) {
    added.insert(headers::REQUEST_ID, guard.id.clone());
    guard.add_queue_time(added);
    guard.add_budgets(added);
    if guard.settings.explain {
        // The network behind the router is not the business of every tenant.
        if guard.is_trusted {
            added.insert(headers::WORKER, link.name.clone());
            if let Some(prefill) = placement.prefill.and_then(|it| guard.lane.state.brain.link(it)) {
                added.insert(headers::PREFILL_WORKER, prefill.name.clone());
            }
            if let Some(source) = placement.pull.and_then(|it| guard.lane.state.brain.link(it.worker)) {
                added.insert(headers::PULL_WORKER, source.name.clone());
            }
        }
        added.insert(headers::WHY, HeaderValue::from_static(placement.why.name()));
        if let Some(expected) = placement.held {
            added.insert(headers::CACHED_TOKENS, HeaderValue::from(expected.0));
        }
    }
    if guard.settings.explain
        && let Some(hedged) = guard.hedged
    {
        added.insert(headers::HEDGE, HeaderValue::from_static(hedged.name()));
    }
    if explain && let Some(decision) = decision_header(guard) {
        added.insert(headers::EXPLAIN, decision);
    }
}

fn decision_header(guard: &RequestGuard) -> Option<HeaderValue> {
    let brain = &guard.lane.state.brain;
    let decision = brain.read(|brain| brain.decisions().of(guard.number).cloned())?;
    HeaderValue::from_str(&explain::header_text(brain, &decision)).ok()
}

impl ResponseStream {
    /// Takes a chunk of the worker's, and counts what the client gets of it, if it gets anything.
    fn take(&mut self, chunk: Bytes) -> Option<Bytes> {
        let given = match &mut self.continuation {
            None => chunk,
            Some(continuation) => {
                let (given, flow) = continuation.feed(&chunk);
                self.flow = flow;
                given
            }
        };
        if given.is_empty() {
            let now = self.guard.lane.state.clock.now();
            self.link.hear(now);
            self.guard.heard(now);
            return None;
        }
        self.count(&given);
        if self.flow == Flow::Ended {
            self.end_at_stop();
        }
        Some(given)
    }

    /// Counts a chunk that goes to the client.
    fn count(&mut self, chunk: &Bytes) {
        self.reader.feed(&mut self.guard, &self.link, chunk);
        // A stream that was cut off is left for the next poll, which reports it.
        if self.upstream.as_mut().is_some_and(|it| it.is_complete()) && !self.is_cut_off() {
            // Its last bytes have just been heard.
            self.finish_at(self.reader.heard);
        }
    }

    /// The worker has sent everything.
    fn finish(&mut self) {
        self.finish_at(self.guard.lane.state.clock.now());
    }

    fn finish_at(&mut self, now: Instant) {
        let Some(upstream) = self.upstream.take() else { return };
        self.guard.used(self.reader.take_usage());
        if let (Some(it), Some(route)) = (&self.continuation, self.guard.route())
            && it.obstacle().is_none()
        {
            self.link.note_token_ids(route, TokenIdReply::Sent);
        }
        self.ends_as(self.reader.outcome_at_end());
        self.guard.lane.upstreams.put_at(now, &self.link, upstream);
    }

    /// How the request ends.
    fn ends_as(&mut self, outcome: RequestOutcome) {
        self.note_failure(outcome);
        self.guard.ends_as(outcome);
    }

    /// A failure of the worker counts, and is kept as the reason if it becomes unhealthy for it.
    fn note_failure(&self, outcome: RequestOutcome) {
        match outcome {
            RequestOutcome::Broke => self.link.failed("a response broke off in the middle"),
            RequestOutcome::Stalled => {
                self.link.failed(format!("a response stalled for {:?}", self.silence_limit()));
            }
            _ => return,
        }
        self.link.tally.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether an event stream has had its end mark, whatever happens to the connection.
    fn has_ended(&self) -> bool {
        self.reader.events.as_ref().is_some_and(Tracker::ended)
    }

    /// Whether an event stream stopped without its end mark. One that reported a failure itself needs none.
    fn is_cut_off(&self) -> bool {
        self.reader.events.as_ref().is_some_and(|it| !it.ended() && !it.failed())
    }

    /// Ends the response in the middle. An event stream gets a last event that reports the failure, and no end mark; any
    /// other response breaks off, because there is no other way to report it.
    fn fail(&mut self, outcome: RequestOutcome, cx: &Context<'_>) -> Poll<Next> {
        self.upstream = None;
        self.ends_as(outcome);
        match self.failure_event(outcome) {
            Some(event) => Poll::Ready(Next::Chunk(event)),
            None => {
                // At the next poll. hyper drops what it has not sent when a body fails, and a client that gets nothing at
                // all cannot tell this from a request that was never received.
                self.is_broken = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn failure_event(&self, outcome: RequestOutcome) -> Option<Bytes> {
        let failure = match outcome {
            RequestOutcome::Stalled => Failure::server("worker_stalled", "the worker stopped responding"),
            RequestOutcome::Overdue => Failure::server("timed_out", "the response exceeded the time limit"),
            _ => Failure::server("worker_failed", "the worker failed before the response was complete"),
        };
        self.reader.events.as_ref().map(|it| Bytes::from(it.failure_event(&failure)))
    }

    /// Ends the response because the worker is out of time. One that has sent all its events is only late to close.
    fn end_late(&mut self, outcome: RequestOutcome, cx: &Context<'_>) -> Poll<Next> {
        match outcome {
            RequestOutcome::Stalled if self.has_ended() => {
                self.finish();
                Poll::Ready(Next::End)
            }
            RequestOutcome::Stalled => self.break_off(outcome, cx),
            outcome => self.fail(outcome, cx),
        }
    }

    /// Whether the worker was out of time when it last sent anything, and with what outcome: what it sends may be comments alone.
    /// Does not read the clock: `feed` has.
    fn overdue(&self) -> Option<RequestOutcome> {
        let heard = self.reader.heard;
        if heard.since(self.guard.arrived) >= self.guard.settings.timeouts.total {
            return Some(RequestOutcome::Overdue);
        }
        (heard.since(self.guard.last_activity()) >= self.silence_limit()).then_some(RequestOutcome::Stalled)
    }

    /// How long the worker may stay silent, from its last chunk.
    fn silence_limit(&self) -> Duration {
        let timeouts = &self.guard.settings.timeouts;
        match &self.reader.events {
            Some(_) if self.guard.has_chunks() => timeouts.inter_token,
            Some(_) => timeouts.first_token,
            None => timeouts.headers,
        }
    }

    /// Ready when it is time to give up, with the outcome. One timer a stream: a chunk does not reset it. When it fires,
    /// it is set again for what was left when the last chunk came.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<RequestOutcome> {
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(Pin::new(timer).poll(cx));
            }
            let now = self.guard.lane.state.clock.now();
            let silence = now.since(self.guard.last_activity());
            let silence_left = self.silence_limit().saturating_sub(silence);
            let total = self.guard.settings.timeouts.total;
            let total_left = total.saturating_sub(now.since(self.guard.arrived));
            match silence_left.min(total_left) {
                Duration::ZERO if total_left.is_zero() => return Poll::Ready(RequestOutcome::Overdue),
                Duration::ZERO => return Poll::Ready(RequestOutcome::Stalled),
                left => self.timer = Some(Gated::new(tokio::time::sleep(left))),
            }
        }
    }

    /// A chunk for the client. A long one goes to an HTTP/2 client in pieces: a client that takes a piece is not stalled.
    fn give(&mut self, mut chunk: Bytes) -> Frame<Bytes> {
        if chunk.len() > CHUNK_BYTES_MAX && self.guard.is_http2() {
            self.ready = Some(chunk.split_off(CHUNK_BYTES_MAX));
        }
        Frame::data(chunk)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        loop {
            if let Some(ready) = self.ready.take() {
                return Poll::Ready(Next::Chunk(ready));
            }
            if self.is_broken {
                return Poll::Ready(Next::BreakOff);
            }
            match std::mem::replace(&mut self.flow, Flow::On) {
                Flow::On | Flow::Ended => {}
                Flow::Broken => return self.break_off(RequestOutcome::Broke, cx),
                Flow::Unfit => return Poll::Ready(Next::SendPlain),
            }
            let Some(upstream) = &mut self.upstream else { return Poll::Ready(Next::End) };
            if let Some(continuation) = &mut self.continuation
                && continuation.poll_hand_over(cx).is_ready()
            {
                return Poll::Ready(Next::HandOver);
            }
            match upstream.poll_chunk(cx) {
                Poll::Ready(Some(Ok(chunk))) => match self.overdue() {
                    None => {
                        if let Some(given) = self.take(chunk) {
                            return Poll::Ready(Next::Chunk(given));
                        }
                    }
                    // With a slow client, or a worker that floods, there is always more to read, and the timer is never polled.
                    Some(outcome) => return self.end_late(outcome, cx),
                },
                // All events have arrived; only the framing around them was lost.
                Poll::Ready(Some(Err(_))) if self.has_ended() => self.finish(),
                Poll::Ready(Some(Err(_))) => return self.break_off(RequestOutcome::Broke, cx),
                Poll::Ready(None) if self.is_cut_off() => return self.break_off(RequestOutcome::Broke, cx),
                Poll::Ready(None) => self.finish(),
                Poll::Pending => {
                    let outcome = ready!(self.poll_timer(cx));
                    return self.end_late(outcome, cx);
                }
            }
        }
    }
}

impl ResponseBody {
    /// The stream gets its next chunk from another response.
    fn continue_by(&mut self, from: impl FnOnce(Box<ResponseStream>) -> Continuing) {
        let nothing = ResponseBody::Whole(Bytes::new());
        if let ResponseBody::Stream(stream) = std::mem::replace(self, nothing) {
            *self = ResponseBody::Continuing(from(stream));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        loop {
            match self {
                ResponseBody::Whole(bytes) if bytes.is_empty() => return Poll::Ready(None),
                ResponseBody::Whole(bytes) => {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
                }
                ResponseBody::Stream(stream) => match ready!(stream.poll(cx)) {
                    Next::Chunk(chunk) => return Poll::Ready(Some(Ok(stream.give(chunk)))),
                    Next::End => return Poll::Ready(None),
                    Next::BreakOff => return Poll::Ready(Some(Err(BrokeOff))),
                    Next::Continue(outcome, tokens) => {
                        self.continue_by(|it| continuation::go_on(it, outcome, tokens));
                    }
                    Next::SendPlain => self.continue_by(continuation::send_plain),
                    Next::HandOver => self.continue_by(hand_over::hand_over),
                },
                ResponseBody::Continuing(continuing) => {
                    let stream = ready!(continuing.as_mut().poll(cx));
                    *self = ResponseBody::Stream(stream);
                }
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokeOff>>> {
        let frame = self.get_mut().poll(cx);
        streams::polled(&frame);
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Whole(bytes) => bytes.is_empty(),
            ResponseBody::Stream(stream) => {
                stream.ready.is_none() && stream.upstream.is_none() && !stream.is_broken
            }
            ResponseBody::Continuing(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Stream(stream) if stream.reader.events.is_some() => SizeHint::new(),
            ResponseBody::Continuing(_) => SizeHint::new(),
            ResponseBody::Stream(stream) => {
                let held = stream.ready.as_ref().map_or(0, |it| it.len() as u64);
                let left = stream.upstream.as_ref().map_or(Some(0), |it| it.bytes_left());
                left.map_or_else(SizeHint::new, |left| SizeHint::with_exact(left + held))
            }
        }
    }
}

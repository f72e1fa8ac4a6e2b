//! A stream whose worker fails in the middle goes on at another one, and its client does not notice.
//!
//! The brain places the rest of it like a request, within its limits. While that takes its time, the client sees nothing.
//! If no worker goes on, the stream ends as it would have without this.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderValue};
use maitre_dialect::continuation::{Break, ContinuableStream, Flow, Obstacle, serves};
use maitre_dialect::engine::EngineKind;
use maitre_dispatch::{Event, Failure, Placement, Refusal};
use maitre_fleet::Evidence;
use maitre_net::wake_gate::Gated;
use tracing::debug;

use super::super::arrive::Arrived;
use super::super::coverage::Coverage;
use super::super::exchange::{Outbound, StartedResponse, interrupted, send};
use super::super::guard::RequestGuard;
use super::super::place::{BodyRewrite, Leg, LegForm, Placed};
use super::whole_character::end_at_character;
use super::{Next, ResponseStream};
use crate::headers;
use crate::lane::Lane;
use crate::link::{Link, TokenIdReply};
use crate::metrics::{Continued, Metrics};
use crate::outcome::RequestOutcome;
use crate::refuse::judge;
use crate::token_memory::TokenReservation;

/// What is set aside for a stream's chunks on their way to the client. Chosen: several ordinary events.
const GIVEN_BYTES: usize = 2 << 10;

/// What a stream needs to go on elsewhere, before it has begun.
pub(crate) enum Cover {
    Off,
    Uncovered(Obstacle),
    Covered(Box<CoveredRequest>),
}

/// A request that can be sent again.
pub(crate) struct CoveredRequest {
    /// None once the stream cannot be continued: its body is not kept for nothing.
    pub(super) arrived: Option<Arc<Arrived>>,
    pub(super) rewrite: BodyRewrite,
    pub(super) stream: ContinuableStream,
}

/// A stream that can go on at another worker.
pub(super) struct Continuation {
    pub(super) request: CoveredRequest,
    memory: TokenReservation,
    metrics: Arc<Metrics>,
    pub(super) hand_over: HandOverSignal,
    /// What the client gets of one chunk, and the memory that its chunks are slices of: once the client has them, it is
    /// used again, so that a chunk costs no allocation.
    scratch: Vec<u8>,
    given: BytesMut,
}

/// Ready when the stream should leave its worker, which is drained.
type HandOverSignal = Gated<Pin<Box<dyn Future<Output = ()> + Send>>>;

fn hand_over_signal(link: &Link) -> HandOverSignal {
    Gated::new(Box::pin(link.hands_over().cancelled_owned()))
}

/// The rest of a stream, to be sent to another worker.
pub(super) struct RestOf<'a> {
    pub(super) arrived: &'a Arrived,
    pub(super) rewrite: &'a BodyRewrite,
    pub(super) stream: &'a mut ContinuableStream,
}

/// A stream on its way to another worker.
pub(crate) type Continuing = Pin<Box<dyn Future<Output = Box<ResponseStream>> + Send>>;

impl Cover {
    pub(in super::super) fn of(placed: &Placed, arrived: &Arc<Arrived>) -> Cover {
        match &placed.coverage {
            Coverage::Off => Cover::Off,
            Coverage::Uncovered(obstacle) => Cover::Uncovered(*obstacle),
            Coverage::Covered(terms) => Cover::Covered(Box::new(CoveredRequest {
                arrived: Some(arrived.clone()),
                rewrite: placed.rewrite.clone(),
                stream: ContinuableStream::new(terms.clone()),
            })),
        }
    }

    /// The stream begins at this worker. Says so in a header, where headers explain.
    pub(super) fn begin(
        self,
        guard: &RequestGuard,
        (link, form): (&Link, LegForm),
        headers: &mut HeaderMap,
    ) -> Option<Continuation> {
        let state = &guard.lane.state;
        let begun = match self {
            Cover::Off => return None,
            Cover::Uncovered(obstacle) => Err(obstacle),
            // As it was asked: what is known of the worker may have changed since.
            Cover::Covered(it) if form.asks_ids => Ok(*it),
            Cover::Covered(_) if link.has_reasoned() => Err(Obstacle::Reasoning),
            Cover::Covered(_) => Err(Obstacle::Engine),
        };
        if guard.settings.explain {
            let word = begun.as_ref().map_or_else(|it| it.name(), |_| "on");
            headers.insert(headers::CONTINUE, HeaderValue::from_static(word));
        }
        match begun {
            Ok(request) => {
                let (memory, metrics) = (state.token_ids.reserve(), state.metrics.clone());
                let (scratch, given) = (Vec::new(), BytesMut::new());
                Some(Continuation {
                    request,
                    memory,
                    metrics,
                    hand_over: hand_over_signal(link),
                    scratch,
                    given,
                })
            }
            Err(obstacle) => {
                state.metrics.continuations.streamed(Some(obstacle));
                None
            }
        }
    }
}

impl Continuation {
    /// What the client gets of a chunk.
    pub(super) fn feed(&mut self, chunk: &Bytes) -> (Bytes, Flow) {
        let stream = &mut self.request.stream;
        let flow = stream.feed(chunk, &mut self.scratch);
        if !self.memory.hold(stream.kept_bytes()) {
            stream.give_up(Obstacle::NoMemory);
        }
        if stream.obstacle().is_some() && flow != Flow::Unfit {
            self.memory.release();
            self.request.arrived = None;
        }
        (self.take_given(), flow)
    }

    fn take_given(&mut self) -> Bytes {
        if self.scratch.len() > GIVEN_BYTES {
            return Bytes::from(std::mem::take(&mut self.scratch));
        }
        // Room for several chunks: the next one may come before the client has taken the last.
        if self.given.capacity() < self.scratch.len() {
            self.given.reserve(GIVEN_BYTES);
        }
        self.given.extend_from_slice(&self.scratch);
        self.scratch.clear();
        self.given.split().freeze()
    }

    /// Why the stream cannot go on elsewhere; none if it can.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        self.request.stream.obstacle()
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        self.metrics.continuations.streamed(self.obstacle());
    }
}

impl ResponseStream {
    /// The worker has failed, as the outcome says. Another one goes on, if it can.
    pub(super) fn break_off(&mut self, outcome: RequestOutcome, cx: &Context<'_>) -> Poll<Next> {
        let Some(continuation) = &mut self.continuation else { return self.fail(outcome, cx) };
        match continuation.request.stream.break_off() {
            Break::Rest { tokens } => {
                self.note_failure(outcome);
                self.upstream = None;
                self.timer = None;
                Poll::Ready(Next::Continue(outcome, tokens))
            }
            Break::Ending(events) => Poll::Ready(Next::Chunk(self.complete(outcome, events.into()))),
            Break::Lost(obstacle) => {
                debug!(%obstacle, worker = self.link.url, "a stream that broke off cannot be continued");
                continuation.metrics.continuations.broke(Continued::NotCovered);
                self.fail(outcome, cx)
            }
        }
    }

    /// The answer is there; only its last events are missing.
    fn complete(&mut self, outcome: RequestOutcome, events: Bytes) -> Bytes {
        self.note_failure(outcome);
        self.upstream = None;
        let state = &self.guard.lane.state;
        state.metrics.continuations.broke(Continued::Completed);
        state.brain.on(Event::Probed { worker: self.link.worker, evidence: Evidence::Broke });
        self.count(&events);
        self.guard.used(self.reader.take_usage());
        self.guard.ends_as(self.reader.outcome);
        events
    }

    /// The answer has ended at a stop string that the router matched. The engine stops when its connection closes.
    pub(super) fn end_at_stop(&mut self) {
        self.upstream = None;
        self.guard.used(self.reader.take_usage());
        self.guard.ends_as(self.reader.outcome);
        if let Some(route) = self.guard.route() {
            self.link.note_token_ids(route, TokenIdReply::Sent);
        }
    }

    /// Goes on with the response of another worker.
    pub(super) fn go_on_with(&mut self, started: Box<StartedResponse>) {
        let StartedResponse { link, upstream, sent, first, .. } = *started;
        if let Some(continuation) = &mut self.continuation {
            continuation.hand_over = hand_over_signal(&link);
        }
        self.link = link;
        self.upstream = Some(upstream);
        self.guard.resumed(sent);
        self.ready = first.and_then(|it| self.take(it));
    }
}

/// Looks for a worker that goes on with the stream. The stream that comes back has its next chunk, or its end.
pub(super) fn go_on(mut stream: Box<ResponseStream>, outcome: RequestOutcome, tokens: u64) -> Continuing {
    Box::pin(async move {
        let ResponseStream { guard, continuation, .. } = &mut *stream;
        let started = match continuation {
            Some(continuation) => resume(guard, &mut continuation.request, tokens).await,
            None => Err(None),
        };
        let continuations = &stream.guard.lane.state.metrics.continuations;
        match started {
            Ok(started) => {
                continuations.broke(Continued::Resumed);
                stream.go_on_with(started);
            }
            Err(refusal) => {
                debug!(?refusal, worker = stream.link.url, "no worker goes on with a stream that broke off");
                continuations.broke(Continued::Refused);
                continuations.refused(refusal);
                stream.ready = stream.failure_event(outcome);
                stream.guard.ends_as(outcome);
            }
        }
        stream
    })
}

/// Sends the request again to its worker, as the client wrote it: the engine's own matching of stop strings is needed. The
/// client has got nothing of the stream yet.
pub(super) fn send_plain(mut stream: Box<ResponseStream>) -> Continuing {
    Box::pin(async move {
        stream.link.note_reasoning();
        stream.upstream = None;
        // Nothing of it is kept from here on.
        let request = stream
            .continuation
            .take()
            .and_then(|mut it| Some((it.request.arrived.take()?, it.request.rewrite.without_ids())));
        let ResponseStream { guard, link, .. } = &*stream;
        let started = match (request, guard.placement()) {
            (Some((arrived, rewrite)), Some(placement)) => {
                let outbound = Outbound { arrived: &arrived, rewrite: &rewrite, leg: Leg::Whole };
                send(&guard.lane.upstreams, outbound, link.clone(), placement).await.ok()
            }
            _ => None,
        };
        match started.filter(|it| it.head.status.is_success() && it.is_stream) {
            Some(started) => {
                stream.upstream = Some(started.upstream);
                stream.guard.sent(started.sent);
                stream.ready = started.first.and_then(|it| stream.take(it));
            }
            None => {
                stream.ready = stream.failure_event(RequestOutcome::Broke);
                stream.guard.ends_as(RequestOutcome::Broke);
            }
        }
        stream
    })
}

/// The response of the worker that goes on; or why no worker does, if the brain said so.
async fn resume(
    guard: &mut RequestGuard,
    request: &mut CoveredRequest,
    tokens: u64,
) -> Result<Box<StartedResponse>, Option<Refusal>> {
    let CoveredRequest { arrived, rewrite, stream } = request;
    let mut rest = RestOf { arrived: arrived.as_deref().ok_or(None)?, rewrite, stream };
    let mut decision = guard.interrupted(tokens);
    loop {
        let placement = guard.decided(decision).await.map_err(Some)?;
        match attempt(&guard.lane, &mut rest, placement).await {
            Ok(started) => return Ok(started),
            Err(failure) => decision = guard.attempt_failed(failure),
        }
    }
}

/// One attempt to go on. It ends early if the worker becomes unhealthy.
pub(super) async fn attempt(
    lane: &Lane,
    rest: &mut RestOf<'_>,
    placement: Placement,
) -> Result<Box<StartedResponse>, Failure> {
    let RestOf { arrived, rewrite, ref mut stream } = *rest;
    let brain = &lane.state.brain;
    let link = brain.link(placement.worker).ok_or(Failure::Refused)?;
    let route = arrived.route().ok_or(Failure::Busy)?;
    let takes_ids = |it: &EngineKind| serves(*it, route) && !link.has_replied(route, TokenIdReply::Refused);
    // Healthy, and of no use here.
    let kind = link.expected_kind().filter(takes_ids).ok_or(Failure::Busy)?;
    let outs = link.outs();
    let _waiting = link.wait();
    let sent = async {
        end_at_character(&lane.upstreams, arrived, (&link, kind), stream).await?;
        let outbound = Outbound { arrived, rewrite, leg: Leg::Rest(stream) };
        send(&lane.upstreams, outbound, link.clone(), placement).await
    };
    let started = tokio::select! {
        biased;
        started = sent => started?,
        _ = interrupted(brain, &link, None, outs) => return Err(Failure::Abandoned),
    };
    let status = started.head.status;
    match judge(status) {
        Some(failure) => {
            link.failed(format!("{} {status}", arrived.target.path()));
            Err(failure)
        }
        None if status.is_success() && started.is_stream => Ok(started),
        None => {
            debug!(worker = link.url, %status, "the worker does not go on with a stream");
            Err(Failure::Busy)
        }
    }
}

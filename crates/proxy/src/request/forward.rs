//! The fourth stage: the request is at its worker, and the response begins. If it does not, asks for another placement.
//!
//! A response has begun when the first byte of its body is here. Until then the client has seen nothing, not even a
//! status line (vLLM sends that before it has done any work). So a worker may die and another one respond without the
//! client noticing.
//!
//! A request may also be recalled before that, in favour of a more urgent one. It is then queued again, and the attempt is
//! dropped, because the brain no longer counts it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use maitre_base::{Instant, RequestId};
use maitre_dispatch::{Failure, Placement, Refusal};
use maitre_net::connect::ConnectError;
use maitre_net::upstream::{ResponseHead, Upstream, UpstreamError};
use tokio::time::timeout;
use tracing::debug;

use super::arrive::Arrived;
use super::guard::RequestGuard;
use super::place::{BodyRewrite, Placed};
use crate::brain::{Decision, SharedBrain, Waiter};
use crate::headers::REQUEST_ID;
use crate::lane::Lane;
use crate::link::Link;
use crate::refuse::{Refused, judge};
use crate::upstreams::Upstreams;
use crate::watch::idle_intervals;

/// A response whose first byte is here.
pub(super) struct StartedResponse {
    pub(super) placement: Placement,
    pub(super) link: Arc<Link>,
    pub(super) upstream: Upstream,
    pub(super) sent: Instant,
    pub(super) head: ResponseHead,
    /// None: the response has no body.
    pub(super) first: Option<Bytes>,
}

/// The end of an attempt without a response.
enum NoResponse {
    Failed(Failure),
    /// The brain has put the request back into the queue.
    Recalled(Waiter),
}

impl From<Failure> for NoResponse {
    fn from(failure: Failure) -> NoResponse {
        NoResponse::Failed(failure)
    }
}

/// A reused connection that breaks this soon was most likely closed by the worker while it was idle, before the worker
/// read the request.
const CLOSED_WHILE_IDLE: Duration = Duration::from_millis(200);

pub(super) async fn forward(
    guard: &mut RequestGuard,
    arrived: &Arrived,
    Placed { mut placement, rewrite }: Placed,
) -> Result<StartedResponse, Refused> {
    // A worker's error response, for the client if no other worker does better.
    let mut error_response = None;
    loop {
        let decision = match attempt(&guard.lane, (arrived, &rewrite), placement).await {
            Ok(started) => match judge(started.head.status) {
                None => return Ok(started),
                Some(failure) => {
                    started.link.failed(format!("{} {}", arrived.target.path(), started.head.status));
                    error_response = Some(started);
                    guard.attempt_failed(failure)
                }
            },
            Err(NoResponse::Failed(failure)) => guard.attempt_failed(failure),
            Err(NoResponse::Recalled(waiter)) => Decision::Wait(waiter),
        };
        placement = match guard.decided(decision).await {
            Ok(placement) => placement,
            Err(refusal @ (Refusal::Failed { .. } | Refusal::NoWorker)) => {
                return error_response.ok_or(by_brain(refusal));
            }
            // The refusal by the queue is newer than the worker's error.
            Err(refusal) => return Err(by_brain(refusal)),
        };
    }
}

/// The request has been placed once, so its model is known.
fn by_brain(refusal: Refusal) -> Refused {
    Refused::by_brain(refusal, None, String::new)
}

/// What is sent: the request, and what the router changes in its body.
type Outbound<'a> = (&'a Arrived, &'a BodyRewrite);

/// One attempt. It ends early if the worker becomes unhealthy or the request is recalled.
async fn attempt(
    lane: &Lane,
    outbound: Outbound<'_>,
    placement: Placement,
) -> Result<StartedResponse, NoResponse> {
    let brain = &lane.state.brain;
    let link = brain.link(placement.worker).ok_or(Failure::Refused)?;
    let sent = Sent { at: lane.upstreams.clock.now(), outs: link.outs() };
    let _waiting = link.wait();
    let silence = lane.upstreams.settings.load().probes.silence();
    if link.heard().is_some_and(|it| it + silence <= sent.at) {
        // It was idle, and so was probed rarely.
        link.probe.notify_one();
    }
    let outcome = tokio::select! {
        biased;
        outcome = send(&lane.upstreams, outbound, link.clone(), placement) => {
            outcome.map_err(NoResponse::Failed)
        }
        ended = interrupted(brain, &link, placement.request, sent.outs) => Err(match ended {
            None => NoResponse::Failed(sent.failure(lane, &link)),
            Some(waiter) => NoResponse::Recalled(waiter),
        }),
    };
    // Recalled at the very moment that the attempt ended: the brain has queued it and ignores the attempt.
    match outcome {
        Err(NoResponse::Recalled(_)) => outcome,
        _ => {
            brain.take_recalled(placement.request).map_or(outcome, |waiter| Err(NoResponse::Recalled(waiter)))
        }
    }
}

/// The worker when the request was sent.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    outs: u32,
}

impl Sent {
    /// How the attempt failed, now that the worker is unhealthy.
    fn failure(self, lane: &Lane, link: &Link) -> Failure {
        let silence = lane.upstreams.settings.load().probes.silence();
        let silence_if_idle = silence * idle_intervals(lane.state.brain.workers());
        // Heard until the request was sent, and not since.
        let fell_silent = |heard: Instant| {
            heard + silence_if_idle > self.at && heard + silence <= lane.upstreams.clock.now()
        };
        // Where others wait as well, each of them is probably innocent, and none is moved twice.
        match link.had_one_waiting() && link.heard().is_some_and(fell_silent) {
            true => Failure::Silenced,
            false => Failure::Abandoned,
        }
    }
}

/// Waits until the worker becomes unhealthy (a request without a first byte need not wait for a worker that hangs) or
/// the request is recalled, and then returns its place in the queue.
async fn interrupted(brain: &SharedBrain, link: &Link, request: RequestId, outs: u32) -> Option<Waiter> {
    loop {
        let mut interrupt = pin!(link.interrupted());
        // Registers before it checks, so that no interrupt is missed in between.
        interrupt.as_mut().enable();
        if let Some(waiter) = brain.take_recalled(request) {
            return Some(waiter);
        }
        if link.outs() != outs {
            return None;
        }
        interrupt.await;
    }
}

/// Sends the request on an idle connection if there is one, else on a new one.
async fn send(
    upstreams: &Upstreams,
    outbound: Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
) -> Result<StartedResponse, Failure> {
    let Some(upstream) = upstreams.take(&link) else {
        let upstream = open(upstreams, &link, placement.deadline).await?;
        return exchange(upstreams, outbound, link, placement, upstream).await;
    };
    let sent = upstreams.clock.now();
    match exchange(upstreams, outbound, link.clone(), placement, upstream).await {
        Err(Failure::Broke) if upstreams.clock.now().since(sent) < CLOSED_WHILE_IDLE => {}
        outcome => return outcome,
    }
    // Once more, on a new connection. If that cannot be opened, the worker broke under the request: it must not count
    // as one that was never sent.
    let upstream = open(upstreams, &link, placement.deadline).await.map_err(|failure| match failure {
        Failure::Late => Failure::Late,
        _ => Failure::Broke,
    })?;
    exchange(upstreams, outbound, link, placement, upstream).await
}

async fn open(upstreams: &Upstreams, link: &Link, deadline: Option<Instant>) -> Result<Upstream, Failure> {
    let limit = TimeLimit::until(deadline, upstreams.clock.now(), upstreams.settings.load().timeouts.connect);
    upstreams.open(link, limit.left).await.map_err(|error| {
        debug!(worker = link.url, %error, "cannot connect");
        match error {
            ConnectError::Handshake { .. } => {
                link.tls_failed(&error.to_string());
                Failure::Handshake
            }
            ConnectError::Unresolved(_) | ConnectError::Refused(_) => {
                link.failed(error.to_string());
                Failure::Refused
            }
            ConnectError::TimedOut(_) => {
                link.failed(error.to_string());
                limit.or(Failure::Unreachable)
            }
            ConnectError::NoSocket(_) => Failure::NoSocket,
        }
    })
}

/// How long a step may take.
#[derive(Clone, Copy)]
struct TimeLimit {
    left: Duration,
    /// The request's own deadline comes first.
    is_deadline: bool,
}

impl TimeLimit {
    /// Up to `limit` from `now`, but not past the request's deadline.
    fn until(deadline: Option<Instant>, now: Instant, limit: Duration) -> TimeLimit {
        match deadline.map(|it| it.since(now)) {
            Some(left) if left < limit => TimeLimit { left, is_deadline: true },
            _ => TimeLimit { left: limit, is_deadline: false },
        }
    }

    /// What it counts as when the time is over.
    fn or(self, failure: Failure) -> Failure {
        if self.is_deadline { Failure::Late } else { failure }
    }
}

/// Sends the request and waits for the first byte of the response's body.
async fn exchange(
    upstreams: &Upstreams,
    (arrived, rewrite): Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
    mut upstream: Upstream,
) -> Result<StartedResponse, Failure> {
    let timeouts = upstreams.settings.load().timeouts;
    let timed_out = |limit: TimeLimit| {
        link.failed(format!("no response within {:?}", limit.left));
        limit.or(Failure::TimedOut)
    };
    let sent = upstreams.clock.now();
    let left = timeouts.total.saturating_sub(sent.since(arrived.at));
    let limit = TimeLimit::until(placement.deadline, sent, timeouts.headers.min(left));
    let head = timeout(limit.left, upstream.send(rewrite.request(arrived, &link, &placement))).await;
    let head = head.map_err(|_| timed_out(limit))?.map_err(|error| broke(&link, &error))?;
    let [sent_id, named_id] = [&arrived.headers, &head.headers].map(|it| it.get(&REQUEST_ID));
    if !upstream.may_be_response(sent_id, named_id) {
        return Err(broke(&link, &UpstreamError::NotHttp("the response to another request")));
    }
    let responded = upstreams.clock.now();
    link.hear(responded);
    // A response that does not stream is complete when it begins; its head has used up the time.
    let limit = if streams(&head.headers) { timeouts.first_token } else { timeouts.headers };
    let left = limit.min(left).saturating_sub(responded.since(sent));
    let limit = TimeLimit::until(placement.deadline, responded, left);
    let first = timeout(limit.left, upstream.chunk()).await;
    let first = first.map_err(|_| timed_out(limit))?.transpose().map_err(|error| broke(&link, &error))?;
    if first.is_none() && streams(&head.headers) {
        return Err(broke(&link, &UpstreamError::Closed));
    }
    Ok(StartedResponse { placement, link, upstream, sent, head, first })
}

fn broke(link: &Link, error: &UpstreamError) -> Failure {
    link.failed(error.to_string());
    link.broke(error);
    debug!(worker = link.url, %error, "the connection broke before the first byte");
    Failure::Broke
}

/// Whether a response is an event stream that we can read; a compressed one is only passed on.
pub(super) fn streams(headers: &HeaderMap) -> bool {
    let events = |it: &HeaderValue| it.as_bytes().starts_with(b"text/event-stream");
    headers.get(CONTENT_TYPE).is_some_and(events) && !headers.contains_key(CONTENT_ENCODING)
}

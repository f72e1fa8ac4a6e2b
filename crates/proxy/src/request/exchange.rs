//! One exchange with a worker: a request on one connection, up to the first byte of the response's body.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, TRANSFER_ENCODING,
};
use maitre_base::{Instant, RequestId};
use maitre_dispatch::{Failure, Form, Placement};
use maitre_net::connect::ConnectError;
use maitre_net::upstream::{ResponseHead, Upstream, UpstreamError};
use tracing::debug;

use super::arrive::Arrived;
use super::place::{BodyRewrite, Leg, LegForm, LegRequest};
use super::within::within;
use crate::brain::{SharedBrain, Waiter};
use crate::headers::REQUEST_ID;
use crate::link::Link;
use crate::outcome::RequestOutcome;
use crate::refuse::outcome;
use crate::upstreams::Upstreams;

/// A response whose first byte is here.
pub(super) struct StartedResponse {
    pub(super) placement: Placement,
    pub(super) form: LegForm,
    pub(super) link: Arc<Link>,
    pub(super) upstream: Box<Upstream>,
    pub(super) sent: Instant,
    pub(super) head: ResponseHead,
    /// Whether it is an event stream that we can read.
    pub(super) is_stream: bool,
    /// None: the response has no body.
    pub(super) first: Option<Bytes>,
}

impl StartedResponse {
    /// The whole body, in place of one that has been read to its end.
    pub(super) fn replace_body(&mut self, body: Bytes, form: Form) {
        let headers = &mut self.head.headers;
        headers.remove(TRANSFER_ENCODING);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        if form == Form::Stream {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        }
        self.is_stream = is_stream(headers);
        self.first = Some(body);
    }
}

/// The end of an attempt without a response.
pub(super) enum NoResponse {
    Failed(Failure),
    /// The worker that prefills for this one failed.
    PrefillFailed(Failure),
    /// The brain has put the request back into the queue.
    Recalled(Waiter),
}

impl From<Failure> for NoResponse {
    fn from(failure: Failure) -> NoResponse {
        NoResponse::Failed(failure)
    }
}

/// The end of an exchange without a response.
struct Broken {
    failure: Failure,
    /// When the request was sent, if the worker may not have read it.
    unread_since: Option<Instant>,
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Broken {
        Broken { failure, unread_since: None }
    }
}

/// A reused connection that ends this soon, without a byte, was most likely closed by the worker while it was idle, before the
/// worker read the request.
const CLOSED_WHILE_IDLE: Duration = Duration::from_millis(200);

/// What is sent: the request, and what the router changes in its body.
#[derive(Clone, Copy)]
pub(super) struct Outbound<'a> {
    pub(super) arrived: &'a Arrived,
    pub(super) rewrite: &'a BodyRewrite,
    pub(super) leg: Leg<'a>,
}

/// Waits until the worker becomes unhealthy (a request without a first byte need not wait for a worker that hangs) or
/// the request, if one is named, is recalled, and then returns its place in the queue.
pub(super) async fn interrupted(
    brain: &SharedBrain,
    link: &Link,
    request: Option<RequestId>,
    outs: u32,
) -> Option<Waiter> {
    loop {
        let mut interrupt = pin!(link.interrupted());
        // Registers before it checks, so that no interrupt is missed in between.
        interrupt.as_mut().enable();
        if let Some(waiter) = request.and_then(|it| brain.take_recalled(it)) {
            return Some(waiter);
        }
        if link.outs() != outs {
            return None;
        }
        interrupt.await;
    }
}

/// Sends the request on an idle connection if there is one, else on a new one. A request that the worker may not have read is sent
/// once more, unless the operator wants none to reach a worker twice.
pub(super) async fn send(
    upstreams: &Upstreams,
    outbound: Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
) -> Result<Box<StartedResponse>, Failure> {
    let Some(upstream) = upstreams.take(&link) else {
        let upstream = open(upstreams, &link, placement.deadline).await?;
        return exchange(upstreams, outbound, link, placement, upstream).await;
    };
    let may_resend = || upstreams.settings.load().brain.failovers_max > 0;
    match try_exchange(upstreams, outbound, link.clone(), placement, upstream).await {
        Err(Broken { failure: Failure::Broke, unread_since: Some(sent) })
            if upstreams.clock.now().since(sent) < CLOSED_WHILE_IDLE && may_resend() => {}
        outcome => return outcome.map_err(|it| it.failure),
    }
    // Once more, on a new connection. If that cannot be opened, the worker broke under the request: it must not count
    // as one that was never sent.
    let upstream = open(upstreams, &link, placement.deadline).await.map_err(|failure| match failure {
        Failure::Late => Failure::Late,
        _ => Failure::Broke,
    })?;
    exchange(upstreams, outbound, link, placement, upstream).await
}

pub(super) async fn open(
    upstreams: &Upstreams,
    link: &Link,
    deadline: Option<Instant>,
) -> Result<Box<Upstream>, Failure> {
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
pub(super) async fn exchange(
    upstreams: &Upstreams,
    outbound: Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
    upstream: Box<Upstream>,
) -> Result<Box<StartedResponse>, Failure> {
    try_exchange(upstreams, outbound, link, placement, upstream).await.map_err(|it| it.failure)
}

async fn try_exchange(
    upstreams: &Upstreams,
    Outbound { arrived, rewrite, leg }: Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
    mut upstream: Box<Upstream>,
) -> Result<Box<StartedResponse>, Broken> {
    let timeouts = upstreams.settings.load().timeouts;
    let timed_out = |limit: TimeLimit| {
        link.failed(format!("no response within {:?}", limit.left));
        limit.or(Failure::TimedOut)
    };
    let sent = upstreams.clock.now();
    let left = timeouts.total.saturating_sub(sent.since(arrived.at));
    let limit = TimeLimit::until(placement.deadline, sent, timeouts.headers.min(left));
    let request = rewrite.request(arrived, &link, &placement, leg).map_err(|error| {
        debug!(worker = link.url, %error, "cannot make the leg of a request");
        Failure::Failed
    })?;
    let LegRequest { request, form } = request;
    let head = within(limit.left, upstream.send(request)).await;
    let head = head.map_err(|_| timed_out(limit))?;
    let head = head.map_err(|error| Broken {
        failure: broke(&link, &error),
        unread_since: error.may_be_unread().then_some(sent),
    })?;
    let own_id = leg.request_id();
    let named = head.headers.get(&REQUEST_ID);
    // Most workers name none, and then ours need not be looked up.
    let sent_id = named.and_then(|_| own_id.as_ref().or_else(|| arrived.headers.get(&REQUEST_ID)));
    if !upstream.may_be_response(sent_id, named) {
        return Err(broke(&link, &UpstreamError::NotHttp("the response to another request")).into());
    }
    let responded = upstreams.clock.now();
    link.hear(responded);
    // A response that does not stream is complete when it begins; its head has used up the time.
    let is_stream = is_stream(&head.headers);
    let limit = if is_stream { timeouts.first_token } else { timeouts.headers };
    let left = limit.min(left).saturating_sub(responded.since(sent));
    let limit = TimeLimit::until(placement.deadline, responded, left);
    let first = within(limit.left, upstream.chunk()).await;
    let first = first.map_err(|_| timed_out(limit))?.transpose().map_err(|error| broke(&link, &error))?;
    // An error may have no events, and a response to HEAD never has.
    let has_events = arrived.method != Method::HEAD && outcome(head.status) == RequestOutcome::Answered;
    if first.is_none() && has_events && is_stream {
        return Err(broke(&link, &UpstreamError::Closed).into());
    }
    // Boxed: it has half a kilobyte, and six futures pass it on.
    Ok(Box::new(StartedResponse { placement, form, link, upstream, sent, head, is_stream, first }))
}

fn broke(link: &Link, error: &UpstreamError) -> Failure {
    link.failed(error.to_string());
    link.broke(error);
    debug!(worker = link.url, %error, "the connection broke before the first byte");
    Failure::Broke
}

/// Whether a response is an event stream that we can read; a compressed one is only passed on.
pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let events = |it: &HeaderValue| {
        it.as_bytes().get(..EVENTS.len()).is_some_and(|it| it.eq_ignore_ascii_case(EVENTS))
    };
    // `identity` says that nothing is compressed. It does not belong there, and some servers send it.
    let plain = |it: &HeaderValue| it.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    headers.get(CONTENT_TYPE).is_some_and(events) && headers.get_all(CONTENT_ENCODING).iter().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(encodings: &[&'static str], expected: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("Text/event-stream; charset=utf-8"));
        for encoding in encodings {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        assert_eq!(is_stream(&headers), expected, "{encodings:?}");
    }

    #[test]
    fn an_event_stream_is_read_unless_it_is_compressed() {
        check(&[], true);
        check(&["gzip"], false);
        check(&["identity"], true);
        check(&["Identity", " identity "], true);
        check(&["identity, gzip"], false);
        check(&["identity", "br"], false);
    }
}

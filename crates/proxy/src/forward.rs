//! Takes a seated request to its worker and waits for the answer to begin; where it does not, asks for
//! another placement.
//!
//! An answer has begun when the first byte of its body is here. Until then the client has seen nothing,
//! not even a status line (vLLM sends that before it has done any work), so a worker may die and another
//! one answer without anyone noticing.
//!
//! A request may be called back before that, too, for one that is more urgent. It then stands in line again; what
//! has come of the attempt meanwhile is dropped, for the brain counts it no longer.

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

use crate::arrive::Arrived;
use crate::decision::{Decision, Waiter};
use crate::house::RouterState;
use crate::lane::Lane;
use crate::link::Link;
use crate::refuse::{Refused, judge};
use crate::visit::RequestGuard;

/// An answer that has begun.
pub(crate) struct Begun {
    pub(crate) placement: Placement,
    pub(crate) link: Arc<Link>,
    pub(crate) line: Upstream,
    pub(crate) head: ResponseHead,
    /// None: the answer has no body.
    pub(crate) first: Option<Bytes>,
}

/// How an attempt ends that no answer came of.
enum Ended {
    Failed(Failure),
    /// It is wanted elsewhere, or later: nobody's fault.
    Recalled(Waiter),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Failed(failure)
    }
}

/// A connection that breaks this soon after it was used again was most likely closed by the worker while
/// it lay idle, and the request never read.
const CLOSED_WHILE_IDLE: Duration = Duration::from_millis(200);

pub(crate) async fn forward(
    arrived: &Arrived,
    visit: &mut RequestGuard,
    mut placement: Placement,
) -> Result<Begun, Refused> {
    // A worker's own refusal: what the client gets if nobody does better.
    let mut refusal = None;
    loop {
        let decision = match attempt(&visit.lane, arrived, placement).await {
            Ok(begun) => match judge(begun.head.status) {
                None => return Ok(begun),
                Some(failure) => {
                    refusal = Some(begun);
                    visit.failed(failure)
                }
            },
            Err(Ended::Failed(failure)) => visit.failed(failure),
            Err(Ended::Recalled(waiter)) => Decision::Wait(waiter),
        };
        placement = match visit.decided(decision).await {
            Ok(placement) => placement,
            Err(ours @ (Refusal::Failed { .. } | Refusal::NoWorker)) => return refusal.ok_or(by_brain(ours)),
            // What became of it in line is the later news.
            Err(ours) => return Err(by_brain(ours)),
        };
    }
}

/// It has been seated once: its model is known.
fn by_brain(refusal: Refusal) -> Refused {
    Refused::by_brain(refusal, None, String::new)
}

/// One attempt, given up when nobody wants it any more.
async fn attempt(lane: &Lane, arrived: &Arrived, placement: Placement) -> Result<Begun, Ended> {
    let house = &lane.house;
    let link = house.link(placement.worker).ok_or(Failure::Refused)?;
    let outs = link.outs();
    let outcome = tokio::select! {
        biased;
        outcome = on_some_line(lane, arrived, link.clone(), placement) => outcome.map_err(Ended::Failed),
        ended = unwanted(house, &link, outs, placement.request) => Err(ended),
    };
    // Called back at the very moment that it ended: the brain has it in line and would hear nothing of this.
    match outcome {
        Err(Ended::Recalled(_)) => outcome,
        _ => house.take_recalled(placement.request).map_or(outcome, |waiter| Err(Ended::Recalled(waiter))),
    }
}

/// Waits until the worker is taken out, for whoever has seen no byte yet need not wait for one that hangs; or
/// until the request is called back.
async fn unwanted(house: &RouterState, link: &Link, outs: u32, request: RequestId) -> Ended {
    loop {
        let mut news = pin!(link.news());
        // Listens before it looks, so that nothing falls between.
        news.as_mut().enable();
        if let Some(waiter) = house.take_recalled(request) {
            return Ended::Recalled(waiter);
        }
        if link.outs() != outs {
            return Ended::Failed(Failure::Abandoned);
        }
        news.await;
    }
}

async fn on_some_line(
    lane: &Lane,
    arrived: &Arrived,
    link: Arc<Link>,
    placement: Placement,
) -> Result<Begun, Failure> {
    let Some(line) = lane.pool.take(link.serial) else {
        let line = open(lane, &link, placement.deadline).await?;
        return exchange(lane, arrived, link, placement, line).await;
    };
    let sent = lane.house.now();
    match exchange(lane, arrived, link.clone(), placement, line).await {
        Err(Failure::Broke) if lane.house.now().since(sent) < CLOSED_WHILE_IDLE => {}
        outcome => return outcome,
    }
    // Once more, on a connection that is surely open. If there is none to be had, the worker broke under
    // the request: that must not be counted as one that never left.
    let line = open(lane, &link, placement.deadline).await.map_err(|failure| match failure {
        Failure::Late => Failure::Late,
        _ => Failure::Broke,
    })?;
    exchange(lane, arrived, link, placement, line).await
}

async fn open(lane: &Lane, link: &Link, deadline: Option<Instant>) -> Result<Upstream, Failure> {
    let house = &lane.house;
    let patience = Patience::until(deadline, house.now(), house.settings().timeouts.connect);
    Upstream::open(&link.address, &house.tls.workers, patience.left).await.map_err(|error| {
        debug!(worker = link.url, %error, "no connection");
        match error {
            ConnectError::Handshake { .. } => {
                link.distrust(&error.to_string());
                Failure::Handshake
            }
            ConnectError::Unresolved(_) | ConnectError::Refused(_) => Failure::Refused,
            ConnectError::TimedOut(_) => patience.or(Failure::Unreachable),
            ConnectError::NoSocket(_) => Failure::NoSocket,
        }
    })
}

/// How long to wait for something, at most.
#[derive(Clone, Copy)]
struct Patience {
    left: Duration,
    /// It is the request's own deadline that ends it.
    is_own: bool,
}

impl Patience {
    /// Up to `limit` from `now`, but not past the request's deadline.
    fn until(deadline: Option<Instant>, now: Instant, limit: Duration) -> Patience {
        match deadline.map(|it| it.since(now)) {
            Some(left) if left < limit => Patience { left, is_own: true },
            _ => Patience { left: limit, is_own: false },
        }
    }

    /// What it is when it was in vain.
    fn or(self, failure: Failure) -> Failure {
        if self.is_own { Failure::Late } else { failure }
    }
}

/// Sends the request and waits for the first byte of the answer's body.
async fn exchange(
    lane: &Lane,
    arrived: &Arrived,
    link: Arc<Link>,
    placement: Placement,
    mut line: Upstream,
) -> Result<Begun, Failure> {
    let timeouts = lane.house.settings().timeouts;
    let sent = lane.house.now();
    let left = timeouts.total.saturating_sub(sent.since(arrived.at));
    let patience = Patience::until(placement.deadline, sent, timeouts.headers.min(left));
    let head = timeout(patience.left, line.send(arrived.toward(&link, &placement))).await;
    let head = head.map_err(|_| patience.or(Failure::TimedOut))?.map_err(|error| broke(&link, &error))?;
    let answered = lane.house.now();
    link.hear(answered);
    // An answer that does not stream is complete when it begins; its head has used up its patience.
    let limit = if streams(&head.headers) { timeouts.first_token } else { timeouts.headers };
    let left = limit.min(left).saturating_sub(answered.since(sent));
    let patience = Patience::until(placement.deadline, answered, left);
    let first = timeout(patience.left, line.chunk()).await;
    let first = first
        .map_err(|_| patience.or(Failure::TimedOut))?
        .transpose()
        .map_err(|error| broke(&link, &error))?;
    if first.is_none() && streams(&head.headers) {
        return Err(broke(&link, &UpstreamError::Closed));
    }
    Ok(Begun { placement, link, line, head, first })
}

fn broke(link: &Link, error: &UpstreamError) -> Failure {
    link.heard_no(error);
    debug!(worker = link.url, %error, "broke before its first byte");
    Failure::Broke
}

/// Whether an answer is an event stream we can read; a compressed one is only passed on.
pub(crate) fn streams(headers: &HeaderMap) -> bool {
    let events = |it: &HeaderValue| it.as_bytes().starts_with(b"text/event-stream");
    headers.get(CONTENT_TYPE).is_some_and(events) && !headers.contains_key(CONTENT_ENCODING)
}

//! Takes a seated request to its worker and waits for the answer to begin; where it does not, asks for
//! another seat.
//!
//! An answer has begun when the first byte of its body is here. Until then the client has seen nothing,
//! not even a status line (vLLM sends that before it has done any work), so a worker may die and another
//! one answer without anyone noticing.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use maitre_dispatch::{Event, Failure, Seat};
use tokio::time::timeout;
use tracing::debug;

use crate::arrive::Arrived;
use crate::lane::Lane;
use crate::line::{Broken, Head, Line, Unopened};
use crate::link::Link;
use crate::refuse::{Refused, judge};
use crate::visit::Visit;

/// An answer that has begun.
pub(crate) struct Begun {
    pub(crate) seat: Seat,
    pub(crate) link: Arc<Link>,
    pub(crate) line: Line,
    pub(crate) head: Head,
    /// None: the answer has no body.
    pub(crate) first: Option<Bytes>,
}

/// A connection that breaks this soon after it was used again was most likely closed by the worker while
/// it lay idle, and the request never read.
const CLOSED_WHILE_IDLE: Duration = Duration::from_millis(200);

pub(crate) async fn forward(arrived: &Arrived, visit: &mut Visit, mut seat: Seat) -> Result<Begun, Refused> {
    // A worker's own refusal: what the client gets if nobody does better.
    let mut refusal = None;
    loop {
        visit.seated(seat);
        let failure = match attempt(&visit.lane, arrived, seat).await {
            Ok(begun) => match judge(begun.head.status) {
                None => return Ok(begun),
                Some(failure) => {
                    refusal = Some(begun);
                    failure
                }
            },
            Err(failure) => failure,
        };
        let house = &visit.lane.house;
        house.metrics.failed(failure);
        seat = match house.on(Event::Failed { request: visit.request, failure }) {
            Some(Ok(next)) => next,
            _ => return refusal.ok_or(Refused::Failed(failure)),
        };
    }
}

/// One attempt, given up when the worker is taken out meanwhile: whoever has seen no byte yet need not wait
/// for a worker that hangs.
async fn attempt(lane: &Lane, arrived: &Arrived, seat: Seat) -> Result<Begun, Failure> {
    let link = lane.house.link(seat.worker).ok_or(Failure::Refused)?;
    let outs = link.outs();
    tokio::select! {
        biased;
        outcome = on_some_line(lane, arrived, link.clone(), seat) => outcome,
        () = link.until_out(outs) => Err(Failure::Abandoned),
    }
}

async fn on_some_line(lane: &Lane, arrived: &Arrived, link: Arc<Link>, seat: Seat) -> Result<Begun, Failure> {
    let Some(line) = lane.pool.take(seat.worker) else {
        let line = open(lane, &link).await?;
        return exchange(lane, arrived, link, seat, line).await;
    };
    let sent = lane.house.now();
    match exchange(lane, arrived, link.clone(), seat, line).await {
        Err(Failure::Broke) if lane.house.now().since(sent) < CLOSED_WHILE_IDLE => {}
        outcome => return outcome,
    }
    // Once more, on a connection that is surely open. If there is none to be had, the worker broke under
    // the request: that must not be counted as one that never left.
    let line = open(lane, &link).await.map_err(|_| Failure::Broke)?;
    exchange(lane, arrived, link, seat, line).await
}

async fn open(lane: &Lane, link: &Link) -> Result<Line, Failure> {
    Line::open(&link.address, lane.house.settings.timeouts.connect).await.map_err(|error| {
        debug!(worker = link.url, %error, "no connection");
        match error {
            Unopened::Refused(_) => Failure::Refused,
            Unopened::TimedOut(_) => Failure::Unreachable,
            Unopened::NoSocket(_) => Failure::NoSocket,
        }
    })
}

/// Sends the request and waits for the first byte of the answer's body.
async fn exchange(
    lane: &Lane,
    arrived: &Arrived,
    link: Arc<Link>,
    seat: Seat,
    mut line: Line,
) -> Result<Begun, Failure> {
    let timeouts = &lane.house.settings.timeouts;
    let sent = lane.house.now();
    let left = timeouts.total.saturating_sub(sent.since(arrived.at));
    let head = timeout(timeouts.headers.min(left), line.ask(arrived.toward(&link))).await;
    let head = head.map_err(|_| Failure::TimedOut)?.map_err(|error| broke(&link, &error))?;
    let answered = lane.house.now();
    link.hear(answered);
    // An answer that does not stream is complete when it begins; its head has used up its patience.
    let limit = if streams(&head.headers) { timeouts.first_token } else { timeouts.headers };
    let left = limit.min(left).saturating_sub(answered.since(sent));
    let first = timeout(left, poll_fn(|cx| line.poll_piece(cx))).await;
    let first = first.map_err(|_| Failure::TimedOut)?.transpose().map_err(|error| broke(&link, &error))?;
    if first.is_none() && streams(&head.headers) {
        return Err(broke(&link, &Broken::Cut));
    }
    Ok(Begun { seat, link, line, head, first })
}

fn broke(link: &Link, error: &Broken) -> Failure {
    debug!(worker = link.url, %error, "broke before its first byte");
    Failure::Broke
}

/// Whether an answer is an event stream we can read; a compressed one is only passed on.
pub(crate) fn streams(headers: &HeaderMap) -> bool {
    let events = |it: &HeaderValue| it.as_bytes().starts_with(b"text/event-stream");
    headers.get(CONTENT_TYPE).is_some_and(events) && !headers.contains_key(CONTENT_ENCODING)
}

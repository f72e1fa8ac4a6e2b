//! Where one worker prefills for another: the leg before the answer, and the beginning of the answer.
//!
//! The prefill worker gets the prompt and answers with the place of its KV cache, which the decode worker fetches. That
//! answer serves once, and only while the prefill worker's lease lasts. vLLM 0.32 takes it later or again without an
//! error and answers with wrong text. So a decode leg that fails is never sent again: the request gets a new placement, and
//! its prompt a new prefill.
//!
//! A transfer that fails shows as an error event after the head and the role. Nothing is passed on before there is content,
//! so that another worker can still answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use maitre_base::WorkerId;
use maitre_dialect::legs::{ANSWER_BYTES_MAX, Answer, FirstEvents, StreamStart, Style};
use maitre_dispatch::{Event, Failure, Placement};
use tokio::time::timeout;
use tracing::debug;

use super::arrive::Arrived;
use super::exchange::{Outbound, StartedResponse, interrupted, is_stream, send};
use super::place::{BodyRewrite, Leg};
use crate::lane::Lane;
use crate::refuse::judge;

/// How long after the prefill worker's answer its parameters are used: two thirds of vLLM's lease.
const HANDOFF_AGE_MAX: Duration = Duration::from_secs(20);

/// What came of a prefill leg.
pub(super) enum PrefillOutcome {
    /// The prefill worker's answer, for the decode worker.
    Answered(Bytes),
    /// An error that is the client's: its response.
    Declined(Box<StartedResponse>),
}

/// Sends the prompt to the worker that prefills it, and waits for its answer.
pub(super) async fn prefill(
    lane: &Lane,
    (arrived, rewrite): (&Arrived, &BodyRewrite),
    worker: WorkerId,
    placement: Placement,
) -> Result<PrefillOutcome, Failure> {
    let brain = &lane.state.brain;
    let link = brain.link(worker).ok_or(Failure::Refused)?;
    let outs = link.outs();
    let _waiting = link.wait();
    let outbound = Outbound { arrived, rewrite, leg: Leg::Prefill };
    let mut started = tokio::select! {
        biased;
        started = send(&lane.upstreams, outbound, link.clone(), placement) => started?,
        _ = interrupted(brain, &link, None, outs) => return Err(Failure::Abandoned),
    };
    let status = started.head.status;
    if let Some(failure) = judge(status) {
        link.failed(format!("prefill for another worker: {status}"));
        return Err(failure);
    }
    if !status.is_success() {
        return Ok(PrefillOutcome::Declined(Box::new(started)));
    }
    let answer = read_all(lane, &mut started).await?;
    lane.upstreams.put(&link, started.upstream);
    if let Err(error) = Answer::read(Style::NixlPull, &answer) {
        link.failed(error.to_string());
        debug!(worker = link.url, %error, "unusable answer to a prefill");
        return Err(Failure::Failed);
    }
    brain.on(Event::Prefilled { request: placement.request, worker });
    Ok(PrefillOutcome::Answered(answer))
}

/// The rest of a response that has begun, within the time of its head.
async fn read_all(lane: &Lane, started: &mut StartedResponse) -> Result<Bytes, Failure> {
    let mut body = BytesMut::from(started.first.take().unwrap_or_default());
    let limit = lane.upstreams.settings.load().timeouts.headers;
    let read = async {
        while let Some(chunk) = started.upstream.chunk().await {
            body.extend_from_slice(&chunk.map_err(|_| Failure::Broke)?);
            if body.len() > ANSWER_BYTES_MAX {
                return Err(Failure::Failed);
            }
        }
        Ok(())
    };
    timeout(limit, read).await.map_err(|_| Failure::TimedOut)??;
    Ok(body.freeze())
}

/// Whether a handoff of this age may still be used.
pub(super) fn is_usable(age: Duration) -> bool {
    age < HANDOFF_AGE_MAX
}

/// Reads a decode worker's stream until it has content, and holds back what comes before. A response in one piece, or an
/// error status, is judged by its status.
pub(super) async fn until_content(
    lane: &Lane,
    arrived: &Arrived,
    mut started: StartedResponse,
) -> Result<StartedResponse, Failure> {
    let Some(route) = arrived.route().filter(|_| started.head.status.is_success()) else {
        return Ok(started);
    };
    if !is_stream(&started.head.headers) {
        return Ok(started);
    }
    let mut held = BytesMut::from(started.first.take().unwrap_or_default());
    let mut events = FirstEvents::new(route);
    let now = lane.upstreams.clock.now();
    let timeouts = lane.upstreams.settings.load().timeouts;
    let left = timeouts.first_token.min(timeouts.total.saturating_sub(now.since(arrived.at)));
    let due = started.placement.deadline.map(|it| it.since(now)).filter(|&it| it < left);
    let read = async {
        loop {
            match events.read(&held) {
                StreamStart::Content => return Ok(()),
                StreamStart::Failed => {
                    started.link.failed("it could not fetch the KV cache from the worker that prefilled");
                    return Err(Failure::Handoff);
                }
                StreamStart::Announced => {}
            }
            match started.upstream.chunk().await {
                Some(Ok(chunk)) => held.extend_from_slice(&chunk),
                Some(Err(_)) => return Err(Failure::Broke),
                // Complete without content: the client gets what there is.
                None => return Ok(()),
            }
        }
    };
    let late = if due.is_some() { Failure::Late } else { Failure::TimedOut };
    timeout(due.unwrap_or(left), read).await.map_err(|_| late)??;
    started.first = Some(held.freeze());
    Ok(started)
}

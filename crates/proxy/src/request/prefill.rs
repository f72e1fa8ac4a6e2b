//! Where one worker prefills for another: the leg before the answer, and the beginning of the answer.
//!
//! The prefill worker gets the prompt and answers with the place of its KV cache, which the decode worker fetches. That
//! answer serves once, and only while the prefill worker's lease lasts. vLLM 0.32 takes it later or again without an
//! error and answers with wrong text. So a decode leg that fails is never sent again: the request gets a new placement, and
//! its prompt a new prefill.
//!
//! A transfer that fails shows as an error event after the head and the role. Nothing is passed on before there is content,
//! so that another worker can still answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use maitre_dialect::legs::tensorrt::{Complete, wants_usage};
use maitre_dialect::legs::{ANSWER_BYTES_MAX, Answer, FirstEvents, StreamStart};
use maitre_dialect::route::Route;
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Event, Failure, Form, Placement};
use maitre_fleet::estimate::Counted;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::debug;

use super::arrive::Arrived;
use super::exchange::{Outbound, StartedResponse, exchange, interrupted, open, send};
use super::handoff::HandoffPlan;
use super::place::{BodyRewrite, Leg};
use crate::lane::Lane;
use crate::link::Link;
use crate::refuse::judge;

/// How long after the prefill worker's answer its parameters are used: two thirds of vLLM's lease.
pub(super) const HANDOFF_AGE_MAX: Duration = Duration::from_secs(20);

/// How long a decode leg that only frees the prefill worker is kept open. vLLM 0.32 has begun the transfer by then, and
/// carries it out though its client has left.
const RELEASE_TIME: Duration = Duration::from_millis(500);

/// What came of a prefill leg.
pub(super) enum PrefillOutcome {
    /// The prefill worker's answer, for the decode worker.
    Answered(Bytes),
    /// It is the client's answer: an error that is the client's, or all of a short answer.
    Final(Box<StartedResponse>),
}

/// Sends the prompt to the worker that prefills it, and waits for its answer.
pub(super) async fn prefill(
    lane: &Lane,
    outbound: Outbound<'_>,
    (link, plan): (&Arc<Link>, &HandoffPlan),
    placement: Placement,
) -> Result<PrefillOutcome, Failure> {
    let arrived = outbound.arrived;
    let mut started = match begin(lane, outbound, link, placement).await? {
        Begun::Answering(started) => started,
        Begun::Declined(started) => return Ok(PrefillOutcome::Final(started)),
    };
    let body = read_all(lane, &mut started).await?;
    let answer = match Answer::read(plan.style, &body) {
        Ok(answer) => answer,
        Err(error) => {
            link.failed(error.to_string());
            debug!(worker = link.url, %error, "unusable answer to a prefill");
            return Err(Failure::Failed);
        }
    };
    report(lane, (placement, link), answer.usage());
    if let Some(complete) = answer.complete() {
        started.replace_body(complete_body(arrived, placement.form, complete), placement.form);
        return Ok(PrefillOutcome::Final(started));
    }
    lane.upstreams.put(link, started.upstream);
    Ok(PrefillOutcome::Answered(body))
}

/// A prefill leg whose response has begun.
pub(super) enum Begun {
    Answering(Box<StartedResponse>),
    /// An error that is the client's: its response.
    Declined(Box<StartedResponse>),
}

/// Sends a prefill leg.
pub(super) async fn begin(
    lane: &Lane,
    outbound: Outbound<'_>,
    link: &Arc<Link>,
    placement: Placement,
) -> Result<Begun, Failure> {
    let outs = link.outs();
    let _waiting = link.wait();
    let started = tokio::select! {
        biased;
        started = send(&lane.upstreams, outbound, link.clone(), placement) => started?,
        _ = interrupted(&lane.state.brain, link, None, outs) => return Err(Failure::Abandoned),
    };
    let status = started.head.status;
    if let Some(failure) = judge(status) {
        link.failed(format!("prefill for another worker: {status}"));
        return Err(failure);
    }
    Ok(if status.is_success() { Begun::Answering(started) } else { Begun::Declined(started) })
}

/// Tells the brain that a prefill leg is done.
pub(super) fn report(lane: &Lane, (placement, link): (Placement, &Link), usage: Option<Usage>) {
    let counted = usage.map(|it| Counted {
        prompt: it.prompt_tokens,
        cached: it.cached_tokens,
        answer: it.completion_tokens,
    });
    lane.state.brain.on(Event::Prefilled { request: placement.request, worker: link.worker, counted });
}

/// An answer that the prefill worker has completed, as the client asked for it.
fn complete_body(arrived: &Arrived, form: Form, complete: Complete<'_>) -> Bytes {
    let route = arrived.route().unwrap_or(Route::Chat);
    match form {
        Form::Whole => complete.body().into(),
        Form::Stream => complete.events(route, wants_usage(&arrived.body)).into(),
    }
}

/// A handoff that no worker has got. If its request ends here because the client leaves, the prefill worker would keep its
/// blocks until the lease ends; a decode leg that is cancelled frees them.
pub(super) struct UnsentHandoff<'a> {
    lane: &'a Arc<Lane>,
    arrived: &'a Arc<Arrived>,
    rewrite: &'a BodyRewrite,
    /// None once it is sent, or there is nobody to send it to.
    rest: Option<(Arc<HandoffPlan>, Bytes, Arc<Link>, Placement)>,
}

impl<'a> UnsentHandoff<'a> {
    pub(super) fn new(
        lane: &'a Arc<Lane>,
        (arrived, rewrite): (&'a Arc<Arrived>, &'a BodyRewrite),
        (plan, answer): (&Arc<HandoffPlan>, &Bytes),
        link: &Arc<Link>,
        placement: Placement,
    ) -> UnsentHandoff<'a> {
        let rest = Some((plan.clone(), answer.clone(), link.clone(), placement));
        UnsentHandoff { lane, arrived, rewrite, rest }
    }

    /// It is about to be sent, or cannot be.
    pub(super) fn settle(&mut self) {
        self.rest = None;
    }
}

impl Drop for UnsentHandoff<'_> {
    fn drop(&mut self) {
        let Some((plan, answer, link, placement)) = self.rest.take() else { return };
        let hands_over = Answer::read(plan.style, &answer).is_ok_and(|it| it.hands_over());
        let Ok(runtime) = Handle::try_current() else { return };
        if !hands_over {
            return;
        }
        let (lane, arrived, rewrite) = (self.lane.clone(), self.arrived.clone(), self.rewrite.clone());
        let release = async move {
            let outbound =
                Outbound { arrived: &arrived, rewrite: &rewrite, leg: Leg::Decode(&plan, Some(&answer)) };
            let Ok(upstream) = open(&lane.upstreams, &link, None).await else { return };
            let sent = exchange(&lane.upstreams, outbound, link, placement, upstream);
            // Dropping it closes the connection, which cancels the leg.
            let _ = timeout(RELEASE_TIME, sent).await;
        };
        self.lane.tasks.spawn_on(release, &runtime);
    }
}

/// The rest of a response that has begun, within the time of its head.
pub(super) async fn read_all(lane: &Lane, started: &mut StartedResponse) -> Result<Bytes, Failure> {
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
    mut started: Box<StartedResponse>,
) -> Result<Box<StartedResponse>, Failure> {
    let Some(route) = started.form.route.filter(|_| started.head.status.is_success()) else {
        return Ok(started);
    };
    if !started.is_stream {
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

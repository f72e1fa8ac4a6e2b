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

use maitre_base::Instant;
use maitre_dialect::legs::is_concurrent;
use maitre_dispatch::{Event, Failure, Placement, Refusal, SecondCause};
use tokio::time::sleep;

use super::aborted::was_aborted;
use super::arrive::Arrived;
use super::at_once::Legs;
use super::exchange::{NoResponse, Outbound, StartedResponse, exchange, interrupted, open};
use super::guard::RequestGuard;
use super::handoff::HandoffPlan;
use super::place::{BodyRewrite, Leg, Placed};
use super::prefill::{PrefillOutcome, UnsentHandoff, is_usable, prefill, until_content};
use super::pull::pull;
use super::second::SecondAttempt;
use super::token_ids::send_asking;
use crate::brain::Decision;
use crate::lane::Lane;
use crate::link::Link;
use crate::metrics::Hedged;
use crate::refuse::{Refused, judge};
use crate::watch::idle_intervals;

pub(super) async fn forward(
    guard: &mut RequestGuard,
    arrived: &Arc<Arrived>,
    Placed { mut placement, rewrite, .. }: Placed,
) -> Result<Box<StartedResponse>, Refused> {
    // A worker's error response, for the client if no other worker does better.
    let mut error_response: Option<Box<StartedResponse>> = None;
    loop {
        let decision = match attempt_twice(guard, (arrived, &rewrite), placement).await {
            Ok(mut started) => match judge(started.head.status) {
                None if was_aborted(&mut started).await => {
                    // It shuts down, or an operator aborts its answers.
                    started.link.probe.notify_one();
                    error_response = Some(started);
                    guard.attempt_failed(Failure::Abandoned)
                }
                None => return Ok(started),
                Some(failure) => {
                    started.link.failed(format!("{} {}", arrived.target.path(), started.head.status));
                    error_response = Some(started);
                    guard.attempt_failed(failure)
                }
            },
            Err(NoResponse::Failed(failure)) => guard.attempt_failed(failure),
            Err(NoResponse::PrefillFailed(failure)) => guard.prefill_failed(failure),
            Err(NoResponse::Recalled(waiter)) => Decision::Wait(waiter),
        };
        placement = match guard.decided(decision).await {
            Ok(placement) => placement,
            Err(refusal @ (Refusal::Failed { .. } | Refusal::NoWorker)) => {
                // The error of a chat that was made of a message has another form than the client's API.
                let own = error_response.filter(|it| it.form.route == arrived.route());
                return own.ok_or(by_brain(refusal));
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

/// One attempt, and a second one beside it once the first token is overdue.
async fn attempt_twice(
    guard: &mut RequestGuard,
    request: (&Arc<Arrived>, &BodyRewrite),
    placement: Placement,
) -> Result<Box<StartedResponse>, NoResponse> {
    let lane = guard.lane.clone();
    let mut first = pin!(attempt(&lane, request, placement));
    let Some(at) = placement.hedge_at else { return first.await };
    tokio::select! {
        biased;
        outcome = &mut first => return outcome,
        () = sleep(at.since(lane.upstreams.clock.now())) => {}
    }
    let hedges = &lane.state.metrics.hedges;
    let Some(second) = SecondAttempt::ask(guard, SecondCause::Hedge) else {
        hedges.count(Hedged::Refused);
        return first.await;
    };
    let mut other = pin!(attempt(&lane, request, second.placement));
    let is_answer = |it: &Result<Box<StartedResponse>, NoResponse>| {
        it.as_ref().is_ok_and(|it| judge(it.head.status).is_none())
    };
    let (outcome, mut hedged) = tokio::select! {
        biased;
        outcome = &mut first => (Some(outcome), None),
        outcome = &mut other => (None, Some(outcome)),
    };
    match &outcome {
        Some(outcome) if is_answer(outcome) => {
            hedges.count(Hedged::Lost);
            second.lose(guard.number);
            guard.hedged = Some(Hedged::Lost);
        }
        // The brain has put the request back into the queue.
        Some(Err(NoResponse::Recalled(_))) => drop(second),
        // The first attempt failed: the second may still answer.
        _ => {
            if hedged.is_none() {
                hedged = Some(other.await);
            }
            match hedged {
                Some(answer) if is_answer(&answer) => {
                    hedges.count(Hedged::Won);
                    guard.take_over(second.win(), |request, by| Event::Outpaced { request, by });
                    guard.hedged = Some(Hedged::Won);
                    return answer;
                }
                _ => {
                    hedges.count(Hedged::Failed);
                    drop(second);
                }
            }
        }
    }
    match outcome {
        Some(outcome) => outcome,
        None => first.await,
    }
}

/// One attempt. It ends early if the worker becomes unhealthy or the request is recalled.
async fn attempt(
    lane: &Arc<Lane>,
    request: (&Arc<Arrived>, &BodyRewrite),
    placement: Placement,
) -> Result<Box<StartedResponse>, NoResponse> {
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
        outcome = legs(lane, request, link.clone(), placement) => outcome,
        ended = interrupted(brain, &link, Some(placement.request), sent.outs) => Err(match ended {
            // It has perhaps not got the request yet.
            None if placement.prefill.is_some() => NoResponse::Failed(Failure::Abandoned),
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

/// The one leg of a request, or both: the prompt to the worker that prefills it, and the rest to the worker that answers.
async fn legs(
    lane: &Arc<Lane>,
    (arrived, rewrite): (&Arc<Arrived>, &BodyRewrite),
    link: Arc<Link>,
    placement: Placement,
) -> Result<Box<StartedResponse>, NoResponse> {
    let Some(worker) = placement.prefill else {
        let outbound = Outbound { arrived, rewrite, leg: Leg::Whole };
        return Ok(match placement.pull {
            Some(from) => pull(lane, outbound, link, (placement, from)).await?,
            None => send_asking(&lane.upstreams, outbound, link, placement).await?,
        });
    };
    let prefill_link = lane.state.brain.link(worker).ok_or(NoResponse::PrefillFailed(Failure::Refused))?;
    let plan = HandoffPlan::make(lane, &prefill_link).await.map_err(NoResponse::PrefillFailed)?;
    let plan = Arc::new(plan);
    if is_concurrent(plan.style) {
        return Legs { lane, arrived, rewrite, plan: &plan, placement }.send(prefill_link, link).await;
    }
    in_turn(lane, (arrived, rewrite), (&plan, prefill_link), link, placement).await
}

/// First the prompt to the worker that prefills it, then the rest to the worker that answers.
async fn in_turn(
    lane: &Arc<Lane>,
    (arrived, rewrite): (&Arc<Arrived>, &BodyRewrite),
    (plan, prefill_link): (&Arc<HandoffPlan>, Arc<Link>),
    link: Arc<Link>,
    placement: Placement,
) -> Result<Box<StartedResponse>, NoResponse> {
    let splits = &lane.state.metrics.splits;
    let outbound = Outbound { arrived, rewrite, leg: Leg::Prefill(plan) };
    let answer = match prefill(lane, outbound, (&prefill_link, plan), placement).await {
        Ok(PrefillOutcome::Answered(answer)) => answer,
        Ok(PrefillOutcome::Final(started)) => {
            splits.prefilled(if started.head.status.is_success() { "answered" } else { "declined" });
            return Ok(started);
        }
        Err(failure) => {
            splits.prefilled("failed");
            return Err(NoResponse::PrefillFailed(failure));
        }
    };
    splits.prefilled("answered");
    let clock = lane.upstreams.clock;
    let answered = clock.now();
    let mut unsent = UnsentHandoff::new(lane, (arrived, rewrite), (plan, &answer), &link, placement);
    // A new connection: one that the worker has just closed would cost the handoff, which cannot be sent twice.
    let opened = open(&lane.upstreams, &link, placement.deadline).await;
    unsent.settle();
    let upstream = opened?;
    if !is_usable(clock.now().since(answered)) {
        return Err(NoResponse::Failed(Failure::Unreachable));
    }
    let outbound = Outbound { arrived, rewrite, leg: Leg::Decode(plan, Some(&answer)) };
    let started = exchange(&lane.upstreams, outbound, link, placement, upstream).await?;
    if judge(started.head.status) == Some(Failure::Failed) {
        return Err(NoResponse::Failed(Failure::Handoff));
    }
    let started = until_content(lane, arrived, started).await?;
    splits.transfer.observe(clock.now().since(answered).as_secs_f64());
    Ok(started)
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

//! Both legs of a request at the same time, where the router names both ends: SGLang's rooms, Mooncake, NIXL in push mode.
//!
//! The engines find each other. Neither learns that the other's leg was refused or has failed: it would wait for minutes. So
//! the router ends one leg when the other has failed.
//!
//! The prefill leg is a task of its own. It goes on for a moment when the client leaves or when the answer has begun: SGLang
//! loses count of its references if both legs are cancelled at the same time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use maitre_dialect::legs::Answer;
use maitre_dispatch::{Failure, Form, Placement};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::arrive::Arrived;
use super::exchange::{NoResponse, Outbound, StartedResponse, exchange, open};
use super::handoff::HandoffPlan;
use super::place::{BodyRewrite, Leg};
use super::prefill::{Begun, HANDOFF_AGE_MAX, begin, read_all, report, until_content};
use crate::lane::Lane;
use crate::link::Link;
use crate::refuse::judge;

/// How long a prefill leg goes on after nobody waits for it.
const PREFILL_GRACE: Duration = Duration::from_secs(2);

/// What came of a prefill leg that nobody reads.
enum PrefillEnd {
    Answered,
    /// An error that is the client's: its response.
    Declined(Box<StartedResponse>),
}

/// A prefill leg under way.
struct PrefillTask {
    outcome: oneshot::Receiver<Result<PrefillEnd, Failure>>,
    cancel: CancellationToken,
}

/// What both legs share.
pub(super) struct Legs<'a> {
    pub(super) lane: &'a Arc<Lane>,
    pub(super) arrived: &'a Arc<Arrived>,
    pub(super) rewrite: &'a BodyRewrite,
    pub(super) plan: &'a Arc<HandoffPlan>,
    pub(super) placement: Placement,
}

impl Legs<'_> {
    /// Sends both legs, and returns once the answer begins.
    pub(super) async fn send(
        self,
        prefill: Arc<Link>,
        decode: Arc<Link>,
    ) -> Result<Box<StartedResponse>, NoResponse> {
        let mut task = self.start_prefill(prefill);
        let mut decode = pin!(self.decode(decode));
        let prefilled = async {
            // The task has ended without a word only if the thread is being shut down.
            match (&mut task.outcome).await.unwrap_or(Err(Failure::Abandoned)) {
                Ok(PrefillEnd::Answered) => {}
                Ok(PrefillEnd::Declined(started)) => return Ok(started),
                Err(failure) => return Err(NoResponse::PrefillFailed(failure)),
            }
            match self.placement.form {
                // The decode worker has all it needs. It would wait for minutes if it had not.
                Form::Stream => sleep(HANDOFF_AGE_MAX).await,
                Form::Whole => std::future::pending().await,
            }
            Err(NoResponse::Failed(Failure::Handoff))
        };
        let outcome = tokio::select! {
            biased;
            started = &mut decode => started.map_err(NoResponse::Failed),
            ended = prefilled => return ended,
        };
        if !outcome.as_ref().is_ok_and(|it| it.head.status.is_success()) {
            // The prefill worker would wait for nobody.
            task.cancel.cancel();
        }
        outcome
    }

    fn start_prefill(&self, link: Arc<Link>) -> PrefillTask {
        let (mut report_end, outcome) = oneshot::channel();
        let cancel = CancellationToken::new();
        let (lane, arrived, rewrite) = (self.lane.clone(), self.arrived.clone(), self.rewrite.clone());
        let (plan, placement, cancelled) = (self.plan.clone(), self.placement, cancel.clone());
        let leg = async move {
            let outbound = Outbound { arrived: &arrived, rewrite: &rewrite, leg: Leg::Prefill(&plan) };
            let end = tokio::select! {
                biased;
                () = cancelled.cancelled() => return,
                end = prefill(&lane, outbound, (&link, &plan), placement) => end,
                () = async { report_end.closed().await; sleep(PREFILL_GRACE).await } => return,
            };
            lane.state.metrics.splits.prefilled(match &end {
                Ok(PrefillEnd::Answered) => "answered",
                Ok(PrefillEnd::Declined(_)) => "declined",
                Err(_) => "failed",
            });
            if end.is_err() {
                // It may be another engine by now.
                link.learn(|about| about.reported_engine_id = None);
            }
            // Nobody listens once the answer has begun.
            let _ = report_end.send(end);
        };
        self.lane.tasks.spawn(leg);
        PrefillTask { outcome, cancel }
    }

    async fn decode(&self, link: Arc<Link>) -> Result<Box<StartedResponse>, Failure> {
        let Legs { lane, arrived, rewrite, plan, placement } = *self;
        // A new connection, because a leg cannot be sent twice: its peer may have met the first one.
        let upstream = open(&lane.upstreams, &link, placement.deadline).await?;
        let plain = rewrite.without_ids();
        let outbound = Outbound { arrived, rewrite: &plain, leg: Leg::Decode(plan, None) };
        let started = exchange(&lane.upstreams, outbound, link, placement, upstream).await?;
        if judge(started.head.status) == Some(Failure::Failed) {
            return Err(Failure::Handoff);
        }
        until_content(lane, arrived, started).await
    }
}

/// Sends the prompt to the worker that prefills it, and reads its answer to the end.
async fn prefill(
    lane: &Lane,
    outbound: Outbound<'_>,
    (link, plan): (&Arc<Link>, &HandoffPlan),
    placement: Placement,
) -> Result<PrefillEnd, Failure> {
    let mut started = match begin(lane, outbound, link, placement).await? {
        Begun::Answering(started) => started,
        Begun::Declined(started) => return Ok(PrefillEnd::Declined(started)),
    };
    let body = read_all(lane, &mut started).await?;
    lane.upstreams.put(link, started.upstream);
    // A stream has no usage that counts here.
    let usage = Answer::read(plan.style, &body).ok().and_then(|it| it.usage());
    report(lane, (placement, link), usage);
    Ok(PrefillEnd::Answered)
}

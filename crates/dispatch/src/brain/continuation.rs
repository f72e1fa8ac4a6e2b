//! A response that broke off goes on at another worker: the same request again, whose prompt is longer by what was
//! delivered and whose answer is shorter.

use maitre_base::{Instant, RequestId, Tokens, WorkerId};
use maitre_fleet::Evidence;
use maitre_fleet::estimate::rest_of_answer;

use super::{Brain, Context, Parts};
use crate::event::{Effect, Failure, Refusal};
use crate::observer::decision::AttemptOutcome;
use crate::request::{Attempt, PendingRequest};

impl Brain {
    /// The worker failed in the middle of its response. The request is placed elsewhere, queued or refused.
    pub(super) fn interrupted(
        &mut self,
        now: Instant,
        (id, worker): (RequestId, WorkerId),
        delivered: Tokens,
        effects: &mut Vec<Effect>,
    ) {
        self.parts.see(now, worker, Evidence::Broke, effects);
        let in_flight = self.pending.len();
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get_mut(&id.0).filter(|it| it.worker() == Some(worker)) else { return };
        let is_alone = parts.is_alone(request);
        let Some(attempt) = parts.release_placement(request) else { return };
        request.interrupt(worker, delivered, is_alone);
        let last = Failure::Broke;
        let may = parts.scheduler.may_continue(now, request, parts.settings.failovers_max, in_flight);
        if let Err(limit) = may {
            parts.attempt_ended(now, &attempt, AttemptOutcome::BrokeOff, None);
            effects.push(Effect::Refuse { request: id, refusal: Refusal::Failed { last, limit } });
            self.forget_refused(now, id);
            return;
        }
        parts.attempt_ended(now, &attempt, AttemptOutcome::Continued, None);
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        parts.scheduler.refund(context, request, &attempt);
        self.admit(now, id, Refusal::without_worker(Some(last)), effects);
    }
}

impl Parts {
    /// Whether its worker has no other request, and had none when this one came. A worker that fails then has perhaps failed
    /// of it; where there are others, each of them is probably innocent.
    pub(super) fn is_alone(&self, request: &PendingRequest) -> bool {
        let others = |it: &Attempt| {
            let now = self.fleet.worker(it.worker).map_or(0, |it| it.promised_by_all().work.requests);
            it.others > 0 || now > 1
        };
        !request.attempt().is_some_and(others)
    }
}

impl PendingRequest {
    /// A worker that has seen it failed. A response that has begun elsewhere is not blamed for workers that it shares.
    pub(super) fn count_failure(&mut self, is_alone: bool) {
        let has_begun = self.interruptions > 0;
        self.failovers += u32::from(is_alone || !has_begun);
        self.standstills += u32::from(has_begun);
    }

    /// Its worker failed after this many tokens of the response.
    fn interrupt(&mut self, worker: WorkerId, delivered: Tokens, is_alone: bool) {
        let progress = delivered - self.delivered;
        if progress > Tokens::ZERO {
            self.failovers = 0;
            self.standstills = 0;
        }
        self.interruptions += 1;
        self.count_failure(is_alone);
        self.failure = Some(Failure::Broke);
        self.go_on_after(delivered);
        // Workers that failed earlier may be back; this one is not.
        self.tried.clear();
        self.tried.push(worker);
    }

    /// What is left of it once the client has this many tokens of the response.
    pub(super) fn go_on_after(&mut self, delivered: Tokens) {
        let progress = delivered - self.delivered;
        let expected = self.delivered + self.ask.decode;
        self.delivered += progress;
        self.ask.prefill += progress;
        self.ask.decode = rest_of_answer(expected, self.delivered, self.answer_max);
        // The first token has come, the client waits for the next one, and no worker can send the KV cache of the answer.
        self.deadline = None;
        self.patience = None;
        self.has_response = true;
        self.may_split = false;
    }
}

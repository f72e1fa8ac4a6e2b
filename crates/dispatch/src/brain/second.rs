//! A second attempt of a request that has one under way: a hedge against a worker that does not answer, or the rest of a
//! response that a drained worker hands over.
//!
//! The second attempt is a request of its own, with a number from the driver. So its promise, its first token, its failure
//! and its end count like any other's, and nothing else needs to know of it. The driver ends the attempt that lost.

use std::time::Duration;

use maitre_base::{Instant, Promise, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;

use super::{Brain, Context, Parts};
use crate::event::{Effect, Form, SecondCause};
use crate::observer::decision::AttemptOutcome;
use crate::placer::{Mode, Rules, Scope, WorkerChoice};
use crate::request::{Attempt, AttemptOrder, PendingRequest, RequestState, Spending};
use crate::scheduler::hedge_budget::moment;

impl Brain {
    /// Places a second attempt at another worker, now or not at all.
    pub(super) fn second(
        &mut self,
        now: Instant,
        (request, number): (RequestId, RequestId),
        cause: SecondCause,
        effects: &mut Vec<Effect>,
    ) {
        let Brain { pending, parts, .. } = self;
        let Some(first) = pending.get(&request.0) else { return };
        let Some(worker) = first.worker().filter(|_| !pending.contains_key(&number.0)) else { return };
        let mut second = first.second(number, worker);
        if let SecondCause::HandOver { delivered } = cause {
            second.hand_over(delivered);
        }
        if parts.place_second(now, &mut second, cause, effects) {
            self.pending.insert(number.0, Box::new(second));
        }
    }

    /// One of two attempts goes on, and this one ends. What its tenant was charged stays with the other.
    pub(super) fn superseded(
        &mut self,
        now: Instant,
        (request, by): (RequestId, RequestId),
        outcome: AttemptOutcome,
    ) {
        let Some(mut request) = self.pending.remove(&request.0) else { return };
        match self.pending.get_mut(&by.0) {
            Some(winner) => winner.program = winner.program.or(request.program),
            None => self.parts.call_ended(now, &request, None),
        }
        let Some(attempt) = self.parts.release(&mut request) else { return };
        self.parts.attempt_ended(now, &attempt, outcome, None);
        if outcome == AttemptOutcome::Outpaced {
            self.parts.learn_overdue(now, &attempt);
        }
        let winner = self.pending.get_mut(&by.0);
        if let Some(winner) = winner {
            winner.spending = std::mem::take(&mut request.spending);
            if let Some(other) = winner.attempt_mut() {
                other.charged = other.charged.or(attempt.charged);
            }
        }
    }
}

impl Parts {
    fn place_second(
        &mut self,
        now: Instant,
        second: &mut PendingRequest,
        cause: SecondCause,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let context = Context { now, settings: &self.settings.queue, fleet: &self.fleet };
        let rules = match cause {
            // It must not delay requests that have no worker yet.
            SecondCause::Hedge => Rules { scope: Scope::Open, ..self.scheduler.rules(context, second, None) },
            // The operator wants the worker empty.
            SecondCause::HandOver { .. } => Rules { admission: None, scope: Scope::Open },
        };
        // The strategy does not remember it: the request's session and turn are those of its first attempt.
        let choice = self.choose(now, &second.query(), rules, Mode::DryRun);
        let WorkerChoice::Place(picked) = choice else { return false };
        if cause == SecondCause::Hedge {
            let tokens = self.placer.survey().promise_at(&second.ask, picked.place).prefill.tokens;
            if !self.is_unclaimed(second, picked)
                || !self.scheduler.hedge_budget.spend(self.settings.hedges.share, tokens)
            {
                return false;
            }
        }
        self.place(now, second, picked, effects);
        true
    }

    /// The first token of a cancelled attempt would have taken longer than this. Without this lesson a worker that is often
    /// outpaced would look as fast as the others, and idle: with it in a stall of two seconds, a wave of requests after the
    /// other went there.
    fn learn_overdue(&mut self, now: Instant, attempt: &Attempt) {
        if attempt.promise.prefilled {
            return;
        }
        self.fleet.outpaced(now, attempt.worker, attempt.placed_at);
        let (took, worker) = (now.since(attempt.placed_at), attempt.worker);
        let expected = self.fleet.worker(worker).map_or(0.0, |it| it.rates.prefill.at(attempt.prefill_ahead));
        if took.as_secs_f64() > expected && attempt.prefill_leg.is_none() && attempt.pull.is_none() {
            self.fleet.learn_first_token(now, worker, attempt.prefill_ahead, took);
        }
    }

    /// When a second attempt of this request would be worth its cost, if its first token has not come from this worker by
    /// then; none if never.
    pub(super) fn hedge_at(
        &self,
        now: Instant,
        request: &PendingRequest,
        (snapshot, promise): (&WorkerSnapshot, Promise),
    ) -> Option<Instant> {
        let class = self.settings.queue.classes.get(request.class.index());
        let is_on = class.and_then(|it| it.hedges).unwrap_or(self.settings.hedges.are_on);
        let has_begun = request.interruptions > 0 || request.delivered > Tokens::ZERO;
        if !is_on || request.order == AttemptOrder::Second || has_begun || request.form != Form::Stream {
            return None;
        }
        let due = request.deadline.or(request.patience)?;
        let expected = snapshot.wait_seconds + snapshot.prefill.at(promise.prefill);
        moment(now, due, Duration::try_from_secs_f64(expected).ok()?)
    }
}

impl PendingRequest {
    /// The same request again, under this number, for any worker but the one that has it.
    fn second(&self, number: RequestId, worker: WorkerId) -> PendingRequest {
        let mut second = PendingRequest {
            id: number,
            state: RequestState::Unplaced,
            spending: Spending::default(),
            order: AttemptOrder::Second,
            // The call of its program ends once, with the first attempt or with the one that supersedes it.
            program: None,
            // Nobody waits in the queue for it, and it is not recalled.
            has_response: true,
            may_split: false,
            recalled: Vec::new(),
            ..self.clone()
        };
        second.ask.attempt += 1;
        second.tried.push(worker);
        second
    }

    /// The client has this many tokens of the response.
    fn hand_over(&mut self, delivered: Tokens) {
        self.go_on_after(delivered);
        let worker = self.tried.pop();
        self.tried.clear();
        self.tried.extend(worker);
    }
}

//! A request whose prompt another worker prefills: two promises, each of which ends with its own leg.

use std::time::Duration;

use maitre_base::{Instant, RequestId, Tokens, WorkerId};
use maitre_fleet::Evidence;

use super::{Brain, Parts};
use crate::event::Effect;
use crate::observer::Fact;
use crate::placer::split::Split;
use crate::placer::{Picked, World};
use crate::request::{Attempt, PendingRequest, PrefillLeg};

impl Parts {
    /// Whether another worker should prefill this prompt. Who answers must not be claimed by requests that wait.
    pub(super) fn split(&mut self, now: Instant, request: &PendingRequest, picked: Picked) -> Option<Split> {
        if !request.may_split || !self.fleet.has_prefill_workers() {
            return None;
        }
        let reservations = self.scheduler.reservations();
        let long_prefills = self.scheduler.long_prefills();
        let world = World { now, fleet: &self.fleet, cache: &mut self.cache, reservations, long_prefills };
        let split = self.placer.split(&world, &request.query(), picked, self.settings.split)?;
        let answers = Picked { place: split.place, ..picked };
        (split.place == picked.place || self.is_unclaimed(request, answers)).then_some(split)
    }

    /// Promises the prompt to the worker that prefills it.
    pub(super) fn begin_prefill_leg(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        split: &Split,
    ) -> PrefillLeg {
        let leg = split.prefill;
        self.fleet.promise(now, leg.worker, leg.promise);
        let decodes = self.placer.survey().snapshots[split.place].worker;
        self.fleet.promise_fetch(decodes, split.fetches);
        self.observer.on(Fact::PromiseChanged { worker: leg.worker });
        if let Some(prompt) = &request.prompt {
            self.observer.on(Fact::PromptPlaced { worker: leg.key, prompt });
        }
        PrefillLeg {
            worker: leg.worker,
            promise: leg.promise,
            placed_at: now,
            prefill_ahead: leg.ahead.saturating_add(leg.promise.prefill.0),
            prediction: request.prompt.as_ref().map(|it| self.cache.placed(now, leg.worker, it)),
            fetches: split.fetches,
            fetched_before: Tokens::ZERO,
            is_fetching: true,
            answered: None,
        }
    }

    /// The request leaves its workers. Ends the prefill leg if it is under way.
    pub(super) fn end_prefill_leg(&mut self, request: &PendingRequest, attempt: &mut Attempt) {
        self.end_fetch(attempt);
        let Some(leg) = attempt.prefill_leg.as_ref().filter(|it| it.answered.is_none()) else { return };
        if let (Some(prompt), Some(prediction)) = (&request.prompt, &leg.prediction) {
            self.cache.failed(leg.worker, prompt, prediction);
        }
        self.fleet.release(leg.worker, leg.promise);
        self.promise_changed(leg.worker);
    }

    /// The decode worker has its KV cache, or will never fetch it.
    pub(super) fn end_fetch(&mut self, attempt: &mut Attempt) {
        if let Some(leg) = attempt.prefill_leg.as_mut().filter(|it| it.is_fetching) {
            leg.is_fetching = false;
            self.fleet.end_fetch(attempt.worker, leg.fetches, leg.answered.is_some());
        }
    }

    /// The first token came so long after the prefill worker's answer.
    pub(super) fn learn_transfer(&mut self, worker: WorkerId, tokens: Tokens, took: Duration) {
        // A step of its own is part of every first token.
        let floor = self.fleet.worker(worker).map_or(0.0, |it| it.rates.prefill.base);
        self.fleet.learn_transfer(tokens, took.saturating_sub(Duration::from_secs_f64(floor)));
    }
}

impl Brain {
    /// The worker that prefills for another has answered: its part is done.
    pub(super) fn prefilled(
        &mut self,
        now: Instant,
        request: RequestId,
        worker: WorkerId,
        effects: &mut Vec<Effect>,
    ) {
        let parts = &mut self.parts;
        let Some(request) = self.pending.get_mut(&request.0) else { return };
        if request.prefill_worker() != Some(worker) {
            return;
        }
        let prompt = request.prompt.clone();
        let Some(attempt) = request.attempt_mut() else { return };
        // Only what follows is the decode worker's.
        attempt.placed_at = now;
        let Some(leg) = &mut attempt.prefill_leg else { return };
        leg.answered = Some(now);
        leg.fetched_before = parts.fleet.begin_fetch(attempt.worker, leg.fetches);
        parts.fleet.prefilled(now, worker, &mut leg.promise);
        parts.fleet.release(worker, leg.promise);
        parts.fleet.learn_first_token(now, worker, leg.prefill_ahead, now.since(leg.placed_at));
        if let (Some(prompt), Some(prediction)) = (&prompt, &leg.prediction) {
            parts.cache.prefilled(now, worker, prompt, prediction);
        }
        parts.promise_changed(worker);
        parts.see(now, worker, Evidence::Answered, effects);
    }
}

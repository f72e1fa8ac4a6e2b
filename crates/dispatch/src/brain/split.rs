//! A request whose prompt another worker prefills: two promises, each of which ends with its own leg.

use std::time::Duration;

use maitre_base::{Instant, PrefillAnswer, RequestId, Tokens, WorkerId};
use maitre_fleet::Evidence;
use maitre_fleet::estimate::Counted;
use maitre_fleet::transfers::Way;

use super::{Brain, Parts};
use crate::cache::PromptChain;
use crate::event::Effect;
use crate::observer::Fact;
use crate::placer::Picked;
use crate::placer::split::{Answering, Split};
use crate::request::{Attempt, PendingRequest, PrefillLeg};

impl Parts {
    /// Whether another worker should prefill this prompt. Who answers must not be claimed by requests that wait.
    pub(super) fn split(&mut self, now: Instant, request: &PendingRequest, picked: Picked) -> Option<Split> {
        if !request.may_split || !self.fleet.has_prefill_workers() {
            return None;
        }
        let (query, rule) = (request.query(), self.settings.split);
        let (world, placer) = self.world(now);
        let split = placer.split(&world, &query, (picked, Answering::Anyone), rule)?;
        let answers = Picked { place: split.place, ..picked };
        if split.place == picked.place || self.is_unclaimed(request, answers) {
            return Some(split);
        }
        if !split.is_needed() {
            return None;
        }
        let (world, placer) = self.world(now);
        placer.split(&world, &query, (picked, Answering::Picked), rule)
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
            prefill_ahead: leg.ahead + leg.promise.prefill,
            prediction: request.prompt.as_ref().map(|it| self.cache.placed(now, leg.worker, it)),
            fetches: split.fetches,
            fetched_before: Tokens::ZERO,
            is_fetching: true,
            answer: leg.answer,
            answered: None,
            is_presumed: false,
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

    /// The worker that prefills for another has done its part.
    fn finish_prefill_leg(
        &mut self,
        now: Instant,
        (worker, prompt): (WorkerId, Option<&PromptChain>),
        leg: &mut PrefillLeg,
    ) {
        leg.answered = Some(now);
        leg.fetched_before = self.fleet.begin_fetch(worker, leg.fetches);
        self.fleet.prefilled(now, leg.worker, &mut leg.promise);
        self.fleet.release(leg.worker, leg.promise);
        if let (Some(prompt), Some(prediction)) = (prompt, &leg.prediction) {
            self.cache.prefilled(now, leg.worker, prompt, prediction);
        }
        self.promise_changed(leg.worker);
    }

    /// The decode worker's first token came. Where both legs run at once, it may come before the prefill worker's answer.
    pub(super) fn end_legs(&mut self, now: Instant, prompt: Option<&PromptChain>, attempt: &mut Attempt) {
        let worker = attempt.worker;
        if let Some(leg) = attempt.prefill_leg.as_mut().filter(|it| it.answered.is_none()) {
            self.finish_prefill_leg(now, (worker, prompt), leg);
            leg.is_presumed = true;
        }
        self.end_fetch(attempt);
    }

    /// The first token came so long after the prefill worker's answer. Says nothing where that answer came with the
    /// KV cache, or after the token.
    pub(super) fn learn_transfer(&mut self, now: Instant, worker: WorkerId, leg: &PrefillLeg) {
        let Some(answered) = leg.answered.filter(|_| !leg.is_presumed) else { return };
        if leg.answer == PrefillAnswer::Computed {
            // A step of its own is part of every first token.
            let floor = self.fleet.worker(worker).map_or(0.0, |it| it.rates.prefill.base);
            let took = now.since(answered).saturating_sub(Duration::from_secs_f64(floor));
            let way = Way::between(leg.worker, worker);
            self.fleet.learn_transfer(way, leg.fetched_before + leg.fetches, took);
        }
    }

    /// The prefill worker has answered: how fast it is.
    fn learn_prefill(&mut self, now: Instant, decodes: WorkerId, leg: &PrefillLeg) {
        let took = now.since(leg.placed_at);
        let transfer = match leg.answer {
            PrefillAnswer::Computed => 0.0,
            // Both grow with the prompt and cannot be told apart: the transfer takes what it usually does.
            PrefillAnswer::Fetched => {
                let way = Way::between(leg.worker, decodes);
                self.fleet.transfer_time(way, leg.fetches).own
            }
        };
        let took = took.saturating_sub(Duration::from_secs_f64(transfer));
        self.fleet.learn_first_token(now, leg.worker, leg.prefill_ahead, took);
    }

    /// What the prefill worker had cached, by its own count.
    fn learn_prefill_hits(
        &mut self,
        prompt: Option<&PromptChain>,
        leg: &PrefillLeg,
        counted: Option<Counted>,
    ) {
        let (Some(prompt), Some(prediction), Some(counted)) = (prompt, &leg.prediction, counted) else {
            return;
        };
        if let (Some(all @ 1..), Some(cached)) = (counted.prompt, counted.cached) {
            let part = (cached as f64 / all as f64).min(1.0);
            self.cache.counted(leg.worker, prompt, prediction, part);
        }
    }
}

impl Brain {
    /// The worker that prefills for another has answered: its part is done.
    pub(super) fn prefilled(
        &mut self,
        now: Instant,
        (request, worker): (RequestId, WorkerId),
        counted: Option<Counted>,
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
        let decodes = attempt.worker;
        let Some(leg) = &mut attempt.prefill_leg else { return };
        parts.learn_prefill(now, decodes, leg);
        parts.finish_prefill_leg(now, (decodes, prompt.as_ref()), leg);
        parts.learn_prefill_hits(prompt.as_ref(), leg, counted);
        parts.see(now, worker, Evidence::Answered, effects);
    }
}

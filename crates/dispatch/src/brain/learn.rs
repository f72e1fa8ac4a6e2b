//! What responses teach: how long they are, how fast a worker is, what its cache really held.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, RequestId};
use maitre_fleet::estimate::{Answers, Counted};

use super::{Brain, Context, Parts};
use crate::event::Form;
use crate::request::{Attempt, PendingRequest, StreamProgress};

/// Fewer pieces of a response say little about a worker's pace.
const PIECES_MIN: u32 = 8;

/// The longest answer that is learned from, as for the estimate of lengths. Chosen: above what any model generates. An engine
/// that counts four billion once would charge its tenant for days of work.
const ANSWER_TOKENS_MAX: u64 = 1 << 20;

impl Brain {
    /// Until enough responses have ended, those under way are all there is to learn from: with responses of a minute
    /// each, a fleet was full before the first one had ended. The same holds for the pace of each worker: a slow one that
    /// held a popular prefix had a hundred requests before its first response had ended.
    pub(super) fn streamed(&mut self, now: Instant, request: RequestId, pieces: u32) {
        let Some(request) = self.pending.get_mut(&request.0) else { return };
        self.parts.learn_step_time(now, request, pieces);
        let tells = request.form == Form::Stream && request.answers == Answers::ONE;
        let Some(attempt) = request.attempt().filter(|_| tells) else { return };
        let worker = self.parts.fleet.worker(attempt.worker);
        let has_few_steps = worker.is_some_and(|it| it.rates.has_few_steps());
        let Some(estimate) = request.model().and_then(|it| self.parts.fleet.estimate_mut(it)) else { return };
        let is_new = estimate.is_new();
        if is_new {
            estimate.learn_at_least(request.delivered.0 + u64::from(pieces));
        }
        if is_new || has_few_steps {
            self.parts.learn_pace(now, Form::Stream, attempt, pieces.saturating_sub(1));
        }
    }
}

impl Parts {
    /// What a stretch of a response says about the worker's steps: so many pieces since the last look.
    pub(super) fn learn_step_time(&mut self, now: Instant, request: &mut PendingRequest, pieces: u32) {
        // The pieces of several answers come in the same steps.
        if request.form != Form::Stream || request.answers != Answers::ONE {
            return;
        }
        let Some(attempt) = request.attempt_mut() else { return };
        let Some(worker) = self.fleet.worker(attempt.worker) else { return };
        let (requests, prefilled) = (worker.promised_by_all().work.requests, worker.prefilled);
        let before = attempt.progress.replace(StreamProgress { at: now, pieces, requests, prefilled });
        if let Some(before) = before.filter(|it| pieces >= it.pieces + PIECES_MIN) {
            let steps = pieces - before.pieces;
            let crowd = (f64::from(before.requests) + f64::from(requests)) / 2.0;
            let prefill = (prefilled - before.prefilled).0 as f64 / f64::from(steps);
            self.fleet.learn_knee(attempt.worker, crowd, prefill, now.since(before.at) / steps);
        }
    }

    /// What a whole response says about its worker, its length and its tenant's charge.
    pub(super) fn learn_from(
        &mut self,
        now: Instant,
        ended: (&PendingRequest, &Attempt),
        counted: Option<Counted>,
        pieces: u32,
    ) {
        let (request, attempt) = ended;
        // The pieces of a stream are about its tokens; those of one body say nothing.
        let pieces = (request.form == Form::Stream).then_some(u64::from(pieces));
        // What another worker had delivered says nothing about this one.
        let delivered = request.delivered.0;
        let own = counted.and_then(|it| it.answer).map(|it| it.saturating_sub(delivered)).or(pieces);
        let own = own.map(|it| it.min(ANSWER_TOKENS_MAX * u64::from(request.answers.0)));
        // Counting tokens takes no prefill, and embedding takes no steps. Several answers take the same steps, so their
        // number of tokens says nothing of the pace.
        if let Some(tokens) = own.filter(|_| request.answers != Answers::NONE) {
            let context = Context { now, settings: &self.settings.queue, fleet: &self.fleet };
            self.scheduler.settle_charge(context, ended, tokens);
        }
        if let Some(tokens) = own.filter(|_| request.answers == Answers::ONE) {
            let steps = u32::try_from(tokens.saturating_sub(1)).unwrap_or(u32::MAX);
            self.learn_pace(now, request.form, attempt, steps);
            let prefill = attempt.prefill_leg.as_ref().map_or(attempt.prefill.tokens, |it| it.fetches);
            let before = request.ask.prefill - prefill;
            let prefill = PrefillWork::after(before, prefill - request.delivered);
            self.fleet.learn_length(attempt.worker, prefill, tokens + delivered);
        }
        // Its blocks may have been reported after its first token.
        if let Some(prompt) = request.prompt.as_ref().filter(|_| attempt.is_counted) {
            self.cache.adopt(attempt.worker, prompt);
        }
        self.learn_cached(request, attempt, counted);
    }

    /// What a finished response says about the worker's cache.
    fn learn_cached(&mut self, request: &PendingRequest, attempt: &Attempt, counted: Option<Counted>) {
        // What was pulled counts as cached, and tells nothing about the worker's own cache. Nor does what another worker
        // has prefilled: some engines count that too, some pass on the count of the prefill worker, which has been learned.
        if attempt.pull.is_some_and(|it| it.source.is_some()) || attempt.prefill_leg.is_some() {
            return;
        }
        let (worker, prediction) = (attempt.worker, &attempt.prediction);
        let (Some(prompt), Some(prediction), Some(counted)) = (&request.prompt, prediction, counted) else {
            return;
        };
        if let (Some(all @ 1..), Some(cached)) = (counted.prompt, counted.cached) {
            let part = (cached as f64 / all as f64).min(1.0);
            self.cache.counted(worker, prompt, prediction, part);
        }
    }

    /// What a response says about the worker's speed.
    fn learn_pace(&mut self, now: Instant, form: Form, attempt: &Attempt, steps: u32) {
        let Some(worker) = self.fleet.worker(attempt.worker) else { return };
        let (prefill, decode) = (worker.rates.prefill, worker.rates.decode);
        let requests = worker.promised_by_all().work.requests;
        // Other requests at the worker over the life of this one: about the mean of its two ends.
        let others = |then: u32| (f64::from(then) + f64::from(requests)) / 2.0;
        match (form, attempt.first_token) {
            (Form::Stream, Some((first, then))) if steps > 0 => {
                let others = others(then.saturating_sub(1));
                self.fleet.learn_step(now, attempt.worker, others, now.since(first) / steps);
            }
            (Form::Whole, _) => {
                // One duration for prefill and decode: each gets its part of the surprise.
                let others = others(attempt.others);
                let prefill = prefill.at(attempt.prefill_ahead);
                let step = decode.at(others);
                let surprise =
                    now.since(attempt.placed_at).as_secs_f64() / (prefill + step * f64::from(steps));
                let seconds =
                    |expected: f64| Duration::try_from_secs_f64(expected * surprise).unwrap_or_default();
                self.fleet.learn_first_token(now, attempt.worker, attempt.prefill_ahead, seconds(prefill));
                if steps > 0 {
                    self.fleet.learn_step(now, attempt.worker, others, seconds(step));
                }
            }
            (Form::Stream, _) => {}
        }
    }
}

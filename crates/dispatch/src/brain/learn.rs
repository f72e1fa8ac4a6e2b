//! What answers teach: how long they are, how fast a worker is, what its cache really held.

use std::time::Duration;

use maitre_base::{Instant, RequestId};
use maitre_fleet::estimate::Counted;

use super::{Attempt, Brain, Mark, PendingRequest, model_of};
use crate::event::Form;

/// Fewer pieces of an answer tell little of a pace.
const STRETCH: u32 = 8;

impl Brain {
    /// Until enough answers have ended, those under way are all there is to learn from: with answers of a
    /// minute each, a fleet was full before the first one had ended.
    pub(super) fn streamed(&mut self, now: Instant, request: RequestId, pieces: u32) {
        self.mark(now, request, pieces);
        let Some(open) = self.open.get(&request.0) else { return };
        let Some(place) = open.placement.filter(|_| open.form == Form::Stream) else { return };
        let Some(estimate) = model_of(open.wanted).and_then(|it| self.fleet.estimate_mut(it)) else { return };
        if !estimate.is_new() {
            return;
        }
        estimate.learn_at_least(u64::from(pieces));
        self.learn_pace(now, Form::Stream, &place, pieces.saturating_sub(1));
    }

    /// What a stretch of an answer tells of the worker's steps: since it was last looked at, so many pieces more.
    pub(super) fn mark(&mut self, now: Instant, request: RequestId, pieces: u32) {
        let Some(open) = self.open.get_mut(&request.0).filter(|it| it.form == Form::Stream) else { return };
        let Some(place) = open.placement.as_mut() else { return };
        let Some(worker) = self.fleet.worker(place.worker) else { return };
        let (requests, done) = (worker.promised_by_all().work.requests, worker.prefilled);
        let before = place.mark.replace(Mark { at: now, pieces, requests, done });
        if let Some(before) = before.filter(|it| pieces >= it.pieces + STRETCH) {
            let steps = pieces - before.pieces;
            let crowd = (f64::from(before.requests) + f64::from(requests)) / 2.0;
            let prefill = (done - before.done).0 as f64 / f64::from(steps);
            self.fleet.learn_bend(place.worker, crowd, prefill, now.since(before.at) / steps);
        }
    }

    /// What a finished answer tells of the worker's cache.
    pub(super) fn learn_cache(&mut self, open: &PendingRequest, place: &Attempt, counted: Option<Counted>) {
        let (Some(prompt), Some(planted), Some(counted)) = (&open.prompt, place.planted, counted) else {
            return;
        };
        if let (Some(all @ 1..), Some(cached)) = (counted.prompt, counted.cached) {
            let part = (cached as f64 / all as f64).min(1.0);
            self.cache.counted(place.worker, prompt, planted, part);
        }
    }

    /// What it tells of its speed.
    pub(super) fn learn_pace(&mut self, now: Instant, form: Form, place: &Attempt, steps: u32) {
        let Some(worker) = self.fleet.worker(place.worker) else { return };
        let (rates, requests) = (worker.rates, worker.promised_by_all().work.requests);
        // Others on the worker besides this one, over its life: about the mean of its ends.
        let others = |then: u32| (f64::from(then) + f64::from(requests)) / 2.0;
        match (form, place.first) {
            (Form::Stream, Some((first, then))) if steps > 0 => {
                let others = others(then.saturating_sub(1));
                self.fleet.learn_step(place.worker, others, now.since(first) / steps);
            }
            (Form::Whole, _) => {
                // One number for both: each gets its part of the surprise.
                let others = others(place.company);
                let (prefill, step) = (rates.prefill.at(place.prefill_ahead as f64), rates.decode.at(others));
                let surprise = now.since(place.at).as_secs_f64() / (prefill + step * f64::from(steps));
                let seconds =
                    |expected: f64| Duration::try_from_secs_f64(expected * surprise).unwrap_or_default();
                self.fleet.learn_first_token(place.worker, place.prefill_ahead, seconds(prefill));
                if steps > 0 {
                    self.fleet.learn_step(place.worker, others, seconds(step));
                }
            }
            (Form::Stream, _) => {}
        }
    }
}

//! A request whose worker pulls KV cache from another one that holds it.

use std::time::Duration;

use maitre_base::{Instant, Promise, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::Way;
use maitre_policy::Fetch;

use super::Parts;
use crate::cache::Held;
use crate::event::{Form, PullFrom};
use crate::placer::pull::Coming;
use crate::request::{Attempt, PendingRequest, Pull};

/// A busy worker is now and then late by a multiple of what was expected.
const LATE_TIMES: f64 = 3.0;

impl Parts {
    /// From where a worker is to pull, and how long it may take.
    pub(super) fn pull_from(
        &self,
        snapshot: &WorkerSnapshot,
        promise: &Promise,
        (fetch, form): (Fetch, Form),
    ) -> Option<PullFrom> {
        let limit = || self.pull_limit(snapshot, promise, fetch);
        let limit = (form == Form::Stream).then(limit);
        fetch.from.map(|worker| PullFrom { worker, tokens: fetch.tokens, limit })
    }

    /// How long the first token of a request that pulls may take.
    fn pull_limit(&self, snapshot: &WorkerSnapshot, promise: &Promise, fetch: Fetch) -> Duration {
        let prefill = snapshot.prefill.at(promise.prefill);
        let expected = snapshot.wait_seconds + prefill + fetch.seconds;
        self.settings.pull_patience + Duration::try_from_secs_f64(LATE_TIMES * expected).unwrap_or_default()
    }

    pub(super) fn begin_pull(&mut self, worker: WorkerId, fetch: Fetch) -> Option<Pull> {
        let Fetch { tokens, from: source, .. } = fetch;
        if tokens == Tokens::ZERO {
            return None;
        }
        let before = self.fleet.begin_pull(worker, source, tokens);
        Some(Pull { source, tokens, before, is_under_way: true })
    }

    /// From now on the worker counts as a holder of the prompt, but until its first token nobody can pull it there.
    pub(super) fn begin_prompt(
        &mut self,
        request: &PendingRequest,
        worker: WorkerId,
        (held, coming): (Option<Held>, Coming),
    ) {
        let may_fetch = self.fleet.has_pulls() || self.cache.has_stores();
        if let (Some(prompt), true) = (&request.prompt, may_fetch) {
            let held = held.unwrap_or_default().prefix();
            self.placer.unfinished.begin((request.id, worker), prompt, (request.ask.prefill, held, coming));
        }
    }

    /// The prompt is computed, or never will be.
    pub(super) fn end_pull(&mut self, request: RequestId, attempt: &mut Attempt) {
        self.placer.unfinished.end(request, attempt.worker);
        if let Some(pull) = attempt.pull.as_mut().filter(|it| it.is_under_way) {
            pull.is_under_way = false;
            self.fleet.end_pull(attempt.worker, pull.source, pull.tokens);
        }
    }

    /// What is not explained by the rest of the prompt was the pull.
    fn pull_took(&self, now: Instant, attempt: &Attempt) -> Duration {
        let worker = self.fleet.worker(attempt.worker);
        let computed = worker.map_or(0.0, |it| it.rates.prefill.at(attempt.prefill_ahead));
        // Peers say how much they promised, and that may be more than a duration holds.
        let computed = Duration::try_from_secs_f64(computed).unwrap_or(Duration::MAX);
        now.since(attempt.placed_at).saturating_sub(computed)
    }

    /// The first token did not come in time, or the engine could not pull.
    pub(super) fn pull_failed(&mut self, now: Instant, attempt: &Attempt, (source, pull): (WorkerId, Pull)) {
        let took = self.pull_took(now, attempt);
        self.fleet.pull_failed(now, (attempt.worker, source), pull.tokens + pull.before, took);
    }

    /// The first token came.
    pub(super) fn learn_pull(&mut self, now: Instant, attempt: &Attempt, pull: Pull) {
        let took = self.pull_took(now, attempt);
        let to = attempt.worker;
        let way = match pull.source {
            Some(source) => Way::between(source, to),
            None => self.cache.way_from_store(to),
        };
        self.fleet.learn_pull(now, way, pull.tokens + pull.before, took);
    }
}

//! A request whose worker pulls KV cache from another one that holds it.

use std::time::Duration;

use maitre_base::{Instant, Promise, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::Way;
use maitre_policy::Fetch;

use super::Parts;
use crate::event::{Form, PullFrom};
use crate::placer::pull::Arriving;
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
        let expected = expected_seconds(snapshot, promise, fetch);
        self.settings.pull_patience + Duration::try_from_secs_f64(LATE_TIMES * expected).unwrap_or_default()
    }

    pub(super) fn begin_pull(&mut self, worker: WorkerId, fetch: Fetch) -> Option<Pull> {
        let Fetch { tokens, from: source, .. } = fetch;
        if tokens == Tokens::ZERO {
            return None;
        }
        let before = self.fleet.begin_pull(worker, source, tokens);
        let prefilled_then = self.fleet.worker(worker).map_or(Tokens::ZERO, |it| {
            let promised = it.rates.prefill.plain_tokens(it.promised_by_all().work.prefill);
            it.prefilled + Tokens(promised as u64)
        });
        Some(Pull { source, tokens, before, prefilled_then, is_under_way: true })
    }

    /// From now on the worker counts as a holder of the prompt, but until its first token nobody can pull it there.
    pub(super) fn begin_prompt(&mut self, request: &PendingRequest, worker: WorkerId, arriving: Arriving) {
        let may_fetch = self.fleet.has_pulls() || self.cache.has_stores();
        if let (Some(prompt), true) = (&request.prompt, may_fetch) {
            self.placer.readers.begin(request.id, prompt);
            self.placer.unfinished.begin((request.id, worker), (prompt, request.ask.prefill), arriving);
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

    /// What neither the rest of the prompt explains, nor prompts that were computed in the meantime, was the pull. While a request
    /// waits for its KV, an engine begins later ones: a pull of 0.4 s behind a prompt of 24,000 tokens looked like one of 2.5.
    fn pull_took(&self, now: Instant, attempt: &Attempt, pull: Pull) -> Duration {
        let worker = self.fleet.worker(attempt.worker);
        let computed = worker.map_or(0.0, |it| {
            let overtook = it.prefilled - pull.prefilled_then;
            it.rates.prefill.at(attempt.prefill_ahead) + it.rates.prefill.slope * overtook.0 as f64
        });
        // Peers say how much they promised, and that may be more than a duration holds.
        let computed = Duration::try_from_secs_f64(computed).unwrap_or(Duration::MAX);
        now.since(attempt.placed_at).saturating_sub(computed)
    }

    /// The first token did not come in time, or the engine could not pull.
    pub(super) fn pull_failed(&mut self, now: Instant, attempt: &Attempt, (source, pull): (WorkerId, Pull)) {
        let took = self.pull_took(now, attempt, pull);
        self.fleet.pull_failed(now, (attempt.worker, source), pull.tokens + pull.before, took);
    }

    /// The first token came.
    pub(super) fn learn_pull(&mut self, now: Instant, attempt: &Attempt, pull: Pull) {
        let took = self.pull_took(now, attempt, pull);
        let to = attempt.worker;
        let way = match pull.source {
            Some(source) => Way::between(source, to),
            None => self.cache.way_from_store(to),
        };
        self.fleet.learn_pull(now, way, pull.tokens + pull.before, took);
    }
}

/// When a prompt is expected to be computed, if its worker fetches that.
pub(super) fn ready_at(
    now: Instant,
    snapshot: &WorkerSnapshot,
    (promise, fetch): (&Promise, Fetch),
) -> Instant {
    now + Duration::try_from_secs_f64(expected_seconds(snapshot, promise, fetch)).unwrap_or(Duration::MAX)
}

fn expected_seconds(snapshot: &WorkerSnapshot, promise: &Promise, fetch: Fetch) -> f64 {
    snapshot.wait_seconds + snapshot.prefill.at(promise.prefill) + fetch.seconds
}

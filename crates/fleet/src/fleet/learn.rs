//! What responses teach about a worker, and about those that it is compared with.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, WorkerId};

use super::Fleet;
use crate::model::{ModelId, Wanted};
use crate::shared_rates::SharedRates;
use crate::worker::Models;

impl Fleet {
    /// What all workers of this model have shown together; `None` stands for workers that list no model.
    pub fn model_rates(&self, base: Option<ModelId>) -> &SharedRates {
        self.rates.of_model(base)
    }

    /// Mean plain tokens to prefill per request of this model, lately.
    pub fn mean_prefill(&self, wanted: Wanted) -> f64 {
        self.model_rates(self.base_wanted(wanted)).mean_prefill()
    }

    /// A first token came `took` after its request was placed, with this much to prefill before it.
    pub fn learn_first_token(&mut self, now: Instant, worker: WorkerId, work: PrefillWork, took: Duration) {
        let Some((it, rates)) = self.worker_and_rates(worker) else { return };
        let plain_tokens = rates.of(it.group()).rates().prefill.plain_tokens(work);
        rates.learn((it.base, it.capacity()), |shared| shared.first_token(&it.rates, work, took));
        it.knee_estimator.first_token(plain_tokens, took);
        it.rates.first_token_beside(rates.of(it.group()).rates(), now, work, took);
    }

    /// The tokens of an answer came `gap` apart, with this many requests in the batch.
    pub fn learn_step(&mut self, now: Instant, worker: WorkerId, requests: f64, gap: Duration) {
        let Some((it, rates)) = self.worker_and_rates(worker) else { return };
        rates.learn((it.base, it.capacity()), |shared| shared.step(requests, gap));
        it.rates.step_beside(rates.of(it.group()).rates(), now, requests, gap);
    }

    /// For a while steps took this long, with this many requests and this many prefill tokens in each.
    pub fn learn_knee(&mut self, worker: WorkerId, requests: f64, prefill: f64, took: Duration) {
        let Some((it, rates)) = self.worker_and_rates(worker) else { return };
        rates.learn((it.base, it.capacity()), |shared| shared.stretch(requests, prefill, took));
        it.knee_estimator.step(requests, prefill, took);
    }

    /// A request had this much to prefill and this many tokens in its answer.
    pub fn learn_length(&mut self, worker: WorkerId, prefill: PrefillWork, answer: u64) {
        if let Some((base, capacity)) = self.worker(worker).map(|it| (it.base, it.capacity())) {
            self.rates.learn((base, capacity), |shared| shared.length(prefill, answer));
        }
    }

    /// Updates which model each worker runs: a new list can also show that two names are one model.
    pub(super) fn find_bases(&mut self) {
        for place in 0..self.workers.len() {
            let Some(it) = &self.workers[place] else { continue };
            let base = match &it.models {
                Models::Known(models) => models.first().map(|&it| self.base(it)),
                Models::Unknown => None,
            };
            let Some(it) = self.workers[place].as_mut().filter(|it| it.base != base) else { continue };
            let was_unknown = it.base.is_none();
            let has_shown = was_unknown && it.rates.is_observed();
            let is_new = base.is_some_and(|it| self.rates.name(it, has_shown));
            if !(was_unknown && (is_new || !has_shown)) {
                it.change_model();
            }
            it.base = base;
        }
        self.find_kinds();
    }

    /// Updates with which workers each one is compared. A worker has joined or left, or has another model or capacity.
    pub(super) fn find_kinds(&mut self) {
        let capacities: Vec<_> = self.workers().map(|it| (it.base, it.capacity())).collect();
        self.rates.find_kinds(&capacities);
        let mut has_changed = false;
        for it in self.workers.iter_mut().flatten() {
            let kind = self.rates.kind((it.base, it.capacity()));
            // Compared with fewer workers than before, its rates are as good as they were.
            if it.kind.is_some_and(|before| kind != Some(before)) {
                it.join_others();
            }
            has_changed |= it.kind != kind;
            it.kind = kind;
        }
        if has_changed {
            self.log.upheaval();
        }
    }
}

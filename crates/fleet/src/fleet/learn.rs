//! What responses teach about a worker, and about the model that it runs.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, WorkerId};

use super::Fleet;
use crate::model::{ModelId, Wanted};
use crate::model_rates::ModelRates;

impl Fleet {
    /// What all workers of this model have shown together; `None` stands for workers that list no model.
    pub fn model_rates(&self, base: Option<ModelId>) -> &ModelRates {
        self.rates.of(base)
    }

    /// Mean plain tokens to prefill per request of this model, lately.
    pub fn mean_prefill(&self, wanted: Wanted) -> f64 {
        self.model_rates(self.base_wanted(wanted)).mean_prefill()
    }

    /// A first token came `took` after its request was placed, with this much to prefill before it.
    pub fn learn_first_token(&mut self, now: Instant, worker: WorkerId, work: PrefillWork, took: Duration) {
        let Some(it) = self.worker(worker) else { return };
        let base = it.base;
        let slowness = it.rates.slowness_beside(self.model_rates(base).rates());
        let model = self.rates.of_mut(base);
        let plain_tokens = model.rates().prefill.plain_tokens(work);
        model.first_token(work, took, slowness);
        let model = *model.rates();
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.first_token(plain_tokens, took);
            it.rates.first_token_beside(&model, now, work, took);
        }
    }

    /// The tokens of an answer came `gap` apart, with this many requests in the batch.
    pub fn learn_step(&mut self, now: Instant, worker: WorkerId, requests: f64, gap: Duration) {
        let Some(base) = self.worker(worker).map(|it| it.base) else { return };
        let model = self.rates.of_mut(base);
        model.step(requests, gap);
        let model = *model.rates();
        if let Some(it) = self.worker_mut(worker) {
            it.rates.step_beside(&model, now, requests, gap);
        }
    }

    /// For a while steps took this long, with this many requests and this many prefill tokens in each.
    pub fn learn_knee(&mut self, worker: WorkerId, requests: f64, prefill: f64, took: Duration) {
        let Some(base) = self.worker(worker).map(|it| it.base) else { return };
        self.rates.of_mut(base).stretch(requests, prefill, took);
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.step(requests, prefill, took);
        }
    }

    /// A request had this much to prefill and this many tokens in its answer.
    pub fn learn_length(&mut self, worker: WorkerId, prefill: PrefillWork, answer: u64) {
        let Some(base) = self.worker(worker).map(|it| it.base) else { return };
        self.rates.of_mut(base).length(prefill, answer);
    }
}

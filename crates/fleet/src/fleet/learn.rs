//! What responses teach about a worker, and about those that it is compared with.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, Tokens, WorkerId};

use super::Fleet;
use crate::model::{ModelId, Wanted};
use crate::shared_rates::{Group, SharedRates};
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
        let Some((group, rates)) = self.worker(worker).map(|it| (it.group(), it.rates)) else { return };
        let plain_tokens = self.rates.of(group).rates().prefill.plain_tokens(work);
        self.rates.learn(group, |it| it.first_token(&rates, work, took));
        let shared = *self.rates.of(group).rates();
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.first_token(plain_tokens, took);
            it.rates.first_token_beside(&shared, now, work, took);
        }
    }

    /// The tokens of an answer came `gap` apart, with this many requests in the batch.
    pub fn learn_step(&mut self, now: Instant, worker: WorkerId, requests: f64, gap: Duration) {
        let Some(group) = self.group_of(worker) else { return };
        self.rates.learn(group, |it| it.step(requests, gap));
        let shared = *self.rates.of(group).rates();
        if let Some(it) = self.worker_mut(worker) {
            it.rates.step_beside(&shared, now, requests, gap);
        }
    }

    /// For a while steps took this long, with this many requests and this many prefill tokens in each.
    pub fn learn_knee(&mut self, worker: WorkerId, requests: f64, prefill: f64, took: Duration) {
        let Some(group) = self.group_of(worker) else { return };
        self.rates.learn(group, |it| it.stretch(requests, prefill, took));
        if let Some(it) = self.worker_mut(worker) {
            it.knee_estimator.step(requests, prefill, took);
        }
    }

    /// A request had this much to prefill and this many tokens in its answer.
    pub fn learn_length(&mut self, worker: WorkerId, prefill: PrefillWork, answer: u64) {
        if let Some(group) = self.group_of(worker) {
            self.rates.learn(group, |it| it.length(prefill, answer));
        }
    }

    pub(super) fn group_of(&self, worker: WorkerId) -> Option<Group> {
        self.worker(worker).map(|it| it.group())
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
            let is_first = it.base.is_none() && base.is_some_and(|it| self.rates.name(it));
            if !is_first {
                it.change_model();
            }
            it.base = base;
            let group = it.group();
            self.rates.add_kind(group);
        }
    }

    /// The worker has reported another capacity than this: it may have another kind of GPU than was known.
    pub(super) fn find_kind(&mut self, worker: WorkerId, before: Option<Tokens>) {
        let Some(group) = self.group_of(worker) else { return };
        let kind = self.rates.kind((group.0, before));
        if self.rates.add_kind(group) {
            self.log.upheaval();
        }
        let has_changed = self.rates.kind(group) != kind;
        if let Some(it) = self.worker_mut(worker).filter(|_| has_changed) {
            it.join_others();
        }
    }
}

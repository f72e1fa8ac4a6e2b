//! What the workers of one model have shown together: how fast they are, how attention grows, where their knee lies.
//!
//! A router may serve several models, and one may take ten times as long for a token as another. With one fit for all
//! of them, the lines went through two clouds of points. The large model's workers seemed slow, the small model's
//! fast, and each seemed to have turned unlike the others. The slope of a step came from the difference between the
//! models, and so did the figure for attention. So every model has its own fits, and its workers are compared with
//! each other only.
//!
//! A worker runs one model, under all its names and adapters. Workers that list no model share one entry. A model that
//! has shown nothing yet is expected to be like the mean of the others, or like the usual figures.
//!
//! Left out: several kinds of GPU with one model. A worker's own fits are all that tells them apart (see `rates`).

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_base::{Knee, PrefillWork};

use crate::attention::Attention;
use crate::knee::KneeEstimator;
use crate::model::ModelId;
use crate::rates::{LinearFit, Priors, Rates};

/// What is learned from all workers of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelRates {
    rates: Rates,
    /// What the model was expected to be like when its first worker answered.
    priors: Priors,
    attention: Attention,
    knee_estimator: KneeEstimator,
    knee: Knee,
    /// That of the estimator, which mirrors do not copy.
    mean_prefill: f64,
}

impl ModelRates {
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// The knee of its workers as a whole.
    pub fn knee(&self) -> Knee {
        self.knee
    }

    /// Mean plain tokens to prefill per request, lately.
    pub fn mean_prefill(&self) -> f64 {
        self.mean_prefill
    }

    pub(crate) fn knee_estimator(&self) -> &KneeEstimator {
        &self.knee_estimator
    }

    /// A first token came `took` after its request was placed at a worker that is so many times slower than the others.
    pub(crate) fn first_token(&mut self, work: PrefillWork, took: Duration, slowness: f64) {
        let plain_tokens = self.rates.prefill.plain_tokens(work);
        let seconds = took.as_secs_f64() / slowness;
        self.attention.learn(work, self.rates.tame_first_token(work, seconds));
        self.rates.first_token(work, took, self.priors.first_token);
        self.knee_estimator.first_token(plain_tokens, took);
    }

    /// The tokens of an answer came `gap` apart, with this many requests in the batch.
    pub(crate) fn step(&mut self, requests: f64, gap: Duration) {
        self.rates.step(requests, gap, self.priors.step);
    }

    /// For a while steps took this long, with this many requests and this many prefill tokens in each.
    pub(crate) fn stretch(&mut self, requests: f64, prefill: f64, took: Duration) {
        self.knee_estimator.step(requests, prefill, took);
    }

    /// A request had this much to prefill and this many tokens in its answer.
    pub(crate) fn length(&mut self, prefill: PrefillWork, answer: u64) {
        self.knee_estimator.answer(self.rates.prefill.plain_tokens(prefill), answer as f64);
        self.mean_prefill = self.knee_estimator.mean_prefill();
    }

    /// Another router has learned how fast one of its workers is.
    pub(crate) fn hear(&mut self, rates: (LinearFit, LinearFit)) {
        self.rates.hear_of_any(rates, self.priors);
    }

    fn settle(&mut self) {
        self.rates.attend(self.attention.part());
        self.knee = self.knee_estimator.knee(&self.knee_estimator);
    }

    /// Copies what a snapshot shows or a choice reads.
    fn follow(&mut self, other: &ModelRates) {
        (self.rates, self.knee, self.mean_prefill) = (other.rates, other.knee, other.mean_prefill);
    }
}

/// The rates of each model. It has at most as many as the fleet has model names.
#[derive(Clone, Debug, Default)]
pub(crate) struct RatesByModel {
    /// Of the workers that list no model.
    unlisted: ModelRates,
    listed: BTreeMap<ModelId, ModelRates>,
}

impl RatesByModel {
    pub(crate) fn of(&self, model: Option<ModelId>) -> &ModelRates {
        model.and_then(|it| self.listed.get(&it)).unwrap_or(&self.unlisted)
    }

    pub(crate) fn of_mut(&mut self, model: Option<ModelId>) -> &mut ModelRates {
        match model {
            Some(model) => self.listed.entry(model).or_default(),
            None => &mut self.unlisted,
        }
    }

    /// The workers that listed no model now list this one. Returns whether they are its first, so that what they have
    /// shown is what is known of it.
    pub(crate) fn name(&mut self, model: ModelId) -> bool {
        let is_new = !self.listed.contains_key(&model);
        if is_new {
            self.listed.insert(model, self.unlisted.clone());
        }
        is_new
    }

    /// Updates attention and knees, and what is expected of models that have shown nothing.
    pub(crate) fn settle(&mut self) {
        let priors = self.mean().map(Priors::like);
        for it in self.listed.values_mut().chain([&mut self.unlisted]) {
            it.settle();
            if let Some(priors) = priors.filter(|_| it.rates.is_blank()) {
                it.priors = priors;
                it.rates.expect(priors);
            }
        }
    }

    /// The mean fits of the models that have shown theirs.
    fn mean(&self) -> Option<(LinearFit, LinearFit)> {
        let all = || self.listed.values().chain([&self.unlisted]).filter(|it| it.rates.is_learned());
        let mean = |of: fn(&Rates) -> f64| all().map(|it| of(&it.rates)).sum::<f64>() / all().count() as f64;
        all().next()?;
        let prefill = LinearFit { base: mean(|it| it.prefill.base), slope: mean(|it| it.prefill.slope) };
        let decode = LinearFit { base: mean(|it| it.decode.base), slope: mean(|it| it.decode.slope) };
        Some((prefill, decode))
    }

    /// Copies what has changed of one model.
    pub(crate) fn follow(&mut self, model: Option<ModelId>, other: &RatesByModel) {
        self.of_mut(model).follow(other.of(model));
    }
}

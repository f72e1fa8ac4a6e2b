//! What workers of one model have shown together: how fast they are, how attention grows, where their knee lies.
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
//! The same goes for two kinds of GPU with one model. There the router cannot go by speed: a slow worker would become
//! a kind of its own, and be compared with itself. It goes by the KV capacity that engines report, which another GPU, or
//! another number of them, changes and a fault does not. With it, responses of four `h200-8b` and four `a10g-8b` end 8 %
//! sooner, and their p99 falls from 14.9 to 4.7 s (nine seeds). Without it, this gave 2 to 3 %: a worker's own fit of
//! its steps, shrunk towards its model's with a weight of 8, 32 or 100, and steps divided by how slow the worker's
//! prefill is. Both also change fleets of one kind.
//!
//! Left out: kinds of GPU with equal memory, and engines that report no capacity. Only a worker's own fits distinguish
//! those (see `rates`).

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_base::{Knee, PrefillWork, Tokens};

use crate::attention::Attention;
use crate::knee::KneeEstimator;
use crate::model::ModelId;
use crate::rates::{LinearFit, Priors, Rates};
use crate::staleness::is_unlike;

/// Maximum number of kinds of GPU that a model has. Chosen; further ones are compared with all its workers.
const KINDS_MAX: usize = 8;
/// Workers whose capacities differ by more than this factor are of two kinds. Engines with equal flags differ by a few
/// percent, an H200 and a B200 with an 8B model by a third.
const OTHER_KIND: f64 = 1.25;

/// What is learned from several workers.
#[derive(Clone, Debug, Default)]
pub struct SharedRates {
    rates: Rates,
    /// What they were expected to be like when the first of them answered.
    priors: Priors,
    attention: Attention,
    knee_estimator: KneeEstimator,
    knee: Knee,
    /// That of the estimator, which mirrors do not copy.
    mean_prefill: f64,
}

impl SharedRates {
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// The knee of these workers as a whole.
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

    /// A first token came `took` after its request was placed at a worker with these rates.
    pub(crate) fn first_token(&mut self, worker: &Rates, work: PrefillWork, took: Duration) {
        let plain_tokens = self.rates.prefill.plain_tokens(work);
        let seconds = took.as_secs_f64() / worker.slowness_beside(&self.rates);
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

    /// Another router has learned how fast one of these workers is.
    pub(crate) fn hear(&mut self, rates: (LinearFit, LinearFit)) {
        self.rates.hear_of_any(rates, self.priors);
    }

    /// Updates attention and knee, and what is expected of workers that have shown nothing.
    fn settle(&mut self, expected: Option<(LinearFit, LinearFit)>) {
        self.rates.attend(self.attention.part());
        self.knee = self.knee_estimator.knee(&self.knee_estimator);
        if let Some(fits) = expected.filter(|_| self.rates.is_blank()) {
            self.priors = Priors::like(fits);
            self.rates.expect(self.priors);
        }
    }

    /// The fits, if they are learned.
    fn fits(&self) -> Option<(LinearFit, LinearFit)> {
        self.rates.is_learned().then(|| (self.rates.prefill.by_plain_tokens(), self.rates.decode))
    }

    /// Copies what a snapshot shows or a choice reads.
    fn follow(&mut self, other: &SharedRates) {
        (self.rates, self.knee, self.mean_prefill) = (other.rates, other.knee, other.mean_prefill);
    }
}

/// The rates of one model.
#[derive(Clone, Debug, Default)]
struct ModelRates {
    all: SharedRates,
    /// By the capacity of their first worker. While there is one kind, only `all` counts.
    kinds: Vec<(Tokens, SharedRates)>,
}

impl ModelRates {
    /// The place of the kind with this capacity; `None` if the router does not distinguish it.
    fn kind(&self, capacity: Option<Tokens>) -> Option<usize> {
        let capacity = capacity.filter(|_| self.kinds.len() > 1)?;
        self.kinds.iter().position(|it| are_alike(it.0, capacity))
    }

    fn of(&self, capacity: Option<Tokens>) -> &SharedRates {
        self.kind(capacity).map_or(&self.all, |it| &self.kinds[it].1)
    }

    fn learn(&mut self, capacity: Option<Tokens>, mut learn: impl FnMut(&mut SharedRates)) {
        learn(&mut self.all);
        if let Some(kind) = self.kind(capacity) {
            learn(&mut self.kinds[kind].1);
        }
    }

    /// A worker with this capacity exists. Returns whether the router distinguishes another kind from now on.
    fn add_kind(&mut self, capacity: Tokens) -> bool {
        if self.kinds.len() == KINDS_MAX || self.kinds.iter().any(|it| are_alike(it.0, capacity)) {
            return false;
        }
        // All that was learned so far is about the first kind.
        if let [(_, first)] = &mut self.kinds[..] {
            first.clone_from(&self.all);
        }
        self.kinds.push((capacity, SharedRates::default()));
        self.kinds.len() > 1
    }

    fn settle(&mut self, expected: Option<(LinearFit, LinearFit)>) {
        self.all.settle(expected);
        let expected = self.all.fits().or(expected);
        self.kinds.iter_mut().for_each(|it| it.1.settle(expected));
    }
}

fn are_alike(one: Tokens, other: Tokens) -> bool {
    !is_unlike(one.0 as f64, other.0 as f64, OTHER_KIND)
}

/// Whose rates a worker shares: the model that it runs, and its KV capacity if its engine reports that.
pub(crate) type Group = (Option<ModelId>, Option<Tokens>);

/// The rates of each model. It has at most as many as the fleet has model names.
#[derive(Clone, Debug, Default)]
pub(crate) struct RatesByModel {
    /// Of the workers that list no model.
    unlisted: ModelRates,
    listed: BTreeMap<ModelId, ModelRates>,
}

impl RatesByModel {
    fn model(&self, model: Option<ModelId>) -> &ModelRates {
        model.and_then(|it| self.listed.get(&it)).unwrap_or(&self.unlisted)
    }

    fn model_mut(&mut self, model: Option<ModelId>) -> &mut ModelRates {
        match model {
            Some(model) => self.listed.entry(model).or_default(),
            None => &mut self.unlisted,
        }
    }

    /// The rates of all workers of a model.
    pub(crate) fn of_model(&self, model: Option<ModelId>) -> &SharedRates {
        &self.model(model).all
    }

    /// The rates that a worker is compared with.
    pub(crate) fn of(&self, (model, capacity): Group) -> &SharedRates {
        self.model(model).of(capacity)
    }

    /// A worker of this group has shown something.
    pub(crate) fn learn(&mut self, (model, capacity): Group, learn: impl FnMut(&mut SharedRates)) {
        self.model_mut(model).learn(capacity, learn);
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

    /// A worker of this group exists. Returns whether the router distinguishes another kind of GPU from now on.
    pub(crate) fn add_kind(&mut self, (model, capacity): Group) -> bool {
        capacity.is_some_and(|it| self.model_mut(model).add_kind(it))
    }

    /// The kind of GPU of such a worker among those of its model; `None` if the router does not distinguish it.
    pub(crate) fn kind(&self, (model, capacity): Group) -> Option<usize> {
        self.model(model).kind(capacity)
    }

    /// Updates attention and knees, and what is expected of models that have shown nothing.
    pub(crate) fn settle(&mut self) {
        let expected = self.mean();
        self.listed.values_mut().chain([&mut self.unlisted]).for_each(|it| it.settle(expected));
    }

    /// The mean fits of the models that have shown theirs.
    fn mean(&self) -> Option<(LinearFit, LinearFit)> {
        let all = || self.listed.values().chain([&self.unlisted]).filter_map(|it| it.all.fits());
        let count = all().count() as f64;
        let mean = |of: fn((LinearFit, LinearFit)) -> f64| all().map(of).sum::<f64>() / count;
        let prefill = LinearFit { base: mean(|it| it.0.base), slope: mean(|it| it.0.slope) };
        let decode = LinearFit { base: mean(|it| it.1.base), slope: mean(|it| it.1.slope) };
        (count > 0.0).then_some((prefill, decode))
    }

    /// Copies what has changed of one group.
    pub(crate) fn follow(&mut self, (model, capacity): Group, other: &RatesByModel) {
        let source = other.model(model);
        let own = self.model_mut(model);
        own.all.follow(&source.all);
        if let (Some(kind), true) = (source.kind(capacity), own.kinds.len() == source.kinds.len()) {
            own.kinds[kind].1.follow(&source.kinds[kind].1);
        }
    }
}

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
//! Left out: kinds of GPU with one worker or with equal memory, and engines that report no capacity. Only a worker's own
//! fits distinguish those (see `rates`).

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
const OTHER_CAPACITY: f64 = 1.25;
/// A kind with fewer workers is compared with all workers of its model. A single worker would be compared with itself:
/// once it had been slow, nothing would let its rates fade, and it would get no requests after it has recovered.
const WORKERS_MIN: usize = 2;

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

    /// What workers of another kind are expected to be like, before they have shown anything.
    fn of_another_kind(&self) -> SharedRates {
        let SharedRates { attention, knee_estimator, knee, mean_prefill, .. } = *self;
        let mut other =
            SharedRates { attention, knee_estimator, knee, mean_prefill, ..SharedRates::default() };
        other.settle(self.fits());
        other
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

/// A kind of GPU.
#[derive(Clone, Debug)]
struct Kind {
    /// The KV capacity of its first worker. It names the kind.
    capacity: Tokens,
    workers: usize,
    shared: SharedRates,
}

/// The rates of one model.
#[derive(Clone, Debug, Default)]
struct ModelRates {
    all: SharedRates,
    /// While there is one kind, only `all` counts.
    kinds: Vec<Kind>,
}

impl ModelRates {
    /// The kind of workers with this capacity; none while there is one kind only.
    fn kind_of(&mut self, capacity: Option<Tokens>) -> Option<&mut Kind> {
        let capacity = capacity.filter(|_| self.kinds.len() > 1)?;
        self.kinds.iter_mut().find(|it| are_alike(it.capacity, capacity))
    }

    /// The name of the kind whose workers one with this capacity is compared with.
    fn name_of(&self, capacity: Option<Tokens>) -> Option<Tokens> {
        let capacity = capacity.filter(|_| self.kinds.len() > 1)?;
        let kind = self.kinds.iter().find(|it| are_alike(it.capacity, capacity))?;
        (kind.workers >= WORKERS_MIN).then_some(kind.capacity)
    }

    fn of(&self, kind: Option<Tokens>) -> &SharedRates {
        let named = self.kinds.iter().find(|it| Some(it.capacity) == kind);
        named.map_or(&self.all, |it| &it.shared)
    }

    fn learn(&mut self, capacity: Option<Tokens>, mut learn: impl FnMut(&mut SharedRates)) {
        learn(&mut self.all);
        if let Some(kind) = self.kind_of(capacity) {
            learn(&mut kind.shared);
        }
    }

    /// A worker with this capacity exists.
    fn count(&mut self, capacity: Tokens) {
        if let Some(kind) = self.kinds.iter_mut().find(|it| are_alike(it.capacity, capacity)) {
            kind.workers += 1;
        } else if self.kinds.len() < KINDS_MAX {
            // What was learned so far is mostly about the first kind.
            if let [first] = &mut self.kinds[..] {
                first.shared.clone_from(&self.all);
            }
            self.kinds.push(Kind { capacity, workers: 1, shared: self.all.of_another_kind() });
        }
    }

    fn settle(&mut self, expected: Option<(LinearFit, LinearFit)>) {
        self.all.settle(expected);
        let expected = self.all.fits().or(expected);
        self.kinds.iter_mut().for_each(|it| it.shared.settle(expected));
    }
}

fn are_alike(one: Tokens, other: Tokens) -> bool {
    !is_unlike(one.0 as f64, other.0 as f64, OTHER_CAPACITY)
}

/// With whom a worker is compared: those of its model, or of its kind of GPU among them.
pub(crate) type Group = (Option<ModelId>, Option<Tokens>);

/// The rates of each model. It has at most as many as the fleet has model names.
#[derive(Clone, Debug, Default)]
pub(crate) struct RatesByModel {
    /// Of the workers that list no model.
    unlisted: ModelRates,
    /// By number: every decision looks several of them up.
    listed: Vec<Option<Box<ModelRates>>>,
    /// What a model that no worker has listed is expected to be like.
    unknown: ModelRates,
}

impl RatesByModel {
    fn model(&self, model: Option<ModelId>) -> &ModelRates {
        let Some(model) = model else { return &self.unlisted };
        self.listed.get(model.0 as usize).and_then(Option::as_deref).unwrap_or(&self.unknown)
    }

    fn model_mut(&mut self, model: Option<ModelId>) -> &mut ModelRates {
        match model {
            Some(model) => self.place_of(model).get_or_insert_default(),
            None => &mut self.unlisted,
        }
    }

    fn place_of(&mut self, model: ModelId) -> &mut Option<Box<ModelRates>> {
        let places = self.listed.len().max(model.0 as usize + 1);
        self.listed.resize_with(places, || None);
        &mut self.listed[model.0 as usize]
    }

    /// The rates of all workers of a model.
    pub(crate) fn of_model(&self, model: Option<ModelId>) -> &SharedRates {
        &self.model(model).all
    }

    /// The rates that a worker of this group is compared with.
    pub(crate) fn of(&self, (model, kind): Group) -> &SharedRates {
        self.model(model).of(kind)
    }

    /// A worker of this model, with this KV capacity, has shown something.
    pub(crate) fn learn(
        &mut self,
        (model, capacity): (Option<ModelId>, Option<Tokens>),
        learn: impl FnMut(&mut SharedRates),
    ) {
        self.model_mut(model).learn(capacity, learn);
    }

    /// A worker lists this model. Returns whether it is the first. If the worker has shown something while it listed
    /// none, that is what is known of the model.
    pub(crate) fn name(&mut self, model: ModelId, has_shown: bool) -> bool {
        if self.place_of(model).is_some() {
            return false;
        }
        let mut rates = if has_shown { self.unlisted.clone() } else { ModelRates::default() };
        if let Some(mean) = self.mean().filter(|_| !has_shown) {
            rates.settle(Some(mean));
        }
        *self.place_of(model) = Some(Box::new(rates));
        true
    }

    /// Finds the kinds of GPU among workers with these models and KV capacities.
    pub(crate) fn find_kinds(&mut self, workers: &[(Option<ModelId>, Option<Tokens>)]) {
        for it in self.all_mut() {
            it.kinds.iter_mut().for_each(|it| it.workers = 0);
        }
        for &(model, capacity) in workers {
            if let Some(capacity) = capacity {
                self.model_mut(model).count(capacity);
            }
        }
        self.all_mut().for_each(|it| it.kinds.retain(|it| it.workers > 0));
    }

    /// The kind of GPU whose workers such a worker is compared with, if the router distinguishes it.
    pub(crate) fn kind(&self, (model, capacity): (Option<ModelId>, Option<Tokens>)) -> Option<Tokens> {
        self.model(model).name_of(capacity)
    }

    /// Updates attention and knees, and what is expected of models that have shown nothing.
    pub(crate) fn settle(&mut self) {
        let expected = self.mean();
        self.all_mut().for_each(|it| it.settle(expected));
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut ModelRates> {
        let listed = self.listed.iter_mut().flatten().map(AsMut::as_mut);
        listed.chain([&mut self.unlisted, &mut self.unknown])
    }

    /// The mean fits of the models that have shown theirs.
    fn mean(&self) -> Option<(LinearFit, LinearFit)> {
        let listed = || self.listed.iter().flatten().map(AsRef::as_ref);
        let all = || listed().chain([&self.unlisted]).filter_map(|it| it.all.fits());
        let count = all().count() as f64;
        let mean = |of: fn((LinearFit, LinearFit)) -> f64| all().map(of).sum::<f64>() / count;
        let prefill = LinearFit { base: mean(|it| it.0.base), slope: mean(|it| it.0.slope) };
        let decode = LinearFit { base: mean(|it| it.1.base), slope: mean(|it| it.1.slope) };
        (count > 0.0).then_some((prefill, decode))
    }

    /// Copies what has changed of one group.
    pub(crate) fn follow(&mut self, (model, kind): Group, other: &RatesByModel) {
        let source = other.model(model);
        let own = self.model_mut(model);
        own.all.follow(&source.all);
        if let Some(own) = own.kinds.iter_mut().find(|it| Some(it.capacity) == kind) {
            own.shared.follow(source.of(kind));
        }
    }
}

//! One strategy per model, so that turns and pins of different models do not mix.

use maitre_base::Rng;
use maitre_fleet::ModelId;
use maitre_policy::{Ask, Candidate, Name, Pick, Strategy, StrategyKnobs};

#[derive(Clone, Debug)]
pub(crate) struct Strategies {
    /// By the number of the model.
    models: Vec<Option<Box<Strategy>>>,
    /// For requests whose model no worker lists, or that name none.
    unlisted: Strategy,
}

impl Strategies {
    pub(crate) fn new(name: Name, knobs: StrategyKnobs) -> Strategies {
        Strategies { models: Vec::new(), unlisted: Strategy::new(name, knobs) }
    }

    /// The strategy of this model; of a model that was never added, that of unlisted models.
    pub(crate) fn of(&self, model: Option<ModelId>) -> &Strategy {
        let known = model.and_then(|it| self.models.get(it.0 as usize)?.as_deref());
        known.unwrap_or(&self.unlisted)
    }

    pub(crate) fn of_mut(&mut self, model: Option<ModelId>) -> &mut Strategy {
        let known = model.and_then(|it| self.models.get_mut(it.0 as usize)?.as_deref_mut());
        known.unwrap_or(&mut self.unlisted)
    }

    /// The strategy of a model that was added; none if it was not.
    pub(crate) fn get_mut(&mut self, model: ModelId) -> Option<&mut Strategy> {
        self.models.get_mut(model.0 as usize)?.as_deref_mut()
    }

    /// Gives a model a strategy of its own, unless it has one.
    pub(crate) fn add(&mut self, model: ModelId, name: Name, knobs: StrategyKnobs) -> &mut Strategy {
        let place = model.0 as usize;
        self.models.resize_with(self.models.len().max(place + 1), || None);
        self.models[place].get_or_insert_with(|| Box::new(Strategy::new(name, knobs)))
    }

    /// Changes rules and knobs; a strategy whose rule stays the same keeps its turns and pins.
    pub(crate) fn retune(
        &mut self,
        unlisted: Name,
        of_model: impl Fn(ModelId) -> Name,
        knobs: StrategyKnobs,
    ) {
        self.unlisted.retune(unlisted, knobs);
        for (number, strategy) in (0..).zip(&mut self.models) {
            if let Some(strategy) = strategy {
                strategy.retune(of_model(ModelId(number)), knobs);
            }
        }
    }
}

/// A strategy and its dice. A dry run leaves both as they were.
pub(crate) enum Decider<'a> {
    /// With the prices of all candidates.
    Priced(&'a mut Strategy, &'a mut Rng, &'a [f64]),
    Commit(&'a mut Strategy, &'a mut Rng),
    DryRun(&'a Strategy, &'a Rng),
}

impl Decider<'_> {
    pub(crate) fn pick(self, ask: &Ask, candidates: &[Candidate]) -> Option<Pick> {
        match self {
            Decider::Priced(strategy, rng, prices) => strategy.pick_priced(ask, candidates, prices, rng),
            Decider::Commit(strategy, rng) => strategy.pick(ask, candidates, rng),
            Decider::DryRun(strategy, rng) => strategy.peek(ask, candidates, rng),
        }
    }
}

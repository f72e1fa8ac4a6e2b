//! Strategies that are asked and not obeyed: what each would have picked, on the same workers at the same instant.
//!
//! A shadow has everything that a strategy has, its own turns and pins for each model and its own dice, and nothing
//! that happens to it reaches the strategy in charge. It is compared by what was foreseen, not by what came: nobody
//! can know what would have come. So it sees a fleet that the strategy in charge has filled, and what its own seats
//! would have done to caches and queues later is not in its numbers; for that, replay the traffic.

use std::borrow::Cow;

use maitre_base::hash::NumberMap;
use maitre_base::{Rng, WorkerId};
use maitre_fleet::ModelId;
use maitre_policy::{Ask, Candidate, Knobs, Name, Strategy, Why, least_delay};

use crate::observer::decision::Opening;
use crate::observer::forecast::Forecast;

/// What a shadow would have done with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote {
    pub strategy: Name,
    pub worker: WorkerId,
    /// The worker's, by which it is known when its number is another's.
    pub key: u64,
    pub why: Why,
    /// Seconds that it would have cost everyone there, and to the first token.
    pub price: f64,
    pub ttft: f64,
}

/// How a shadow has done beside the strategy in charge, in sums over its decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowScore {
    pub name: Name,
    pub decisions: u64,
    /// Those in which it would have gone elsewhere.
    pub differed: u64,
    pub price_seconds: f64,
    pub our_price_seconds: f64,
    pub ttft_seconds: f64,
    pub our_ttft_seconds: f64,
}

#[derive(Clone, Debug)]
struct Shadow {
    score: ShadowScore,
    /// By the number of the model.
    strategies: NumberMap<Strategy>,
    unlisted: Strategy,
}

#[derive(Clone, Debug)]
pub(crate) struct Shadows {
    shadows: Vec<Shadow>,
    /// The part of all decisions that they are asked about.
    sample: f64,
    knobs: Knobs,
    rng: Rng,
}

/// A decision as shadows see it.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) model: Option<ModelId>,
    pub(crate) ask: &'a Ask,
    /// With all that is known of caches, whether the strategy in charge goes by it or not.
    pub(crate) candidates: &'a [Candidate],
    /// Where each of them is in `openings`, which says who has room now.
    pub(crate) places: &'a [usize],
    pub(crate) openings: &'a [Opening],
    pub(crate) chosen: &'a Candidate,
    pub(crate) forecast: &'a Forecast,
}

impl<'a> Case<'a> {
    /// Those that have room now: mostly all of them.
    fn open(&self) -> Cow<'a, [Candidate]> {
        let is_open = |place: &usize| self.openings[*place] == Opening::Now;
        if self.places.iter().all(is_open) {
            return Cow::Borrowed(self.candidates);
        }
        let open = self.candidates.iter().zip(self.places).filter(|it| is_open(it.1));
        Cow::Owned(open.map(|it| *it.0).collect())
    }

    fn vote(&self, strategy: Name, picked: &Candidate, why: Why) -> Vote {
        let price = least_delay::price(self.ask, picked);
        let ttft = self.forecast.seconds(self.ask, picked);
        Vote { strategy, worker: picked.worker, key: picked.key, why, price, ttft }
    }
}

/// So that shadows and the strategy in charge never throw the same dice.
const DICE: u64 = 0x5AD0_5AD0_5AD0_5AD0;

impl Shadows {
    pub(crate) fn new(names: &[Name], knobs: Knobs, sample: f64, seed: u64) -> Shadows {
        let shadows = names.iter().map(|&name| Shadow::new(name, knobs)).collect();
        Shadows { shadows, sample, knobs, rng: Rng::new(seed ^ DICE) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shadows.is_empty()
    }

    pub(crate) fn scores(&self) -> impl Iterator<Item = ShadowScore> {
        self.shadows.iter().map(|it| it.score)
    }

    /// Other shadows from now on; those that stay keep what they remember, and their sums.
    pub(crate) fn retune(&mut self, names: &[Name], knobs: Knobs, sample: f64) {
        (self.knobs, self.sample) = (knobs, sample);
        let mut before = std::mem::take(&mut self.shadows);
        for &name in names {
            let known = before.iter().position(|it| it.score.name == name);
            let mut shadow = match known {
                Some(place) => before.swap_remove(place),
                None => Shadow::new(name, knobs),
            };
            shadow.unlisted.retune(name, knobs);
            shadow.strategies.values_mut().for_each(|it| it.retune(name, knobs));
            self.shadows.push(shadow);
        }
    }

    /// Asks them all, in place of whatever was in `votes`.
    pub(crate) fn ask(&mut self, case: Case<'_>, votes: &mut Vec<Vote>) {
        votes.clear();
        if self.shadows.is_empty() || (self.sample < 1.0 && self.rng.unit() >= self.sample) {
            return;
        }
        let Case { ask, candidates, chosen, .. } = case;
        let (our_price, our_ttft) = (least_delay::price(ask, chosen), case.forecast.seconds(ask, chosen));
        let open = case.open();
        for shadow in &mut self.shadows {
            let name = shadow.score.name;
            // As if it were in charge: who cannot tell what waiting costs is shown only those that have room.
            let shown = if name.holds_out() { candidates } else { &open };
            let strategy = shadow.strategy(case.model, self.knobs);
            let Some(pick) = strategy.pick(ask, shown, &mut self.rng) else { continue };
            let vote = case.vote(name, &shown[pick.index], pick.why);
            votes.push(vote);
            let score = &mut shadow.score;
            score.decisions += 1;
            score.differed += u64::from(vote.worker != chosen.worker);
            score.price_seconds += vote.price;
            score.our_price_seconds += our_price;
            score.ttft_seconds += vote.ttft;
            score.our_ttft_seconds += our_ttft;
        }
    }

    /// What they would do, and nothing is remembered of it.
    pub(crate) fn peek(&self, case: Case<'_>, votes: &mut Vec<Vote>) {
        votes.clear();
        let open = case.open();
        for shadow in &self.shadows {
            let strategy = shadow.score.name;
            let shown = if strategy.holds_out() { case.candidates } else { &open };
            let known = case.model.and_then(|it| shadow.strategies.get(&u64::from(it.0)));
            let pick = known.unwrap_or(&shadow.unlisted).peek(case.ask, shown, &self.rng);
            votes.extend(pick.map(|it| case.vote(strategy, &shown[it.index], it.why)));
        }
    }
}

impl Shadow {
    fn new(name: Name, knobs: Knobs) -> Shadow {
        let score = ShadowScore {
            name,
            decisions: 0,
            differed: 0,
            price_seconds: 0.0,
            our_price_seconds: 0.0,
            ttft_seconds: 0.0,
            our_ttft_seconds: 0.0,
        };
        Shadow { score, strategies: NumberMap::default(), unlisted: Strategy::new(name, knobs) }
    }

    fn strategy(&mut self, model: Option<ModelId>, knobs: Knobs) -> &mut Strategy {
        let name = self.score.name;
        match model {
            Some(model) => {
                self.strategies.entry(u64::from(model.0)).or_insert_with(|| Strategy::new(name, knobs))
            }
            None => &mut self.unlisted,
        }
    }
}

//! Shadow strategies: asked about every decision and not obeyed, on the same workers at the same instant.
//!
//! A shadow has all that a strategy has: turns and pins per model, and dice of its own. Nothing of it reaches the
//! strategy in charge. It is compared by what was predicted, since what would have happened is unknown. So it sees a
//! fleet that the strategy in charge has filled, and what its own placements would have done to caches and queues later
//! is not in its numbers. For that, replay the traffic.

use std::borrow::Cow;

use maitre_base::{Rng, WorkerId};
use maitre_fleet::ModelId;
use maitre_policy::{Ask, Candidate, Name, StrategyKnobs, Why, least_delay};

use super::forecast::Forecast;
use crate::placer::strategies::{Decider, Strategies};
use crate::placer::survey::{Opening, Survey};

/// What a shadow would have done with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote {
    pub strategy: Name,
    pub worker: WorkerId,
    /// The worker's key, which still names it when another worker has its number.
    pub key: u64,
    pub why: Why,
    /// Predicted cost to everyone, and time to the first token, in seconds.
    pub price: f64,
    pub ttft: f64,
}

/// A shadow compared with the strategy in charge, as sums over its decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowScore {
    pub name: Name,
    pub decisions: u64,
    /// Decisions in which it would have picked another worker.
    pub differed: u64,
    pub price_seconds: f64,
    pub our_price_seconds: f64,
    pub ttft_seconds: f64,
    pub our_ttft_seconds: f64,
}

#[derive(Clone, Debug)]
struct Shadow {
    score: ShadowScore,
    strategies: Strategies,
}

#[derive(Clone, Debug)]
pub(crate) struct Shadows {
    shadows: Vec<Shadow>,
    /// The part of all decisions that they are asked about.
    sample: f64,
    knobs: StrategyKnobs,
    rng: Rng,
}

/// A decision as shadows see it.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) model: Option<ModelId>,
    pub(crate) ask: &'a Ask,
    /// With all that is known of caches, whether the strategy in charge uses it or not.
    pub(crate) survey: &'a Survey,
    pub(crate) chosen: &'a Candidate,
    pub(crate) forecast: &'a Forecast,
}

impl<'a> Case<'a> {
    /// Candidates that have room now: most of the time all of them.
    fn open(&self) -> Cow<'a, [Candidate]> {
        let Survey { candidates, shown, openings, .. } = self.survey;
        let is_open = |place: &usize| openings[*place] == Opening::Now;
        if shown.iter().all(is_open) {
            return Cow::Borrowed(candidates);
        }
        let open = candidates.iter().zip(shown).filter(|it| is_open(it.1));
        Cow::Owned(open.map(|it| *it.0).collect())
    }

    /// What this shadow is shown. As if it were in charge: one that cannot price a wait sees only workers with room.
    fn shown_to<'b>(&self, name: Name, open: &'b [Candidate]) -> &'b [Candidate]
    where
        'a: 'b,
    {
        if name.waits_for_pick() { &self.survey.candidates } else { open }
    }

    fn vote(&self, strategy: Name, picked: &Candidate, why: Why) -> Vote {
        let price = least_delay::price(self.ask, picked);
        let ttft = self.forecast.seconds(self.ask, picked);
        Vote { strategy, worker: picked.worker, key: picked.key, why, price, ttft }
    }
}

/// Keeps the shadows' dice apart from those of the strategy in charge.
const DICE: u64 = 0x5AD0_5AD0_5AD0_5AD0;

impl Shadows {
    pub(crate) fn new(names: &[Name], knobs: StrategyKnobs, sample: f64, seed: u64) -> Shadows {
        let shadows = names.iter().map(|&name| Shadow::new(name, knobs)).collect();
        Shadows { shadows, sample, knobs, rng: Rng::new(seed ^ DICE) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shadows.is_empty()
    }

    pub(crate) fn scores(&self) -> impl Iterator<Item = ShadowScore> {
        self.shadows.iter().map(|it| it.score)
    }

    /// Changes the list of shadows; those that stay keep what they remember, and their sums.
    pub(crate) fn retune(&mut self, names: &[Name], knobs: StrategyKnobs, sample: f64) {
        (self.knobs, self.sample) = (knobs, sample);
        let mut before = std::mem::take(&mut self.shadows);
        for &name in names {
            let known = before.iter().position(|it| it.score.name == name);
            let mut shadow = match known {
                Some(place) => before.swap_remove(place),
                None => Shadow::new(name, knobs),
            };
            shadow.strategies.retune(name, |_| name, knobs);
            self.shadows.push(shadow);
        }
    }

    /// Asks all shadows, and replaces `votes` by what they answer.
    pub(crate) fn ask(&mut self, case: Case<'_>, votes: &mut Vec<Vote>) {
        votes.clear();
        if self.shadows.is_empty() || (self.sample < 1.0 && self.rng.unit() >= self.sample) {
            return;
        }
        let Case { ask, chosen, .. } = case;
        let (our_price, our_ttft) = (least_delay::price(ask, chosen), case.forecast.seconds(ask, chosen));
        let open = case.open();
        for Shadow { score, strategies } in &mut self.shadows {
            let shown = case.shown_to(score.name, &open);
            let strategy = match case.model {
                Some(model) => strategies.add(model, score.name, self.knobs),
                None => strategies.of_mut(None),
            };
            let Some(pick) = Decider::Commit(strategy, &mut self.rng).pick(ask, shown) else { continue };
            let vote = case.vote(score.name, &shown[pick.index], pick.why);
            votes.push(vote);
            score.decisions += 1;
            score.differed += u64::from(vote.worker != chosen.worker);
            score.price_seconds += vote.price;
            score.our_price_seconds += our_price;
            score.ttft_seconds += vote.ttft;
            score.our_ttft_seconds += our_ttft;
        }
    }

    /// What they would answer; nothing is remembered.
    pub(crate) fn peek(&self, case: Case<'_>, votes: &mut Vec<Vote>) {
        votes.clear();
        let open = case.open();
        for Shadow { score, strategies } in &self.shadows {
            let shown = case.shown_to(score.name, &open);
            let pick = Decider::DryRun(strategies.of(case.model), &self.rng).pick(case.ask, shown);
            votes.extend(pick.map(|it| case.vote(score.name, &shown[it.index], it.why)));
        }
    }
}

impl Shadow {
    fn new(name: Name, knobs: StrategyKnobs) -> Shadow {
        let score = ShadowScore {
            name,
            decisions: 0,
            differed: 0,
            price_seconds: 0.0,
            our_price_seconds: 0.0,
            ttft_seconds: 0.0,
            our_ttft_seconds: 0.0,
        };
        Shadow { score, strategies: Strategies::new(name, knobs) }
    }
}

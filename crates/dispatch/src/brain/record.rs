//! Writes down what was decided, among whom, and what became of it; and asks the shadows.
//!
//! All of it comes after the pick. Nothing that is done here reaches a strategy in charge, its dice or a promise: a
//! law in the tests holds every pick against those of a brain that records nothing.

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_fleet::estimate::Counted;
use maitre_policy::{Ask, Candidate, least_delay};

use super::placement::Picked;
use super::{Attempt, Brain, PendingRequest, model_of};
use crate::cache::Question;
use crate::observer::decision::{CANDIDATES_MAX, Considered, Decision, Least, Opening, Outcome, PRICED_MAX};
use crate::observer::forecast::{Foreseen, Prediction};
use crate::observer::hot::{Hot, Sight};
use crate::observer::ring::{self, Ring};
use crate::observer::shadow::{self, Case};

/// Of those that are priced for the record alone, the ones that hold most of the prompt.
const HOLDERS_PRICED: usize = PRICED_MAX / 2;

impl Brain {
    /// What was decided of late.
    pub fn decisions(&self) -> &Ring {
        &self.ring
    }

    /// How shadows have done since they began.
    pub fn shadows(&self) -> impl Iterator<Item = shadow::ShadowScore> {
        self.shadows.scores()
    }

    /// How good our forecasts of first tokens have been of late.
    pub fn prediction(&self) -> Prediction {
        self.forecast.prediction()
    }

    /// The beginnings that prompts have had in common of late, those first that come to most tokens.
    pub fn hottest(&self, now: Instant, limit: usize) -> Vec<Hot> {
        self.prefixes.hottest(now, limit)
    }

    /// Somebody wants to know what is decided, or what others would have decided.
    fn is_watched(&self) -> bool {
        self.ring.is_on() || !self.shadows.is_empty()
    }

    /// A request was picked a worker: writes it down, before anything is promised. The number of the record, zero if
    /// there is none, and what was foreseen.
    pub(super) fn write_down(
        &mut self,
        now: Instant,
        request: RequestId,
        picked: Picked,
    ) -> (u64, Option<Foreseen>) {
        if !self.is_watched() {
            return (0, None);
        }
        self.reveal(request);
        let mut decision = self.ring.lend();
        let foreseen = self.describe(now, request, picked, &mut decision);
        if let (Some(open), Some(chosen)) =
            (self.open.get(&request.0), self.candidates.get(picked.pick.index))
        {
            let case = Case {
                model: model_of(open.wanted),
                ask: &open.ask,
                candidates: &self.candidates,
                places: &self.places,
                openings: &self.openings,
                chosen,
                forecast: &self.forecast,
            };
            self.shadows.ask(case, &mut decision.shadows);
            if let Some(prompt) = open.prompt.as_ref().filter(|_| open.ask.attempt == 0) {
                let (model, tokens) = (case.model, open.ask.prefill);
                let sight = Sight { prompt, tokens, model, candidates: &self.candidates };
                self.prefixes.see(now, sight);
            }
        }
        match self.ring.is_on() {
            true => {
                let number = decision.number;
                self.ring.keep(decision);
                (number, foreseen)
            }
            false => (0, None),
        }
    }

    /// Shows what caches hold of a prompt that the strategy in charge has not looked at, now that it has picked.
    pub(super) fn reveal(&mut self, request: RequestId) {
        let Some(open) = self.open.get(&request.0) else { return };
        let Some(prompt) = open.prompt.as_ref().filter(|_| !self.sees_caches(open)) else { return };
        let mut held = std::mem::take(&mut self.held);
        let question = Question { prompt, tokens: open.ask.prefill, snapshots: &self.snapshots };
        self.cache.peek(question, &mut held);
        for (candidate, &place) in self.candidates.iter_mut().zip(&self.places) {
            let it = held.get(place).copied().unwrap_or_default();
            (candidate.held, candidate.held_below) = (it.tokens, it.below);
        }
        self.held = held;
    }

    /// Fills a record with what is known before the placement is taken.
    pub(super) fn describe(
        &self,
        now: Instant,
        request: RequestId,
        picked: Picked,
        decision: &mut Decision,
    ) -> Option<Foreseen> {
        let open = self.open.get(&request.0)?;
        let chosen = self.candidates.get(picked.pick.index)?;
        let foreseen = self.forecast.foresee(&open.ask, chosen);
        decision.request = request;
        decision.at = now;
        decision.model = model_of(open.wanted);
        decision.strategy = self.strategy_of(open.wanted).name();
        (decision.class, decision.tenant) = (open.class, open.tenant);
        (decision.worker, decision.why) = (chosen.worker, picked.pick.why);
        decision.attempt = open.ask.attempt;
        decision.waited = open.line.waited_by(now);
        decision.ask = open.ask;
        decision.held = open.prompt.as_ref().map(|_| chosen.held);
        decision.predicted = Some(foreseen.seconds);
        decision.candidates_total = self.snapshots.len() as u32;
        self.consider_all(open, picked, &mut decision.candidates);
        Some(foreseen)
    }

    /// The cheapest of those who could take it, and the one that was picked.
    fn consider_all(&self, open: &PendingRequest, picked: Picked, into: &mut Vec<Considered>) {
        let (ask, chosen) = (&open.ask, picked.pick.index);
        let mut least = Least::<CANDIDATES_MAX>::new();
        match picked.is_priced {
            true => {
                let prices = self.strategy_of(open.wanted).prices();
                prices.iter().enumerate().for_each(|(index, &price)| least.see(price, index));
            }
            false => see_some(ask, &self.candidates, chosen, &mut least),
        }
        if !least.has(chosen) {
            least.put_last(least_delay::price(ask, &self.candidates[chosen]), chosen);
        }
        into.clear();
        into.extend(least.iter().map(|(price, index)| {
            self.considered(ask, self.candidates[index], self.openings[self.places[index]], price)
        }));
        if self.candidates.len() < self.snapshots.len() {
            self.consider_shut(open, self.candidates[chosen].worker, into);
        }
    }

    /// Those the strategy was not shown, since they have no room or would be too late. If there are many, the first.
    fn consider_shut(&self, open: &PendingRequest, chosen: WorkerId, into: &mut Vec<Considered>) {
        let is_shut = |place: &usize| self.places.binary_search(place).is_err();
        for place in (0..self.snapshots.len()).filter(is_shut).take(PRICED_MAX) {
            let candidate = self.candidate_at(open, place);
            let price = least_delay::price(&open.ask, &candidate);
            // The one that was chosen stays, wherever it stands.
            if into.len() == CANDIDATES_MAX {
                let may_go = |it: &Considered| it.price > price && it.candidate.worker != chosen;
                let Some(last) = into.iter().rposition(may_go) else { continue };
                into.remove(last);
            }
            let at = into.partition_point(|it| it.price <= price);
            into.insert(at, self.considered(&open.ask, candidate, self.openings[place], price));
        }
    }

    fn considered(&self, ask: &Ask, candidate: Candidate, opening: Opening, price: f64) -> Considered {
        let ttft = self.forecast.seconds(ask, &candidate);
        Considered { candidate, opening, price, ttft: Some(ttft) }
    }

    /// Its first token came.
    pub(super) fn note_first_token(&mut self, now: Instant, place: &Attempt) {
        let took = now.since(place.at);
        self.ring.begin(place.decision, took);
        if let Some(foreseen) = place.foreseen {
            self.forecast.learn(place.worker, foreseen, took.as_secs_f64());
        }
    }

    /// An attempt is over.
    pub(super) fn note_end(
        &mut self,
        now: Instant,
        place: &Attempt,
        outcome: Outcome,
        counted: Option<Counted>,
    ) {
        let end = ring::End { outcome, total: now.since(place.at), counted };
        self.ring.end(place.decision, end);
    }
}

/// Prices those that are worth it where the strategy has no prices: all, or if they are too many some.
fn see_some(ask: &Ask, candidates: &[Candidate], chosen: usize, least: &mut Least<CANDIDATES_MAX>) {
    let price = |index: usize| least_delay::price(ask, &candidates[index]);
    if candidates.len() <= PRICED_MAX {
        (0..candidates.len()).for_each(|it| least.see(price(it), it));
        return;
    }
    let mut holders = Least::<HOLDERS_PRICED>::new();
    for (index, candidate) in candidates.iter().enumerate().filter(|it| it.1.held.0 > 0) {
        holders.see(-(candidate.held.0 as f64), index);
    }
    least.see(price(chosen), chosen);
    holders.iter().filter(|it| it.1 != chosen).for_each(|it| least.see(price(it.1), it.1));
    let rest = (0..PRICED_MAX - HOLDERS_PRICED).filter(|&it| it != chosen && !holders.has(it));
    rest.for_each(|it| least.see(price(it), it));
}

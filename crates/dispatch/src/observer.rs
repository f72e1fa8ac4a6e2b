//! What is recorded about decisions: for people, and for the other routers.
//!
//! The observer is fed with facts after they have happened, and nothing flows back. No pick, dice or promise depends on
//! it: a law in the tests compares every pick with those of a brain that records nothing.

pub mod decision;
pub(crate) mod dirty;
pub mod forecast;
pub mod hot;
pub(crate) mod lane_records;
pub mod ring;
pub mod shadow;

use std::time::Duration;

use maitre_base::{Instant, RequestId, TenantId, WorkerId};
use maitre_fleet::{Fleet, HealthState};
use maitre_policy::{Ask, Candidate, Name, StrategyKnobs, least_delay};

use crate::cache::PromptChain;
use crate::peers::Outbox;
use crate::placer::split::PrefillChoice;
use crate::placer::survey::Survey;
use crate::placer::{Picked, Query, View};
use crate::programs::view::ProgramStep;
use decision::{CANDIDATES_MAX, Considered, Decision, Least, PRICED_MAX};
use dirty::DirtySet;
use forecast::{Forecast, Foreseen};
use hot::{Hot, Prefixes, Sight};
use lane_records::{RecordWriter, RecordsByLane, UnwrittenRecord};
use ring::{End, Ring};
use shadow::{Case, Shadows};

/// Of the workers that are priced for the record alone, those that hold most of the prompt.
const HOLDERS_PRICED: usize = PRICED_MAX / 2;
/// How often everything learned of workers is published again; cluster drops what has not changed.
const ASSESSED_EVERY: Duration = Duration::from_secs(1);

/// What happened to a worker, a request or a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact<'a> {
    /// The first token of an attempt came, so long after its placement.
    FirstToken {
        ticket: Ticket,
        worker: WorkerId,
        took: Duration,
    },
    AttemptEnded {
        ticket: Ticket,
        end: End,
    },
    /// What this router has promised to a worker is different.
    PromiseChanged {
        worker: WorkerId,
    },
    HealthChanged {
        worker: WorkerId,
    },
    WorkerJoined {
        worker: WorkerId,
    },
    WorkerLeft {
        worker: WorkerId,
        key: u64,
    },
    /// A session was pinned; model by the hash of its name, worker by its key.
    SessionPinned {
        model: u64,
        session: u64,
        worker: u64,
    },
    /// A prompt was sent to the worker of this key.
    PromptPlaced {
        worker: u64,
        prompt: &'a PromptChain,
    },
    Spent {
        model: u64,
        tenant: TenantId,
        tokens: u64,
    },
    /// A request was refused, so what it had spent is returned.
    Unspent {
        model: u64,
        tenant: TenantId,
        tokens: u64,
    },
}

/// A placement, before anything is promised for it.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'a> {
    pub(crate) now: Instant,
    pub(crate) request: RequestId,
    pub(crate) query: Query<'a>,
    pub(crate) tenant: TenantId,
    /// Time in the queue, over all attempts.
    pub(crate) waited: Duration,
    pub(crate) picked: Picked,
    pub(crate) prefill: Option<PrefillChoice>,
    pub(crate) view: View<'a>,
    pub(crate) program: Option<ProgramStep>,
}

impl<'a> Placed<'a> {
    fn chosen(&self) -> Option<&'a Candidate> {
        self.view.survey.candidates.get(self.picked.pick.index)
    }

    fn case(&self, chosen: &'a Candidate, forecast: &'a Forecast) -> Case<'a> {
        Case { model: self.query.model(), ask: self.query.ask, survey: self.view.survey, chosen, forecast }
    }
}

/// What the observer keeps with an attempt, and gets back with the facts about it. It means nothing to others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticket {
    /// The number of its record; zero if there is none.
    decision: u64,
    foreseen: Option<Foreseen>,
}

/// What is to be observed.
#[derive(Clone, Copy)]
pub(crate) struct ObserverSettings<'a> {
    pub(crate) decisions_kept: usize,
    pub(crate) shadows: &'a [Name],
    pub(crate) knobs: StrategyKnobs,
    pub(crate) shadow_sample: f64,
}

#[derive(Debug)]
pub(crate) struct Observer {
    ring: Ring,
    forecast: Forecast,
    prefixes: Prefixes,
    by_lane: RecordsByLane,
    shadows: Shadows,
    /// What other routers do not know yet; none while this router is alone.
    dirty: Option<DirtySet>,
    /// When everything learned of workers was last published.
    assessed: Instant,
}

impl Observer {
    pub(crate) fn new(watch: ObserverSettings<'_>, shares: bool, seed: u64) -> Observer {
        Observer {
            ring: Ring::new(watch.decisions_kept),
            forecast: Forecast::default(),
            prefixes: Prefixes::default(),
            by_lane: RecordsByLane::default(),
            shadows: Shadows::new(watch.shadows, watch.knobs, watch.shadow_sample, seed),
            dirty: shares.then(DirtySet::default),
            assessed: Instant::ZERO,
        }
    }

    pub(crate) fn retune(&mut self, watch: ObserverSettings<'_>) {
        self.ring.resize(watch.decisions_kept);
        if !self.ring.is_on() {
            self.prefixes.clear();
            self.by_lane.forget_prefixes();
        }
        self.shadows.retune(watch.shadows, watch.knobs, watch.shadow_sample);
    }

    /// Begins or stops to share with other routers. A router that begins publishes everything once.
    pub(crate) fn share(&mut self, shares: bool, fleet: &Fleet) {
        match (shares, &self.dirty) {
            (false, _) => self.dirty = None,
            (true, Some(_)) => {}
            (true, None) => {
                let dirty = self.dirty.insert(DirtySet::default());
                for worker in fleet.workers() {
                    dirty.promise(worker.id);
                    dirty.assess(worker.id);
                }
            }
        }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    pub(crate) fn forecast(&self) -> &Forecast {
        &self.forecast
    }

    /// The prefixes that recent prompts have in common, those with the most tokens first.
    pub(crate) fn hottest(&self, now: Instant, limit: usize) -> Vec<Hot> {
        let mut all = self.prefixes.clone();
        self.by_lane.add_prefixes(now, &mut all);
        all.hottest(now, limit)
    }

    /// Completes the records whose lists threads have written since.
    pub(crate) fn collect(&mut self, now: Instant) {
        let Observer { ring, prefixes, by_lane, .. } = self;
        by_lane.collect(now, prefixes, |number, list| ring.complete(number, list));
    }

    /// For a thread that writes the lists of its records itself.
    pub(crate) fn add_lane(&mut self, fleet: &Fleet) -> RecordWriter {
        RecordWriter::new(self.by_lane.add(), &self.forecast, fleet)
    }

    /// Whether records may be completed later. A shadow is asked at once, and its answers belong to the record.
    pub(crate) fn may_write_later(&self) -> bool {
        self.ring.is_on() && self.shadows.is_empty()
    }

    pub(crate) fn shadows(&self) -> &Shadows {
        &self.shadows
    }

    pub(crate) fn has_outbox(&self) -> bool {
        self.dirty.as_ref().is_some_and(DirtySet::is_any)
    }

    pub(crate) fn take_outbox(&mut self, fleet: &Fleet, outbox: &mut Outbox) {
        match &mut self.dirty {
            Some(dirty) => dirty.take(fleet, outbox),
            None => outbox.clear(),
        }
    }

    /// Whether anything about placements is recorded.
    pub(crate) fn is_watching(&self) -> bool {
        self.ring.is_on() || !self.shadows.is_empty()
    }

    pub(crate) fn on(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::FirstToken { ticket, worker, took } => {
                self.ring.begin(ticket.decision, took);
                if let Some(foreseen) = ticket.foreseen {
                    self.forecast.learn(worker, foreseen, took.as_secs_f64());
                }
            }
            Fact::AttemptEnded { ticket, end } => self.ring.end(ticket.decision, end),
            Fact::WorkerJoined { worker } => self.forecast.forget(worker),
            Fact::WorkerLeft { worker, .. } => {
                self.prefixes.forget(worker);
                self.by_lane.forget(worker);
            }
            _ => {}
        }
        if let Some(dirty) = &mut self.dirty {
            publish(dirty, fact);
        }
    }

    /// Marks everything that was learned of workers for publication, once in a while.
    pub(crate) fn tick(&mut self, now: Instant, fleet: &Fleet) {
        let Some(dirty) = self.dirty.as_mut().filter(|_| now.since(self.assessed) >= ASSESSED_EVERY) else {
            return;
        };
        self.assessed = now;
        let known = fleet.workers().filter(|it| it.health.state() != HealthState::Probing);
        known.filter(|it| it.rates.to_tell().is_some()).for_each(|it| dirty.assess(it.id));
    }

    /// Records a placement and asks the shadows.
    pub(crate) fn placed(&mut self, placed: &Placed<'_>) -> Ticket {
        let Some(chosen) = placed.chosen() else { return Ticket::default() };
        let mut decision = self.ring.lend();
        let foreseen = self.describe(placed, chosen, &mut decision);
        self.shadows.ask(placed.case(chosen, &self.forecast), &mut decision.shadows);
        let query = &placed.query;
        if let Some(prompt) = query.prompt.filter(|_| query.ask.attempt == 0) {
            let (model, tokens) = (query.model(), query.ask.prefill);
            let candidates = &placed.view.survey.candidates;
            self.prefixes.see(placed.now, Sight { prompt, tokens, model, candidates });
        }
        if !self.ring.is_on() {
            return Ticket::default();
        }
        let ticket = Ticket { decision: decision.number, foreseen: Some(foreseen) };
        self.ring.keep(decision);
        ticket
    }

    /// Records a placement without its list of workers, which follows from the unwritten.
    pub(crate) fn unwritten(&mut self, placed: &Placed<'_>) -> (Ticket, Option<UnwrittenRecord>) {
        let Some(chosen) = placed.chosen() else { return Default::default() };
        let mut decision = self.ring.lend();
        let memory = std::mem::take(&mut decision.candidates);
        let foreseen = self.describe_facts(placed, chosen, &mut decision);
        let query = &placed.query;
        let unwritten = UnwrittenRecord {
            number: decision.number,
            kept: self.ring.kept() as u64,
            now: placed.now,
            ask: *query.ask,
            chosen: placed.picked.pick.index,
            model: query.model(),
            prompt: query.prompt.filter(|_| query.ask.attempt == 0).cloned(),
            memory,
        };
        self.ring.keep(decision);
        (Ticket { decision: unwritten.number, foreseen: Some(foreseen) }, Some(unwritten))
    }

    /// The record of a placement that is not made.
    pub(crate) fn explain(&self, placed: &Placed<'_>) -> Decision {
        let mut decision = Decision::default();
        if let Some(chosen) = placed.chosen() {
            self.describe(placed, chosen, &mut decision);
            self.shadows.peek(placed.case(chosen, &self.forecast), &mut decision.shadows);
        }
        decision
    }

    /// Fills a record with what is known before the promise is made.
    fn describe(&self, placed: &Placed<'_>, chosen: &Candidate, decision: &mut Decision) -> Foreseen {
        self.consider_all(placed, &mut decision.candidates);
        self.describe_facts(placed, chosen, decision)
    }

    /// The same but for the list of workers.
    fn describe_facts(&self, placed: &Placed<'_>, chosen: &Candidate, decision: &mut Decision) -> Foreseen {
        let query = &placed.query;
        let foreseen = self.forecast.foresee(query.ask, chosen);
        decision.request = placed.request;
        decision.at = placed.now;
        decision.model = query.model();
        decision.strategy = placed.view.strategy.name();
        (decision.class, decision.tenant) = (query.class, placed.tenant);
        (decision.worker, decision.why) = (chosen.worker, placed.picked.pick.why);
        decision.attempt = query.ask.attempt;
        decision.waited = placed.waited;
        decision.ask = *query.ask;
        decision.held = query.prompt.map(|_| chosen.cached());
        decision.predicted = Some(foreseen.seconds);
        decision.prefill = placed.prefill;
        decision.program = placed.program;
        decision.candidates_total = placed.view.survey.snapshots.len() as u32;
        foreseen
    }

    /// Lists the cheapest of the candidates, and the chosen one.
    fn consider_all(&self, placed: &Placed<'_>, into: &mut Vec<Considered>) {
        let Placed { query, picked, view, .. } = placed;
        let (survey, ask, chosen) = (view.survey, query.ask, picked.pick.index);
        let seconds = |it: &Candidate| self.forecast.seconds(ask, it);
        match picked.is_priced {
            true => consider_priced(survey, ask, chosen, seconds, into),
            false => {
                let mut least = Least::new();
                see_some(placed, &mut least);
                consider_least(survey, ask, (least, chosen), seconds, into);
            }
        }
        if survey.candidates.len() < survey.snapshots.len() {
            self.consider_hidden(placed, survey.candidates[chosen].worker, into);
        }
    }

    /// Adds workers that the strategy was not shown, since they have no room or would be too late. Of many, the first.
    fn consider_hidden(&self, placed: &Placed<'_>, chosen: WorkerId, into: &mut Vec<Considered>) {
        let Placed { query, view, .. } = placed;
        let is_hidden = |place: &usize| view.survey.shown.binary_search(place).is_err();
        for place in (0..view.survey.snapshots.len()).filter(is_hidden).take(PRICED_MAX) {
            let candidate = view.candidate(query, place);
            let price = least_delay::price(query.ask, &candidate);
            // The chosen one stays, however expensive it is.
            if into.len() == CANDIDATES_MAX {
                let may_go = |it: &Considered| it.price > price && it.candidate.worker != chosen;
                let Some(last) = into.iter().rposition(may_go) else { continue };
                into.remove(last);
            }
            let at = into.partition_point(|it| it.price <= price);
            let (opening, ttft) = (view.survey.openings[place], self.forecast.seconds(query.ask, &candidate));
            into.insert(at, Considered { candidate, opening, price, ttft: Some(ttft) });
        }
    }
}

/// Lists the cheapest of the candidates that the strategy has priced, and the chosen one.
fn consider_priced(
    survey: &Survey,
    ask: &Ask,
    chosen: usize,
    seconds: impl Fn(&Candidate) -> f64,
    into: &mut Vec<Considered>,
) {
    let mut least = Least::new();
    survey.prices.iter().enumerate().for_each(|(index, &price)| least.see(price, index));
    consider_least(survey, ask, (least, chosen), seconds, into);
}

fn consider_least(
    survey: &Survey,
    ask: &Ask,
    (mut least, chosen): (Least<CANDIDATES_MAX>, usize),
    seconds: impl Fn(&Candidate) -> f64,
    into: &mut Vec<Considered>,
) {
    if !least.has(chosen) {
        least.put_last(least_delay::price(ask, &survey.candidates[chosen]), chosen);
    }
    into.clear();
    into.extend(least.iter().map(|(price, index)| {
        let candidate = &survey.candidates[index];
        let (opening, ttft) = (survey.openings[survey.shown[index]], Some(seconds(candidate)));
        Considered { candidate: *candidate, opening, price, ttft }
    }));
}

/// Marks what the other routers must learn of a fact.
fn publish(dirty: &mut DirtySet, fact: Fact<'_>) {
    match fact {
        Fact::FirstToken { .. } | Fact::AttemptEnded { .. } | Fact::WorkerJoined { .. } => {}
        Fact::PromiseChanged { worker } => dirty.promise(worker),
        Fact::HealthChanged { worker } => dirty.assess(worker),
        Fact::WorkerLeft { key, .. } => dirty.leave(key),
        Fact::SessionPinned { model, session, worker } => dirty.pin(model, session, worker),
        Fact::PromptPlaced { worker, prompt } => {
            dirty.place(worker, PromptChain { chunks: None, ..prompt.clone() })
        }
        Fact::Spent { model, tenant, tokens } => dirty.spend(model, tenant, tokens),
        Fact::Unspent { model, tenant, tokens } => dirty.unspend(model, tenant, tokens),
    }
}

/// Prices candidates where the strategy has no prices: all of them, or if they are too many the chosen one, those that
/// hold most of the prompt, and the first ones.
fn see_some(placed: &Placed<'_>, least: &mut Least<CANDIDATES_MAX>) {
    let (ask, chosen) = (placed.query.ask, placed.picked.pick.index);
    let candidates = &placed.view.survey.candidates;
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

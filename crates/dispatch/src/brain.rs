//! Fleet and policy at one table: every event changes what we believe, and some ask for a decision.

use std::collections::BTreeMap;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, Rng, WorkerId};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Evidence, Fleet, ModelId, Promise, Standing, State, Wanted, health};
use maitre_policy::{Ask, Candidate, Knobs, Name, Needs, Strategy};

use crate::budget::{self, Budget};
use crate::event::{Arrival, Effect, Event, Failure, Refusal, Seat};

#[derive(Clone, Debug)]
pub struct Settings {
    pub strategy: Name,
    /// Models that go by a strategy of their own.
    pub strategies: BTreeMap<String, Name>,
    pub knobs: Knobs,
    pub health: health::Settings,
    pub budget: budget::Settings,
    /// Second attempts a request may have after a worker has seen it. With one, a request that kills
    /// its worker takes two down at the most.
    pub failovers_max: u32,
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            strategy: Name::LeastWork,
            strategies: BTreeMap::new(),
            knobs: Knobs::default(),
            health: health::Settings::default(),
            budget: budget::Settings::default(),
            failovers_max: 1,
            seed: 0,
        }
    }
}

impl Settings {
    /// What any of the strategies in use goes by.
    pub fn needs(&self) -> Needs {
        let all = self.strategies.values().chain([&self.strategy]).map(|it| it.needs());
        all.fold(Needs::default(), |sum, it| Needs {
            session: sum.session | it.session,
            head: sum.head | it.head,
        })
    }
}

/// Most attempts of one request, those included that never reached a worker.
pub const ATTEMPTS_MAX: u32 = 8;

/// A request between its arrival and its end.
#[derive(Clone, Debug)]
struct Open {
    wanted: Wanted,
    ask: Ask,
    size: Size,
    decodes: Decodes,
    /// Where it is seated now; none between a failed attempt and the refusal.
    seat: Option<(WorkerId, Promise)>,
    tried: Vec<WorkerId>,
    /// Attempts that reached a worker and failed.
    failovers: u32,
}

#[derive(Debug)]
pub struct Brain {
    settings: Settings,
    fleet: Fleet,
    /// One a model, since turns and pins of different models must not mix.
    strategies: NumberMap<Strategy>,
    /// For requests whose model nobody lists, or that name none.
    unlisted: Strategy,
    open: NumberMap<Open>,
    budget: Budget,
    rng: Rng,
    // Scratch, so that a decision allocates nothing per worker.
    standings: Vec<Standing>,
    candidates: Vec<Candidate>,
}

impl Brain {
    pub fn new(settings: Settings) -> Brain {
        Brain {
            fleet: Fleet::new(settings.health),
            strategies: NumberMap::default(),
            unlisted: Strategy::new(settings.strategy, settings.knobs),
            open: NumberMap::default(),
            budget: Budget::new(settings.budget),
            rng: Rng::new(settings.seed),
            standings: Vec::new(),
            candidates: Vec::new(),
            settings,
        }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Requests that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn on(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        match event {
            Event::WorkerJoined { url } => effects.push(Effect::Watch { worker: self.fleet.add(url) }),
            Event::WorkerGone { worker } => {
                self.fleet.remove(worker);
                effects.push(Effect::Forget { worker });
            }
            Event::WorkerDrained { worker, draining } => self.fleet.drain(worker, draining),
            Event::Probed { worker, evidence } => self.see(now, worker, evidence, effects),
            Event::ModelsReported { worker, names } => self.learn_models(worker, names),
            Event::LoadReported { worker, load } => self.fleet.report(now, worker, load),
            Event::Arrived(arrival) => self.arrived(now, &arrival, effects),
            Event::Failed { request, failure } => self.failed(now, request, failure, effects),
            Event::FirstToken { request } => self.first_token(now, request, effects),
            Event::Finished { request, counted } => self.finished(request, counted),
            Event::BrokeOff { request } => self.broke_off(now, request, effects),
            Event::Left { request } => drop(self.close(request)),
            Event::Tick => self.tick(now, effects),
        }
    }

    fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence, effects: &mut Vec<Effect>) {
        let change = self.fleet.see(now, worker, evidence);
        effects.extend(change.map(Effect::Changed));
        // A doubt raised by traffic is settled by a probe, at once.
        if change.is_some_and(|it| matches!(it.to, State::Suspect { .. })) {
            effects.push(Effect::Probe { worker });
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut changes = Vec::new();
        self.fleet.settle(now, &mut changes);
        effects.extend(changes.into_iter().map(Effect::Changed));
    }

    fn learn_models(&mut self, worker: WorkerId, names: &[&str]) {
        self.fleet.learn_models(worker, names.iter().copied());
        for name in names {
            let Some(model) = self.fleet.model(name) else { continue };
            self.strategies.entry(u64::from(model.0)).or_insert_with(|| {
                let own = self.settings.strategies.get(*name).copied();
                Strategy::new(own.unwrap_or(self.settings.strategy), self.settings.knobs)
            });
        }
    }

    fn arrived(&mut self, now: Instant, arrival: &Arrival<'_>, effects: &mut Vec<Effect>) {
        self.budget.earn(now);
        let request = arrival.request;
        let wanted = match self.wanted(arrival.model) {
            Ok(wanted) => wanted,
            Err(refusal) => return effects.push(Effect::Refuse { request, refusal }),
        };
        let estimate = self.fleet.estimate(model_of(wanted));
        let promise = estimate.promise(arrival.size, arrival.answer_max, arrival.decodes);
        let ask = Ask {
            prefill: promise.prefill,
            decode: promise.decode,
            session: arrival.session,
            head: arrival.head,
            attempt: 0,
        };
        let (size, decodes) = (arrival.size, arrival.decodes);
        let open = Open { wanted, ask, size, decodes, seat: None, tried: Vec::new(), failovers: 0 };
        self.open.insert(request.0, open);
        self.seat(now, request, Refusal::NoWorker, effects);
    }

    fn wanted(&self, model: Option<&str>) -> Result<Wanted, Refusal> {
        let wanted = match model.map(|name| self.fleet.model(name)) {
            Some(Some(model)) => Wanted::Model(model),
            Some(None) => Wanted::Unlisted,
            None if self.fleet.all_alike() => Wanted::Anything,
            None => return Err(Refusal::ModelRequired),
        };
        match wanted {
            _ if self.fleet.anyone_serves(wanted) => Ok(wanted),
            Wanted::Unlisted if self.fleet.anyone_listed() => Err(Refusal::UnknownModel),
            _ => Err(Refusal::NoWorker),
        }
    }

    /// Seats an open request, or refuses it with `otherwise` and closes it.
    fn seat(&mut self, now: Instant, request: RequestId, otherwise: Refusal, effects: &mut Vec<Effect>) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        open.ask.attempt = open.tried.len() as u32;
        self.fleet.standings(now, open.wanted, &open.tried, &mut self.standings);
        self.candidates.clear();
        self.candidates.extend(self.standings.iter().map(candidate));
        let known = model_of(open.wanted).and_then(|it| self.strategies.get_mut(&u64::from(it.0)));
        let strategy = known.unwrap_or(&mut self.unlisted);
        let Some(pick) = strategy.pick(&open.ask, &self.candidates, &mut self.rng) else {
            effects.push(Effect::Refuse { request, refusal: otherwise });
            self.close(request);
            return;
        };
        let worker = self.candidates[pick.index].worker;
        let promise = Promise { prefill: open.ask.prefill, decode: open.ask.decode };
        open.seat = Some((worker, promise));
        let attempt = open.ask.attempt;
        self.fleet.promise(worker, promise);
        effects.push(Effect::Seat(Seat { request, worker, why: pick.why, attempt }));
    }

    fn failed(&mut self, now: Instant, request: RequestId, failure: Failure, effects: &mut Vec<Effect>) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let Some((worker, promise)) = open.seat.take() else { return };
        open.tried.push(worker);
        open.failovers += u32::from(failure.was_sent());
        let attempts_left = (open.tried.len() as u32) < ATTEMPTS_MAX;
        let failovers_left = open.failovers <= self.settings.failovers_max;
        self.fleet.release(worker, promise);
        if let Some(evidence) = failure.evidence() {
            self.see(now, worker, evidence, effects);
        }
        // What never reached a worker costs nobody anything: only the rest is paid from the budget.
        let free = !failure.was_sent();
        let patience_left = !matches!(failure, Failure::TimedOut | Failure::NoSocket);
        let refusal = Refusal::Failed { last: failure };
        if attempts_left && failovers_left && patience_left && (free || self.budget.spend(now)) {
            self.seat(now, request, refusal, effects);
        } else {
            effects.push(Effect::Refuse { request, refusal });
            self.close(request);
        }
    }

    fn first_token(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let Some((worker, promise)) = open.seat.as_mut() else { return };
        self.fleet.prefilled(*worker, promise);
        let worker = *worker;
        self.see(now, worker, Evidence::Answered, effects);
    }

    fn finished(&mut self, request: RequestId, counted: Option<Counted>) {
        let Some(open) = self.close(request) else { return };
        let model = model_of(open.wanted).and_then(|it| self.fleet.estimate_mut(it));
        if let (Some(estimate), Some(counted)) = (model, counted) {
            estimate.learn(open.size, counted, open.decodes);
        }
    }

    fn broke_off(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let seat = self.close(request).and_then(|it| it.seat);
        if let Some((worker, _)) = seat {
            self.see(now, worker, Evidence::Broke, effects);
        }
    }

    /// Ends a request, whatever became of it: what was promised for it is promised no more.
    fn close(&mut self, request: RequestId) -> Option<Open> {
        let open = self.open.remove(&request.0)?;
        if let Some((worker, promise)) = open.seat {
            self.fleet.release(worker, promise);
        }
        Some(open)
    }
}

fn model_of(wanted: Wanted) -> Option<ModelId> {
    match wanted {
        Wanted::Model(model) => Some(model),
        Wanted::Anything | Wanted::Unlisted => None,
    }
}

fn candidate(standing: &Standing) -> Candidate {
    Candidate {
        worker: standing.worker,
        key: standing.key,
        requests: standing.promised.requests,
        prefill: standing.promised.prefill,
        decode: standing.promised.decode,
        share: standing.share,
    }
}

#[cfg(test)]
mod tests;

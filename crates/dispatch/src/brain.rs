//! Fleet, index and policy at one table: every event changes what we believe, and some ask for a decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, Rng, Tokens, WorkerId};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::fleet::Hold;
use maitre_fleet::{Card, Evidence, Fleet, ModelId, Models, Promise, Slot, Standing, State, Wanted, health};
use maitre_index::prefix::Unit;
use maitre_index::{self as index, Planted, Report, Root, Stored};
use maitre_policy::{Adapter, Ask, Candidate, Knobs, Name, Needs, Pace, Reported, Room, Strategy};
use maitre_queue as queue;

use crate::budget::{self, Budget};
use crate::cache::{BLOCK_TOKENS, Cache, Held, Prompt};
use crate::event::{Arrival, Blocks, Effect, Event, Failure, Form, Refusal, Seat};
use crate::in_use::{InUse, Used};

mod learn;

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
    pub index: index::Settings,
    pub queue: queue::Settings,
    /// Every prompt is wanted by its prefixes, whatever the strategies go by: somebody takes them down.
    pub reads_all: bool,
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            strategy: Name::LeastDelay,
            strategies: BTreeMap::new(),
            knobs: Knobs::default(),
            health: health::Settings::default(),
            budget: budget::Settings::default(),
            failovers_max: 1,
            index: index::Settings::default(),
            queue: queue::Settings::default(),
            reads_all: false,
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
            cache: sum.cache | it.cache,
            in_use: sum.in_use | it.in_use,
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
    form: Form,
    prompt: Option<Prompt>,
    /// Where it is seated now; none between a failed attempt and the refusal.
    seat: Option<Place>,
    tried: Vec<WorkerId>,
    /// Attempts that reached a worker and failed.
    failovers: u32,
}

/// A seat, and what we will want to know of it later.
#[derive(Clone, Copy, Debug)]
struct Place {
    worker: WorkerId,
    promise: Promise,
    at: Instant,
    /// Tokens to prefill there before its first token: those ahead of it and its own.
    prefill_ahead: u64,
    planted: Option<Planted>,
    /// What it holds there. Noted, for what is an adapter may change while it is open.
    adapter: Option<ModelId>,
    /// Requests there when it was seated, and when its first token came.
    company: u32,
    first: Option<(Instant, u32)>,
}

/// What must be known of a prompt before it can be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The model that will compute it, whatever name or adapter was asked for; none if nobody lists it.
    pub model: Option<Arc<str>>,
    pub adapter: Option<Arc<str>>,
    /// Units in a block.
    pub block: u32,
    /// Whether any worker that may take it reports its cache: only then do its very tokens matter.
    pub reported: bool,
    /// Whether its strategy goes by caches. If not, it is read for the record alone, and must not come with
    /// the arrival: picks are what they would be without one.
    pub by_caches: bool,
}

#[derive(Debug)]
pub struct Brain {
    settings: Settings,
    fleet: Fleet,
    cache: Cache,
    /// Only where a strategy needs it.
    in_use: Option<InUse>,
    /// Blocks that the blocks of all workers of a model are multiples of, by the model's number.
    grains: NumberMap<u32>,
    /// One a model, since turns and pins of different models must not mix.
    strategies: NumberMap<Strategy>,
    /// For requests whose model nobody lists, or that name none.
    unlisted: Strategy,
    open: NumberMap<Open>,
    budget: Budget,
    rng: Rng,
    // Scratch, so that a decision allocates nothing per worker.
    standings: Vec<Standing>,
    held: Vec<Held>,
    candidates: Vec<Candidate>,
}

impl Brain {
    pub fn new(settings: Settings) -> Brain {
        Brain {
            fleet: Fleet::new(settings.health),
            cache: Cache::new(settings.index),
            in_use: settings.needs().in_use.then(InUse::default),
            grains: NumberMap::default(),
            strategies: NumberMap::default(),
            unlisted: Strategy::new(settings.strategy, settings.knobs),
            open: NumberMap::default(),
            budget: Budget::new(settings.budget),
            rng: Rng::new(settings.seed),
            standings: Vec::new(),
            held: Vec::new(),
            candidates: Vec::new(),
            settings,
        }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// How to name the prompt of a request for this model; none if its strategy does not go by caches and
    /// nobody else wants it.
    pub fn plan(&self, model: Option<&str>) -> Option<Plan> {
        let known = model.and_then(|name| self.fleet.model(name));
        let strategy = known.and_then(|it| self.strategies.get(&u64::from(it.0))).unwrap_or(&self.unlisted);
        let by_caches = strategy.name().needs().cache;
        if !by_caches && !self.settings.reads_all {
            return None;
        }
        let anyone = || self.fleet.workers().find_map(|it| self.fleet.base_of(it.id));
        let base = match model {
            Some(_) => known.map(|it| self.fleet.base(it)),
            None => anyone(),
        };
        let name = base.and_then(|it| self.fleet.name(it)).cloned();
        let adapter = known.filter(|&it| self.fleet.is_adapter(it)).and_then(|it| self.fleet.name(it));
        Some(Plan {
            model: name,
            adapter: adapter.cloned(),
            block: base.and_then(|it| self.grains.get(&u64::from(it.0))).copied().unwrap_or(BLOCK_TOKENS),
            reported: by_caches && self.cache.anyone_reports(),
            by_caches,
        })
    }

    /// Requests that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn on(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        match event {
            Event::WorkerJoined { url } => {
                let worker = self.fleet.add(url);
                self.cache.join(worker);
                effects.push(Effect::Watch { worker });
            }
            Event::WorkerGone { worker } => {
                self.fleet.remove(worker);
                self.cache.leave(worker);
                effects.push(Effect::Forget { worker });
            }
            Event::WorkerDrained { worker, draining } => self.fleet.drain(worker, draining),
            Event::Probed { worker, evidence } => self.see(now, worker, evidence, effects),
            Event::ModelsReported { worker, cards } => self.learn_models(worker, cards),
            Event::LoadReported { worker, load } => {
                self.fleet.report(now, worker, load);
                let capacity = self.fleet.worker(worker).and_then(maitre_fleet::Worker::capacity);
                self.cache.size(worker, load.block_size, capacity);
                self.cut_alike(worker);
            }
            Event::AdaptersReported { worker, slots, loaded } => {
                self.fleet.report_adapters(worker, slots, loaded);
            }
            Event::BlocksStored { worker, blocks } => self.stored(worker, &blocks),
            Event::BlocksRemoved { worker, names, tier } => {
                self.cache.report(worker, &Report::Removed { names, tier });
            }
            Event::BlocksCleared { worker } => self.cache.clear(worker),
            Event::TrustChanged { worker, trust } => self.cache.trust_changed(worker, trust),
            Event::Arrived(arrival) => self.arrived(now, &arrival, effects),
            Event::Failed { request, failure } => self.failed(now, request, failure, effects),
            Event::FirstToken { request } => self.first_token(now, request, effects),
            Event::Streamed { request, pieces } => self.streamed(now, request, pieces),
            Event::Finished { request, counted, pieces } => self.finished(now, request, counted, pieces),
            Event::Declined { request } => self.close_with(now, request, Evidence::Answered, effects),
            Event::BrokeOff { request } => self.close_with(now, request, Evidence::Broke, effects),
            Event::Left { request } => drop(self.close(request)),
            Event::Tick => self.tick(now, effects),
        }
    }

    fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence, effects: &mut Vec<Effect>) {
        let change = self.fleet.see(now, worker, evidence);
        if evidence == Evidence::Refused {
            self.cache.refused(worker);
        }
        effects.extend(change.map(Effect::Changed));
        // A doubt raised by traffic is settled by a probe, at once.
        if change.is_some_and(|it| matches!(it.to, State::Suspect { .. })) {
            effects.push(Effect::Probe { worker });
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut changes = Vec::new();
        self.fleet.settle(now, &mut changes);
        self.cache.tick(now);
        self.presume_prefilled(now);
        effects.extend(changes.into_iter().map(Effect::Changed));
    }

    fn learn_models(&mut self, worker: WorkerId, cards: &[Card<'_>]) {
        self.fleet.learn_models(worker, cards);
        for card in cards {
            let Some(model) = self.fleet.model(card.name) else { continue };
            self.strategies.entry(u64::from(model.0)).or_insert_with(|| {
                let own = self.settings.strategies.get(card.name).copied();
                Strategy::new(own.unwrap_or(self.settings.strategy), self.settings.knobs)
            });
        }
        self.cut_alike(worker);
    }

    /// Finds the block that suits all workers of this one's model.
    fn cut_alike(&mut self, worker: WorkerId) {
        let Some(base) = self.fleet.base_of(worker) else { return };
        let same = self.fleet.workers().filter(|it| it.models != Models::Unknown);
        let same = same.filter(|it| self.fleet.base_of(it.id) == Some(base));
        let grain = same.fold(0, |sum, it| common(sum, self.cache.block(it.id)));
        self.grains.insert(u64::from(base.0), grain.max(1));
    }

    fn stored(&mut self, worker: WorkerId, blocks: &Blocks<'_>) {
        let model = self.fleet.base_of(worker).and_then(|it| self.fleet.name(it));
        let model = model.map_or("", |it| it);
        let stored = Stored {
            names: blocks.names,
            parent: blocks.parent,
            root: Root::new(Unit::Tokens, model, blocks.adapter, blocks.salt),
            tokens: blocks.tokens,
            block_tokens: blocks.block_tokens,
            extras: blocks.extras,
            tier: blocks.tier,
        };
        let before = self.cache.block(worker);
        self.cache.report(worker, &Report::Stored(stored));
        if self.cache.block(worker) != before {
            self.cut_alike(worker);
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
        let work = estimate.work(arrival.size, arrival.answer_max, arrival.decodes);
        let ask = Ask {
            prefill: work.prompt,
            decode: work.answer,
            session: arrival.session,
            head: arrival.head,
            attempt: 0,
        };
        let open = Open {
            wanted,
            ask,
            size: arrival.size,
            decodes: arrival.decodes,
            form: arrival.form,
            prompt: arrival.prompt.cloned(),
            seat: None,
            tried: Vec::new(),
            failovers: 0,
        };
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
        let known = model_of(open.wanted).and_then(|it| self.strategies.get_mut(&u64::from(it.0)));
        let strategy = known.unwrap_or(&mut self.unlisted);
        if !strategy.name().prices_adapters() {
            // Whoever cannot price an adapter goes where it is, then where it fits.
            let best = self.standings.iter().map(|it| it.slot).min();
            self.standings.retain(|it| Some(it.slot) == best);
        }
        match &open.prompt {
            Some(prompt) => self.cache.look_up(prompt, open.ask.prefill, &self.standings, &mut self.held),
            None => self.held.clear(),
        }
        self.candidates.clear();
        for (place, standing) in self.standings.iter().enumerate() {
            let held = self.held.get(place).copied().unwrap_or_default();
            let mut candidate = candidate(standing, held, self.cache.holds(standing.worker));
            if let Some(in_use) = &self.in_use {
                let Used { all, of_prompt } = in_use.at(standing.worker, open.prompt.as_ref());
                (candidate.in_use, candidate.held_in_use) = (all, of_prompt);
            }
            self.candidates.push(candidate);
        }
        let Some(pick) = strategy.pick(&open.ask, &self.candidates, &mut self.rng) else {
            effects.push(Effect::Refuse { request, refusal: otherwise });
            self.close(request);
            return;
        };
        let (standing, held) = (self.standings[pick.index], self.held.get(pick.index).copied());
        let worker = standing.worker;
        let promise = promise(&open.ask, held.unwrap_or_default());
        let ahead = (standing.wait_seconds / standing.prefill.slope) as u64;
        let planted = open.prompt.as_ref().and_then(|it| self.cache.seated(now, worker, it));
        if let (Some(in_use), Some(prompt)) = (&mut self.in_use, &open.prompt) {
            in_use.begin(worker, prompt);
        }
        let prefill_ahead = ahead.saturating_add(promise.prefill.0);
        let company = standing.promised.requests;
        let adapter = model_of(open.wanted).filter(|&it| self.fleet.is_adapter(it));
        let first = None;
        open.seat = Some(Place { worker, promise, at: now, prefill_ahead, planted, adapter, company, first });
        let attempt = open.ask.attempt;
        self.fleet.promise(now, worker, promise);
        self.hold_adapter(worker, adapter, Hold::Begins);
        let held = held.map(|it| it.tokens);
        let (waited, deadline) = (Duration::ZERO, None);
        effects.push(Effect::Seat(Seat { request, worker, why: pick.why, held, attempt, waited, deadline }));
    }

    fn hold_adapter(&mut self, worker: WorkerId, adapter: Option<ModelId>, hold: Hold) {
        if let Some(model) = adapter {
            self.fleet.hold_adapter(worker, model, hold);
        }
    }

    /// Takes a request from its seat: what was promised for it there is promised no more, and what we hoped
    /// its prefill would leave in the cache is not there unless it was done.
    fn unseat(&mut self, request: RequestId) -> Option<Place> {
        let open = self.open.get_mut(&request.0)?;
        let place = open.seat.take()?;
        if let (Some(prompt), Some(planted), false) = (&open.prompt, place.planted, place.promise.prefilled) {
            self.cache.failed(place.worker, prompt, planted);
        }
        if let (Some(in_use), Some(prompt)) = (&mut self.in_use, &open.prompt) {
            in_use.end(place.worker, prompt);
        }
        self.fleet.release(place.worker, place.promise);
        self.hold_adapter(place.worker, place.adapter, Hold::Ends);
        Some(place)
    }

    fn failed(&mut self, now: Instant, request: RequestId, failure: Failure, effects: &mut Vec<Effect>) {
        let Some(Place { worker, .. }) = self.unseat(request) else { return };
        let Some(open) = self.open.get_mut(&request.0) else { return };
        open.tried.push(worker);
        open.failovers += u32::from(failure.was_sent());
        let attempts_left = (open.tried.len() as u32) < ATTEMPTS_MAX;
        let failovers_left = open.failovers <= self.settings.failovers_max;
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
        let Some(place) = open.seat.as_mut() else { return };
        let worker = place.worker;
        self.fleet.prefilled(now, worker, &mut place.promise);
        if let Some(prompt) = &open.prompt {
            self.cache.prefilled(now, worker, prompt);
        }
        // An answer in one piece tells when it ended, not when it began.
        if open.form == Form::Stream && open.decodes == Decodes::Yes {
            let requests = self.fleet.worker(worker).map_or(0, |it| it.promised.requests);
            place.first = Some((now, requests));
            let (ahead, took) = (place.prefill_ahead, now.since(place.at));
            self.fleet.learn_first_token(worker, ahead, took);
        }
        self.see(now, worker, Evidence::Answered, effects);
    }

    /// Answers in one piece do not say when their prefill is done: it is when it should be.
    fn presume_prefilled(&mut self, now: Instant) {
        for open in self.open.values_mut().filter(|it| it.form == Form::Whole) {
            let Some(place) = open.seat.as_mut().filter(|it| !it.promise.prefilled) else { continue };
            let Some(worker) = self.fleet.worker(place.worker) else { continue };
            if now.since(place.at).as_secs_f64() >= worker.rates.prefill.at(place.prefill_ahead as f64) {
                self.fleet.prefilled(now, place.worker, &mut place.promise);
            }
        }
    }

    fn finished(&mut self, now: Instant, request: RequestId, counted: Option<Counted>, pieces: u32) {
        let Some((open, place)) = self.close(request) else { return };
        if let Some(place) = place {
            // The pieces of a stream are about its tokens; those of one body are nothing.
            let pieces = (open.form == Form::Stream).then_some(u64::from(pieces));
            let answer = counted.and_then(|it| it.answer).or(pieces);
            // To count tokens takes no prefill, and to embed takes no steps.
            if let (Decodes::Yes, Some(answer)) = (open.decodes, answer) {
                let steps = u32::try_from(answer.saturating_sub(1)).unwrap_or(u32::MAX);
                self.learn_pace(now, open.form, &place, steps);
            }
            self.learn_cache(&open, &place, counted);
        }
        let model = model_of(open.wanted).and_then(|it| self.fleet.estimate_mut(it));
        if let (Some(estimate), Some(counted)) = (model, counted) {
            estimate.learn(open.size, counted, open.decodes);
        }
    }

    fn close_with(
        &mut self,
        now: Instant,
        request: RequestId,
        evidence: Evidence,
        effects: &mut Vec<Effect>,
    ) {
        let place = self.close(request).and_then(|it| it.1);
        if let Some(Place { worker, .. }) = place {
            self.see(now, worker, evidence, effects);
        }
    }

    /// Ends a request, whatever became of it, and tells where it sat.
    fn close(&mut self, request: RequestId) -> Option<(Open, Option<Place>)> {
        let place = self.unseat(request);
        let open = self.open.remove(&request.0)?;
        Some((open, place))
    }
}

/// What a request will cost a worker that holds so much of it.
fn promise(ask: &Ask, held: Held) -> Promise {
    let prefill = ask.prefill - held.tokens;
    Promise { prefill, decode: ask.decode, context: prefill + ask.decode, prefilled: false }
}

/// The greatest common divisor.
fn common(one: u32, other: u32) -> u32 {
    match other {
        0 => one,
        _ => common(other, one % other),
    }
}

fn model_of(wanted: Wanted) -> Option<ModelId> {
    match wanted {
        Wanted::Model(model) => Some(model),
        Wanted::Anything | Wanted::Unlisted => None,
    }
}

fn candidate(standing: &Standing, held: Held, holds: Tokens) -> Candidate {
    Candidate {
        worker: standing.worker,
        key: standing.key,
        requests: standing.requests,
        prefilling: standing.promised.prefilling,
        prefill: standing.promised.prefill,
        decode: standing.promised.decode,
        share: standing.share,
        held: held.tokens,
        held_below: held.below,
        holds,
        in_use: Tokens::ZERO,
        held_in_use: Tokens::ZERO,
        pace: Pace {
            floor: standing.prefill.base,
            prefill_token: standing.prefill.slope,
            step: standing.decode.base,
            step_request: standing.decode.slope,
        },
        wait_seconds: standing.wait_seconds,
        room: standing.room.map(|(capacity, pinned)| Room { capacity, pinned }),
        reported: Reported {
            waiting: standing.waiting.map(|it| u32::try_from(it).unwrap_or(u32::MAX)),
            kv_usage: standing.kv_usage,
        },
        adapter: match standing.slot {
            Slot::Ready => Adapter::Ready,
            Slot::Loads => Adapter::Loads,
            Slot::Waits => Adapter::Waits,
        },
    }
}

#[cfg(test)]
mod tests;

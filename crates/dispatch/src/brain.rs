//! Fleet, index and policy at one table: every event changes what we believe, and some ask for a decision.

use std::sync::Arc;

use maitre_base::hash::NumberMap;
use maitre_base::{
    ClassId, Instant, KvEvent, Promise, RequestId, Rng, StoredBlocks, TenantId, Tokens, WorkerId,
};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Card, Evidence, Fleet, ModelId, Models, State, Wanted, WorkerSnapshot};
use maitre_index::Planted;
use maitre_policy::{Ask, Candidate, Strategy};
use maitre_queue as queue;

use crate::cache::{BLOCK_TOKENS, Cache, Held, Prompt};
use crate::event::{Arrival, Effect, Event, Failure, Form, Refusal};
use crate::observer::decision::{Opening, Outcome};
use crate::observer::dirty::DirtySet;
use crate::observer::forecast::{Forecast, Foreseen};
use crate::observer::hot::Prefixes;
use crate::observer::ring::Ring;
use crate::observer::shadow::Shadows;
use crate::placer::in_use::InUse;
use crate::reservations;
use crate::scheduler::retry_budget::Budget;
use crate::settings::Settings;

mod consider;
mod hear;
mod learn;
mod number;
mod placement;
mod pool;
mod recall;
pub mod reconfigure;
mod record;
mod tell;
mod wait;

use hear::{EarlyPins, Routers};
use pool::Pool;
use wait::{Freed, InLine};

/// Most attempts of one request, those included that never reached a worker.
pub const ATTEMPTS_MAX: u32 = 8;

/// A request between its arrival and its end.
#[derive(Clone, Debug)]
struct PendingRequest {
    wanted: Wanted,
    ask: Ask,
    size: Size,
    decodes: Decodes,
    form: Form,
    class: ClassId,
    tenant: TenantId,
    arrived: Instant,
    /// When its first token must be out, if it said so.
    deadline: Option<Instant>,
    /// Until when it may stand in line: till then, or as long as its class allows.
    patience: Option<Instant>,
    /// The workers that may take it, by their model.
    pool: u64,
    line: InLine,
    prompt: Option<Prompt>,
    /// Where it is seated now; none between a failed attempt and the refusal.
    placement: Option<Attempt>,
    tried: Vec<WorkerId>,
    /// Attempts that reached a worker and failed.
    failovers: u32,
    /// How the last attempt failed.
    failure: Option<Failure>,
    /// Where it was called back from, each time.
    recalled: Vec<WorkerId>,
    spending: Spending,
}

/// What a request took of what its tenant may have.
#[derive(Clone, Copy, Debug, Default)]
struct Spending {
    taken: queue::Taken,
    /// Whether other routers are told.
    is_told: bool,
}

impl PendingRequest {
    /// What it will come to, in all.
    fn tokens(&self) -> u64 {
        (self.ask.prefill + self.ask.decode).0
    }
}

/// A placement, and what we will want to know of it later.
#[derive(Clone, Copy, Debug)]
struct Attempt {
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
    /// What it had to prefill.
    prefill: Tokens,
    /// Where its answer was last looked at.
    mark: Option<Mark>,
    /// Whether its prompt is counted among what is used and held there.
    is_noted: bool,
    /// The number of its record; zero if there is none.
    decision: u64,
    foreseen: Option<Foreseen>,
}

/// A moment in an answer, and what its worker had then.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    pieces: u32,
    requests: u32,
    /// All that it had prefilled.
    done: Tokens,
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
    pub reader: Reader,
}

/// Who wants a prompt by its prefixes, the first of those who do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The strategy in charge: the prompt comes with the arrival, and so does the size that its tokens tell.
    Strategy,
    /// A shadow: the prompt comes with the arrival, but its size is what it would be if nobody had read it. Picks are
    /// what they would be without a shadow.
    Shadow,
    /// Only whoever takes traffic down: it must not come with the arrival.
    Record,
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
    open: NumberMap<PendingRequest>,
    /// By the number of the model.
    pools: NumberMap<Pool>,
    /// Those in line for one worker alone.
    awaited: reservations::All,
    /// Requests in line, in all pools.
    waiting: usize,
    /// Workers have gone, or serve something else, since we last asked whether those in line still have anybody
    /// to wait for.
    fleet_changed: bool,
    /// When we last looked who can go.
    looked: Instant,
    /// What tenants have had of what they may have.
    allowances: queue::Allowances,
    budget: Budget,
    rng: Rng,
    // Other routers.
    routers: Routers,
    /// None if there is nobody to tell.
    dirty: Option<DirtySet>,
    /// When all that was learned of workers was last told.
    judged: Instant,
    early_pins: EarlyPins,
    // For people. Nothing of it is ever read by a strategy in charge.
    ring: Ring,
    forecast: Forecast,
    prefixes: Prefixes,
    shadows: Shadows,
    // Scratch, so that a decision allocates nothing per worker.
    snapshots: Vec<WorkerSnapshot>,
    held: Vec<Held>,
    openings: Vec<Opening>,
    candidates: Vec<Candidate>,
    /// The snapshot behind each candidate.
    places: Vec<usize>,
    found: Vec<RequestId>,
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
            pools: NumberMap::default(),
            awaited: reservations::All::default(),
            waiting: 0,
            fleet_changed: false,
            looked: Instant::ZERO,
            allowances: queue::Allowances::new(),
            budget: Budget::new(settings.budget),
            rng: Rng::new(settings.seed),
            routers: Routers::default(),
            dirty: settings.shares.then(DirtySet::default),
            judged: Instant::ZERO,
            early_pins: EarlyPins::default(),
            ring: Ring::new(settings.explain.decisions),
            forecast: Forecast::default(),
            prefixes: Prefixes::default(),
            shadows: Shadows::new(&settings.shadows, settings.knobs, settings.shadow_sample, settings.seed),
            snapshots: Vec::new(),
            held: Vec::new(),
            openings: Vec::new(),
            candidates: Vec::new(),
            places: Vec::new(),
            found: Vec::new(),
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
        let reader = match strategy.name().needs().cache {
            true => Reader::Strategy,
            false if self.settings.shadows.iter().any(|it| it.needs().cache) => Reader::Shadow,
            false if self.settings.reads_all => Reader::Record,
            false => return None,
        };
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
            reported: reader != Reader::Record && self.cache.anyone_reports(),
            reader,
        })
    }

    /// Requests that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Where a request is seated now.
    pub fn worker_of(&self, request: RequestId) -> Option<WorkerId> {
        self.open.get(&request.0)?.placement.map(|it| it.worker)
    }

    pub fn on(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        // Most of the time nobody waits, and it does not matter who has room.
        let freed = if self.waiting > 0 { self.frees(&event) } else { Freed::Nobody };
        self.believe(now, event, effects);
        self.serve_all(now, freed, effects);
    }

    fn believe(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        match event {
            Event::WorkerJoined { url } => self.joined(now, url, effects),
            Event::WorkerGone { worker } => self.gone(now, worker, effects),
            Event::WorkerDrained { worker, draining } => {
                self.fleet.drain(worker, draining);
                self.fleet_changed = true;
            }
            Event::WorkerWeighed { worker, weight } => self.fleet.weigh(worker, weight),
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
            Event::CacheChanged { worker, event } => match event {
                KvEvent::Stored(blocks) => self.stored(worker, &blocks),
                KvEvent::Removed { names, tier } => self.cache.removed(worker, names, tier),
                KvEvent::Cleared => self.cache.clear(worker),
            },
            Event::TrustChanged { worker, trust } => self.cache.trust_changed(worker, trust),
            Event::Arrived(arrival) => self.arrived(now, &arrival, effects),
            Event::Failed { request, worker, failure } => {
                if let Some(evidence) = failure.evidence() {
                    self.see(now, worker, evidence, effects);
                }
                // What became of an attempt that nobody wants any more is news of its worker alone.
                if self.worker_of(request) == Some(worker) {
                    self.failed(now, request, failure, effects);
                }
            }
            Event::FirstToken { request, worker } => self.first_token(now, request, worker, effects),
            Event::Streamed { request, pieces } => self.streamed(now, request, pieces),
            Event::Finished { request, counted, pieces } => self.finished(now, request, counted, pieces),
            Event::Declined { request } => self.close_with(now, request, Outcome::Declined, effects),
            Event::BrokeOff { request } => self.close_with(now, request, Outcome::BrokeOff, effects),
            Event::Left { request } => self.close_with(now, request, Outcome::Left, effects),
            Event::Peers(news) => self.hear(now, news, effects),
            Event::Tick => self.tick(now, effects),
        }
    }

    fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence, effects: &mut Vec<Effect>) {
        let change = self.fleet.see(now, worker, evidence);
        if evidence == Evidence::Refused {
            self.cache.refused(worker);
        }
        effects.extend(change.map(Effect::Changed));
        self.fleet_changed |= change.is_some_and(|it| it.to.is_out());
        if change.is_some() {
            self.tell_judged(worker);
        }
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
        self.count_workers();
        self.tell_learned(now);
        if std::mem::take(&mut self.fleet_changed) {
            self.refuse_stranded(effects);
        }
        changes.iter().for_each(|it| self.tell_judged(it.worker));
        effects.extend(changes.into_iter().map(Effect::Changed));
    }

    fn learn_models(&mut self, worker: WorkerId, cards: &[Card<'_>]) {
        let seen = self.fleet.models_seen();
        self.fleet.learn_models(worker, cards);
        self.fleet_changed = true;
        for card in cards {
            let Some(model) = self.fleet.model(card.name) else { continue };
            self.strategies.entry(u64::from(model.0)).or_insert_with(|| {
                let own = self.settings.strategies.get(card.name).copied();
                Strategy::new(own.unwrap_or(self.settings.strategy), self.settings.knobs)
            });
        }
        if self.fleet.models_seen() > seen {
            self.hear_early_pins();
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

    fn stored(&mut self, worker: WorkerId, blocks: &StoredBlocks<'_>) {
        let model = self.fleet.base_of(worker).and_then(|it| self.fleet.name(it));
        let model = model.map_or("", |it| it);
        let before = self.cache.block(worker);
        self.cache.stored(worker, model, blocks);
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
        let mut open = self.opened(now, arrival, wanted);
        let queue = &self.settings.queue;
        if queue.enabled {
            let terms = queue.terms(arrival.tenant);
            open.spending = match self.allowances.take(now, arrival.tenant, terms, open.tokens()) {
                Ok(taken) => Spending { taken, is_told: self.is_spending_told(&open) },
                Err(retry_after) => {
                    let refusal = Refusal::RateLimited { retry_after };
                    return effects.push(Effect::Refuse { request, refusal });
                }
            };
            self.tell_spent(&open);
        }
        self.open.insert(request.0, open);
        self.admit(now, request, Refusal::NoWorker, effects);
    }

    /// A request as it is known before anything was decided.
    fn opened(&self, now: Instant, arrival: &Arrival<'_>, wanted: Wanted) -> PendingRequest {
        let estimate = self.fleet.estimate(model_of(wanted));
        let work = estimate.work(arrival.size, arrival.answer_max, arrival.decodes);
        let ask = Ask {
            prefill: work.prompt,
            decode: work.answer,
            session: arrival.session,
            head: arrival.head,
            tie: self.tie(arrival, wanted),
            attempt: 0,
        };
        let queue = &self.settings.queue;
        let class = ClassId(arrival.class.0.min(queue.classes.len() as u8 - 1));
        let deadline = arrival.deadline.filter(|_| queue.enabled);
        let patience = deadline.or_else(|| queue.classes[class.index()].deadline.map(|it| now + it));
        PendingRequest {
            class,
            tenant: arrival.tenant,
            arrived: now,
            deadline,
            patience,
            pool: self.pool_of(wanted),
            line: InLine::default(),
            wanted,
            ask,
            size: arrival.size,
            decodes: arrival.decodes,
            form: arrival.form,
            prompt: arrival.prompt.cloned(),
            placement: None,
            tried: Vec::new(),
            failovers: 0,
            failure: None,
            recalled: Vec::new(),
            spending: Spending::default(),
        }
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

    fn first_token(&mut self, now: Instant, request: RequestId, worker: WorkerId, effects: &mut Vec<Effect>) {
        // One that was called back too late: its client has its answer, and it wants no other placement.
        self.leave_line(request);
        if self.worker_of(request).is_some_and(|it| it != worker)
            && let Some(place) = self.unseat(request)
        {
            self.note_end(now, &place, Outcome::Recalled, None);
        }
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let Some(place) = open.placement.as_mut() else { return };
        self.fleet.prefilled(now, worker, &mut place.promise);
        if let Some(prompt) = open.prompt.as_ref().filter(|_| place.is_noted) {
            self.cache.prefilled(now, worker, prompt);
        }
        if let Some(dirty) = &mut self.dirty {
            dirty.promise(worker);
        }
        // An answer in one piece tells when it ended, not when it began.
        if open.form == Form::Stream && open.decodes == Decodes::Yes {
            let there = self.fleet.worker(worker);
            let (requests, done) =
                there.map_or((0, Tokens::ZERO), |it| (it.promised_by_all().work.requests, it.prefilled));
            place.first = Some((now, requests));
            place.mark = Some(Mark { at: now, pieces: 1, requests, done });
            let (ahead, took) = (place.prefill_ahead, now.since(place.at));
            self.fleet.learn_first_token(worker, ahead, took);
            let place = *place;
            self.note_first_token(now, &place);
        }
        self.see(now, worker, Evidence::Answered, effects);
    }

    /// Answers in one piece do not say when their prefill is done: it is when it should be.
    fn presume_prefilled(&mut self, now: Instant) {
        for open in self.open.values_mut().filter(|it| it.form == Form::Whole) {
            let Some(place) = open.placement.as_mut().filter(|it| !it.promise.prefilled) else { continue };
            let Some(worker) = self.fleet.worker(place.worker) else { continue };
            if now.since(place.at).as_secs_f64() >= worker.rates.prefill.at(place.prefill_ahead as f64) {
                self.fleet.prefilled(now, place.worker, &mut place.promise);
                if let Some(dirty) = &mut self.dirty {
                    dirty.promise(place.worker);
                }
            }
        }
    }

    fn finished(&mut self, now: Instant, request: RequestId, counted: Option<Counted>, pieces: u32) {
        self.mark(now, request, pieces);
        let Some((open, place)) = self.close(request) else { return };
        if let Some(place) = place {
            self.note_end(now, &place, Outcome::Answered, counted);
            // The pieces of a stream are about its tokens; those of one body are nothing.
            let pieces = (open.form == Form::Stream).then_some(u64::from(pieces));
            let answer = counted.and_then(|it| it.answer).or(pieces);
            // To count tokens takes no prefill, and to embed takes no steps.
            if let (Decodes::Yes, Some(answer)) = (open.decodes, answer) {
                let steps = u32::try_from(answer.saturating_sub(1)).unwrap_or(u32::MAX);
                self.learn_pace(now, open.form, &place, steps);
                self.settle_charge(&open, answer);
                self.fleet.learn_length(place.prefill, answer);
            }
            self.learn_cache(&open, &place, counted);
        }
        let model = model_of(open.wanted).and_then(|it| self.fleet.estimate_mut(it));
        if let (Some(estimate), Some(counted)) = (model, counted) {
            estimate.learn(open.size, counted, open.decodes);
        }
    }

    fn close_with(&mut self, now: Instant, request: RequestId, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(place) = self.close(request).and_then(|it| it.1) else { return };
        self.note_end(now, &place, outcome, None);
        match outcome {
            Outcome::Declined => self.see(now, place.worker, Evidence::Answered, effects),
            Outcome::BrokeOff => self.see(now, place.worker, Evidence::Broke, effects),
            _ => {}
        }
    }

    /// Ends a request, whatever became of it, and tells where it sat.
    fn close(&mut self, request: RequestId) -> Option<(PendingRequest, Option<Attempt>)> {
        self.leave_line(request);
        let place = self.unseat(request);
        let open = self.open.remove(&request.0)?;
        Some((open, place))
    }
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

#[cfg(test)]
mod tests;

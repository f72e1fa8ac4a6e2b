//! The driver: every event changes what is believed, and some ask for a decision.
//!
//! `Brain` holds the pending requests. `Parts` holds everything else: fleet, cache, scheduler, placer and observer. So a
//! step looks its request up once and passes it on by reference. Methods of `Brain` are the steps that may concern
//! several requests; methods of `Parts` are about one.

use std::sync::Arc;

use maitre_base::hash::NumberMap;
use maitre_base::recent::Recent;
use maitre_base::{ClassId, Instant, KvEvent, RequestId, TenantId, WorkerId};
use maitre_fleet::{Evidence, Fleet, HealthState};
use maitre_queue::wait_queue::Waiting;
use maitre_queue::{Budgets, WorkerLimits};

use crate::cache::{Cache, CacheIndex, Found};
use crate::capacity::knee_in_tokens;
use crate::event::{Arrival, Effect, Event, Failure};
use crate::observer::decision::AttemptOutcome;
use crate::observer::forecast::Prediction;
use crate::observer::hot::Hot;
use crate::observer::lane_records::{RecordWriter, UnwrittenRecord};
use crate::observer::ring::Ring;
use crate::observer::shadow::ShadowScore;
use crate::observer::{Fact, Observer};
use crate::peers::Outbox;
use crate::placer::prepared::Mirror;
use crate::placer::strategies::Strategies;
use crate::placer::survey::Survey;
use crate::placer::{Placer, World};
use crate::programs::Programs;
use crate::request::PendingRequest;
use crate::reservations::Reservations;
use crate::scaling::{ModelScaling, Scaling, ScalingSources};
use crate::scheduler::{Context, Scheduler};
use crate::settings::BrainSettings;

mod arrival;
mod attempt;
mod continuation;
mod explain;
mod fallback;
mod first_worker;
mod learn;
mod models;
mod peer_updates;
mod plan;
mod programs;
mod pull;
mod queue;
pub mod reconfigure;
mod second;
mod split;
mod state_owners;
mod worker_ids;

pub use plan::{PromptReader, ReadPlan};

#[derive(Debug)]
pub struct Brain {
    /// By request id. Boxed: a request's memory stays with the thread that serves it, and the table, which all threads write,
    /// is small.
    pending: NumberMap<Box<PendingRequest>>,
    parts: Parts,
    /// Scratch: the requests that may go next.
    next: Vec<RequestId>,
    /// Scratch: what the requests before the one that is tried have reserved.
    ahead: Reservations,
}

/// Everything but the pending requests.
#[derive(Debug)]
struct Parts {
    settings: BrainSettings,
    fleet: Fleet,
    cache: Cache,
    /// Greatest common divisor of the block sizes of a model's workers, by the model's number.
    block_grains: NumberMap<u32>,
    /// The key of the worker that holds the state of a response, by the hash of its id.
    owners: Recent<u64>,
    scheduler: Scheduler,
    placer: Placer,
    programs: Programs,
    observer: Observer,
    /// Whether the thread that decides writes the list of a prepared record itself, later; and that record.
    may_write_later: bool,
    unwritten: Option<UnwrittenRecord>,
    scaling: Scaling,
}

/// Where an event may have made room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    Nowhere,
    At(WorkerId),
    Anywhere,
}

impl Brain {
    pub fn new(settings: BrainSettings) -> Brain {
        let strategies = Strategies::new(settings.strategy, settings.knobs);
        let mut fleet = Fleet::new(settings.health);
        fleet.expect(settings.expected_models.iter().map(String::as_str));
        Brain {
            pending: NumberMap::default(),
            parts: Parts {
                fleet,
                cache: Cache::new(settings.index),
                block_grains: NumberMap::default(),
                owners: Recent::new(state_owners::OWNERS_MAX),
                scheduler: Scheduler::new(settings.budget),
                placer: Placer::new(strategies, settings.needs(), settings.seed),
                programs: Programs::new(settings.programs),
                observer: Observer::new(settings.watch(), settings.shares, settings.seed),
                may_write_later: false,
                unwritten: None,
                scaling: Scaling::default(),
                settings,
            },
            next: Vec::new(),
            ahead: Reservations::default(),
        }
    }

    pub fn fleet(&self) -> &Fleet {
        &self.parts.fleet
    }

    pub fn cache(&self) -> &Cache {
        &self.parts.cache
    }

    pub fn settings(&self) -> &BrainSettings {
        &self.parts.settings
    }

    /// Requests that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.pending.len()
    }

    /// The worker that a request is placed at.
    pub fn worker_of(&self, request: RequestId) -> Option<WorkerId> {
        self.pending.get(&request.0)?.worker()
    }

    /// What waits in this class.
    pub fn waiting(&self, class: ClassId) -> Waiting {
        self.parts.scheduler.waiting_in(class)
    }

    /// The tenant with the largest share of what waits in this class, and how many requests those are. Where models have
    /// queues of their own, the one with most requests in a single queue.
    pub fn largest_tenant(&self, class: ClassId) -> Option<(TenantId, u32)> {
        self.parts.scheduler.largest_tenant(class)
    }

    /// When the brain wants a `Tick` though nothing has happened.
    pub fn due(&self) -> Option<Instant> {
        self.parts.scheduler.due()
    }

    /// The concurrency limit of a worker; none while the queue is off.
    pub fn limits(&self, worker: WorkerId) -> Option<WorkerLimits> {
        let queue = &self.parts.settings.queue;
        let worker = self.parts.fleet.worker(worker).filter(|_| queue.enabled)?;
        let promised = worker.promised_by_all().work.prefill;
        let knee = knee_in_tokens(worker.knee, &worker.rates.prefill, promised);
        Some(maitre_queue::limits::limits(knee, queue.caps()))
    }

    /// What is left of a tenant's limits.
    pub fn budgets(&self, now: Instant, tenant: TenantId) -> Budgets {
        let Parts { settings, scheduler, .. } = &self.parts;
        scheduler.allowances.budgets(now, tenant, settings.queue.terms(tenant))
    }

    /// The part of each tenant's limit that this router grants: less than one while other routers are unreachable.
    pub fn limit_share(&self) -> f64 {
        self.parts.scheduler.limit_share()
    }

    /// Completes the records of decisions, whose lists of workers threads write after `decide`. A reader of records of
    /// other threads should call it first.
    pub fn collect_records(&mut self, now: Instant) {
        self.parts.observer.collect(now);
    }

    /// The latest decisions.
    pub fn decisions(&self) -> &Ring {
        self.parts.observer.ring()
    }

    /// How shadows have done since they began.
    pub fn shadows(&self) -> impl Iterator<Item = ShadowScore> {
        self.parts.observer.shadows().scores()
    }

    /// How good recent predictions of first tokens were.
    pub fn prediction(&self) -> Prediction {
        self.parts.observer.forecast().prediction()
    }

    /// How many workers each model should have, as of the last tick.
    pub fn scaling(&self) -> &[ModelScaling] {
        self.parts.scaling.models()
    }

    /// The prefixes that recent prompts have in common, those with the most tokens first.
    pub fn hottest(&self, now: Instant, limit: usize) -> Vec<Hot> {
        self.parts.observer.hottest(now, limit)
    }

    /// Whether there is anything to publish to other routers.
    pub fn has_outbox(&self) -> bool {
        self.parts.observer.has_outbox()
    }

    /// Moves what is to be published into `outbox`. The lists are swapped with the caller's, which should be empty: then
    /// this takes microseconds and allocates nothing.
    pub fn take_outbox(&mut self, outbox: &mut Outbox) {
        self.parts.observer.take_outbox(&self.parts.fleet, outbox);
    }

    /// Applies an event, and writes to the index what follows from it.
    pub fn on(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        self.step(now, event, effects);
        self.parts.cache.index().write();
    }

    /// The index, for look-ups before an arrival and for the writes after `decide`.
    pub fn cache_index(&self) -> &Arc<CacheIndex> {
        self.parts.cache.index()
    }

    /// Applies an event. What follows from it is left for `CacheIndex::write`, which should come soon, outside any lock that
    /// this needed.
    pub fn decide(
        &mut self,
        now: Instant,
        event: Event<'_>,
        scratch: &mut Scratch,
        effects: &mut Vec<Effect>,
    ) {
        scratch.finish();
        let is_current = scratch.mirror.as_ref().is_some_and(|it| it.knows_caches(&self.parts.cache));
        if !is_current {
            scratch.survey.forget_prepared();
        }
        let has_writer = is_current && scratch.writer.is_some();
        self.parts.may_write_later = has_writer && self.parts.observer.may_write_later();
        self.parts.swap(scratch);
        self.step(now, event, effects);
        // It is about this moment only.
        self.parts.cache.forget_found();
        self.parts.swap(scratch);
        scratch.survey.forget_prepared();
        self.parts.may_write_later = false;
        // Most events leave nothing to be written, and moving nothing costs as much as moving a record.
        if self.parts.unwritten.is_some() {
            scratch.unwritten = self.parts.unwritten.take();
        }
        if let (Some(writer), Some(unwritten)) = (&scratch.writer, &scratch.unwritten) {
            writer.announce(unwritten);
        }
        if scratch.prepares {
            self.parts.follow(scratch);
        }
    }

    fn step(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        // While no request waits, it does not matter where there is room.
        let freed = if self.parts.scheduler.waiting() > 0 { self.freed_by(&event) } else { Freed::Nowhere };
        self.apply(now, event, effects);
        self.serve_queues(now, freed, effects);
        self.release_held(now, effects);
    }

    fn apply(&mut self, now: Instant, event: Event<'_>, effects: &mut Vec<Effect>) {
        match event {
            Event::WorkerJoined { url } => self.worker_joined(now, url, effects),
            Event::WorkerGone { worker } => self.parts.worker_left(now, worker, effects),
            Event::WorkerRole { worker, role } => {
                self.parts.fleet.set_role(worker, role);
                self.parts.scheduler.fleet_changed = true;
            }
            Event::WorkerHandoff { worker, handoff } => {
                self.parts.fleet.set_handoff(worker, handoff);
                self.parts.scheduler.fleet_changed = true;
            }
            Event::WorkerPulls { worker, pulls } => self.parts.fleet.set_pulls(worker, pulls),
            Event::WorkerStore { worker, store } => self.parts.cache.set_store(worker, store),
            Event::WorkerReusesChunks { worker, reuse } => self.parts.cache.reuse_chunks(worker, reuse),
            Event::WorkerDrained { worker, draining } => {
                self.parts.fleet.drain(worker, draining);
                self.parts.scheduler.fleet_changed = true;
            }
            Event::WorkerWeighed { worker, weight } => self.parts.fleet.weigh(worker, weight),
            Event::Probed { worker, evidence } => self.parts.see(now, worker, evidence, effects),
            Event::ModelsReported { worker, cards } => self.parts.learn_models(worker, cards),
            Event::LoadReported { worker, load } => self.parts.load_reported(now, worker, load),
            Event::AdaptersReported { worker, slots, loaded } => {
                self.parts.fleet.report_adapters(worker, slots, loaded);
            }
            Event::CacheChanged { worker, event } => match event {
                KvEvent::Stored(blocks) => self.parts.blocks_stored(worker, &blocks),
                KvEvent::Removed { names, tier } => self.parts.cache.removed(worker, names, tier),
                KvEvent::Cleared => {
                    self.parts.cache.clear(worker);
                    self.parts.placer.forget_sent(worker);
                }
            },
            Event::ReportsLost { worker } => self.parts.cache.reports_lost(worker),
            Event::TrustChanged { worker, trust } => self.parts.cache.trust_changed(worker, trust),
            Event::Arrived(arrival) => self.arrived(now, &arrival, effects),
            Event::Failed { request, worker, failure } => {
                self.attempt_failed(now, (request, worker), failure, effects);
            }
            Event::Prefilled { request, worker, counted } => {
                self.prefilled(now, (request, worker), counted, effects);
            }
            Event::FirstToken { request, worker } => self.first_token(now, request, worker, effects),
            Event::ResponseBegun { request } => self.response_begun(request),
            Event::StateHeld { state, worker } => self.parts.state_held(state, worker),
            Event::Streamed { request, pieces } => self.streamed(now, request, pieces),
            Event::Finished { request, counted, pieces } => self.finished(now, request, counted, pieces),
            Event::Declined { request } => self.ended(now, request, AttemptOutcome::Declined, effects),
            Event::Interrupted { request, worker, delivered } => {
                self.interrupted(now, (request, worker), delivered, effects);
            }
            Event::Moved { request, worker } => self.moved(now, request, worker, effects),
            Event::Second { request, number, cause } => self.second(now, (request, number), cause, effects),
            Event::Outpaced { request, by } => {
                self.superseded(now, (request, by), AttemptOutcome::Outpaced);
            }
            Event::HandedOver { request, by } => {
                self.superseded(now, (request, by), AttemptOutcome::HandedOver);
            }
            Event::BrokeOff { request } => self.ended(now, request, AttemptOutcome::BrokeOff, effects),
            Event::Left { request } => self.ended(now, request, AttemptOutcome::Left, effects),
            Event::GivenUp { request } => {
                self.give_back_allowance(request);
                self.ended(now, request, AttemptOutcome::Left, effects);
            }
            Event::Peers(update) => self.parts.apply_peer_update(now, update, effects),
            Event::Tick => self.tick(now, effects),
        }
    }

    /// Where this event may make room.
    fn freed_by(&self, event: &Event<'_>) -> Freed {
        let at = |request: &RequestId| self.worker_of(*request).map_or(Freed::Nowhere, Freed::At);
        match event {
            Event::FirstToken { request, .. }
            | Event::Finished { request, .. }
            | Event::Failed { request, .. }
            | Event::Declined { request }
            | Event::Interrupted { request, .. }
            | Event::Moved { request, .. }
            | Event::Outpaced { request, .. }
            | Event::HandedOver { request, .. }
            | Event::BrokeOff { request }
            | Event::Left { request }
            | Event::GivenUp { request } => at(request),
            Event::LoadReported { worker, .. }
            | Event::WorkerDrained { worker, .. }
            | Event::WorkerRole { worker, .. }
            | Event::WorkerHandoff { worker, .. }
            | Event::Probed { worker, .. }
            | Event::ModelsReported { worker, .. }
            | Event::AdaptersReported { worker, .. } => Freed::At(*worker),
            Event::Tick => Freed::Anywhere,
            Event::Peers(update) => self.parts.freed_elsewhere(update),
            Event::Arrived(_)
            | Event::Prefilled { .. }
            | Event::WorkerJoined { .. }
            | Event::WorkerGone { .. }
            | Event::WorkerWeighed { .. }
            | Event::WorkerPulls { .. }
            | Event::WorkerStore { .. }
            | Event::WorkerReusesChunks { .. }
            | Event::ResponseBegun { .. }
            | Event::StateHeld { .. }
            | Event::Second { .. }
            | Event::Streamed { .. }
            | Event::CacheChanged { .. }
            | Event::ReportsLost { .. }
            | Event::TrustChanged { .. } => Freed::Nowhere,
        }
    }

    fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut changes = Vec::new();
        self.parts.fleet.settle(now, &mut changes);
        self.parts.cache.tick(now);
        self.parts.programs.tick(now, &self.parts.fleet);
        self.refuse_late_held(now, effects);
        self.presume_prefilled(now);
        self.parts.scheduler.count_workers(&self.parts.fleet);
        self.parts.observer.tick(now, &self.parts.fleet);
        self.parts.compute_scaling(now);
        if std::mem::take(&mut self.parts.scheduler.fleet_changed) {
            self.refuse_stranded(now, effects);
        }
        for change in changes {
            self.parts.observer.on(Fact::HealthChanged { worker: change.worker });
            effects.push(Effect::Changed(change));
        }
    }

    /// An attempt failed. If the request has been recalled from it, the failure concerns the worker alone.
    fn attempt_failed(
        &mut self,
        now: Instant,
        (request, worker): (RequestId, WorkerId),
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(evidence) = failure.evidence() {
            self.parts.see(now, worker, evidence, effects);
        }
        let prefill_worker = self.pending.get(&request.0).and_then(|it| it.prefill_worker());
        if self.worker_of(request) == Some(worker) || prefill_worker == Some(worker) {
            self.retry_or_refuse(now, (request, worker), failure, effects);
        }
    }
}

/// What a thread needs to decide, besides the brain. Decisions write it all over, so it stays with its thread: passed from
/// core to core, it would cost more than the decision. Boxed, because an event swaps it in and out again, and each swap of
/// its contents took 100 instructions.
#[derive(Debug, Default)]
pub struct Scratch {
    /// What caches hold of the prompt that arrives next, from `CacheIndex::look_up`.
    pub found: Box<Found>,
    survey: Box<Survey>,
    /// Whether this thread prepares choices. Others need no mirror.
    prepares: bool,
    mirror: Option<Box<Mirror>>,
    /// Writes the lists of records.
    writer: Option<RecordWriter>,
    unwritten: Option<UnwrittenRecord>,
}

impl Scratch {
    /// Does what `Brain::decide` has left to be done outside any lock that it needed: the rest of the record.
    #[inline]
    pub fn finish(&mut self) {
        if self.unwritten.is_some() {
            self.write_record();
        }
    }

    fn write_record(&mut self) {
        if let (Some(unwritten), Some(writer)) = (self.unwritten.take(), &self.writer) {
            writer.write(unwritten, &self.survey);
        }
    }

    /// Looks the prompt up and does as much of the choice for this request as can be done without the brain.
    /// `Brain::decide` must come next, at the same instant.
    pub fn prepare(&mut self, index: &CacheIndex, now: Instant, arrival: &Arrival<'_>) {
        self.finish();
        self.prepares = true;
        let Scratch { found, survey, mirror, .. } = self;
        // While another thread writes to the index, there is something else to do.
        let is_found = arrival.prompt.is_none_or(|it| index.try_look_up(it, found));
        let begun = mirror.as_ref().and_then(|it| it.survey(now, arrival, survey));
        if let Some(prompt) = arrival.prompt.filter(|_| !is_found) {
            index.look_up(prompt, found);
        }
        if let (Some(mirror), Some(begun)) = (mirror, begun) {
            mirror.price((now, arrival), begun, found, survey);
        }
    }
}

impl Parts {
    /// Copies what has changed to a thread that prepares choices.
    fn follow(&mut self, Scratch { mirror, writer, .. }: &mut Scratch) {
        let Parts { fleet, cache, settings, observer, .. } = self;
        let mirror = mirror.get_or_insert_with(|| Box::new(Mirror::new(fleet, cache)));
        if !mirror.is_of(cache) {
            *writer = None;
        }
        let then = mirror.moment();
        mirror.follow(fleet, cache, settings.strategy);
        match writer {
            _ if !mirror.is_used() => {}
            Some(writer) => writer.follow(observer.forecast(), fleet, then),
            None => *writer = Some(observer.add_lane(fleet)),
        }
    }

    fn swap(&mut self, scratch: &mut Scratch) {
        self.cache.swap_found(&mut scratch.found);
        self.placer.swap_survey(&mut scratch.survey);
    }

    /// Takes evidence about a worker's health.
    fn see(&mut self, now: Instant, worker: WorkerId, evidence: Evidence, effects: &mut Vec<Effect>) {
        let change = self.fleet.see(now, worker, evidence);
        if evidence == Evidence::Refused {
            self.cache.refused(worker);
            self.placer.forget_sent(worker);
        }
        let Some(change) = change else { return };
        effects.push(Effect::Changed(change));
        if change.to.is_out() {
            self.scheduler.fleet_changed = true;
        }
        self.observer.on(Fact::HealthChanged { worker });
        // A probe settles at once what traffic made doubtful.
        if matches!(change.to, HealthState::Suspect { .. }) {
            effects.push(Effect::Probe { worker });
        }
    }

    /// What a choice is made from, and the placer that makes it.
    fn world(&mut self, now: Instant) -> (World<'_>, &mut Placer) {
        let Parts { fleet, cache, scheduler, programs, placer, .. } = self;
        let (reservations, long_prefills) = (scheduler.reservations(), scheduler.long_prefills());
        (World { now, fleet, cache, reservations, long_prefills, programs }, placer)
    }

    fn compute_scaling(&mut self, now: Instant) {
        let Parts { fleet, scheduler, settings, scaling, .. } = self;
        let (settings, named) = (&settings.scaling, &settings.expected_models[..]);
        scaling.tick(now, ScalingSources { fleet, scheduler, settings, named });
    }

    fn promise_changed(&mut self, worker: WorkerId) {
        self.observer.on(Fact::PromiseChanged { worker });
    }
}

#[cfg(test)]
mod tests;

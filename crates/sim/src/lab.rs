//! Replays in virtual time: the router's own brain in front of simulated engines, connected by an event queue.
//!
//! The brain is the production code; only the sockets are missing. A strategy can be evaluated on an hour of traffic
//! in seconds, with the same result each time.
//!
//! Left out: the time a request spends in the router and on the wire.

mod actions;
mod arrivals;
pub mod autoscale;
mod bounds;
mod config;
mod event;
mod hedges;
mod legs;
mod lossy;
mod outcome;
mod pending;
mod prepared;
mod pulls;
mod retries;
pub mod script;
mod session_loop;
mod submission;
mod sync;
mod worker;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, Role, TenantId, Tokens, WorkerId};
use maitre_dispatch::cache::stores::StoreId;
use maitre_dispatch::{Arrival, Brain, Effect, Event, Failure, Form, reports_progress};
use maitre_fleet::estimate::{Answers, Counted, Size};
use maitre_fleet::{Card, Evidence};
use maitre_index::feed::Trust;

pub use autoscale::{Autoscale, ScaleRule, ScaleTotals};
pub use config::{
    AnswerLimits, ChunkKnowledge, ClosedLoop, Decider, Knowledge, LabConfig, LinkChange, PullingWorkers,
    StoreConfig, Sync, Via,
};
pub use outcome::{AnsweredRequest, LoadSample, RunOutcome, WorkerTotals};
pub use prepared::{PreparedTrace, block_tokens};
pub use pulls::ArrivedKv;
pub use script::Script;
pub use sync::SyncTraffic;

use crate::engine::RemainingWork;
use crate::link::Link;
use crate::profile::Profile;
use crate::report::AnswerMetrics;
use crate::sessions::closed_loop::SessionLoop;
use autoscale::ScaleState;
use event::SimEvent;
use legs::Fetches;
use lossy::LossyFeed;
use pending::PendingRequest;
use prepared::MODEL;
use pulls::Pulls;
use sync::PeerNetwork;
use worker::{CacheEventBatch, SimWorker};

/// Observes a run from outside.
pub trait RunObserver {
    /// This many requests have arrived.
    fn arrived(&mut self, _requests: usize) {}
    /// Wall-clock time, to measure how long decisions take; zero if not measured.
    fn wall(&mut self) -> Duration {
        Duration::ZERO
    }
}

impl RunObserver for () {}

/// Load samples per run.
const SAMPLES: u32 = 240;
const SAMPLE_MIN: Duration = Duration::from_secs(1);
/// Interval between two samples of sessions, whose duration is not known in advance.
const SESSION_SAMPLE: Duration = Duration::from_secs(30);
/// Interval between two ticks of the brain, as in the router. The estimate for an untried worker changes at ticks.
/// With ticks only at scrapes, it would keep its default speed twice as long.
const TICK: Duration = Duration::from_millis(500);

/// Minimum idle time that is skipped, and how long before its end the simulation resumes: enough for every timer of
/// the router.
const SILENCE: Duration = Duration::from_mins(10);
const WAKE: Duration = Duration::from_mins(1);

struct Simulation<'a> {
    prepared: &'a PreparedTrace<'a>,
    config: &'a LabConfig,
    routers: Vec<Brain>,
    network: PeerNetwork,
    effects: Vec<Effect>,
    workers: Vec<SimWorker>,
    queue: BinaryHeap<Reverse<(Instant, u64, SimEvent)>>,
    /// Keeps events of one instant in the order in which they were scheduled.
    serial: u64,
    pending: NumberMap<PendingRequest>,
    fetches: Fetches,
    pulls: Pulls,
    sessions: Option<SessionLoop<'a>>,
    /// The next wake-up of each router, if it asked for one.
    due: Vec<Option<Instant>>,
    /// Requests that have not arrived yet.
    not_arrived: usize,
    /// The number of the next request that a client of a closed loop sends.
    unsent: usize,
    /// Per request, the tokens that an ideal cache holds.
    ideal_tokens: Vec<u32>,
    sample_every: Duration,
    outcome: RunOutcome,
    outputs: Vec<crate::engine::TokenOutput>,
    remaining: Vec<RemainingWork>,
    decision_time: Duration,
    scaling: ScaleState,
}

/// Runs all requests to the end.
pub fn play(config: &LabConfig, prepared: &PreparedTrace<'_>, observer: &mut dyn RunObserver) -> RunOutcome {
    let span = prepared.requests.last().map_or(Duration::ZERO, |it| it.at.since(Instant::ZERO));
    let mut simulation = Simulation {
        prepared,
        config,
        routers: (0..config.routers.max(1)).map(|it| router(config, it)).collect(),
        network: PeerNetwork::new(config),
        effects: Vec::new(),
        workers: Vec::new(),
        queue: BinaryHeap::new(),
        serial: 0,
        pending: NumberMap::default(),
        fetches: Fetches::default(),
        pulls: Pulls::new(config, prepared.block_tokens),
        sessions: sessions(config, prepared),
        due: vec![None; config.routers.max(1)],
        not_arrived: prepared.requests.len(),
        unsent: 0,
        ideal_tokens: if config.decider == Decider::IdealCache {
            prepared.ideal_tokens()
        } else {
            Vec::new()
        },
        sample_every: match prepared.sessions {
            Some(_) => SESSION_SAMPLE,
            None => (span / SAMPLES).max(SAMPLE_MIN),
        },
        outcome: RunOutcome {
            has_pulls: config.pulls != PullingWorkers::None,
            has_store: config.store.is_some(),
            ..RunOutcome::default()
        },
        outputs: Vec::new(),
        remaining: Vec::new(),
        decision_time: Duration::ZERO,
        scaling: ScaleState::default(),
    };
    for (number, profile) in config.fleet.iter().enumerate() {
        let role = config.roles.get(number).copied().unwrap_or_default();
        simulation.join(Instant::ZERO, *profile, role);
    }
    simulation.start_arrivals();
    for (number, (at, _)) in config.script.actions.iter().enumerate() {
        simulation.schedule(*at, SimEvent::Action(number));
    }
    simulation.schedule(Instant::ZERO, SimEvent::Scrape);
    simulation.schedule(Instant::ZERO, SimEvent::Tick);
    simulation.schedule(Instant::ZERO, SimEvent::Sample);
    simulation.start_sync();
    simulation.start_scaling();
    while let Some(Reverse((now, _, event))) = simulation.queue.pop() {
        simulation.handle(now, event, observer);
    }
    debug_assert!(
        simulation.has_kept_its_promises(),
        "a request was lost, or a promise outlived its request"
    );
    simulation.into_outcome()
}

/// The loop of a trace that has sessions.
fn sessions<'a>(config: &LabConfig, prepared: &PreparedTrace<'a>) -> Option<SessionLoop<'a>> {
    let plans = prepared.sessions?;
    let tenants = config.sessions.len();
    let tenant = |session: usize| match tenants {
        0 | 1 => 0,
        _ => prepared.requests[plans.sessions[session].calls().start].tenant as usize - 1,
    };
    Some(SessionLoop::new(plans, tenant, tenants))
}

/// Each router has its own random seed.
fn router(config: &LabConfig, number: usize) -> Brain {
    let seed = config.brain.seed.wrapping_add(number as u64);
    // Worker numbers index `workers` and the outcome, so no number is reused.
    let quarantine = Duration::MAX;
    let shares = config.sync.is_some();
    Brain::new(maitre_dispatch::BrainSettings { seed, quarantine, shares, ..config.brain.clone() })
}

impl Simulation<'_> {
    fn into_outcome(mut self) -> RunOutcome {
        self.outcome.decision_time = self.decision_time;
        self.outcome.traffic = self.network.traffic;
        self.outcome.workers = self.workers.iter().map(SimWorker::totals).collect();
        let decides = self.config.decider == Decider::Brain;
        for (number, totals) in self.outcome.workers.iter_mut().enumerate().filter(|_| decides) {
            totals.limits = self.routers[0].limits(WorkerId(number as u32));
        }
        let end = self.outcome.answers.iter().map(|it| it.metrics.at + it.metrics.total).max();
        self.outcome.scaled =
            self.config.autoscale.map(|it| self.scaling.totals(end.unwrap_or_default(), it.profile));
        self.outcome
    }

    fn schedule(&mut self, at: Instant, event: SimEvent) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial, event)));
    }

    /// Schedules a periodic event until the run is over. Skips long idle periods except for their end: a trace may
    /// have days without requests, in which nothing changes.
    fn schedule_next(&mut self, now: Instant, every: Duration, event: SimEvent) {
        if self.is_over() {
            return;
        }
        let mut at = now + every;
        let next = self.prepared.requests.get(self.prepared.requests.len() - self.not_arrived);
        if let Some(next) = next.filter(|_| self.pending.is_empty() && self.config.is_fleet_fixed())
            && next.at.since(now) > SILENCE
        {
            at = at.max(Instant::from_nanos(next.at.as_nanos() - WAKE.as_nanos() as u64));
        }
        self.schedule(at, event);
    }

    fn handle(&mut self, now: Instant, event: SimEvent, observer: &mut dyn RunObserver) {
        match event {
            SimEvent::Arrival(number) => self.on_arrival(now, number, observer),
            SimEvent::Submission { request, attempt }
            | SimEvent::Deadline { request, attempt }
            | SimEvent::PullLimit { request, attempt }
            | SimEvent::Hedge { request, attempt }
                if self.pending.get(&request).is_none_or(|it| it.attempt != attempt) => {}
            SimEvent::Submission { request, .. } => self.submit(now, request),
            SimEvent::Deadline { request, .. } => self.on_deadline(now, request, Failure::Late),
            SimEvent::PullLimit { request, .. } => self.on_deadline(now, request, Failure::Handoff),
            SimEvent::Hedge { request, .. } => self.hedge(now, request),
            SimEvent::Retry { request } => self.retry(now, request),
            SimEvent::WakeUp { router } => self.wake_up(now, router),
            // Events of an earlier incarnation of a worker are void.
            SimEvent::StepEnds { worker, incarnation }
            | SimEvent::Events { worker, incarnation }
            | SimEvent::Load { worker, incarnation }
                if self.workers[worker].incarnation != incarnation => {}
            SimEvent::StepEnds { worker, .. } => self.end_step(now, worker),
            SimEvent::FetchEnds { worker, incarnation, fetch } => {
                self.end_fetch(now, worker, (incarnation, fetch));
            }
            SimEvent::PullEnds { worker, incarnation, pull } => {
                self.end_pull(now, worker, (incarnation, pull));
            }
            SimEvent::LeaseEnds { worker, incarnation, hold, request } => {
                self.end_lease(now, (worker, incarnation), hold, request);
            }
            SimEvent::Events { worker, .. } => self.deliver_events(now, worker),
            SimEvent::Load { worker, .. } => self.deliver_load(now, worker),
            SimEvent::Scrape => self.scrape(now),
            SimEvent::Tick => self.tick(now),
            SimEvent::Sample => self.sample(now),
            SimEvent::Action(number) => self.run_action(now, number),
            SimEvent::Scale => self.scale(now),
            SimEvent::Started { ordered } => self.started(now, ordered),
            SimEvent::Flush { router } => self.flush(now, router),
            SimEvent::Heartbeat { router } => self.heartbeat(now, router),
            SimEvent::FrameArrival { router, frame } => self.receive_frame(now, router, frame),
        }
    }

    fn is_over(&self) -> bool {
        self.not_arrived == 0 && self.pending.is_empty()
    }

    /// Whether no request is left, neither here nor in the routers.
    fn has_kept_its_promises(&self) -> bool {
        let owes = |it: &maitre_fleet::Worker| {
            let work = it.promised.work;
            let all = [work.prefill.tokens, Tokens(work.prefill.attended), work.decode, work.context];
            let told =
                it.promised_by_others.work.requests > 0 || it.promised_by_others.work.context > Tokens::ZERO;
            let fetches = it.fetches.promised > Tokens::ZERO || it.fetches.in_transit > Tokens::ZERO;
            told || fetches || work.requests > 0 || all.iter().any(|&it| it > Tokens::ZERO)
        };
        let keeps = |it: &Brain| it.open() == 0 && !it.fleet().workers().any(owes);
        self.is_over() && self.routers.iter().all(keeps)
    }

    /// Whether routers receive cache events: only if the strategy uses them.
    fn has_events(&self) -> bool {
        let asks = self.config.decider == Decider::Brain && self.config.brain.needs().cache;
        asks && self.config.knowledge == Knowledge::Reported
    }

    fn join(&mut self, now: Instant, profile: Profile, role: Role) {
        let number = self.workers.len();
        let profile = Profile { block_tokens: self.prepared.block_tokens, ..profile };
        let link = Link::new(self.config.link.of(&profile));
        let chunks = self.config.chunks;
        self.workers.push(SimWorker::new(profile, (role, link), (self.has_events(), chunks.engines)));
        self.join_store(number);
        self.scaling.joined(now);
        let worker = WorkerId(number as u32);
        let url = format!("http://sim:{number}");
        let cards = [Card { name: MODEL, parent: None }];
        self.dispatch_to_all(now, Event::WorkerJoined { url: &url });
        if role != Role::Both {
            self.dispatch_to_all(now, Event::WorkerRole { worker, role });
        }
        if self.config.pulls.has(worker.0) {
            self.dispatch_to_all(now, Event::WorkerPulls { worker, pulls: true });
        }
        if self.config.store.is_some() {
            self.dispatch_to_all(now, Event::WorkerStore { worker, store: Some(StoreId(0)) });
        }
        if let Some(reuse) = chunks.known() {
            self.dispatch_to_all(now, Event::WorkerReusesChunks { worker, reuse });
        }
        self.dispatch_to_all(now, Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        self.dispatch_to_all(now, Event::ModelsReported { worker, cards: &cards });
        if self.has_events() {
            self.dispatch_to_all(now, Event::TrustChanged { worker, trust: Trust::Fresh });
            let loss = self.config.event_loss;
            self.workers[number].lossy = (loss > 0.0).then(|| LossyFeed::new(loss, number as u64));
        }
        // A router scrapes a new worker at once: until it knows the block size, it records nothing for this worker.
        if self.workers[number].post_load() {
            self.deliver_load(now, number);
        }
    }

    fn dispatch(&mut self, router: usize, now: Instant, event: Event<'_>) {
        let mut effects = std::mem::take(&mut self.effects);
        self.routers[router].on(now, event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Place(placement) => self.on_placement(now, &placement),
                Effect::Refuse { request, refusal } => self.on_refusal(now, request.0, refusal),
                Effect::Recall { request, .. } => self.cancel(now, request.0),
                _ => {}
            }
        }
        self.effects = effects;
        self.schedule_wakeup(now, router);
        self.schedule_flush(now, router);
    }

    fn dispatch_to_all(&mut self, now: Instant, event: Event<'_>) {
        for router in 0..self.routers.len() {
            self.dispatch(router, now, event);
        }
    }

    fn arrive(&mut self, now: Instant, number: usize, observer: &mut dyn RunObserver) {
        let (request, router) = (number as u64, number % self.routers.len());
        self.pending.insert(request, PendingRequest::new(number, router, now));
        self.count_served(router);
        let begun = observer.wall();
        self.ask(now, request);
        self.decision_time += observer.wall() - begun;
    }

    /// Asks the router for a placement.
    fn ask(&mut self, now: Instant, request: u64) {
        let Some(&PendingRequest { number, router, .. }) = self.pending.get(&request) else { return };
        if self.config.decider != Decider::Brain {
            return self.place_with_full_knowledge(now, request, number);
        }
        let (asked, queue) = (&self.prepared.requests[number], &self.config.brain.queue);
        let looks = self.config.knowledge != Knowledge::None;
        let plan = self.routers[router].plan(Some(MODEL)).filter(|_| looks);
        let prompt = plan.map(|plan| self.prepared.prompt(number, plan.chunks));
        let arrival = Arrival {
            request: RequestId(request),
            model: Some(MODEL),
            size: Size::Tokens(asked.prompt_tokens()),
            answer_max: (self.config.limits == AnswerLimits::Stated)
                .then_some(asked.answer_tokens.max(1).into()),
            answers: Answers::ONE,
            form: Form::Stream,
            session: asked.session,
            program: asked.session.filter(|_| !self.config.are_sessions_hidden),
            head: Some(self.prepared.heads[number]),
            class: queue
                .allowed(TenantId(asked.tenant), asked.class.as_deref().and_then(|it| queue.class(it))),
            tenant: TenantId(asked.tenant),
            deadline: asked.deadline.map(|it| now + it),
            prompt: prompt.as_ref(),
            may_split: self.config.pulls != PullingWorkers::None
                || self.workers.iter().any(|it| it.role == Role::Prefill),
            state: None,
            only: None,
        };
        self.dispatch(router, now, Event::Arrived(arrival));
    }

    fn refuse(&mut self, now: Instant, request: u64) {
        let Some(pending) = self.pending.remove(&request) else { return };
        if self.has_other(request) {
            return;
        }
        self.outcome.refuse(&self.prepared.requests[pending.number]);
        self.call_lost(now, pending.number);
        self.client_is_free(now);
    }

    fn begin_step(&mut self, now: Instant, worker: usize) {
        if let Some(span) = self.workers[worker].begin_step(now) {
            let incarnation = self.workers[worker].incarnation;
            self.schedule(now + span, SimEvent::StepEnds { worker, incarnation });
        }
        self.begin_fetches(now, worker);
    }

    fn end_step(&mut self, now: Instant, worker: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        self.workers[worker].finish_step(now, &mut outputs);
        if self.has_events() && self.workers[worker].post_events() {
            match self.config.event_delay {
                Duration::ZERO => self.deliver_events(now, worker),
                delay => {
                    let incarnation = self.workers[worker].incarnation;
                    self.schedule(now + delay, SimEvent::Events { worker, incarnation });
                }
            }
        }
        for output in &outputs {
            let looks = reports_progress(output.index + 1);
            if output.index > 0 && output.finish.is_none() && !looks {
                continue;
            }
            let request = self.workers[worker].request(output.job);
            if self.ends_prefill_leg(request, worker) {
                self.end_prefill_leg(now, request, output);
                continue;
            }
            if looks {
                self.stream(now, request, output.index + 1);
            }
            if output.index == 0 {
                self.begin_answer(now, request);
            }
            if output.finish.is_some() {
                self.finish(now, request, output.cached_tokens);
            }
        }
        self.outputs = outputs;
        self.begin_step(now, worker);
    }

    fn stream(&mut self, now: Instant, request: u64, pieces: u32) {
        let Some(pending) = self.pending.get(&request) else { return };
        self.dispatch(pending.router, now, Event::Streamed { request: RequestId(request), pieces });
    }

    fn begin_answer(&mut self, now: Instant, request: u64) {
        let Some(pending) = self.pending.get_mut(&request) else { return };
        pending.first = Some(now);
        let (router, worker) = (pending.router, pending.worker);
        self.outpace(now, request);
        self.dispatch(router, now, Event::FirstToken { request: RequestId(request), worker });
    }

    fn finish(&mut self, now: Instant, request: u64, cached_tokens: u32) {
        let Some(pending) = self.pending.remove(&request) else { return };
        let asked = &self.prepared.requests[pending.number];
        let prompt_tokens = asked.prompt_tokens() as u32;
        self.workers[pending.worker.index()].answered += 1;
        self.outcome.answers.push(AnsweredRequest {
            number: pending.number,
            worker: pending.worker,
            believed_tokens: pending.believed_tokens,
            arrived: pending.arrived,
            predicted: pending
                .predicted
                .map(|it| (it, pending.first.unwrap_or(now).since(pending.placed_at))),
            metrics: AnswerMetrics {
                at: pending.at,
                first_token: pending.first.unwrap_or(now).since(pending.at),
                total: now.since(pending.at),
                prompt_tokens,
                // A worker did not compute what it fetched: another one did.
                cached_tokens: pending
                    .leg
                    .and_then(|it| it.held)
                    .map_or(cached_tokens, |it| it.cached_tokens),
                answer_tokens: asked.answer_tokens,
                label: asked.label(),
            },
        });
        let counted = Counted {
            prompt: Some(u64::from(prompt_tokens)),
            cached: Some(u64::from(cached_tokens)),
            answer: Some(u64::from(asked.answer_tokens)),
        };
        let (request, counted) = (RequestId(request), Some(counted));
        self.dispatch(pending.router, now, Event::Finished { request, counted, pieces: asked.answer_tokens });
        self.call_answered(now, pending.number);
        self.client_is_free(now);
    }

    fn deliver_events(&mut self, now: Instant, worker: usize) {
        let mut batch = self.workers[worker].next_events();
        match self.workers[worker].lossy.take() {
            None => self.apply_events(now, worker, &mut batch),
            Some(mut lossy) => {
                self.deliver_lossy(now, worker, &mut lossy, &mut batch);
                self.workers[worker].lossy = Some(lossy);
            }
        }
        self.workers[worker].keep_scratch(batch);
    }

    fn apply_events(&mut self, now: Instant, worker: usize, batch: &mut CacheEventBatch) {
        for event in batch.events(WorkerId(worker as u32), self.prepared.block_tokens) {
            self.dispatch_to_all(now, event);
        }
    }

    /// An attempt failed before its first token: place the request again, or give up.
    fn fail(&mut self, now: Instant, request: u64, failure: Failure) {
        let Some(pending) = self.pending.get(&request) else { return };
        let (number, router, worker) = (pending.number, pending.router, pending.worker_now());
        if self.config.decider != Decider::Brain {
            return self.place_with_full_knowledge(now, request, number);
        }
        self.dispatch(router, now, Event::Failed { request: RequestId(request), worker, failure });
    }
}

#[cfg(test)]
mod tests;

//! A fleet in virtual time: the brain of the router in front of the engines of this crate, with nothing
//! between them but a queue of what happens next.
//!
//! The brain is the one that serves, byte for byte; only the sockets are missing. So a strategy can be
//! judged on an hour of traffic in seconds, and twice the same.
//!
//! Left out: the time a request spends in the router and on the wire.

mod acts;
mod bounds;
mod outcome;
mod patience;
mod prepared;
pub mod script;
mod settings;
mod sync;
mod worker;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, TenantId, Tokens, WorkerId};
use maitre_dispatch::{
    Arrival, Brain, Effect, Event, Failure, Form, Placement, PromptChain, reports_progress,
};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Card, Evidence};
use maitre_index::feed::Trust;
use maitre_index::prefix::Unit;

pub use outcome::{Answer, Outcome, Sample, Worked};
pub use prepared::{PreparedTrace, block_tokens};
pub use script::Script;
pub use settings::{Judge, Knowledge, Limits, Settings, Sync, Via};
pub use sync::Talk;

use crate::engine::{Finish, Job, JobId, Known, Rest};
use crate::profile::Profile;
use crate::report::Seen;
use prepared::MODEL;
use sync::Post;
use worker::SimWorker;

/// Watches a run from outside.
pub trait Witness {
    /// So many of the requests have arrived.
    fn arrived(&mut self, _requests: usize) {}
    /// The time of day, to tell how long decisions take; zero if nobody wants to know.
    fn wall(&mut self) -> Duration {
        Duration::ZERO
    }
}

impl Witness for () {}

/// Samples of load over a run.
const SAMPLES: u32 = 240;
const SAMPLE_MIN: Duration = Duration::from_secs(1);
/// Between two ticks of the brain, as in the router. What is believed of a worker that nobody has tried changes at
/// ticks: with one at every scrape only, it would seem as fast as engines usually are for twice as long.
const TICK: Duration = Duration::from_millis(500);

/// How long nothing must happen to be skipped, and how long before its end the fleet wakes up: enough for every
/// clock the router keeps.
const SILENCE: Duration = Duration::from_mins(10);
const WAKE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    Arrival(usize),
    /// A request reaches its worker.
    Submission {
        request: u64,
        trip: u32,
    },
    /// Its first token should be out.
    Deadline {
        request: u64,
        trip: u32,
    },
    /// A client that was told to come again does.
    Return {
        request: u64,
    },
    /// A router wants to know the time.
    Due {
        router: usize,
    },
    StepEnds {
        worker: usize,
        life: u32,
    },
    /// Changes of a cache, or a scrape, reach the router.
    Events {
        worker: usize,
        life: u32,
    },
    Load {
        worker: usize,
        life: u32,
    },
    Scrape,
    Tick,
    Sample,
    Act(usize),
    /// A router tells the others what it has for them.
    Flush {
        router: usize,
    },
    Beat {
        router: usize,
    },
    /// What another told reaches a router.
    Letter {
        router: usize,
        letter: u64,
    },
}

/// A request on its way.
struct Open {
    number: usize,
    router: usize,
    worker: WorkerId,
    believed: Option<u64>,
    /// Until it is submitted.
    tokens: Vec<u32>,
    first: Option<Instant>,
    /// Counts seats: what was foreseen of an earlier one does not happen.
    trip: u32,
    /// Once it is submitted.
    job: Option<JobId>,
    /// When it came, or came again.
    at: Instant,
    /// Times it was sent away and came again.
    returns: u32,
    /// When it was last seated, and how long after that the router foresaw its first token.
    seated: Instant,
    foreseen: Option<Duration>,
}

impl Open {
    fn new(number: usize, router: usize, at: Instant) -> Open {
        Open {
            number,
            router,
            worker: WorkerId(0),
            believed: None,
            tokens: Vec::new(),
            first: None,
            trip: 0,
            job: None,
            at,
            returns: 0,
            seated: at,
            foreseen: None,
        }
    }
}

struct Lab<'a> {
    prepared: &'a PreparedTrace<'a>,
    settings: &'a Settings,
    routers: Vec<Brain>,
    post: Post,
    effects: Vec<Effect>,
    workers: Vec<SimWorker>,
    queue: BinaryHeap<Reverse<(Instant, u64, Happens)>>,
    /// Keeps what happens at one instant in the order in which it was foreseen.
    serial: u64,
    open: NumberMap<Open>,
    /// When each router will be told the time next, if it asked to be.
    due: Vec<Option<Instant>>,
    /// Requests that have not arrived yet.
    to_come: usize,
    /// By request, what an ideal cache holds.
    given: Vec<u32>,
    sample_every: Duration,
    outcome: Outcome,
    outputs: Vec<crate::engine::Output>,
    rests: Vec<Rest>,
    deciding: Duration,
}

/// Plays all requests to the end.
pub fn play(settings: &Settings, prepared: &PreparedTrace<'_>, witness: &mut dyn Witness) -> Outcome {
    let span = prepared.requests.last().map_or(Duration::ZERO, |it| it.at.since(Instant::ZERO));
    let mut lab = Lab {
        prepared,
        settings,
        routers: (0..settings.routers.max(1)).map(|it| router(settings, it)).collect(),
        post: Post::new(settings),
        effects: Vec::new(),
        workers: Vec::new(),
        queue: BinaryHeap::new(),
        serial: 0,
        open: NumberMap::default(),
        due: vec![None; settings.routers.max(1)],
        to_come: prepared.requests.len(),
        given: if settings.judge == Judge::IdealCache { prepared.given() } else { Vec::new() },
        sample_every: (span / SAMPLES).max(SAMPLE_MIN),
        outcome: Outcome::default(),
        outputs: Vec::new(),
        rests: Vec::new(),
        deciding: Duration::ZERO,
    };
    for profile in &settings.fleet {
        lab.join(Instant::ZERO, *profile);
    }
    if let Some(first) = prepared.requests.first() {
        lab.foresee(first.at, Happens::Arrival(0));
    }
    for (number, (at, _)) in settings.script.acts.iter().enumerate() {
        lab.foresee(*at, Happens::Act(number));
    }
    lab.foresee(Instant::ZERO, Happens::Scrape);
    lab.foresee(Instant::ZERO, Happens::Tick);
    lab.foresee(Instant::ZERO, Happens::Sample);
    lab.say_hello();
    while let Some(Reverse((now, _, happens))) = lab.queue.pop() {
        lab.happen(now, happens, witness);
    }
    debug_assert!(lab.has_kept_its_promises(), "a request was lost, or a promise outlived its request");
    lab.outcome.deciding = lab.deciding;
    lab.outcome.talk = lab.post.talk;
    lab.outcome.workers = lab.workers.iter().map(SimWorker::worked).collect();
    let decides = settings.judge == Judge::Brain;
    for (number, worked) in lab.outcome.workers.iter_mut().enumerate().filter(|_| decides) {
        worked.limits = lab.routers[0].limits(WorkerId(number as u32));
    }
    lab.outcome
}

/// Each router has dice of its own.
fn router(settings: &Settings, number: usize) -> Brain {
    let seed = settings.brain.seed.wrapping_add(number as u64);
    // Desks are counted here, and those that left are in the outcome: no number is used twice.
    let quarantine = Duration::MAX;
    let shares = settings.sync.is_some();
    Brain::new(maitre_dispatch::BrainSettings { seed, quarantine, shares, ..settings.brain.clone() })
}

impl Lab<'_> {
    fn foresee(&mut self, at: Instant, happens: Happens) {
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial, happens)));
    }

    /// What comes round until all is over. A long silence is skipped but for its end: a trace may have days of it,
    /// and nothing changes meanwhile.
    fn foresee_again(&mut self, now: Instant, every: Duration, happens: Happens) {
        if self.is_over() {
            return;
        }
        let mut at = now + every;
        let next = self.prepared.requests.get(self.prepared.requests.len() - self.to_come);
        if let Some(next) = next.filter(|_| self.open.is_empty() && self.settings.script.is_empty())
            && next.at.since(now) > SILENCE
        {
            at = at.max(Instant::from_nanos(next.at.as_nanos() - WAKE.as_nanos() as u64));
        }
        self.foresee(at, happens);
    }

    fn happen(&mut self, now: Instant, happens: Happens, witness: &mut dyn Witness) {
        match happens {
            Happens::Arrival(number) => {
                self.to_come -= 1;
                if let Some(next) = self.prepared.requests.get(number + 1) {
                    self.foresee(next.at, Happens::Arrival(number + 1));
                }
                witness.arrived(number + 1);
                self.arrive(now, number, witness);
            }
            Happens::Submission { request, trip } | Happens::Deadline { request, trip }
                if self.open.get(&request).is_none_or(|it| it.trip != trip) => {}
            Happens::Submission { request, .. } => self.submit(now, request),
            Happens::Deadline { request, .. } => self.be_late(now, request),
            Happens::Return { request } => self.come_again(now, request),
            Happens::Due { router } => self.be_due(now, router),
            // What an earlier life of a worker began, or sent, ended with it.
            Happens::StepEnds { worker, life }
            | Happens::Events { worker, life }
            | Happens::Load { worker, life }
                if self.workers[worker].life != life => {}
            Happens::StepEnds { worker, .. } => self.end_step(now, worker),
            Happens::Events { worker, .. } => self.tell_events(now, worker),
            Happens::Load { worker, .. } => self.tell_load(now, worker),
            Happens::Scrape => self.scrape(now),
            Happens::Tick => self.tick(now),
            Happens::Sample => self.sample(now),
            Happens::Act(number) => self.act(now, number),
            Happens::Flush { router } => self.flush(now, router),
            Happens::Beat { router } => self.beat(now, router),
            Happens::Letter { router, letter } => self.hear(now, router, letter),
        }
    }

    fn is_over(&self) -> bool {
        self.to_come == 0 && self.open.is_empty()
    }

    /// Whether nothing is left of any request, here and in the routers.
    fn has_kept_its_promises(&self) -> bool {
        let owes = |it: &maitre_fleet::Worker| {
            let all = [it.promised.work.prefill, it.promised.work.decode, it.promised.work.context];
            let told =
                it.promised_by_others.work.requests > 0 || it.promised_by_others.work.context > Tokens::ZERO;
            told || it.promised.work.requests > 0 || all.iter().any(|&it| it > Tokens::ZERO)
        };
        let keeps = |it: &Brain| it.open() == 0 && !it.fleet().workers().any(owes);
        self.is_over() && self.routers.iter().all(keeps)
    }

    /// Whom caches do not concern is not told of them.
    fn has_events(&self) -> bool {
        let asks = self.settings.judge == Judge::Brain && self.settings.brain.needs().cache;
        asks && self.settings.knowledge == Knowledge::Reported
    }

    fn join(&mut self, now: Instant, profile: Profile) {
        let number = self.workers.len();
        let profile = Profile { block_tokens: self.prepared.block_tokens, ..profile };
        self.workers.push(SimWorker::new(profile, self.has_events()));
        let worker = WorkerId(number as u32);
        let url = format!("http://sim:{number}");
        let cards = [Card { name: MODEL, parent: None }];
        self.tell_all(now, Event::WorkerJoined { url: &url });
        self.tell_all(now, Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        self.tell_all(now, Event::ModelsReported { worker, cards: &cards });
        if self.has_events() {
            self.tell_all(now, Event::TrustChanged { worker, trust: Trust::Fresh });
        }
        // A router asks a new worker about itself at once: until it knows the block, nothing it sends there is
        // remembered.
        if self.workers[number].post_load() {
            self.tell_load(now, number);
        }
    }

    fn tell(&mut self, router: usize, now: Instant, event: Event<'_>) {
        let mut effects = std::mem::take(&mut self.effects);
        self.routers[router].on(now, event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Place(placement) => self.obey(now, &placement),
                Effect::Refuse { request, refusal } => self.turn_away(now, request.0, refusal),
                Effect::Recall { request, .. } => self.take_back(request.0),
                _ => {}
            }
        }
        self.effects = effects;
        self.foresee_due(now, router);
        self.foresee_flush(now, router);
    }

    fn tell_all(&mut self, now: Instant, event: Event<'_>) {
        for router in 0..self.routers.len() {
            self.tell(router, now, event);
        }
    }

    fn arrive(&mut self, now: Instant, number: usize, witness: &mut dyn Witness) {
        let (request, router) = (number as u64, number % self.routers.len());
        self.open.insert(request, Open::new(number, router, now));
        self.count_served(router);
        let begun = witness.wall();
        self.ask(now, request);
        self.deciding += witness.wall() - begun;
    }

    /// Asks the router for a placement.
    fn ask(&mut self, now: Instant, request: u64) {
        let Some(&Open { number, router, .. }) = self.open.get(&request) else { return };
        if self.settings.judge != Judge::Brain {
            return self.seat_by_foreknowledge(now, request, number);
        }
        let (asked, queue) = (&self.prepared.requests[number], &self.settings.brain.queue);
        let looks = self.settings.knowledge != Knowledge::None;
        let plan = self.routers[router].plan(Some(MODEL)).filter(|_| looks);
        let prompt = plan.map(|_| PromptChain {
            unit: Unit::Tokens,
            units: asked.prompt_tokens(),
            block: self.prepared.block_tokens,
            chain: self.prepared.chains[number].clone(),
        });
        let arrival = Arrival {
            request: RequestId(request),
            model: Some(MODEL),
            size: Size::Tokens(asked.prompt_tokens()),
            answer_max: (self.settings.limits == Limits::Told).then_some(asked.answer_tokens.max(1).into()),
            decodes: Decodes::Yes,
            form: Form::Stream,
            session: asked.session,
            head: Some(self.prepared.heads[number]),
            class: queue
                .allowed(TenantId(asked.tenant), asked.class.as_deref().and_then(|it| queue.class(it))),
            tenant: TenantId(asked.tenant),
            deadline: asked.deadline.map(|it| now + it),
            prompt: prompt.as_ref(),
        };
        self.tell(router, now, Event::Arrived(arrival));
    }

    fn obey(&mut self, now: Instant, placement: &Placement) {
        let request = placement.request.0;
        self.placement(now, request, placement.worker, placement.held.map(|it| it.0));
        if let Some(open) = self.open.get_mut(&request) {
            let record = self.routers[open.router].decisions().of(placement.request);
            let foreseen = record.and_then(|it| it.predicted);
            open.foreseen = foreseen.and_then(|it| Duration::try_from_secs_f64(it).ok());
            open.seated = now;
        }
        if let (Some(open), Some(deadline)) = (self.open.get(&request), placement.deadline) {
            let trip = open.trip;
            self.foresee(deadline, Happens::Deadline { request, trip });
        }
    }

    fn placement(&mut self, now: Instant, request: u64, worker: WorkerId, believed: Option<u64>) {
        if let Some(open) = self.open.get_mut(&request) {
            (open.worker, open.believed) = (worker, believed);
            open.trip += 1;
            let (trip, overhead) = (open.trip, self.workers[worker.index()].profile.overhead);
            self.foresee(now + overhead, Happens::Submission { request, trip });
        }
    }

    fn refuse(&mut self, request: u64) {
        let Some(open) = self.open.remove(&request) else { return };
        self.outcome.refuse(&self.prepared.requests[open.number]);
    }

    fn submit(&mut self, now: Instant, request: u64) {
        let Some(open) = self.open.get_mut(&request) else { return };
        let (number, router, worker, at) = (open.number, open.router, open.worker.index(), open.at);
        let asked = &self.prepared.requests[number];
        if !self.workers[worker].up {
            return self.fail(now, request, Failure::Refused);
        }
        let mut tokens = std::mem::take(&mut open.tokens);
        if tokens.is_empty() {
            prepared::write_tokens(asked, &mut tokens);
        }
        let mut known = Known { names: &self.prepared.chains[number], elsewhere_tokens: 0 };
        let mut root = prepared::root().start();
        if let Some(&given) = self.given.get(number) {
            // The rest of the prompt is this request's own; the cache here has nothing to add.
            let given = given.min(tokens.len() as u32 - 1);
            tokens.drain(..given as usize);
            known = Known { names: &[], elsewhere_tokens: given };
            root = root.with(request);
        }
        let job = Job {
            prompt: tokens,
            root: crate::kv::Root::of_chain(root),
            seed: asked.answer,
            answer_tokens: asked.answer_tokens,
            finish: Finish::Stop,
        };
        if let Some(job) = self.workers[worker].submit(request, at, job, known) {
            if let Some(open) = self.open.get_mut(&request) {
                open.job = Some(job);
            }
            self.begin_step(now, worker);
        } else {
            self.refuse(request);
            self.tell(router, now, Event::Declined { request: RequestId(request) });
        }
    }

    fn begin_step(&mut self, now: Instant, worker: usize) {
        if let Some(span) = self.workers[worker].begin_step() {
            let life = self.workers[worker].life;
            self.foresee(now + span, Happens::StepEnds { worker, life });
        }
    }

    fn end_step(&mut self, now: Instant, worker: usize) {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.clear();
        self.workers[worker].finish_step(now, &mut outputs);
        if self.has_events() && self.workers[worker].post_events() {
            match self.settings.event_delay {
                Duration::ZERO => self.tell_events(now, worker),
                delay => {
                    let life = self.workers[worker].life;
                    self.foresee(now + delay, Happens::Events { worker, life });
                }
            }
        }
        for output in &outputs {
            let looks = reports_progress(output.index + 1);
            if output.index > 0 && output.finish.is_none() && !looks {
                continue;
            }
            let request = self.workers[worker].request(output.job);
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
        let Some(open) = self.open.get(&request) else { return };
        self.tell(open.router, now, Event::Streamed { request: RequestId(request), pieces });
    }

    fn begin_answer(&mut self, now: Instant, request: u64) {
        let Some(open) = self.open.get_mut(&request) else { return };
        open.first = Some(now);
        let (router, worker) = (open.router, open.worker);
        self.tell(router, now, Event::FirstToken { request: RequestId(request), worker });
    }

    fn finish(&mut self, now: Instant, request: u64, cached_tokens: u32) {
        let Some(open) = self.open.remove(&request) else { return };
        let asked = &self.prepared.requests[open.number];
        let prompt_tokens = asked.prompt_tokens() as u32;
        self.workers[open.worker.index()].answered += 1;
        self.outcome.answers.push(Answer {
            worker: open.worker,
            believed_tokens: open.believed,
            foreseen: open.foreseen.map(|it| (it, open.first.unwrap_or(now).since(open.seated))),
            seen: Seen {
                at: open.at,
                first_token: open.first.unwrap_or(now).since(open.at),
                total: now.since(open.at),
                prompt_tokens,
                cached_tokens,
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
        self.tell(open.router, now, Event::Finished { request, counted, pieces: asked.answer_tokens });
    }

    fn tell_events(&mut self, now: Instant, worker: usize) {
        let mut batch = self.workers[worker].next_events();
        for event in batch.events(WorkerId(worker as u32), self.prepared.block_tokens) {
            self.tell_all(now, event);
        }
        self.workers[worker].keep_scratch(batch);
    }

    /// An attempt failed before its first token: whoever seated the request seats it again, or gives it up.
    fn fail(&mut self, now: Instant, request: u64, failure: Failure) {
        let Some(open) = self.open.get(&request) else { return };
        let (number, router, worker) = (open.number, open.router, open.worker);
        if self.settings.judge != Judge::Brain {
            return self.seat_by_foreknowledge(now, request, number);
        }
        self.tell(router, now, Event::Failed { request: RequestId(request), worker, failure });
    }
}

#[cfg(test)]
mod tests;

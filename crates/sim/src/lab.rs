//! A fleet in virtual time: the brain of the router in front of the engines of this crate, with nothing
//! between them but a queue of what happens next.
//!
//! The brain is the one that serves, byte for byte; only the sockets are missing. So a strategy can be
//! judged on an hour of traffic in seconds, and twice the same.
//!
//! Left out: the time a request spends in the router and on the wire, and failures.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_dispatch::{Arrival, Blocks, Brain, Effect, Event, Form, Prompt, Seat};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Card, Evidence, Load};
use maitre_index::Tier;
use maitre_index::feed::Trust;
use maitre_index::prefix::{self, Root, Unit};

use crate::engine::{self, Engine, Finish, Job, JobId};
use crate::kv::{self, Change};
use crate::profile::Profile;

/// One request of a run.
#[derive(Clone, Debug)]
pub struct Guest {
    pub at: Instant,
    pub prompt: Arc<[u32]>,
    pub answer_tokens: u32,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// One engine each.
    pub profiles: Vec<Profile>,
    pub brain: maitre_dispatch::Settings,
    /// Engines tell the router what they store and evict.
    pub events: bool,
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub worker: WorkerId,
    pub first_token: Duration,
    pub total: Duration,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// What the router believed was cached, if it looked.
    pub believed_tokens: Option<u64>,
}

/// A run, summed up.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order in which they ended.
    pub seen: Vec<Seen>,
    pub refused: u64,
}

impl Outcome {
    pub fn hit_ratio(&self) -> f64 {
        let cached: u64 = self.seen.iter().map(|it| u64::from(it.cached_tokens)).sum();
        let prompts: u64 = self.seen.iter().map(|it| u64::from(it.prompt_tokens)).sum();
        cached as f64 / prompts.max(1) as f64
    }

    pub fn mean_first_token(&self) -> Duration {
        let sum: Duration = self.seen.iter().map(|it| it.first_token).sum();
        sum / u32::try_from(self.seen.len()).unwrap_or(u32::MAX).max(1)
    }

    pub fn mean_total(&self) -> Duration {
        let sum: Duration = self.seen.iter().map(|it| it.total).sum();
        sum / u32::try_from(self.seen.len()).unwrap_or(u32::MAX).max(1)
    }

    /// The first-token time that this part of the requests stay under.
    pub fn first_token_quantile(&self, part: f64) -> Duration {
        let mut times: Vec<Duration> = self.seen.iter().map(|it| it.first_token).collect();
        times.sort_unstable();
        let place = (part * times.len().saturating_sub(1) as f64).round() as usize;
        times.get(place).copied().unwrap_or_default()
    }

    /// The part of all prompt and answer tokens that each worker had to compute.
    pub fn shares(&self, workers: usize) -> Vec<f64> {
        let mut work = vec![0.0; workers];
        for it in &self.seen {
            work[it.worker.index()] += f64::from(it.prompt_tokens - it.cached_tokens);
        }
        let all: f64 = work.iter().sum();
        work.iter().map(|it| it / all).collect()
    }
}

/// The model everybody asks for.
const MODEL: &str = "maitre-sim";
/// Between two scrapes, as in the router.
const SCRAPE: Duration = Duration::from_secs(1);
/// Cache changes kept between two steps: more than a step can make.
const CHANGES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Happens {
    Arrival(usize),
    Submission { request: u64 },
    StepEnds { worker: usize },
    Scrape,
}

/// A request on its way.
struct Open {
    guest: usize,
    seat: Seat,
    first: Option<Instant>,
}

struct Desk {
    engine: Engine,
    stepping: bool,
    /// The request behind each job, by slot.
    jobs: HashMap<JobId, u64>,
}

struct Lab<'a> {
    guests: &'a [Guest],
    settings: &'a Settings,
    brain: Brain,
    effects: Vec<Effect>,
    desks: Vec<Desk>,
    queue: BTreeMap<(Instant, u64), Happens>,
    /// Keeps what happens at one instant in the order in which it was foreseen.
    serial: u64,
    open: HashMap<u64, Open>,
    outcome: Outcome,
    chain: Vec<prefix::PrefixHash>,
    root: kv::Root,
}

/// Plays all guests to the end.
pub fn play(settings: &Settings, guests: &[Guest]) -> Outcome {
    let engine = |profile: &Profile| {
        let changes_max = if settings.events { CHANGES_MAX } else { 0 };
        let engine = Engine::new(engine::Settings { profile: *profile, changes_max });
        Desk { engine, stepping: false, jobs: HashMap::new() }
    };
    let mut lab = Lab {
        guests,
        settings,
        brain: Brain::new(settings.brain.clone()),
        effects: Vec::new(),
        desks: settings.profiles.iter().map(engine).collect(),
        queue: BTreeMap::new(),
        serial: 0,
        open: HashMap::new(),
        outcome: Outcome::default(),
        chain: Vec::new(),
        root: kv::Root::new(kv::Names { model: MODEL, adapter: None, salt: "" }),
    };
    lab.join_all();
    for (number, guest) in guests.iter().enumerate() {
        lab.foresee(guest.at, Happens::Arrival(number));
    }
    lab.foresee(Instant::ZERO, Happens::Scrape);
    while let Some(((now, _), happens)) = lab.queue.pop_first() {
        lab.happen(now, happens);
    }
    lab.outcome
}

impl Lab<'_> {
    fn join_all(&mut self) {
        let card = Card { name: MODEL, parent: None };
        for number in 0..self.desks.len() {
            let worker = WorkerId(number as u32);
            self.tell(Instant::ZERO, Event::WorkerJoined { url: &format!("http://sim:{number}") });
            self.tell(Instant::ZERO, Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            self.tell(Instant::ZERO, Event::ModelsReported { worker, cards: &[card] });
            if self.settings.events {
                self.tell(Instant::ZERO, Event::TrustChanged { worker, trust: Trust::Fresh });
            }
        }
    }

    fn tell(&mut self, now: Instant, event: Event<'_>) -> Option<Seat> {
        self.brain.on(now, event, &mut self.effects);
        self.effects.drain(..).find_map(|it| match it {
            Effect::Seat(seat) => Some(seat),
            _ => None,
        })
    }

    fn foresee(&mut self, at: Instant, happens: Happens) {
        self.serial += 1;
        self.queue.insert((at, self.serial), happens);
    }

    fn happen(&mut self, now: Instant, happens: Happens) {
        match happens {
            Happens::Arrival(guest) => self.arrive(now, guest),
            Happens::Submission { request } => self.submit(now, request),
            Happens::StepEnds { worker } => self.end_step(now, worker),
            Happens::Scrape => self.scrape(now),
        }
    }

    fn arrive(&mut self, now: Instant, number: usize) {
        let guest = &self.guests[number];
        let request = number as u64;
        let block = self.brain.plan(Some(MODEL)).map(|it| it.block);
        let prompt = block.map(|block| {
            let root = Root::new(Unit::Tokens, MODEL, None, None);
            prefix::chain(root, &guest.prompt, block as usize, &mut self.chain);
            Prompt {
                unit: Unit::Tokens,
                units: guest.prompt.len() as u64,
                block,
                chain: self.chain.as_slice().into(),
            }
        });
        let arrival = Arrival {
            request: RequestId(request),
            model: Some(MODEL),
            size: Size::Tokens(guest.prompt.len() as u64),
            answer_max: None,
            decodes: Decodes::Yes,
            form: Form::Stream,
            session: None,
            // What a prompt of text would begin with.
            head: guest
                .prompt
                .get(..256)
                .map(|it| prefix::Root::new(Unit::Tokens, "", None, None).start().then_all(it).0),
            prompt: prompt.as_ref(),
        };
        match self.tell(now, Event::Arrived(arrival)) {
            Some(seat) => {
                self.open.insert(request, Open { guest: number, seat, first: None });
                let overhead = self.settings.profiles[seat.worker.index()].overhead;
                self.foresee(now + overhead, Happens::Submission { request });
            }
            None => self.outcome.refused += 1,
        }
    }

    fn submit(&mut self, now: Instant, request: u64) {
        let Some(open) = self.open.get(&request) else { return };
        let (guest, worker) = (&self.guests[open.guest], open.seat.worker.index());
        let job = Job {
            prompt: guest.prompt.to_vec(),
            root: self.root.clone(),
            seed: request,
            answer_tokens: guest.answer_tokens,
            finish: Finish::Stop,
        };
        match self.desks[worker].engine.submit(guest.at, job) {
            Ok(job) => {
                self.desks[worker].jobs.insert(job, request);
                self.begin_step(now, worker);
            }
            Err(_) => {
                self.open.remove(&request);
                self.outcome.refused += 1;
                self.tell(now, Event::Left { request: RequestId(request) });
            }
        }
    }

    fn begin_step(&mut self, now: Instant, worker: usize) {
        let desk = &mut self.desks[worker];
        if desk.stepping {
            return;
        }
        if let Some(span) = desk.engine.begin_step() {
            desk.stepping = true;
            self.foresee(now + span, Happens::StepEnds { worker });
        }
    }

    fn end_step(&mut self, now: Instant, worker: usize) {
        let mut outputs = Vec::new();
        let desk = &mut self.desks[worker];
        desk.stepping = false;
        desk.engine.finish_step(now, &mut outputs);
        if self.settings.events {
            self.report_changes(now, worker);
        }
        for output in outputs {
            let Some(&request) = self.desks[worker].jobs.get(&output.job) else { continue };
            if output.index == 0 {
                if let Some(open) = self.open.get_mut(&request) {
                    open.first = Some(now);
                }
                self.tell(now, Event::FirstToken { request: RequestId(request) });
            }
            if output.finish.is_some() {
                self.desks[worker].jobs.remove(&output.job);
                self.finish(now, request, output.cached_tokens);
            }
        }
        self.begin_step(now, worker);
    }

    fn finish(&mut self, now: Instant, request: u64, cached_tokens: u32) {
        let Some(open) = self.open.remove(&request) else { return };
        let guest = &self.guests[open.guest];
        let prompt_tokens = guest.prompt.len() as u32;
        self.outcome.seen.push(Seen {
            worker: open.seat.worker,
            first_token: open.first.unwrap_or(now).since(guest.at),
            total: now.since(guest.at),
            prompt_tokens,
            cached_tokens,
            believed_tokens: open.seat.held.map(|it| it.0),
        });
        let counted = Counted {
            prompt: Some(u64::from(prompt_tokens)),
            cached: Some(u64::from(cached_tokens)),
            answer: Some(u64::from(guest.answer_tokens)),
        };
        let pieces = guest.answer_tokens;
        self.tell(now, Event::Finished { request: RequestId(request), counted: Some(counted), pieces });
    }

    fn report_changes(&mut self, now: Instant, worker: usize) {
        let (changes, lost) = self.desks[worker].engine.take_changes();
        debug_assert_eq!(lost, 0, "a step makes fewer changes");
        let worker = WorkerId(worker as u32);
        for change in changes {
            match change {
                Change::Stored(stored) => {
                    let blocks = Blocks {
                        names: &[stored.hash],
                        parent: stored.parent,
                        tokens: &stored.tokens,
                        block_tokens: stored.tokens.len() as u32,
                        adapter: None,
                        salt: None,
                        extras: &[],
                        tier: Tier::Gpu,
                    };
                    self.tell(now, Event::BlocksStored { worker, blocks });
                }
                Change::Cleared => drop(self.tell(now, Event::BlocksCleared { worker })),
                Change::Removed { hash } => {
                    self.tell(now, Event::BlocksRemoved { worker, names: &[hash], tier: Tier::Gpu });
                }
            }
        }
    }

    fn scrape(&mut self, now: Instant) {
        for (number, profile) in self.settings.profiles.iter().enumerate() {
            let stats = self.desks[number].engine.stats();
            let load = Load {
                running: Some(stats.running as u64),
                waiting: Some(stats.waiting as u64),
                kv_usage: Some(f64::from(stats.used_blocks) / f64::from(stats.capacity_blocks)),
                block_size: Some(u64::from(profile.block_tokens)),
                blocks: Some(u64::from(stats.capacity_blocks)),
                kv_tokens: None,
            };
            self.tell(now, Event::LoadReported { worker: WorkerId(number as u32), load });
        }
        self.tell(now, Event::Tick);
        if !self.queue.is_empty() {
            self.foresee(now + SCRAPE, Happens::Scrape);
        }
    }
}

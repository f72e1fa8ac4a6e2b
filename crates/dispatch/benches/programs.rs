//! What programs cost: a million of them over a day in virtual time, at 64 workers.
//!
//! Each program has one to seven calls, seconds apart, and is never heard of again: nobody reports its end, so its memory is
//! taken by others once it has been idle for long. Half of them are named, and half are found by their prefixes. A tenth of the day is
//! played without programs, and again with so little memory that calls are held. For each: the time from the arrival of a
//! call to its placement or hold, whose target is that of all decisions, 20 µs at p99; that of the other events, which let held calls go;
//! and for the whole day the memory of the process, at a tenth of it and at its end, and how many programs were known at the end.
//!
//! `cargo bench -p maitre-dispatch --bench programs` plays the day, which takes minutes; `cargo test` plays two minutes of it.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench reads the clock and prints")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant as Clock};

use maitre_base::hash;
use maitre_base::{ClassId, EngineLoad, Instant, RequestId, Rng, TenantId, WorkerId};
use maitre_dispatch::programs::{PROGRAMS_MAX, ProgramRule, ProgramSettings};
use maitre_dispatch::{Arrival, Brain, BrainSettings, Effect, Event, Form, PromptChain};
use maitre_fleet::estimate::{Answers, Counted, Size};
use maitre_fleet::{Card, Evidence};
use maitre_index::PrefixHash;
use maitre_index::feed::Trust;
use maitre_index::prefix::Unit;
use maitre_policy::Name;

const WORKERS: u32 = 64;
const KV_TOKENS: u64 = 640_000;
/// With which calls are held.
const KV_TOKENS_SHORT: u64 = 320_000;
/// Programs begun a second: a million a day.
const RATE: f64 = 1e6 / 86_400.0;
const BLOCK: u32 = 512;
const ANSWER: u64 = 200;
const TICK: Duration = Duration::from_millis(500);
const TENANTS: u64 = 50;

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let seconds = if measuring { 86_400 } else { 120 };
    let tenth = Instant::from_millis(seconds * 100);
    let mut day = Day::new(ProgramRule::WorkingSet, KV_TOKENS);
    day.play_until(tenth);
    let early = memory_mb();
    day.play_until(Instant::from_millis(seconds * 1_000));
    day.print("all day");
    let known = day.brain.program_counts(day.now).known;
    assert!(known <= PROGRAMS_MAX as u64, "{known}");
    println!(
        "memory {early} MB at a tenth of the time and {} MB at its end; {known} programs known",
        memory_mb()
    );
    for (what, rule, kv_tokens) in [
        ("a tenth of it without programs", ProgramRule::Off, KV_TOKENS),
        ("a tenth of it with half of the memory", ProgramRule::WorkingSet, KV_TOKENS_SHORT),
    ] {
        let mut day = Day::new(rule, kv_tokens);
        day.play_until(tenth);
        day.print(what);
    }
}

/// How often something took how long, in buckets of a tenth of a microsecond.
struct Times {
    buckets: Vec<u64>,
    longest: Duration,
}

impl Times {
    fn new() -> Times {
        Times { buckets: vec![0; 100_000], longest: Duration::ZERO }
    }

    fn add(&mut self, took: Duration) {
        let place = (took.as_nanos() / 100) as usize;
        let last = self.buckets.len() - 1;
        self.buckets[place.min(last)] += 1;
        self.longest = self.longest.max(took);
    }

    fn quantile(&self, part: f64) -> f64 {
        let all: u64 = self.buckets.iter().sum();
        let mut left = (all as f64 * part) as u64;
        let place = self.buckets.iter().position(|&it| {
            let is_there = left < it;
            left = left.saturating_sub(it);
            is_there
        });
        place.unwrap_or(0) as f64 / 10.0
    }

    fn print(&self, what: &str) {
        let (p50, p99, p999) = (self.quantile(0.5), self.quantile(0.99), self.quantile(0.999));
        println!(
            "{what}: p50 {p50:.1} µs, p99 {p99:.1} µs, p99.9 {p999:.1} µs, longest {:.1?}",
            self.longest
        );
    }
}

#[derive(Clone, Copy)]
struct Agent {
    tokens: u64,
    calls_left: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin,
    /// Of a program.
    Call(u64),
    FirstToken(RequestId, WorkerId),
    Finished(RequestId),
    Tick,
}

struct Day {
    brain: Brain,
    rng: Rng,
    now: Instant,
    script: BinaryHeap<Reverse<(Instant, Step)>>,
    agents: HashMap<u64, Agent>,
    /// The program of each request.
    requests: HashMap<RequestId, u64>,
    begun: u64,
    calls: u64,
    held: u64,
    arrivals: Times,
    others: Times,
    effects: Vec<Effect>,
}

impl Day {
    fn new(rule: ProgramRule, kv_tokens: u64) -> Day {
        let programs = ProgramSettings { rule, ..ProgramSettings::default() };
        let mut settings = BrainSettings { strategy: Name::LeastDelay, programs, ..BrainSettings::default() };
        settings.queue.enabled = false;
        let mut day = Day {
            brain: Brain::new(settings),
            rng: Rng::new(1),
            now: Instant::from_millis(1),
            script: BinaryHeap::from([
                Reverse((Instant::from_millis(2), Step::Begin)),
                Reverse((Instant::from_millis(500), Step::Tick)),
            ]),
            agents: HashMap::new(),
            requests: HashMap::new(),
            begun: 0,
            calls: 0,
            held: 0,
            arrivals: Times::new(),
            others: Times::new(),
            effects: Vec::new(),
        };
        (0..WORKERS).for_each(|it| day.join(it, kv_tokens));
        day
    }

    fn join(&mut self, number: u32, kv_tokens: u64) {
        let worker = WorkerId(number);
        self.on(Event::WorkerJoined { url: &format!("http://10.0.0.1:{number}") });
        self.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        self.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
        self.on(Event::TrustChanged { worker, trust: Trust::Fresh });
        let load = EngineLoad { kv_tokens: Some(kv_tokens), ..EngineLoad::default() };
        self.on(Event::LoadReported { worker, load });
    }

    fn print(&self, what: &str) {
        println!("{what}: {} programs begun, {} calls, {} held", self.begun, self.calls, self.held);
        self.arrivals.print("  arrival of a call");
        self.others.print("  other events");
    }

    /// Applies an event, and lets the calls begin that it placed.
    fn on(&mut self, event: Event<'_>) {
        self.effects.clear();
        let start = Clock::now();
        self.brain.on(self.now, event, &mut self.effects);
        self.others.add(start.elapsed());
        self.begin_placed();
    }

    fn begin_placed(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            let Effect::Place(placement) = effect else { continue };
            // A fifth of a second for what is new, and a while for the answer.
            let first = self.now + Duration::from_secs_f64(0.2 + self.rng.exponential(0.5));
            let end = first + Duration::from_secs_f64(self.rng.exponential(4.0));
            self.script.push(Reverse((first, Step::FirstToken(placement.request, placement.worker))));
            self.script.push(Reverse((end, Step::Finished(placement.request))));
        }
    }

    fn play_until(&mut self, end: Instant) {
        while let Some(&Reverse((at, step))) = self.script.peek().filter(|it| it.0.0 <= end) {
            self.script.pop();
            self.now = at;
            match step {
                Step::Begin => self.begin(),
                Step::Call(program) => self.call(program),
                Step::FirstToken(request, worker) => self.on(Event::FirstToken { request, worker }),
                Step::Finished(request) => self.finish(request),
                Step::Tick => {
                    self.script.push(Reverse((at + TICK, Step::Tick)));
                    self.on(Event::Tick);
                }
            }
        }
        self.now = end;
    }

    fn begin(&mut self) {
        self.begun += 1;
        let tokens = 10_000 + self.rng.exponential(35_000.0) as u64;
        let agent = Agent { tokens: tokens.min(300_000), calls_left: 1 + self.rng.below(7) as u32 };
        self.agents.insert(self.begun, agent);
        self.script.push(Reverse((self.now, Step::Call(self.begun))));
        let next = self.now + Duration::from_secs_f64(self.rng.exponential(1.0 / RATE));
        self.script.push(Reverse((next, Step::Begin)));
    }

    fn call(&mut self, program: u64) {
        let Some(agent) = self.agents.get(&program).copied() else { return };
        self.calls += 1;
        let request = RequestId(self.calls);
        self.requests.insert(request, program);
        let blocks = agent.tokens / u64::from(BLOCK);
        // Four blocks of instructions that all share.
        let name = |block: u64| hash::pair(if block < 4 { 0 } else { program }, block);
        let prompt = PromptChain {
            chunks: None,
            unit: Unit::Tokens,
            units: agent.tokens,
            block: BLOCK,
            chain: (0..blocks).map(|it| PrefixHash(name(it))).collect(),
        };
        let event = Event::Arrived(Arrival {
            request,
            model: Some("llama"),
            size: Size::Tokens(agent.tokens),
            answer_max: Some(ANSWER),
            answers: Answers::ONE,
            form: Form::Stream,
            session: None,
            program: program.is_multiple_of(2).then_some(program),
            head: None,
            class: ClassId(1),
            tenant: TenantId(program % TENANTS),
            deadline: None,
            prompt: Some(&prompt),
            may_split: false,
            state: None,
            only: None,
        });
        self.effects.clear();
        let start = Clock::now();
        self.brain.on(self.now, event, &mut self.effects);
        self.arrivals.add(start.elapsed());
        self.held += u64::from(self.effects.iter().any(|it| matches!(it, Effect::Wait { .. })));
        self.begin_placed();
    }

    fn finish(&mut self, request: RequestId) {
        let Some(program) = self.requests.remove(&request) else { return };
        let Some(agent) = self.agents.get_mut(&program) else { return };
        let prompt = agent.tokens;
        agent.tokens += ANSWER + 600;
        agent.calls_left -= 1;
        if agent.calls_left == 0 {
            self.agents.remove(&program);
        } else {
            let think = Duration::from_secs_f64(self.rng.exponential(12.0));
            self.script.push(Reverse((self.now + think, Step::Call(program))));
        }
        let counted = Counted { prompt: Some(prompt), cached: None, answer: Some(ANSWER) };
        self.on(Event::Finished { request, counted: Some(counted), pieces: ANSWER as u32 });
    }
}

/// Of this process.
fn memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    line.and_then(|it| it.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) / 1_024
}

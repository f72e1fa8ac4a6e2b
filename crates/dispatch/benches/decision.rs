//! What a decision costs: from the arrival of a prompt of 512 blocks to its placement, among 64 workers and among
//! 1,000.
//!
//! The time covers everything between a client and its worker: the prompt is looked up, every worker is priced, one is
//! picked, and the blocks that the prompt will leave in its cache are predicted. What follows an arrival runs in virtual
//! time and is not measured. The targets are 20 µs at 64 workers and 150 µs at 1,000, at p99, and 40 µs for a prompt that is
//! new from its 65th block on.
//!
//! Decisions are recorded, as they are by default; what records and shadows add is measured apart.
//!
//! Other load on the machine only adds time, so the round with the lowest p99 counts.
//!
//! Nothing is allocated per worker: snapshots, holdings and candidates go into vectors that the brain keeps, and what a
//! placement allocates (its pending request, runs of new blocks in the index) does not depend on the number of workers.
//! Counting allocations here would take an allocator of our own, and so unsafe code, which is forbidden.
//!
//! `cargo bench -p maitre-dispatch --bench decision` measures, with `-- two-threads` only how two threads share the brain;
//! `cargo test` runs it once, small.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench reads the clock and prints")]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant as Clock};

use maitre_base::spin::spin;
use maitre_base::{
    ClassId, EngineLoad, Instant, KvEvent, RequestId, Rng, StoredBlocks, TenantId, Tier, WorkerId,
};
use maitre_dispatch::{Arrival, Brain, BrainSettings, Effect, Event, Form, PromptChain, Scratch};
use maitre_fleet::estimate::{self, Answers};
use maitre_fleet::{Card, Evidence};
use maitre_index::Root;
use maitre_index::feed::Trust;
use maitre_index::prefix::{self, Unit};
use maitre_policy::Name;
use parking_lot::Mutex;

const BLOCK: usize = 16;
const PROMPT_BLOCKS: usize = 512;
/// Blocks of a prompt that all workers hold, and that an eighth of them hold. One worker holds the rest, or none.
const SHARED_BLOCKS: usize = 64;
const GROUP_BLOCKS: usize = 192;
/// Blocks of a turn that are new with this arrival.
const NEW_BLOCKS: usize = 16;
const GROUPS: u32 = 8;
/// Requests in flight per worker.
const OPEN: u32 = 4;
/// The pace of every worker: the default rates.
const FLOOR: Duration = Duration::from_millis(20);
const PREFILL_TOKEN: Duration = Duration::from_micros(50);
const STEP: Duration = Duration::from_millis(10);
const ANSWER: u32 = 200;
const TICK: Duration = Duration::from_millis(500);

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    if std::env::args().any(|it| it == "two-threads") {
        return by_two_threads(measuring);
    }
    let (rounds, arrivals) = if measuring { (40, 2_500) } else { (1, 20) };
    for (workers, blocks) in [(64, 20_000), (1_000, 2_000)] {
        let blocks = if measuring { blocks } else { PROMPT_BLOCKS };
        let mut fleet = Fleet::new(workers, blocks, without_queue());
        for (kind, share) in [("a turn of a conversation", 1.0), ("cold after the system prompt", 0.0)] {
            let best = (0..rounds).map(|_| fleet.round(arrivals, share)).min_by_key(|it| it.p99);
            let Spread { p50, p99 } = best.unwrap_or_default();
            let micros = |it: Duration| it.as_nanos() as f64 / 1e3;
            println!(
                "{workers:>5} workers, {kind:<28}: p50 {:6.1} µs, p99 {:6.1} µs",
                micros(p50),
                micros(p99)
            );
        }
    }
    by_two_threads(measuring);
    let blocks = if measuring { 20_000 } else { PROMPT_BLOCKS };
    let size = |workers| Size { workers, rounds, arrivals, blocks };
    compare("the queue adds", size(64), [BrainSettings::default(), without_queue()]);
    for workers in [4, 64] {
        compare("records add", size(workers), [without_queue(), without_records()]);
        let shadows = vec![Name::RoundRobin, Name::LeastWork];
        compare(
            "and two shadows",
            size(workers),
            [BrainSettings { shadows, ..without_queue() }, without_queue()],
        );
    }
}

/// Without a queue, so that no request waits for another worker and all decisions are alike.
fn without_queue() -> BrainSettings {
    let mut settings = BrainSettings::default();
    settings.queue.enabled = false;
    settings
}

/// The same without records.
fn without_records() -> BrainSettings {
    let mut settings = without_queue();
    settings.explain.decisions = 0;
    settings
}

#[derive(Clone, Copy)]
struct Size {
    workers: u32,
    rounds: usize,
    arrivals: usize,
    blocks: usize,
}

/// The extra cost of the first settings over the second, by alternating rounds.
fn compare(what: &str, size: Size, settings: [BrainSettings; 2]) {
    let Size { workers, rounds, arrivals, blocks } = size;
    let mut fleets = settings.map(|it| Fleet::new(workers, blocks, it));
    let mut best = [Spread { p50: Duration::MAX, p99: Duration::MAX }; 2];
    for _ in 0..rounds {
        for (fleet, best) in fleets.iter_mut().zip(&mut best) {
            let Spread { p50, p99 } = fleet.round(arrivals, 1.0);
            *best = Spread { p50: best.p50.min(p50), p99: best.p99.min(p99) };
        }
    }
    let micros = |it: Duration| it.as_nanos() as f64 / 1e3;
    let more = |of: fn(&Spread) -> Duration| micros(of(&best[0])) - micros(of(&best[1]));
    println!(
        "{workers:>5} workers, {what:<28}: p50 {:6.2} µs, p99 {:6.2} µs, to {:.1} and {:.1}",
        more(|it| it.p50),
        more(|it| it.p99),
        micros(best[1].p50),
        micros(best[1].p99)
    );
}

#[derive(Clone, Copy, Default)]
struct Spread {
    p50: Duration,
    p99: Duration,
}

/// A fleet whose engines report their caches.
struct Fleet {
    brain: Brain,
    /// Conversations that are held somewhere.
    texts: Vec<Vec<u32>>,
    rng: Rng,
    now: Instant,
    /// First tokens and ends, by their time.
    script: BinaryHeap<Reverse<(Instant, Step)>>,
    next: u64,
    workers: u32,
    effects: Vec<Effect>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    FirstToken(RequestId, WorkerId),
    Finished(RequestId),
    Tick,
}

impl Fleet {
    /// Every worker reports this many blocks, in conversations of its group.
    fn new(workers: u32, blocks: usize, settings: BrainSettings) -> Fleet {
        let mut fleet = Fleet {
            brain: Brain::new(BrainSettings { strategy: Name::LeastDelay, ..settings }),
            texts: Vec::new(),
            rng: Rng::new(1),
            now: Instant::from_millis(1),
            script: BinaryHeap::from([Reverse((Instant::from_millis(500), Step::Tick))]),
            next: 0,
            workers,
            effects: Vec::new(),
        };
        for number in 0..workers {
            fleet.join(number);
            for _ in 0..(blocks / (PROMPT_BLOCKS - NEW_BLOCKS)).max(1) {
                let text = fleet.text(number % GROUPS, PROMPT_BLOCKS - NEW_BLOCKS);
                fleet.store(WorkerId(number), &text);
                fleet.texts.push(text);
            }
        }
        fleet
    }

    fn join(&mut self, number: u32) {
        let worker = WorkerId(number);
        self.on(Event::WorkerJoined { url: &format!("http://10.0.0.1:{number}") });
        self.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        self.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
        self.on(Event::TrustChanged { worker, trust: Trust::Fresh });
        let load =
            EngineLoad { blocks: Some(40_000), block_size: Some(BLOCK as u64), ..EngineLoad::default() };
        self.on(Event::LoadReported { worker, load });
    }

    fn on(&mut self, event: Event<'_>) {
        self.effects.clear();
        self.brain.on(self.now, event, &mut self.effects);
    }

    /// A conversation of this group, this many blocks long.
    fn text(&mut self, group: u32, blocks: usize) -> Vec<u32> {
        let token = |at: usize| match at / BLOCK {
            0..SHARED_BLOCKS => at as u32,
            SHARED_BLOCKS..GROUP_BLOCKS => at as u32 ^ (group + 1) << 20,
            _ => self.rng.next_u64() as u32,
        };
        (0..blocks * BLOCK).map(token).collect()
    }

    fn store(&mut self, worker: WorkerId, tokens: &[u32]) {
        let names: Vec<u64> = chain(tokens).iter().map(|it| it.0).collect();
        let blocks = StoredBlocks {
            names: &names,
            parent: None,
            tokens,
            block_tokens: BLOCK as u32,
            adapter: None,
            salt: None,
            extras: &[],
            tier: Tier::Gpu,
        };
        self.on(Event::CacheChanged { worker, event: KvEvent::Stored(blocks) });
    }

    /// This many arrivals, of which this share continues a conversation that a worker holds.
    fn round(&mut self, arrivals: usize, held: f64) -> Spread {
        let mut took: Vec<Duration> = (0..arrivals).map(|_| self.arrival(held)).collect();
        took.sort_unstable();
        Spread { p50: took[took.len() / 2], p99: took[took.len() * 99 / 100] }
    }

    /// A prompt that continues a conversation, with this probability.
    fn prompt(&mut self, held: f64) -> PromptChain {
        let mut tokens = match self.rng.unit() < held {
            true => self.texts[self.rng.below(self.texts.len())].clone(),
            false => self.text(0, SHARED_BLOCKS),
        };
        while tokens.len() < PROMPT_BLOCKS * BLOCK {
            tokens.push(self.rng.next_u64() as u32);
        }
        PromptChain {
            chunks: None,
            unit: Unit::Tokens,
            units: tokens.len() as u64,
            block: BLOCK as u32,
            chain: chain(&tokens).into(),
        }
    }

    fn arrival(&mut self, held: f64) -> Duration {
        let prompt = self.prompt(held);
        let event = Event::Arrived(arrival(RequestId(self.next), &prompt));
        self.effects.clear();
        let start = Clock::now();
        self.brain.on(self.now, event, &mut self.effects);
        let took = start.elapsed();
        let [Effect::Place(placement)] = self.effects[..] else { panic!("not placed: {:?}", self.effects) };
        let computed = prompt.units - placement.held.map_or(0, |it| it.0);
        let first = self.now + FLOOR + PREFILL_TOKEN * computed as u32;
        self.script.push(Reverse((first, Step::FirstToken(placement.request, placement.worker))));
        self.script.push(Reverse((first + STEP * ANSWER, Step::Finished(placement.request))));
        self.next += 1;
        self.play_until(self.now + STEP * ANSWER / (OPEN * self.workers));
        took
    }

    fn play_until(&mut self, end: Instant) {
        while let Some(&Reverse((at, step))) = self.script.peek().filter(|it| it.0.0 <= end) {
            self.script.pop();
            self.now = at;
            match step {
                Step::FirstToken(request, worker) => self.on(Event::FirstToken { request, worker }),
                Step::Finished(request) => {
                    self.on(Event::Finished { request, counted: None, pieces: ANSWER })
                }
                Step::Tick => {
                    self.script.push(Reverse((at + TICK, Step::Tick)));
                    self.on(Event::Tick);
                }
            }
        }
        self.now = end;
    }
}

fn arrival(request: RequestId, prompt: &PromptChain) -> Arrival<'_> {
    Arrival {
        request,
        model: Some("llama"),
        size: estimate::Size::Tokens(prompt.units),
        answer_max: Some(u64::from(ANSWER)),
        answers: Answers::ONE,
        form: Form::Stream,
        session: None,
        program: None,
        head: None,
        class: ClassId(1),
        tenant: TenantId(0),
        deadline: None,
        prompt: Some(prompt),
        may_split: false,
        state: None,
        only: None,
    }
}

fn chain(tokens: &[u32]) -> Vec<maitre_index::PrefixHash> {
    let mut chain = Vec::new();
    prefix::chain(Root::new(Unit::Tokens, "llama", None, None), tokens, BLOCK, &mut chain);
    chain
}

/// Decisions a second by two threads, as a multiple of one thread's: half of the prompts are new after the system prompt. A
/// thread does what a lane does: it looks the prompt up, decides under the lock, and writes what follows. Each request also
/// gets its first token and ends.
fn by_two_threads(measuring: bool) {
    // Making a fleet of a thousand takes seconds.
    for (workers, rounds, arrivals, blocks) in [(64, 15, 10_000, 20_000), (1_000, 3, 2_000, 2_000)] {
        let (rounds, arrivals, blocks) =
            if measuring { (rounds, arrivals, blocks) } else { (1, 20, PROMPT_BLOCKS) };
        share_a_brain(Size { workers, rounds, arrivals, blocks });
    }
}

/// What one round of two threads has shown.
struct Shared {
    /// Nanoseconds that a cache line took from core to core, before and after.
    line_nanos: [f64; 2],
    /// Decisions a second, as a multiple of one thread's.
    times: f64,
    /// The same for two threads that share nothing, which is the most that this machine can do.
    apart: f64,
    /// One thread's microseconds for a request.
    micros: f64,
}

/// Between these a cache line is neither near nor far. On a shared host the two cores may move between 23 ns (they share a
/// cache) and 177 ns within a minute, so rounds are sorted by what they had.
const NEAR_NANOS: f64 = 80.0;

fn share_a_brain(Size { workers, rounds, arrivals, blocks }: Size) {
    let round = |_| {
        let mut line_nanos = [0.0; 2];
        // One thread; two that share a brain; two that share nothing.
        let [one, two, apart] = [(1, 1), (2, 1), (2, 2)].map(|(threads, brains)| {
            let mut fleets: Vec<Fleet> =
                (0..brains).map(|_| Fleet::new(workers, blocks, without_queue())).collect();
            let prompts: Vec<Vec<PromptChain>> = (0..threads)
                .map(|it| (0..arrivals).map(|_| fleets[it % brains].prompt(0.5)).collect())
                .collect();
            let brains: Vec<Mutex<Brain>> = fleets.into_iter().map(|it| Mutex::new(it.brain)).collect();
            let is_shared = threads > brains.len();
            // Enough turns that it does not matter how the threads begin.
            let turns = if arrivals < 1_000 { 20 } else { 200_000 };
            let nanos = || if is_shared { pass_a_line(turns) } else { 0.0 };
            let before = nanos();
            let start = Clock::now();
            std::thread::scope(|scope| {
                for (number, prompts) in prompts.iter().enumerate() {
                    let brain = &brains[number % brains.len()];
                    scope.spawn(move || decide_all(brain, number as u64, prompts));
                }
            });
            let took = start.elapsed();
            if is_shared {
                line_nanos = [before, nanos()];
            }
            (threads * arrivals) as f64 / took.as_secs_f64()
        });
        Shared { line_nanos, times: two / one, apart: apart / one, micros: 1e6 / one }
    };
    let all: Vec<Shared> = (0..rounds).map(round).collect();
    let (near, rest): (Vec<&Shared>, Vec<&Shared>) =
        all.iter().partition(|it| it.line_nanos.iter().all(|&it| it < NEAR_NANOS));
    let (far, mixed): (Vec<&Shared>, Vec<&Shared>) =
        rest.into_iter().partition(|it| it.line_nanos.iter().all(|&it| it >= NEAR_NANOS));
    for rounds in [near, far].iter().filter(|it| !it.is_empty()) {
        let median = |of: fn(&Shared) -> f64| {
            let mut list: Vec<f64> = rounds.iter().map(|it| of(it)).collect();
            list.sort_unstable_by(f64::total_cmp);
            list[list.len() / 2]
        };
        println!(
            "{workers:>5} workers, two threads decide {:.2} times as often as one ({:.1} µs), and {:.2} times if they share nothing: {} rounds with {:.0} ns for a cache line",
            median(|it| it.times),
            median(|it| it.micros),
            median(|it| it.apart),
            rounds.len(),
            median(|it| it.line_nanos[0]),
        );
    }
    if !mixed.is_empty() {
        println!("{workers:>5} workers, {} more rounds in which that changed", mixed.len());
    }
}

/// Nanoseconds that a cache line takes from one thread's core to the other's.
fn pass_a_line(turns: u64) -> f64 {
    let ball = AtomicU64::new(0);
    let play = |own: u64| {
        for turn in (own..turns).step_by(2) {
            while ball.load(Acquire) != turn {
                std::hint::spin_loop();
            }
            ball.store(turn + 1, Release);
        }
    };
    let start = Clock::now();
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        scope.spawn(|| play(1));
    });
    start.elapsed().as_nanos() as f64 / turns as f64
}

fn decide_all(brain: &Mutex<Brain>, thread: u64, prompts: &[PromptChain]) {
    let lock = || spin(|| brain.try_lock()).unwrap_or_else(|| brain.lock());
    let index = lock().cache_index().clone();
    let (mut effects, mut scratch) = (Vec::new(), Scratch::default());
    let mut on = |now, event| {
        effects.clear();
        if let Event::Arrived(arrival) = &event {
            scratch.prepare(&index, now, arrival);
        }
        lock().decide(now, event, &mut scratch, &mut effects);
        scratch.finish();
        index.write();
        effects.first().copied()
    };
    let mut open = VecDeque::new();
    for (number, prompt) in prompts.iter().enumerate() {
        let request = RequestId(thread << 40 | number as u64);
        let now = Instant::from_millis(1_000 + number as u64 / 4);
        let effect = on(now, Event::Arrived(arrival(request, prompt)));
        let Some(Effect::Place(placement)) = effect else { panic!("not placed: {effect:?}") };
        open.push_back((request, placement.worker));
        if open.len() > OPEN as usize * 16
            && let Some((request, worker)) = open.pop_front()
        {
            on(now, Event::FirstToken { request, worker });
            on(now, Event::Finished { request, counted: None, pieces: ANSWER });
        }
    }
}

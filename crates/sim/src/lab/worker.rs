//! One simulated worker: its engine, and reports on their way to the routers.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::{ChunkReuse, EngineLoad, Instant, KvEvent, Role, StoredBlocks, Tier, WorkerId};
use maitre_dispatch::Event;

use super::lossy::LossyFeed;
use super::outcome::WorkerTotals;
use super::prepared;
use crate::engine::{self, Engine, Job, JobId, KnownPrompt, TokenOutput, Transfer};
use crate::kv::{Change, Medium};
use crate::link::Link;
use crate::profile::Profile;

/// Cache changes kept between two steps: more than a step can make.
const CHANGES_MAX: usize = 1 << 20;
/// No request.
const NO_REQUEST: u64 = u64::MAX;

#[expect(clippy::struct_excessive_bools, reason = "a script turns each of them by itself")]
pub(super) struct SimWorker {
    pub(super) engine: Engine,
    pub(super) profile: Profile,
    pub(super) role: Role,
    /// The link over which KV comes from other workers.
    pub(super) link: Link,
    /// The link over which KV comes from the store.
    pub(super) store_link: Link,
    /// How many times longer everything takes.
    pub(super) slowness: f64,
    /// No step begins before this time.
    pub(super) stalled_until: Instant,
    pub(super) up: bool,
    pub(super) is_draining: bool,
    pub(super) is_gone: bool,
    /// Counts crashes: a step of an earlier incarnation never ends.
    pub(super) incarnation: u32,
    pub(super) answered: u64,
    stepping: bool,
    busy: Duration,
    /// Evictions and preemptions before the last crash.
    evictions: u64,
    preemptions: u64,
    /// The request behind each job, by slot.
    jobs: Vec<u64>,
    events: VecDeque<Vec<Change>>,
    loads: VecDeque<EngineLoad>,
    scratch: CacheEventBatch,
    /// Where events get lost.
    pub(super) lossy: Option<LossyFeed>,
}

/// A job for the engine.
pub(super) struct Submission<'a> {
    pub(super) arrived: Instant,
    pub(super) job: Job,
    pub(super) known: KnownPrompt<'a>,
    pub(super) transfer: Transfer,
}

impl SimWorker {
    pub(super) fn new(
        profile: Profile,
        (role, link): (Role, Link),
        (has_events, chunks): (bool, Option<ChunkReuse>),
    ) -> SimWorker {
        let changes_max = if has_events { CHANGES_MAX } else { 0 };
        let config = engine::EngineConfig {
            changes_max,
            words: prepared::token,
            chunks,
            ..engine::EngineConfig::new(profile)
        };
        SimWorker {
            engine: Engine::new(config),
            profile,
            role,
            link,
            store_link: link,
            slowness: 1.0,
            stalled_until: Instant::ZERO,
            up: true,
            is_draining: false,
            is_gone: false,
            incarnation: 0,
            answered: 0,
            stepping: false,
            busy: Duration::ZERO,
            evictions: 0,
            preemptions: 0,
            jobs: Vec::new(),
            events: VecDeque::new(),
            loads: VecDeque::new(),
            scratch: CacheEventBatch::default(),
            lossy: None,
        }
    }

    pub(super) fn takes(&self) -> bool {
        self.up && !self.is_draining && !self.is_gone && self.role != Role::Prefill
    }

    /// `None` if the engine rejects it.
    pub(super) fn submit(&mut self, request: u64, submission: Submission<'_>) -> Option<JobId> {
        let Submission { arrived, job, known, transfer } = submission;
        let job = self.engine.submit_transfer(arrived, job, known, transfer).ok()?;
        let slot = job.slot as usize;
        if slot >= self.jobs.len() {
            self.jobs.resize(slot + 1, NO_REQUEST);
        }
        self.jobs[slot] = request;
        Some(job)
    }

    pub(super) fn request(&self, job: JobId) -> u64 {
        self.jobs[job.slot as usize]
    }

    /// Begins a step, unless one is running or there is nothing to do.
    pub(super) fn begin_step(&mut self, now: Instant) -> Option<Duration> {
        if self.stepping {
            return None;
        }
        let span = self.engine.begin_step()?;
        let span = if self.slowness == 1.0 { span } else { span.mul_f64(self.slowness) };
        self.stepping = true;
        self.busy += span;
        Some(span + self.stalled_until.since(now))
    }

    pub(super) fn finish_step(&mut self, now: Instant, outputs: &mut Vec<TokenOutput>) {
        self.stepping = false;
        self.engine.finish_step(now, outputs);
    }

    /// Drops everything; returns the requests that were there.
    pub(super) fn crash(&mut self) -> Vec<u64> {
        let counters = self.engine.stats().counters;
        self.evictions += counters.evictions;
        self.preemptions += counters.preemptions;
        self.engine.restart();
        self.incarnation += 1;
        (self.stepping, self.up) = (false, false);
        self.events.clear();
        self.loads.clear();
        self.lossy.iter_mut().for_each(LossyFeed::reconnect);
        let mut lost = std::mem::take(&mut self.jobs);
        lost.retain(|&it| it != NO_REQUEST);
        lost
    }

    /// Running and waiting requests.
    pub(super) fn requests(&self) -> u32 {
        let stats = self.engine.stats();
        (stats.running + stats.waiting) as u32
    }

    pub(super) fn totals(&self) -> WorkerTotals {
        let counters = self.engine.stats().counters;
        WorkerTotals {
            profile: self.profile.name,
            answered: self.answered,
            busy: self.busy,
            evictions: self.evictions + counters.evictions,
            preemptions: self.preemptions + counters.preemptions,
            limits: None,
        }
    }

    /// Queues the cache changes of a step. Returns whether there were any.
    pub(super) fn post_events(&mut self) -> bool {
        let (changes, lost) = self.engine.take_changes();
        debug_assert_eq!(lost, 0, "a step makes fewer changes");
        let any = !changes.is_empty();
        if any {
            self.events.push_back(changes);
        }
        any
    }

    /// The changes that arrive now.
    pub(super) fn next_events(&mut self) -> CacheEventBatch {
        let mut batch = std::mem::take(&mut self.scratch);
        batch.changes = self.events.pop_front().unwrap_or_default();
        batch
    }

    pub(super) fn keep_scratch(&mut self, batch: CacheEventBatch) {
        self.scratch = batch;
    }

    /// Queues a scrape, unless the worker is down.
    pub(super) fn post_load(&mut self) -> bool {
        if !self.up {
            return false;
        }
        let stats = self.engine.stats();
        self.loads.push_back(EngineLoad {
            running: Some(stats.running as u64),
            waiting: Some(stats.waiting as u64),
            kv_usage: Some(f64::from(stats.used_blocks) / f64::from(stats.capacity_blocks)),
            block_size: Some(u64::from(self.profile.block_tokens)),
            blocks: Some(u64::from(stats.capacity_blocks)),
            ..EngineLoad::default()
        });
        true
    }

    pub(super) fn next_load(&mut self) -> Option<EngineLoad> {
        self.loads.pop_front()
    }
}

/// The cache changes of one step as events. Consecutive blocks are merged into one event, as in vLLM.
#[derive(Default)]
pub(super) struct CacheEventBatch {
    changes: Vec<Change>,
    names: Vec<u64>,
    tokens: Vec<u32>,
    runs: Vec<EventRun>,
}

enum EventRun {
    Stored { parent: Option<u64>, count: usize, tier: Tier },
    Removed { count: usize, tier: Tier },
    Cleared,
}

impl CacheEventBatch {
    /// The batch is lost.
    pub(super) fn discard(&mut self) {
        self.changes.clear();
    }

    pub(super) fn events(&mut self, worker: WorkerId, block_tokens: u32) -> impl Iterator<Item = Event<'_>> {
        self.join_up();
        let (mut names, mut tokens) = (&self.names[..], &self.tokens[..]);
        self.runs.iter().map(move |run| match *run {
            EventRun::Cleared => Event::CacheChanged { worker, event: KvEvent::Cleared },
            EventRun::Removed { count, tier } => {
                let (these, rest) = names.split_at(count);
                names = rest;
                Event::CacheChanged { worker, event: KvEvent::Removed { names: these, tier } }
            }
            EventRun::Stored { parent, count, tier } => {
                let (these, rest) = names.split_at(count);
                let (text, later) = tokens.split_at(count * block_tokens as usize);
                (names, tokens) = (rest, later);
                let blocks = StoredBlocks { parent, tier, ..StoredBlocks::plain(these, text, block_tokens) };
                Event::CacheChanged { worker, event: KvEvent::Stored(blocks) }
            }
        })
    }

    fn join_up(&mut self) {
        self.names.clear();
        self.tokens.clear();
        self.runs.clear();
        for change in self.changes.drain(..) {
            match change {
                Change::Cleared => self.runs.push(EventRun::Cleared),
                Change::Removed { hash, medium } => {
                    let tier = tier_of(medium);
                    self.names.push(hash);
                    match self.runs.last_mut() {
                        Some(EventRun::Removed { count, tier: last }) if *last == tier => *count += 1,
                        _ => self.runs.push(EventRun::Removed { count: 1, tier }),
                    }
                }
                Change::Stored(stored) => {
                    let before = self.names.last().copied();
                    self.names.push(stored.hash);
                    self.tokens.extend_from_slice(&stored.tokens);
                    let tier = tier_of(stored.medium);
                    match self.runs.last_mut() {
                        Some(EventRun::Stored { count, tier: last, .. })
                            if stored.parent == before && *last == tier =>
                        {
                            *count += 1;
                        }
                        _ => self.runs.push(EventRun::Stored { parent: stored.parent, count: 1, tier }),
                    }
                }
            }
        }
    }
}

fn tier_of(medium: Medium) -> Tier {
    match medium {
        Medium::Gpu => Tier::Gpu,
        Medium::Store => Tier::Shared,
    }
}

//! The engine: vLLM's scheduler, one step at a time.
//!
//! A step has a budget of tokens. Running sequences draw on it first, in the order of their admission: one token each
//! to decode, the rest of the prompt for those still in prefill. What is left admits waiting sequences, first come
//! first served, and stops at the first that does not fit: a big prompt at the head of the queue blocks small ones
//! behind it. When a running sequence finds no free block, the engine preempts the youngest, which starts over later;
//! its blocks are often still in the cache then.
//!
//! The engine reads no clock. `begin_step` returns how long the step takes; the driver, an event queue or a
//! sleeping task, calls `finish_step` that much later. In between the engine only queues.
//!
//! Left out: asynchronous scheduling (tokens one step late), priorities, speculative decoding.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use maitre_base::{ChunkReuse, Instant};
use maitre_index::prefix::PrefixHash;

use crate::histogram::{FIRST_TOKEN_SECONDS, Histogram, INTER_TOKEN_SECONDS};
use crate::kv::{Change, Full, Pool, Root};
use crate::profile::{Profile, Work};
use crate::store::SharedStore;
use crate::text;

mod contents;
mod load;
mod segments;
mod sequence;
pub mod transfer;

use segments::SegmentStore;
use sequence::{EngineStep, Sequence, SequenceState};
use transfer::{FetchOrigin, Hold, HoldId, KvFetch, TransferCounters};

#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    pub profile: Profile,
    /// How many cache changes to keep until they are taken; zero keeps none.
    pub changes_max: usize,
    /// Token `i` of the answer identified by `seed`.
    pub words: fn(seed: u64, index: u32) -> u32,
    /// How KV is reused at any position; `None`: only prefixes are.
    pub chunks: Option<ChunkReuse>,
}

impl EngineConfig {
    /// Answers in syllables, without cache changes.
    pub fn new(profile: Profile) -> EngineConfig {
        EngineConfig { profile, changes_max: 0, words: text::answer_token, chunks: None }
    }
}

/// A request as the engine sees it. The caller has chosen length and finish reason of the answer.
#[derive(Clone, Debug)]
pub struct Job {
    pub prompt: Vec<u32>,
    pub root: Root,
    /// Identifies the answer: token `i` is `words(seed, i)`.
    pub seed: u64,
    /// At least one token is generated, even if none was requested.
    pub answer_tokens: u32,
    pub finish: Finish,
}

/// What a job does with KV besides computing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transfer {
    #[default]
    None,
    /// If its answer ends at its limit, the engine holds its blocks this long for another engine.
    Out { lease: Duration },
    /// The KV of its prompt comes from another engine, except what is cached here.
    In,
}

/// What the caller knows about a prompt in advance; nothing, by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownPrompt<'a> {
    /// The names of its full blocks; computed if empty.
    pub names: &'a [PrefixHash],
    /// Tokens before the prompt that are cached elsewhere: the engine reads them, but they take no room here.
    pub elsewhere_tokens: u32,
    /// Where its documents end, for an engine that reuses them; found by separators if empty.
    pub segment_ends: &'a [u32],
}

/// What is left to do for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingWork {
    /// Prompt tokens to compute, as far as known before admission.
    pub prefill: u32,
    pub answer: u32,
    /// Tokens in its context now, and tokens that it reads from elsewhere.
    pub context: u32,
    pub elsewhere: u32,
    pub running: bool,
}

/// Identifies a job for the engine's lifetime. `slot` is small and reused: good for side tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JobId {
    pub slot: u32,
    serial: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
}

/// One token of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenOutput {
    pub job: JobId,
    pub index: u32,
    pub token: u32,
    /// Prompt tokens found in the cache when the job was first admitted.
    pub cached_tokens: u32,
    pub finish: Option<Finish>,
}

/// Why a job can never be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    #[error("the prompt is empty")]
    Empty,
    #[error(
        "this model's maximum context length is {max} tokens, but {prompt} in the prompt and {answer} in the \
         answer were requested"
    )]
    TooLong { max: u32, prompt: u64, answer: u32 },
    #[error("the request needs {needed} KV blocks and the cache has {capacity}")]
    NeverFits { needed: u64, capacity: u32 },
}

/// The engine's state and counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    pub running: usize,
    /// All that do not run, including those whose KV is on its way.
    pub waiting: usize,
    pub receiving: usize,
    /// Blocks in use; unused cached blocks count as free.
    pub used_blocks: u32,
    pub capacity_blocks: u32,
    pub counters: EngineCounters,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    pub steps: u64,
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// Prompt tokens looked up in the cache, on first admission.
    pub queried_tokens: u64,
    pub hit_tokens: u64,
    pub evictions: u64,
    pub preemptions: u64,
    pub stopped: u64,
    pub reached_length: u64,
    pub aborted: u64,
    pub rejected: u64,
}

/// Why the head of the queue did not fit. It still cannot fit unless a block was released, or the next block it lacks
/// was stored. So two comparisons replace a look-up of the whole prompt at every step.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    id: JobId,
    releases: u64,
    hits: usize,
}

#[derive(Debug)]
pub struct Engine {
    profile: Profile,
    words: fn(u64, u32) -> u32,
    pool: Pool,
    sequences: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// Slots, the longest admitted first.
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    /// Slots whose KV has arrived. They continue before any waiting one is admitted.
    received: VecDeque<u32>,
    /// Sequences whose KV is on its way, or has arrived.
    receiving: usize,
    fetches: Vec<KvFetch>,
    holds: BTreeMap<HoldId, Hold>,
    segments: Option<SegmentStore>,
    transfers: TransferCounters,
    /// Shared with other engines.
    store: Option<SharedStore>,
    blocked: Option<Blocked>,
    stepping: bool,
    next_serial: u64,
    counters: EngineCounters,
    first_token: Histogram,
    inter_token: Histogram,
}

impl Engine {
    /// Raises zero sizes in the profile to the least that can work.
    pub fn new(config: EngineConfig) -> Engine {
        let mut profile = config.profile;
        profile.block_tokens = profile.block_tokens.max(1);
        profile.batch_tokens_max = profile.batch_tokens_max.max(1);
        profile.running_max = profile.running_max.max(1);
        Engine {
            profile,
            words: config.words,
            pool: Pool::new(profile.kv_blocks, config.changes_max),
            sequences: Vec::new(),
            free_slots: Vec::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            received: VecDeque::new(),
            receiving: 0,
            fetches: Vec::new(),
            holds: BTreeMap::new(),
            segments: config.chunks.map(|it| SegmentStore::new(it, profile.kv_tokens())),
            transfers: TransferCounters::default(),
            store: None,
            blocked: None,
            stepping: false,
            next_serial: 0,
            counters: EngineCounters::default(),
            first_token: Histogram::new(FIRST_TOKEN_SECONDS),
            inter_token: Histogram::new(INTER_TOKEN_SECONDS),
        }
    }

    /// Restarts as after a crash: no jobs, no cache, zero counters, no step in progress. Earlier job ids stay unknown
    /// for ever. A shared store is not the engine's own, and keeps its content.
    pub fn restart(&mut self) {
        let changes_max = self.pool.changes_max();
        let chunks = self.segments.as_ref().map(|it| it.reuse);
        let config = EngineConfig { profile: self.profile, changes_max, words: self.words, chunks };
        let store = self.store.take();
        *self = Engine { next_serial: self.next_serial, store, ..Engine::new(config) };
    }

    /// Whether a step is in progress.
    pub fn is_stepping(&self) -> bool {
        self.stepping
    }

    /// Queues a job. `arrived` starts its time to first token. The queue is unbounded, as in vLLM: the caller bounds
    /// it.
    pub fn submit(&mut self, arrived: Instant, job: Job) -> Result<JobId, Reject> {
        self.submit_known(arrived, job, KnownPrompt::default())
    }

    /// Queues a job with what the caller knows about its prompt.
    pub fn submit_known(
        &mut self,
        arrived: Instant,
        job: Job,
        known: KnownPrompt<'_>,
    ) -> Result<JobId, Reject> {
        if let Err(reject) = self.check(&job, known.elsewhere_tokens) {
            self.counters.rejected += 1;
            return Err(reject);
        }
        let id = self.seat(arrived, job, known);
        self.waiting.push_back(id.slot);
        Ok(id)
    }

    /// Drops a job, at once or at the end of the current step or fetch. It produces no more output. An ended job is ignored.
    pub fn abort(&mut self, id: JobId) {
        let Some(sequence) = self.sequences.get_mut(id.slot as usize).filter(|it| it.id == id) else {
            return;
        };
        match sequence.state {
            SequenceState::Ended | SequenceState::Leaving | SequenceState::LeavingFetch => return,
            SequenceState::Running if self.stepping => {
                sequence.state = SequenceState::Leaving;
                return;
            }
            SequenceState::Running => self.running.retain(|&slot| slot != id.slot),
            SequenceState::Waiting => self.waiting.retain(|&slot| slot != id.slot),
            SequenceState::Receiving | SequenceState::Received => {}
        }
        self.abort_sequence(id.slot);
    }

    /// Decides what the next step computes and how long it takes. `None` if there is nothing to do, until a job is
    /// submitted, a fetch ends or a hold is released.
    pub fn begin_step(&mut self) -> Option<Duration> {
        debug_assert!(!self.stepping, "a step begins before the last one ended");
        let mut step = EngineStep { budget: self.profile.batch_tokens_max as usize, work: Work::default() };
        let preempted = self.continue_running(&mut step);
        // As in vLLM, nothing is admitted in a step that preempts. But a step without any sequence would be the last
        // one.
        if !preempted || self.running.is_empty() {
            self.admit_waiting(&mut step);
        }
        if step.work == Work::default() {
            return None;
        }
        self.stepping = true;
        self.counters.steps += 1;
        Some(self.profile.step.duration(&step.work))
    }

    /// Ends the step: appends the tokens it produced to `outputs`, in the order of the running sequences.
    pub fn finish_step(&mut self, now: Instant, outputs: &mut Vec<TokenOutput>) {
        debug_assert!(self.stepping, "a step ends that never began");
        self.stepping = false;
        let mut kept = 0;
        for index in 0..self.running.len() {
            let slot = self.running[index];
            if self.sequences[slot as usize].state == SequenceState::Leaving {
                self.counters.aborted += 1;
                self.unseat(slot);
                continue;
            }
            let output = self.advance(slot, now);
            outputs.extend(output);
            match output.and_then(|it| it.finish) {
                Some(Finish::Stop) => self.counters.stopped += 1,
                Some(Finish::Length) => {
                    self.counters.reached_length += 1;
                    self.hold_blocks(slot, now);
                }
                None => {
                    self.running[kept] = slot;
                    kept += 1;
                    continue;
                }
            }
            self.unseat(slot);
        }
        self.running.truncate(kept);
    }

    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len() + self.receiving,
            receiving: self.receiving,
            used_blocks: self.pool.used(),
            capacity_blocks: self.pool.capacity(),
            counters: EngineCounters { evictions: self.pool.evictions(), ..self.counters },
        }
    }

    /// Arrival to first token.
    pub fn first_token(&self) -> &Histogram {
        &self.first_token
    }

    pub fn inter_token(&self) -> &Histogram {
        &self.inter_token
    }

    /// Clears the cache unless a sequence holds blocks. Returns whether it did.
    pub fn clear_cache(&mut self) -> bool {
        let is_cleared = self.pool.clear();
        self.segments.iter_mut().filter(|_| is_cleared).for_each(SegmentStore::clear);
        is_cleared
    }

    /// Stored and removed blocks since the last call, and how many changes were dropped at the limit.
    pub fn take_changes(&mut self) -> (Vec<Change>, u64) {
        self.pool.take_changes()
    }

    /// Tokens cached elsewhere take no room but are part of the context.
    fn check(&self, job: &Job, elsewhere_tokens: u32) -> Result<(), Reject> {
        let here = job.prompt.len() as u64;
        let prompt = here + u64::from(elsewhere_tokens);
        let total = prompt + u64::from(job.answer_tokens);
        let max = self.profile.context_tokens_max;
        // The last token of an answer is never fed back, so it needs no room.
        let needed = (here + u64::from(job.answer_tokens))
            .saturating_sub(1)
            .div_ceil(u64::from(self.profile.block_tokens));
        match self.pool.capacity() {
            _ if here == 0 => Err(Reject::Empty),
            _ if total > u64::from(max) => Err(Reject::TooLong { max, prompt, answer: job.answer_tokens }),
            capacity if needed > u64::from(capacity) => Err(Reject::NeverFits { needed, capacity }),
            _ => Ok(()),
        }
    }

    fn seat(&mut self, arrived: Instant, job: Job, known: KnownPrompt<'_>) -> JobId {
        let slot = self.free_slots.pop().unwrap_or(self.sequences.len() as u32);
        let id = JobId { slot, serial: self.next_serial };
        self.next_serial += 1;
        let mut sequence = Sequence::new(id, arrived, job, known, self.profile.block_tokens as usize);
        sequence.segments = self.segments_of(&sequence.job.root, &sequence.tokens, known.segment_ends);
        match self.sequences.get_mut(slot as usize) {
            Some(place) => *place = sequence,
            None => self.sequences.push(sequence),
        }
        id
    }

    /// The caller has removed the slot from its queue.
    fn unseat(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        self.pool.release(&mut sequence.blocks);
        sequence.state = SequenceState::Ended;
        sequence.tokens = Vec::new();
        sequence.hashes = Vec::new();
        sequence.segments = Vec::new();
        self.free_slots.push(slot);
    }

    /// Returns whether a sequence was preempted.
    fn continue_running(&mut self, step: &mut EngineStep) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() && step.budget > 0 {
            let slot = self.running[index];
            let count = self.sequences[slot as usize].remaining().min(step.budget);
            while !self.give_room(slot, count) {
                preempted = true;
                if self.preempt_last() == Some(slot) {
                    return true;
                }
            }
            self.schedule(slot, count, step);
            index += 1;
        }
        preempted
    }

    fn admit_waiting(&mut self, step: &mut EngineStep) {
        while step.budget > 0 && self.running.len() < self.profile.running_max as usize {
            if let Some(slot) = self.pop_received() {
                self.run_sequence(slot, step);
                continue;
            }
            let Some(&slot) = self.waiting.front() else { return };
            if self.is_still_blocked(slot) || !self.share_prefix(slot) {
                return;
            }
            if self.sequences[slot as usize].transfer == Transfer::In {
                self.begin_fetch(slot, FetchOrigin::Request);
                continue;
            }
            if let Some(tokens) = self.stored_tokens(slot) {
                self.begin_fetch(slot, FetchOrigin::Store { tokens });
                continue;
            }
            self.waiting.pop_front();
            if !self.sequences[slot as usize].preempted {
                self.record_lookup(slot);
            }
            self.reuse_segments(slot);
            self.run_sequence(slot, step);
        }
    }

    /// Lets a sequence run for which there is room.
    fn run_sequence(&mut self, slot: u32, step: &mut EngineStep) {
        let count = self.sequences[slot as usize].remaining().min(step.budget);
        let has_room = self.give_room(slot, count);
        debug_assert!(has_room, "the whole prompt fits, so its first part does");
        self.sequences[slot as usize].state = SequenceState::Running;
        self.running.push(slot);
        self.schedule(slot, count, step);
    }

    fn is_still_blocked(&self, slot: u32) -> bool {
        let sequence = &self.sequences[slot as usize];
        self.blocked.is_some_and(|it| {
            let next_is_stored =
                || sequence.hashes.get(it.hits).is_some_and(|&it| self.pool.find(it).is_some());
            it.id == sequence.id && it.releases == self.pool.releases() && !next_is_stored()
        })
    }

    /// Takes the cached prefix of a waiting sequence, if all the rest of it fits too. vLLM asks for room for
    /// the whole prompt but reserves only what a step computes; so do we.
    fn share_prefix(&mut self, slot: u32) -> bool {
        let sequence = &mut self.sequences[slot as usize];
        let block_tokens = self.profile.block_tokens as usize;
        // The last token is always computed: the next one is sampled from it.
        let shareable = (sequence.tokens.len() - 1) / block_tokens;
        let mut used_hits = 0;
        for &hash in &sequence.hashes[..shareable] {
            let Some(id) = self.pool.find(hash) else { break };
            used_hits += usize::from(self.pool.is_used(id));
            sequence.blocks.push(id);
        }
        let hits = sequence.blocks.len();
        // An unused hit is a free block that we are about to take.
        let needed = sequence.tokens.len().div_ceil(block_tokens) - used_hits;
        if needed > self.pool.free() as usize {
            sequence.blocks.clear();
            self.blocked = Some(Blocked { id: sequence.id, releases: self.pool.releases(), hits });
            return false;
        }
        for &id in &sequence.blocks {
            self.pool.share(id);
        }
        sequence.stored_blocks = hits;
        sequence.computed = hits * block_tokens;
        true
    }

    /// Records what the cache held of a sequence at its first admission.
    fn record_lookup(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        let elsewhere = sequence.job.elsewhere_tokens;
        sequence.local_tokens = sequence.computed;
        sequence.cached_tokens = (sequence.computed + elsewhere) as u32;
        self.counters.queried_tokens += (sequence.job.prompt_tokens + elsewhere) as u64;
        self.counters.hit_tokens += (sequence.computed + elsewhere) as u64;
    }

    fn give_room(&mut self, slot: u32, count: usize) -> bool {
        let sequence = &mut self.sequences[slot as usize];
        let target = (sequence.computed + count).div_ceil(self.profile.block_tokens as usize);
        self.pool.grow(&mut sequence.blocks, target)
    }

    fn preempt_last(&mut self) -> Option<u32> {
        let slot = self.running.pop()?;
        let sequence = &mut self.sequences[slot as usize];
        self.pool.release(&mut sequence.blocks);
        sequence.state = SequenceState::Waiting;
        sequence.preempted = true;
        sequence.computed = 0;
        sequence.stored_blocks = 0;
        self.waiting.push_front(slot);
        self.counters.preemptions += 1;
        Some(slot)
    }

    /// Adds `count` tokens of a sequence to the step. Blocks they fill get their names now, not when the step
    /// ends: two equal prompts admitted in one step share, as in vLLM.
    fn schedule(&mut self, slot: u32, count: usize, step: &mut EngineStep) {
        let sequence = &mut self.sequences[slot as usize];
        sequence.scheduled = count;
        step.add(sequence, count);
        let block_tokens = self.profile.block_tokens as usize;
        let full_blocks = (sequence.computed + count) / block_tokens;
        for index in sequence.stored_blocks..full_blocks {
            let tokens = &sequence.tokens[index * block_tokens..(index + 1) * block_tokens];
            let parent = index.checked_sub(1).map(|before| sequence.hashes[before]);
            let root = &sequence.job.root;
            self.pool
                .store(sequence.blocks[index], Full { hash: sequence.hashes[index], parent, tokens, root });
        }
        sequence.stored_blocks = sequence.stored_blocks.max(full_blocks);
    }

    /// Records what the step computed for one sequence. A token comes out once all before it are computed.
    fn advance(&mut self, slot: u32, now: Instant) -> Option<TokenOutput> {
        let sequence = &mut self.sequences[slot as usize];
        sequence.computed += std::mem::take(&mut sequence.scheduled);
        if sequence.remaining() > 0 {
            return None;
        }
        let index = (sequence.tokens.len() - sequence.job.prompt_tokens) as u32;
        let since_last = now.since(sequence.last_token_at);
        sequence.last_token_at = now;
        match index {
            0 => {
                self.counters.prompt_tokens += sequence.job.prompt_tokens as u64;
                self.transfers.local_tokens += sequence.local_tokens as u64;
                self.transfers.received_tokens += sequence.received_tokens as u64;
                self.transfers.loaded_tokens += sequence.loaded_tokens as u64;
                self.first_token.observe(since_last);
                self.segments.iter_mut().for_each(|it| it.keep(&sequence.segments));
            }
            _ => self.inter_token.observe(since_last),
        }
        self.counters.answer_tokens += 1;
        let token = (self.words)(sequence.job.seed, index);
        sequence.push_answer(token, self.profile.block_tokens as usize);
        let is_last = index + 1 >= sequence.job.answer_tokens;
        let output = TokenOutput {
            job: sequence.id,
            index,
            token,
            cached_tokens: sequence.cached_tokens,
            finish: is_last.then_some(sequence.job.finish),
        };
        if index == 0 {
            self.write_to_store(slot);
        }
        Some(output)
    }
}

#[cfg(test)]
mod tests;

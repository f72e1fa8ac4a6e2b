//! One request inside the engine, and the step it takes part in.

use maitre_base::Instant;

use super::segments::Segment;
use super::{Finish, Job, JobId, KnownPrompt, RemainingWork, Transfer};
use crate::kv::{self, BlockId, Root};
use crate::profile::Work;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SequenceState {
    Waiting,
    /// Its blocks are reserved and its KV is on its way.
    Receiving,
    /// Its KV has arrived; it runs as soon as a step has room for it.
    Received,
    Running,
    /// Its client disconnected in the middle of a step; the step still writes to its blocks.
    Leaving,
    /// Its client disconnected while its KV was on its way; the transfer still writes to its blocks.
    LeavingFetch,
    Ended,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: JobId,
    pub(super) state: SequenceState,
    pub(super) job: JobPlan,
    /// The prompt, then the answer so far.
    pub(super) tokens: Vec<u32>,
    /// The name of each full block of `tokens`.
    pub(super) hashes: Vec<u64>,
    /// The segments of the prompt, if the engine reuses them.
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that have their name in the pool.
    pub(super) stored_blocks: usize,
    /// Leading tokens whose KV is in `blocks`.
    pub(super) computed: usize,
    /// Tokens the present step computes.
    pub(super) scheduled: usize,
    pub(super) cached_tokens: u32,
    pub(super) transfer: Transfer,
    /// Prompt tokens found in the cache at first, tokens that came from another engine, and tokens from the store.
    pub(super) local_tokens: usize,
    pub(super) received_tokens: usize,
    pub(super) loaded_tokens: usize,
    pub(super) preempted: bool,
    pub(super) last_token_at: Instant,
}

#[derive(Debug)]
pub(super) struct JobPlan {
    pub(super) prompt_tokens: usize,
    pub(super) answer_tokens: u32,
    pub(super) finish: Finish,
    pub(super) seed: u64,
    pub(super) root: Root,
    pub(super) elsewhere_tokens: usize,
}

/// A step being put together.
pub(super) struct EngineStep {
    pub(super) budget: usize,
    pub(super) work: Work,
}

impl EngineStep {
    pub(super) fn add(&mut self, sequence: &Sequence, count: usize) {
        self.budget -= count;
        let elsewhere = sequence.job.elsewhere_tokens;
        if sequence.is_decoding() {
            self.work.decode_sequences += 1;
            self.work.context_tokens += (sequence.tokens.len() + elsewhere) as u64;
        } else {
            self.work.prefill_tokens += count as u64;
            let before = (sequence.computed + elsewhere) as f64;
            self.work.attended_tokens += count as f64 * (before + count as f64 / 2.0);
        }
    }
}

impl Sequence {
    pub(super) fn new(
        id: JobId,
        arrived: Instant,
        job: Job,
        known: KnownPrompt<'_>,
        block_tokens: usize,
    ) -> Sequence {
        let mut tokens = job.prompt;
        let plan = JobPlan {
            prompt_tokens: tokens.len(),
            answer_tokens: job.answer_tokens,
            finish: job.finish,
            seed: job.seed,
            root: job.root,
            elsewhere_tokens: known.elsewhere_tokens as usize,
        };
        let total = tokens.len() + job.answer_tokens as usize;
        tokens.reserve_exact(job.answer_tokens as usize);
        let mut hashes = Vec::with_capacity(total / block_tokens);
        hashes.extend(known.names.iter().map(|it| it.0.max(1)));
        if known.names.is_empty() {
            hashes.extend(kv::names(&plan.root, &tokens, block_tokens));
        }
        Sequence {
            id,
            state: SequenceState::Waiting,
            job: plan,
            tokens,
            hashes,
            segments: Vec::new(),
            blocks: Vec::with_capacity(total.div_ceil(block_tokens)),
            stored_blocks: 0,
            computed: 0,
            scheduled: 0,
            cached_tokens: 0,
            transfer: Transfer::None,
            local_tokens: 0,
            received_tokens: 0,
            loaded_tokens: 0,
            preempted: false,
            last_token_at: arrived,
        }
    }

    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.remaining() == 1 && self.tokens.len() > self.job.prompt_tokens
    }

    /// `found` is what the cache holds of it, if it has not been admitted.
    pub(super) fn rest(&self, found: usize) -> RemainingWork {
        let answered = self.tokens.len() - self.job.prompt_tokens;
        let computed = self.computed.max(found.min(self.tokens.len() - 1));
        RemainingWork {
            prefill: if self.is_decoding() { 0 } else { (self.tokens.len() - computed) as u32 },
            answer: self.job.answer_tokens.saturating_sub(answered as u32),
            context: self.tokens.len() as u32,
            elsewhere: self.job.elsewhere_tokens as u32,
            running: self.state == SequenceState::Running,
        }
    }

    #[inline]
    pub(super) fn push_answer(&mut self, token: u32, block_tokens: usize) {
        self.tokens.push(token);
        if self.tokens.len().is_multiple_of(block_tokens) {
            let parent = self.hashes.last().copied().unwrap_or(self.job.root.hash());
            let block = &self.tokens[self.tokens.len() - block_tokens..];
            self.hashes.push(kv::chain(parent, block));
        }
    }
}

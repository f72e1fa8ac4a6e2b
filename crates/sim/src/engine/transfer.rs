//! KV that moves between engines: blocks kept for another engine, and sequences whose KV comes from one.
//!
//! The engine neither sends nor waits. A job submitted with `Transfer::Out` leaves its blocks behind as a hold, in
//! use until the hold is released or its lease ends. A job submitted with `Transfer::In` gets room for its whole
//! prompt at admission and then computes nothing: `take_fetches` returns it, and `finish_fetch` says how much of the
//! prompt arrived. It keeps its blocks in between, as in vLLM, even if its client disconnects. If a shared store has
//! more of a job's prompt than the cache, the job waits for the load in the same way.
//!
//! A driver in virtual time calls the same functions as one with sockets: `take_fetches` after every `begin_step` and
//! `abort`, `finish_fetch` at the time that `link` computes, `expire_holds` at `next_expiry`.
//!
//! Left out: wrong KV stays with the sequence that fetched it, while vLLM also caches it under the right names.

use maitre_base::Instant;

use super::sequence::SequenceState;
use super::{Engine, Job, JobId, KnownPrompt, Reject, Transfer};
use crate::kv::{BlockId, Full};
use crate::text;

/// Identifies the blocks that a job left behind, for the engine's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u64);

impl From<JobId> for HoldId {
    fn from(id: JobId) -> HoldId {
        HoldId(id.serial)
    }
}

/// Blocks kept for another engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub blocks: Vec<BlockId>,
    /// How many tokens have their KV in them.
    pub tokens: u32,
    pub until: Instant,
    /// Identifies the prompt, as in its job.
    pub seed: u64,
}

/// A job that waits for its KV. Its blocks are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvFetch {
    pub job: JobId,
    /// Leading tokens that are cached here already.
    pub held_tokens: u32,
    pub prompt_tokens: u32,
    /// False if the job ended before its fetch: then the caller only needs to notify the owner of the blocks.
    pub is_wanted: bool,
    pub origin: FetchOrigin,
}

/// Where KV comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOrigin {
    /// From where its request says.
    Request,
    /// From the shared store, which has the first `tokens` tokens of the prompt.
    Store { tokens: u32 },
}

/// How a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The first `tokens` tokens of the prompt are here, including those held before. The engine computes the others.
    Arrived { tokens: u32, content: Content },
    /// The job ends with an error.
    Failed,
}

/// Whether fetched blocks hold what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Right,
    /// They belonged to another prompt, or had been freed: the answer differs.
    Wrong,
}

/// Counters of what was received, in tokens of prompts that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounters {
    /// Prompt tokens that were cached here.
    pub local_tokens: u64,
    /// Prompt tokens that arrived from another engine.
    pub received_tokens: u64,
    /// Prompt tokens that were loaded from the shared store.
    pub loaded_tokens: u64,
    /// Jobs whose fetch failed.
    pub failed: u64,
    /// Holds whose lease ended before they were released.
    pub expired: u64,
}

impl Engine {
    /// Queues a job that sends or receives KV.
    pub fn submit_transfer(
        &mut self,
        arrived: Instant,
        job: Job,
        known: KnownPrompt<'_>,
        transfer: Transfer,
    ) -> Result<JobId, Reject> {
        let id = self.submit_known(arrived, job, known)?;
        self.sequences[id.slot as usize].transfer = transfer;
        Ok(id)
    }

    /// The jobs that began to wait for their KV since the last call, in order.
    pub fn take_fetches(&mut self) -> Vec<KvFetch> {
        std::mem::take(&mut self.fetches)
    }

    /// Ends a fetch. The job decodes in one of the next steps, or ends. An ended job is ignored.
    pub fn finish_fetch(&mut self, id: JobId, outcome: FetchOutcome) {
        let Some(sequence) = self.sequences.get_mut(id.slot as usize).filter(|it| it.id == id) else {
            return;
        };
        match (sequence.state, outcome) {
            (SequenceState::Receiving, FetchOutcome::Arrived { tokens, content }) => {
                sequence.state = SequenceState::Received;
                if content == Content::Wrong {
                    sequence.job.seed = text::wrong_seed(sequence.job.seed);
                }
                self.store_received(id.slot, tokens as usize);
                self.received.push_back(id.slot);
            }
            (SequenceState::Receiving, FetchOutcome::Failed) => {
                self.receiving -= 1;
                self.transfers.failed += 1;
                self.unseat(id.slot);
            }
            // The client disconnected meanwhile: its blocks were needed until now.
            (SequenceState::LeavingFetch, _) => {
                self.receiving -= 1;
                self.counters.aborted += 1;
                self.unseat(id.slot);
            }
            _ => {}
        }
    }

    /// The blocks that a job left behind, until they are released.
    pub fn hold(&self, id: HoldId) -> Option<&Hold> {
        self.holds.get(&id)
    }

    /// Frees the blocks of a hold. Returns whether there was one.
    pub fn release_hold(&mut self, id: HoldId) -> bool {
        let Some(mut hold) = self.holds.remove(&id) else { return false };
        self.pool.release(&mut hold.blocks);
        true
    }

    /// Extends a hold until then, unless it lasts longer already.
    pub fn extend_hold(&mut self, id: HoldId, until: Instant) {
        if let Some(hold) = self.holds.get_mut(&id) {
            hold.until = hold.until.max(until);
        }
    }

    /// When the next lease ends.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.holds.values().map(|it| it.until).min()
    }

    /// Frees the blocks of all holds whose lease has ended. Returns whether there were any.
    pub fn expire_holds(&mut self, now: Instant) -> bool {
        let ended: Vec<HoldId> =
            self.holds.iter().filter(|it| it.1.until <= now).map(|(&id, _)| id).collect();
        for &id in &ended {
            self.release_hold(id);
        }
        self.transfers.expired += ended.len() as u64;
        !ended.is_empty()
    }

    pub fn transfer_counters(&self) -> TransferCounters {
        self.transfers
    }

    /// Reserves the rest of the prompt's blocks for the head of the queue, which then waits for its KV. The caller
    /// has checked that everything fits.
    pub(super) fn begin_fetch(&mut self, slot: u32, origin: FetchOrigin) {
        let sequence = &mut self.sequences[slot as usize];
        let target = sequence.tokens.len().div_ceil(self.profile.block_tokens as usize);
        let has_room = self.pool.grow(&mut sequence.blocks, target);
        debug_assert!(has_room, "the whole prompt fits");
        self.waiting.pop_front();
        if !self.sequences[slot as usize].preempted {
            self.record_lookup(slot);
        }
        let sequence = &mut self.sequences[slot as usize];
        sequence.state = SequenceState::Receiving;
        self.receiving += 1;
        self.fetches.push(KvFetch {
            job: sequence.id,
            held_tokens: sequence.computed as u32,
            prompt_tokens: sequence.job.prompt_tokens as u32,
            is_wanted: true,
            origin,
        });
    }

    /// Takes the next sequence whose KV has arrived. Its blocks are reserved already.
    pub(super) fn pop_received(&mut self) -> Option<u32> {
        let slot = self.received.pop_front()?;
        self.receiving -= 1;
        Some(slot)
    }

    /// Keeps the blocks of a finished job, if its request asked for that.
    pub(super) fn hold_blocks(&mut self, slot: u32, now: Instant) {
        let sequence = &mut self.sequences[slot as usize];
        let Transfer::Out { lease } = sequence.transfer else { return };
        let hold = Hold {
            blocks: std::mem::take(&mut sequence.blocks),
            tokens: sequence.computed as u32,
            until: now + lease,
            seed: sequence.job.seed,
        };
        self.holds.insert(HoldId::from(sequence.id), hold);
    }

    /// Ends a job that no step uses, in any state of a transfer.
    pub(super) fn abort_sequence(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot as usize];
        match sequence.state {
            // The transfer writes to its blocks until it ends.
            SequenceState::Receiving => {
                sequence.state = SequenceState::LeavingFetch;
                return;
            }
            SequenceState::Received => {
                self.receiving -= 1;
                self.received.retain(|&it| it != slot);
            }
            SequenceState::Waiting if sequence.transfer == Transfer::In => self.fetches.push(KvFetch {
                job: sequence.id,
                held_tokens: 0,
                prompt_tokens: sequence.job.prompt_tokens as u32,
                is_wanted: false,
                origin: FetchOrigin::Request,
            }),
            _ => {}
        }
        self.counters.aborted += 1;
        self.unseat(slot);
    }

    /// Records the KV that arrived and names the blocks that it fills. The last token is computed in any case: the
    /// answer's first token is sampled from it.
    fn store_received(&mut self, slot: u32, tokens: usize) {
        let block_tokens = self.profile.block_tokens as usize;
        let sequence = &mut self.sequences[slot as usize];
        let here = tokens.clamp(sequence.computed, sequence.job.prompt_tokens);
        let arrived = here - sequence.computed;
        match sequence.transfer {
            // From here on it is an ordinary sequence: if preempted, it computes its prompt.
            Transfer::In => {
                sequence.transfer = Transfer::None;
                sequence.received_tokens = arrived;
                sequence.cached_tokens += arrived as u32;
            }
            Transfer::None | Transfer::Out { .. } if !sequence.preempted => {
                sequence.loaded_tokens = arrived;
                sequence.cached_tokens += arrived as u32;
            }
            // A load after a preemption is no hit.
            Transfer::None | Transfer::Out { .. } => {}
        }
        sequence.computed = here.min(sequence.tokens.len() - 1);
        for index in sequence.stored_blocks..here / block_tokens {
            let tokens = &sequence.tokens[index * block_tokens..(index + 1) * block_tokens];
            let parent = index.checked_sub(1).map(|before| sequence.hashes[before]);
            let root = &sequence.job.root;
            self.pool
                .store(sequence.blocks[index], Full { hash: sequence.hashes[index], parent, tokens, root });
        }
        sequence.stored_blocks = sequence.stored_blocks.max(here / block_tokens);
    }
}

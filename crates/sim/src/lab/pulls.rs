//! KV that a worker pulls from another, or loads from the store that all share.
//!
//! As with vLLM's peer-to-peer tier: once a prompt has room, the worker asks the source which leading blocks it has,
//! pulls those over its own link, and computes the rest. If the source is gone, the worker waits for the whole
//! timeout and then computes everything. Loads from the store differ only in the link.

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, WorkerId};

use super::config::LabConfig;
use super::{PendingRequest, SimEvent, Simulation};
use crate::engine::JobId;
use crate::engine::transfer::{Content, FetchOutcome, KvFetch};
use crate::link::Link;
use crate::store::SharedStore;

/// How long vLLM waits for a peer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Tokens of a prompt that were not computed by the worker that answered, nor in its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrivedKv {
    pub pulled_tokens: u32,
    pub loaded_tokens: u32,
}

/// The store, and all transfers under way.
#[derive(Debug)]
pub(super) struct Pulls {
    store: Option<SharedStore>,
    in_transit: NumberMap<PullInTransit>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct PullInTransit {
    request: u64,
    job: JobId,
    /// Leading tokens that the worker has before the pull, and after it.
    held_tokens: u32,
    tokens: u32,
    from: KvSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KvSource {
    Store,
    /// If the source has another incarnation at the end, the pull lasts until the deadline and brings nothing.
    Worker {
        worker: WorkerId,
        incarnation: u32,
        deadline: Instant,
    },
    /// The pull has failed: the worker computes everything.
    Nowhere,
}

impl Pulls {
    pub(super) fn new(config: &LabConfig, block_tokens: u32) -> Pulls {
        let blocks = |tokens: u64| usize::try_from(tokens / u64::from(block_tokens)).unwrap_or(usize::MAX);
        let store = config.store.map(|it| SharedStore::new(blocks(it.tokens)));
        Pulls { store, in_transit: NumberMap::default(), next: 0 }
    }
}

impl Simulation<'_> {
    pub(super) fn join_store(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        if let (Some(store), Some(config)) = (&self.pulls.store, self.config.store) {
            worker.engine.join_store(store.clone());
            worker.store_link = Link::new(config.link.of(&worker.profile));
        }
    }

    /// Where a job pulls its KV from; `None` for a cancelled job.
    pub(super) fn pull_source(&self, request: u64, job: JobId) -> Option<WorkerId> {
        let pending = self.pending.get(&request).filter(|it| it.job.is_none_or(|it| it == job));
        pending.filter(|it| it.leg.is_none()).and_then(|it| it.source)
    }

    /// Begins to load what the store has of a prompt.
    pub(super) fn begin_load(&mut self, now: Instant, worker: usize, fetch: KvFetch, tokens: u32) {
        let sim_worker = &mut self.workers[worker];
        let block_tokens = sim_worker.profile.block_tokens;
        let blocks = u64::from((tokens - fetch.held_tokens) / block_tokens);
        let bytes = sim_worker.store_link.model.bytes(blocks, block_tokens);
        let ends = sim_worker.store_link.send(now, bytes, sim_worker.slowness);
        self.begin_transit((now, worker), fetch, (tokens, KvSource::Store), ends);
    }

    /// Asks the source for the missing blocks, and begins to pull those that it has.
    pub(super) fn begin_pull(&mut self, now: Instant, worker: usize, fetch: KvFetch, source: WorkerId) {
        let deadline = now + TIMEOUT;
        let nothing = (fetch.held_tokens, KvSource::Nowhere);
        if !self.workers[source.index()].up {
            return self.begin_transit((now, worker), fetch, nothing, deadline);
        }
        let block_tokens = self.prepared.block_tokens;
        let blocks = self.blocks_at(source, self.workers[worker].request(fetch.job), fetch, block_tokens);
        if blocks == 0 {
            // A wrong guess costs a look-up.
            return self.begin_transit((now, worker), fetch, nothing, now);
        }
        let sim_worker = &mut self.workers[worker];
        let bytes = sim_worker.link.model.bytes(u64::from(blocks), block_tokens);
        let ends = sim_worker.link.send(now, bytes, sim_worker.slowness);
        if ends > deadline {
            return self.begin_transit((now, worker), fetch, nothing, deadline);
        }
        let incarnation = self.workers[source.index()].incarnation;
        let from = KvSource::Worker { worker: source, incarnation, deadline };
        let tokens = fetch.held_tokens + blocks * block_tokens;
        self.begin_transit((now, worker), fetch, (tokens, from), ends);
    }

    /// How many of the blocks that a prompt lacks the source has, up to the first that the source lacks too.
    fn blocks_at(&self, source: WorkerId, request: u64, fetch: KvFetch, block_tokens: u32) -> u32 {
        let Some(pending) = self.pending.get(&request) else { return 0 };
        // The last token is computed in any case.
        let shareable = (fetch.prompt_tokens - 1) / block_tokens;
        let held = fetch.held_tokens / block_tokens;
        let missing = self.prepared.chains[pending.number].get(held as usize..shareable as usize);
        missing.map_or(0, |it| self.workers[source.index()].engine.holds_named(it))
    }

    fn begin_transit(
        &mut self,
        (now, worker): (Instant, usize),
        fetch: KvFetch,
        (tokens, from): (u32, KvSource),
        ends: Instant,
    ) {
        let (request, incarnation) =
            (self.workers[worker].request(fetch.job), self.workers[worker].incarnation);
        let transit = PullInTransit { request, job: fetch.job, held_tokens: fetch.held_tokens, tokens, from };
        let pull = self.pulls.next;
        self.pulls.next += 1;
        self.pulls.in_transit.insert(pull, transit);
        self.schedule(ends.max(now), SimEvent::PullEnds { worker, incarnation, pull });
    }

    pub(super) fn end_pull(&mut self, now: Instant, worker: usize, (incarnation, pull): (u32, u64)) {
        let Some(mut transit) = self.pulls.in_transit.remove(&pull) else { return };
        if self.workers[worker].incarnation != incarnation {
            return;
        }
        if let KvSource::Worker { worker: source, incarnation: before, deadline } = transit.from
            && self.workers[source.index()].incarnation != before
        {
            (transit.from, transit.tokens) = (KvSource::Nowhere, transit.held_tokens);
            self.pulls.in_transit.insert(pull, transit);
            return self.schedule(deadline.max(now), SimEvent::PullEnds { worker, incarnation, pull });
        }
        // It may have been cancelled and placed on another worker.
        let is_here =
            |it: &&mut PendingRequest| it.worker_now().index() == worker && it.job == Some(transit.job);
        if let Some(pending) = self.pending.get_mut(&transit.request).filter(is_here) {
            let tokens = transit.tokens - transit.held_tokens;
            match transit.from {
                KvSource::Store => pending.arrived.loaded_tokens += tokens,
                KvSource::Worker { .. } => pending.arrived.pulled_tokens += tokens,
                KvSource::Nowhere => {}
            }
        }
        let outcome = FetchOutcome::Arrived { tokens: transit.tokens, content: Content::Right };
        self.workers[worker].engine.finish_fetch(transit.job, outcome);
        self.begin_step(now, worker);
    }
}

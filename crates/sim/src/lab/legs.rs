//! Requests in two legs: one worker prefills the prompt and holds its KV, another fetches that and answers.
//!
//! As with vLLM's NIXL connector: the decode worker pulls what it lacks once it has room for the whole prompt. Its
//! heartbeats extend the lease of the blocks until it has read them. Blocks that no worker fetches are held until
//! their lease ends.

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, WorkerId};
use maitre_dispatch::{Event, Failure};
use maitre_fleet::estimate::Counted;

use super::{PendingRequest, SimEvent, Simulation};
use crate::engine::transfer::{Content, FetchOrigin, FetchOutcome, HoldId, KvFetch};
use crate::engine::{JobId, TokenOutput, Transfer};

/// vLLM's lease, and by how much a heartbeat extends it.
const LEASE: Duration = Duration::from_secs(30);
const EXTENSION: Duration = Duration::from_secs(20);

/// A prompt at the worker that prefills it for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillLeg {
    pub(super) worker: WorkerId,
    /// Set once it is prefilled.
    pub(super) held: Option<HeldPrompt>,
}

/// A prompt whose KV waits to be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldPrompt {
    pub(super) hold: HoldId,
    /// The worker's incarnation: a later one holds nothing.
    incarnation: u32,
    /// Tokens of the prompt that were not computed.
    pub(super) cached_tokens: u32,
}

/// Fetches under way.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    in_transit: NumberMap<FetchInTransit>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct FetchInTransit {
    request: u64,
    /// The job at the worker that fetches.
    job: JobId,
    prompt_tokens: u32,
    from: WorkerId,
    held: HeldPrompt,
}

impl PendingRequest {
    /// The worker that has the request now: first the one that prefills, if another answers.
    pub(super) fn worker_now(&self) -> WorkerId {
        self.prefilling().map_or(self.worker, |it| it.worker)
    }

    /// The leg under way, if it is the first of two.
    fn prefilling(&self) -> Option<PrefillLeg> {
        self.leg.filter(|it| it.held.is_none())
    }

    /// What the leg under way does with KV.
    pub(super) fn transfer(&self) -> Transfer {
        match self.leg {
            None if self.source.is_some() => Transfer::In,
            None => Transfer::None,
            Some(PrefillLeg { held: None, .. }) => Transfer::Out { lease: LEASE },
            Some(_) => Transfer::In,
        }
    }
}

impl Simulation<'_> {
    /// Whether this output ends the first of two legs.
    pub(super) fn ends_prefill_leg(&self, request: u64, worker: usize) -> bool {
        let leg = self.pending.get(&request).and_then(PendingRequest::prefilling);
        leg.is_some_and(|it| it.worker.index() == worker)
    }

    /// The prompt is prefilled: the decode worker gets the request.
    pub(super) fn end_prefill_leg(&mut self, now: Instant, request: u64, output: &TokenOutput) {
        let Some(pending) = self.pending.get_mut(&request) else { return };
        let Some(leg) = &mut pending.leg else { return };
        let (worker, hold) = (leg.worker, HoldId::from(output.job));
        let incarnation = self.workers[worker.index()].incarnation;
        leg.held = Some(HeldPrompt { hold, incarnation, cached_tokens: output.cached_tokens });
        pending.job = None;
        let (attempt, router) = (pending.attempt, pending.router);
        let prompt_tokens = self.prepared.requests[pending.number].prompt_tokens();
        let overhead = self.workers[pending.worker.index()].profile.overhead;
        self.schedule(now + overhead, SimEvent::Submission { request, attempt });
        let worker_number = worker.index();
        self.schedule(now + LEASE, SimEvent::LeaseEnds { worker: worker_number, incarnation, hold, request });
        let counted = Some(Counted {
            prompt: Some(prompt_tokens),
            cached: Some(u64::from(output.cached_tokens)),
            answer: None,
        });
        self.dispatch(router, now, Event::Prefilled { request: RequestId(request), worker, counted });
    }

    /// Begins the fetches of jobs that have room now, and frees the blocks of jobs that ended before their fetch.
    pub(super) fn begin_fetches(&mut self, now: Instant, worker: usize) {
        for fetch in self.workers[worker].engine.take_fetches() {
            let request = self.workers[worker].request(fetch.job);
            if let FetchOrigin::Store { tokens } = fetch.origin {
                self.begin_load(now, worker, fetch, tokens);
                continue;
            }
            if let Some(source) = self.pull_source(request, fetch.job) {
                if fetch.is_wanted {
                    self.begin_pull(now, worker, fetch, source);
                }
                continue;
            }
            let leg = self.pending.get(&request).and_then(|it| it.leg);
            let Some((from, held)) = leg.and_then(|it| Some((it.worker, it.held?))) else { continue };
            match fetch.is_wanted {
                true => self.begin_fetch(
                    now,
                    worker,
                    fetch,
                    FetchInTransit {
                        request,
                        job: fetch.job,
                        prompt_tokens: fetch.prompt_tokens,
                        from,
                        held,
                    },
                ),
                false => self.release_hold(now, from, held),
            }
        }
    }

    fn begin_fetch(&mut self, now: Instant, worker: usize, fetch: KvFetch, transit: FetchInTransit) {
        let sim_worker = &mut self.workers[worker];
        let block_tokens = sim_worker.profile.block_tokens;
        let blocks = u64::from((fetch.prompt_tokens - fetch.held_tokens).div_ceil(block_tokens));
        let bytes = sim_worker.link.model.bytes(blocks, block_tokens);
        let ends = sim_worker.link.send(now, bytes, sim_worker.slowness);
        let incarnation = sim_worker.incarnation;
        let fetch = self.fetches.next;
        self.fetches.next += 1;
        self.fetches.in_transit.insert(fetch, transit);
        self.schedule(ends, SimEvent::FetchEnds { worker, incarnation, fetch });
    }

    /// The KV has arrived, or the worker that held it has crashed.
    pub(super) fn end_fetch(&mut self, now: Instant, worker: usize, (incarnation, fetch): (u32, u64)) {
        let Some(fetch) = self.fetches.in_transit.remove(&fetch) else { return };
        let is_there = self.is_held(fetch.from, fetch.held);
        self.release_hold(now, fetch.from, fetch.held);
        if self.workers[worker].incarnation != incarnation {
            return;
        }
        let outcome = match is_there {
            true => FetchOutcome::Arrived { tokens: fetch.prompt_tokens, content: Content::Right },
            false => FetchOutcome::Failed,
        };
        self.workers[worker].engine.finish_fetch(fetch.job, outcome);
        // It may have been cancelled and placed on another worker.
        let is_here = |it: &&mut PendingRequest| it.worker.index() == worker && it.job == Some(fetch.job);
        let pending = self.pending.get_mut(&fetch.request).filter(is_here);
        if let Some(pending) = pending.filter(|_| !is_there) {
            pending.job = None;
            self.fail(now, fetch.request, Failure::Failed);
        }
        self.begin_step(now, worker);
    }

    /// Frees held blocks, unless a decode worker still waits for them.
    pub(super) fn end_lease(
        &mut self,
        now: Instant,
        (worker, incarnation): (usize, u32),
        hold: HoldId,
        request: u64,
    ) {
        let held = self.pending.get(&request).filter(|it| it.job.is_some()).and_then(|it| it.leg?.held);
        let held = held.filter(|it| it.hold == hold && it.incarnation == incarnation);
        let from = WorkerId(worker as u32);
        match held {
            Some(held) if self.is_held(from, held) => {
                self.schedule(now + EXTENSION, SimEvent::LeaseEnds { worker, incarnation, hold, request });
            }
            _ => self.release_hold(now, from, HeldPrompt { hold, incarnation, cached_tokens: 0 }),
        }
    }

    fn is_held(&self, worker: WorkerId, held: HeldPrompt) -> bool {
        let worker = &self.workers[worker.index()];
        worker.incarnation == held.incarnation && worker.engine.hold(held.hold).is_some()
    }

    fn release_hold(&mut self, now: Instant, worker: WorkerId, held: HeldPrompt) {
        let sim_worker = &mut self.workers[worker.index()];
        if sim_worker.incarnation == held.incarnation && sim_worker.engine.release_hold(held.hold) {
            self.begin_step(now, worker.index());
        }
    }
}

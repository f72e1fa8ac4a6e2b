//! Which part of each request a worker does, and how long a KV cache takes from one worker to another.

use std::time::Duration;

use maitre_base::{Handoff, Instant, Role, Tokens, WorkerId};

use super::{Fleet, WorkerSnapshot};
use crate::barred::Barred;
use crate::model::Wanted;
use crate::transfers::{Fetches, TransferTime, Transfers, Way};
use crate::worker::Worker;

/// How long a worker prefills for no other after one could not fetch from it. Chosen: a failed transfer can take as
/// long.
const HANDOFF_PAUSE: Duration = Duration::from_secs(10);

impl Fleet {
    /// Another worker could not fetch the KV cache that this one has prefilled.
    pub fn handoff_failed(&mut self, now: Instant, worker: WorkerId) {
        if let Some(it) = self.worker_mut(worker) {
            it.handoff_failed = Some(now);
        }
    }

    pub fn set_role(&mut self, worker: WorkerId, role: Role) {
        if let Some(it) = self.worker_mut(worker) {
            it.role = role;
            self.log.upheaval();
            self.count_roles();
        }
    }

    pub fn set_handoff(&mut self, worker: WorkerId, handoff: Handoff) {
        if let Some(it) = self.worker_mut(worker) {
            it.handoff = handoff;
            self.log.upheaval();
            self.count_roles();
        }
    }

    pub(super) fn count_roles(&mut self) {
        self.prefill_workers = self.workers().filter(|it| !it.answers()).count();
        self.dependent_workers = self.workers().filter(|it| it.is_dependent()).count();
    }

    /// How this worker hands KV cache over.
    pub fn handoff(&self, worker: WorkerId) -> Handoff {
        self.worker(worker).map_or_else(Handoff::default, |it| it.handoff)
    }

    /// Whether any worker answers only requests that another prefills.
    pub fn has_dependent_workers(&self) -> bool {
        self.dependent_workers > 0
    }

    /// Whether KV cache may come from another worker than the one that answers.
    pub fn moves_kv(&self) -> bool {
        self.has_prefill_workers() || self.has_dependent_workers() || self.has_pulls()
    }

    /// Whether any healthy worker can answer requests, either alone or with a healthy worker that prefills for it.
    pub fn is_answering(&self) -> bool {
        let prefills = |style| {
            let mut ready = self.workers().filter(|it| it.is_ready() && !it.answers());
            ready.any(|it| it.handoff.style == style)
        };
        let mut ready = self.workers().filter(|it| it.is_ready() && it.answers());
        ready.any(|it| !it.is_dependent() || prefills(it.handoff.style))
    }

    /// Removes the workers that need another worker to prefill, if none in `prefill` has their style.
    pub fn retain_answering(&self, prefill: &[WorkerSnapshot], snapshots: &mut Vec<WorkerSnapshot>) {
        let has_partner =
            |it: &Worker| prefill.iter().any(|other| self.handoff(other.worker).style == it.handoff.style);
        snapshots.retain(|it| self.worker(it.worker).is_none_or(|it| !it.is_dependent() || has_partner(it)));
    }

    /// Whether this worker answers requests whose prompt another one has prefilled.
    pub fn decodes(&self, worker: WorkerId) -> bool {
        self.worker(worker).is_some_and(|it| it.role == Role::Decode)
    }

    pub fn has_prefill_workers(&self) -> bool {
        self.prefill_workers > 0
    }

    /// The healthy workers that could prefill such a prompt for another worker.
    pub fn prefill_snapshots(
        &self,
        now: Instant,
        wanted: Wanted,
        barred: Barred<'_>,
        snapshots: &mut Vec<WorkerSnapshot>,
    ) {
        let is_trusted = |it: &Worker| it.handoff_failed.is_none_or(|at| now.since(at) >= HANDOFF_PAUSE);
        let may = |it: &&Worker| it.is_ready() && it.prefills(wanted) && !barred.bars(it.id);
        let ready = || self.workers().filter(may);
        let snapshot = |it: &Worker| self.snapshot(now, wanted, it);
        snapshots.clear();
        snapshots.extend(ready().filter(|it| is_trusted(it)).map(snapshot));
        // If requests cannot be served otherwise, an unhealthy worker is better than none, and one that failed may work
        // again.
        if snapshots.is_empty() && self.has_dependent_workers() {
            let barred = Barred { tried: &[], ..barred };
            let last = |it: &&Worker| !it.draining && it.prefills(wanted) && !barred.bars(it.id);
            snapshots.extend(self.workers().filter(last).map(snapshot));
        }
    }

    /// How long one worker would take to fetch the KV cache of so many tokens from the one that prefilled them.
    pub fn transfer_time(&self, way: Way, tokens: Tokens) -> TransferTime {
        self.transfers.time(way, self.fetches(way), tokens)
    }

    /// The KV caches that the worker at the end of this way still has to fetch.
    pub(super) fn fetches(&self, way: Way) -> Fetches {
        self.worker(way.to).map_or_else(Fetches::default, |it| it.fetches)
    }

    pub(super) fn all_transfers(&mut self) -> [&mut Transfers; 3] {
        [&mut self.transfers, &mut self.pull_times, &mut self.load_times]
    }

    pub(super) fn forget_ways(&mut self, worker: WorkerId) {
        self.all_transfers().into_iter().for_each(|it| it.forget(worker));
    }

    /// This worker will fetch so many tokens.
    pub fn promise_fetch(&mut self, worker: WorkerId, tokens: Tokens) {
        if let Some(it) = self.worker_mut(worker) {
            it.fetches.promised += tokens;
        }
    }

    /// It can fetch them now. Returns how many tokens are before them on its link.
    pub fn begin_fetch(&mut self, worker: WorkerId, tokens: Tokens) -> Tokens {
        let Some(it) = self.worker_mut(worker) else { return Tokens::ZERO };
        let before = it.fetches.in_transit;
        it.fetches.in_transit = before + tokens;
        before
    }

    /// It has fetched them, or never will. `begun`: they were in transit.
    pub fn end_fetch(&mut self, worker: WorkerId, tokens: Tokens, begun: bool) {
        if let Some(it) = self.worker_mut(worker) {
            it.fetches.promised -= tokens;
            if begun {
                it.fetches.in_transit -= tokens;
            }
        }
    }

    /// The worker has fetched the KV cache of so many tokens, including those before them on the same link.
    pub fn learn_transfer(&mut self, way: Way, tokens: Tokens, took: Duration) {
        self.transfers.learn(way, tokens, took);
    }
}

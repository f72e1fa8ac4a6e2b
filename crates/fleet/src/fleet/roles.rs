//! Which part of requests each worker does, and how long a KV cache takes from one to another.

use std::time::Duration;

use maitre_base::{Instant, Role, Tokens, WorkerId};

use super::{Fleet, WorkerSnapshot};
use crate::barred::Barred;
use crate::model::Wanted;
use crate::transfers::{Fetches, TransferTime};
use crate::worker::Worker;

/// How long a worker prefills for nobody after another could not fetch from it. Chosen: a failed transfer can take as long.
const HANDOFF_PAUSE: Duration = Duration::from_secs(10);

impl Fleet {
    /// Another worker could not fetch what this one has prefilled.
    pub fn handoff_failed(&mut self, now: Instant, worker: WorkerId) {
        if let Some(it) = self.worker_mut(worker) {
            it.handoff_failed = Some(now);
        }
    }

    pub fn set_role(&mut self, worker: WorkerId, role: Role) {
        if let Some(it) = self.worker_mut(worker) {
            it.role = role;
            self.prefill_workers = self.workers().filter(|it| !it.answers()).count();
        }
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
        let may =
            |it: &&Worker| it.is_ready() && it.prefills(wanted) && is_trusted(it) && !barred.bars(it.id);
        snapshots.clear();
        snapshots.extend(self.workers().filter(may).map(|it| self.snapshot(now, wanted, it)));
    }

    /// How long this worker would take to fetch the KV cache of so many tokens.
    pub fn transfer_time(&self, worker: WorkerId, tokens: Tokens) -> TransferTime {
        self.transfers.time(self.worker(worker).map_or_else(Fetches::default, |it| it.fetches), tokens)
    }

    /// This worker is to fetch so many tokens.
    pub fn promise_fetch(&mut self, worker: WorkerId, tokens: Tokens) {
        if let Some(it) = self.worker_mut(worker) {
            it.fetches.promised += tokens;
        }
    }

    /// It can fetch them now. Returns how many are before them on its link.
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

    /// The KV cache of so many tokens, with those before them on the same link, was fetched.
    pub fn learn_transfer(&mut self, tokens: Tokens, took: Duration) {
        self.transfers.learn(tokens, took);
    }
}

//! Which part of requests each worker does, and how long a KV cache takes from one to another.

use std::time::Duration;

use maitre_base::{Instant, Role, Tokens, WorkerId};

use super::{Fleet, WorkerSnapshot};
use crate::model::Wanted;
use crate::worker::Worker;

impl Fleet {
    pub fn set_role(&mut self, worker: WorkerId, role: Role) {
        if let Some(it) = self.worker_mut(worker) {
            it.role = role;
            self.prefill_workers = self.workers().filter(|it| it.role == Role::Prefill).count();
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
        tried: &[WorkerId],
        snapshots: &mut Vec<WorkerSnapshot>,
    ) {
        let may = |it: &&Worker| it.is_ready() && it.prefills(wanted) && !tried.contains(&it.id);
        snapshots.clear();
        snapshots.extend(self.workers().filter(may).map(|it| self.snapshot(now, wanted, it)));
    }

    /// How long it takes to fetch the KV cache of so many tokens, in seconds.
    pub fn transfer_seconds(&self, tokens: Tokens) -> f64 {
        self.transfers.seconds(tokens)
    }

    /// The KV cache of so many tokens was fetched.
    pub fn learn_transfer(&mut self, tokens: Tokens, took: Duration) {
        self.transfers.learn(tokens, took);
    }
}

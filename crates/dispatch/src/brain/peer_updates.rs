//! What other routers publish, and what changes here.
//!
//! Load, prompts and spending are facts about the other router, and are believed. Its opinion of a worker is not: a doubt
//! asks for a probe, and learned rates count only until this router has seen the worker answer.

use maitre_base::{Instant, WorkerId};
use maitre_cluster::{Spent, Verdict};
use maitre_queue::PeerUsage;

use super::{Context, Freed, Parts};
use crate::event::Effect;
use crate::peers::{Assessment, PeerUpdate};
use crate::placer::pins::SharedPin;
use crate::request::PoolId;

impl Parts {
    pub(super) fn apply_peer_update(
        &mut self,
        now: Instant,
        update: PeerUpdate<'_>,
        effects: &mut Vec<Effect>,
    ) {
        match update {
            PeerUpdate::Promised { worker, work } => {
                self.fleet.set_promised_by_others(now, worker, work);
            }
            PeerUpdate::Assessed { worker, assessment } => {
                self.apply_assessment(now, worker, assessment, effects);
            }
            PeerUpdate::Pinned { model, session, worker } => {
                if !self.state_held_elsewhere(model, session, worker) {
                    self.placer.pin(&self.fleet, SharedPin { model, session, worker });
                }
            }
            PeerUpdate::Spent { model, tenant, more: Spent { requests, tokens } } => {
                let settings = &self.settings.queue;
                if settings.enabled {
                    let context = Context { now, settings, fleet: &self.fleet };
                    let pool = self.pool_by_hash(model);
                    let passed = PeerUsage { requests, tokens };
                    self.scheduler.spent_elsewhere(context, pool, tenant, passed);
                }
            }
            PeerUpdate::Placed { worker, prompt } => {
                // While no strategy uses caches, nothing is kept of them.
                if let Some(worker) = self.worker_by_key(worker).filter(|_| self.settings.needs().cache) {
                    self.cache.placed(now, worker, prompt);
                    if let Some(sent) = &mut self.placer.sent {
                        sent.record(worker, prompt);
                    }
                }
            }
            PeerUpdate::Routers { live, known } => self.scheduler.set_routers(live, known),
        }
    }

    /// Where an update may make room: where the other routers have promised less than before.
    pub(super) fn freed_elsewhere(&self, update: &PeerUpdate<'_>) -> Freed {
        let PeerUpdate::Promised { worker, work } = update else { return Freed::Nowhere };
        let Some(worker) = self.fleet.by_key(*worker) else { return Freed::Nowhere };
        let before = worker.promised_by_others.work;
        let shrinks = work.requests < before.requests
            || work.prefilling < before.prefilling
            || work.prefill.tokens < before.prefill.tokens
            || work.context < before.context;
        if shrinks { Freed::At(worker.id) } else { Freed::Nowhere }
    }

    fn apply_assessment(
        &mut self,
        now: Instant,
        key: u64,
        assessment: Assessment,
        effects: &mut Vec<Effect>,
    ) {
        let Some(worker) = self.worker_by_key(key) else { return };
        if let Some(rates) = assessment.rates {
            self.fleet.learn_peer_rates(now, worker, rates);
        }
        if assessment.verdict != Verdict::Healthy && self.fleet.doubt(now, worker) {
            effects.push(Effect::Probe { worker });
        }
    }

    fn worker_by_key(&self, key: u64) -> Option<WorkerId> {
        self.fleet.by_key(key).map(|it| it.id)
    }

    /// The pool of the model whose name has this hash; zero is that of unlisted models.
    fn pool_by_hash(&self, hash: u64) -> Option<PoolId> {
        match hash {
            0 => Some(PoolId::of(None)),
            _ => self.fleet.model_by_hash(hash).map(|it| PoolId::of(Some(self.fleet.base(it)))),
        }
    }
}

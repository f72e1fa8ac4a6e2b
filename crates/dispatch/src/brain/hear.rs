//! What other routers tell us, and what follows from it here.
//!
//! Load, prefixes and spending are believed: they are the other's own doing. What it thinks of a worker is not, or not
//! as if we had seen it: a doubt makes us look, and how fast a worker is counts until we have seen it answer.

use maitre_base::hash::{self, NumberMap};
use maitre_base::{Instant, WorkerId};
use maitre_cluster::{Spent, Verdict};
use maitre_policy::pin::Pin;
use maitre_queue::{Passed, Share};

use super::Brain;
use super::wait::{Freed, UNLISTED, number};
use crate::event::Effect;
use crate::peers::{Judged, PeerUpdate};

/// Pins of models or workers that we have not met yet, kept for when we do: a router that has just started hears of
/// sessions before its workers have told what they serve. Chosen, like all that is kept for others; beyond it a session
/// goes to its home, where most of them are anyway.
const EARLY_PINS_MAX: usize = 4_096;

/// Which session sits where, as it is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldPin {
    model: u64,
    session: u64,
    worker: u64,
}

/// Pins that came too early, by their sessions: of each session the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlyPins(NumberMap<ToldPin>);

impl EarlyPins {
    fn key(model: u64, session: u64) -> u64 {
        hash::pair(model, session)
    }

    fn keep(&mut self, told: ToldPin) {
        let key = EarlyPins::key(told.model, told.session);
        if self.0.len() < EARLY_PINS_MAX || self.0.contains_key(&key) {
            self.0.insert(key, told);
        }
    }

    /// The session has a place by now, and what was said before of it is of the past.
    pub(super) fn forget(&mut self, model: u64, session: u64) {
        if !self.0.is_empty() {
            self.0.remove(&EarlyPins::key(model, session));
        }
    }
}

#[cfg(test)]
impl EarlyPins {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// How many routers there are: those we hear, ourselves included, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Routers {
    pub(super) heard: u32,
    known: u32,
}

impl Default for Routers {
    fn default() -> Routers {
        Routers { heard: 1, known: 1 }
    }
}

impl Brain {
    /// The part of each tenant's limits that is counted here: less than one while some routers cannot be heard.
    pub fn limit_share(&self) -> f64 {
        Share::of(self.routers.heard, self.routers.known).part()
    }

    pub(super) fn hear(&mut self, now: Instant, news: PeerUpdate<'_>, effects: &mut Vec<Effect>) {
        match news {
            PeerUpdate::Promised { worker, work } => {
                self.fleet.promised_elsewhere(now, worker, work);
            }
            PeerUpdate::Judged { worker, judged } => self.hear_judged(now, worker, judged, effects),
            PeerUpdate::Pinned { model, session, worker } => {
                self.hear_pinned(ToldPin { model, session, worker })
            }
            PeerUpdate::Spent { model, tenant, more: Spent { requests, tokens } } => {
                let queue = &self.settings.queue;
                if queue.enabled {
                    let terms = queue.terms(tenant);
                    self.allowances.charge(now, tenant, terms, Passed { requests, tokens });
                    let pool = self.pool_by_hash(model);
                    if let Some(pool) = pool.and_then(|it| self.pools.get_mut(&it)) {
                        pool.line.correct(tenant, terms.weight, tokens as f64);
                    }
                }
            }
            PeerUpdate::Seated { worker, prompt } => {
                // Where nobody asks what caches hold, nobody need know.
                if let Some(worker) = self.number_of(worker).filter(|_| self.settings.needs().cache) {
                    self.cache.seated(now, worker, prompt);
                }
            }
            PeerUpdate::Routers { heard, known } => {
                self.routers = Routers { heard: heard.max(1), known };
                self.allowances.share(Share::of(heard, known));
            }
        }
    }

    /// What others have promised may have become less: room for those who wait here.
    pub(super) fn frees_elsewhere(&self, news: &PeerUpdate<'_>) -> Freed {
        let PeerUpdate::Promised { worker, work } = news else { return Freed::Nobody };
        let Some(worker) = self.fleet.by_key(*worker) else { return Freed::Nobody };
        let before = worker.promised_by_others.work;
        let shrinks = work.requests < before.requests
            || work.prefilling < before.prefilling
            || work.prefill < before.prefill
            || work.context < before.context;
        if shrinks { Freed::Worker(worker.id) } else { Freed::Nobody }
    }

    fn hear_judged(&mut self, now: Instant, key: u64, judged: Judged, effects: &mut Vec<Effect>) {
        let Some(worker) = self.number_of(key) else { return };
        if let Some(rates) = judged.rates {
            self.fleet.hear_rates(worker, rates);
        }
        if judged.verdict != Verdict::Healthy && self.fleet.doubt(now, worker) {
            effects.push(Effect::Probe { worker });
        }
    }

    fn hear_pinned(&mut self, told: ToldPin) {
        let ToldPin { model, session, worker: key } = told;
        let strategy = match model {
            0 => Some(&mut self.unlisted),
            _ => {
                let model = self.fleet.model_by_hash(model);
                model.and_then(|it| self.strategies.get_mut(&u64::from(it.0)))
            }
        };
        let worker = self.fleet.by_key(key).map(|it| it.id);
        match (strategy, worker) {
            (Some(strategy), Some(worker)) => {
                strategy.pin(session, Pin::new(worker, key));
                self.early_pins.forget(model, session);
            }
            _ => self.early_pins.keep(told),
        }
    }

    /// A worker has come, or a model: what was told of it before counts now.
    pub(super) fn hear_early_pins(&mut self) {
        for told in std::mem::take(&mut self.early_pins).0.into_values() {
            self.hear_pinned(told);
        }
    }

    fn number_of(&self, key: u64) -> Option<WorkerId> {
        self.fleet.by_key(key).map(|it| it.id)
    }

    /// The pool of the model whose name has this hash.
    fn pool_by_hash(&self, hash: u64) -> Option<u64> {
        match hash {
            0 => Some(UNLISTED),
            _ => self.fleet.model_by_hash(hash).map(|it| number(Some(self.fleet.base(it)))),
        }
    }
}

//! What other routers should know of us: what we promise, what we find, what our tenants take, which prompts went where.
//!
//! It is noted where it happens and fetched from outside, a few dozen times a second. Nothing is noted where there is
//! nobody to tell (`Settings::shares`).

use std::time::Duration;

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_fleet::{ModelId, State, Wanted};

use super::wait::base;
use super::{Brain, PendingRequest, model_of};
use crate::cache::Prompt;
use crate::event::Arrival;
use crate::observer::dirty::DirtySet;
use crate::peers::Outbox;

/// The link of a prompt's chain by which routers tell equals apart: 256 tokens in, with blocks of 16, which is past
/// most greetings and within most instructions. Those who share them had better sit together.
const TIE_LINK: usize = 16;
/// How often all that was learned of workers is told again; whoever tells it drops what has not changed.
const JUDGED_EVERY: Duration = Duration::from_secs(1);

impl Brain {
    /// Whether others should be told anything.
    pub fn has_outbox(&self) -> bool {
        self.dirty.as_ref().is_some_and(|it| it.is_any())
    }

    /// What others should be told, since they last were. The lists change places with those of the caller, who had better
    /// have cleared them: then this takes microseconds and allocates nothing.
    pub fn take_outbox(&mut self, outbox: &mut Outbox) {
        match &mut self.dirty {
            Some(dirty) => dirty.take(&self.fleet, outbox),
            None => outbox.clear(),
        }
    }

    /// There are others, or there are none any more. Who begins to share tells everything once.
    pub(super) fn share(&mut self) {
        match (self.settings.shares, &self.dirty) {
            (false, _) => self.dirty = None,
            (true, Some(_)) => {}
            (true, None) => {
                let dirty = self.dirty.insert(DirtySet::default());
                for worker in self.fleet.workers() {
                    dirty.promise(worker.id);
                    dirty.judge(worker.id);
                }
            }
        }
    }

    /// What is promised to a worker has changed.
    pub(super) fn tell_promised(&mut self, worker: WorkerId) {
        if let Some(dirty) = &mut self.dirty {
            dirty.promise(worker);
        }
    }

    pub(super) fn tell_judged(&mut self, worker: WorkerId) {
        if let Some(dirty) = &mut self.dirty {
            dirty.judge(worker);
        }
    }

    /// All that was learned, now and then.
    pub(super) fn tell_learned(&mut self, now: Instant) {
        let Some(dirty) = self.dirty.as_mut().filter(|_| now.since(self.judged) >= JUDGED_EVERY) else {
            return;
        };
        self.judged = now;
        let known = self.fleet.workers().filter(|it| it.health.state() != State::Probing);
        known.filter(|it| it.rates.to_tell().is_some()).for_each(|it| dirty.judge(it.id));
    }

    pub(super) fn tell_gone(&mut self, key: u64) {
        if let Some(dirty) = &mut self.dirty {
            dirty.leave(key);
        }
    }

    pub(super) fn tell_joined(&mut self, worker: WorkerId) {
        if let (Some(dirty), Some(it)) = (&mut self.dirty, self.fleet.worker(worker)) {
            dirty.join(it.key, worker);
        }
    }

    /// A session has a new place.
    pub(super) fn tell_pinned(&mut self, request: RequestId, session: u64, key: u64) {
        let (Some(dirty), Some(open)) = (&mut self.dirty, self.open.get(&request.0)) else { return };
        let model = model_of(open.wanted).map_or(0, |it| self.fleet.hash_of(it));
        dirty.pin(model, session, key);
        self.early_pins.forget(model, session);
    }

    /// A prompt goes to the worker of this key.
    pub(super) fn tell_seated(&mut self, key: u64, prompt: Prompt) {
        if let Some(dirty) = &mut self.dirty {
            dirty.placement(key, prompt);
        }
    }

    /// Whether what this request takes of its tenant's part concerns others: if that is limited, or if tenants stand in
    /// line beside each other.
    pub(super) fn is_spending_told(&self, open: &PendingRequest) -> bool {
        let is_limited = || self.settings.queue.terms(open.tenant).are_limited();
        self.dirty.is_some() && (self.waiting > 0 || is_limited())
    }

    pub(super) fn tell_spent(&mut self, open: &PendingRequest) {
        let model = self.hash_of_pool(open.pool);
        if let Some(dirty) = self.dirty.as_mut().filter(|_| open.spending.is_told) {
            dirty.spend(model, open.tenant, open.tokens());
        }
    }

    /// It was refused, and has taken nothing.
    pub(super) fn tell_given_back(&mut self, request: RequestId) {
        let Some(open) = self.open.get(&request.0).filter(|it| it.spending.is_told) else { return };
        let model = self.hash_of_pool(open.pool);
        if let Some(dirty) = &mut self.dirty {
            dirty.give_back(model, open.tenant, open.tokens());
        }
    }

    /// What the model of a pool goes by between routers.
    fn hash_of_pool(&self, number: u64) -> u64 {
        base(number).map_or(0, |it: ModelId| self.fleet.hash_of(it))
    }

    /// What equals are told apart by for this request; none where the dice do it.
    pub(super) fn tie(&self, arrival: &Arrival<'_>, wanted: Wanted) -> Option<u64> {
        if !self.settings.shares {
            return None;
        }
        // What is there for the shadows' sake alone is not looked at: picks are what they would be without them.
        let link = |it: &Prompt| it.chain.iter().take(TIE_LINK).next_back().map(|it| it.0);
        let read = arrival.prompt.filter(|_| self.strategy_of(wanted).name().needs().cache);
        let others = || {
            let needs = self.settings.needs_in_charge();
            arrival.head.filter(|_| needs.head).or(arrival.session.filter(|_| needs.session))
        };
        read.and_then(link).or_else(others)
    }
}

//! Which number a worker gets when it joins, and what becomes of it when it leaves.
//!
//! All that we know of workers stands in tables by their numbers, so where workers come and go for months a number must
//! be used again. That is safe once nothing speaks of the last owner any more. What the brain itself knows is asked:
//! no open request may be seated there, wait for it, have failed there or have been called back from there, for each of
//! those may still say so and mean the one that was. What may be under way outside (a probe that was about to be told,
//! the last of a worker's KV events) is not known here; it is waited for, for as long as the settings say.
//!
//! The lowest number goes first, so that the tables stay as short as they can. There are never more numbers than there
//! were workers at once, those counted that left so short a while ago, or with requests that have not ended.

use std::collections::BTreeSet;

use maitre_base::{Instant, WorkerId};

use super::{Brain, PendingRequest};
use crate::event::Effect;

impl Brain {
    /// A worker comes, of which nothing is known.
    pub(super) fn joined(&mut self, now: Instant, url: &str, effects: &mut Vec<Effect>) {
        let vacant = self.vacant_number(now).and_then(|it| self.fleet.add_at(it, url));
        let worker = vacant.unwrap_or_else(|| self.fleet.add(url));
        self.cache.join(worker);
        self.forecast.forget(worker);
        debug_assert!(self.is_unspoken_of(worker), "{worker} was given away too soon");
        self.tell_joined(worker);
        self.hear_early_pins();
        effects.push(Effect::Watch { worker });
    }

    /// A worker goes. What is under way there may end, and is not counted anywhere any more.
    pub(super) fn gone(&mut self, now: Instant, worker: WorkerId, effects: &mut Vec<Effect>) {
        let key = self.fleet.worker(worker).map(|it| it.key);
        if !self.fleet.remove(now, worker) {
            return;
        }
        key.into_iter().for_each(|it| self.tell_gone(it));
        self.cache.leave(worker);
        self.prefixes.forget(worker);
        self.fleet_changed = true;
        effects.push(Effect::Forget { worker });
    }

    /// The lowest number that nobody speaks of any more.
    fn vacant_number(&self, now: Instant) -> Option<WorkerId> {
        let has_rested = |since: Instant| now.since(since) >= self.settings.quarantine;
        let mut rested: BTreeSet<WorkerId> =
            self.fleet.vacant().filter(|it| has_rested(it.1)).map(|it| it.0).collect();
        // Workers join seldom: to look through all requests then is cheaper than to count with each of them.
        for open in self.open.values() {
            if rested.is_empty() {
                return None;
            }
            for worker in open.speaks_of() {
                rested.remove(&worker);
            }
        }
        rested.first().copied()
    }

    /// Whether nothing is counted for this number.
    fn is_unspoken_of(&self, worker: WorkerId) -> bool {
        self.awaited.is_clear(worker) && self.in_use.as_ref().is_none_or(|it| it.is_clear(worker))
    }
}

impl PendingRequest {
    /// The workers that what becomes of it may still be about.
    fn speaks_of(&self) -> impl Iterator<Item = WorkerId> {
        let placement = self.placement.iter().map(|it| it.worker);
        let awaits = self.line.awaits.iter().map(|it| it.0);
        placement.chain(awaits).chain(self.tried.iter().copied()).chain(self.recalled.iter().copied())
    }
}

//! Which id a worker gets when it joins, and what becomes of the id when it leaves.
//!
//! Everything known of workers is in tables by id, so where workers come and go for months an id must be reused. That is
//! safe once no event can name the last owner any more. Pending requests are checked: none may be placed at the id, have
//! it reserved, have failed there or have been recalled from there, since each of those may still report about the old
//! worker. Work under way outside the brain (a probe about to report, the last KV events) is not known here, so an id
//! rests for the configured quarantine first.
//!
//! The lowest id is reused first, which keeps the tables short: there are never more ids than workers at one time, plus
//! those that left within the quarantine or with requests that have not ended.

use std::collections::BTreeSet;

use maitre_base::{Instant, WorkerId};

use super::{Brain, Parts};
use crate::event::Effect;
use crate::observer::Fact;

impl Brain {
    /// A worker joins, of which nothing is known.
    pub(super) fn worker_joined(&mut self, now: Instant, url: &str, effects: &mut Vec<Effect>) {
        let vacant = self.vacant_id(now);
        let parts = &mut self.parts;
        let vacant = vacant.and_then(|it| parts.fleet.add_at(it, url));
        let worker = vacant.unwrap_or_else(|| parts.fleet.add(url));
        parts.cache.join(worker);
        debug_assert!(parts.is_unused(worker), "{worker} was reused too soon");
        parts.observer.on(Fact::WorkerJoined { worker });
        parts.placer.apply_early_pins(&parts.fleet);
        effects.push(Effect::Watch { worker });
    }

    /// The lowest id that has rested and that no pending request names.
    fn vacant_id(&self, now: Instant) -> Option<WorkerId> {
        let has_rested = |since: Instant| now.since(since) >= self.parts.settings.quarantine;
        let mut rested: BTreeSet<WorkerId> =
            self.parts.fleet.vacant().filter(|it| has_rested(it.1)).map(|it| it.0).collect();
        // Workers join seldom: a scan over all requests then is cheaper than a count with each of them.
        for request in self.pending.values() {
            if rested.is_empty() {
                return None;
            }
            for worker in request.workers_named() {
                rested.remove(&worker);
            }
        }
        rested.first().copied()
    }
}

impl Parts {
    /// A worker leaves. Requests under way there may end, and no longer count anywhere.
    pub(super) fn worker_left(&mut self, now: Instant, worker: WorkerId, effects: &mut Vec<Effect>) {
        let Some(key) = self.fleet.worker(worker).map(|it| it.key) else { return };
        if !self.fleet.remove(now, worker) {
            return;
        }
        self.observer.on(Fact::WorkerLeft { worker, key });
        self.cache.leave(worker);
        self.placer.forget_sent(worker);
        self.programs.worker_gone(worker);
        self.scheduler.fleet_changed = true;
        effects.push(Effect::Forget { worker });
    }

    /// Whether nothing is counted under this id.
    fn is_unused(&self, worker: WorkerId) -> bool {
        let in_use = self.placer.in_use.as_ref();
        self.scheduler.reservations().is_clear(worker) && in_use.is_none_or(|it| it.is_clear(worker))
    }
}

//! Requests whose model has no worker, in a fleet that starts workers for them: they wait for the first one.
//!
//! Only where `scaling.idle` lets a fleet go to none. A request counts as demand from its arrival, which is what starts the
//! worker. It waits in the queue of its model like any other, within the limits of its class, until its deadline or for
//! `scaling.first_worker`.

use maitre_base::{Instant, RequestId};
use maitre_fleet::{ModelId, Wanted};

use super::{Brain, Parts};
use crate::event::{Effect, Refusal};
use crate::request::PendingRequest;
use crate::scheduler::pool_of;

impl Brain {
    /// Whether requests can come, though there may be no worker: they would wait for the first one.
    pub fn awaits_requests(&self) -> bool {
        let Parts { settings, fleet, .. } = &self.parts;
        settings.waits_for_first_worker() && fleet.expected_models().next().is_some()
    }

    pub(super) fn waits_for_first_worker(&self, id: RequestId) -> bool {
        self.pending.get(&id.0).is_some_and(|it| self.parts.waits_for_first_worker(it))
    }

    /// Queues a request for which there is no worker.
    pub(super) fn wait_for_first_worker(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let wait = self.parts.settings.scaling.first_worker;
        let Some(request) = self.pending.get_mut(&id.0) else { return };
        // What its class allows is meant for a queue that moves.
        let latest = request.deadline.unwrap_or(request.arrived + wait);
        request.patience = Some(latest);
        if latest < now {
            self.refuse_without_first_worker(now, id, effects);
        } else if self.join(now, id, effects) {
            effects.push(Effect::Wait { request: id });
        }
    }

    /// The last worker has left requests in the queue. They wait for the next one like those that come now.
    pub(super) fn wait_on_without_worker(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Parts { settings, .. } = &self.parts;
        if !settings.waits_for_first_worker() {
            return;
        }
        let latest =
            |it: &PendingRequest| Some(it.deadline.unwrap_or(it.arrived + settings.scaling.first_worker));
        let waits = |it: &&PendingRequest| {
            it.is_waiting() && it.patience != latest(it) && self.parts.waits_for_first_worker(it)
        };
        let mut kept: Vec<(Instant, RequestId)> =
            self.pending.values().map(AsRef::as_ref).filter(waits).map(|it| (it.arrived, it.id)).collect();
        kept.sort_unstable();
        for (_, id) in kept {
            let Some(request) = self.pending.get_mut(&id.0) else { continue };
            request.waited = request.waited_by(now);
            self.parts.leave_queue(request);
            self.wait_for_first_worker(now, id, effects);
        }
    }

    /// The time in the queue is over, and no worker has come.
    pub(super) fn refuse_without_first_worker(
        &mut self,
        now: Instant,
        id: RequestId,
        effects: &mut Vec<Effect>,
    ) {
        match self.pending.get(&id.0).is_some_and(|it| it.deadline.is_some()) {
            true => self.refuse_late(now, id, effects),
            false => self.refuse(now, id, Refusal::NoWorker, effects),
        }
    }

    /// Requests wait under the name that they know, until a worker shows that it is another name of a model: then they
    /// wait with all others of that model.
    pub(super) fn admit_where_models_are(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let Parts { settings, fleet, .. } = &self.parts;
        if !settings.waits_for_first_worker() {
            return;
        }
        let is_elsewhere =
            |it: &&PendingRequest| it.is_waiting() && pool_of(it.wanted, fleet) != it.pool && is_untried(it);
        let mut moved: Vec<(Instant, RequestId)> = self
            .pending
            .values()
            .map(AsRef::as_ref)
            .filter(is_elsewhere)
            .map(|it| (it.arrived, it.id))
            .collect();
        moved.sort_unstable();
        for (_, id) in moved {
            let Brain { pending, parts, .. } = self;
            let Some(request) = pending.get_mut(&id.0) else { continue };
            request.waited = request.waited_by(now);
            parts.leave_queue(request);
            request.pool = pool_of(request.wanted, &parts.fleet);
            self.admit(now, id, Refusal::NoWorker, effects);
        }
    }
}

impl Parts {
    /// The model that a request wants, if workers may be started for it. Without a name, the only one that there is.
    pub(super) fn expected(&self, model: Option<&str>) -> Option<ModelId> {
        if !self.settings.waits_for_first_worker() {
            return None;
        }
        model.map_or_else(|| self.fleet.only_expected(), |name| self.fleet.expected(name))
    }

    /// Whether no worker may take this request now, and one may be started for it.
    pub(super) fn waits_for_first_worker(&self, request: &PendingRequest) -> bool {
        self.settings.waits_for_first_worker()
            && matches!(request.wanted, Wanted::Model(_))
            && is_untried(request)
            && !self.fleet.anyone_takes(request.wanted, request.barred())
    }
}

/// Whether it may go to any worker. One that failed somewhere has been answered for; one that may go to some workers only
/// cannot wait for others.
fn is_untried(request: &PendingRequest) -> bool {
    request.tried.is_empty() && request.only.is_none()
}

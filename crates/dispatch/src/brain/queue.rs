//! Requests that wait: a newcomer joins the queue, the queue is served when there is room, a request is recalled or
//! refused.
//!
//! A request whose strategy prefers a busy worker waits for that worker; others wait for any. When a worker has room,
//! the next request that waits for it goes there; the next that waits for any is looked up afresh. If there is neither
//! and the worker is idle, the first of those that wait for other workers may come instead.

use std::time::Duration;

use maitre_base::{Instant, RequestId, WorkerId};

use super::attempt::{Looking, Preference, Tried};
use super::{Brain, Context, Freed};
use crate::event::{Effect, Refusal};
use crate::observer::Fact;
use crate::observer::decision::AttemptOutcome;
use crate::request::{PendingRequest, PoolId};
use crate::reservations::Reservations;
use crate::scheduler::pool::NotQueued;
use crate::scheduler::{TurnAt, Whose, pool_of, recall};

/// The requests that may go next, in order, the first of them that is to be tried, and the worker that has room for it; none
/// for a newcomer.
#[derive(Clone, Copy)]
struct ServeOrder<'a> {
    next: &'a [RequestId],
    from: usize,
    at: Option<WorkerId>,
}

impl Brain {
    /// Places a request, queues it or refuses it.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        id: RequestId,
        otherwise: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        self.take_back_for(now, id, effects);
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get(&id.0) else { return };
        let settings = &parts.settings.queue;
        let context = Context { now, settings, fleet: &parts.fleet };
        let must_queue = settings.enabled && parts.scheduler.must_queue(context, request);
        // A request that failed at every worker that could take it waits for none.
        if must_queue && parts.fleet.anyone_takes(request.wanted, request.barred()) {
            if self.join(now, id, effects) {
                self.serve_newcomer(now, id, effects);
                self.announce_wait(id, effects);
            }
            return;
        }
        match self.try_or_recall(now, id, Looking::Newcomer, effects) {
            Tried::Placed => {}
            Tried::Busy(preference) => {
                if self.join(now, id, effects) {
                    if let Some(it) = preference {
                        self.reserve(now, id, it);
                    }
                    self.announce_wait(id, effects);
                }
            }
            Tried::Late => self.refuse_late(now, id, effects),
            Tried::NoWorker if self.waits_for_first_worker(id) => {
                self.wait_for_first_worker(now, id, effects)
            }
            Tried::NoWorker => self.refuse(now, id, otherwise, effects),
        }
    }

    /// A request arrives. Requests that had nothing to yield to went to their workers without limit; if they have to yield
    /// to this one, those above the limit come back, the last to be placed first.
    fn take_back_for(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get(&id.0).filter(|_| parts.settings.queue.enabled) else { return };
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        let Some(highest) = parts.scheduler.arrived(context, request) else { return };
        let pool = request.pool;
        // A request with a deadline of its own has yielded from the start.
        let yields = |it: &PendingRequest| it.pool == pool && it.class >= highest && it.deadline.is_none();
        for placed in recall::awaiting_first_token(&self.pending, yields).into_values() {
            for it in placed {
                let parts = &self.parts;
                let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
                let request = self.pending.get(&it.request.0);
                if !request.is_some_and(|it| parts.scheduler.is_surplus(context, it)) {
                    break;
                }
                self.recall(now, it.request, effects);
            }
        }
    }

    fn reserve(&mut self, now: Instant, id: RequestId, preference: Preference) {
        if let Some(request) = self.pending.get_mut(&id.0) {
            self.parts.reserve(now, request, preference);
        }
    }

    fn try_or_recall(
        &mut self,
        now: Instant,
        id: RequestId,
        looking: Looking<'_>,
        effects: &mut Vec<Effect>,
    ) -> Tried {
        let Some(request) = self.pending.get_mut(&id.0) else { return Tried::NoWorker };
        let model = request.pool.model();
        let tried = match self.parts.try_place(now, request, looking, effects) {
            Tried::Late => self.place_by_recall(now, id, looking, effects),
            tried => tried,
        };
        match tried {
            // Before rates are learned, a deadline is no reason to refuse: these engines may be faster than usual ones.
            Tried::Late if !self.parts.fleet.model_rates(model).rates().is_learned() => Tried::Busy(None),
            tried => tried,
        }
    }

    /// Queues a request. Returns whether it is in the queue now; otherwise it was refused.
    pub(super) fn join(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) -> bool {
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get_mut(&id.0) else { return false };
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        match parts.scheduler.join(context, request) {
            Ok(displaced) => {
                if let Some(other) = displaced {
                    self.refuse_full(now, other, effects);
                }
                true
            }
            Err(NotQueued::Late) => {
                self.refuse_late(now, id, effects);
                false
            }
            Err(NotQueued::Full) => {
                self.refuse_full(now, id, effects);
                false
            }
        }
    }

    fn announce_wait(&self, id: RequestId, effects: &mut Vec<Effect>) {
        if self.pending.get(&id.0).is_some_and(|it| it.is_waiting()) {
            effects.push(Effect::Wait { request: id });
        }
    }

    /// Places the requests that can go, after an event that may have made room.
    pub(super) fn serve_queues(&mut self, now: Instant, freed: Freed, effects: &mut Vec<Effect>) {
        if self.parts.scheduler.waiting() == 0 {
            return;
        }
        for id in self.parts.scheduler.expire(now) {
            match self.waits_for_first_worker(id) {
                true => self.refuse_without_first_worker(now, id, effects),
                false => self.refuse_late(now, id, effects),
            }
        }
        match freed {
            Freed::Nowhere => {}
            Freed::At(worker) => self.serve_at(now, worker, effects),
            Freed::Anywhere => {
                self.parts.scheduler.served_all(now);
                let parts = &self.parts;
                let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
                for worker in parts.scheduler.workers_with_room(context) {
                    self.serve_at(now, worker, effects);
                }
            }
        }
    }

    /// This worker may have room: requests that it can serve go, in order, as long as one of the first finds a worker.
    fn serve_at(&mut self, now: Instant, worker: WorkerId, effects: &mut Vec<Effect>) {
        let parts = &self.parts;
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        let pool = PoolId::of(parts.fleet.base_of(worker));
        let has_queue = parts.scheduler.pool(pool).is_some_and(|it| !it.queue.is_empty());
        if has_queue && parts.scheduler.has_room_at(context, worker) {
            self.serve(now, pool, worker, effects);
        }
    }

    fn serve(&mut self, now: Instant, pool: PoolId, at: WorkerId, effects: &mut Vec<Effect>) {
        let mut next = std::mem::take(&mut self.next);
        while self.serve_turn(now, TurnAt { pool, worker: at, whose: Whose::Own }, &mut next, effects)
            || self.serve_turn(now, TurnAt { pool, worker: at, whose: Whose::Others }, &mut next, effects)
        {
        }
        self.next = next;
    }

    /// Places one request. Returns whether any left the queue.
    fn serve_turn(
        &mut self,
        now: Instant,
        turn: TurnAt,
        next: &mut Vec<RequestId>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Brain { pending, parts, .. } = self;
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        let at = turn.worker;
        let Some(worker) = parts.fleet.worker(at) else { return false };
        // Moving requests between busy workers loses more cached prefixes than it saves time: a fifth of the hits of a
        // chat trace past saturation.
        if turn.whose == Whose::Others && !worker.is_idle() {
            return false;
        }
        if !parts.scheduler.has_room_at(context, at) {
            return false;
        }
        // Requests for other workers neither go here nor keep others from it.
        let takes = |it: &PendingRequest| worker.serves(it.wanted) && !it.barred().bars(at);
        parts.scheduler.next_at(
            context,
            turn,
            |id| pending.get(&id.0).map(AsRef::as_ref).filter(|it| takes(it)),
            next,
        );
        self.serve_first(now, ServeOrder { next, from: 0, at: Some(at) }, effects)
    }

    /// A request has joined that waits for any worker. Nothing has changed for those before it, so it alone may go, if it
    /// is among the first.
    fn serve_newcomer(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let mut next = std::mem::take(&mut self.next);
        if let Some(place) = self.place_in_queue(now, id, &mut next) {
            self.serve_first(now, ServeOrder { next: &next[..=place], from: place, at: None }, effects);
        }
        self.next = next;
    }

    fn place_in_queue(&mut self, now: Instant, id: RequestId, next: &mut Vec<RequestId>) -> Option<usize> {
        let Brain { pending, parts, .. } = self;
        let request = pending.get(&id.0)?;
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        let pool = parts.scheduler.pool_mut(request.pool)?;
        // Requests for other models may be waiting for other workers.
        let is_alike = |it: RequestId| {
            let it = pending.get(&it.0).filter(|it| it.wanted == request.wanted && it.only == request.only);
            it.is_some_and(|it| it.reservation().is_none())
        };
        pool.next(context, is_alike, next);
        next.iter().position(|&it| it == id)
    }

    /// Places the first of these requests that finds a worker, or refuses one that never will. Returns whether any left
    /// the queue.
    fn serve_first(&mut self, now: Instant, turn: ServeOrder<'_>, effects: &mut Vec<Effect>) -> bool {
        let ServeOrder { next, from, at } = turn;
        // Each request accounts for the reservations of those before it, and not of those behind.
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        let mut has_left = false;
        for (place, &id) in next.iter().enumerate().skip(from) {
            let looking = match at {
                Some(at) => Looking::Queued { at, ahead: &ahead },
                None => Looking::Newcomer,
            };
            match self.try_or_recall(now, id, looking, effects) {
                Tried::Placed => {
                    let Brain { pending, parts, .. } = self;
                    if let Some(request) = pending.get_mut(&id.0) {
                        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
                        parts.scheduler.went(context, request, &next[..place]);
                        has_left = true;
                    }
                }
                Tried::Late => {
                    self.refuse_late(now, id, effects);
                    has_left = true;
                }
                Tried::NoWorker => {
                    self.refuse_without_worker(now, id, effects);
                    has_left = true;
                }
                Tried::Busy(preference) => self.keep_waiting(now, id, preference, &mut ahead),
            }
            if has_left {
                break;
            }
        }
        self.ahead = ahead;
        has_left
    }

    /// A request that was tried stays in the queue. One that waited for any worker waits for the one it prefers now.
    fn keep_waiting(
        &mut self,
        now: Instant,
        id: RequestId,
        preference: Option<Preference>,
        ahead: &mut Reservations,
    ) {
        let Some(request) = self.pending.get_mut(&id.0) else { return };
        if let (Some(preference), None) = (preference, request.reservation()) {
            self.parts.reserve(now, request, preference);
        }
        if let Some(reservation) = request.reservation() {
            ahead.add(request.class, reservation);
        }
    }

    /// Recalls requests of lower classes so that this one meets its deadline, and places it.
    fn place_by_recall(
        &mut self,
        now: Instant,
        id: RequestId,
        looking: Looking<'_>,
        effects: &mut Vec<Effect>,
    ) -> Tried {
        let settings = &self.parts.settings.queue;
        if !settings.recall {
            return Tried::Late;
        }
        let snapshots = &self.parts.placer.survey().snapshots;
        let Some(victims) = recall::victims(now, id, &self.pending, snapshots, settings.caps()) else {
            return Tried::Late;
        };
        for victim in victims {
            self.recall(now, victim, effects);
        }
        let Some(request) = self.pending.get_mut(&id.0) else { return Tried::NoWorker };
        self.parts.try_place(now, request, looking, effects)
    }

    /// Takes a request from its worker and puts it back in the queue, at its old place.
    fn recall(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get_mut(&id.0) else { return };
        let Some(attempt) = parts.release_placement(request) else { return };
        parts.attempt_ended(now, &attempt, AttemptOutcome::Recalled, None);
        request.recalled.push(attempt.worker);
        // What its class allows was for the wait that had ended when it was placed.
        request.patience = request.deadline;
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        parts.scheduler.refund(context, request, &attempt);
        effects.push(Effect::Recall { request: id, worker: attempt.worker });
        self.join(now, id, effects);
    }

    /// Refuses queued requests that can never go: the workers that could take them left, or serve something else.
    pub(super) fn refuse_stranded(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.admit_where_models_are(now, effects);
        self.wait_on_without_worker(now, effects);
        let waits = |it: &PendingRequest| self.parts.waits_for_first_worker(it);
        let fleet = &self.parts.fleet;
        let is_stranded = |it: &&PendingRequest| {
            it.is_waiting()
                && (pool_of(it.wanted, fleet) != it.pool || !fleet.anyone_may_take(it.wanted, it.barred()))
                && !waits(it)
        };
        let mut stranded: Vec<RequestId> =
            self.pending.values().map(AsRef::as_ref).filter(is_stranded).map(|it| it.id).collect();
        stranded.sort_unstable();
        stranded.into_iter().for_each(|it| self.refuse_without_worker(now, it, effects));
    }

    /// No worker is left for it: because its last attempt failed, if it had one.
    fn refuse_without_worker(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let failure = self.pending.get(&id.0).and_then(|it| it.failure);
        self.refuse(now, id, Refusal::without_worker(failure), effects);
    }

    pub(super) fn refuse_late(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let retry_after = self.retry_after(now, id);
        self.refuse(now, id, Refusal::Deadline { retry_after }, effects);
    }

    fn refuse_full(&mut self, now: Instant, id: RequestId, effects: &mut Vec<Effect>) {
        let retry_after = self.retry_after(now, id);
        self.refuse(now, id, Refusal::QueueFull { retry_after }, effects);
    }

    fn retry_after(&mut self, now: Instant, id: RequestId) -> Duration {
        let Brain { pending, parts, .. } = self;
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        let request = pending.get(&id.0);
        request.map_or(Duration::ZERO, |it| parts.scheduler.retry_after(context, it))
    }

    /// Refuses a request. One of the next in the queue may be gone already: while those before it were tried, it had to
    /// make room for a recalled request.
    pub(super) fn refuse(
        &mut self,
        now: Instant,
        id: RequestId,
        refusal: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        self.give_back_allowance(id);
        let Some(mut request) = self.pending.remove(&id.0) else { return };
        effects.push(Effect::Refuse { request: id, refusal });
        self.parts.call_ended(now, &request, None);
        self.parts.release(&mut request);
    }

    /// A request that is refused costs its tenant nothing if no worker has seen it.
    pub(super) fn give_back_allowance(&mut self, id: RequestId) {
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get(&id.0) else { return };
        if !parts.settings.queue.enabled || !request.tried.is_empty() {
            return;
        }
        parts.scheduler.allowances.give_back(request.tenant, request.spending.taken);
        if request.spending.is_published {
            let (model, tenant) = (parts.model_hash_of(request), request.tenant);
            parts.observer.on(Fact::Unspent { model, tenant, tokens: request.tokens() });
        }
    }
}

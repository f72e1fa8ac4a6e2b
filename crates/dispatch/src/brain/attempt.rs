//! The life of an attempt: a request is placed at a worker, its first token comes, it ends, fails or is released.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, Promise, RequestId, Tokens, WorkerId};
use maitre_fleet::estimate::{Answers, Counted};
use maitre_fleet::fleet::AdapterUse;
use maitre_fleet::{Evidence, WorkerSnapshot};
use maitre_policy::{Fetch, Why};

use super::pull::ready_at;
use super::{Brain, Context, Parts};
use crate::cache::Held;
use crate::capacity::is_long;
use crate::event::{Effect, Failure, Form, Placement, Refusal};
use crate::observer::decision::AttemptOutcome;
use crate::observer::ring::End;
use crate::observer::{Fact, Placed, Ticket};
use crate::placer::pull::{Arriving, Coming};
use crate::placer::split::{PrefillChoice, Split};
use crate::placer::{Mode, Picked, Query, Rules, WorkerChoice};
use crate::programs::view::HoldEnd;
use crate::request::{Attempt, AttemptOrder, PendingRequest, Pull, RequestState, StreamProgress};
use crate::reservations::{Reservation, Reservations};

/// How long a request waits at least for a worker that takes no request: it may be stuck. It waits three times as long as
/// its turn should take, if that is longer: a prompt of 100,000 tokens keeps a worker busy for ten seconds. While the
/// worker takes those before it, its turn will come. With ten seconds for all, a chat trace past saturation lost a fifth
/// of its hits.
const RESERVED_MIN: Duration = Duration::from_secs(10);

/// What came of looking for a worker.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tried {
    Placed,
    /// Every worker is busy, or the one that the strategy prefers to all free ones.
    Busy(Option<Preference>),
    /// The first token would come too late from every worker.
    Late,
    NoWorker,
}

/// The busy worker that a strategy prefers, and what the request would cost there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Preference {
    pub(super) worker: WorkerId,
    why: Why,
    promise: Promise,
    is_kept: bool,
    /// Until its turn there, as expected.
    wait_seconds: f64,
}

/// Which request looks for a worker.
#[derive(Clone, Copy)]
pub(super) enum Looking<'a> {
    /// One that has just arrived: all reservations are before it.
    Newcomer,
    /// One whose turn in the queue has come, because this worker has room. Only these reservations are before it.
    Queued { at: WorkerId, ahead: &'a Reservations },
}

impl Parts {
    /// Looks for a worker, and places the request there if it has room.
    pub(super) fn try_place(
        &mut self,
        now: Instant,
        request: &mut PendingRequest,
        looking: Looking<'_>,
        effects: &mut Vec<Effect>,
    ) -> Tried {
        debug_assert!(
            self.unwritten.is_none(),
            "the survey of a record is used again before its list is written"
        );
        // After an interruption the list of tried workers begins anew.
        request.ask.attempt = request.tried.len() as u32 + request.interruptions.saturating_sub(1);
        let context = Context { now, settings: &self.settings.queue, fleet: &self.fleet };
        let (at, ahead) = match looking {
            Looking::Newcomer => (None, None),
            Looking::Queued { at, ahead } => (Some(at), Some(ahead)),
        };
        let rules = self.scheduler.rules(context, request, at);
        let (mut world, placer) = self.world(now);
        world.reservations = ahead.unwrap_or(world.reservations);
        let choice = placer.choose(&mut world, &request.query(), rules, Mode::Commit);
        if let Some((picked, session)) = choice.picked().and_then(|it| Some((it, it.pinned?))) {
            self.session_pinned(request, session, picked);
        }
        match choice {
            // Those that wait for this worker go first. None of them could go when it last had room, so this one waits
            // until something changes there, at most for a pulse.
            WorkerChoice::Place(picked) if ahead.is_none() && !self.is_unclaimed(request, picked) => {
                Tried::Busy(Some(self.preference(request, picked)))
            }
            WorkerChoice::Place(picked) => {
                self.release_reservation(request);
                self.place(now, request, picked, effects);
                Tried::Placed
            }
            WorkerChoice::Reserve(picked) => Tried::Busy(Some(self.preference(request, picked))),
            WorkerChoice::Wait => Tried::Busy(None),
            WorkerChoice::TooLate => Tried::Late,
            WorkerChoice::NoWorker => Tried::NoWorker,
        }
    }

    /// Whether no request of this class or above waits for the picked worker.
    pub(super) fn is_unclaimed(&self, request: &PendingRequest, picked: Picked) -> bool {
        let worker = self.placer.survey().snapshots[picked.place].worker;
        self.scheduler.reservations().at(worker, request.class).requests == 0
    }

    fn preference(&self, request: &PendingRequest, picked: Picked) -> Preference {
        let survey = self.placer.survey();
        let worker = survey.snapshots[picked.place].worker;
        Preference {
            worker,
            why: picked.pick.why,
            promise: survey.promise_at(&request.ask, picked.place),
            is_kept: survey.held.get(picked.place).is_none_or(|it| it.tokens > Tokens::ZERO),
            wait_seconds: survey.candidates[picked.pick.index].wait_seconds,
        }
    }

    /// A queued request waits for this worker: later requests see its work and its prompt as if they were there.
    pub(super) fn reserve(&mut self, now: Instant, request: &mut PendingRequest, preference: Preference) {
        self.release_reservation(request);
        let Preference { worker, why, promise, is_kept, wait_seconds } = preference;
        let is_counted = self.is_prompt_counted(request, worker);
        let prompt = request.prompt.as_ref().filter(|_| is_counted);
        let prediction = prompt.map(|it| self.cache.placed(now, worker, it));
        if let (Some(in_use), Some(prompt)) = (&mut self.placer.in_use, prompt) {
            in_use.begin(worker, prompt);
        }
        let expected = Duration::try_from_secs_f64(wait_seconds).unwrap_or_default();
        let patience = RESERVED_MIN.max(expected.saturating_mul(3));
        let reservation =
            Reservation { worker, why, promise, is_kept, since: now, patience, prediction, is_counted };
        self.scheduler.reserve(request, reservation);
    }

    fn release_reservation(&mut self, request: &mut PendingRequest) {
        let Some(reservation) = self.scheduler.release_reservation(request) else { return };
        let Reservation { worker, prediction, is_counted, .. } = reservation;
        let Some(prompt) = &request.prompt else { return };
        if let Some(prediction) = &prediction {
            self.cache.failed(worker, prompt, prediction);
        }
        if let (Some(in_use), true) = (&mut self.placer.in_use, is_counted) {
            in_use.end(worker, prompt);
        }
    }

    /// Takes a request out of the queue, if it is there.
    pub(super) fn leave_queue(&mut self, request: &mut PendingRequest) {
        self.release_reservation(request);
        self.scheduler.leave(request);
    }

    /// What the placer chooses for this request now.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        query: &Query<'_>,
        rules: Rules,
        mode: Mode,
    ) -> WorkerChoice {
        let (mut world, placer) = self.world(now);
        placer.choose(&mut world, query, rules, mode)
    }

    fn session_pinned(&mut self, request: &PendingRequest, session: u64, picked: Picked) {
        if !self.settings.shares {
            return;
        }
        let model = request.model().map_or(0, |it| self.fleet.hash_of(it));
        let worker = self.placer.survey().candidates[picked.pick.index].key;
        self.observer.on(Fact::SessionPinned { model, session, worker });
        self.placer.early_pins.forget(model, session);
    }

    /// Places the request at the picked worker and promises what it will cost there.
    pub(super) fn place(
        &mut self,
        now: Instant,
        request: &mut PendingRequest,
        picked: Picked,
        effects: &mut Vec<Effect>,
    ) {
        let split = self.split(now, request, picked);
        let picked = split.map_or(picked, |it| it.answers(picked));
        let survey = self.placer.survey();
        let snapshot = survey.snapshots[picked.place];
        let held = survey.held.get(picked.place).copied();
        let whole = survey.promise_at(&request.ask, picked.place);
        let fetch = if split.is_some() { Fetch::default() } else { survey.pulls.at(picked.place) };
        let promise = if split.is_some() { Promise { prefill: PrefillWork::ZERO, ..whole } } else { whole };
        self.scaling.placed(now, request, snapshot.prefill.plain_tokens(promise.prefill) as u64);
        let ticket = self.record(now, request, picked, split.as_ref().map(Split::choice));
        let worker = snapshot.worker;
        let is_counted = self.is_prompt_counted(request, worker);
        let prompt = request.prompt.as_ref().filter(|_| is_counted);
        let prediction = prompt.map(|it| self.cache.placed(now, worker, it));
        if let (Some(in_use), Some(prompt)) = (&mut self.placer.in_use, prompt) {
            in_use.begin(worker, prompt);
        }
        let adapter = request.model().filter(|&it| self.fleet.is_adapter(it));
        let is_long_prefill = self.promise(now, request, &snapshot, promise);
        if let Some(prompt) = prompt {
            self.observer.on(Fact::PromptPlaced { worker: snapshot.key, prompt });
        }
        if let Some(adapter) = adapter {
            self.fleet.hold_adapter(worker, adapter, AdapterUse::Begins);
        }
        let prefill_leg = split.map(|it| Box::new(self.begin_prefill_leg(now, request, &it)));
        let pull = self.begin_pull(worker, fetch);
        self.programs.placed(now, request.program, worker, &self.fleet);
        let arriving = Arriving {
            held: held.unwrap_or_default().prefix(),
            coming: pull.map_or(Coming::Computed, |_| Coming::Pulled),
            ready_at: split.is_none().then(|| ready_at(now, &snapshot, (&promise, fetch))),
        };
        self.begin_prompt(request, worker, arriving);
        request.waited = request.waited_by(now);
        request.state = RequestState::Placed(Attempt {
            worker,
            promise,
            placed_at: now,
            prefill_ahead: snapshot.prefill_ahead() + promise.prefill,
            prefill: promise.prefill,
            prediction,
            adapter,
            others: snapshot.promised.requests,
            first_token: None,
            progress: None,
            is_counted,
            is_long_prefill,
            charged: None,
            ticket,
            prefill_leg,
            pull,
        });
        effects.push(Effect::Place(Placement {
            request: request.id,
            worker,
            prefill: split.map(|it| it.prefill.worker),
            pull: self.pull_from(&snapshot, &promise, (fetch, request.form)),
            form: request.form,
            why: picked.pick.why,
            held: held.map(Held::cached),
            attempt: request.ask.attempt,
            waited: request.waited,
            deadline: request.deadline.filter(|_| request.form == Form::Stream),
            hedge_at: self
                .hedge_at(now, request, (&snapshot, promise))
                .filter(|_| split.is_none() && pull.is_none()),
        }));
    }

    /// Promises to a worker what the request will cost there. Returns whether its prefill is a long one.
    fn promise(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        snapshot: &WorkerSnapshot,
        promise: Promise,
    ) -> bool {
        let worker = snapshot.worker;
        if request.order == AttemptOrder::First {
            self.scheduler.hedge_budget.earn(promise.prefill.tokens);
        }
        self.fleet.promise(now, worker, promise);
        self.observer.on(Fact::PromiseChanged { worker });
        self.scheduler.placed(now, request, worker, snapshot.prefill.seconds(promise.prefill));
        let is_long_prefill = is_long(snapshot, promise.prefill);
        if is_long_prefill {
            self.scheduler.long_prefills_mut().begin(now, worker, request.class, promise.prefill.tokens);
        }
        is_long_prefill
    }

    /// Shows a placement to the observer, before anything is promised.
    fn record(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        picked: Picked,
        prefill: Option<PrefillChoice>,
    ) -> Ticket {
        if !self.observer.is_watching() {
            return Ticket::default();
        }
        let query = request.query();
        self.placer.reveal(&mut self.cache, &query);
        let view = self.placer.view(&self.cache, self.scheduler.reservations(), &query);
        let (tenant, waited) = (request.tenant, request.waited_by(now));
        let program = self.programs.step(request.program, request.held);
        let request = request.id;
        let placed = Placed { now, request, query, tenant, waited, picked, prefill, view, program };
        // A queue might use the survey again at once.
        if !(self.may_write_later && picked.was_prepared && self.scheduler.waiting() == 0) {
            return self.observer.placed(&placed);
        }
        let (ticket, unwritten) = self.observer.unwritten(&placed);
        self.unwritten = unwritten;
        ticket
    }

    /// Whether the cache counts on this prompt at its worker. A prompt that its own strategy does not look at counts for
    /// the shadows, unless another model's strategy uses caches: that one must not see more than it would without shadows.
    fn is_prompt_counted(&self, request: &PendingRequest, worker: WorkerId) -> bool {
        let sees_caches = || self.placer.sees_caches(&request.query());
        let has_cache = self.fleet.handoff(worker).caches_prefixes;
        request.prompt.is_some() && has_cache && (sees_caches() || !self.settings.needs_in_charge().cache)
    }

    /// Takes a request from its worker: its promise ends, and so does the prediction of what its prefill would leave in
    /// the cache, unless that is done.
    pub(super) fn release_placement(&mut self, request: &mut PendingRequest) -> Option<Attempt> {
        let mut attempt = request.take_attempt()?;
        self.end_prefill_leg(request, &mut attempt);
        self.end_pull(request.id, &mut attempt);
        self.scheduler.prefill_ended(request.class, &mut attempt);
        let worker = attempt.worker;
        if let (Some(prompt), Some(prediction), false) =
            (&request.prompt, &attempt.prediction, attempt.promise.prefilled)
        {
            self.cache.failed(worker, prompt, prediction);
        }
        if let (Some(in_use), Some(prompt), true) =
            (&mut self.placer.in_use, &request.prompt, attempt.is_counted)
        {
            in_use.end(worker, prompt);
        }
        self.placer.readers.end(request.id);
        self.scheduler.released(request);
        self.fleet.release(worker, attempt.promise);
        self.promise_changed(worker);
        if let Some(adapter) = attempt.adapter {
            self.fleet.hold_adapter(worker, adapter, AdapterUse::Ends);
        }
        Some(attempt)
    }

    pub(super) fn attempt_ended(
        &mut self,
        now: Instant,
        attempt: &Attempt,
        outcome: AttemptOutcome,
        counted: Option<Counted>,
    ) {
        let end = End { outcome, total: now.since(attempt.placed_at), counted };
        self.observer.on(Fact::AttemptEnded { ticket: attempt.ticket, end });
    }

    /// Ends what a request has in the queue or at a worker.
    pub(super) fn release(&mut self, request: &mut PendingRequest) -> Option<Attempt> {
        self.leave_queue(request);
        self.release_placement(request)
    }

    /// The first token came from this worker. Returns whether the request is placed there.
    fn begin_response(&mut self, now: Instant, worker: WorkerId, request: &mut PendingRequest) -> bool {
        // A request whose recall came too late has its response: it leaves the queue, or the worker it was sent to since.
        self.leave_queue(request);
        if request.worker().is_some_and(|it| it != worker)
            && let Some(attempt) = self.release_placement(request)
        {
            self.attempt_ended(now, &attempt, AttemptOutcome::Recalled, None);
        }
        let (id, form, answers, class) = (request.id, request.form, request.answers, request.class);
        let is_moved = request.moved.is_some();
        let RequestState::Placed(attempt) = &mut request.state else { return false };
        self.fleet.prefilled(now, worker, &mut attempt.promise);
        if attempt.is_long_prefill {
            let prefills = self.scheduler.long_prefills_mut();
            prefills.prefilled(now, attempt.worker, attempt.placed_at, attempt.prefill.tokens);
        }
        self.scheduler.prefill_ended(class, attempt);
        self.end_legs(now, request.prompt.as_ref(), attempt);
        self.end_pull(id, attempt);
        if let (Some(prompt), Some(prediction)) = (&request.prompt, &attempt.prediction) {
            self.cache.prefilled(now, worker, prompt, prediction);
            if let Some(sent) = &mut self.placer.sent {
                sent.record(worker, prompt);
            }
        }
        self.observer.on(Fact::PromiseChanged { worker });
        // A response in one piece tells when it ended, not when it began.
        if form == Form::Stream && answers != Answers::NONE && !is_moved {
            let worker_now = self.fleet.worker(worker);
            let (requests, prefilled) =
                worker_now.map_or((0, Tokens::ZERO), |it| (it.promised_by_all().work.requests, it.prefilled));
            attempt.first_token = Some((now, requests));
            attempt.progress = Some(StreamProgress { at: now, pieces: 1, requests, prefilled });
            let took = now.since(attempt.placed_at);
            let leg = attempt.prefill_leg.as_deref();
            if let Some(deadline) = self.settings.split.first_token_deadline() {
                self.placer.late_splits.learn(leg.is_some_and(|it| now.since(it.placed_at) > deadline));
            }
            match (leg, attempt.pull) {
                (Some(leg), _) => self.learn_transfer(now, worker, leg),
                (None, Some(pull)) => self.learn_pull(now, attempt, pull),
                (None, None) => self.fleet.learn_first_token(now, worker, attempt.prefill_ahead, took),
            }
            self.observer.on(Fact::FirstToken { ticket: attempt.ticket, worker, took });
        }
        true
    }
}

impl Brain {
    pub(super) fn first_token(
        &mut self,
        now: Instant,
        request: RequestId,
        worker: WorkerId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(request) = self.pending.get_mut(&request.0) else { return };
        if self.parts.begin_response(now, worker, request) {
            self.parts.see(now, worker, Evidence::Answered, effects);
        }
    }

    pub(super) fn response_begun(&mut self, request: RequestId) {
        if let Some(request) = self.pending.get_mut(&request.0) {
            request.has_response = true;
        }
    }

    /// Responses in one piece do not say when their prefill is done: it counts as done when it should be.
    pub(super) fn presume_prefilled(&mut self, now: Instant) {
        for request in self.pending.values_mut().filter(|it| it.form == Form::Whole) {
            let class = request.class;
            let Some(attempt) = request.attempt_mut().filter(|it| !it.promise.prefilled) else { continue };
            if attempt.prefill_leg.as_ref().is_some_and(|it| it.answered.is_none()) {
                continue;
            }
            let Some(worker) = self.parts.fleet.worker(attempt.worker) else { continue };
            let expected = worker.rates.prefill.at(attempt.prefill_ahead);
            if now.since(attempt.placed_at).as_secs_f64() >= expected {
                self.parts.fleet.prefilled(now, attempt.worker, &mut attempt.promise);
                self.parts.scheduler.prefill_ended(class, attempt);
                self.parts.promise_changed(attempt.worker);
            }
        }
    }

    pub(super) fn finished(
        &mut self,
        now: Instant,
        request: RequestId,
        counted: Option<Counted>,
        pieces: u32,
    ) {
        let Some(mut request) = self.pending.remove(&request.0) else { return };
        self.parts.learn_step_time(now, &mut request, pieces);
        self.parts.call_ended(now, &request, counted);
        if let Some(attempt) = self.parts.release(&mut request) {
            self.parts.attempt_ended(now, &attempt, AttemptOutcome::Answered, counted);
            self.parts.fleet.answer_completed(attempt.worker);
            self.parts.learn_from(now, (&request, &attempt), counted, pieces);
        }
        let estimate = request.model().and_then(|it| self.parts.fleet.estimate_mut(it));
        if let (Some(estimate), Some(counted)) = (estimate, counted) {
            estimate.learn(request.size, counted, request.answers);
        }
    }

    /// A request ended without a whole response.
    pub(super) fn ended(
        &mut self,
        now: Instant,
        request: RequestId,
        outcome: AttemptOutcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(mut request) = self.pending.remove(&request.0) else { return };
        if outcome == AttemptOutcome::Left {
            self.parts.programs.count_lost(now, request.id, HoldEnd::Disconnected);
        }
        self.parts.call_ended(now, &request, None);
        let Some(attempt) = self.parts.release(&mut request) else { return };
        self.parts.attempt_ended(now, &attempt, outcome, None);
        match outcome {
            AttemptOutcome::Declined => self.parts.see(now, attempt.worker, Evidence::Answered, effects),
            AttemptOutcome::BrokeOff => self.parts.see(now, attempt.worker, Evidence::Broke, effects),
            _ => {}
        }
    }

    /// The attempt under way failed: the request is tried elsewhere, queued or refused.
    pub(super) fn retry_or_refuse(
        &mut self,
        now: Instant,
        (id, worker): (RequestId, WorkerId),
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        let in_flight = self.pending.len();
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get_mut(&id.0) else { return };
        let is_alone = parts.is_alone(request);
        let Some(attempt) = parts.release_placement(request) else { return };
        parts.attempt_ended(now, &attempt, AttemptOutcome::Failed, None);
        // Either side of a transfer may be at fault. The one that answers can still serve the request alone.
        match (&attempt.prefill_leg, attempt.pull) {
            (Some(leg), _) if failure == Failure::Handoff => {
                parts.fleet.handoff_failed(now, leg.worker);
                request.tried.push(leg.worker);
            }
            (None, Some(pull @ Pull { source: Some(source), .. })) if failure == Failure::Handoff => {
                parts.pull_failed(now, &attempt, (source, pull));
            }
            _ => request.tried.push(worker),
        }
        request.failure = Some(failure);
        if failure.was_sent() {
            request.count_failure(is_alone);
        }
        // The last attempt is a plain one: two workers can fail in more ways.
        request.may_split &=
            request.failovers < parts.settings.failovers_max || parts.fleet.has_dependent_workers();
        if failure == Failure::Late {
            self.refuse_late(now, id, effects);
            return;
        }
        let failovers_max = parts.settings.failovers_max;
        match parts.scheduler.may_retry(now, request, failovers_max, in_flight) {
            Ok(()) => {
                let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
                parts.scheduler.refund(context, request, &attempt);
                self.admit(now, id, Refusal::without_worker(Some(failure)), effects);
            }
            Err(limit) => {
                let refusal = Refusal::Failed { last: failure, limit };
                effects.push(Effect::Refuse { request: id, refusal });
                self.forget_refused(now, id);
            }
        }
    }
}

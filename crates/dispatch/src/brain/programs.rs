//! Calls of programs: whether they go or are held, and what their ends free.

use maitre_base::{Instant, RequestId, TenantId};
use maitre_fleet::estimate::Counted;

use super::{Brain, BrainSettings, Parts};
use crate::event::{Effect, Refusal};
use crate::programs::view::{HeldSummary, Hold, HoldEnd, ProgramCounts, ProgramsSnapshot, Sight, ViewLimits};
use crate::programs::{ProgramCall, ProgramId};
use crate::request::PendingRequest;
use crate::scheduler::pool_of;

/// Held calls that go in one step, so that a long list does not keep others from the brain.
const RELEASED_A_STEP: usize = 64;

impl Parts {
    pub(super) fn sight(&self, now: Instant) -> Sight<'_, impl Fn(TenantId) -> f64> {
        let queue = &self.settings.queue;
        Sight { now, fleet: &self.fleet, weight: |it| queue.terms(it).weight }
    }

    /// Why this request would be held if it came now.
    pub(super) fn hold(&self, now: Instant, request: &PendingRequest) -> Option<Hold> {
        let program = request.program?;
        self.programs.would_hold(&self.sight(now), &program_call(request, program))
    }

    /// A call of a program has come. Returns whether it goes now; otherwise it is held.
    pub(super) fn call_goes(&mut self, now: Instant, request: &PendingRequest, program: ProgramId) -> bool {
        self.programs.called(now, &program_call(request, program));
        if self.programs.admit(now, program, &self.fleet) {
            return true;
        }
        let is_held = self.programs.hold(now, request.id, program);
        if !is_held {
            self.programs.force(program);
        }
        !is_held
    }

    /// A call of a program has ended, or left while it was held.
    pub(super) fn call_ended(&mut self, now: Instant, request: &PendingRequest, counted: Option<Counted>) {
        let Some(program) = request.program else { return };
        if self.programs.held.remove(request.id).is_some() {
            return self.programs.left(now, program);
        }
        let prompt = counted.and_then(|it| it.prompt).unwrap_or(request.ask.prefill.0);
        let answer = counted.and_then(|it| it.answer).unwrap_or(0);
        self.programs.ended(now, program, prompt + answer, &self.fleet);
    }
}

fn program_call(request: &PendingRequest, program: ProgramId) -> ProgramCall<'_> {
    let (tenant, wanted, tokens) = (request.tenant, request.wanted, request.tokens());
    ProgramCall { program, tenant, wanted, tokens, prompt: request.prompt.as_ref() }
}

/// Until when a call of a program waits, held and in the queue together: its own deadline, or the longest hold and then the
/// longest wait of its class. That wait is meant for requests that a client repeats; a call that is refused ends the work of
/// its whole program, and what is repeated is held once more.
pub(super) fn call_patience(settings: &BrainSettings, request: &PendingRequest) -> Option<Instant> {
    let class = &settings.queue.classes[request.class.index()];
    let longest = class.deadline.map(|it| it.saturating_add(settings.programs.wait_max));
    request.deadline.or_else(|| longest.map(|it| request.arrived + it))
}

impl Brain {
    /// How many programs there are, and what they have in memory.
    pub fn program_counts(&self, now: Instant) -> ProgramCounts {
        self.parts.programs.counts(now)
    }

    /// Programs with their memory, and the calls that are held; none while programs are off.
    pub fn programs(&self, now: Instant, limits: ViewLimits) -> Option<ProgramsSnapshot> {
        self.parts.programs.view(&self.parts.sight(now), limits)
    }

    /// This request, if it is held until its program has memory.
    pub fn held_call(&self, now: Instant, request: RequestId) -> Option<HeldSummary> {
        self.parts.programs.held_summary(&self.parts.sight(now), request)
    }

    /// Held calls go whose programs have memory now.
    pub(super) fn release_held(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        for _ in 0..RELEASED_A_STEP {
            if self.parts.programs.held.is_empty() {
                return;
            }
            let Parts { programs, fleet, settings, .. } = &mut self.parts;
            let queue = &settings.queue;
            let Some((id, since)) = programs.release(now, fleet, |it| queue.terms(it).weight) else { return };
            if let Some(request) = self.pending.get_mut(&id.0) {
                // While it was held, a worker may have shown that its model has another name.
                request.pool = pool_of(request.wanted, fleet);
                request.held = now.since(since);
                request.waited += request.held;
                request.patience = call_patience(settings, request);
            }
            self.admit(now, id, Refusal::NoWorker, effects);
        }
    }

    /// Refuses held calls whose own deadline has passed.
    pub(super) fn refuse_late_held(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.parts.programs.held.is_empty() {
            return;
        }
        let is_late = |id: RequestId| {
            let deadline = self.pending.get(&id.0).and_then(|it| it.deadline);
            deadline.is_some_and(|it| it < now)
        };
        let late: Vec<RequestId> =
            self.parts.programs.held.iter().map(|it| it.request).filter(|&it| is_late(it)).collect();
        for id in late {
            self.parts.programs.count_lost(now, id, HoldEnd::Deadline);
            self.refuse_late(now, id, effects);
        }
    }

    /// A request was refused after an attempt.
    pub(super) fn forget_refused(&mut self, now: Instant, id: RequestId) {
        if let Some(request) = self.pending.remove(&id.0) {
            self.parts.call_ended(now, &request, None);
        }
    }
}

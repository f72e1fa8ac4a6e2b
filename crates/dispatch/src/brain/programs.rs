//! Calls of programs: whether they go or are held, and what their ends free.

use maitre_base::{Instant, RequestId};
use maitre_fleet::estimate::Counted;

use super::{Brain, Parts};
use crate::event::{Effect, Refusal};
use crate::programs::ProgramId;
use crate::request::PendingRequest;

/// Held calls that go in one step, so that a long list does not keep others from the brain.
const RELEASED_A_STEP: usize = 64;

impl Parts {
    /// A call of a program has come. Returns whether it goes now; otherwise it is held.
    pub(super) fn call_goes(&mut self, now: Instant, request: &PendingRequest, program: ProgramId) -> bool {
        self.programs.called(now, program, request.tenant, request.tokens());
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

impl Brain {
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
                request.waited += now.since(since);
                // The time that it was held is not the queue's.
                let class = &queue.classes[request.class.index()];
                request.patience = request.deadline.or_else(|| class.deadline.map(|it| now + it));
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
        late.into_iter().for_each(|it| self.refuse_late(now, it, effects));
    }

    /// A request was refused after an attempt.
    pub(super) fn forget_refused(&mut self, now: Instant, id: RequestId) {
        if let Some(request) = self.pending.remove(&id.0) {
            self.parts.call_ended(now, &request, None);
        }
    }
}

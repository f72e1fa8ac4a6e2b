//! What would be done with a request now, without doing it.
//!
//! The steps are those of a request that arrives, by the same functions. The queue's part and the
//! placer's part are dry runs, which copy neither the queue nor the fleet. Two things are not foreseen: a recall of others for its deadline, and what
//! happens to it once it waits.

use std::time::Duration;

use maitre_base::{Instant, RequestId};

use super::arrival::rate_limited;
use super::{Brain, Context};
use crate::event::{Arrival, Refusal};
use crate::observer::Placed;
use crate::observer::decision::{AttemptOutcome, Decision};
use crate::placer::split::Split;
use crate::placer::{Mode, Picked, WorkerChoice};
use crate::programs::view::ProgramStep;
use crate::request::PendingRequest;
use crate::scheduler::dry_run::DryRun;
use crate::scheduler::pool::NotQueued;

/// No request ever arrives under this number.
const EXPLAINED: RequestId = RequestId(u64::MAX);

/// Whether the request would be tried as soon as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    /// The queue is empty, or off.
    Directly,
    /// It would join the queue, among the first.
    Next,
    /// It would join the queue, behind others.
    Behind,
}

impl Brain {
    /// What would be done with this request if it arrived now; its id does not matter. A request that would wait is shown
    /// with the worker that would cost least, and its outcome says so.
    pub fn explain(&mut self, now: Instant, arrival: &Arrival<'_>) -> Result<Decision, Refusal> {
        let arrival = Arrival { request: EXPLAINED, ..*arrival };
        let mut request = self.parts.pending_request(now, &arrival)?;
        request.program = self.parts.programs.find(arrival.program, arrival.prompt);
        let mut dry_run = self.parts.scheduler.dry_run(self.context(now), request.pool);
        let admitted = self.admit_in(now, &mut dry_run, &request)?;
        let rules = self.parts.scheduler.rules_in(self.context(now), Some(&dry_run.flow), &request, None);
        let choice = self.parts.choose(now, &request.query(), rules, Mode::DryRun);
        let is_learned = self.parts.fleet.model_rates(request.pool.model()).rates().is_learned();
        let picked = match choice {
            WorkerChoice::Place(picked) | WorkerChoice::Reserve(picked) => Some(picked),
            WorkerChoice::TooLate if is_learned && admitted != Admitted::Behind => {
                let retry_after = dry_run.retry_after(&self.parts.scheduler, self.context(now), &request);
                return Err(Refusal::Deadline { retry_after });
            }
            WorkerChoice::TooLate | WorkerChoice::Wait => self.pick_if_open(now, &request),
            WorkerChoice::NoWorker => None,
        };
        let mut decision = self.describe(now, &request, picked.ok_or(Refusal::NoWorker)?);
        decision.hold = self.parts.hold(now, &request);
        if decision.hold.is_some() {
            // It would come to the queue later.
            return Ok(Decision { outcome: AttemptOutcome::WouldWait, ..decision });
        }
        match (choice, admitted) {
            (WorkerChoice::Place(picked), Admitted::Directly | Admitted::Next)
                if self.parts.is_unclaimed(&request, picked) =>
            {
                Ok(decision)
            }
            (_, Admitted::Directly) => {
                self.join_in(now, &mut dry_run, &request)?;
                Ok(Decision { outcome: AttemptOutcome::WouldWait, ..decision })
            }
            _ => Ok(Decision { outcome: AttemptOutcome::WouldWait, ..decision }),
        }
    }

    fn context(&self, now: Instant) -> Context<'_> {
        Context { now, settings: &self.parts.settings.queue, fleet: &self.parts.fleet }
    }

    /// What `admit` would do first.
    fn admit_in(
        &self,
        now: Instant,
        dry_run: &mut DryRun,
        request: &PendingRequest,
    ) -> Result<Admitted, Refusal> {
        let (context, fleet, scheduler) = (self.context(now), &self.parts.fleet, &self.parts.scheduler);
        if !context.settings.enabled {
            return Ok(Admitted::Directly);
        }
        let (tenant, terms) = (request.tenant, context.settings.terms(request.tenant));
        let allowed = scheduler.allowances.check(now, tenant, terms, request.tokens());
        allowed.map_err(rate_limited)?;
        let must_queue = dry_run.must_queue(scheduler, context, request);
        if !must_queue || !fleet.anyone_takes(request.wanted, request.barred()) {
            return Ok(Admitted::Directly);
        }
        self.join_in(now, dry_run, request)?;
        let is_alike = |id: RequestId| {
            let other =
                if id == request.id { Some(request) } else { self.pending.get(&id.0).map(AsRef::as_ref) };
            other.is_some_and(|it| it.wanted == request.wanted && it.reservation().is_none())
        };
        let next = dry_run.next(scheduler, context, is_alike);
        Ok(if next.contains(&request.id) { Admitted::Next } else { Admitted::Behind })
    }

    fn join_in(&self, now: Instant, dry_run: &mut DryRun, request: &PendingRequest) -> Result<(), Refusal> {
        let (context, scheduler) = (self.context(now), &self.parts.scheduler);
        let Err(error) = dry_run.join(scheduler, context, request) else { return Ok(()) };
        let retry_after = dry_run.retry_after(scheduler, context, request);
        Err(match error {
            NotQueued::Late => Refusal::Deadline { retry_after },
            NotQueued::Full => Refusal::QueueFull { retry_after },
        })
    }

    /// The worker that would cost least if every worker had room.
    fn pick_if_open(&mut self, now: Instant, request: &PendingRequest) -> Option<Picked> {
        let (world, placer) = self.parts.world(now);
        placer.pick_if_open(&world, &request.query())
    }

    fn describe(&mut self, now: Instant, request: &PendingRequest, picked: Picked) -> Decision {
        let split = self.parts.split(now, request, picked);
        let picked = split.map_or(picked, |it| it.answers(picked));
        let prefill = split.as_ref().map(Split::choice);
        let (parts, query) = (&mut self.parts, request.query());
        parts.placer.reveal(&mut parts.cache, &query);
        let view = parts.placer.view(&parts.cache, parts.scheduler.reservations(), &query);
        let (tenant, waited) = (request.tenant, request.waited);
        // As if it had come.
        let program = parts.programs.step(request.program, Duration::ZERO);
        let program = program.map(|it| ProgramStep { calls: it.calls.saturating_add(1), ..it });
        let request = request.id;
        let placed = Placed { now, request, query, tenant, waited, picked, prefill, view, program };
        Decision { outcome: AttemptOutcome::Asked, ..parts.observer.explain(&placed) }
    }
}

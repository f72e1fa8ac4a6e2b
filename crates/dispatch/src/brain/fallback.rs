//! For gateways that carry requests themselves: which workers come next if the first one fails, and what changes when one
//! of them has served the request.

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_fleet::{Barred, Evidence};

use super::{Brain, Context, Parts};
use crate::event::Effect;
use crate::observer::decision::AttemptOutcome;
use crate::placer::{Mode, Picked, Query, Rules, Scope};
use crate::request::PendingRequest;

/// Room does not matter: the request goes there only if a better worker has failed.
const ANY_OPEN: Rules = Rules { admission: None, scope: Scope::Open };

impl Brain {
    /// The workers that the strategy would pick for a placed request if those before them were not there, best first, at
    /// most so many. Nothing changes.
    pub fn fallbacks(&mut self, now: Instant, request: RequestId, most: usize) -> Vec<WorkerId> {
        let Brain { pending, parts, .. } = self;
        let mut found = Vec::new();
        let Some(request) = pending.get(&request.0) else { return found };
        let Some(placed_at) = request.worker() else { return found };
        let mut tried = request.tried.clone();
        tried.push(placed_at);
        while found.len() < most {
            let barred = Barred { tried: &tried, ..request.barred() };
            let Some((_, worker)) = parts.pick_any_open(now, request, barred) else { break };
            found.push(worker);
            tried.push(worker);
        }
        found
    }

    /// The request is at this worker now, and so is its promise. The worker it was placed at has failed, in a way that the
    /// gateway does not tell: it becomes suspect, and a probe settles what is wrong.
    pub(super) fn moved(
        &mut self,
        now: Instant,
        request: RequestId,
        to: WorkerId,
        effects: &mut Vec<Effect>,
    ) {
        let Brain { pending, parts, .. } = self;
        let Some(request) = pending.get_mut(&request.0) else { return };
        if request.worker().is_none_or(|it| it == to) {
            return;
        }
        let Some(attempt) = parts.release_placement(request) else { return };
        parts.attempt_ended(now, &attempt, AttemptOutcome::Failed, None);
        let context = Context { now, settings: &parts.settings.queue, fleet: &parts.fleet };
        parts.scheduler.refund(context, request, &attempt);
        parts.see(now, attempt.worker, Evidence::Broke, effects);
        request.tried.push(attempt.worker);
        request.moved = Some(now);
        request.ask.attempt = request.tried.len() as u32;
        let barred = Barred { tried: &[], only: Some(&[to]) };
        // Without a snapshot, because it is unhealthy as well, nothing is promised there; it answers all the same.
        if let Some((picked, _)) = parts.pick_any_open(now, request, barred) {
            parts.place(now, request, picked, effects);
        }
    }
}

impl Parts {
    /// What the strategy would pick among workers that are not barred, as if each had room.
    fn pick_any_open(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        barred: Barred<'_>,
    ) -> Option<(Picked, WorkerId)> {
        let query = Query { barred, ..request.query() };
        let picked = self.choose(now, &query, ANY_OPEN, Mode::DryRun).picked()?;
        Some((picked, self.placer.survey().snapshots[picked.place].worker))
    }
}

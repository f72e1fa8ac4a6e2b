//! What would be done with a request now, without doing it.
//!
//! The same steps as for one that arrives, each in the form that leaves nothing behind: caches are looked at quietly,
//! strategies are asked with a copy of their dice, buckets are only looked into. What it cannot foresee is who would
//! overtake whom, and who would be called back for it: a request that is not first in line is said to wait, though it might
//! slip past those who do not fit.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId};

use super::placement::Picked;
use super::{Brain, PendingRequest, model_of};
use crate::cache::Cache;
use crate::event::{Arrival, Refusal};
use crate::observer::decision::{Decision, Opening, Outcome};
use crate::observer::shadow::Case;

/// The request that is none: nobody ever arrives under this number.
const NOBODY: RequestId = RequestId(u64::MAX);

impl Brain {
    /// What would be done with this request if it arrived now; its number does not matter. One that would stand in line
    /// is shown with the worker that would cost least, and says so by its outcome.
    pub fn explain(&mut self, now: Instant, arrival: &Arrival<'_>) -> Result<Decision, Refusal> {
        let wanted = self.wanted(arrival.model)?;
        let open = self.opened(now, arrival, wanted);
        let queue = &self.settings.queue;
        if queue.enabled {
            let allowed = self.allowances.check(now, open.tenant, queue.terms(open.tenant), open.tokens());
            allowed.map_err(|retry_after| Refusal::RateLimited { retry_after })?;
        }
        let waits = queue.enabled && self.is_behind_others(now, &open);
        self.open.insert(NOBODY.0, open);
        let considered = self.consider_open(now, waits);
        self.open.remove(&NOBODY.0);
        considered
    }

    fn consider_open(&mut self, now: Instant, waits: bool) -> Result<Decision, Refusal> {
        let name = self.look_round(now, NOBODY, Cache::peek).ok_or(Refusal::NoWorker)?;
        self.judge(now, NOBODY);
        let has_room = |it: Opening| it == Opening::Now;
        let is_worth_waiting = |it: Opening| matches!(it, Opening::Now | Opening::Later);
        let mut picked = match name.holds_out() {
            true => self.pick_quietly(is_worth_waiting),
            false => self.pick_quietly(has_room),
        };
        if picked.is_none() {
            if self.openings.iter().all(|&it| it == Opening::TooLate) && self.fleet.rates().is_learned() {
                return Err(Refusal::Deadline { retry_after: self.seconds_ahead() });
            }
            picked = self.pick_quietly(|_| true);
        }
        let picked = picked.ok_or(Refusal::NoWorker)?;
        self.reveal(NOBODY);
        let mut decision = Decision::default();
        self.describe(now, NOBODY, picked, &mut decision);
        self.ask_shadows_quietly(picked, &mut decision);
        decision.outcome = match self.openings[picked.place] {
            Opening::Now if !waits => Outcome::Asked,
            _ => Outcome::WouldWait,
        };
        if decision.outcome == Outcome::WouldWait && !self.fits_in_line() {
            return Err(Refusal::QueueFull { retry_after: self.seconds_ahead() });
        }
        Ok(decision)
    }

    /// What the strategy would pick among those of these openings.
    fn pick_quietly(&mut self, fits: impl Fn(Opening) -> bool) -> Option<Picked> {
        self.line_up(NOBODY, fits);
        let open = self.open.get(&NOBODY.0)?;
        let pick = self.strategy_of(open.wanted).peek(&open.ask, &self.candidates, &self.rng)?;
        Some(Picked { place: self.places[pick.index], pick, is_priced: false })
    }

    fn ask_shadows_quietly(&self, picked: Picked, decision: &mut Decision) {
        let (Some(open), Some(chosen)) = (self.open.get(&NOBODY.0), self.candidates.get(picked.pick.index))
        else {
            return;
        };
        let case = Case {
            model: model_of(open.wanted),
            ask: &open.ask,
            candidates: &self.candidates,
            places: &self.places,
            openings: &self.openings,
            chosen,
            forecast: &self.forecast,
        };
        self.shadows.peek(case, &mut decision.shadows);
    }

    /// Whether somebody stands before it, or classes above leave nothing for its own.
    fn is_behind_others(&self, now: Instant, open: &PendingRequest) -> bool {
        let Some(pool) = self.pools.get(&open.pool).filter(|it| it.workers > 0) else { return false };
        let allowed = pool.would_allow(now, &self.settings.queue, self.fleet.scale().requests);
        let ahead = (0..=open.class.0).any(|it| pool.line.waiting(ClassId(it)).requests > 0);
        ahead || !allowed.has(open.class)
    }

    /// Whether there is a place in line for it, without anybody leaving for it.
    fn fits_in_line(&self) -> bool {
        let Some(open) = self.open.get(&NOBODY.0) else { return false };
        let class = &self.settings.queue.classes[open.class.index()];
        let waiting = self.pools.get(&open.pool).map(|it| it.line.waiting(open.class)).unwrap_or_default();
        waiting.requests < class.requests_max
            && waiting.tokens.saturating_add(open.tokens()) <= class.tokens_max
    }

    /// How long those before it will take; nothing where nobody knows.
    fn seconds_ahead(&self) -> Duration {
        let pool = |it: &PendingRequest| self.pools.get(&it.pool)?.seconds_ahead(it.class);
        let seconds = self.open.get(&NOBODY.0).and_then(pool).unwrap_or(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }
}

//! The workers that could take one request, at one instant: what each holds of it, whether each is open to it, and how a
//! strategy sees them.

use std::time::Duration;

use maitre_base::{Instant, PrefillWork, Promise, PromisedWork, Tokens, WorkerId};
use maitre_fleet::fleet::mirror::Moment;
use maitre_fleet::{Barred, Wanted, WorkerSnapshot};
use maitre_index::feed::Trust;
use maitre_index::prefix::Unit;
use maitre_policy::{Ask, Candidate, Fetch};

use super::in_use::{InUse, Used};
use super::pull::PullSurvey;
use super::sent::LastSent;
use super::{Admission, Consideration, Query, World, pace};
use crate::cache::{Held, WorkerCaches, blocks_in_tokens};
use crate::capacity::{first_token_by, has_memory, is_long};
use crate::reservations::Reservations;

/// How long a worker may be idle before its learned rates no longer refuse a request: it may have become faster, and
/// only a request can show that. One request at a time, whatever its deadline: how much faster is not known, and where all
/// requests have deadlines, a worker that was slow once would be refused all of them for good.
const RATES_TRUSTED: Duration = Duration::from_secs(5);

/// A request with at most this many times the mean tokens to prefill can afford to try a worker whose rates have faded.
const TRIAL_PREFILL: f64 = 2.0;

/// Whether a worker would take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    Now,
    /// Once it has done some of its work.
    Later,
    /// It would, but the request would delay the first tokens of others. Such a request waits for any worker, not for this.
    Disturbs,
    /// Not before the request's deadline.
    TooLate,
}

impl Opening {
    pub const fn name(self) -> &'static str {
        match self {
            Opening::Now => "now",
            Opening::Later => "later",
            Opening::Disturbs => "disturbs",
            Opening::TooLate => "too-late",
        }
    }
}

/// What a candidate is made from, besides its snapshot.
#[derive(Clone, Copy)]
pub(crate) struct Beliefs<'a> {
    pub(crate) caches: &'a WorkerCaches,
    pub(crate) reservations: &'a Reservations,
    pub(crate) in_use: Option<&'a InUse>,
}

/// The request that a survey was prepared for, and the workers as of when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedFor {
    pub(super) now: Instant,
    pub(super) wanted: Wanted,
    /// A request with a deadline tries no worker whose rates have faded.
    pub(super) deadline: Option<Instant>,
    /// Tokens to prefill and to decode.
    pub(super) work: (Tokens, Tokens),
    pub(super) moment: Moment,
}

impl PreparedFor {
    pub(super) fn is_for(&self, now: Instant, query: &Query<'_>) -> bool {
        let is_usual = query.barred == Barred::default() && query.reservation.is_none();
        let work = (query.ask.prefill, query.ask.decode);
        let same =
            (self.now, self.wanted, self.deadline, self.work) == (now, query.wanted, query.deadline, work);
        is_usual && same
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Plain tokens to prefill up to which a request can afford to try a worker whose rates have faded.
    pub(crate) trial_prefill: f64,
    pub(crate) snapshots: Vec<WorkerSnapshot>,
    /// For each snapshot, what its cache holds of the prompt; empty where that was not looked up.
    pub(crate) held: Vec<Held>,
    /// What each could pull from another worker.
    pub(crate) pulls: PullSurvey,
    /// What caches usually hold of a prompt like this one: counts where `held` is empty.
    pub(crate) held_usually: Tokens,
    /// The worker that was last sent the longest known prefix of the prompt; none unless a strategy needs it.
    pub(crate) last_sent: Option<LastSent>,
    /// For each snapshot, the seconds of prefill that programs there would lose; empty while programs are off.
    pub(crate) displaced: Vec<f64>,
    /// For each snapshot.
    pub(crate) openings: Vec<Opening>,
    /// The workers that the strategy saw.
    pub(crate) candidates: Vec<Candidate>,
    /// For each candidate, the place of its snapshot, in ascending order.
    pub(crate) shown: Vec<usize>,
    /// Set while this was prepared for a request that has not been decided.
    pub(super) prepared: Option<PreparedFor>,
    /// Whether the candidates are all workers of the snapshots, and these are their prices.
    pub(super) is_priced: bool,
    /// After the pick, the prices that it was made by; empty where the strategy does not price as `least_delay` does.
    pub(crate) prices: Vec<f64>,
}

impl Survey {
    /// Begins with what only some fleets have, which is nothing, and what a request has to prefill on average.
    pub(super) fn begin(&mut self, mean_prefill: f64) {
        self.trial_prefill = TRIAL_PREFILL * mean_prefill;
        self.pulls.clear();
        self.displaced.clear();
        self.last_sent = None;
        self.is_priced = false;
    }

    /// What was prepared is about one moment.
    pub(crate) fn forget_prepared(&mut self) {
        self.prepared = None;
    }

    pub(crate) fn held_at(&self, place: usize) -> Held {
        self.held.get(place).copied().unwrap_or_default()
    }

    /// What the request would cost the worker at this place.
    pub(crate) fn promise_at(&self, ask: &Ask, place: usize) -> Promise {
        let held = self.held.get(place).map_or(self.held_usually, |it| it.tokens);
        let uncached = ask.prefill - held;
        let computed = uncached - self.pulls.at(place).tokens;
        let prefill = PrefillWork::after(ask.prefill - computed, computed);
        let context = uncached + self.held_at(place).chunks.saved + ask.decode;
        Promise { prefill, decode: ask.decode, context, prefilled: false }
    }

    /// Decides for each worker whether it would take the request.
    pub(super) fn judge(&mut self, world: &World<'_>, query: &Query<'_>, admission: Option<Admission>) {
        self.openings.clear();
        let Some(admission) = admission else {
            self.openings.resize(self.snapshots.len(), Opening::Now);
            return;
        };
        let now = world.now;
        let is_learned = world.fleet.model_rates(world.fleet.base_wanted(query.wanted)).rates().is_learned();
        let has_long = |it: &WorkerSnapshot| world.long_prefills.is_at(it.worker, query.class);
        let with_long = self.snapshots.iter().filter(|it| has_long(it)).map(|it| it.worker);
        let are_enough = !world.long_prefills.may_begin(now, with_long, admission.workers_for_long_prompts);
        let others = (admission.consideration == Consideration::Fleet).then(|| self.others(has_long));
        let delays = |it: &WorkerSnapshot| match admission.consideration {
            Consideration::Nobody => false,
            Consideration::Worker => it.promised.prefilling > 0,
            Consideration::Fleet => {
                it.promised.prefilling > 0
                    || others.is_some_and(|others| others.are_crowded(it, has_long(it)))
            }
        };
        for (place, snapshot) in self.snapshots.iter().enumerate() {
            let promise = self.promise_at(query.ask, place);
            let limits = admission.limits(snapshot);
            let is_long = is_long(snapshot, promise.prefill);
            let is_apart = admission.yields && is_long;
            let disturbs = is_long && delays(snapshot) || is_apart && are_enough && !has_long(snapshot);
            // Without classes above, the engine decides about memory: it knows it better.
            let is_busy =
                !admission.is_within(limits, snapshot) || admission.yields && !has_memory(snapshot, &promise);
            let is_trusted = is_learned && snapshot.idle < RATES_TRUSTED;
            let is_idle = snapshot.promised.requests == 0;
            let is_late = |it: Instant| {
                it <= now
                    || (is_trusted || !is_idle)
                        && first_token_by(snapshot, promise.prefill, limits) > it.since(now).as_secs_f64()
            };
            self.openings.push(match query.deadline {
                Some(deadline) if is_late(deadline) => Opening::TooLate,
                _ if disturbs => Opening::Disturbs,
                _ if is_busy && is_apart => Opening::Disturbs,
                _ if is_busy => Opening::Later,
                _ => Opening::Now,
            });
        }
    }

    /// The workers without a long prompt.
    fn others(&self, has_long: impl Fn(&WorkerSnapshot) -> bool) -> Others {
        let others = Others { is_one_worker: self.snapshots.len() == 1, ..Others::default() };
        let without = self.snapshots.iter().filter(|it| !has_long(it));
        without.fold(others, |sum, it| Others {
            workers: sum.workers + 1,
            waiting: sum.waiting + it.promised.prefilling,
            ..sum
        })
    }

    /// Shows the workers whose openings fit as a strategy sees them.
    pub(super) fn show(&mut self, query: &Query<'_>, beliefs: Beliefs<'_>, fits: impl Fn(Opening) -> bool) {
        self.shown.clear();
        self.shown.extend((0..self.snapshots.len()).filter(|&it| fits(self.openings[it])));
        if self.is_priced && self.shown.len() == self.snapshots.len() {
            return;
        }
        self.is_priced = false;
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend(self.shown.iter().map(|&it| self.candidate(query, beliefs, it)));
        self.candidates = candidates;
    }

    pub(super) fn candidate(&self, query: &Query<'_>, beliefs: Beliefs<'_>, place: usize) -> Candidate {
        let snapshot = &self.snapshots[place];
        let worker = snapshot.worker;
        let mut candidate = candidate(snapshot, self.held_at(place), beliefs.caches);
        let prefill = || self.promise_at(query.ask, place).prefill;
        let can_afford = || snapshot.prefill.plain_tokens(prefill()) <= self.trial_prefill;
        if let Some((prefill, decode)) = snapshot.faded.filter(|_| query.deadline.is_none() && can_afford()) {
            candidate.pace = pace(prefill, decode);
        }
        candidate.fetch = self.pulls.at(place);
        candidate.displaced_seconds = self.displaced.get(place).copied().unwrap_or(0.0);
        candidate.sent = self.sent_to(query, beliefs.caches, worker);
        let reserved = beliefs.reservations.at(worker, query.class);
        if reserved.requests > 0 {
            add_reserved(&mut candidate, reserved);
        }
        if let Some(in_use) = beliefs.in_use {
            let Used { all, of_prompt } = in_use.at(worker, query.prompt);
            (candidate.in_use, candidate.held_in_use) = (all, of_prompt);
        }
        candidate
    }

    /// How much of the prompt this worker was the last to be sent. Where fresh events concern the prompt, the index knows
    /// better.
    fn sent_to(&self, query: &Query<'_>, caches: &WorkerCaches, worker: WorkerId) -> Tokens {
        let last = self.last_sent.filter(|it| it.worker == worker);
        let (Some(last), Some(prompt)) = (last, query.prompt) else { return Tokens::ZERO };
        if prompt.unit == Unit::Tokens && caches.trust(worker) == Trust::Fresh {
            return Tokens::ZERO;
        }
        blocks_in_tokens(prompt, query.ask.prefill, last.blocks)
    }
}

/// The workers that have no long prompt: while one is prefilled elsewhere, they take what comes.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    workers: u32,
    /// Requests there that wait for their first token.
    waiting: u32,
    /// Whether the fleet has one worker only, so that there are no others.
    is_one_worker: bool,
}

impl Others {
    /// Whether they have more than one waiting request each, this worker left out.
    fn are_crowded(&self, without: &WorkerSnapshot, has_long: bool) -> bool {
        let own = if has_long { (0, 0) } else { (1, without.promised.prefilling) };
        !self.is_one_worker && self.waiting - own.1 > self.workers - own.0
    }
}

/// Requests that have reserved this worker will be there before a request that comes now.
fn add_reserved(candidate: &mut Candidate, reserved: PromisedWork) {
    candidate.requests = candidate.requests.saturating_add(reserved.requests);
    candidate.promised = candidate.promised.plus(&reserved);
    candidate.wait_seconds += candidate.pace.prefill(reserved.prefill);
    if let Some(room) = &mut candidate.room {
        room.pinned += reserved.context;
    }
    if let Some(waiting) = &mut candidate.reported.waiting {
        *waiting = waiting.saturating_add(reserved.requests.into());
    }
}

pub(super) fn candidate(snapshot: &WorkerSnapshot, held: Held, caches: &WorkerCaches) -> Candidate {
    Candidate {
        worker: snapshot.worker,
        key: snapshot.key,
        requests: snapshot.requests,
        promised: snapshot.promised,
        share: snapshot.share,
        held: held.tokens,
        held_below: held.below,
        fetch: Fetch::default(),
        chunks: held.chunks,
        holds: held.holds.unwrap_or_else(|| caches.holds(snapshot.worker)),
        sent: Tokens::ZERO,
        in_use: Tokens::ZERO,
        held_in_use: Tokens::ZERO,
        pace: pace(snapshot.prefill, snapshot.decode),
        wait_seconds: snapshot.wait_seconds,
        room: snapshot.room,
        displaced_seconds: 0.0,
        requests_elsewhere: snapshot.requests_elsewhere,
        reported: snapshot.reported,
        adapter: snapshot.adapter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::EngineLoad;
    use maitre_fleet::{Evidence, Fleet};

    /// An engine may report any number. One more request is never fewer.
    #[test]
    fn reserved_requests_add_to_any_report() {
        let mut fleet = Fleet::default();
        let worker = fleet.add("http://127.0.0.1:1");
        fleet.see(Instant::ZERO, worker, Evidence::ProbeAnswered);
        let load = EngineLoad { waiting: Some(u64::MAX), ..EngineLoad::default() };
        (0..2).for_each(|_| fleet.report(Instant::ZERO, worker, load));
        let snapshot = fleet.snapshot_of(Instant::ZERO, worker).unwrap();
        let mut candidate = candidate(&snapshot, Held::default(), &WorkerCaches::default());
        add_reserved(&mut candidate, PromisedWork { requests: 3, ..PromisedWork::default() });
        assert_eq!((candidate.requests, candidate.reported.waiting), (u32::MAX, Some(u64::MAX)));
    }
}

//! From a request to a placement, and back: who could take it, who is open to it, which of them the strategy picks.

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, Promise, RequestId, Tokens, WorkerId};
use maitre_fleet::bend::Scale;
use maitre_fleet::fleet::Hold;
use maitre_fleet::{ModelId, Wanted, WorkerSnapshot};
use maitre_policy::{Ask, Candidate, Name, Pace, Pick, Strategy};
use maitre_queue::knee::{self, Caps, Limits};

use super::{Attempt, Brain, PendingRequest, model_of};
use crate::cache::{Cache, Held, Question};
use crate::event::{Effect, Failure, Form, Placement, Refusal};
use crate::observer::decision::{Opening, Outcome};
use crate::placer::in_use::Used;
use crate::reservations::Awaited;

/// What came of looking for a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    Seated,
    /// All who could take it are busy, or the one it had better wait for is.
    Busy,
    /// Its first token would come too late, wherever it goes.
    Late,
    /// There is nobody.
    Nobody,
}

/// The one picked: where among those who stand.
#[derive(Clone, Copy)]
pub(super) struct Picked {
    pub(super) place: usize,
    pub(super) pick: Pick,
    /// Whether the strategy's prices are those of this pick.
    pub(super) is_priced: bool,
}

/// A cache that would be fuller than this with a prompt is full: preemptions begin before the last block is taken.
const CACHE_FULL: f64 = 0.97;
/// How much later than foreseen a first token may be expected: what is learned is a mean, and half come later.
pub(super) const LATER: f64 = 1.2;
/// How long a worker may be idle before what was learned of its pace refuses nobody any more.
const FORGOTTEN: Duration = Duration::from_secs(5);

impl Brain {
    /// Looks for a placement, and takes it.
    pub(super) fn try_seat(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) -> Tried {
        self.let_go(request);
        let Some(open) = self.open.get_mut(&request.0) else { return Tried::Nobody };
        open.ask.attempt = open.tried.len() as u32;
        let Some(name) = self.look_round(now, request, Cache::look_up) else { return Tried::Nobody };
        self.judge(now, request);
        let picked = match name.holds_out() && self.may_hold_out(now, request) {
            true => self.pick(request, |it| matches!(it, Opening::Now | Opening::Later)),
            false => self.pick(request, |it| it == Opening::Now),
        };
        match picked {
            Some(picked) if self.openings[picked.place] == Opening::Now => {
                self.take(now, request, picked, effects);
                Tried::Seated
            }
            Some(picked) => {
                self.hold_out(now, request, picked.place);
                Tried::Busy
            }
            None if self.openings.iter().all(|&it| it == Opening::TooLate) => Tried::Late,
            None => Tried::Busy,
        }
    }

    /// Finds who could take a request, and what each holds of it where its strategy, whose name is returned, goes by
    /// that. None if there is nobody.
    pub(super) fn look_round(
        &mut self,
        now: Instant,
        request: RequestId,
        look: fn(&mut Cache, Question<'_>, &mut Vec<Held>),
    ) -> Option<Name> {
        let open = self.open.get(&request.0)?;
        self.fleet.snapshots(now, open.wanted, &open.tried, &mut self.snapshots);
        if self.snapshots.is_empty() {
            return None;
        }
        let name = self.strategy_of(open.wanted).name();
        if !name.prices_adapters() {
            // Whoever cannot price an adapter goes where it is, then where it fits.
            let best = self.snapshots.iter().map(|it| it.adapter).min();
            self.snapshots.retain(|it| Some(it.adapter) == best);
        }
        match open.prompt.as_ref().filter(|_| name.needs().cache) {
            Some(prompt) => {
                let question = Question { prompt, tokens: open.ask.prefill, snapshots: &self.snapshots };
                look(&mut self.cache, question, &mut self.held);
            }
            None => self.held.clear(),
        }
        Some(name)
    }

    /// Whether it may wait for a worker that is worth it. Whom nobody may overtake any more takes what there is.
    pub(super) fn may_hold_out(&self, now: Instant, request: RequestId) -> bool {
        self.open.get(&request.0).is_some_and(|open| {
            let is_barrier = self.pools.get(&open.pool).is_some_and(|it| it.line.is_barrier(request));
            open.may_hold_out(now) && !is_barrier
        })
    }

    /// Asks of each who stands whether it would take the request.
    pub(super) fn judge(&mut self, now: Instant, request: RequestId) {
        self.openings.clear();
        let queue = &self.settings.queue;
        let Some(open) = self.open.get(&request.0).filter(|_| queue.enabled) else {
            self.openings.resize(self.snapshots.len(), Opening::Now);
            return;
        };
        let considerate = self.pools.get(&open.pool).is_some_and(|it| it.must_not_disturb(now, open.class));
        let (caps, part, routers) = (queue.caps(), queue.part_of(open.class), self.routers.heard);
        let is_learned = self.fleet.rates().is_learned();
        for (place, snapshot) in self.snapshots.iter().enumerate() {
            let promise = promise(&open.ask, self.held.get(place).copied().unwrap_or_default());
            let limits = limits(snapshot.scale, caps).times(part);
            // What is longer than a first token takes anyway keeps those waiting who are there.
            let is_long = promise.prefill.0 as f64 > snapshot.scale.prefill_tokens;
            let disturbs = considerate && is_long && snapshot.promised.prefilling > 0;
            // One that has done nothing of late may be faster than it was: somebody has to find out.
            let is_trusted = is_learned && snapshot.idle < FORGOTTEN;
            let is_idle = snapshot.promised.requests == 0;
            let is_late = |it: Instant| {
                it <= now
                    || (is_trusted || !is_idle)
                        && LATER * foresee(snapshot, promise.prefill, limits) > it.since(now).as_secs_f64()
            };
            self.openings.push(match open.deadline {
                Some(deadline) if is_late(deadline) => Opening::TooLate,
                _ if disturbs => Opening::Disturbs,
                _ if has_room(snapshot, &promise, Knee { limits, caps, routers }) => Opening::Now,
                _ => Opening::Later,
            });
        }
    }

    /// What the strategy picks among those of these openings.
    fn pick(&mut self, request: RequestId, fits: impl Fn(Opening) -> bool) -> Option<Picked> {
        self.line_up(request, fits);
        let open = self.open.get(&request.0)?;
        let strategy = strategy(&mut self.strategies, &mut self.unlisted, open.wanted);
        let pick = strategy.pick(&open.ask, &self.candidates, &mut self.rng)?;
        let is_priced = strategy.prices().len() == self.candidates.len();
        if let Some(session) = strategy.pinned() {
            self.tell_pinned(request, session, self.candidates[pick.index].key);
        }
        Some(Picked { place: self.places[pick.index], pick, is_priced })
    }

    /// Shows those of these openings as a strategy sees them.
    pub(super) fn line_up(&mut self, request: RequestId, fits: impl Fn(Opening) -> bool) {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        self.places.clear();
        if let Some(open) = self.open.get(&request.0) {
            self.places.extend((0..self.snapshots.len()).filter(|&it| fits(self.openings[it])));
            candidates.extend(self.places.iter().map(|&it| self.candidate_at(open, it)));
        }
        self.candidates = candidates;
    }

    /// One who stands, as a strategy sees it.
    pub(super) fn candidate_at(&self, open: &PendingRequest, place: usize) -> Candidate {
        let snapshot = &self.snapshots[place];
        let held = self.held.get(place).copied().unwrap_or_default();
        let mut candidate = candidate(snapshot, held, self.cache.holds(snapshot.worker));
        reckon(&mut candidate, self.awaited.at(snapshot.worker, open.class));
        if let Some(in_use) = &self.in_use {
            let Used { all, of_prompt } = in_use.at(snapshot.worker, open.prompt.as_ref());
            (candidate.in_use, candidate.held_in_use) = (all, of_prompt);
        }
        candidate
    }

    /// The strategy in charge of these.
    pub(super) fn strategy_of(&self, wanted: Wanted) -> &Strategy {
        let known = model_of(wanted).and_then(|it| self.strategies.get(&u64::from(it.0)));
        known.unwrap_or(&self.unlisted)
    }

    /// Whether the strategy in charge of a request goes by what caches hold of it.
    pub(super) fn sees_caches(&self, open: &PendingRequest) -> bool {
        self.strategy_of(open.wanted).name().needs().cache
    }

    /// Seats it there: what it will cost is promised.
    fn take(&mut self, now: Instant, request: RequestId, picked: Picked, effects: &mut Vec<Effect>) {
        let held = self.held.get(picked.place).copied();
        let (decision, foreseen) = self.write_down(now, request, picked);
        let is_noted = self.open.get(&request.0).is_some_and(|it| self.is_noted(it));
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let snapshot = self.snapshots[picked.place];
        let worker = snapshot.worker;
        let promise = promise(&open.ask, held.unwrap_or_default());
        let ahead = (snapshot.wait_seconds / snapshot.prefill.slope) as u64;
        let noted = open.prompt.as_ref().filter(|_| is_noted);
        let planted = noted.and_then(|it| self.cache.seated(now, worker, it));
        if let (Some(in_use), Some(prompt)) = (&mut self.in_use, noted) {
            in_use.begin(worker, prompt);
        }
        let told = noted.filter(|_| self.dirty.is_some()).cloned();
        let prefill_ahead = ahead.saturating_add(promise.prefill.0);
        let company = snapshot.promised.requests;
        let adapter = model_of(open.wanted).filter(|&it| self.fleet.is_adapter(it));
        let (first, mark) = (None, None);
        let prefill = promise.prefill;
        open.placement = Some(Attempt {
            worker,
            promise,
            at: now,
            prefill_ahead,
            planted,
            adapter,
            company,
            first,
            prefill,
            mark,
            is_noted,
            decision,
            foreseen,
        });
        open.line.go(now);
        let placement = Placement {
            request,
            worker,
            why: picked.pick.why,
            held: held.map(|it| it.tokens),
            attempt: open.ask.attempt,
            waited: open.line.waited,
            deadline: open.deadline.filter(|_| open.form == Form::Stream),
        };
        let (pool, class) = (open.pool, open.class);
        self.fleet.promise(now, worker, promise);
        self.tell_promised(worker);
        told.into_iter().for_each(|it| self.tell_seated(snapshot.key, it));
        self.hold_adapter(worker, adapter, Hold::Begins);
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.seated(now, class, promise.prefill.0 as f64 * snapshot.prefill.slope);
        }
        effects.push(Effect::Place(placement));
    }

    /// Whether what a prompt will leave in a cache is to be noted. One that its strategy does not look at is noted for
    /// the shadows' sake, unless another model's strategy goes by caches: it must not see more than it would without.
    fn is_noted(&self, open: &PendingRequest) -> bool {
        open.prompt.is_some() && (self.sees_caches(open) || !self.settings.needs_in_charge().cache)
    }

    pub(super) fn hold_adapter(&mut self, worker: WorkerId, adapter: Option<ModelId>, hold: Hold) {
        if let Some(model) = adapter {
            self.fleet.hold_adapter(worker, model, hold);
        }
    }

    /// It had better wait for this one than go to another: so do those behind it reckon with it there.
    fn hold_out(&mut self, now: Instant, request: RequestId, place: usize) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let held = self.held.get(place).copied().unwrap_or_default();
        let (worker, prefill) = (self.snapshots[place].worker, promise(&open.ask, held).prefill);
        open.line.held_out.get_or_insert(now);
        open.line.awaits = Some((worker, prefill));
        self.awaited.begin(worker, open.class, prefill);
    }

    /// It waits for nobody in particular any more.
    pub(super) fn let_go(&mut self, request: RequestId) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        if let Some((worker, prefill)) = open.line.awaits.take() {
            self.awaited.end(worker, open.class, prefill);
        }
    }

    /// Takes a request from its placement: what was promised for it there is promised no more, and what we hoped
    /// its prefill would leave in the cache is not there unless it was done.
    pub(super) fn unseat(&mut self, request: RequestId) -> Option<Attempt> {
        let open = self.open.get_mut(&request.0)?;
        let place = open.placement.take()?;
        if let (Some(prompt), Some(planted), false) = (&open.prompt, place.planted, place.promise.prefilled) {
            self.cache.failed(place.worker, prompt, planted);
        }
        if let (Some(in_use), Some(prompt), true) = (&mut self.in_use, &open.prompt, place.is_noted) {
            in_use.end(place.worker, prompt);
        }
        if let Some(pool) = self.pools.get_mut(&open.pool) {
            pool.unseated(open.class);
        }
        self.fleet.release(place.worker, place.promise);
        self.tell_promised(place.worker);
        self.hold_adapter(place.worker, place.adapter, Hold::Ends);
        Some(place)
    }

    pub(super) fn failed(
        &mut self,
        now: Instant,
        request: RequestId,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        let Some(place) = self.unseat(request) else { return };
        self.note_end(now, &place, Outcome::Failed, None);
        let worker = place.worker;
        let Some(open) = self.open.get_mut(&request.0) else { return };
        open.tried.push(worker);
        open.failure = Some(failure);
        open.failovers += u32::from(failure.was_sent());
        let attempts_left = (open.tried.len() as u32) < super::ATTEMPTS_MAX;
        let failovers_left = open.failovers <= self.settings.failovers_max;
        // What never reached a worker costs nobody anything: only the rest is paid from the budget.
        let free = !failure.was_sent();
        let patience_left = !matches!(failure, Failure::TimedOut | Failure::NoSocket | Failure::Late);
        if failure == Failure::Late {
            self.refuse_late(now, request, effects);
        } else if attempts_left && failovers_left && patience_left && (free || self.budget.spend(now)) {
            self.refund(request);
            self.admit(now, request, Refusal::Failed { last: failure }, effects);
        } else {
            effects.push(Effect::Refuse { request, refusal: Refusal::Failed { last: failure } });
            self.close(request);
        }
    }
}

/// The strategy that this request goes by.
fn strategy<'a>(
    known: &'a mut NumberMap<Strategy>,
    unlisted: &'a mut Strategy,
    wanted: Wanted,
) -> &'a mut Strategy {
    let known = model_of(wanted).and_then(|it| known.get_mut(&u64::from(it.0)));
    known.unwrap_or(unlisted)
}

/// Seconds until the first token of a request with so much to prefill would come there: what was promised before, the
/// wait for a place if all are taken, and its own.
pub(super) fn foresee(snapshot: &WorkerSnapshot, prefill: Tokens, limits: Limits) -> f64 {
    let requests = f64::from(snapshot.requests.max(1));
    let place = match snapshot.requests >= limits.sequences {
        // Answers are half done, in the mean, and any of them will do.
        true => snapshot.promised.decode.0 as f64 / requests / 2.0 * snapshot.decode.at(requests) / requests,
        false => 0.0,
    };
    snapshot.wait_seconds.max(0.0) + place + snapshot.prefill.at(prefill.0 as f64)
}

pub(super) fn limits(Scale { requests, prefill_tokens }: Scale, caps: Caps) -> Limits {
    knee::limits(knee::Scale { requests, prefill_tokens }, caps)
}

/// How much a worker can work on, and among how many routers that is to be shared.
#[derive(Clone, Copy)]
pub(super) struct Knee {
    pub(super) limits: Limits,
    pub(super) caps: Caps,
    pub(super) routers: u32,
}

impl Knee {
    /// Whether a worker has less than that, or we have less than our part of it there.
    ///
    /// Whoever ends a request there gives the place to the next in its own line, at once, and the others never hear that
    /// it was free: a router that comes late to a full fleet would wait for ever. So each may fill its part whatever
    /// others have, within what the operator allows, and those with more stand back until all together have no more than
    /// there should be.
    pub(super) fn is_above(self, snapshot: &WorkerSnapshot) -> bool {
        let Knee { limits, caps, routers } = self;
        let promised = (snapshot.requests, snapshot.promised.prefill);
        is_less(promised, limits)
            || routers > 1
                && is_less(snapshot.ours, limits.times(1.0 / f64::from(routers)))
                && is_less(promised, caps.as_limits())
    }
}

fn is_less((requests, prefill): (u32, Tokens), limits: Limits) -> bool {
    prefill.0 < limits.prefill_tokens && requests < limits.sequences
}

/// The same, and its cache has room for this request.
fn has_room(snapshot: &WorkerSnapshot, promise: &Promise, knee: Knee) -> bool {
    // One that has nothing to do takes anything: if not now, when? What no cache could ever hold waits for nothing. As
    // engines do, we ask for room for the prompt, and see about the answer when it comes.
    let fits = snapshot.promised.requests == 0
        || snapshot.room.is_none_or(|it| {
            let room = (it.capacity.0 as f64 * CACHE_FULL) as u64;
            promise.prefill.0 > room || (snapshot.used + promise.prefill).0 <= room
        });
    fits && knee.is_above(snapshot)
}

/// What a request will cost a worker that holds so much of it.
fn promise(ask: &Ask, held: Held) -> Promise {
    let prefill = ask.prefill - held.tokens;
    Promise { prefill, decode: ask.decode, context: prefill + ask.decode, prefilled: false }
}

/// Those who wait for this one will be there before anybody who comes now.
fn reckon(candidate: &mut Candidate, awaited: Awaited) {
    candidate.requests += awaited.requests;
    candidate.promised.requests += awaited.requests;
    candidate.promised.prefilling += awaited.requests;
    candidate.promised.prefill += awaited.prefill;
    candidate.wait_seconds += awaited.prefill.0 as f64 * candidate.pace.prefill_token;
}

fn candidate(snapshot: &WorkerSnapshot, held: Held, holds: Tokens) -> Candidate {
    Candidate {
        worker: snapshot.worker,
        key: snapshot.key,
        requests: snapshot.requests,
        promised: snapshot.promised,
        share: snapshot.share,
        held: held.tokens,
        held_below: held.below,
        holds,
        in_use: Tokens::ZERO,
        held_in_use: Tokens::ZERO,
        pace: Pace {
            floor: snapshot.prefill.base,
            prefill_token: snapshot.prefill.slope,
            step: snapshot.decode.base,
            step_request: snapshot.decode.slope,
        },
        wait_seconds: snapshot.wait_seconds,
        room: snapshot.room,
        reported: snapshot.reported,
        adapter: snapshot.adapter,
    }
}

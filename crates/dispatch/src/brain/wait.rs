//! Those who wait: who stands in line, who is next when there is room, who has waited long enough.
//!
//! A request that waits has no worker. When one has room, the next in line is looked up afresh and seated where it
//! costs least then. Where nobody waits, the line costs a look at whether it is empty.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, Tokens, WorkerId};
use maitre_fleet::rates::Rates;
use maitre_fleet::{ModelId, Wanted, Worker};
use maitre_queue::Limits;
use maitre_queue::wait_queue::{Entry, Waiting};

use super::placement::{Knee, Tried, limits};
use super::pool::Pool;
use super::{Brain, PendingRequest};
use crate::event::{Effect, Event, Refusal};

/// How long a request may hold out for a busy worker that suits it better than those that have room: for its cache,
/// mostly. Prices say when that is worth it, and this is for when they are wrong. With no holding out at all, hits fell
/// from 0.78 to 0.47 on prefix groups and first tokens came after 15 s, not 0.25; with two seconds, mean first tokens of
/// RAG past saturation took 5.5 s, with ten or a hundred 2.9.
const HOLD_OUT: Duration = Duration::from_secs(10);
/// While somebody waits, how long nothing may happen before we look again: answers in one piece do not say when
/// their prefill is done, and what classes above leave grows with time alone.
const PULSE: Duration = Duration::from_millis(50);
/// Those whose time is over are refused so many at a time: others want the brain meanwhile.
const EXPIRED_A_STEP: usize = 256;
/// Those whose model nobody lists stand in a line of their own.
pub(super) const UNLISTED: u64 = u64::MAX;

/// A request's time in line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InLine {
    /// Since when it stands there; none while it does not.
    pub(super) since: Option<Instant>,
    /// All the time it has stood there.
    pub(super) waited: Duration,
    /// Since when it has waited for one worker, whether others had room or not.
    pub(super) held_out: Option<Instant>,
    /// Who that is, and what it will have to prefill there.
    pub(super) awaits: Option<(WorkerId, Tokens)>,
    /// What its tenant was charged when it went.
    pub(super) charged: Option<f64>,
}

impl InLine {
    /// All the time it will have stood there if it goes now.
    pub(super) fn waited_by(&self, now: Instant) -> Duration {
        self.waited + self.since.map_or(Duration::ZERO, |it| now.since(it))
    }

    /// It goes, or it is over.
    pub(super) fn go(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited += now.since(since);
        }
        self.held_out = None;
    }
}

impl PendingRequest {
    pub(super) fn may_hold_out(&self, now: Instant) -> bool {
        self.line.held_out.is_none_or(|it| now.since(it) < HOLD_OUT)
    }
}

impl Brain {
    /// What of this class waits now.
    pub fn waiting(&self, class: ClassId) -> Waiting {
        let lines = self.pools.values().map(|it| it.line.waiting(class));
        lines.fold(Waiting::default(), |sum, it| Waiting {
            requests: sum.requests + it.requests,
            tokens: sum.tokens + it.tokens,
            cost: sum.cost + it.cost,
        })
    }

    /// What a worker may have before others wait for it; none where nobody ever waits.
    pub fn limits(&self, worker: WorkerId) -> Option<Limits> {
        let worker = self.fleet.worker(worker).filter(|_| self.settings.queue.enabled)?;
        Some(limits(worker.scale, self.settings.queue.caps()))
    }

    /// When we want to be told the time though nothing has happened.
    pub fn due(&self) -> Option<Instant> {
        if self.waiting == 0 {
            return None;
        }
        let earliest = self.pools.values().filter_map(|it| it.line.earliest()).min();
        // At its last moment a request may still go; after it, not.
        let pulse = self.looked + PULSE;
        Some(earliest.map_or(pulse, |it| pulse.min(it + Duration::from_nanos(1))))
    }

    pub(super) fn pool_of(&self, wanted: Wanted) -> u64 {
        let anyone = || self.fleet.workers().find_map(|it| self.fleet.base_of(it.id));
        let base = match wanted {
            Wanted::Model(model) => Some(self.fleet.base(model)),
            Wanted::Anything => anyone(),
            Wanted::Unlisted => None,
        };
        number(base)
    }

    /// Gives a request a placement, or a place in line, or refuses it.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        request: RequestId,
        otherwise: Refusal,
        effects: &mut Vec<Effect>,
    ) {
        let Some((number, class)) = self.open.get(&request.0).map(|it| (it.pool, it.class)) else { return };
        let waits = self.settings.queue.enabled && self.others_first(now, number, class);
        if waits && !self.is_for_nobody(request) {
            if self.join(now, request, effects) {
                self.serve_newcomer(now, number, request, effects);
                self.tell_if_waiting(request, effects);
            }
            return;
        }
        match self.try_or_recall(now, request, effects) {
            Tried::Seated => {}
            Tried::Busy => {
                if self.join(now, request, effects) {
                    self.tell_if_waiting(request, effects);
                }
            }
            Tried::Late => self.refuse_late(now, request, effects),
            Tried::Nobody => self.refuse(request, otherwise, effects),
        }
    }

    fn try_or_recall(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) -> Tried {
        let tried = match self.try_seat(now, request, effects) {
            Tried::Late => self.seat_by_recall(now, request, effects),
            tried => tried,
        };
        match tried {
            // Nobody is refused for what engines usually do: who knows what these can.
            Tried::Late if !self.fleet.rates().is_learned() => Tried::Busy,
            tried => tried,
        }
    }

    /// Whether somebody waits before a newcomer of this class, or what classes above leave is used up.
    fn others_first(&mut self, now: Instant, number: u64, class: ClassId) -> bool {
        if !self.pools.contains_key(&number) {
            self.pools.insert(number, Pool::new(&self.settings.queue));
            self.count_workers();
        }
        let Some(pool) = self.pools.get_mut(&number).filter(|it| it.workers > 0) else { return false };
        !pool.line.is_empty()
            || !pool.allowed(now, &self.settings.queue, self.fleet.scale().requests).has(class)
    }

    /// Whether there is nobody to stand in line for: it failed at all who could take it, or they are gone.
    fn is_for_nobody(&self, request: RequestId) -> bool {
        let Some(open) = self.open.get(&request.0) else { return true };
        !self.fleet.anyone_takes(open.wanted, &open.tried)
    }

    /// Puts a request in line; whether it is there now. If not, it was refused.
    pub(super) fn join(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) -> bool {
        let Some(open) = self.open.get(&request.0) else { return false };
        let rates = self.fleet.rates();
        let cost = cost(open, rates);
        let own = Duration::try_from_secs_f64(rates.prefill.base).unwrap_or_default();
        let latest = open.deadline.map(|it| it.before(own)).or(open.patience);
        let terms = self.settings.queue.terms(open.tenant);
        let entry = Entry {
            request,
            class: open.class,
            tenant: open.tenant,
            weight: terms.weight,
            tokens: (open.ask.prefill + open.ask.decode).0,
            cost,
            since: open.arrived,
            latest,
        };
        let Some(pool) = self.pools.get_mut(&open.pool) else { return false };
        if pool.line.is_empty() {
            pool.drain.resume(now);
        }
        let ahead = pool.seconds_before(&entry);
        if latest.is_some_and(|it| it < now || ahead.is_some_and(|ahead| ahead > it.since(now).as_secs_f64()))
        {
            self.refuse_late(now, request, effects);
            return false;
        }
        match pool.line.join(entry) {
            Ok(displaced) => {
                if self.waiting == 0 {
                    self.looked = now;
                }
                self.waiting += 1;
                if let Some(open) = self.open.get_mut(&request.0) {
                    open.line.since = Some(now);
                }
                if let Some(other) = displaced {
                    self.waiting -= 1;
                    self.refuse_full(now, other.request, effects);
                }
                true
            }
            Err(_) => {
                self.refuse_full(now, request, effects);
                false
            }
        }
    }

    fn tell_if_waiting(&self, request: RequestId, effects: &mut Vec<Effect>) {
        if self.open.get(&request.0).is_some_and(|it| it.line.since.is_some()) {
            effects.push(Effect::Wait { request });
        }
    }

    /// Where this event may make room.
    pub(super) fn frees(&self, event: &Event<'_>) -> Freed {
        let at = |request: &RequestId| {
            let placement = self.open.get(&request.0).and_then(|it| it.placement);
            placement.map_or(Freed::Nobody, |it| Freed::Worker(it.worker))
        };
        match event {
            Event::FirstToken { request, .. }
            | Event::Finished { request, .. }
            | Event::Failed { request, .. }
            | Event::Declined { request }
            | Event::BrokeOff { request }
            | Event::Left { request } => at(request),
            Event::LoadReported { worker, .. }
            | Event::WorkerDrained { worker, .. }
            | Event::Probed { worker, .. }
            | Event::ModelsReported { worker, .. }
            | Event::AdaptersReported { worker, .. } => Freed::Worker(*worker),
            Event::Tick => Freed::Anyone,
            Event::Peers(news) => self.frees_elsewhere(news),
            Event::Arrived(_)
            | Event::WorkerJoined { .. }
            | Event::WorkerGone { .. }
            | Event::WorkerWeighed { .. }
            | Event::Streamed { .. }
            | Event::CacheChanged { .. }
            | Event::TrustChanged { .. } => Freed::Nobody,
        }
    }

    /// Somewhere something changed: whoever can go now goes.
    pub(super) fn serve_all(&mut self, now: Instant, freed: Freed, effects: &mut Vec<Effect>) {
        if self.waiting == 0 {
            return;
        }
        self.refuse_expired(now, effects);
        match freed {
            Freed::Nobody => {}
            Freed::Worker(worker) => self.serve_at(now, worker, effects),
            Freed::Anyone => {
                self.looked = now;
                for worker in self.samples(now) {
                    self.serve_at(now, worker, effects);
                }
            }
        }
    }

    /// Of workers that have room, one of each list of models: whoever one of them cannot serve, its like cannot either.
    fn samples(&self, now: Instant) -> Vec<WorkerId> {
        let mut found: Vec<&Worker> = Vec::new();
        for worker in self.fleet.workers() {
            let is_new = !found.iter().any(|it| it.models == worker.models);
            if is_new && self.has_room_at(now, worker.id) {
                found.push(worker);
            }
        }
        found.iter().map(|it| it.id).collect()
    }

    fn has_room_at(&self, now: Instant, worker: WorkerId) -> bool {
        let caps = self.settings.queue.caps();
        let routers = self.routers.heard;
        let snapshot = self.fleet.snapshot_of(now, worker);
        snapshot.is_some_and(|it| Knee { limits: limits(it.scale, caps), caps, routers }.is_above(&it))
    }

    /// This worker may have room: those it can serve go, in order, as long as anybody has room for the first of them.
    fn serve_at(&mut self, now: Instant, worker: WorkerId, effects: &mut Vec<Effect>) {
        let number = number(self.fleet.base_of(worker));
        let has_line = self.pools.get(&number).is_some_and(|it| !it.line.is_empty());
        if has_line && self.has_room_at(now, worker) {
            self.serve(now, number, worker, effects);
        }
    }

    /// Somebody joined. Nothing has changed for those who were there, so it alone may go, if it is among the first.
    fn serve_newcomer(&mut self, now: Instant, number: u64, request: RequestId, effects: &mut Vec<Effect>) {
        let mut found = std::mem::take(&mut self.found);
        let wanted = self.open.get(&request.0).map(|it| it.wanted);
        if let Some(pool) = self.pools.get_mut(&number) {
            let allowed = pool.allowed(now, &self.settings.queue, self.fleet.scale().requests);
            // Those who want something else may be waiting for other workers.
            let alike = |it: RequestId| self.open.get(&it.0).map(|it| it.wanted) == wanted;
            pool.line.next_of(now, allowed, alike, &mut found);
            if let Some(place) = found.iter().position(|&it| it == request) {
                self.serve_one(now, First { number, found: &found[..=place], from: place }, effects);
            }
        }
        self.found = found;
    }

    /// Seats those that this worker serves, wherever they find a placement, as long as one of the first of them does.
    fn serve(&mut self, now: Instant, number: u64, worker: WorkerId, effects: &mut Vec<Effect>) {
        let mut found = std::mem::take(&mut self.found);
        while let (Some(pool), Some(worker)) = (self.pools.get_mut(&number), self.fleet.worker(worker)) {
            let allowed = pool.allowed(now, &self.settings.queue, self.fleet.scale().requests);
            // Those for another worker neither go here nor keep others from it.
            let takes = |it: RequestId| {
                self.open
                    .get(&it.0)
                    .is_some_and(|it| worker.serves(it.wanted) && !it.tried.contains(&worker.id))
            };
            pool.line.next_of(now, allowed, takes, &mut found);
            if !self.serve_one(now, First { number, found: &found, from: 0 }, effects) {
                break;
            }
        }
        self.found = found;
    }

    /// Seats the first of these, from this place on, that finds a placement, or refuses one that never will; whether any is
    /// gone from the line.
    fn serve_one(&mut self, now: Instant, first: First<'_>, effects: &mut Vec<Effect>) -> bool {
        let First { number, found, from } = first;
        // Each reckons with those before it, and not with those behind.
        found[from..].iter().for_each(|&it| self.let_go(it));
        for (place, &request) in found.iter().enumerate().skip(from) {
            match self.try_or_recall(now, request, effects) {
                Tried::Seated => {
                    let Some(pool) = self.pools.get_mut(&number) else { return false };
                    if let Some(entry) = pool.line.go(now, request, &found[..place]) {
                        self.waiting -= 1;
                        pool.drain.see(now, entry.cost);
                        self.charge(request, &entry);
                    }
                    return true;
                }
                Tried::Late => {
                    self.refuse_late(now, request, effects);
                    return true;
                }
                Tried::Nobody => {
                    self.refuse_for_nobody(request, effects);
                    return true;
                }
                Tried::Busy => {}
            }
        }
        false
    }

    /// Who can never go from here is told so: the workers it could have gone to are gone, or serve it no more.
    pub(super) fn refuse_stranded(&mut self, effects: &mut Vec<Effect>) {
        let stands = |it: &(&u64, &PendingRequest)| it.1.line.since.is_some();
        let mut stranded: Vec<RequestId> = Vec::new();
        for (&request, open) in self.open.iter().filter(stands) {
            let is_listed = self.pool_of(open.wanted) == open.pool;
            if !is_listed || !self.fleet.anyone_may_take(open.wanted, &open.tried) {
                stranded.push(RequestId(request));
            }
        }
        stranded.sort_unstable();
        stranded.into_iter().for_each(|it| self.refuse_for_nobody(it, effects));
    }

    /// There is nobody left for it: since its last attempt failed, if it had one.
    fn refuse_for_nobody(&mut self, request: RequestId, effects: &mut Vec<Effect>) {
        let failed = self.open.get(&request.0).and_then(|it| it.failure);
        let refusal = failed.map_or(Refusal::NoWorker, |last| Refusal::Failed { last });
        self.refuse(request, refusal, effects);
    }

    /// Its tenant pays what it really has to compute, and pays more or gets back when its answer has ended.
    fn charge(&mut self, request: RequestId, entry: &Entry) {
        let rates = *self.fleet.rates();
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let Some(place) = open.placement else { return };
        let decode = open.ask.decode.0 as f64;
        let cost = place.promise.prefill.0 as f64 + decode * answer_token(&rates);
        open.line.charged = Some(cost);
        if let Some(pool) = self.pools.get_mut(&open.pool) {
            pool.line.correct(entry.tenant, entry.weight, cost - entry.cost);
        }
    }

    /// It did not get what it was charged for.
    pub(super) fn refund(&mut self, request: RequestId) {
        let Some(open) = self.open.get_mut(&request.0) else { return };
        let weight = self.settings.queue.terms(open.tenant).weight;
        if let (Some(cost), Some(pool)) = (open.line.charged.take(), self.pools.get_mut(&open.pool)) {
            pool.line.correct(open.tenant, weight, -cost);
        }
    }

    /// The answer was longer or shorter than was thought.
    pub(super) fn settle_charge(&mut self, open: &PendingRequest, answer_tokens: u64) {
        let (Some(_), Some(pool)) = (open.line.charged, self.pools.get_mut(&open.pool)) else { return };
        let difference = answer_tokens as f64 - open.ask.decode.0 as f64;
        let weight = self.settings.queue.terms(open.tenant).weight;
        pool.line.correct(open.tenant, weight, difference * answer_token(self.fleet.rates()));
    }

    fn refuse_expired(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut late = Vec::new();
        for pool in self.pools.values_mut().filter(|it| it.line.earliest().is_some_and(|it| it < now)) {
            pool.line.expire(now, EXPIRED_A_STEP, &mut late);
        }
        for entry in late {
            self.waiting -= 1;
            self.refuse_late(now, entry.request, effects);
        }
    }

    pub(super) fn refuse_late(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let retry_after = self.retry_after(now, request);
        self.refuse(request, Refusal::Deadline { retry_after }, effects);
    }

    fn refuse_full(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let retry_after = self.retry_after(now, request);
        self.refuse(request, Refusal::QueueFull { retry_after }, effects);
    }

    /// What nobody has worked on counts against no limit: its client was told to come again.
    fn refuse(&mut self, request: RequestId, refusal: Refusal, effects: &mut Vec<Effect>) {
        // One among the first in line may have made way for somebody called back while those before it were looked at: it has
        // been told.
        if !self.open.contains_key(&request.0) {
            return;
        }
        effects.push(Effect::Refuse { request, refusal });
        let queue = &self.settings.queue;
        if let Some(open) = self.open.get(&request.0).filter(|it| queue.enabled && it.tried.is_empty()) {
            self.allowances.give_back(open.tenant, open.spending.taken);
            self.tell_given_back(request);
        }
        self.close(request);
    }

    /// When what waits now will be done, and what others were told to come again with.
    fn retry_after(&mut self, now: Instant, request: RequestId) -> Duration {
        let Some(open) = self.open.get(&request.0) else { return Duration::ZERO };
        let Some(pool) = self.pools.get_mut(&open.pool) else { return Duration::ZERO };
        let cost = cost(open, self.fleet.rates());
        let seconds = pool.drain.rate().map_or(0.0, |it| cost / it);
        pool.book(now, open.class, seconds)
    }

    /// It stands in line no longer, whatever became of it.
    pub(super) fn leave_line(&mut self, request: RequestId) {
        self.let_go(request);
        let Some(open) = self.open.get_mut(&request.0) else { return };
        if open.line.since.take().is_some()
            && let Some(pool) = self.pools.get_mut(&open.pool)
            && pool.line.leave(request).is_some()
        {
            self.waiting -= 1;
        }
    }

    /// How many workers each pool has that are fit.
    pub(super) fn count_workers(&mut self) {
        for (&name, pool) in &mut self.pools {
            let here = |it: &&Worker| it.is_fit() && number(self.fleet.base_of(it.id)) == name;
            pool.workers = self.fleet.workers().filter(here).count() as u32;
        }
    }
}

/// The first of a line, in order, and from which of them on anybody is to be seated.
#[derive(Clone, Copy)]
struct First<'a> {
    /// The line's.
    number: u64,
    found: &'a [RequestId],
    from: usize,
}

/// What an event may have made room at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    Nobody,
    Worker(WorkerId),
    Anyone,
}

/// What the pool of this model goes by.
pub(super) fn number(base: Option<ModelId>) -> u64 {
    base.map_or(UNLISTED, |it| u64::from(it.0))
}

/// The model of the pool that goes by this.
pub(super) fn base(number: u64) -> Option<ModelId> {
    u32::try_from(number).ok().map(ModelId)
}

/// What a request is expected to take, in tokens of prefill. What of it is cached is not known before it is seated.
fn cost(open: &PendingRequest, rates: &Rates) -> f64 {
    open.ask.prefill.0 as f64 + open.ask.decode.0 as f64 * answer_token(rates)
}

/// What a token of an answer takes beside one of a prompt.
fn answer_token(rates: &Rates) -> f64 {
    rates.decode.slope / rates.prefill.slope
}

//! Which request goes next, which waits, and which is refused.
//!
//! The scheduler owns what the queue knows: a pool per model with its wait queue, reservations of workers, tenants'
//! allowances and the retry budget. It knows the order of requests, not the worker that each of them gets: the placer
//! picks that. While no request waits, the queue costs one comparison per event.

pub(crate) mod dry_run;
pub(crate) mod hedge_budget;
pub(crate) mod pool;
pub(crate) mod recall;
pub mod retry_budget;

use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{ClassId, Instant, RequestId, TenantId, WorkerId};
use maitre_fleet::rates::Rates;
use maitre_fleet::{Fleet, Wanted, Worker};
use maitre_queue::wait_queue::{QueueEntry, Waiting};
use maitre_queue::{self as queue, Allowances, PeerUsage, RouterShare};

use crate::capacity::without;
use crate::event::{Failure, RetryLimit};
use crate::long_prefills::LongPrefills;
use crate::move_budget::{MoveBudget, Moves};
use crate::placer::{Admission, Consideration, Rules, Scope};
use crate::request::{self, Attempt, PendingRequest, PoolId, RequestState};
use crate::reservations::{Reservation, Reservations};
use dry_run::DryRun;
use hedge_budget::HedgeBudget;

use pool::{Flow, NotQueued, Pool};
use retry_budget::{RetryBudget, RetryIncome};

/// Most attempts of one request, including those that never reached a worker.
pub const ATTEMPTS_MAX: u32 = 8;
/// While requests wait, the queue is served at least this often: unstreamed responses do not say when their prefill is
/// done, and what higher classes leave grows with time alone.
const PULSE: Duration = Duration::from_millis(50);
/// Requests that expire in one step, so that a long queue does not keep others from the brain.
const EXPIRED_A_STEP: usize = 256;

/// What the scheduler reads and does not own.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) settings: &'a queue::QueueSettings,
    pub(crate) fleet: &'a Fleet,
}

/// A worker at which a queue is served, and which of its requests.
#[derive(Clone, Copy)]
pub(crate) struct TurnAt {
    pub(crate) pool: PoolId,
    pub(crate) worker: WorkerId,
    pub(crate) whose: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Requests that wait for this worker, or for any.
    Own,
    /// Requests that wait for another worker.
    Others,
}

/// How many routers share the fleet, this one included: those that are live, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouterCount {
    pub(crate) live: u32,
    pub(crate) known: u32,
}

impl Default for RouterCount {
    fn default() -> RouterCount {
        RouterCount { live: 1, known: 1 }
    }
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    /// By `PoolId`.
    pools: NumberMap<Pool>,
    reservations: Reservations,
    long_prefills: LongPrefills,
    /// Queued requests, in all pools.
    waiting: usize,
    /// Since the last check for stranded requests, workers left or changed what they serve.
    pub(crate) fleet_changed: bool,
    /// When all pools were last served.
    served_at: Instant,
    pub(crate) allowances: Allowances,
    pub(crate) retry_budget: RetryBudget,
    moves: MoveBudget,
    pub(crate) hedge_budget: HedgeBudget,
    routers: RouterCount,
}

impl Scheduler {
    pub(crate) fn new(income: RetryIncome) -> Scheduler {
        Scheduler {
            pools: NumberMap::default(),
            reservations: Reservations::default(),
            long_prefills: LongPrefills::default(),
            waiting: 0,
            fleet_changed: false,
            served_at: Instant::ZERO,
            allowances: Allowances::new(),
            retry_budget: RetryBudget::new(income),
            moves: MoveBudget::default(),
            hedge_budget: HedgeBudget::default(),
            routers: RouterCount::default(),
        }
    }

    pub(crate) fn retune(&mut self, income: RetryIncome, settings: &queue::QueueSettings) {
        self.retry_budget.retune(income);
        for pool in self.pools.values_mut() {
            pool.queue.retune(&settings.classes, settings.aging);
        }
    }

    pub(crate) fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub(crate) fn long_prefills(&self) -> &LongPrefills {
        &self.long_prefills
    }

    pub(crate) fn long_prefills_mut(&mut self) -> &mut LongPrefills {
        &mut self.long_prefills
    }

    /// Queued requests, in all pools.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn waiting_in(&self, class: ClassId) -> Waiting {
        let queues = self.pools.values().map(|it| it.queue.waiting(class));
        queues.fold(Waiting::default(), |sum, it| Waiting {
            requests: sum.requests + it.requests,
            tokens: sum.tokens + it.tokens,
            cost: sum.cost + it.cost,
        })
    }

    /// When the queue must be served though no event arrives; none while it is empty.
    pub(crate) fn due(&self) -> Option<Instant> {
        if self.waiting == 0 {
            return None;
        }
        let earliest = self.pools.values().filter_map(|it| it.queue.earliest_deadline()).min();
        // At its latest moment a request may still go; after it, not.
        let pulse = self.served_at + PULSE;
        Some(earliest.map_or(pulse, |it| pulse.min(it + Duration::from_nanos(1))))
    }

    pub(crate) fn served_all(&mut self, now: Instant) {
        self.served_at = now;
    }

    // The fleet.

    pub(crate) fn set_routers(&mut self, live: u32, known: u32) {
        self.routers = RouterCount { live: live.max(1), known };
        self.allowances.share(RouterShare::of(live, known));
    }

    /// Routers that share the fleet and are live, this one included.
    pub(crate) fn live_routers(&self) -> u32 {
        self.routers.live
    }

    /// The part of each tenant's limit that this router grants: less than one while other routers are unreachable.
    pub(crate) fn limit_share(&self) -> f64 {
        RouterShare::of(self.routers.live, self.routers.known).part()
    }

    /// Counts the healthy workers of each pool.
    pub(crate) fn count_workers(&mut self, fleet: &Fleet) {
        for (&id, pool) in &mut self.pools {
            pool.flow.workers = workers_of(PoolId(id), fleet);
        }
    }

    /// Whether this worker may have more, for the first class that waits for it.
    pub(crate) fn has_room_at(&self, context: Context<'_>, worker: WorkerId) -> bool {
        let pool = self.pool(PoolId::of(context.fleet.base_of(worker)));
        let class = pool.and_then(|it| it.queue.first_class()).unwrap_or(ClassId(0));
        let snapshot = context.fleet.snapshot_of(context.now, worker);
        snapshot.is_some_and(|it| self.admission(context, pool.map(|it| &it.flow), class).is_open(&it))
    }

    fn admission(&self, context: Context<'_>, flow: Option<&Flow>, class: ClassId) -> Admission {
        let Context { now, settings, .. } = context;
        let part = settings.part_of(class);
        Admission {
            caps: settings.caps(),
            part,
            routers: self.routers.live,
            consideration: Consideration::Nobody,
            yields: part < 1.0 || flow.is_some_and(|it| it.yields(now, class)),
            wait_at_worker: settings.wait_at_worker(class),
            workers_for_long_prompts: flow.map_or(f64::INFINITY, |it| it.workers_for_long_prompts(class)),
        }
    }

    /// Workers with room to serve the queue at: those that requests wait for, and for each list of models one idle worker
    /// and one busy one. A request that such a one cannot serve, no other worker with the same list can serve.
    pub(crate) fn workers_with_room(&self, context: Context<'_>) -> Vec<WorkerId> {
        let mut found: Vec<&Worker> = Vec::new();
        for worker in context.fleet.workers().filter(|it| it.answers()) {
            let is_wanted = !self.reservations.is_clear(worker.id);
            let is_new =
                || !found.iter().any(|it| it.models == worker.models && it.is_idle() == worker.is_idle());
            if (is_wanted || is_new()) && self.has_room_at(context, worker.id) {
                found.push(worker);
            }
        }
        found.iter().map(|it| it.id).collect()
    }

    /// By which rules a worker is chosen for this request, when `at` has room or when the request arrives.
    pub(crate) fn rules(
        &self,
        context: Context<'_>,
        request: &PendingRequest,
        at: Option<WorkerId>,
    ) -> Rules {
        self.rules_in(context, self.pool(request.pool).map(|it| &it.flow), request, at)
    }

    /// The same, with this flow in place of that of the request's pool.
    pub(crate) fn rules_in(
        &self,
        context: Context<'_>,
        flow: Option<&Flow>,
        request: &PendingRequest,
        at: Option<WorkerId>,
    ) -> Rules {
        let admission = context.settings.enabled.then(|| {
            let of_class = self.admission(context, flow, request.class);
            // Requests with deadlines stay in the router as long as they can: here the earliest deadline goes first.
            Admission {
                yields: of_class.yields || request.deadline.is_some(),
                consideration: flow
                    .map_or(Consideration::Nobody, |it| it.consideration(context.now, request)),
                ..of_class
            }
        });
        // A request that no other may overtake any more takes what is free; so does one that has waited in vain.
        let is_barrier = || self.pool(request.pool).is_some_and(|it| it.queue.is_barrier(request.id));
        let scope = match request.reservation() {
            Some(it) if self.is_in_vain(context, it) => Scope::Open,
            Some(it) if Some(it.worker) == at => Scope::Picked(it.worker, it.why),
            Some(it) if at.is_some() && is_movable(request, it) => Scope::Open,
            _ if self.waiting > 0 && is_barrier() => Scope::Open,
            _ => Scope::Any,
        };
        Rules { admission, scope }
    }

    /// Whether the worker has taken no request for too long, or cannot.
    fn is_in_vain(&self, context: Context<'_>, reservation: &Reservation) -> bool {
        let worker = context.fleet.worker(reservation.worker);
        !worker.is_some_and(Worker::is_fit)
            || context.now.since(self.reservations.progress(reservation)) >= reservation.patience
    }

    /// Of the requests that `find` finds, lists those that may go next at this worker, in order: those that wait for it
    /// or for any worker; or else those that wait for another, and might come here instead.
    pub(crate) fn next_at<'a>(
        &mut self,
        context: Context<'_>,
        turn: TurnAt,
        find: impl Fn(RequestId) -> Option<&'a PendingRequest>,
        found: &mut Vec<RequestId>,
    ) {
        found.clear();
        let TurnAt { pool, worker, whose } = turn;
        let Some(allowed) = self.pools.get_mut(&pool.0).map(|it| it.allowed(context)) else { return };
        let is_here = |it: &PendingRequest| match it.reservation() {
            None => true,
            Some(reservation) => {
                reservation.worker == worker
                    || is_movable(it, reservation)
                    || self.is_in_vain(context, reservation)
            }
        };
        let fits = |id: RequestId| find(id).is_some_and(|it| is_here(it) == (whose == Whose::Own));
        if let Some(pool) = self.pools.get(&pool.0) {
            pool.queue.next_matching(context.now, allowed, fits, found);
        }
    }

    // Allowances and retries.

    /// A tenant spent this much at another router, in the pool of this model.
    pub(crate) fn spent_elsewhere(
        &mut self,
        context: Context<'_>,
        pool: Option<PoolId>,
        tenant: TenantId,
        passed: PeerUsage,
    ) {
        let terms = context.settings.terms(tenant);
        let tokens = passed.tokens;
        self.allowances.charge(context.now, tenant, terms, passed);
        if let Some(pool) = pool.and_then(|it| self.pools.get_mut(&it.0)) {
            pool.queue.correct(tenant, terms.weight, tokens as f64);
        }
    }

    /// Whether a request whose attempt has just failed so may be tried again. What never reached a worker costs nothing;
    /// the rest is paid from the retry budget.
    pub(crate) fn may_retry(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        failovers_max: u32,
        in_flight: usize,
    ) -> Result<(), RetryLimit> {
        let Some(failure) = request.failure else { return Err(RetryLimit::Failure) };
        // A request that may have blocked its worker would block the next one too.
        if matches!(failure, Failure::TimedOut | Failure::Silenced | Failure::NoSocket | Failure::Late) {
            return Err(RetryLimit::Failure);
        }
        if request.tried.len() as u32 >= ATTEMPTS_MAX {
            return Err(RetryLimit::Attempts);
        }
        request.within_failures(failovers_max)?;
        match failure.was_sent() {
            false => Ok(()),
            // The break after its last token was free; each further attempt is paid for as a move.
            true if request.interruptions > 0 => self.spend_move(now, in_flight),
            true => self.retry_budget.spend(now).then_some(()).ok_or(RetryLimit::Budget),
        }
    }

    /// Whether a response that has just broken off may go on at another worker, while this many requests are in flight.
    pub(crate) fn may_continue(
        &mut self,
        now: Instant,
        request: &mut PendingRequest,
        failovers_max: u32,
        in_flight: usize,
    ) -> Result<(), RetryLimit> {
        request.within_failures(failovers_max)?;
        request.spend_break(now)?;
        match request.standstills {
            // One that got further since its last break is held to its own pace alone.
            0 | 1 => Ok(()),
            _ => self.spend_move(now, in_flight),
        }
    }

    fn spend_move(&mut self, now: Instant, in_flight: usize) -> Result<(), RetryLimit> {
        self.moves.spend(now, Moves::of_fleet(in_flight)).then_some(()).ok_or(RetryLimit::Moves)
    }

    // The queue.

    pub(crate) fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.pools.get(&id.0)
    }

    pub(crate) fn pool_mut(&mut self, id: PoolId) -> Option<&mut Pool> {
        self.pools.get_mut(&id.0)
    }

    /// A request arrives at its pool. Returns the highest class that has to yield from now on and had not to before.
    pub(crate) fn arrived(&mut self, context: Context<'_>, request: &PendingRequest) -> Option<ClassId> {
        if let Some(pool) = self.pool_mut(request.pool) {
            return pool.flow.arrived(context.now, request);
        }
        self.pools.insert(request.pool.0, Pool::new(request.pool, context.settings));
        self.count_workers(context.fleet);
        self.pool_mut(request.pool)?.flow.arrived(context.now, request)
    }

    /// Whether a newcomer of this pool must queue: requests wait there already, or higher classes leave nothing.
    pub(crate) fn must_queue(&mut self, context: Context<'_>, request: &PendingRequest) -> bool {
        self.pool_mut(request.pool).is_some_and(|it| it.must_queue(context, request))
    }

    /// Whether a placed request is to be taken back for the sake of others: its worker would be at the limit without it, by
    /// the limit that holds while its class yields, and the queue has a place for it.
    pub(crate) fn is_surplus(&self, context: Context<'_>, request: &PendingRequest) -> bool {
        let (Some(pool), Some(attempt)) = (self.pool(request.pool), request.attempt()) else { return false };
        let of_class = self.admission(context, Some(&pool.flow), request.class);
        let yielding = Admission { yields: true, ..of_class };
        let snapshot = context.fleet.snapshot_of(context.now, attempt.worker);
        snapshot.is_some_and(|it| !yielding.is_open(&without(it, &attempt.promise)))
            && pool.fits(context, request)
    }

    pub(crate) fn dry_run(&self, context: Context<'_>, id: PoolId) -> DryRun {
        DryRun::new(self, context, id)
    }

    /// Queues a request. Returns the request that had to leave for it, if the class was full.
    pub(crate) fn join(
        &mut self,
        context: Context<'_>,
        request: &mut PendingRequest,
    ) -> Result<Option<RequestId>, NotQueued> {
        let Some(pool) = self.pools.get_mut(&request.pool.0) else { return Err(NotQueued::Full) };
        let displaced = pool.join(context, request)?;
        if self.waiting == 0 {
            self.served_at = context.now;
        }
        self.waiting += 1;
        let since = context.now;
        request.state = RequestState::Waiting(request::InQueue { since, reservation: None });
        self.waiting -= usize::from(displaced.is_some());
        Ok(displaced.map(|it| it.request))
    }

    /// Takes a request out of the queue, if it is there.
    pub(crate) fn leave(&mut self, request: &mut PendingRequest) {
        debug_assert!(request.reservation().is_none(), "a reservation is released first");
        if !request.is_waiting() {
            return;
        }
        request.state = RequestState::Unplaced;
        let pool = self.pools.get_mut(&request.pool.0);
        if pool.is_some_and(|it| it.queue.cancel(request.id).is_some()) {
            self.waiting -= 1;
        }
    }

    /// Requests whose time in the queue is over leave it, a limited number at a time.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<RequestId> {
        let mut late = Vec::new();
        for pool in
            self.pools.values_mut().filter(|it| it.queue.earliest_deadline().is_some_and(|it| it < now))
        {
            pool.queue.expire(now, EXPIRED_A_STEP, &mut late);
        }
        self.waiting -= late.len();
        late.into_iter().map(|it| it.request).collect()
    }

    /// When a refused client should retry: after the requests queued now, and after the clients refused before.
    pub(crate) fn retry_after(&mut self, context: Context<'_>, request: &PendingRequest) -> Duration {
        let pool = self.pools.get_mut(&request.pool.0);
        pool.map_or(Duration::ZERO, |it| it.retry_after(context, request))
    }

    // Reservations.

    /// A queued request waits for this worker. Reserve its capacity, so that later requests account for it.
    pub(crate) fn reserve(&mut self, request: &mut PendingRequest, reservation: Reservation) {
        if let RequestState::Waiting(waiting) = &mut request.state {
            self.reservations.add(request.class, &reservation);
            waiting.reservation = Some(reservation);
            if let Some(pool) = self.pools.get_mut(&request.pool.0) {
                pool.flow.reserved[request.class.index()] += 1;
            }
        }
    }

    pub(crate) fn release_reservation(&mut self, request: &mut PendingRequest) -> Option<Reservation> {
        let RequestState::Waiting(waiting) = &mut request.state else { return None };
        let reservation = waiting.reservation.take()?;
        self.reservations.remove(request.class, &reservation);
        if let Some(pool) = self.pools.get_mut(&request.pool.0) {
            pool.flow.reserved[request.class.index()] -= 1;
        }
        Some(reservation)
    }

    // Placements.

    /// A request was placed at this worker, and will take so many seconds of prefill.
    pub(crate) fn placed(
        &mut self,
        now: Instant,
        request: &PendingRequest,
        worker: WorkerId,
        prefill_seconds: f64,
    ) {
        self.reservations.placed(now, worker);
        if let Some(pool) = self.pools.get_mut(&request.pool.0) {
            pool.placed(now, request.class, prefill_seconds);
        }
    }

    /// The prompt of this attempt is prefilled, or will not be.
    pub(crate) fn prefill_ended(&mut self, class: ClassId, attempt: &mut Attempt) {
        if std::mem::take(&mut attempt.is_long_prefill) {
            self.long_prefills.end(attempt.worker, class);
        }
    }

    /// A request was released from its worker, whatever became of it.
    pub(crate) fn released(&mut self, request: &PendingRequest) {
        if let Some(pool) = self.pools.get_mut(&request.pool.0) {
            pool.released(request.class);
        }
    }

    /// A queued request was placed, ahead of `passed`. Its tenant is charged what it really has to compute; the charge is
    /// corrected when the response has ended.
    pub(crate) fn went(&mut self, context: Context<'_>, request: &mut PendingRequest, passed: &[RequestId]) {
        let Some(pool) = self.pools.get_mut(&request.pool.0) else { return };
        let decode = request.ask.decode.0 as f64 * decode_weight(rates_of(context.fleet, request));
        let cost = request.attempt().map(|it| it.promise.prefill.tokens.0 as f64 + decode);
        let entry = match cost {
            Some(cost) => pool.queue.dequeue_at_cost(context.now, request.id, passed, cost),
            None => pool.queue.dequeue(context.now, request.id, passed),
        };
        let Some(entry) = entry else { return };
        self.waiting -= 1;
        pool.flow.drain.observe(context.now, entry.cost);
        if let Some(attempt) = request.attempt_mut() {
            attempt.charged = cost;
        }
    }

    /// The request did not get what it was charged for.
    pub(crate) fn refund(&mut self, context: Context<'_>, request: &PendingRequest, attempt: &Attempt) {
        let weight = context.settings.terms(request.tenant).weight;
        if let (Some(cost), Some(pool)) = (attempt.charged, self.pools.get_mut(&request.pool.0)) {
            pool.queue.correct(request.tenant, weight, -cost);
        }
    }

    /// The response has ended, with this many tokens: corrects the charge by what was expected.
    pub(crate) fn settle_charge(
        &mut self,
        context: Context<'_>,
        ended: (&PendingRequest, &Attempt),
        tokens: u64,
    ) {
        let (request, attempt) = ended;
        let (Some(_), Some(pool)) = (attempt.charged, self.pools.get_mut(&request.pool.0)) else { return };
        let difference = tokens as f64 - request.ask.decode.0 as f64;
        let weight = context.settings.terms(request.tenant).weight;
        let cost = difference * decode_weight(rates_of(context.fleet, request));
        pool.queue.correct(request.tenant, weight, cost);
    }
}

#[cfg(test)]
impl Scheduler {
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.values()
    }
}

/// Healthy workers of this pool.
fn workers_of(id: PoolId, fleet: &Fleet) -> u32 {
    let is_here = |it: &&Worker| it.is_fit() && it.answers() && PoolId::of(fleet.base_of(it.id)) == id;
    fleet.workers().filter(is_here).count() as u32
}

/// Whether a request may go to any worker though it waits for one: it has a deadline, and the worker holds nothing of it
/// that another would have to compute.
fn is_movable(request: &PendingRequest, reservation: &Reservation) -> bool {
    request.deadline.is_some() && !reservation.is_kept
}

/// The pool of the workers that may take this.
pub(crate) fn pool_of(wanted: Wanted, fleet: &Fleet) -> PoolId {
    PoolId::of(fleet.base_wanted(wanted))
}

/// How fast the workers of this request are together.
fn rates_of<'a>(fleet: &'a Fleet, request: &PendingRequest) -> &'a Rates {
    fleet.model_rates(request.pool.model()).rates()
}

/// The queue entry of a request.
fn entry(context: Context<'_>, request: &PendingRequest) -> QueueEntry {
    let rates = rates_of(context.fleet, request);
    let own = Duration::try_from_secs_f64(rates.prefill.base).unwrap_or_default();
    QueueEntry {
        request: request.id,
        class: request.class,
        tenant: request.tenant,
        weight: context.settings.terms(request.tenant).weight,
        tokens: request.tokens(),
        cost: cost(request, rates),
        since: request.arrived,
        latest: request.deadline.map(|it| it.before(own)).or(request.patience),
    }
}

/// Expected work, in tokens of prefill. What of it is cached is not known before the request is placed.
fn cost(request: &PendingRequest, rates: &Rates) -> f64 {
    request.ask.prefill.0 as f64 + request.ask.decode.0 as f64 * decode_weight(rates)
}

/// Cost of one decoded token, in tokens of prefill.
fn decode_weight(rates: &Rates) -> f64 {
    rates.decode.slope / rates.prefill.slope
}

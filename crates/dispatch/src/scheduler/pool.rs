//! The workers of one model, the requests that wait for them, and what the classes leave each other.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId};
use maitre_fleet::ModelId;
use maitre_queue::settings::CLASSES_MAX;
use maitre_queue::wait_queue::QueueEntry;
use maitre_queue::{
    ClassMask, DrainRate, QueueSettings, QueueView, RetrySchedule, SpareCapacity, WaitQueue, spare_capacity,
};

use super::{Context, Scheduler, cost, entry, rates_of};
use crate::placer::Consideration;
use crate::request::{PendingRequest, PoolId};

/// How long a lower class looks for a moment at which the other workers can take what comes. On two workers (`h100x2-32b`, chats at
/// 40 %, eight seeds) the chats' p99 beside a burst was up to 2.14 times that without one when only the job's own worker was
/// looked at: the other had six prompts to prefill when it was left alone with all chats. It is up to 1.86 times now.
const FLEET_CLEAR: Duration = Duration::from_millis(500);

/// How long it looks for a worker at which it delays no first token. A busy moment lasts longer than `FLEET_CLEAR`: with the same
/// limit for both, a job went to any worker in the worst moment (1.97 times; on four workers at 80 % 1.63 instead of 1.51).
const WORKER_CLEAR: Duration = Duration::from_millis(1_500);

/// How long the classes above must have had no request before their last ones no longer count. Their use is an average of some
/// seconds: after the last chat, jobs would be held back for another fifteen.
const PAUSE: Duration = Duration::from_secs(1);

/// How long after its last arrival a class counts as present. Chosen: longer than the pauses of a chat, so that lower
/// classes do not fill the workers in each of them.
const PRESENT: Duration = Duration::from_secs(30);

/// Why a request cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// Its turn would come after its deadline.
    Late,
    /// The queue of its class is full.
    Full,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) queue: WaitQueue,
    pub(crate) flow: Flow,
}

/// How fast a pool works and what its classes leave each other: everything but the queue. Of a fixed size, so that a dry
/// run can copy it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// The model of its workers.
    model: Option<ModelId>,
    pub(crate) drain: DrainRate,
    /// When refused clients were asked to retry, by class.
    retries: [RetrySchedule; CLASSES_MAX],
    spare: SpareCapacity,
    /// Queued requests that wait for one particular worker, by class.
    pub(super) reserved: [u32; CLASSES_MAX],
    /// Requests at workers, by class.
    placed: [u32; CLASSES_MAX],
    /// By class.
    seen: [Arrivals; CLASSES_MAX],
    /// Utilisation by the classes above, by class.
    in_use: [f64; CLASSES_MAX],
    /// Seconds of prefill that were placed, by class.
    prefill: [DrainRate; CLASSES_MAX],
    /// Healthy workers.
    pub(crate) workers: u32,
}

/// What has arrived of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    last: Option<Instant>,
    /// Whose request the last one was.
    tenant: TenantId,
    /// When the tenant was last another than before.
    tenant_changed: Option<Instant>,
}

impl Arrivals {
    fn arrived(&mut self, now: Instant, tenant: TenantId) {
        if self.last.is_some() && self.tenant != tenant {
            self.tenant_changed = Some(now);
        }
        (self.last, self.tenant) = (Some(now), tenant);
    }
}

fn is_recent(now: Instant, at: Option<Instant>) -> bool {
    at.is_some_and(|it| now.since(it) < PRESENT)
}

impl Scheduler {
    /// The tenant with the largest share of a queue of this class, and how many of its requests wait there.
    pub(crate) fn largest_tenant(&self, class: ClassId) -> Option<(TenantId, u32)> {
        self.pools.values().filter_map(|it| it.queue.largest_tenant(class)).max_by_key(|it| it.1)
    }
}

impl Pool {
    pub(super) fn new(id: PoolId, settings: &QueueSettings) -> Pool {
        Pool { queue: WaitQueue::new(&settings.classes, settings.aging), flow: Flow::new(id, 1) }
    }

    /// A request was placed that will take so many seconds of prefill.
    pub(super) fn placed(&mut self, now: Instant, class: ClassId, prefill_seconds: f64) {
        self.flow.placed[class.index()] += 1;
        self.flow.prefill[class.index()].observe(now, prefill_seconds);
        self.flow.spare.spend(class, prefill_seconds);
    }

    pub(super) fn released(&mut self, class: ClassId) {
        let placed = &mut self.flow.placed[class.index()];
        *placed = placed.saturating_sub(1);
    }

    /// Whether a newcomer of this class must queue: requests of its class or above wait for any worker, or higher classes
    /// leave nothing.
    pub(crate) fn must_queue(&mut self, context: Context<'_>, request: &PendingRequest) -> bool {
        self.flow.must_queue(context, self.queue.view(), request)
    }

    /// Whether this request can join the queue without another having to leave.
    pub(super) fn fits(&self, context: Context<'_>, request: &PendingRequest) -> bool {
        self.queue.has_place(&entry(context, request))
    }

    /// Queues a request, unless its turn would come too late. Returns the entry that had to leave for it.
    pub(crate) fn join(
        &mut self,
        context: Context<'_>,
        request: &PendingRequest,
    ) -> Result<Option<QueueEntry>, NotQueued> {
        let entry = entry(context, request);
        self.flow.check_in_time(context, &self.queue, &entry)?;
        self.queue.enqueue(entry).map_err(|_| NotQueued::Full)
    }

    /// The classes of which a request may go now.
    pub(super) fn allowed(&mut self, context: Context<'_>) -> ClassMask {
        self.flow.allowed(context, self.queue.view())
    }

    /// The requests that may go next, in order, of those that `fits` admits.
    pub(crate) fn next(
        &mut self,
        context: Context<'_>,
        fits: impl Fn(RequestId) -> bool,
        found: &mut Vec<RequestId>,
    ) {
        let allowed = self.allowed(context);
        self.queue.next_matching(context.now, allowed, fits, found);
    }

    /// When the client of this request should retry.
    pub(super) fn retry_after(&mut self, context: Context<'_>, request: &PendingRequest) -> Duration {
        self.flow.retry_after(context, self.queue.view(), request)
    }
}

impl Flow {
    pub(super) fn new(id: PoolId, workers: u32) -> Flow {
        Flow { model: id.model(), workers, ..Flow::default() }
    }

    pub(super) fn must_queue(
        &mut self,
        context: Context<'_>,
        queue: QueueView<'_>,
        request: &PendingRequest,
    ) -> bool {
        let class = request.class;
        self.workers > 0 && (self.wait_for_any(queue, class) > 0 || !self.allowed(context, queue).has(class))
    }

    /// Queued requests of this class and above that wait for any worker.
    fn wait_for_any(&self, queue: QueueView<'_>, class: ClassId) -> u32 {
        let classes = (0..=class.0).map(ClassId);
        classes.map(|it| queue.waiting(it).requests.saturating_sub(self.reserved[it.index()])).sum()
    }

    /// Counts an arrival. Returns the highest class that yields to it and had nothing to yield to before; lower ones do
    /// too.
    pub(super) fn arrived(&mut self, now: Instant, request: &PendingRequest) -> Option<ClassId> {
        let class = request.class;
        let was_present = self.is_present(now, class.index());
        let seen = &mut self.seen[class.index()];
        let had_tenants = is_recent(now, seen.tenant_changed);
        seen.arrived(now, request.tenant);
        match is_recent(now, seen.tenant_changed) {
            true if !had_tenants => Some(class),
            _ if !was_present => Some(ClassId(class.0 + 1)),
            _ => None,
        }
    }

    /// Whether this class has requests at workers, or had an arrival lately.
    fn is_present(&self, now: Instant, class: usize) -> bool {
        self.placed[class] > 0 || is_recent(now, self.seen[class].last)
    }

    /// Whether the classes above this one have nothing at workers, and had no arrival for a while.
    fn is_paused(&self, now: Instant, class: usize) -> bool {
        let is_over = |it: &Arrivals| it.last.is_none_or(|last| now.since(last) >= PAUSE);
        self.placed[..class].iter().all(|&it| it == 0) && self.seen[..class].iter().all(is_over)
    }

    /// Whether workers must keep room for others than the first that comes. Those are a class above this one that has
    /// requests at workers or had an arrival lately, and the other tenants of this class.
    pub(super) fn yields(&self, now: Instant, class: ClassId) -> bool {
        (0..class.index()).any(|above| self.is_present(now, above))
            || is_recent(now, self.seen[class.index()].tenant_changed)
    }

    /// Fails if the turn of this entry would come after its latest moment.
    pub(super) fn check_in_time(
        &mut self,
        context: Context<'_>,
        queue: &WaitQueue,
        entry: &QueueEntry,
    ) -> Result<(), NotQueued> {
        let now = context.now;
        if queue.is_empty() {
            self.drain.resume(now);
        }
        let ahead = self.drain.rate().map(|it| queue.cost_before(entry) / it);
        let is_late =
            |it: Instant| it < now || ahead.is_some_and(|ahead| ahead > it.since(now).as_secs_f64());
        if entry.latest.is_some_and(is_late) { Err(NotQueued::Late) } else { Ok(()) }
    }

    /// Whose first tokens this request must not delay if its prompt is long. It looks for such a worker while the classes above
    /// have more than one request per worker, and takes another if it has found none for a while.
    pub(super) fn consideration(&self, now: Instant, request: &PendingRequest) -> Consideration {
        let class = request.class;
        let above: u32 = self.placed[..class.index()].iter().sum();
        // Since it is its turn, as far as is known: the first of a burst comes when its class has owed nothing for long.
        match self.spare.idle(now, class).min(now.since(request.arrived)) {
            _ if above <= self.workers => Consideration::Nobody,
            looked if looked < FLEET_CLEAR => Consideration::Fleet,
            looked if looked < WORKER_CLEAR => Consideration::Worker,
            _ => Consideration::Nobody,
        }
    }

    /// How many workers may prefill long prompts of this class at the same time.
    pub(super) fn workers_for_long_prompts(&self, class: ClassId) -> f64 {
        spare_capacity::workers_for_long_prompts(self.in_use[class.index()], self.workers)
    }

    /// When the client of this request should retry. Classes below are asked to retry after it, since it will go before
    /// them; classes above are not affected.
    pub(super) fn retry_after(
        &mut self,
        context: Context<'_>,
        queue: QueueView<'_>,
        request: &PendingRequest,
    ) -> Duration {
        let Context { now, fleet, .. } = context;
        let seconds = self.drain.rate().map_or(0.0, |it| cost(request, rates_of(fleet, request)) / it);
        // No request may have left the queue for a while.
        self.drain.observe(now, 0.0);
        let mut retry_after = Duration::ZERO;
        for place in (request.class.index()..CLASSES_MAX).rev() {
            let class = ClassId(place as u8);
            let ahead = self.drain.rate().map_or(0.0, |it| queue.cost_ahead(class) / it);
            retry_after = self.retries[place].retry_after(now, ahead, seconds);
        }
        retry_after
    }

    /// The classes of which a request may go now, by what the classes above leave.
    pub(super) fn allowed(&mut self, context: Context<'_>, queue: QueueView<'_>) -> ClassMask {
        self.earn(context);
        self.mask(context.settings, queue)
    }

    /// Brings up to date what the classes leave each other.
    fn earn(&mut self, context: Context<'_>) {
        let workers = f64::from(self.workers.max(1));
        let knee = context.fleet.model_rates(self.model).knee().requests;
        let mut rates = [f64::INFINITY; CLASSES_MAX];
        let (mut requests, mut prefill) = (0, 0.0);
        for (place, rate) in rates.iter_mut().enumerate().take(context.settings.classes.len()) {
            // Decode throughput saturates: n requests use n / (knee + n) of a worker whose steps knee at `knee`.
            let crowd = f64::from(requests) / workers;
            let in_use = match self.is_paused(context.now, place) {
                true => 0.0,
                false => (crowd / (knee + crowd)).max(prefill / workers),
            };
            self.in_use[place] = in_use;
            *rate = workers * spare_capacity::rate(in_use);
            requests += self.placed[place];
            self.prefill[place].observe(context.now, 0.0);
            prefill += self.prefill[place].rate().unwrap_or(0.0);
        }
        self.spare.earn(context.now, &rates);
    }

    fn mask(&self, settings: &QueueSettings, queue: QueueView<'_>) -> ClassMask {
        let mut mask = ClassMask::NONE;
        for place in 0..settings.classes.len() {
            let class = ClassId(place as u8);
            match self.spare.allows(class) {
                true => mask = mask.with(class),
                // No class below goes before a request that waits for the sake of those above.
                false if queue.waiting(class).requests > 0 => break,
                false => {}
            }
        }
        mask
    }
}

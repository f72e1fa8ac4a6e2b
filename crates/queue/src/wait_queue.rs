//! The wait queue of one pool of workers: the requests that no worker can take yet, and which of them goes
//! next.
//!
//! Three rules, from the outside in. Between classes precedence is strict. Between the tenants of a class,
//! the one with the least work for its weight goes next, and among equals the one that waits longest
//! (`class_queue.rs`). Within a tenant the earliest deadline goes first, then the oldest request (`share.rs`). Aging softens the first rule: a request that
//! has waited long behind higher classes goes before them, for at most a tenth of the work (`aging.rs`).
//!
//! The first request in order need not go first. If no worker has room for it, later requests that fit may
//! overtake it, so that workers do not idle behind a large request. After `OVERTAKEN_MAX` overtakes the queue
//! waits until it fits.
//!
//! Everything is kept in trees, so a step costs a few tree walks, however long the queue is. Hash tables are faster
//! on average, but every queued request would wait while one of them grows.
//!
//! Left out: whether a request can meet its deadline, which depends on the workers. The caller sets `latest`,
//! and may `cancel` the request.

mod aging;
mod class_queue;
mod share;
#[cfg(test)]
mod tests;
mod view;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId};

use self::aging::Credit;
use self::class_queue::ClassQueue;
pub use self::view::QueueView;
use self::work::Work;
use crate::settings::{CLASSES_MAX, Class};

/// Maximum requests shown at once. Chosen: each is priced at every worker, and if eight do not fit the ninth
/// hardly does.
pub const LOOK: usize = 8;
/// Maximum times that one request may be overtaken. Chosen: some seconds of a busy pool, far less than a
/// deadline.
pub const OVERTAKEN_MAX: u32 = 32;
/// Maximum requests skipped in search of one that fits the worker at hand.
const PASSED_OVER_MAX: usize = 256;
/// The same for the first one: with a thousand workers, every thousandth request is for the worker at hand.
const SEARCHED_MAX: usize = 16_384;

/// A request in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueEntry {
    pub request: RequestId,
    pub class: ClassId,
    pub tenant: TenantId,
    /// The tenant's weight among the tenants of its class.
    pub weight: f64,
    /// What it counts towards the class's `tokens_max`.
    pub tokens: u64,
    /// Its expected work in tokens of prefill, charged to its tenant when it is dequeued. A price, and so not
    /// a `Promise`: it includes the answer at the exchange rate of the fleet.
    pub cost: f64,
    /// When it was enqueued. After a recall, when it first arrived, so that it regains its position.
    pub since: Instant,
    /// The last moment at which placing it makes sense.
    pub latest: Option<Instant>,
}

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassMask(u8);

impl ClassMask {
    pub const NONE: ClassMask = ClassMask(0);
    pub const ALL: ClassMask = ClassMask(u8::MAX);

    #[must_use]
    pub fn with(self, class: ClassId) -> ClassMask {
        ClassMask(self.0 | bit(class))
    }

    pub fn has(self, class: ClassId) -> bool {
        self.0 & bit(class) != 0
    }
}

/// A class number out of range is in no set, not even in `ALL`.
fn bit(class: ClassId) -> u8 {
    1u8.checked_shl(u32::from(class.0)).unwrap_or(0)
}

/// The class is full, and no tenant in it has more than its fair share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("class {} has no room left", .class.0)]
pub struct ClassFull {
    pub class: ClassId,
}

/// Everything queued in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    pub requests: u32,
    pub tokens: u64,
    /// In tokens of prefill.
    pub cost: f64,
}

/// One more request, and the request that would leave to make room for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addition {
    entry: QueueEntry,
    leaving: Option<QueueEntry>,
}

/// Not `Clone`: a queue may hold 50,000 requests. A dry run asks `view_with` instead.
#[derive(Debug)]
pub struct WaitQueue {
    /// By class.
    classes: Vec<ClassQueue>,
    queued: BTreeMap<RequestId, QueuedRequest>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    aging: Duration,
    credit: Credit,
}

#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    entry: QueueEntry,
    overtaken: u32,
}

impl WaitQueue {
    /// `classes` are in order of precedence; those after the first `CLASSES_MAX` are ignored.
    pub fn new(classes: &[Class], aging: Duration) -> WaitQueue {
        WaitQueue {
            classes: classes.iter().take(CLASSES_MAX).map(ClassQueue::new).collect(),
            queued: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            aging,
            credit: Credit::default(),
        }
    }

    /// Applies new limits to the same classes. Queued requests stay, even where there are more than the new
    /// limits admit. The list of classes must have the same length as before.
    pub fn retune(&mut self, classes: &[Class], aging: Duration) {
        debug_assert_eq!(self.classes.len(), classes.len().min(CLASSES_MAX), "classes do not come and go");
        self.aging = aging;
        for (class_queue, class) in self.classes.iter_mut().zip(classes) {
            class_queue.retune(class);
        }
    }

    /// Adds a request. If its class is full, the last request of the tenant with the largest share is removed
    /// and returned, provided that the new request's tenant would still have less and that the removal makes
    /// enough room. Otherwise nothing changes.
    pub fn enqueue(&mut self, entry: QueueEntry) -> Result<Option<QueueEntry>, ClassFull> {
        debug_assert!(!self.contains(entry.request), "joined twice");
        let Addition { leaving, .. } = self.preview(entry)?;
        if let Some(other) = leaving {
            self.cancel(other.request);
        }
        self.classes[entry.class.index()].add(&entry);
        self.queued.insert(entry.request, QueuedRequest { entry, overtaken: 0 });
        self.deadlines.extend(entry.latest.map(|it| (it, entry.request)));
        Ok(leaving)
    }

    /// Whether the class has room for this request without displacing another.
    pub fn has_place(&self, entry: &QueueEntry) -> bool {
        self.classes.get(entry.class.index()).is_some_and(|it| it.fits(entry, None))
    }

    /// What `enqueue` would do with this request, without doing it.
    pub fn preview(&self, entry: QueueEntry) -> Result<Addition, ClassFull> {
        let full = ClassFull { class: entry.class };
        let class_queue = self.classes.get(entry.class.index()).ok_or(full)?;
        let leaving = match class_queue.fits(&entry, None) {
            _ if self.contains(entry.request) => return Err(full),
            true => None,
            false => {
                let other = class_queue.displaced_by(&entry).and_then(|it| self.entry(it));
                Some(other.filter(|it| class_queue.fits(&entry, Some(it))).ok_or(full)?)
            }
        };
        Ok(Addition { entry, leaving })
    }

    pub fn view(&self) -> QueueView<'_> {
        QueueView { queue: self, addition: None }
    }

    /// The queue as `enqueue` would leave it after `preview` returned this addition, if nothing changes in
    /// between. One difference: a tenant that would be forgiven because too many are remembered is not.
    pub fn view_with<'a>(&'a self, addition: &'a Addition) -> QueueView<'a> {
        QueueView { queue: self, addition: Some(addition) }
    }

    /// Lists the requests that may go now, in order and at most `LOOK`, replacing the contents of `found`. A
    /// request that has been overtaken too often ends the list.
    ///
    /// The first entry is exact. The order of the rest assumes that none is enqueued meanwhile and that each
    /// class is alone.
    pub fn next(&self, now: Instant, open: ClassMask, found: &mut Vec<RequestId>) {
        self.next_matching(now, open, |_| true, found);
    }

    /// The same for the requests that pass `fits`; after a long run of requests that do not, the list may end
    /// early.
    pub fn next_matching(
        &self,
        now: Instant,
        open: ClassMask,
        fits: impl Fn(RequestId) -> bool,
        found: &mut Vec<RequestId>,
    ) {
        self.view().next_matching(now, open, fits, found);
    }

    /// The request goes to a worker, before all of `passed`, which were ahead of it. Charges its tenant in
    /// every class that knows it. If the request is recalled later, `correct` by the same amount.
    pub fn dequeue(&mut self, now: Instant, request: RequestId, passed: &[RequestId]) -> Option<QueueEntry> {
        let cost = self.entry(request)?.cost;
        self.dequeue_at_cost(now, request, passed, cost)
    }

    /// The same for a request that turned out to cost this much instead of what was expected.
    pub fn dequeue_at_cost(
        &mut self,
        now: Instant,
        request: RequestId,
        passed: &[RequestId],
        cost: f64,
    ) -> Option<QueueEntry> {
        let entry = self.entry(request)?;
        let charged = Work::of(cost);
        for (class, class_queue) in (0..).map(ClassId).zip(&mut self.classes) {
            match class == entry.class {
                true => class_queue.serve(&entry, charged),
                false => class_queue.charge(entry.tenant, charged.over(entry.weight)),
            }
        }
        self.cancel(request);
        let mut overtook_above = false;
        for request in passed {
            let Some(place) = self.queued.get_mut(request) else { continue };
            place.overtaken = place.overtaken.saturating_add(1);
            overtook_above |= place.entry.class < entry.class;
        }
        self.settle_age(now, entry.class, Work::of(entry.cost), overtook_above);
        Some(entry)
    }

    /// Removes a request that does not go to a worker: its client disconnected, or it is refused. Charges
    /// nothing.
    pub fn cancel(&mut self, request: RequestId) -> Option<QueueEntry> {
        let QueuedRequest { entry, .. } = self.queued.remove(&request)?;
        if let Some(latest) = entry.latest {
            self.deadlines.remove(&(latest, request));
        }
        if let Some(class_queue) = self.classes.get_mut(entry.class.index()) {
            class_queue.remove(&entry);
        }
        Some(entry)
    }

    /// Removes requests whose `latest` has passed into `late`, the earliest first, at most `most` of them.
    pub fn expire(&mut self, now: Instant, most: usize, late: &mut Vec<QueueEntry>) {
        for _ in 0..most {
            let Some(&(_, request)) = self.deadlines.first().filter(|it| it.0 < now) else { return };
            late.extend(self.cancel(request));
        }
    }

    /// The earliest `latest` of all queued requests.
    pub fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|it| it.0)
    }

    /// A dequeued request cost its tenant `difference` tokens more than it was charged, or fewer if negative.
    /// A class that has forgotten the tenant gives nothing back: the debt was forgiven with it.
    pub fn correct(&mut self, tenant: TenantId, weight: f64, difference: f64) {
        let work = Work::exactly(difference.abs()).over(weight);
        for class_queue in &mut self.classes {
            match difference < 0.0 {
                true => class_queue.give_back(tenant, work),
                false => class_queue.charge(tenant, work),
            }
        }
    }

    pub fn len(&self) -> usize {
        self.queued.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Whether it has been overtaken so often that no other request may go before it.
    pub fn is_barrier(&self, request: RequestId) -> bool {
        self.queued.get(&request).is_some_and(|it| it.overtaken >= OVERTAKEN_MAX)
    }

    pub fn contains(&self, request: RequestId) -> bool {
        self.queued.contains_key(&request)
    }

    pub fn waiting(&self, class: ClassId) -> Waiting {
        self.view().waiting(class)
    }

    /// The tenant whose requests take the largest share of the class, for its weight, and how many they are.
    pub fn largest_tenant(&self, class: ClassId) -> Option<(TenantId, u32)> {
        self.classes.get(class.index())?.largest_tenant()
    }

    /// The highest class with queued requests.
    pub fn first_class(&self) -> Option<ClassId> {
        let classes = (0..).map(ClassId).zip(&self.classes);
        classes.filter(|it| !it.1.is_empty()).map(|it| it.0).next()
    }

    /// The work ahead of a new request of this class: all of its class and of those above. An upper estimate,
    /// apart from the tenth that goes by age: fair shares may let it go before others of its class.
    pub fn cost_ahead(&self, class: ClassId) -> f64 {
        self.view().cost_ahead(class)
    }

    /// The work that certainly goes before this entry, given the queue now: everything in the classes above,
    /// its own tenant's earlier requests, and what other tenants get meanwhile.
    pub fn cost_before(&self, entry: &QueueEntry) -> f64 {
        let above: f64 = (0..entry.class.0).map(|it| self.waiting(ClassId(it)).cost).sum();
        above + self.classes.get(entry.class.index()).map_or(0.0, |it| it.before(entry))
    }

    /// Remembered tenants, counted once per class: those with queued requests, and those that had more than
    /// their share lately.
    pub fn tenants(&self) -> usize {
        self.classes.iter().map(ClassQueue::tenants).sum()
    }

    fn entry(&self, request: RequestId) -> Option<QueueEntry> {
        self.queued.get(&request).map(|it| it.entry)
    }

    /// Accounts for work of this class. A request that goes while a higher class waits goes by age, unless it
    /// overtook a request of that class: that one did not fit, and lost nothing.
    fn settle_age(&mut self, now: Instant, class: ClassId, work: Work, overtook_above: bool) {
        let (above, rest) = self.classes.split_at(class.index());
        let goes_by_age = !overtook_above && above.iter().any(|it| !it.is_empty());
        let aged_below = rest.iter().skip(1).filter_map(|it| self.aged(it, now)).max();
        if goes_by_age {
            self.credit.spend(work);
        } else if let Some(most) = aged_below {
            self.credit.earn(work, most);
        } else if !self.classes.iter().skip(1).any(|it| self.aged(it, now).is_some()) {
            self.credit.reset();
        }
    }

    /// The cost of the oldest request of a class, if it has aged.
    fn aged(&self, class_queue: &ClassQueue, now: Instant) -> Option<Work> {
        let (_, request) = class_queue.oldest(None).filter(|it| now.since(it.0) >= self.aging)?;
        self.entry(request).map(|it| Work::of(it.cost))
    }
}

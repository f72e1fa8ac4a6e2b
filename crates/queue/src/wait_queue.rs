//! The line of one pool of workers: all who wait for any of them, and who of them goes next.
//!
//! Three rules, from the outside in. Between classes precedence is strict: the first class that may go goes.
//! Between the tenants of a class shares are fair: whoever got least for its weight goes (`class_queue.rs`). Within a
//! tenant the earliest deadline goes, then the oldest (`share.rs`). Beside the first rule stands aging: who has
//! waited long behind higher classes goes before them, for a tenth of the work at most (`aging.rs`).
//!
//! The first in order need not be the one that goes: what fits no worker now may be overtaken by the next ones
//! that do, so that nobody idles behind a big party. But only by so many: then all wait until it fits.
//!
//! Everything is kept in trees, and no step costs more than a few walks down them, however many wait. Hash tables
//! would be faster on the mean, but now and then one of them grows, and all who wait would wait for that too.
//!
//! What this leaves out: whether a request could make its deadline, which takes knowing the workers. The caller
//! says so with `latest`, and may let it `cancel`.

mod aging;
mod class_queue;
mod share;
#[cfg(test)]
mod tests;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId};

use self::aging::Credit;
use self::class_queue::ClassQueue;
use self::work::Work;
use crate::settings::{CLASSES_MAX, Class};

/// How many are shown at once. Chosen: each of them is priced at every worker, and if eight do not fit it is not
/// likely that the ninth does.
pub const LOOK: usize = 8;
/// How often one may be overtaken. Chosen: some seconds of a busy pool, and far less than a deadline.
pub const OVERTAKEN_MAX: u32 = 32;
/// Those who cannot go to the worker at hand, and are passed over in search of one who can.
const PASSED_OVER_MAX: usize = 256;

/// One who waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueEntry {
    pub request: RequestId,
    pub class: ClassId,
    pub tenant: TenantId,
    /// Of the tenant, beside others in the same class.
    pub weight: f64,
    /// What it takes of the class's `tokens_max`.
    pub tokens: u64,
    /// The work expected of it, in tokens of prefill: what its tenant is charged when it goes.
    pub cost: f64,
    /// When it joined; of one that was called back, when it first arrived: so it regains its place.
    pub since: Instant,
    /// The last moment at which seating it makes sense.
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

/// A class that cannot be is in no set, not even in the set of all.
fn bit(class: ClassId) -> u8 {
    1u8.checked_shl(u32::from(class.0)).unwrap_or(0)
}

/// The class holds all it may, and nobody in it has more than its fair part of the queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("class {} has no place left", .class.0)]
pub struct ClassFull {
    pub class: ClassId,
}

/// All who wait in one class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    pub requests: u32,
    pub tokens: u64,
    /// In tokens of prefill.
    pub cost: f64,
}

#[derive(Clone, Debug)]
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
    /// Of `classes`, in order of precedence, the first `CLASSES_MAX` count.
    pub fn new(classes: &[Class], aging: Duration) -> WaitQueue {
        WaitQueue {
            classes: classes.iter().take(CLASSES_MAX).map(ClassQueue::new).collect(),
            queued: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            aging,
            credit: Credit::default(),
        }
    }

    /// Other bounds for the same classes, from now on; those who wait keep their queued, also where there are now more
    /// than would be let in. The list of classes must be the one the line was made with.
    pub fn retune(&mut self, classes: &[Class], aging: Duration) {
        debug_assert_eq!(self.classes.len(), classes.len().min(CLASSES_MAX), "classes do not come and go");
        self.aging = aging;
        for (class_queue, class) in self.classes.iter_mut().zip(classes) {
            class_queue.retune(class);
        }
    }

    /// Lets it wait. If its class is full, one of the tenant that has most of the queued leaves for it and is
    /// returned, provided that the newcomer's tenant would have less even with it, and that this one leaving
    /// makes room enough. Otherwise nothing has changed.
    pub fn enqueue(&mut self, entry: QueueEntry) -> Result<Option<QueueEntry>, ClassFull> {
        debug_assert!(!self.contains(entry.request), "joined twice");
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
        if let Some(other) = leaving {
            self.cancel(other.request);
        }
        self.classes[entry.class.index()].add(&entry);
        self.queued.insert(entry.request, QueuedRequest { entry, overtaken: 0 });
        self.deadlines.extend(entry.latest.map(|it| (it, entry.request)));
        Ok(leaving)
    }

    /// Shows who may go now, in order and at most `LOOK` of them, in place of whatever was in `found`. One that has
    /// been overtaken too often ends the list: nobody goes before it any more.
    ///
    /// The first is exact. Further down the order is what it would be if none joined and each class were alone.
    pub fn next(&self, now: Instant, open: ClassMask, found: &mut Vec<RequestId>) {
        self.next_matching(now, open, |_| true, found);
    }

    /// The same, as if those whom `fits` rules out were not there; after a long run of them the list may end early.
    pub fn next_matching(
        &self,
        now: Instant,
        open: ClassMask,
        fits: impl Fn(RequestId) -> bool,
        found: &mut Vec<RequestId>,
    ) {
        found.clear();
        let aged = self.first_by_age(now, open).filter(|&it| fits(it));
        found.extend(aged);
        let mut left = PASSED_OVER_MAX;
        for (_, class_queue) in self.open(open) {
            class_queue.list(found, |it| {
                let is_in = aged != Some(it) && fits(it);
                left = left.saturating_sub(usize::from(!is_in));
                if left == 0 { None } else { Some(is_in) }
            });
        }
        if let Some(place) = found.iter().position(|&it| self.is_barrier(it)) {
            found.truncate(place + 1);
        }
    }

    /// It goes, before all of `passed`, who came earlier in the order. Its tenant is charged for it, in every class
    /// in which it is known; if the request is called back, `correct` by what it was charged.
    pub fn dequeue(&mut self, now: Instant, request: RequestId, passed: &[RequestId]) -> Option<QueueEntry> {
        let entry = self.entry(request)?;
        let work = Work::of(entry.cost);
        for class_queue in &mut self.classes {
            class_queue.charge(entry.tenant, work.over(entry.weight));
        }
        self.cancel(request);
        let mut overtook_above = false;
        for request in passed {
            let Some(place) = self.queued.get_mut(request) else { continue };
            place.overtaken = place.overtaken.saturating_add(1);
            overtook_above |= place.entry.class < entry.class;
        }
        self.settle_age(now, entry.class, work, overtook_above);
        Some(entry)
    }

    /// It leaves without having gone: its client is gone, or it is refused. Nobody is charged.
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

    /// Those whose latest moment has passed cancel, into `late`, the earliest first, and at most so many.
    pub fn expire(&mut self, now: Instant, most: usize, late: &mut Vec<QueueEntry>) {
        for _ in 0..most {
            let Some(&(_, request)) = self.deadlines.first().filter(|it| it.0 < now) else { return };
            late.extend(self.cancel(request));
        }
    }

    /// The first of the latest moments of all who wait.
    pub fn earliest_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|it| it.0)
    }

    /// What went has cost its tenant so many tokens more than it was charged, or fewer if negative. Of what a
    /// class no longer remembers nothing is given back: it has been forgiven already.
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

    /// Whether it has been overtaken so often that nobody goes before it any more.
    pub fn is_barrier(&self, request: RequestId) -> bool {
        self.queued.get(&request).is_some_and(|it| it.overtaken >= OVERTAKEN_MAX)
    }

    pub fn contains(&self, request: RequestId) -> bool {
        self.queued.contains_key(&request)
    }

    pub fn waiting(&self, class: ClassId) -> Waiting {
        self.classes.get(class.index()).map_or_else(Waiting::default, ClassQueue::waiting)
    }

    /// The work that would go before a newcomer of this class: all of its class and of those above. An upper
    /// estimate, as fair shares may let it go before others of its class, but for the tenth that goes by age.
    pub fn cost_ahead(&self, class: ClassId) -> f64 {
        self.classes.iter().take(class.index() + 1).map(|it| it.waiting().cost).sum()
    }

    /// The work that is sure to go before this newcomer, by what waits now: of classes above all, of its own what its
    /// tenant has before it and what others get meanwhile.
    pub fn cost_before(&self, entry: &QueueEntry) -> f64 {
        let above: f64 = self.classes.iter().take(entry.class.index()).map(|it| it.waiting().cost).sum();
        above + self.classes.get(entry.class.index()).map_or(0.0, |it| it.before(entry))
    }

    /// How many tenants are remembered, each once in every class: those who wait, and those who had more than
    /// their share and may come again.
    pub fn tenants(&self) -> usize {
        self.classes.iter().map(ClassQueue::tenants).sum()
    }

    fn entry(&self, request: RequestId) -> Option<QueueEntry> {
        self.queued.get(&request).map(|it| it.entry)
    }

    /// Classes of this set in which somebody waits, in order of precedence.
    fn open(&self, open: ClassMask) -> impl Iterator<Item = (ClassId, &ClassQueue)> {
        let classes = (0..).map(ClassId).zip(&self.classes);
        classes.filter(move |(class, class_queue)| open.has(*class) && !class_queue.is_empty())
    }

    /// The oldest of those below the first class that waits, if it has aged and its turn is earned.
    fn first_by_age(&self, now: Instant, open: ClassMask) -> Option<RequestId> {
        let (since, request) = self.open(open).skip(1).filter_map(|(_, it)| it.oldest()).min()?;
        let cost = Work::of(self.entry(request)?.cost);
        (now.since(since) >= self.aging && self.credit.covers(cost)).then_some(request)
    }

    /// Work of this class went. Whoever goes while a higher class waits goes by age, unless it overtook somebody up
    /// there: that one did not fit, and has lost nothing.
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

    /// What the oldest of a class costs, if it has aged.
    fn aged(&self, class_queue: &ClassQueue, now: Instant) -> Option<Work> {
        let (_, request) = class_queue.oldest().filter(|it| now.since(it.0) >= self.aging)?;
        self.entry(request).map(|it| Work::of(it.cost))
    }
}

//! One tenant in one class: its queued requests in order, and its virtual time.

use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};
use std::iter::Peekable;

use maitre_base::{Instant, RequestId, TenantId};

use super::work::Work;
use super::{Addition, QueueEntry};

/// The order within a tenant: earliest deadline first, requests without a deadline last; among equals the
/// oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryOrder {
    latest: Instant,
    since: Instant,
    pub(super) request: RequestId,
}

/// The deadline of requests that have none.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl EntryOrder {
    fn age(self) -> Age {
        (self.since, self.request)
    }

    pub(super) fn of(entry: &QueueEntry) -> EntryOrder {
        EntryOrder { latest: entry.latest.unwrap_or(NEVER), since: entry.since, request: entry.request }
    }
}

/// When a request came. The id orders requests that came at the same moment.
pub(super) type Age = (Instant, RequestId);

/// An entry by its age, with the fields that give its order within the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AgeOrder {
    since: Instant,
    request: RequestId,
    latest: Instant,
}

impl AgeOrder {
    fn of(order: EntryOrder) -> AgeOrder {
        AgeOrder { since: order.since, request: order.request, latest: order.latest }
    }

    fn age(self) -> Age {
        (self.since, self.request)
    }

    fn order(self) -> EntryOrder {
        EntryOrder { latest: self.latest, since: self.since, request: self.request }
    }
}

/// The position of a tenant among those of its class: the lowest time first, and at equal times the one whose oldest
/// request came first. Equal times are common: all tenants that came since the last request went share one. Any order
/// but that of arrival would let newcomers pass the same tenants again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) at: Work,
    pub(super) oldest: Age,
    pub(super) tenant: TenantId,
}

/// Maximum entries that are counted one by one.
const COUNTED_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct TenantShare {
    /// The entries in order, with the charge of each.
    entries: BTreeMap<EntryOrder, Work>,
    /// The same entries by age.
    ages: BTreeSet<AgeOrder>,
    /// Its virtual time: work received divided by weight, counted from the class's time when the tenant came.
    pub(super) at: Work,
    /// What it was charged since then, and so the most that `correct` may give back.
    charged: Work,
    /// The sum of its entries' charges.
    total: Work,
    /// The weight among other tenants, of its latest entry.
    pub(super) weight: f64,
    /// The share of the class's capacity that its entries take, divided by its weight.
    pub(super) held: u128,
}

impl TenantShare {
    pub(super) fn starting(at: Work) -> TenantShare {
        TenantShare {
            entries: BTreeMap::new(),
            ages: BTreeSet::new(),
            at,
            charged: Work::ZERO,
            total: Work::ZERO,
            weight: 1.0,
            held: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn add(&mut self, entry: &QueueEntry, size: u128) {
        let work = charge(entry);
        let order = EntryOrder::of(entry);
        self.entries.insert(order, work);
        self.ages.insert(AgeOrder::of(order));
        self.total += work;
        self.weight = entry.weight;
        self.held += size;
    }

    pub(super) fn remove(&mut self, entry: &QueueEntry, size: u128) {
        let order = EntryOrder::of(entry);
        if let Some(work) = self.entries.remove(&order) {
            self.total -= work;
        }
        self.ages.remove(&AgeOrder::of(order));
        debug_assert!(self.held >= size, "a tenant holds less than one of its entries");
        self.held = self.held.saturating_sub(size);
    }

    pub(super) fn charge(&mut self, work: Work) {
        self.at += work;
        self.charged += work;
    }

    pub(super) fn give_back(&mut self, work: Work) {
        let work = work.min(self.charged);
        self.at -= work;
        self.charged -= work;
    }

    /// Its position in the order of tenants; `None` while it has nothing queued.
    pub(super) fn position(&self, tenant: TenantId) -> Option<Position> {
        self.ages.first().map(|it| Position { at: self.at, oldest: it.age(), tenant })
    }

    pub(super) fn requests(&self) -> usize {
        self.entries.len()
    }

    /// The work of this tenant that would go before a new entry. Stops after a bounded number of entries: an
    /// exact count is not worth walking the whole queue.
    pub(super) fn before(&self, entry: &QueueEntry) -> Work {
        let own = EntryOrder::of(entry);
        match self.entries.last_key_value() {
            Some((last, _)) if *last > own => {
                let ahead = self.entries.iter().take(COUNTED_MAX).take_while(|it| *it.0 < own);
                ahead.fold(Work::ZERO, |sum, it| sum + *it.1)
            }
            _ => self.total,
        }
    }

    pub(super) fn last(&self) -> Option<RequestId> {
        self.entries.last_key_value().map(|(key, _)| key.request)
    }
}

/// A tenant's entries in order, with the charge of each: as they would be with an addition.
pub(super) struct Entries<'a> {
    queued: Peekable<btree_map::Iter<'a, EntryOrder, Work>>,
    ages: Peekable<btree_set::Iter<'a, AgeOrder>>,
    added: Option<(EntryOrder, Work)>,
    leaving: Option<RequestId>,
}

impl<'a> Entries<'a> {
    pub(super) fn of(
        share: Option<&'a TenantShare>,
        tenant: TenantId,
        addition: Option<&Addition>,
    ) -> Entries<'a> {
        let entry = addition.map(|it| it.entry).filter(|it| it.tenant == tenant);
        Entries {
            queued: share.map(|it| it.entries.iter()).unwrap_or_default().peekable(),
            ages: share.map(|it| it.ages.iter()).unwrap_or_default().peekable(),
            added: entry.map(|it| (EntryOrder::of(&it), charge(&it))),
            leaving: addition.and_then(|it| it.leaving).map(|it| it.request),
        }
    }
}

impl Entries<'_> {
    /// The age of the oldest entry among `next`, which was returned last, and those after it.
    pub(super) fn oldest_from(&mut self, next: EntryOrder) -> Age {
        let leaving = self.leaving;
        while self.ages.next_if(|it| it.order() < next || Some(it.request) == leaving).is_some() {}
        let queued = self.ages.peek().map(|it| it.age());
        let added = self.added.map(|it| it.0.age());
        queued.into_iter().chain(added).fold(next.age(), Age::min)
    }
}

impl Iterator for Entries<'_> {
    type Item = (EntryOrder, Work);

    fn next(&mut self) -> Option<(EntryOrder, Work)> {
        let leaving = self.leaving;
        self.queued.next_if(|(order, _)| Some(order.request) == leaving);
        let added = self.added;
        let queued = self.queued.next_if(|(order, _)| added.is_none_or(|it| **order < it.0));
        queued.map(|(order, work)| (*order, *work)).or_else(|| self.added.take())
    }
}

/// What an entry will charge to its tenant.
fn charge(entry: &QueueEntry) -> Work {
    Work::of(entry.cost).over(entry.weight)
}

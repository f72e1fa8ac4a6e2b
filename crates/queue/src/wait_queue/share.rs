//! What one tenant has in one class: those who wait, in the order in which they would go, and how far it has come.

use std::collections::BTreeMap;
use std::collections::btree_map::Iter;

use maitre_base::{Instant, RequestId};

use super::QueueEntry;
use super::work::Work;

/// The order within a tenant: the earliest deadline, then those without one; among equals the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryOrder {
    latest: Instant,
    since: Instant,
    pub(super) request: RequestId,
}

/// A moment that never comes, which is the deadline of those who have none.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl EntryOrder {
    pub(super) fn of(entry: &QueueEntry) -> EntryOrder {
        EntryOrder { latest: entry.latest.unwrap_or(NEVER), since: entry.since, request: entry.request }
    }
}

/// Entries that are counted one by one, at most.
const COUNTED_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct TenantShare {
    /// With what each will be charged.
    entries: BTreeMap<EntryOrder, Work>,
    /// Its virtual time: what it got for its weight, counted from where the class was when it came.
    pub(super) at: Work,
    /// What it has been charged since, and so the most that may be given back.
    charged: Work,
    /// All that its entries will be charged.
    total: Work,
    /// Beside other tenants: that of its latest entry.
    pub(super) weight: f64,
    /// The part of the queued that its entries take, for its weight.
    pub(super) held: u128,
}

impl TenantShare {
    pub(super) fn starting(at: Work) -> TenantShare {
        TenantShare {
            entries: BTreeMap::new(),
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
        let work = Work::of(entry.cost).over(entry.weight);
        self.entries.insert(EntryOrder::of(entry), work);
        self.total += work;
        self.weight = entry.weight;
        self.held += size;
    }

    pub(super) fn remove(&mut self, entry: &QueueEntry, size: u128) {
        if let Some(work) = self.entries.remove(&EntryOrder::of(entry)) {
            self.total -= work;
        }
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

    pub(super) fn entries(&self) -> Iter<'_, EntryOrder, Work> {
        self.entries.iter()
    }

    /// What of it would go before a newcomer. Of one that would stand among the others not all may be counted: it is
    /// not worth walking the whole line for.
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

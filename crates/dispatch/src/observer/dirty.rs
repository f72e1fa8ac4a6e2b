//! What other routers have not been told yet.
//!
//! Of what is promised to a worker, and of how it is found, only the newest counts: it is noted which workers have
//! changed, and looked up when it is fetched. What happened is kept as it was, up to a bound: if nobody fetches it the
//! oldest is dropped, and counted. Nothing here is allocated twice: full lists are swapped against the empty ones of
//! whoever fetches.

use std::collections::BTreeMap;

use maitre_base::{TenantId, WorkerId};
use maitre_cluster::Spent;
use maitre_fleet::Fleet;

use crate::cache::Prompt;
use crate::peers::{Judged, Outbox};

/// Prompts kept until they are fetched, and as many pins, departures and tenants. Chosen: a second of what one router
/// seats at the most, and fifty times what comes between two fetches.
pub(crate) const KEPT_MAX: usize = 4_096;

/// Tenants that may have something to their credit; those who never come again must leave room for others.
const CREDITS_MAX: usize = KEPT_MAX / 2;

#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    promised: Changed,
    judged: Changed,
    gone: Latest<u64>,
    pinned: Latest<(u64, u64, u64)>,
    placed: Latest<(u64, Prompt)>,
    spent: BTreeMap<(u64, TenantId), Balance>,
    /// Tenants for whom there was no room.
    unspent: u64,
    /// Whether anything was noted since the last fetch.
    is_any: bool,
}

/// What was taken and not given back.
#[derive(Clone, Copy, Debug, Default)]
struct Balance {
    requests: i64,
    tokens: i64,
}

impl DirtySet {
    pub(crate) fn is_any(&self) -> bool {
        self.is_any
    }

    pub(crate) fn promise(&mut self, worker: WorkerId) {
        self.is_any = true;
        self.promised.note(worker);
    }

    pub(crate) fn judge(&mut self, worker: WorkerId) {
        self.is_any = true;
        self.judged.note(worker);
    }

    pub(crate) fn leave(&mut self, key: u64) {
        self.is_any = true;
        self.gone.push(key);
    }

    /// It is here again, before anybody was told that it had gone; then what was promised to it must be told.
    pub(crate) fn join(&mut self, key: u64, worker: WorkerId) {
        if self.gone.remove(key) {
            self.promise(worker);
        }
    }

    pub(crate) fn pin(&mut self, model: u64, session: u64, worker: u64) {
        self.is_any = true;
        self.pinned.push((model, session, worker));
    }

    pub(crate) fn place(&mut self, worker: u64, prompt: Prompt) {
        self.is_any = true;
        self.placed.push((worker, prompt));
    }

    pub(crate) fn spend(&mut self, model: u64, tenant: TenantId, tokens: u64) {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.settle(model, tenant, Balance { requests: 1, tokens });
    }

    pub(crate) fn unspend(&mut self, model: u64, tenant: TenantId, tokens: u64) {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.settle(model, tenant, Balance { requests: -1, tokens: -tokens });
    }

    fn settle(&mut self, model: u64, tenant: TenantId, more: Balance) {
        let is_full = self.spent.len() >= KEPT_MAX;
        if is_full && !self.spent.contains_key(&(model, tenant)) {
            self.unspent += 1;
            return;
        }
        self.is_any = true;
        let it = self.spent.entry((model, tenant)).or_default();
        it.requests = it.requests.saturating_add(more.requests);
        it.tokens = it.tokens.saturating_add(more.tokens);
    }

    /// Hands everything over, in place of what was in `outbox`.
    pub(crate) fn take(&mut self, fleet: &Fleet, outbox: &mut Outbox) {
        outbox.clear();
        self.is_any = false;
        for worker in self.promised.drain().filter_map(|it| fleet.worker(it)) {
            outbox.promised.push((worker.key, worker.promised.work));
        }
        for worker in self.judged.drain().filter_map(|it| fleet.worker(it)) {
            outbox.judged.extend(Judged::of(worker).map(|it| (worker.key, it)));
        }
        let dropped = [
            self.gone.swap(&mut outbox.gone),
            self.pinned.swap(&mut outbox.pinned),
            self.placed.swap(&mut outbox.placed),
            std::mem::take(&mut self.unspent),
        ];
        outbox.dropped = dropped.iter().sum();
        // What was given back of what has been told already is taken off what will be.
        self.spent.retain(|&(model, tenant), it| {
            let told = Spent { requests: positive(it.requests), tokens: positive(it.tokens) };
            if told != Spent::default() {
                outbox.spent.push((model, tenant, told));
            }
            *it = Balance { requests: it.requests.min(0), tokens: it.tokens.min(0) };
            it.requests < 0 || it.tokens < 0
        });
        // Without it others have charged these for a request more than they had.
        if self.spent.len() > CREDITS_MAX {
            self.spent.clear();
        }
    }
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Workers of which something is other than it was told, each once.
#[derive(Debug, Default)]
struct Changed {
    list: Vec<WorkerId>,
    /// By worker number.
    is_listed: Vec<bool>,
}

impl Changed {
    fn note(&mut self, worker: WorkerId) {
        if self.is_listed.len() <= worker.index() {
            self.is_listed.resize(worker.index() + 1, false);
        }
        if !std::mem::replace(&mut self.is_listed[worker.index()], true) {
            self.list.push(worker);
        }
    }

    fn drain(&mut self) -> impl Iterator<Item = WorkerId> {
        self.list.drain(..).inspect(|it| self.is_listed[it.index()] = false)
    }
}

/// The last `KEPT_MAX` of something.
#[derive(Debug)]
struct Latest<T> {
    /// In order, from `first` on and round.
    items: Vec<T>,
    first: usize,
    dropped: u64,
}

impl<T> Default for Latest<T> {
    fn default() -> Latest<T> {
        Latest { items: Vec::new(), first: 0, dropped: 0 }
    }
}

impl<T> Latest<T> {
    fn push(&mut self, item: T) {
        if self.items.len() < KEPT_MAX {
            return self.items.push(item);
        }
        self.items[self.first] = item;
        self.first = (self.first + 1) % KEPT_MAX;
        self.dropped += 1;
    }

    /// Changes places with an empty list; how many were dropped.
    fn swap(&mut self, other: &mut Vec<T>) -> u64 {
        self.items.rotate_left(self.first);
        self.first = 0;
        std::mem::swap(&mut self.items, other);
        std::mem::take(&mut self.dropped)
    }
}

impl<T: PartialEq> Latest<T> {
    /// Takes out all that are equal to this; whether there were any.
    fn remove(&mut self, item: T) -> bool {
        let before = self.items.len();
        self.items.rotate_left(self.first);
        self.first = 0;
        self.items.retain(|it| *it != item);
        self.items.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::PromisedWork;

    #[test]
    fn the_latest_are_kept_in_order_and_the_rest_is_counted() {
        let mut latest = Latest::default();
        (0..KEPT_MAX as u64 + 10).for_each(|it| latest.push(it));
        let mut taken = Vec::new();
        assert_eq!(latest.swap(&mut taken), 10);
        assert!(taken.iter().copied().eq(10..KEPT_MAX as u64 + 10), "{:?}..", &taken[..12]);
        assert_eq!((latest.items.len(), latest.dropped), (0, 0));
        latest.push(7);
        taken.clear();
        assert_eq!((latest.swap(&mut taken), taken), (0, vec![7]));
    }

    #[test]
    fn what_is_given_back_after_it_was_told_is_taken_off_the_next() {
        let (fleet, mut outbox) = (Fleet::default(), Outbox::default());
        let mut dirty = DirtySet::default();
        let tenant = TenantId(5);
        let mut told = |dirty: &mut DirtySet| {
            dirty.take(&fleet, &mut outbox);
            outbox.spent.iter().map(|it| (it.2.requests, it.2.tokens)).collect::<Vec<_>>()
        };
        dirty.spend(1, tenant, 100);
        dirty.spend(1, tenant, 50);
        dirty.unspend(1, tenant, 50);
        assert_eq!(told(&mut dirty), [(1, 100)]);
        dirty.unspend(1, tenant, 100);
        assert_eq!(told(&mut dirty), []);
        dirty.spend(1, tenant, 30);
        assert_eq!(told(&mut dirty), [], "others were charged for more than that");
        dirty.spend(1, tenant, 90);
        assert_eq!(told(&mut dirty), [(1, 20)]);
        assert!(dirty.spent.is_empty());
    }

    #[test]
    fn beyond_the_bound_tenants_are_counted_and_not_told() {
        let (mut dirty, mut outbox) = (DirtySet::default(), Outbox::default());
        (0..KEPT_MAX as u64 + 3).for_each(|it| dirty.spend(1, TenantId(it), 1));
        dirty.take(&Fleet::default(), &mut outbox);
        assert_eq!((outbox.spent.len(), outbox.dropped), (KEPT_MAX, 3));
    }

    #[test]
    fn credits_that_nobody_claims_leave_room_for_others() {
        let (fleet, mut dirty, mut outbox) = (Fleet::default(), DirtySet::default(), Outbox::default());
        for number in 0..2 * KEPT_MAX as u64 {
            dirty.spend(1, TenantId(number), 10);
            dirty.take(&fleet, &mut outbox);
            assert_eq!(outbox.spent, [(1, TenantId(number), Spent { requests: 1, tokens: 10 })]);
            assert_eq!(outbox.dropped, 0);
            dirty.unspend(1, TenantId(number), 10);
            assert!(dirty.spent.len() <= CREDITS_MAX + 1);
        }
    }

    #[test]
    fn a_worker_that_comes_back_in_time_was_never_gone() {
        let (mut dirty, mut outbox) = (DirtySet::default(), Outbox::default());
        let mut fleet = Fleet::default();
        let worker = fleet.add("http://127.0.0.1:1");
        dirty.leave(7);
        dirty.leave(8);
        dirty.join(7, worker);
        dirty.join(9, worker);
        dirty.take(&fleet, &mut outbox);
        assert_eq!(outbox.gone, [8]);
        assert_eq!(
            outbox.promised,
            [(maitre_fleet::worker::key("http://127.0.0.1:1"), PromisedWork::default())]
        );
        assert!(!dirty.is_any());
    }
}

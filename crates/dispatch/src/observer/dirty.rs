//! What has changed and is not published yet.
//!
//! Of promised work and of health only the newest state counts: the set marks which workers have changed, and the state is
//! read when it is fetched. Events are kept as they are, up to a limit; if they are not fetched, the oldest are dropped
//! and counted. A fetch swaps the full lists with the caller's empty ones, so nothing is allocated again.

use std::collections::BTreeMap;

use maitre_base::{TenantId, WorkerId};
use maitre_cluster::Spent;
use maitre_fleet::Fleet;

use crate::cache::PromptChain;
use crate::peers::{Assessment, Outbox};

/// Prompts kept until they are fetched, and as many pins, departures and tenants. Chosen: what one router places in a
/// second at the most, and fifty times what comes between two fetches.
pub(crate) const KEPT_MAX: usize = 4_096;

/// Tenants with a credit. Those that never return must not take the room of others.
const CREDITS_MAX: usize = KEPT_MAX / 2;

#[derive(Debug, Default)]
pub(crate) struct DirtySet {
    promised: Changed,
    assessed: Changed,
    gone: Latest<u64>,
    pinned: Latest<(u64, u64, u64)>,
    placed: Latest<(u64, PromptChain)>,
    spent: BTreeMap<(u64, TenantId), Balance>,
    /// Tenants for which there was no room.
    unspent: u64,
    /// Whether anything was marked since the last fetch.
    is_any: bool,
}

/// What was spent, less what was returned.
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
        self.promised.mark(worker);
    }

    pub(crate) fn assess(&mut self, worker: WorkerId) {
        self.is_any = true;
        self.assessed.mark(worker);
    }

    pub(crate) fn leave(&mut self, key: u64) {
        self.is_any = true;
        self.gone.push(key);
    }

    pub(crate) fn pin(&mut self, model: u64, session: u64, worker: u64) {
        self.is_any = true;
        self.pinned.push((model, session, worker));
    }

    pub(crate) fn place(&mut self, worker: u64, prompt: PromptChain) {
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

    /// Moves everything into `outbox`, in place of its content.
    pub(crate) fn take(&mut self, fleet: &Fleet, outbox: &mut Outbox) {
        outbox.clear();
        self.is_any = false;
        let gone_dropped = self.gone.swap(&mut outbox.gone);
        // A worker that has returned, before this or even before it left, is not gone. Only its promises have changed.
        outbox.gone.retain(|&key| {
            let returned = fleet.by_key(key);
            returned.into_iter().for_each(|it| self.promised.mark(it.id));
            returned.is_none()
        });
        for worker in self.promised.drain().filter_map(|it| fleet.worker(it)) {
            outbox.promised.push((worker.key, fleet.promised_to_key_of(worker)));
        }
        for worker in self.assessed.drain().filter_map(|it| fleet.worker(it)) {
            outbox.assessed.extend(Assessment::of(worker).map(|it| (worker.key, it)));
        }
        let dropped = [
            gone_dropped,
            self.pinned.swap(&mut outbox.pinned),
            self.placed.swap(&mut outbox.placed),
            std::mem::take(&mut self.unspent),
        ];
        outbox.dropped = dropped.iter().sum();
        // What was returned after it was published reduces the next publication.
        self.spent.retain(|&(model, tenant), it| {
            let spent = Spent { requests: positive(it.requests), tokens: positive(it.tokens) };
            if spent != Spent::default() {
                outbox.spent.push((model, tenant, spent));
            }
            *it = Balance { requests: it.requests.min(0), tokens: it.tokens.min(0) };
            it.requests < 0 || it.tokens < 0
        });
        // Without their credits, other routers have charged these tenants for one request too many.
        if self.spent.len() > CREDITS_MAX {
            self.spent.clear();
        }
    }
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Workers that have changed since the last fetch, each once.
#[derive(Debug, Default)]
struct Changed {
    list: Vec<WorkerId>,
    /// By worker number.
    is_listed: Vec<bool>,
}

impl Changed {
    fn mark(&mut self, worker: WorkerId) {
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

/// The latest `KEPT_MAX` items.
#[derive(Debug)]
struct Latest<T> {
    /// In order from `first` on, wrapping around.
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

    /// Swaps the items with an empty list; returns how many were dropped.
    fn swap(&mut self, other: &mut Vec<T>) -> u64 {
        self.items.rotate_left(self.first);
        self.first = 0;
        std::mem::swap(&mut self.items, other);
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{Instant, Promise, PromisedWork, Tokens};

    #[test]
    fn the_latest_are_kept_in_order_and_the_rest_are_counted() {
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
    fn what_is_returned_after_it_was_published_reduces_the_next_publication() {
        let (fleet, mut outbox) = (Fleet::default(), Outbox::default());
        let mut dirty = DirtySet::default();
        let tenant = TenantId(5);
        let mut published = |dirty: &mut DirtySet| {
            dirty.take(&fleet, &mut outbox);
            outbox.spent.iter().map(|it| (it.2.requests, it.2.tokens)).collect::<Vec<_>>()
        };
        dirty.spend(1, tenant, 100);
        dirty.spend(1, tenant, 50);
        dirty.unspend(1, tenant, 50);
        assert_eq!(published(&mut dirty), [(1, 100)]);
        dirty.unspend(1, tenant, 100);
        assert_eq!(published(&mut dirty), []);
        dirty.spend(1, tenant, 30);
        assert_eq!(published(&mut dirty), [], "others were charged for more than that");
        dirty.spend(1, tenant, 90);
        assert_eq!(published(&mut dirty), [(1, 20)]);
        assert!(dirty.spent.is_empty());
    }

    #[test]
    fn beyond_the_limit_tenants_are_counted_and_not_published() {
        let (mut dirty, mut outbox) = (DirtySet::default(), Outbox::default());
        (0..KEPT_MAX as u64 + 3).for_each(|it| dirty.spend(1, TenantId(it), 1));
        dirty.take(&Fleet::default(), &mut outbox);
        assert_eq!((outbox.spent.len(), outbox.dropped), (KEPT_MAX, 3));
    }

    #[test]
    fn unclaimed_credits_leave_room_for_other_tenants() {
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

    fn taken(dirty: &mut DirtySet, fleet: &Fleet) -> Outbox {
        let mut outbox = Outbox::default();
        dirty.take(fleet, &mut outbox);
        outbox
    }

    #[test]
    fn a_worker_that_returns_before_the_fetch_never_left() {
        let (mut dirty, mut fleet) = (DirtySet::default(), Fleet::default());
        let worker = fleet.add("http://127.0.0.1:1");
        let key = fleet.worker(worker).unwrap().key;
        dirty.leave(key);
        dirty.leave(8);
        let outbox = taken(&mut dirty, &fleet);
        assert_eq!(outbox.gone, [8]);
        assert_eq!(outbox.promised, [(key, PromisedWork::default())]);
        assert!(!dirty.is_any());
    }

    /// It is listed again while requests on it end: until they have, there are two workers with one key.
    #[test]
    fn a_worker_that_returns_before_it_has_left_counts_once_with_all_its_promises() {
        let (mut dirty, mut fleet, now) = (DirtySet::default(), Fleet::default(), Instant::ZERO);
        let (old, new) = (fleet.add("http://127.0.0.1:1"), fleet.add("http://127.0.0.1:1"));
        let key = fleet.worker(old).unwrap().key;
        let promise = Promise { decode: Tokens(7), ..Promise::default() };
        for worker in [old, old, new] {
            fleet.promise(now, worker, promise);
            dirty.promise(worker);
        }
        let requests =
            |outbox: Outbox| outbox.promised.iter().map(|it| (it.0, it.1.requests)).collect::<Vec<_>>();
        assert!(requests(taken(&mut dirty, &fleet)).iter().all(|it| *it == (key, 3)));
        fleet.remove(now, old);
        dirty.leave(key);
        let outbox = taken(&mut dirty, &fleet);
        assert!(outbox.gone.is_empty());
        assert_eq!(requests(outbox), [(key, 1)]);
    }
}

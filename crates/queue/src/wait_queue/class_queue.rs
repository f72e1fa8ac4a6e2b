//! The queue of one class: its limits, the order of its tenants, and which request is displaced when it is
//! full.
//!
//! Tenants take turns by start-time fair queueing. Each tenant has a virtual time, the work it received
//! divided by its weight, and the tenant with the lowest time goes next. So tenants that always wait get work
//! in proportion to their weights, whatever the sizes of their requests, and a tenant that waits alone gets
//! everything. The class has a time too, that of its tenant furthest behind. A tenant that returns starts
//! there at the earliest, so idle time earns nothing. Once the queue is empty all times and debts are
//! forgotten.
//!
//! Each class keeps its own times, though work in one class is charged in every class that knows the tenant.
//! One time for all classes does not work under strict precedence: while a higher class is served, the times
//! of its tenants run far ahead of those below. A new tenant below would start behind the whole backlog there
//! (at the higher class's time), or one above before everything (at the lower class's time).
//!
//! Capacity is shared by what is limited, requests and tokens, not by cost. Ten thousand requests with cached
//! prompts cost little, but fill the queue.

use std::collections::{BTreeMap, BTreeSet};

use maitre_base::{Instant, RequestId, TenantId};

use super::share::{Entries, TenantShare};
use super::work::{Work, per_weight};
use super::{Addition, LOOK, QueueEntry, Waiting};
use crate::settings::Class;

/// Maximum tenants remembered per class that have nothing queued but are ahead of their share. Beyond it
/// those least ahead are forgiven. Chosen: forgetting as many at once takes well under 100 µs.
const DEBTORS_MAX: usize = 1_000;
/// Tenants forgotten per step: more than a step can add, few enough to cost nothing noticeable.
const FORGOTTEN_A_STEP: usize = 2;
/// At least as many as are shown.
const TENANTS_LOOKED_AT: usize = 4 * LOOK;
/// The whole capacity of the class, as the unit of shares.
const WHOLE: u128 = 1_000_000_000_000;

#[derive(Debug)]
pub(super) struct ClassQueue {
    requests_max: u32,
    tokens_max: u64,
    /// The limits by which shares are measured: those in force when a request last entered the empty class. A
    /// share must be removed by the same measure by which it was added.
    measure: (u32, u64),
    requests: u32,
    tokens: u64,
    cost: Work,
    /// The sum of the weights of tenants with queued requests.
    weights: f64,
    /// The virtual time of the class: that of the tenant furthest behind. Never decreases.
    clock: Work,
    shares: BTreeMap<TenantId, TenantShare>,
    /// Tenants with queued requests, by virtual time.
    order: BTreeSet<(Work, TenantId)>,
    /// Tenants without queued requests that are ahead of the class.
    debtors: BTreeSet<(Work, TenantId)>,
    /// Tenants with queued requests, by the share of the capacity they hold.
    holders: BTreeSet<(u128, TenantId)>,
    /// All queued requests, by age.
    ages: BTreeSet<(Instant, RequestId)>,
}

impl ClassQueue {
    pub(super) fn new(class: &Class) -> ClassQueue {
        ClassQueue {
            requests_max: class.requests_max,
            tokens_max: class.tokens_max,
            measure: (class.requests_max, class.tokens_max),
            requests: 0,
            tokens: 0,
            cost: Work::ZERO,
            weights: 0.0,
            clock: Work::ZERO,
            shares: BTreeMap::new(),
            order: BTreeSet::new(),
            debtors: BTreeSet::new(),
            holders: BTreeSet::new(),
            ages: BTreeSet::new(),
        }
    }

    /// Applies new limits.
    pub(super) fn retune(&mut self, class: &Class) {
        (self.requests_max, self.tokens_max) = (class.requests_max, class.tokens_max);
    }

    /// Whether there is room for it once `leaving` has left.
    pub(super) fn fits(&self, entry: &QueueEntry, leaving: Option<&QueueEntry>) -> bool {
        let requests = self.requests.saturating_sub(u32::from(leaving.is_some()));
        let tokens = self.tokens.saturating_sub(leaving.map_or(0, |it| it.tokens));
        requests < self.requests_max
            && tokens.checked_add(entry.tokens).is_some_and(|it| it <= self.tokens_max)
    }

    /// The request that it would displace: the last one of the tenant with the largest share, if its own
    /// tenant would still have less.
    pub(super) fn displaced_by(&self, entry: &QueueEntry) -> Option<RequestId> {
        let others = self.holders.iter().rev().find(|it| it.1 != entry.tenant);
        let &(most, holder) = others?;
        let held = self.shares.get(&entry.tenant).map_or(0, |it| it.held);
        let is_fair = most <= held + self.size(entry);
        if is_fair { None } else { self.shares.get(&holder)?.last() }
    }

    pub(super) fn add(&mut self, entry: &QueueEntry) {
        self.advance(entry.tenant);
        if self.requests == 0 {
            self.measure = (self.requests_max, self.tokens_max);
        }
        let (clock, size) = (self.clock, self.size(entry));
        self.shares.entry(entry.tenant).or_insert_with(|| TenantShare::starting(clock));
        self.change(entry.tenant, |it| it.add(entry, size));
        self.ages.insert((entry.since, entry.request));
        self.requests += 1;
        self.tokens += entry.tokens;
        self.cost += Work::of(entry.cost);
    }

    pub(super) fn remove(&mut self, entry: &QueueEntry) {
        self.advance(entry.tenant);
        let size = self.size(entry);
        self.change(entry.tenant, |it| it.remove(entry, size));
        self.ages.remove(&(entry.since, entry.request));
        debug_assert!(
            self.requests > 0 && self.tokens >= entry.tokens,
            "removed a request that was not queued"
        );
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(entry.tokens);
        self.cost -= Work::of(entry.cost);
        if self.is_empty() {
            self.clock = Work::ZERO;
            self.weights = 0.0;
            self.shares.clear();
            self.debtors.clear();
        }
    }

    /// The tenant received this work, here or in another class.
    pub(super) fn charge(&mut self, tenant: TenantId, work: Work) {
        self.advance(tenant);
        self.change(tenant, |it| it.charge(work));
    }

    pub(super) fn give_back(&mut self, tenant: TenantId, work: Work) {
        self.advance(tenant);
        self.change(tenant, |it| it.give_back(work));
    }

    /// Appends the next requests that are wanted, until `found` holds `LOOK` or `wanted` returns none. As the
    /// class would be with this addition.
    pub(super) fn list(
        &self,
        addition: Option<&Addition>,
        found: &mut Vec<RequestId>,
        mut wanted: impl FnMut(RequestId) -> Option<bool>,
    ) {
        // Each tenant's next request is due at its time plus the cost of the one before. The first n requests
        // come from the first n tenants; more tenants are looked at to make up for unwanted requests.
        let mut turns: [Option<TenantTurn<'_>>; TENANTS_LOOKED_AT] = [const { None }; TENANTS_LOOKED_AT];
        let joining = addition.and_then(|it| self.joining(it));
        let before = joining.map_or_else(|| self.order.range(..), |it| self.order.range(..it));
        let after = joining.map(|it| self.order.range(it..)).into_iter().flatten();
        let tenants = before.chain(joining.as_ref()).chain(after);
        let first = |&(at, tenant): &(Work, TenantId)| {
            TenantTurn::first(at, tenant, Entries::of(self.shares.get(&tenant), tenant, addition))
        };
        for (turn, it) in turns.iter_mut().zip(tenants.filter_map(first)) {
            *turn = Some(it);
        }
        while found.len() < LOOK {
            let first = turns
                .iter_mut()
                .filter(|it| it.is_some())
                .min_by_key(|it| it.as_ref().map(TenantTurn::order));
            let Some(place) = first else { return };
            let Some(turn) = place.take() else { return };
            match wanted(turn.request) {
                None => return,
                Some(true) => found.push(turn.request),
                Some(false) => {}
            }
            *place = turn.next();
        }
    }

    /// The work of this class that would go before a new entry: its tenant's own, and what the weights give
    /// other tenants meanwhile. Assumes that each of them has enough queued to use its weight.
    pub(super) fn before(&self, entry: &QueueEntry) -> f64 {
        let share = self.shares.get(&entry.tenant);
        let own = share.map_or(Work::ZERO, |it| it.before(entry) + (it.at - self.clock));
        let present = share.is_some_and(|it| !it.is_idle());
        let others = self.weights - if present { share.map_or(0.0, |it| it.weight) } else { 0.0 };
        (own.tokens() * (others.max(0.0) + entry.weight)).min(self.cost.tokens())
    }

    pub(super) fn oldest(&self, addition: Option<&Addition>) -> Option<(Instant, RequestId)> {
        let leaving = addition.and_then(|it| it.leaving).map(|it| it.request);
        let queued = self.ages.iter().find(|it| Some(it.1) != leaving).copied();
        let added = addition.map(|it| (it.entry.since, it.entry.request));
        queued.into_iter().chain(added).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    pub(super) fn waiting(&self, addition: Option<&Addition>) -> Waiting {
        let (mut requests, mut tokens, mut cost) = (self.requests, self.tokens, self.cost);
        if let Some(Addition { entry, leaving }) = addition {
            requests += u32::from(leaving.is_none());
            tokens = tokens.saturating_sub(leaving.map_or(0, |it| it.tokens)) + entry.tokens;
            cost = cost - leaving.map_or(Work::ZERO, |it| Work::of(it.cost)) + Work::of(entry.cost);
        }
        Waiting { requests, tokens, cost: cost.tokens() }
    }

    pub(super) fn tenants(&self) -> usize {
        self.shares.len()
    }

    /// The share of the capacity that it takes, divided by its tenant's weight: of requests or of tokens,
    /// whichever is larger.
    fn size(&self, entry: &QueueEntry) -> u128 {
        let request = WHOLE / u128::from(self.measure.0.max(1));
        let tokens = WHOLE * u128::from(entry.tokens) / u128::from(self.measure.1.max(1));
        per_weight(request.max(tokens), entry.weight)
    }

    /// The virtual time and the tenant of an addition, if the tenant has nothing queued: as `add` would set it.
    fn joining(&self, addition: &Addition) -> Option<(Work, TenantId)> {
        let tenant = addition.entry.tenant;
        let share = self.shares.get(&tenant);
        if share.is_some_and(|it| !it.is_idle()) {
            return None;
        }
        // A class that becomes empty starts over.
        if addition.leaving.is_some() && self.requests == 1 {
            return Some((Work::ZERO, tenant));
        }
        let is_last = |it: &QueueEntry| self.shares.get(&it.tenant).is_some_and(|it| it.entries().len() == 1);
        let gone = addition.leaving.filter(is_last).map(|it| it.tenant);
        let behind = self.order.iter().find(|it| Some(it.1) != gone).map_or(Work::ZERO, |it| it.0);
        let owed = share.map_or(Work::ZERO, |it| it.at);
        Some((self.clock.max(behind).max(owed), tenant))
    }

    /// Moves the class's time up to the tenant furthest behind, and forgets tenants that it has caught up
    /// with: a few of them, and the one at hand.
    fn advance(&mut self, at_hand: TenantId) {
        if let Some(&(at, _)) = self.order.first() {
            self.clock = self.clock.max(at);
        }
        if let Some(share) = self.shares.get(&at_hand).filter(|it| it.is_idle() && it.at <= self.clock) {
            self.debtors.remove(&(share.at, at_hand));
            self.shares.remove(&at_hand);
        }
        for _ in 0..FORGOTTEN_A_STEP {
            let Some(&(at, tenant)) = self.debtors.first() else { return };
            if at > self.clock && self.debtors.len() <= DEBTORS_MAX {
                return;
            }
            self.debtors.pop_first();
            self.shares.remove(&tenant);
        }
    }

    /// Changes a tenant's share and re-inserts it into the ordered sets. The only way to change a share that
    /// is in them.
    fn change(&mut self, tenant: TenantId, change: impl FnOnce(&mut TenantShare)) {
        let Some(share) = self.shares.get_mut(&tenant) else { return };
        self.debtors.remove(&(share.at, tenant));
        self.order.remove(&(share.at, tenant));
        self.holders.remove(&(share.held, tenant));
        self.weights -= if share.is_idle() { 0.0 } else { share.weight };
        change(share);
        self.weights += if share.is_idle() { 0.0 } else { share.weight };
        if !share.is_idle() {
            self.order.insert((share.at, tenant));
            self.holders.insert((share.held, tenant));
        } else if share.at > self.clock {
            self.debtors.insert((share.at, tenant));
        } else {
            self.shares.remove(&tenant);
        }
    }
}

/// One tenant's position in the order to come.
struct TenantTurn<'a> {
    at: Work,
    tenant: TenantId,
    request: RequestId,
    cost: Work,
    rest: Entries<'a>,
}

impl<'a> TenantTurn<'a> {
    fn first(at: Work, tenant: TenantId, mut rest: Entries<'a>) -> Option<TenantTurn<'a>> {
        let (key, cost) = rest.next()?;
        Some(TenantTurn { at, tenant, request: key.request, cost, rest })
    }

    fn next(mut self) -> Option<TenantTurn<'a>> {
        let (key, cost) = self.rest.next()?;
        Some(TenantTurn { at: self.at + self.cost, request: key.request, cost, ..self })
    }

    fn order(&self) -> (Work, TenantId) {
        (self.at, self.tenant)
    }
}

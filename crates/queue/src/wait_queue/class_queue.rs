//! The queue of one class: its limits, the order of its tenants, and which request is displaced when it is
//! full.
//!
//! Tenants take turns by start-time fair queueing. Each tenant has a virtual time, the work it received
//! divided by its weight, and the tenant with the lowest time goes next. So tenants that always wait get work
//! in proportion to their weights, whatever the sizes of their requests, and a tenant that waits alone gets
//! everything. Once the queue is empty all times and debts are forgotten.
//!
//! The class has a virtual time too. New tenants start at it and returning tenants never before it, so idle time
//! earns nothing. Each piece of work that goes moves it by what every waiting tenant would have got of it. If it only
//! followed the tenant furthest behind, it would stand still while new tenants keep coming, since each of them would
//! be the one furthest behind. Then every tenant that had a request before would wait until they stop coming. It does
//! not move far past the tenant furthest behind: a newcomer waits for a request or two of each tenant, not until one
//! that is far behind has caught up.
//!
//! A request that a worker returned starts no later than those that came after it.
//!
//! Each class keeps its own times, though work in one class is charged in every class that knows the tenant.
//! One time for all classes does not work under strict precedence: while a higher class is served, the times
//! of its tenants run far ahead of those below. A new tenant below would start behind the whole backlog there
//! (at the higher class's time), or one above before everything (at the lower class's time).
//!
//! Capacity is shared by what is limited, requests and tokens, not by cost. Ten thousand requests with cached
//! prompts cost little, but fill the queue.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use maitre_base::{Instant, RequestId, TenantId};

use super::share::{Age, Entries, Position, TenantShare};
use super::work::{Work, per_weight};
use super::{Addition, LOOK, QueueEntry, Waiting};
use crate::settings::Class;

/// Maximum number of tenants remembered per class that have nothing queued but are ahead of their share. Beyond it
/// the class forgives those least ahead. Chosen: forgetting as many at once takes well under 100 µs.
const DEBTORS_MAX: usize = 1_000;
/// Tenants forgotten per step: more than a step can add, few enough to cost nothing noticeable.
const FORGOTTEN_A_STEP: usize = 2;
/// How far the time of a class may be past that of the tenant furthest behind, in mean requests. If each waiting
/// tenant has one request, one mean request goes while a request waits. Costs vary, so twice that.
const AHEAD_MAX: u32 = 2;
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
    /// The virtual time of the class: at least that of the tenant furthest behind. Never decreases.
    clock: Work,
    shares: BTreeMap<TenantId, TenantShare>,
    /// Tenants with queued requests, in the order in which they go.
    order: BTreeSet<Position>,
    /// Tenants without queued requests that are ahead of the class.
    debtors: BTreeSet<(Work, TenantId)>,
    /// Tenants with queued requests, by the share of the capacity they hold.
    holders: BTreeSet<(u128, TenantId)>,
    /// The tenants of all queued requests, by age.
    ages: BTreeMap<Age, TenantId>,
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
            ages: BTreeMap::new(),
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

    /// The tenant whose requests take the largest share of the class, for its weight, and how many they are.
    pub(super) fn largest_tenant(&self) -> Option<(TenantId, u32)> {
        let &(_, tenant) = self.holders.last()?;
        Some((tenant, u32::try_from(self.shares.get(&tenant)?.requests()).unwrap_or(u32::MAX)))
    }

    pub(super) fn add(&mut self, entry: &QueueEntry) {
        self.advance(entry.tenant);
        if self.requests == 0 {
            self.measure = (self.requests_max, self.tokens_max);
        }
        let (start, size) = (self.start(entry, None, self.clock), self.size(entry));
        self.shares.entry(entry.tenant).or_insert_with(|| TenantShare::starting(start));
        self.change(entry.tenant, |it| it.add(entry, size));
        self.ages.insert((entry.since, entry.request), entry.tenant);
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

    /// This request goes and costs this much work. The caller removes it after that.
    pub(super) fn serve(&mut self, entry: &QueueEntry, work: Work) {
        self.charge(entry.tenant, work.over(entry.weight));
        let others = self.requests.saturating_sub(1);
        let Some(first) = self.order.first().filter(|_| others > 0) else { return };
        let mean_weight = self.weights / self.order.len() as f64;
        let mean = (self.cost - Work::of(entry.cost)).part(u128::from(others)).over(mean_weight);
        let most = (0..AHEAD_MAX).fold(first.at, |sum, _| sum + mean);
        self.clock = self.clock.max(most.min(self.clock + work.over(self.weights)));
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

    /// Appends the next requests for which `wanted` is true, until `found` holds `LOOK` or `wanted` returns `None`.
    /// Shows the class as it would be with this addition.
    pub(super) fn list(
        &self,
        addition: Option<&Addition>,
        found: &mut Vec<RequestId>,
        mut wanted: impl FnMut(RequestId) -> Option<bool>,
    ) {
        let changed = addition.map_or([None; 2], |it| self.changed_by(it));
        let is_changed = |it: &&Position| !changed.iter().flatten().any(|other| other.tenant == it.tenant);
        let mut changed = changed.iter().flatten().peekable();
        let mut others = self.order.iter().filter(is_changed).peekable();
        let tenants = iter::from_fn(|| match (changed.peek(), others.peek()) {
            (Some(one), Some(other)) if other < one => others.next(),
            (Some(_), _) => changed.next(),
            (None, _) => others.next(),
        });
        let first = |it: &Position| {
            TenantTurn::first(*it, Entries::of(self.shares.get(&it.tenant), it.tenant, addition))
        };
        // Each tenant's next request is due at its time plus the cost of the one before. A tenant joins once its first
        // request is due: in the list of thousands, most have one request that is not wanted.
        let mut tenants = tenants.filter_map(first).peekable();
        let mut turns: BTreeMap<Position, TenantTurn<'_>> = BTreeMap::new();
        while found.len() < LOOK {
            let soonest = turns.first_key_value().map(|it| *it.0);
            if let Some(turn) = tenants.next_if(|it| soonest.is_none_or(|soonest| it.position < soonest)) {
                turns.insert(turn.position, turn);
            }
            let Some((_, turn)) = turns.pop_first() else { return };
            match wanted(turn.request) {
                None => return,
                Some(true) => found.push(turn.request),
                Some(false) => {}
            }
            turns.extend(turn.next().map(|it| (it.position, it)));
        }
    }

    /// The work of this class that would go before a new entry: its tenant's own, and what other tenants receive
    /// meanwhile by their weights. Assumes that each of them has enough queued to use its weight.
    pub(super) fn before(&self, entry: &QueueEntry) -> f64 {
        let share = self.shares.get(&entry.tenant);
        let own = share.map_or(Work::ZERO, |it| it.before(entry) + (it.at - self.clock));
        let present = share.is_some_and(|it| !it.is_idle());
        let others = self.weights - if present { share.map_or(0.0, |it| it.weight) } else { 0.0 };
        (own.tokens() * (others.max(0.0) + entry.weight)).min(self.cost.tokens())
    }

    pub(super) fn oldest(&self, addition: Option<&Addition>) -> Option<(Instant, RequestId)> {
        let leaving = addition.and_then(|it| it.leaving).map(|it| it.request);
        let queued = self.ages.keys().find(|it| Some(it.1) != leaving).copied();
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

    /// The share of the capacity that the entry takes, divided by its tenant's weight: of requests or of tokens,
    /// whichever is larger.
    fn size(&self, entry: &QueueEntry) -> u128 {
        let request = WHOLE / u128::from(self.measure.0.max(1));
        let tokens = WHOLE * u128::from(entry.tokens) / u128::from(self.measure.1.max(1));
        per_weight(request.max(tokens), entry.weight)
    }

    /// The positions, in order, of the tenants that an addition moves, as `add` would set them: its own tenant's, and
    /// that of the tenant whose request leaves for it.
    fn changed_by(&self, addition: &Addition) -> [Option<Position>; 2] {
        let Addition { entry, leaving } = addition;
        let added = self.joining(addition);
        let left = leaving.and_then(|it| {
            let share = self.shares.get(&it.tenant)?;
            let mut rest = Entries::of(Some(share), it.tenant, Some(addition));
            let (next, _) = rest.next()?;
            Some(Position { at: share.at, oldest: rest.oldest_from(next), tenant: it.tenant })
        });
        debug_assert!(leaving.is_none_or(|it| it.tenant != entry.tenant), "a tenant displaces itself");
        if left.is_some_and(|it| it < added) { [left, Some(added)] } else { [Some(added), left] }
    }

    /// The position of an addition's tenant.
    fn joining(&self, addition: &Addition) -> Position {
        let Addition { entry, leaving } = addition;
        let (tenant, age) = (entry.tenant, (entry.since, entry.request));
        let share = self.shares.get(&tenant);
        if let Some(it) = share.and_then(|it| it.position(tenant)) {
            return Position { oldest: it.oldest.min(age), ..it };
        }
        // A class that becomes empty starts over.
        if leaving.is_some() && self.requests == 1 {
            return Position { at: Work::ZERO, oldest: age, tenant };
        }
        let is_last = |it: &QueueEntry| self.shares.get(&it.tenant).is_some_and(|it| it.requests() == 1);
        let gone = leaving.filter(is_last).map(|it| it.tenant);
        let behind = self.order.iter().find(|it| Some(it.tenant) != gone).map_or(Work::ZERO, |it| it.at);
        let clock = self.clock.max(behind);
        let owed = share.map(|it| it.at).filter(|&it| it > clock);
        let at = owed.unwrap_or_else(|| self.start(entry, leaving.map(|it| it.request), clock));
        Position { at, oldest: age, tenant }
    }

    /// Where a tenant starts whose first request this is, once `leaving` has left: at the class's time, but not
    /// behind the next younger request. A younger request exists only if this one was here before, or at a worker.
    fn start(&self, entry: &QueueEntry, leaving: Option<RequestId>, clock: Work) -> Work {
        let mut younger = self.ages.range((entry.since, entry.request)..);
        let next = younger.find(|it| Some(it.0.1) != leaving).and_then(|it| self.shares.get(it.1));
        next.map_or(clock, |it| clock.min(it.at))
    }

    /// Moves the class's time up to that of the tenant furthest behind. Forgets tenants that it has caught up with: a
    /// few of them, and `at_hand`.
    fn advance(&mut self, at_hand: TenantId) {
        if let Some(first) = self.order.first() {
            self.clock = self.clock.max(first.at);
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
        if let Some(position) = share.position(tenant) {
            self.order.remove(&position);
        }
        self.holders.remove(&(share.held, tenant));
        self.weights -= if share.is_idle() { 0.0 } else { share.weight };
        change(share);
        self.weights += if share.is_idle() { 0.0 } else { share.weight };
        if let Some(position) = share.position(tenant) {
            self.order.insert(position);
            self.holders.insert((share.held, tenant));
        } else if share.at > self.clock {
            self.debtors.insert((share.at, tenant));
        } else {
            self.shares.remove(&tenant);
        }
    }
}

/// One tenant's turn in the order to come.
struct TenantTurn<'a> {
    position: Position,
    request: RequestId,
    cost: Work,
    rest: Entries<'a>,
}

impl<'a> TenantTurn<'a> {
    fn first(position: Position, mut rest: Entries<'a>) -> Option<TenantTurn<'a>> {
        let (next, cost) = rest.next()?;
        let position = Position { oldest: rest.oldest_from(next), ..position };
        Some(TenantTurn { position, request: next.request, cost, rest })
    }

    fn next(self) -> Option<TenantTurn<'a>> {
        let at = self.position.at + self.cost;
        TenantTurn::first(Position { at, ..self.position }, self.rest)
    }
}

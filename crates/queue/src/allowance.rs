//! Rate limits of tenants per minute, in requests and in tokens.
//!
//! A limit is a token bucket that holds a minute's worth and refills at the limit's rate. Its whole state is
//! one instant: when it will be full again. Taking moves that instant forward by the time to refill, and is
//! allowed if the instant stays within a minute from now. So a tenant can burst a minute's worth at once, and
//! never gets more than twice that in a minute.
//!
//! A request larger than the whole bucket would never fit. It passes when the bucket is full and leaves a
//! debt, which must refill too.
//!
//! A limit holds over all routers. What other routers let through is charged here when they report it,
//! without a check. So a bucket may be in debt when several routers took the last of it before they heard of
//! each other; then nothing passes until it has refilled. A router that hears only some of its peers scales
//! what it takes by known over heard routers, so that the partitions together stay within the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maitre_base::{Instant, TenantId};

use crate::settings::Terms;

/// Maximum number of tenants remembered. A tenant whose buckets are full again is forgotten. Beyond the maximum,
/// further tenants share one overflow bucket, each by its own terms. So under a flood of names the router may refuse
/// a new tenant for what other new tenants took, but never a known one. (A caller that may invent names gets a new
/// bucket with each, up to this limit: a tenant name is worth as much as the check behind it.)
pub const TENANTS_HELD: usize = 100_000;
/// Tenants forgotten per step: more than a step can add, few enough to cost nothing noticeable.
const FORGOTTEN_A_STEP: usize = 2;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_NANOS: u64 = MINUTE.as_nanos() as u64;

#[derive(Clone, Debug, Default)]
pub struct Allowances {
    buckets: BTreeMap<TenantId, Buckets>,
    /// When all of a tenant's buckets will be full again.
    full: BTreeSet<(Instant, TenantId)>,
    overflow: Buckets,
    share: RouterShare,
}

/// How many routers count together, this one included, of how many exist. Each take also covers the routers that are
/// not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterShare {
    heard: u32,
    known: u32,
}

impl Default for RouterShare {
    fn default() -> RouterShare {
        RouterShare::of(1, 1)
    }
}

impl RouterShare {
    /// At least one, and at most as many as are known.
    pub fn of(heard: u32, known: u32) -> RouterShare {
        let known = known.max(1);
        RouterShare { heard: heard.clamp(1, known), known }
    }

    /// The part of each limit that the routers that hear each other may use, in (0, 1].
    pub fn part(self) -> f64 {
        f64::from(self.heard) / f64::from(self.known)
    }

    /// `u64::MAX`, which stands for never, stays. Rounds up, like every amount taken.
    fn times(self, nanos: u64) -> u64 {
        if nanos == u64::MAX || self.heard == self.known {
            return nanos;
        }
        let all = (u128::from(nanos) * u128::from(self.known)).div_ceil(u128::from(self.heard));
        u64::try_from(all).unwrap_or(u64::MAX - 1).min(u64::MAX - 1)
    }
}

/// What one request took, to be returned if no worker serves it. Nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken(Option<Refill>);

/// What other routers let through for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerUsage {
    pub requests: u64,
    pub tokens: u64,
}

/// A request that does not fit its tenant's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// Time until it would fit if no other request came: `Duration::MAX` for a limit of zero, which never admits
    /// anything.
    pub retry_after: Duration,
    /// The limit that the request waits for; if it waits for both, the one that takes longer.
    pub limit: RateLimit,
}

/// A limit of a tenant, per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimit {
    Requests(u32),
    Tokens(u64),
}

/// What is left of a tenant's limits; `None` for a limit that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    pub requests: Option<Budget>,
    pub tokens: Option<Budget>,
}

/// What is left of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub per_minute: u64,
    /// How much could be taken at once now.
    pub remaining: u64,
    /// Time until the whole limit could be taken.
    pub reset: Duration,
}

/// When each bucket will be full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buckets {
    requests: Instant,
    tokens: Instant,
}

/// The time to refill what one request takes; `None` for a limit that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refill {
    requests: Option<u64>,
    tokens: Option<u64>,
}

impl Allowances {
    pub fn new() -> Allowances {
        Allowances::default()
    }

    /// Takes one request of `tokens` from both buckets of the tenant, or from neither.
    pub fn take(
        &mut self,
        now: Instant,
        tenant: TenantId,
        terms: &Terms,
        tokens: u64,
    ) -> Result<Taken, OverLimit> {
        let Some(refill) = self.refill(terms, PeerUsage { requests: 1, tokens }) else {
            return Ok(Taken::default());
        };
        self.forget(now);
        if let Some(over) = refill.over(now, &self.of(tenant), terms) {
            return Err(over);
        }
        self.put(now, tenant, refill);
        Ok(Taken(Some(refill)))
    }

    /// Charges what other routers let through, whether it fits or not.
    pub fn charge(&mut self, now: Instant, tenant: TenantId, terms: &Terms, passed: PeerUsage) {
        // A limit of zero admits nothing, so a wait for it would never end.
        let refill = self.refill(terms, passed).map(Refill::finite);
        if let Some(refill) = refill {
            self.forget(now);
            self.put(now, tenant, refill);
        }
    }

    /// Sets how many routers count together, for what is taken from now on.
    pub fn share(&mut self, share: RouterShare) {
        self.share = share;
    }

    fn refill(&self, terms: &Terms, passed: PeerUsage) -> Option<Refill> {
        Refill::of(terms, passed).map(|it| it.times(self.share))
    }

    /// A tenant's buckets; the overflow bucket if there is no room for its own.
    fn of(&self, tenant: TenantId) -> Buckets {
        let overflow = (self.buckets.len() >= TENANTS_HELD).then_some(self.overflow);
        self.buckets.get(&tenant).copied().or(overflow).unwrap_or_default()
    }

    fn put(&mut self, now: Instant, tenant: TenantId, refill: Refill) {
        let mut buckets = self.of(tenant);
        buckets.take(now, refill);
        match self.buckets.len() >= TENANTS_HELD && !self.buckets.contains_key(&tenant) {
            true => self.overflow = buckets,
            false => self.keep(tenant, buckets),
        }
    }

    /// What `take` would return, without taking.
    pub fn check(&self, now: Instant, tenant: TenantId, terms: &Terms, tokens: u64) -> Result<(), OverLimit> {
        let refill = self.refill(terms, PeerUsage { requests: 1, tokens });
        refill.and_then(|it| it.over(now, &self.of(tenant), terms)).map_or(Ok(()), Err)
    }

    /// What is left of the tenant's limits.
    pub fn budgets(&self, now: Instant, tenant: TenantId, terms: &Terms) -> Budgets {
        let buckets = self.of(tenant);
        let budget = |per_minute: u64, full: Instant| {
            let reset = full.since(now);
            let left = u128::from(per_minute) * MINUTE.saturating_sub(reset).as_nanos() / MINUTE.as_nanos();
            let ours = left * u128::from(self.share.heard) / u128::from(self.share.known);
            Budget { per_minute, remaining: u64::try_from(ours).unwrap_or(u64::MAX), reset }
        };
        Budgets {
            requests: terms.requests_per_minute.map(|it| budget(u64::from(it), buckets.requests)),
            tokens: terms.tokens_per_minute.map(|it| budget(it, buckets.tokens)),
        }
    }

    /// Undoes `take` for a request that was refused after all.
    pub fn give_back(&mut self, tenant: TenantId, taken: Taken) {
        let Some(refill) = taken.0 else { return };
        match self.buckets.get(&tenant).copied() {
            Some(mut buckets) => {
                buckets.give_back(refill);
                self.keep(tenant, buckets);
            }
            // The buckets of an unknown tenant are full, unless it used the overflow bucket.
            None if self.buckets.len() >= TENANTS_HELD => self.overflow.give_back(refill),
            None => {}
        }
    }

    /// How many tenants are remembered.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    fn keep(&mut self, tenant: TenantId, buckets: Buckets) {
        if let Some(old) = self.buckets.insert(tenant, buckets) {
            self.full.remove(&(old.full(), tenant));
        }
        self.full.insert((buckets.full(), tenant));
    }

    fn forget(&mut self, now: Instant) {
        for _ in 0..FORGOTTEN_A_STEP {
            let Some(&(_, tenant)) = self.full.first().filter(|it| it.0 <= now) else { return };
            self.full.pop_first();
            self.buckets.remove(&tenant);
        }
    }
}

impl Buckets {
    fn full(&self) -> Instant {
        self.requests.max(self.tokens)
    }

    fn take(&mut self, now: Instant, refill: Refill) {
        let after = |full: Instant, nanos: u64| full.max(now) + Duration::from_nanos(nanos);
        self.requests = refill.requests.map_or(self.requests, |it| after(self.requests, it));
        self.tokens = refill.tokens.map_or(self.tokens, |it| after(self.tokens, it));
    }

    fn give_back(&mut self, refill: Refill) {
        let before = |full: Instant, nanos: Option<u64>| {
            earlier(full, nanos.map_or(Duration::ZERO, Duration::from_nanos))
        };
        self.requests = before(self.requests, refill.requests);
        self.tokens = before(self.tokens, refill.tokens);
    }
}

fn earlier(moment: Instant, span: Duration) -> Instant {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(moment.as_nanos().saturating_sub(nanos))
}

impl Refill {
    /// `None` without any limit: nothing needs to be kept for such a tenant.
    fn of(terms: &Terms, passed: PeerUsage) -> Option<Refill> {
        let requests = terms.requests_per_minute.map(|it| refill_nanos(passed.requests, u64::from(it)));
        let tokens = terms.tokens_per_minute.map(|it| refill_nanos(passed.tokens, it));
        (requests.is_some() || tokens.is_some()).then_some(Refill { requests, tokens })
    }

    fn times(self, share: RouterShare) -> Refill {
        let times = |it: Option<u64>| it.map(|it| share.times(it));
        Refill { requests: times(self.requests), tokens: times(self.tokens) }
    }

    fn finite(self) -> Refill {
        let finite = |it: Option<u64>| it.filter(|&it| it != u64::MAX);
        Refill { requests: finite(self.requests), tokens: finite(self.tokens) }
    }

    /// `None` if it fits.
    fn over(self, now: Instant, buckets: &Buckets, terms: &Terms) -> Option<OverLimit> {
        let over = |full: Instant, refill: Option<u64>, limit: Option<RateLimit>| {
            let retry_after = wait(now, full, refill?);
            (!retry_after.is_zero()).then_some(OverLimit { retry_after, limit: limit? })
        };
        let requests =
            over(buckets.requests, self.requests, terms.requests_per_minute.map(RateLimit::Requests));
        let tokens = over(buckets.tokens, self.tokens, terms.tokens_per_minute.map(RateLimit::Tokens));
        [requests, tokens].into_iter().flatten().max_by_key(|it| it.retry_after)
    }
}

/// Never (`u64::MAX`) if the limit is zero. Rounds up, so that no sum of small requests exceeds the limit.
fn refill_nanos(amount: u64, per_minute: u64) -> u64 {
    let nanos = u128::from(amount) * u128::from(MINUTE_NANOS);
    match per_minute {
        0 => u64::MAX,
        limit => u64::try_from(nanos.div_ceil(u128::from(limit))).unwrap_or(u64::MAX - 1),
    }
}

/// Time until a request that takes `refill` to refill fits a bucket that is full at `full`.
fn wait(now: Instant, full: Instant, refill: u64) -> Duration {
    match refill {
        u64::MAX => Duration::MAX,
        // The bucket has room for it this long before it is full.
        _ => earlier(full, MINUTE.saturating_sub(Duration::from_nanos(refill))).since(now),
    }
}

#[cfg(test)]
mod tests;

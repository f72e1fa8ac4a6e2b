//! How much a tenant may ask for in a minute, in requests and in tokens.
//!
//! A limit is a bucket that holds a minute's worth and fills as fast as it may be emptied. All that need be kept of
//! it is one moment: when it will be full again. What is taken moves that moment on by the time it takes to
//! refill, and fits if the moment stays within a minute from now. So a tenant can burst a minute's worth at once, and
//! in no minute has more than twice that.
//!
//! What is larger than the whole bucket would never fit, and would be told to wait for ever. It passes when
//! the bucket is full, and leaves a debt: the tenant waits until that has been refilled too.
//!
//! A limit holds over all routers. What others let through is charged here as they tell it, without being asked for: so
//! a bucket may owe, when several took the last of it in the moment before they had heard of each other, and then nothing
//! passes until that has been refilled. Routers that hear only some of the others count everything as many times as all
//! are to those they hear: the parts, each for itself, come to the limit together at the most.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maitre_base::{Instant, TenantId};

use crate::settings::Terms;

/// Tenants remembered at once. Those whose buckets are full again are forgotten, as nothing need be known of them.
/// If that is not enough, those for whom there is no room share one bucket, the crowd's, each by its own terms: under
/// a flood of names a newcomer may be refused for what other newcomers took, but those who are known are not. (Whoever
/// may invent names has a new bucket with each, up to here: names are worth what checks them.)
pub const TENANTS_HELD: usize = 100_000;
/// So many are forgotten at a step: more than may be added, few enough not to be felt.
const FORGOTTEN_A_STEP: usize = 2;

const MINUTE: Duration = Duration::from_secs(60);
const MINUTE_NANOS: u64 = MINUTE.as_nanos() as u64;

#[derive(Clone, Debug, Default)]
pub struct Allowances {
    buckets: BTreeMap<TenantId, Buckets>,
    /// When all of a tenant's buckets will be full again.
    full: BTreeSet<(Instant, TenantId)>,
    crowd: Buckets,
    share: RouterShare,
}

/// How many routers count together, ourselves included, of how many there are. What is taken counts for those who cannot
/// be heard.
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
    /// Never nobody, and never more than there are.
    pub fn of(heard: u32, known: u32) -> RouterShare {
        let known = known.max(1);
        RouterShare { heard: heard.clamp(1, known), known }
    }

    /// The part of each limit that those who hear each other may give, in (0, 1].
    pub fn part(self) -> f64 {
        f64::from(self.heard) / f64::from(self.known)
    }

    /// For ever stays for ever. Rounded up, as all that is taken is.
    fn times(self, nanos: u64) -> u64 {
        if nanos == u64::MAX || self.heard == self.known {
            return nanos;
        }
        let all = (u128::from(nanos) * u128::from(self.known)).div_ceil(u128::from(self.heard));
        u64::try_from(all).unwrap_or(u64::MAX - 1).min(u64::MAX - 1)
    }
}

/// What one request took, to be given back if nobody works on it. Nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken(Option<Refill>);

/// What other routers let through for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerUsage {
    pub requests: u64,
    pub tokens: u64,
}

/// When each will be full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buckets {
    requests: Instant,
    tokens: Instant,
}

/// How long the buckets take to refill what one request takes; none where there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refill {
    requests: Option<u64>,
    tokens: Option<u64>,
}

impl Allowances {
    pub fn new() -> Allowances {
        Allowances::default()
    }

    /// Takes one request of so many tokens from the tenant's buckets, if it fits both; otherwise from neither, and says
    /// how long it is until this very request would fit if nothing else came. A limit of zero lets nothing
    /// through, ever: `Duration::MAX`.
    pub fn take(
        &mut self,
        now: Instant,
        tenant: TenantId,
        terms: &Terms,
        tokens: u64,
    ) -> Result<Taken, Duration> {
        let Some(refill) = self.refill(terms, PeerUsage { requests: 1, tokens }) else {
            return Ok(Taken::default());
        };
        self.forget(now);
        let wait = refill.wait(now, &self.of(tenant));
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.put(now, tenant, refill);
        Ok(Taken(Some(refill)))
    }

    /// Other routers let this through. It is taken whether it fits or not.
    pub fn charge(&mut self, now: Instant, tenant: TenantId, terms: &Terms, passed: PeerUsage) {
        // A limit of zero lets nothing through, so there is nothing to wait for that would ever be over.
        let refill = self.refill(terms, passed).map(Refill::finite);
        if let Some(refill) = refill {
            self.forget(now);
            self.put(now, tenant, refill);
        }
    }

    /// So much of what is taken from now on is for those we cannot hear.
    pub fn share(&mut self, share: RouterShare) {
        self.share = share;
    }

    fn refill(&self, terms: &Terms, passed: PeerUsage) -> Option<Refill> {
        Refill::of(terms, passed).map(|it| it.times(self.share))
    }

    /// A tenant's buckets; the crowd's, if it is one of it.
    fn of(&self, tenant: TenantId) -> Buckets {
        let crowd = (self.buckets.len() >= TENANTS_HELD).then_some(self.crowd);
        self.buckets.get(&tenant).copied().or(crowd).unwrap_or_default()
    }

    fn put(&mut self, now: Instant, tenant: TenantId, refill: Refill) {
        let mut buckets = self.of(tenant);
        buckets.take(now, refill);
        match self.buckets.len() >= TENANTS_HELD && !self.buckets.contains_key(&tenant) {
            true => self.crowd = buckets,
            false => self.keep(tenant, buckets),
        }
    }

    /// What `take` would say, and nothing is taken.
    pub fn check(&self, now: Instant, tenant: TenantId, terms: &Terms, tokens: u64) -> Result<(), Duration> {
        let refill = self.refill(terms, PeerUsage { requests: 1, tokens });
        match refill.map_or(Duration::ZERO, |it| it.wait(now, &self.of(tenant))) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// Undoes what `take` did for a request that was refused after all.
    pub fn give_back(&mut self, tenant: TenantId, taken: Taken) {
        let Some(refill) = taken.0 else { return };
        match self.buckets.get(&tenant).copied() {
            Some(mut buckets) => {
                buckets.give_back(refill);
                self.keep(tenant, buckets);
            }
            // Of one that is not known its buckets are full, unless it was one of a crowd.
            None if self.buckets.len() >= TENANTS_HELD => self.crowd.give_back(refill),
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
    /// None where there are no limits at all: nothing need be kept of such a tenant.
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

    fn wait(self, now: Instant, buckets: &Buckets) -> Duration {
        let requests = self.requests.map_or(Duration::ZERO, |it| wait(now, buckets.requests, it));
        let tokens = self.tokens.map_or(Duration::ZERO, |it| wait(now, buckets.tokens, it));
        requests.max(tokens)
    }
}

/// For ever, if the limit is zero. Rounded up, so that no sum of small ones passes the limit.
fn refill_nanos(amount: u64, per_minute: u64) -> u64 {
    let nanos = u128::from(amount) * u128::from(MINUTE_NANOS);
    match per_minute {
        0 => u64::MAX,
        limit => u64::try_from(nanos.div_ceil(u128::from(limit))).unwrap_or(u64::MAX - 1),
    }
}

/// How long until what takes so long to refill can be taken from a bucket that is full at `full`.
fn wait(now: Instant, full: Instant, refill: u64) -> Duration {
    match refill {
        u64::MAX => Duration::MAX,
        // A bucket that is to hold this much is full so much later.
        _ => earlier(full, MINUTE.saturating_sub(Duration::from_nanos(refill))).since(now),
    }
}

#[cfg(test)]
mod tests;

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
//! What this leaves out: limits across routers. Each counts what it sees.

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
}

/// When each will be full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buckets {
    requests: Instant,
    tokens: Instant,
}

/// How long the buckets take to refill what one request takes; none where there is no limit.
#[derive(Clone, Copy, Debug)]
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
    ) -> Result<(), Duration> {
        let Some(refill) = Refill::of(terms, tokens) else { return Ok(()) };
        self.forget(now);
        let mut buckets = self.buckets.get(&tenant).copied();
        let is_crowd = buckets.is_none() && self.buckets.len() >= TENANTS_HELD;
        if is_crowd {
            buckets = Some(self.crowd);
        }
        let mut buckets = buckets.unwrap_or_default();
        let wait = refill.wait(now, &buckets);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        buckets.take(now, refill);
        match is_crowd {
            true => self.crowd = buckets,
            false => self.keep(tenant, buckets),
        }
        Ok(())
    }

    /// What `take` would say, and nothing is taken.
    pub fn check(&self, now: Instant, tenant: TenantId, terms: &Terms, tokens: u64) -> Result<(), Duration> {
        let Some(refill) = Refill::of(terms, tokens) else { return Ok(()) };
        let known = self.buckets.get(&tenant).copied();
        let crowd = (self.buckets.len() >= TENANTS_HELD).then_some(self.crowd);
        match refill.wait(now, &known.or(crowd).unwrap_or_default()) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// Undoes what `take` did for a request that was refused after all, with the same terms and tokens.
    pub fn give_back(&mut self, tenant: TenantId, terms: &Terms, tokens: u64) {
        let Some(refill) = Refill::of(terms, tokens) else { return };
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
    fn of(terms: &Terms, tokens: u64) -> Option<Refill> {
        let requests = terms.requests_per_minute.map(|it| refill_nanos(1, u64::from(it)));
        let tokens = terms.tokens_per_minute.map(|it| refill_nanos(tokens, it));
        (requests.is_some() || tokens.is_some()).then_some(Refill { requests, tokens })
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

//! Calls that wait for memory, and which of them goes next.
//!
//! The tenant with the least memory goes first, by its weight. Of a tenant, programs in the middle of their work go before
//! new ones, and then the call that came first. A call that does not fit lets others pass, but not for long: otherwise a
//! large program would never find its memory.

use maitre_base::{Instant, RequestId, TenantId};
use std::cmp::Ordering;
use std::time::Duration;

use super::ProgramId;

/// Calls that are held at a time; more go at once.
pub(crate) const HELD_MAX: usize = 16_384;
/// Calls that are tried when memory is free.
const TRIED_MAX: usize = 8;
/// After so long no call of the same tenant passes this one.
const PASSED_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldCall {
    pub(crate) request: RequestId,
    pub(crate) program: ProgramId,
    pub(crate) tenant: TenantId,
    pub(crate) since: Instant,
    /// Its program has had calls before.
    pub(crate) is_begun: bool,
}

/// In the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct HeldCalls {
    calls: Vec<HeldCall>,
}

impl HeldCalls {
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns whether there was a place for it.
    pub(crate) fn push(&mut self, call: HeldCall) -> bool {
        let has_place = self.calls.len() < HELD_MAX;
        if has_place {
            self.calls.push(call);
        }
        has_place
    }

    /// Returns the call, if it was held.
    pub(crate) fn remove(&mut self, request: RequestId) -> Option<HeldCall> {
        let place = self.calls.iter().position(|it| it.request == request)?;
        Some(self.calls.remove(place))
    }

    pub(crate) fn oldest(&self) -> Option<HeldCall> {
        self.calls.first().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldCall> {
        self.calls.iter()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.calls.len() >= HELD_MAX
    }

    /// All calls, in the order in which they go. `share` is what a tenant has, by its weight.
    pub(crate) fn in_order(&self, share: impl Fn(TenantId) -> f64) -> impl Iterator<Item = HeldCall> {
        let mut calls: Vec<(f64, usize)> =
            self.calls.iter().enumerate().map(|(place, it)| (share(it.tenant), place)).collect();
        let by_place = |a: &(f64, usize), b: &(f64, usize)| {
            order((a.0, &self.calls[a.1]), (b.0, &self.calls[b.1])).then(a.1.cmp(&b.1))
        };
        calls.sort_unstable_by(by_place);
        calls.into_iter().map(|it| self.calls[it.1])
    }

    /// How many calls go before one that comes now.
    pub(crate) fn ahead_of(&self, call: &HeldCall, share: impl Fn(TenantId) -> f64) -> usize {
        let own = share(call.tenant);
        self.calls.iter().filter(|it| order((share(it.tenant), it), (own, call)).is_le()).count()
    }

    /// The calls to try next, in order.
    pub(crate) fn next(&self, now: Instant, share: impl Fn(TenantId) -> f64) -> Vec<HeldCall> {
        let mut next: Vec<HeldCall> = Vec::with_capacity(TRIED_MAX);
        let mut closed: Option<TenantId> = None;
        for call in self.in_order(share) {
            if next.len() == TRIED_MAX {
                break;
            }
            if closed == Some(call.tenant) {
                continue;
            }
            next.push(call);
            if now.since(call.since) >= PASSED_MAX {
                closed = Some(call.tenant);
            }
        }
        next
    }
}

/// Of two calls with the shares of their tenants, which goes first.
fn order((share, call): (f64, &HeldCall), (others, other): (f64, &HeldCall)) -> Ordering {
    let by_tenant = share.total_cmp(&others).then(call.tenant.0.cmp(&other.tenant.0));
    by_tenant.then(other.is_begun.cmp(&call.is_begun))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(request: u64, tenant: u64, is_begun: bool, since: u64) -> HeldCall {
        let (request, tenant) = (RequestId(request), TenantId(tenant));
        HeldCall {
            request,
            program: ProgramId(request.0),
            tenant,
            since: Instant::from_millis(since),
            is_begun,
        }
    }

    #[track_caller]
    fn check(calls: &[HeldCall], now: u64, share: impl Fn(TenantId) -> f64, expected: &[u64]) {
        let mut held = HeldCalls::default();
        calls.iter().for_each(|&it| assert!(held.push(it)));
        let next: Vec<u64> =
            held.next(Instant::from_millis(now), share).iter().map(|it| it.request.0).collect();
        assert_eq!(next, expected);
    }

    #[test]
    fn the_tenant_with_least_memory_goes_first_then_begun_programs_then_the_oldest() {
        let calls = [call(1, 1, false, 0), call(2, 1, true, 1), call(3, 2, false, 2), call(4, 1, true, 3)];
        check(&calls, 4, |it| if it.0 == 1 { 5.0 } else { 3.0 }, &[3, 2, 4, 1]);
        check(&calls, 4, |it| if it.0 == 1 { 1.0 } else { 3.0 }, &[2, 4, 1, 3]);
    }

    #[test]
    fn a_call_that_has_waited_long_is_not_passed_by_its_own_tenant() {
        let calls = [call(1, 1, true, 0), call(2, 1, true, 59_000), call(3, 2, true, 59_000)];
        check(&calls, 59_500, |_| 0.0, &[1, 2, 3]);
        check(&calls, 60_000, |_| 0.0, &[1, 3]);
    }

    #[test]
    fn the_list_has_a_limit() {
        let mut held = HeldCalls::default();
        for number in 0..HELD_MAX as u64 {
            assert!(held.push(call(number, 1, true, 0)));
        }
        assert!(!held.push(call(u64::MAX, 1, true, 0)));
        assert!(held.remove(RequestId(5)).is_some() && held.remove(RequestId(5)).is_none());
    }
}

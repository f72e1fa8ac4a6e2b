//! Calls that wait for memory, and which of them goes next.
//!
//! Models do not share memory, so each has calls of its own order. The tenant with the least memory goes first, by its weight. Of a tenant, programs in the middle of their work go before
//! new ones, and then the call that came first. A call that does not fit lets others pass, but not for long: otherwise a
//! large program would never find its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, RequestId, TenantId};
use maitre_fleet::Wanted;

use super::ProgramId;

/// Calls that are held at a time; more go at once.
pub(crate) const HELD_MAX: usize = 16_384;
/// Calls that are tried when memory is free.
const TRIED_MAX: usize = 8;
/// After so long no call of the same tenant for the same model passes this one.
const PASSED_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldCall {
    pub(crate) request: RequestId,
    pub(crate) program: ProgramId,
    pub(crate) tenant: TenantId,
    pub(crate) wanted: Wanted,
    pub(crate) since: Instant,
    /// From when it counts among calls of its tenant: its own arrival, or that of its program.
    pub(crate) queued_from: Instant,
    /// Its program has had calls before.
    pub(crate) is_begun: bool,
}

/// Calls of one tenant for one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LineId {
    tenant: u64,
    model: u64,
}

/// The place of a call in its line: whether its program is new, from when it counts, and its number.
type Place = (bool, Instant, u64);

/// Sorted at all times: a look at the next calls costs as much as there are tenants and models, not calls.
#[derive(Debug, Default)]
pub(crate) struct HeldCalls {
    /// By their numbers, in the order of their arrival.
    calls: BTreeMap<u64, HeldCall>,
    /// The number of each request.
    numbers: NumberMap<u64>,
    /// The calls of each line, in the order in which they go.
    lines: BTreeMap<LineId, BTreeSet<Place>>,
    /// How many calls of each program are held.
    programs: NumberMap<u32>,
    /// Programs of which a call has gone and others are held.
    forward: Vec<ProgramId>,
    /// Calls so far.
    count: u64,
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
        if self.is_full() {
            return false;
        }
        self.count += 1;
        *self.programs.entry(call.program.0).or_default() += 1;
        self.calls.insert(self.count, call);
        self.numbers.insert(call.request.0, self.count);
        self.lines.entry(line(&call)).or_default().insert(place(self.count, &call));
        true
    }

    /// Returns the call, if it was held.
    pub(crate) fn remove(&mut self, request: RequestId) -> Option<HeldCall> {
        let number = self.numbers.remove(&request.0)?;
        let call = self.calls.remove(&number)?;
        self.forget(call.program);
        if let Some(places) = self.lines.get_mut(&line(&call)) {
            places.remove(&place(number, &call));
            if places.is_empty() {
                self.lines.remove(&line(&call));
            }
        }
        Some(call)
    }

    /// One call less of this program.
    fn forget(&mut self, program: ProgramId) {
        let Some(count) = self.programs.get_mut(&program.0) else { return };
        *count -= 1;
        if *count == 0 {
            self.programs.remove(&program.0);
            self.forward.retain(|&it| it != program);
        }
    }

    /// A call of this program has gone: its others are tried before all that wait.
    pub(crate) fn bring_forward(&mut self, program: ProgramId) {
        if self.programs.contains_key(&program.0) && !self.forward.contains(&program) {
            self.forward.push(program);
        }
    }

    pub(crate) fn get(&self, request: RequestId) -> Option<&HeldCall> {
        self.calls.get(self.numbers.get(&request.0)?)
    }

    pub(crate) fn oldest(&self) -> Option<HeldCall> {
        self.calls.first_key_value().map(|it| *it.1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &HeldCall> {
        self.calls.values()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.calls.len() >= HELD_MAX
    }

    /// In the order in which they go. `share` is what a tenant has, by its weight.
    fn lines(&self, share: impl Fn(TenantId) -> f64) -> Vec<LineId> {
        let mut lines: Vec<(f64, LineId)> =
            self.lines.keys().map(|&it| (share(TenantId(it.tenant)), it)).collect();
        lines.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        lines.into_iter().map(|it| it.1).collect()
    }

    fn of(&self, line: LineId) -> impl Iterator<Item = HeldCall> {
        let places = self.lines.get(&line).into_iter().flatten();
        places.filter_map(|it| self.calls.get(&it.2).copied())
    }

    /// For each request, how many calls for its model go before it.
    pub(crate) fn places(&self, share: impl Fn(TenantId) -> f64) -> NumberMap<u32> {
        let mut counts: NumberMap<u32> = NumberMap::default();
        let mut places = NumberMap::default();
        for line in self.lines(share) {
            let count = counts.entry(line.model).or_default();
            for call in self.of(line) {
                places.insert(call.request.0, *count);
                *count += 1;
            }
        }
        places
    }

    /// How many calls for its model go before one that comes now.
    pub(crate) fn ahead_of(&self, call: &HeldCall, share: impl Fn(TenantId) -> f64) -> usize {
        let own = line(call);
        if !self.lines.contains_key(&own) {
            return 0;
        }
        let lines = self.lines(share).into_iter().filter(|it| it.model == own.model);
        let before = lines.take_while(|&it| it != own);
        let others: usize = before.map(|it| self.of(it).count()).sum();
        others + self.of(own).take_while(|it| it.is_begun || !call.is_begun).count()
    }

    /// The calls to try next, in order. Models do not share memory, so each has as many tries.
    pub(crate) fn next(&self, now: Instant, share: impl Fn(TenantId) -> f64) -> Vec<HeldCall> {
        let mut next: Vec<HeldCall> = Vec::with_capacity(TRIED_MAX);
        if !self.forward.is_empty() {
            next.extend(self.iter().filter(|it| self.forward.contains(&it.program)).take(TRIED_MAX));
        }
        let mut tried: NumberMap<usize> = NumberMap::default();
        for line in self.lines(share) {
            let tried = tried.entry(line.model).or_default();
            for call in self.of(line).take(TRIED_MAX - *tried) {
                next.push(call);
                *tried += 1;
                if now.since(call.since) >= PASSED_MAX {
                    break;
                }
            }
        }
        next
    }
}

fn line(call: &HeldCall) -> LineId {
    let model = match call.wanted {
        Wanted::Model(model) => u64::from(model.0),
        Wanted::Anything => u64::MAX,
        Wanted::Unlisted => u64::MAX - 1,
    };
    LineId { tenant: call.tenant.0, model }
}

fn place(number: u64, call: &HeldCall) -> Place {
    (!call.is_begun, call.queued_from, number)
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
            wanted: Wanted::Anything,
            since: Instant::from_millis(since),
            queued_from: Instant::from_millis(since),
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

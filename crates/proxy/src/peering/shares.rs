//! Each router's share of the requests over the last ten seconds.
//!
//! With every heartbeat a router reports how many requests it has served since its start; shares follow from the
//! differences. An operator sees here first whether the load balancer in front of the routers spreads requests.

use std::collections::{BTreeMap, VecDeque};

use maitre_cluster::{Incarnation, RouterId};

/// Counts kept of each router, one a heartbeat: about ten seconds.
const SAMPLES_MAX: usize = 20;

/// With fewer counts there is no share yet. A peer's count is up to one heartbeat old, so two may be the same one.
const SAMPLES_MIN: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Shares {
    routers: BTreeMap<RouterId, Served>,
}

#[derive(Debug, Default)]
struct Served {
    incarnation: Incarnation,
    counts: VecDeque<u64>,
}

impl Served {
    /// None before there are enough counts.
    fn recently(&self) -> Option<u64> {
        let (first, last) = (self.counts.front()?, self.counts.back()?);
        (self.counts.len() >= SAMPLES_MIN).then(|| last.saturating_sub(*first))
    }
}

impl Shares {
    /// Adds a count of every live router. Routers that are not among them are forgotten.
    pub(super) fn sample(&mut self, routers: &[(RouterId, Incarnation, u64)]) {
        self.routers.retain(|id, _| routers.iter().any(|it| it.0 == *id));
        for &(id, incarnation, served) in routers {
            let router = self.routers.entry(id).or_default();
            if router.incarnation != incarnation {
                *router = Served { incarnation, counts: VecDeque::new() };
            }
            if router.counts.len() == SAMPLES_MAX {
                router.counts.pop_front();
            }
            router.counts.push_back(served);
        }
    }

    /// The router's share of all requests; None before it is known, and while there are no requests.
    pub(super) fn of(&self, id: RouterId) -> Option<f64> {
        let own = self.routers.get(&id)?.recently()?;
        let all: u64 = self.routers.values().filter_map(Served::recently).sum();
        (all > 0).then(|| own as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RouterId = RouterId(1);
    const B: RouterId = RouterId(2);

    fn sample(shares: &mut Shares, a: u64, b: Option<(u64, u64)>) {
        let mut routers = vec![(A, Incarnation(1), a)];
        routers.extend(b.map(|(life, served)| (B, Incarnation(life), served)));
        shares.sample(&routers);
    }

    #[test]
    fn shares_count_recent_requests_only() {
        let mut shares = Shares::default();
        (0..3).for_each(|it| sample(&mut shares, it, Some((1, 1_000 + 3 * it))));
        assert_eq!(shares.of(A), None, "too few counts");
        sample(&mut shares, 3, Some((1, 1_009)));
        assert_eq!((shares.of(A), shares.of(B)), (Some(0.25), Some(0.75)));
        // Long after the last request there are no shares.
        (0..30).for_each(|_| sample(&mut shares, 3, Some((1, 1_009))));
        assert_eq!((shares.of(A), shares.of(B)), (None, None));
    }

    #[test]
    fn a_router_that_restarts_or_leaves_counts_from_zero() {
        let mut shares = Shares::default();
        (0..9).for_each(|it| sample(&mut shares, it, Some((1, it))));
        assert_eq!(shares.of(B), Some(0.5));
        sample(&mut shares, 9, Some((2, 0)));
        assert_eq!((shares.of(A), shares.of(B)), (Some(1.0), None));
        sample(&mut shares, 10, None);
        assert_eq!((shares.of(A), shares.of(B)), (Some(1.0), None));
        assert_eq!(shares.routers.len(), 1);
    }
}

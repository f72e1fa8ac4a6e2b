//! Which part of the requests each router takes, over the last ten seconds.
//!
//! Routers tell how many they have taken since they started, with every beat; the rest is differences. Whether load
//! balancers in front of us do what they are meant to do shows here first.

use std::collections::{BTreeMap, VecDeque};

use maitre_cluster::{Incarnation, RouterId};

/// Counts kept of each router, one a beat: about ten seconds.
const SAMPLES_MAX: usize = 20;

/// Fewer say nothing yet. Counts of others are a beat old at the most, so two may be the same one.
const SAMPLES_MIN: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Shares {
    routers: BTreeMap<RouterId, Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    incarnation: Incarnation,
    counts: VecDeque<u64>,
}

impl Taken {
    /// None before enough was seen.
    fn of_late(&self) -> Option<u64> {
        let (first, last) = (self.counts.front()?, self.counts.back()?);
        (self.counts.len() >= SAMPLES_MIN).then(|| last.saturating_sub(*first))
    }
}

impl Shares {
    /// Takes down what every live router has taken; those that are not among them are forgotten.
    pub(super) fn sample(&mut self, routers: &[(RouterId, Incarnation, u64)]) {
        self.routers.retain(|id, _| routers.iter().any(|it| it.0 == *id));
        for &(id, incarnation, served) in routers {
            let taken = self.routers.entry(id).or_default();
            if taken.incarnation != incarnation {
                *taken = Taken { incarnation, counts: VecDeque::new() };
            }
            if taken.counts.len() == SAMPLES_MAX {
                taken.counts.pop_front();
            }
            taken.counts.push_back(served);
        }
    }

    /// Its part of what all take; none before that is known, or while nobody takes any.
    pub(super) fn of(&self, id: RouterId) -> Option<f64> {
        let own = self.routers.get(&id)?.of_late()?;
        let all: u64 = self.routers.values().filter_map(Taken::of_late).sum();
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
    fn shares_are_of_what_was_taken_lately() {
        let mut shares = Shares::default();
        (0..3).for_each(|it| sample(&mut shares, it, Some((1, 1_000 + 3 * it))));
        assert_eq!(shares.of(A), None, "too early to say");
        sample(&mut shares, 3, Some((1, 1_009)));
        assert_eq!((shares.of(A), shares.of(B)), (Some(0.25), Some(0.75)));
        // Long after the last one, nobody takes any.
        (0..30).for_each(|_| sample(&mut shares, 3, Some((1, 1_009))));
        assert_eq!((shares.of(A), shares.of(B)), (None, None));
    }

    #[test]
    fn one_that_starts_anew_or_leaves_counts_from_nothing() {
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

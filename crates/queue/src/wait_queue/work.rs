//! Work in millionths of a token, as integers: additions and removals in any order, for days, leave exactly
//! zero.

use std::ops::{Add, AddAssign, Sub, SubAssign};

const PER_TOKEN: f64 = 1e6;
/// Minimum cost of a request. A fully cached prompt still takes a slot in a batch, and a tenant whose
/// requests cost nothing would always be first.
const LEAST: u128 = 1_000_000;
/// Far above any prompt; keeps sums of absurd values from saturating.
const MOST: u128 = 1_000_000_000_000_000_000;
const WEIGHT_LEAST: f64 = 1e-6;
const WEIGHT_MOST: f64 = 1e6;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work(u128);

impl Work {
    pub(super) const ZERO: Work = Work(0);

    /// The charge for a request of this cost: at least one token.
    pub(super) fn of(cost: f64) -> Work {
        Work(Work::exactly(cost).0.max(LEAST))
    }

    /// Exactly this many tokens; zero for negative values and NaN.
    pub(super) fn exactly(tokens: f64) -> Work {
        Work(((tokens * PER_TOKEN) as u128).min(MOST))
    }

    pub(super) fn over(self, weight: f64) -> Work {
        Work(per_weight(self.0, weight))
    }

    pub(super) fn part(self, part: u128) -> Work {
        Work(self.0 / part)
    }

    pub(super) fn tokens(self) -> f64 {
        self.0 as f64 / PER_TOKEN
    }
}

/// An unusable weight counts as one.
pub(super) fn per_weight(amount: u128, weight: f64) -> u128 {
    let usable = weight.is_finite() && weight > 0.0;
    let weight = if usable { weight.clamp(WEIGHT_LEAST, WEIGHT_MOST) } else { 1.0 };
    (amount as f64 / weight) as u128
}

impl Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work(self.0.saturating_add(other.0))
    }
}

impl Sub for Work {
    type Output = Work;
    fn sub(self, other: Work) -> Work {
        Work(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        *self = *self + other;
    }
}

impl SubAssign for Work {
    fn sub_assign(&mut self, other: Work) {
        *self = *self - other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cost_gives_bounded_work() {
        for cost in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, 1e-9, 1.0] {
            assert_eq!(Work::of(cost), Work(LEAST), "{cost}");
        }
        assert_eq!(Work::of(f64::INFINITY), Work(MOST));
        assert_eq!(Work::exactly(f64::NAN), Work::ZERO);
    }

    #[test]
    fn any_weight_gives_bounded_work() {
        for weight in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1.0] {
            assert_eq!(Work::of(10.0).over(weight), Work::of(10.0), "{weight}");
        }
        assert_eq!(Work::of(10.0).over(4.0), Work::of(2.5));
        assert!(Work::of(0.0).over(f64::MAX) > Work::ZERO);
        assert!(Work::of(f64::MAX).over(f64::MIN_POSITIVE).0 < u128::MAX / 1_000_000_000);
    }
}

//! What classes above cancel of a fleet, for those below.
//!
//! Precedence in line is not enough. A job of ten thousand tokens that is seated the moment a worker falls idle holds
//! that worker for as long as it takes, and if jobs take every idle moment, no chat finds one: each waits for some
//! job to end. So what is below is paid from a purse, into which falls what those above do not use, and little of it
//! at a time: jobs trickle where chats are many, and flow where they are few.

use std::time::Duration;

use maitre_base::{ClassId, Instant};

use crate::settings::CLASSES_MAX;

/// How much of a worker may be in use by all together before those below have to wait.
const FULL: f64 = 0.85;
/// However busy those above are: nobody starves.
const LEAST: f64 = 0.05;
/// So little in use by those above is nothing.
const NOTHING: f64 = 0.02;

/// Seconds of work that one worker can do for those below each second, where this part of it is in use by those above.
/// More than there is, where little is in use: what is not known well must not cancel a worker idle.
pub fn rate(in_use: f64) -> f64 {
    match in_use {
        ..NOTHING => f64::INFINITY,
        _ => ((FULL - in_use) / in_use).max(LEAST),
    }
}

/// The earnings of so long are kept.
const KEPT: Duration = Duration::from_millis(20);
/// Owing less than a nanosecond is owing nothing: sums of fractions never quite meet.
const SETTLED: f64 = 1e-9;

/// A purse for each class, in seconds of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpareCapacity {
    balance: [f64; CLASSES_MAX],
    /// Since when nothing is owed.
    settled: [Instant; CLASSES_MAX],
    at: Instant,
}

impl SpareCapacity {
    /// Lets time pass, at so many seconds a second for each class.
    pub fn earn(&mut self, now: Instant, rates: &[f64; CLASSES_MAX]) {
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        for (class, rate) in rates.iter().enumerate() {
            let before = self.balance[class];
            // An hour of silence must not pay for a flood, but a moment's earnings are kept for the next moment: we look
            // only when something happens.
            self.balance[class] = match rate.is_finite() {
                true => (before + rate * passed).min(rate * KEPT.as_secs_f64()),
                false => 0.0,
            };
            if before <= -SETTLED && self.balance[class] > -SETTLED {
                self.settled[class] = now;
            }
        }
    }

    /// Whether one of this class may go.
    pub fn allows(&self, class: ClassId) -> bool {
        self.balance.get(class.index()).is_some_and(|&it| it > -SETTLED)
    }

    /// For how long one of this class could have gone.
    pub fn idle(&self, now: Instant, class: ClassId) -> Duration {
        now.since(self.settled.get(class.index()).copied().unwrap_or_default())
    }

    pub fn spend(&mut self, class: ClassId, seconds: f64) {
        if let Some(balance) = self.balance.get_mut(class.index()) {
            *balance -= seconds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: ClassId = ClassId(2);

    #[test]
    fn what_is_owed_is_earned_back_at_the_rate_that_is_left() {
        let (mut spare_capacity, rates) = (SpareCapacity::default(), [0.5; CLASSES_MAX]);
        assert!(spare_capacity.allows(LOW));
        spare_capacity.spend(LOW, 1.0);
        assert!(!spare_capacity.allows(LOW) && spare_capacity.allows(ClassId(1)));
        spare_capacity.earn(Instant::from_millis(1_900), &rates);
        assert!(!spare_capacity.allows(LOW));
        spare_capacity.earn(Instant::from_millis(2_000), &rates);
        assert!(spare_capacity.allows(LOW));
    }

    #[test]
    fn no_more_is_saved_up_than_a_moment_earns() {
        let (mut spare_capacity, rates) = (SpareCapacity::default(), [10.0; CLASSES_MAX]);
        spare_capacity.earn(Instant::from_millis(3_600_000), &rates);
        spare_capacity.spend(LOW, 0.1);
        assert!(spare_capacity.allows(LOW));
        spare_capacity.spend(LOW, 0.2);
        assert!(!spare_capacity.allows(LOW));
    }

    #[test]
    fn those_below_get_all_of_an_empty_fleet_and_never_nothing_of_a_full_one() {
        assert_eq!(rate(0.0), f64::INFINITY);
        assert!(rate(0.1) > 5.0 && rate(0.8) < 0.2);
        assert_eq!((rate(0.95), rate(1.0)), (LEAST, LEAST));
    }
}

//! The capacity that higher classes leave for lower ones.
//!
//! Precedence in the queue is not enough. A batch job of ten thousand tokens that is placed the moment a worker is
//! idle occupies that worker until it ends. If jobs take every idle moment, each chat waits for some job. So each
//! lower class has a budget in seconds of work. What the classes above leave unused fills it, and 20 ms cap it: jobs
//! trickle when chats are many, and flow when they are few.

use std::time::Duration;

use maitre_base::{ClassId, Instant};

use crate::settings::CLASSES_MAX;

/// Utilisation of a worker above which lower classes wait. With 0.85, chats at 80 % of what four workers can do had a
/// p99 1.65 times as long beside a burst as without one. With 0.8 it is 1.41 times, and the burst takes 62 s instead
/// of 57 s.
const FULL: f64 = 0.8;
/// Minimum rate, so that no class starves.
const LEAST: f64 = 0.05;
/// Utilisation by higher classes that counts as none.
const NOTHING: f64 = 0.02;

/// Seconds of work per second that one worker has for lower classes, at this utilisation by higher ones. Infinite at
/// low utilisation: an inexact estimate must not idle a worker.
pub fn rate(in_use: f64) -> f64 {
    match in_use {
        ..NOTHING => f64::INFINITY,
        _ => ((FULL - in_use) / in_use).max(LEAST),
    }
}

/// How many of `workers` may prefill long prompts of a lower class at the same time, at this utilisation by higher
/// classes. That is as many as would be idle if higher classes filled the others. With 1.6, the second worker may be
/// used part of the time.
///
/// A worker that prefills such a prompt has long steps, and higher classes find short steps only on the other
/// workers. The test had two workers, 20 chats a second and 100 prompts of 9,000 tokens. When both workers took the
/// prompts, the chats' p99 was 2.6 to 4.1 times as long as without them. When one does, it is 1.4 to 1.6 times as
/// long. So one worker is always left free: with the second used part of the time, one of sixteen seeds had 2.4
/// times. At least one worker takes them, so that no class starves.
pub fn workers_for_long_prompts(in_use: f64, workers: u32) -> f64 {
    let workers = f64::from(workers);
    match in_use {
        ..NOTHING => workers,
        _ => ((FULL - in_use) * workers).min(workers - 1.0).max(1.0),
    }
}

/// The income of this long a time is kept.
const KEPT: Duration = Duration::from_millis(20);
/// A debt below a nanosecond counts as none: sums of fractions do not cancel exactly.
const SETTLED: f64 = 1e-9;

/// A budget per class, in seconds of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpareCapacity {
    balance: [f64; CLASSES_MAX],
    /// Since when the class owes nothing.
    settled: [Instant; CLASSES_MAX],
    at: Instant,
}

impl SpareCapacity {
    /// Adds the income since the last call, at these rates per class.
    pub fn earn(&mut self, now: Instant, rates: &[f64; CLASSES_MAX]) {
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        for (class, rate) in rates.iter().enumerate() {
            let before = self.balance[class];
            // An hour without requests must not pay for a flood. But the income of one moment is kept for the next,
            // because this runs only when something happens.
            self.balance[class] = match rate.is_finite() {
                true => (before + rate * passed).min(rate * KEPT.as_secs_f64()),
                false => 0.0,
            };
            if before <= -SETTLED && self.balance[class] > -SETTLED {
                self.settled[class] = now;
            }
        }
    }

    /// Whether a request of this class may go.
    pub fn allows(&self, class: ClassId) -> bool {
        self.balance.get(class.index()).is_some_and(|&it| it > -SETTLED)
    }

    /// For how long a request of this class could have gone.
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
    fn a_debt_is_earned_back_at_the_spare_rate() {
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
    fn income_is_kept_for_a_moment_only() {
        let (mut spare_capacity, rates) = (SpareCapacity::default(), [10.0; CLASSES_MAX]);
        spare_capacity.earn(Instant::from_millis(3_600_000), &rates);
        spare_capacity.spend(LOW, 0.1);
        assert!(spare_capacity.allows(LOW));
        spare_capacity.spend(LOW, 0.2);
        assert!(!spare_capacity.allows(LOW));
    }

    #[test]
    fn lower_classes_get_all_of_an_empty_fleet_and_a_minimum_of_a_full_one() {
        assert_eq!(rate(0.0), f64::INFINITY);
        assert!(rate(0.1) > 5.0 && rate(0.75) < 0.2);
        assert_eq!((rate(0.95), rate(1.0)), (LEAST, LEAST));
    }

    #[test]
    fn long_prompts_of_lower_classes_get_the_workers_that_higher_ones_leave() {
        let table = [
            (0.0, 8, 8.0),
            (0.1, 8, 5.6),
            (0.4, 8, 3.2),
            (0.75, 8, 1.0),
            (1.0, 8, 1.0),
            (0.4, 4, 1.6),
            (0.1, 2, 1.0),
            (0.0, 2, 2.0),
            (0.5, 1, 1.0),
        ];
        for (in_use, workers, expected) in table {
            let actual = workers_for_long_prompts(in_use, workers);
            assert!((actual - expected).abs() < 1e-9, "{in_use} of {workers}: {actual}");
        }
    }
}

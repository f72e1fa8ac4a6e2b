//! A moment on a clock that someone else reads: nanoseconds since the run began.
//!
//! In production the clock is monotonic, in replay it is virtual. Code that takes an `Instant` cannot tell which.

use std::ops::Add;
use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    pub const ZERO: Instant = Instant(0);

    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis.saturating_mul(1_000_000))
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The instant `span` earlier; the beginning if that would lie before it.
    pub fn before(self, span: Duration) -> Instant {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_sub(nanos))
    }

    /// How long ago `earlier` was; zero if it lies ahead (events from two threads may be out of order).
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, span: Duration) -> Instant {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

/// Days from 1 January 1970 to a Gregorian date. Years begin in March here, so that the leap day is their last day.
pub fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From 1 March of the year zero to 1 January 1970.
    365 * year + leaps + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_a_later_moment_is_zero() {
        assert_eq!(Instant::from_millis(1).since(Instant::from_millis(2)), Duration::ZERO);
    }

    #[test]
    fn adding_forever_saturates() {
        assert_eq!((Instant::from_millis(1) + Duration::MAX).as_nanos(), u64::MAX);
    }
}

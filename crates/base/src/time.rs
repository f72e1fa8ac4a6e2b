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

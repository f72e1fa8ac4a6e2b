//! How long to wait after a failure: twice as long each time, up to a limit, with jitter.
//!
//! Routers that lost one API server must not all return at once, so half of each wait is random.

use std::time::Duration;

use maitre_base::Rng;

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    least: Duration,
    most: Duration,
    failures: u32,
    rng: Rng,
}

impl Backoff {
    pub(crate) fn new(least: Duration, most: Duration, rng: Rng) -> Backoff {
        Backoff { least, most, failures: 0, rng }
    }

    /// The delay after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let span = self.least.saturating_mul(1 << self.failures.min(20)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        span.mul_f64(0.5 + self.rng.unit() / 2.0)
    }

    /// Resets after a success: the next failure counts as the first.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 10 * second, Rng::new(1));
        for span in [1, 2, 4, 8, 10, 10, 10] {
            let (wait, span) = (backoff.next(), span * second);
            assert!(wait >= span / 2 && wait < span, "{wait:?} of {span:?}");
        }
        (0..100).for_each(|_| assert!(backoff.next() < 10 * second));
        backoff.reset();
        assert!(backoff.next() < second);
    }

    #[test]
    fn two_routers_wait_differently() {
        let wait = |seed| Backoff::new(Duration::from_secs(1), Duration::MAX, Rng::new(seed)).next();
        assert_ne!(wait(1), wait(2));
    }
}

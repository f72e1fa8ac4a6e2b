//! How fast a queue drains: work that left it lately, per second.

use maitre_base::Instant;

/// The time after which an observation weighs a third. Chosen: long enough to span several large prompts.
const MEMORY_SECONDS: f64 = 5.0;

#[derive(Clone, Copy, Debug, Default)]
pub struct DrainRate {
    /// Work per second, as a decaying sum.
    rate: f64,
    /// Share of `rate` that was observed rather than assumed to be zero, in [0, 1).
    known: f64,
    at: Instant,
}

impl DrainRate {
    /// Records work that left the queue, possibly none, in a period in which requests waited.
    pub fn observe(&mut self, now: Instant, work: f64) {
        let passed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let kept = (-passed / MEMORY_SECONDS).exp();
        self.rate = self.rate * kept + work / MEMORY_SECONDS;
        self.known = 1.0 - (1.0 - self.known) * kept;
    }

    /// The queue was empty until now: ignore the time before.
    pub fn resume(&mut self, now: Instant) {
        self.at = self.at.max(now);
    }

    /// Work per second; none before enough was observed.
    pub fn rate(&self) -> Option<f64> {
        (self.known > 0.2).then(|| self.rate / self.known).filter(|&it| it > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_exactly_and_soon() {
        let mut drain_rate = DrainRate::default();
        assert_eq!(drain_rate.rate(), None);
        for step in 1..=200 {
            drain_rate.observe(Instant::from_millis(step * 100), 50.0);
        }
        assert!((450.0..550.0).contains(&drain_rate.rate().unwrap()), "{drain_rate:?}");
        let mut young = DrainRate::default();
        (1..=15).for_each(|step| young.observe(Instant::from_millis(step * 100), 50.0));
        assert!((400.0..650.0).contains(&young.rate().unwrap()), "{young:?}");
    }

    #[test]
    fn time_with_an_empty_queue_does_not_lower_the_rate() {
        let mut drain_rate = DrainRate::default();
        (1..=100).for_each(|step| drain_rate.observe(Instant::from_millis(step * 100), 50.0));
        drain_rate.resume(Instant::from_millis(3_600_000));
        drain_rate.observe(Instant::from_millis(3_600_100), 50.0);
        assert!((400.0..600.0).contains(&drain_rate.rate().unwrap()), "{drain_rate:?}");
    }
}

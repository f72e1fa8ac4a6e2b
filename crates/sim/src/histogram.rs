//! Counts of durations by upper bound, as Prometheus wants them.
//!
//! Counts are kept per bucket and summed only when read: an observation is one search and one add.

use std::time::Duration;

/// vLLM's bounds for `time_to_first_token_seconds`.
pub const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// vLLM's bounds for `inter_token_latency_seconds`.
pub const INTER_TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound and one for what lies above them all.
    counts: Vec<u64>,
    sum_seconds: f64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum_seconds: 0.0 }
    }

    pub fn observe(&mut self, span: Duration) {
        let seconds = span.as_secs_f64();
        self.counts[self.bounds.partition_point(|&bound| bound < seconds)] += 1;
        self.sum_seconds += seconds;
    }

    /// Each bound with the number of observations at or below it. The rest is in `count`.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut total = 0;
        self.bounds.iter().zip(&self.counts).map(move |(&bound, &count)| {
            total += count;
            (bound, total)
        })
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 101, 1_000, 1_001] {
            histogram.observe(Duration::from_millis(millis));
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(0.1, 2), (1.0, 4)]);
        assert_eq!(histogram.count(), 5);
        assert!((histogram.sum_seconds() - 2.252).abs() < 1e-9);
    }
}

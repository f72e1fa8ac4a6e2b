//! Counts of durations and sizes by upper bound, in Prometheus' form.
//!
//! Counts are kept per bucket and summed only when read: an observation is one search and one add.

use std::time::Duration;

/// vLLM's bounds for `time_to_first_token_seconds`.
pub(crate) const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// vLLM's bounds for `inter_token_latency_seconds`.
pub(crate) const INTER_TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// vLLM's bounds for `nixl_xfer_time_seconds`.
pub(crate) const TRANSFER_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0];

/// Powers of four from 2 KiB to 8 GiB, for `nixl_bytes_transferred`.
pub(crate) const TRANSFER_BYTES: &[f64] = &[
    2048.0,
    8192.0,
    32768.0,
    131_072.0,
    524_288.0,
    2_097_152.0,
    8_388_608.0,
    33_554_432.0,
    134_217_728.0,
    536_870_912.0,
    2_147_483_648.0,
    8_589_934_592.0,
];

/// For `nixl_num_descriptors`.
pub(crate) const BLOCK_COUNTS: &[f64] = &[
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10_000.0, 20_000.0, 50_000.0,
];

#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, and one for values above them all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    // Called once for each token of a replay: as a call it took, together with `push_answer`, 2 % of its
    // instructions.
    #[inline]
    pub fn observe(&mut self, span: Duration) {
        self.observe_value(span.as_secs_f64());
    }

    #[inline]
    pub fn observe_value(&mut self, value: f64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
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

    /// The sum of durations, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
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
        assert!((histogram.sum() - 2.252).abs() < 1e-9);
    }
}

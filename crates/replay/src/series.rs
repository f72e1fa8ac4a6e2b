//! Answers and samples as lines of a chart: shares at or under a value, and means over buckets of time.
//!
//! Every line has a bounded number of points, however long the run is, so that the report stays small.

use maitre_base::Instant;
use maitre_sim::lab::LoadSample;
use maitre_sim::report::AnswerMetrics;

/// Intervals of equal length, from the beginning of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Buckets {
    pub(super) count: usize,
    pub(super) seconds: f64,
}

impl Buckets {
    /// Divides a run of this length into `count` buckets.
    pub(super) fn over(run_s: f64, count: usize) -> Buckets {
        let count = count.max(1);
        Buckets { count, seconds: run_s.max(1e-3) / count as f64 }
    }

    pub(super) fn middles(&self) -> Vec<f64> {
        (0..self.count).map(|it| (it as f64 + 0.5) * self.seconds).collect()
    }

    /// The last bucket also takes values past the end.
    fn index(&self, at_s: f64) -> usize {
        ((at_s / self.seconds) as usize).min(self.count - 1)
    }

    /// Adds an amount at one moment.
    fn add(&self, sums: &mut [f64], at: Instant, amount: f64) {
        sums[self.index(at.as_secs_f64())] += amount;
    }

    /// Adds an amount that is spread evenly between two moments.
    fn spread(&self, sums: &mut [f64], (begin_s, end_s): (f64, f64), amount: f64) {
        let (first, last) = (self.index(begin_s), self.index(end_s));
        let length = end_s - begin_s;
        if first == last || length <= 0.0 {
            sums[first] += amount;
            return;
        }
        for (index, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let from = begin_s.max(index as f64 * self.seconds);
            let until = if index == last { end_s } else { (index + 1) as f64 * self.seconds };
            *sum += amount * (until - from).max(0.0) / length;
        }
    }
}

/// Requested tokens per second: an answer counts in full when its request arrives.
pub(super) fn requested(requests: impl Iterator<Item = (Instant, u32)>, buckets: &Buckets) -> Vec<f64> {
    let mut sums = vec![0.0; buckets.count];
    for (at, answer_tokens) in requests {
        buckets.add(&mut sums, at, f64::from(answer_tokens));
    }
    sums.iter().map(|it| it / buckets.seconds).collect()
}

/// Served tokens per second: an answer is spread evenly from its first token to its last.
pub(super) fn served<'a>(seen: impl Iterator<Item = &'a AnswerMetrics>, buckets: &Buckets) -> Vec<f64> {
    let mut sums = vec![0.0; buckets.count];
    for it in seen {
        let (first, last) = (it.at + it.first_token, it.at + it.total);
        buckets.spread(&mut sums, (first.as_secs_f64(), last.as_secs_f64()), f64::from(it.answer_tokens));
    }
    sums.iter().map(|it| it / buckets.seconds).collect()
}

/// The share of prompt tokens found in a cache, by arrival time; none where no request arrived.
pub(super) fn hits<'a>(seen: impl Iterator<Item = &'a AnswerMetrics>, buckets: &Buckets) -> Vec<Option<f64>> {
    let (mut cached, mut all) = (vec![0.0; buckets.count], vec![0.0; buckets.count]);
    for it in seen {
        buckets.add(&mut cached, it.at, f64::from(it.cached_tokens));
        buckets.add(&mut all, it.at, f64::from(it.prompt_tokens));
    }
    cached.iter().zip(&all).map(|(cached, &all)| (all > 0.0).then(|| cached / all)).collect()
}

/// The share of `all` at or under a value.
///
/// `all` may exceed the number of values: requests without an answer are under no value.
pub(super) fn share_under(sorted: &[f64], all: usize, value: f64) -> f64 {
    sorted.partition_point(|&it| it <= value) as f64 / all.max(sorted.len()).max(1) as f64
}

/// Requests at each worker, running and waiting, over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkerLoads {
    pub(super) at_s: Vec<f64>,
    /// One list per worker; none before it joined.
    pub(super) workers: Vec<Vec<Option<f64>>>,
}

impl WorkerLoads {
    /// At most `points` moments: neighbouring samples become their mean.
    pub(super) fn new(samples: &[LoadSample], points: usize) -> WorkerLoads {
        let group = samples.len().div_ceil(points.max(1)).max(1);
        let count = samples.iter().map(|it| it.loads.len()).max().unwrap_or(0);
        let at_s = samples.chunks(group).filter_map(|it| mean(it.iter().map(|it| it.at.as_secs_f64())));
        let worker = |worker: usize| {
            let loads = |group: &[LoadSample]| {
                mean(group.iter().filter_map(|it| it.loads.get(worker).map(|&it| f64::from(it))))
            };
            samples.chunks(group).map(loads).collect()
        };
        WorkerLoads { at_s: at_s.collect(), workers: (0..count).map(worker).collect() }
    }
}

/// None for an empty slice.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), it| (sum + it, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(at_ms: u64, first_ms: u64, total_ms: u64, answer_tokens: u32) -> AnswerMetrics {
        AnswerMetrics {
            at: Instant::from_millis(at_ms),
            first_token: Duration::from_millis(first_ms),
            total: Duration::from_millis(total_ms),
            prompt_tokens: 100,
            cached_tokens: answer_tokens,
            answer_tokens,
            ..AnswerMetrics::default()
        }
    }

    #[test]
    fn served_tokens_are_spread_over_the_time_they_took() {
        let buckets = Buckets::over(4.0, 4);
        for (one, expected) in [
            (seen(0, 0, 2_000, 10), [5.0, 5.0, 0.0, 0.0]),
            (seen(500, 0, 2_000, 8), [2.0, 4.0, 2.0, 0.0]),
            (seen(1_000, 500, 500, 1), [0.0, 1.0, 0.0, 0.0]),
            // The last bucket takes values past the end.
            (seen(3_000, 0, 4_000, 8), [0.0, 0.0, 0.0, 8.0]),
        ] {
            assert_eq!(served(std::iter::once(&one), &buckets), expected, "{one:?}");
        }
    }

    #[test]
    fn requested_tokens_count_when_their_request_arrives() {
        let requests =
            [(Instant::ZERO, 6), (Instant::from_millis(1_999), 2), (Instant::from_millis(9_000), 4)];
        assert_eq!(requested(requests.into_iter(), &Buckets::over(4.0, 2)), [4.0, 2.0]);
    }

    #[test]
    fn a_bucket_without_requests_has_no_hit_ratio() {
        let all = [seen(0, 0, 1, 50), seen(100, 0, 1, 100), seen(2_500, 0, 1, 25)];
        assert_eq!(hits(all.iter(), &Buckets::over(3.0, 3)), [Some(0.75), None, Some(0.25)]);
    }

    #[test]
    fn requests_without_an_answer_are_under_no_value() {
        assert_eq!(share_under(&[1.0, 2.0, 3.0], 4, 2.0), 0.5);
        assert_eq!(share_under(&[1.0, 2.0, 3.0], 4, 9.0), 0.75);
        assert_eq!(share_under(&[], 0, 2.0), 0.0);
    }

    #[test]
    fn loads_are_thinned_and_a_late_worker_begins_late() {
        let sample = |second: u64, loads: &[u32]| LoadSample {
            at: Instant::from_millis(second * 1_000),
            loads: loads.into(),
        };
        let samples = [sample(0, &[2]), sample(1, &[4]), sample(2, &[6, 1]), sample(3, &[8, 3])];
        let halves = WorkerLoads::new(&samples, 2);
        assert_eq!(halves.at_s, [0.5, 2.5]);
        assert_eq!(halves.workers, [vec![Some(3.0), Some(7.0)], vec![None, Some(2.0)]]);
        assert_eq!(WorkerLoads::new(&samples, 100).workers[1], [None, None, Some(1.0), Some(3.0)]);
        assert_eq!(WorkerLoads::new(&[], 10), WorkerLoads::default());
    }
}

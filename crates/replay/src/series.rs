//! Answers and samples as lines to draw: shares under a value, and means over stretches of time.
//!
//! Every line has a bounded number of points, whatever the length of the run, so that a page of them stays small.

use maitre_base::Instant;
use maitre_sim::lab::Sample;
use maitre_sim::report::Seen;

/// Stretches of equal length, from the beginning of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretches {
    pub(super) count: usize,
    pub(super) seconds: f64,
}

impl Stretches {
    /// So many over a run of this length.
    pub(super) fn over(run_s: f64, count: usize) -> Stretches {
        let count = count.max(1);
        Stretches { count, seconds: run_s.max(1e-3) / count as f64 }
    }

    pub(super) fn middle(&self, index: usize) -> f64 {
        (index as f64 + 0.5) * self.seconds
    }

    /// What lies past the end belongs to the last.
    fn index(&self, at_s: f64) -> usize {
        ((at_s / self.seconds) as usize).min(self.count - 1)
    }

    /// An amount that came at one moment.
    fn add(&self, sums: &mut [f64], at: Instant, amount: f64) {
        sums[self.index(at.as_secs_f64())] += amount;
    }

    /// An amount that came evenly between two moments.
    fn pour(&self, sums: &mut [f64], (begin_s, end_s): (f64, f64), amount: f64) {
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

/// Tokens that were asked for, a second: each answer counts whole when its request comes.
pub(super) fn offered(requests: impl Iterator<Item = (Instant, u32)>, stretches: &Stretches) -> Vec<f64> {
    let mut sums = vec![0.0; stretches.count];
    for (at, answer_tokens) in requests {
        stretches.add(&mut sums, at, f64::from(answer_tokens));
    }
    sums.iter().map(|it| it / stretches.seconds).collect()
}

/// Tokens that were delivered, a second: each answer is spread from its first token to its last.
pub(super) fn served<'a>(seen: impl Iterator<Item = &'a Seen>, stretches: &Stretches) -> Vec<f64> {
    let mut sums = vec![0.0; stretches.count];
    for it in seen {
        let (first, last) = (it.at + it.first_token, it.at + it.total);
        stretches.pour(&mut sums, (first.as_secs_f64(), last.as_secs_f64()), f64::from(it.answer_tokens));
    }
    sums.iter().map(|it| it / stretches.seconds).collect()
}

/// The part of prompt tokens that was cached, by when the request came; none where nothing came.
pub(super) fn hits<'a>(seen: impl Iterator<Item = &'a Seen>, stretches: &Stretches) -> Vec<Option<f64>> {
    let (mut cached, mut all) = (vec![0.0; stretches.count], vec![0.0; stretches.count]);
    for it in seen {
        stretches.add(&mut cached, it.at, f64::from(it.cached_tokens));
        stretches.add(&mut all, it.at, f64::from(it.prompt_tokens));
    }
    cached.iter().zip(&all).map(|(cached, &all)| (all > 0.0).then(|| cached / all)).collect()
}

/// Which share of `all` stays at or under which value: at most `points` pairs, rising in both.
///
/// `all` may be more than there are values: requests without an answer stay under no value.
pub(super) fn shares(sorted: &[f64], all: usize, points: usize) -> Vec<(f64, f64)> {
    let count = sorted.len();
    if count == 0 || points == 0 {
        return Vec::new();
    }
    let all = all.max(count) as f64;
    let mut ranks: Vec<usize> = (0..points).map(|it| it * (count - 1) / (points - 1).max(1)).collect();
    ranks.dedup();
    ranks.into_iter().map(|rank| (sorted[rank], (rank + 1) as f64 / all)).collect()
}

/// The share of `all` that is at or under a value.
pub(super) fn share_under(sorted: &[f64], all: usize, value: f64) -> f64 {
    sorted.partition_point(|&it| it <= value) as f64 / all.max(sorted.len()).max(1) as f64
}

/// Requests at one worker over time: second and number.
pub(super) type Load = Vec<(f64, f64)>;

/// The load of each worker, with at most `points` points: neighbours become their mean.
///
/// Workers that joined later begin later.
pub(super) fn loads(samples: &[Sample], points: usize) -> Vec<Load> {
    let group = samples.len().div_ceil(points.max(1)).max(1);
    let workers = samples.iter().map(|it| it.loads.len()).max().unwrap_or(0);
    let mut lines = vec![Load::new(); workers];
    for group in samples.chunks(group) {
        for (worker, line) in lines.iter_mut().enumerate() {
            let known = group.iter().filter_map(|it| Some((it.at.as_secs_f64(), *it.loads.get(worker)?)));
            let (mut at, mut sum, mut count) = (0.0, 0.0, 0.0);
            for (at_s, load) in known {
                (at, sum, count) = (at + at_s, sum + f64::from(load), count + 1.0);
            }
            if count > 0.0 {
                line.push((at / count, sum / count));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(at_ms: u64, first_ms: u64, total_ms: u64, answer_tokens: u32) -> Seen {
        Seen {
            at: Instant::from_millis(at_ms),
            first_token: Duration::from_millis(first_ms),
            total: Duration::from_millis(total_ms),
            prompt_tokens: 100,
            cached_tokens: answer_tokens,
            answer_tokens,
            ..Seen::default()
        }
    }

    #[test]
    fn served_tokens_are_spread_over_the_time_they_took() {
        let stretches = Stretches::over(4.0, 4);
        for (one, expected) in [
            (seen(0, 0, 2_000, 10), [5.0, 5.0, 0.0, 0.0]),
            (seen(500, 0, 2_000, 8), [2.0, 4.0, 2.0, 0.0]),
            (seen(1_000, 500, 500, 1), [0.0, 1.0, 0.0, 0.0]),
            // The last takes what lies past the end.
            (seen(3_000, 0, 4_000, 8), [0.0, 0.0, 0.0, 8.0]),
        ] {
            assert_eq!(served(std::iter::once(&one), &stretches), expected, "{one:?}");
        }
    }

    #[test]
    fn offered_tokens_count_when_they_are_asked_for() {
        let requests =
            [(Instant::ZERO, 6), (Instant::from_millis(1_999), 2), (Instant::from_millis(9_000), 4)];
        assert_eq!(offered(requests.into_iter(), &Stretches::over(4.0, 2)), [4.0, 2.0]);
    }

    #[test]
    fn a_stretch_without_requests_has_no_hit_ratio() {
        let all = [seen(0, 0, 1, 50), seen(100, 0, 1, 100), seen(2_500, 0, 1, 25)];
        assert_eq!(hits(all.iter(), &Stretches::over(3.0, 3)), [Some(0.75), None, Some(0.25)]);
    }

    #[test]
    fn shares_rise_to_what_was_answered() {
        assert_eq!(shares(&[1.0, 2.0, 3.0, 4.0], 5, 100), [(1.0, 0.2), (2.0, 0.4), (3.0, 0.6), (4.0, 0.8)]);
        let many: Vec<f64> = (0..1_000).map(f64::from).collect();
        let points = shares(&many, 1_000, 11);
        assert_eq!((points.len(), points[0], points[10]), (11, (0.0, 0.001), (999.0, 1.0)));
        assert!(shares(&[], 3, 10).is_empty());
        assert_eq!(shares(&[7.0], 1, 1), [(7.0, 1.0)]);
        assert_eq!(share_under(&[1.0, 2.0, 3.0], 4, 2.0), 0.5);
        assert_eq!(share_under(&[], 0, 2.0), 0.0);
    }

    #[test]
    fn loads_are_thinned_and_a_late_worker_begins_late() {
        let sample = |second: u64, loads: &[u32]| Sample {
            at: Instant::from_millis(second * 1_000),
            loads: loads.into(),
        };
        let samples = [sample(0, &[2]), sample(1, &[4]), sample(2, &[6, 1]), sample(3, &[8, 3])];
        assert_eq!(loads(&samples, 2), [vec![(0.5, 3.0), (2.5, 7.0)], vec![(2.5, 2.0)]]);
        assert_eq!(loads(&samples, 100)[1], [(2.0, 1.0), (3.0, 3.0)]);
        assert!(loads(&[], 10).is_empty());
    }
}

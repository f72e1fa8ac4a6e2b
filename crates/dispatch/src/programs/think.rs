//! How long programs think between two calls, and how long it pays to keep their memory for them.
//!
//! A program that is idle keeps memory from others. Keeping it costs the time that it stays away; giving it up costs the
//! reload if it returns. With the distribution of think times X and a reload of R seconds, keeping for τ costs
//! E[min(X, τ)] + P(X > τ)·R. Tools take seconds and people hours, so X has a long tail: the longer a program has been away, the
//! longer it will stay. The best τ is where the chance to return in the next second falls below 1/R.

use std::time::Duration;

/// Buckets of think times, each 1.25 times as long as the one before; the first ends at half a second, the last at 80 minutes.
const BUCKETS: usize = 42;
const FIRST: f64 = 0.5;
const GROWTH: f64 = 1.25;
/// Think times after which older ones count half as much.
const MEMORY: f64 = 4_096.0;
/// Before so many were seen, memory is kept as long as a reload takes: at most twice as bad as knowing the future.
const KNOWN_MIN: f64 = 64.0;
/// What a second of reloading costs, in seconds of memory: the engine computes nothing for the others meanwhile. Of 2, 6 and 50,
/// the last had the shortest tasks where think times end at a minute, and 4 where they last hours; this lies between. The
/// seconds are those of a context whose tokens attend to nothing. With what they attend to, tasks took 1 % longer over six
/// memories, and with a quarter of this weight as long.
const RELOAD: f64 = 16.0;

#[derive(Clone, Debug)]
pub(crate) struct ThinkTimes {
    counts: [f64; BUCKETS],
    total: f64,
    /// From which reload on, in seconds of memory, it pays to keep memory for how long; both rise. Empty before
    /// enough is known. It is `counts` as of the last tick: finding the best time anew takes 42 steps, and a price asks for
    /// several idle programs of every worker.
    kept: Vec<(f64, Duration)>,
}

impl Default for ThinkTimes {
    fn default() -> ThinkTimes {
        ThinkTimes { counts: [0.0; BUCKETS], total: 0.0, kept: Vec::new() }
    }
}

/// Where a bucket ends, in seconds.
fn end(bucket: usize) -> f64 {
    FIRST * GROWTH.powi(bucket as i32)
}

impl ThinkTimes {
    pub(crate) fn observe(&mut self, span: Duration) {
        let seconds = span.as_secs_f64();
        let bucket = (0..BUCKETS).find(|&it| seconds <= end(it)).unwrap_or(BUCKETS - 1);
        self.counts[bucket] += 1.0;
        self.total += 1.0;
    }

    /// The end of each bucket in seconds, with the part of all think times that were no longer.
    pub(super) fn returned_by(&self) -> impl Iterator<Item = (f64, f64)> {
        let total = self.total.max(1.0);
        self.counts.iter().enumerate().scan(0.0, move |sum, (bucket, count)| {
            *sum += count;
            Some((end(bucket), *sum / total))
        })
    }

    /// Lets old think times fade, and works out how long to keep memory from now on.
    pub(crate) fn settle(&mut self) {
        if self.total > 2.0 * MEMORY {
            self.counts.iter_mut().for_each(|it| *it /= 2.0);
            self.total /= 2.0;
        }
        self.kept.clear();
        if self.total < KNOWN_MIN {
            return;
        }
        // Keeping until the end of a bucket costs `waited + left · (end + reload)`: of a reload, a line. Which of the lines is
        // the lowest: not to keep at all at first, and later buckets, with less left, the longer a reload takes.
        let mut lines: Vec<(f64, f64, f64)> = vec![(0.0, 0.0, self.total)];
        let (mut waited, mut left) = (0.0, self.total);
        for (bucket, count) in self.counts.iter().enumerate().filter(|it| *it.1 > 0.0) {
            let begin = if bucket == 0 { 0.0 } else { end(bucket - 1) };
            waited += count * (begin + end(bucket)) / 2.0;
            left = (left - count).max(0.0);
            lines.push((end(bucket), waited + left * end(bucket), left));
        }
        let mut at = 0;
        let mut from = 0.0;
        loop {
            self.kept.push((from, duration(lines[at].0)));
            let (_, fixed, slope) = lines[at];
            let crossing = |it: &(f64, f64, f64)| ((it.1 - fixed) / (slope - it.2)).max(from);
            let later = lines.iter().enumerate().skip(at + 1).filter(|it| it.1.2 < slope);
            let next = later.min_by(|a, b| crossing(a.1).total_cmp(&crossing(b.1)).then(b.0.cmp(&a.0)));
            let Some((place, line)) = next else { return };
            (from, at) = (crossing(line), place);
        }
    }

    /// How long to keep the memory of a program that takes so many seconds to reload.
    #[inline]
    pub(crate) fn hold(&self, reload_seconds: f64) -> Duration {
        let reload = RELOAD * reload_seconds;
        match self.kept.partition_point(|it| it.0 < reload) {
            0 if self.kept.is_empty() => duration(reload),
            0 => Duration::ZERO,
            place => self.kept[place - 1].1,
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: &[(u64, u32)]) -> ThinkTimes {
        let mut times = ThinkTimes::default();
        for &(seconds, count) in spans {
            (0..count).for_each(|_| times.observe(Duration::from_secs(seconds)));
        }
        times.settle();
        times
    }

    #[test]
    fn unknown_think_times_are_waited_for_as_long_as_a_reload_takes() {
        assert_eq!(of(&[]).hold(2.0), Duration::from_secs(32));
        assert_eq!(of(&[(1, 63)]).hold(2.0), Duration::from_secs(32));
    }

    #[test]
    fn memory_is_kept_past_the_tools_and_not_for_the_people() {
        let times = of(&[(5, 80), (600, 20)]);
        let hold = times.hold(2.0);
        assert!((5..15).contains(&hold.as_secs()), "{hold:?}");
        // What takes an hour to compute is worth the wait.
        assert!(times.hold(3_600.0) >= Duration::from_secs(600));
        // What takes no time is not kept at all.
        assert_eq!(times.hold(0.0), Duration::ZERO);
    }

    /// The cost of keeping for each time there is, one by one.
    fn by_trying(times: &ThinkTimes, reload_seconds: f64) -> Duration {
        let reload = RELOAD * reload_seconds;
        let mut best = (0.0, reload);
        let (mut waited, mut left) = (0.0, times.total);
        for (bucket, count) in times.counts.iter().enumerate() {
            let begin = if bucket == 0 { 0.0 } else { end(bucket - 1) };
            waited += count * (begin + end(bucket)) / 2.0;
            left -= count;
            let cost = (waited + left * (end(bucket) + reload)) / times.total;
            if cost < best.1 {
                best = (end(bucket), cost);
            }
        }
        Duration::from_secs_f64(best.0)
    }

    #[test]
    fn the_best_time_is_that_of_trying_all() {
        let mut random = maitre_base::Rng::new(7);
        for _ in 0..200 {
            let mut times = ThinkTimes::default();
            for _ in 0..64 + random.below(400) {
                let mean = 1.0 + 60.0 * random.unit();
                times.observe(Duration::from_secs_f64(random.exponential(mean)));
            }
            times.settle();
            let reload = random.exponential(3.0);
            assert_eq!(times.hold(reload), by_trying(&times, reload), "{times:?} {reload}");
        }
    }

    #[test]
    fn old_think_times_fade() {
        let mut times = of(&[(600, 9_000)]);
        times.settle();
        assert!(times.total < 5_000.0);
    }
}

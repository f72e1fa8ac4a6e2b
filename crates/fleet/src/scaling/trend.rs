//! Whether a load grows, and where it leads if the growth continues.
//!
//! Two shapes are fitted to the last minutes. A line shows a load that has grown for the whole time. A hinge, a level
//! and a rise that began a short while ago, shows a rise sooner: the minutes before the rise give the level, so that
//! a few points give the rise. On a curve that triples in two minutes (eight seeds) it took 9 % off the misses.

/// How many buckets a line is fitted to: a minute shows a steep rise soon, two minutes show a slow one.
const LINES: [usize; 2] = [6, 12];
/// The buckets since a hinge, and the most and fewest buckets before it that give the level.
const RISES: [usize; 5] = [2, 3, 4, 6, 9];
const LEVEL_MAX: usize = 12;
const LEVEL_MIN: usize = 3;
/// How many standard errors count as chance. With two, 5 % more first tokens came late on the rise, for as many
/// worker-hours; with one, 3 % fewer, but one seed of eight more took too many hours.
const CHANCE: f64 = 1.5;
/// The longest time for which a trend is continued, as a multiple of the time that it has lasted. Two steep buckets,
/// continued for 90 seconds, asked for five times the workers that a rise turned out to need. Continued only as long
/// as seen, a rise was met later (3 % more misses, the same hours).
const PROLONGED: f64 = 2.0;

/// The load of full buckets of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadHistory<'a> {
    /// Seconds of work a second, the newest first.
    pub(super) loads: &'a [f64],
    /// The length of a bucket, and how long ago the newest ended.
    pub(super) width_s: f64,
    pub(super) age_s: f64,
    /// The work of one request, more if requests are unequal. Requests come at random, so the variance of a bucket's
    /// load is that load times `grain_s / width_s`.
    pub(super) grain_s: f64,
}

impl LoadHistory<'_> {
    /// The load `lead_s` ahead if it keeps growing as it does; zero if it does not grow.
    pub(super) fn ahead(&self, lead_s: f64) -> f64 {
        let lines = LINES.into_iter().filter(|&it| it <= self.loads.len()).map(|it| self.line(it));
        let hinges = RISES.into_iter().filter(|&it| it + LEVEL_MIN <= self.loads.len());
        lines.chain(hinges.map(|it| self.hinge(it))).map(|it| it.ahead(lead_s)).fold(0.0, f64::max)
    }

    /// The line through the newest buckets, by least squares. Its error comes from the points' own scatter.
    fn line(&self, buckets: usize) -> Trend {
        let middle = |back: usize| -(back as f64 + 0.5) * self.width_s - self.age_s;
        let points: Vec<(f64, f64)> =
            self.loads.iter().take(buckets).enumerate().map(|(back, &load)| (middle(back), load)).collect();
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x_mean, y_mean) = (mean(|it| it.0), mean(|it| it.1));
        let spread: f64 = points.iter().map(|it| (it.0 - x_mean).powi(2)).sum();
        let slope = points.iter().map(|it| (it.0 - x_mean) * (it.1 - y_mean)).sum::<f64>() / spread;
        let level = y_mean - slope * x_mean;
        let residuals: f64 = points.iter().map(|it| (it.1 - level - slope * it.0).powi(2)).sum();
        let error = (residuals / (count - 2.0).max(1.0) / spread).sqrt();
        Trend { level, slope, error, seen_s: count * self.width_s }
    }

    /// A level, and a rise from it during the newest buckets. Its error is the chance variation of this many
    /// requests, or the scatter of the buckets before the rise if that is larger: traffic may come in batches.
    fn hinge(&self, rise: usize) -> Trend {
        let (risen, before) = self.loads.split_at(rise);
        let before = &before[..before.len().min(LEVEL_MAX)];
        let count = before.len() as f64;
        let level = before.iter().sum::<f64>() / count;
        let scatter = before.iter().map(|it| (it - level).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let by_chance = risen.iter().sum::<f64>() / rise as f64 * self.grain_s / self.width_s;
        let variance = scatter.max(by_chance);
        let since = |back: usize| (rise as f64 - back as f64 - 0.5) * self.width_s;
        let (mut x, mut xx, mut xy) = (0.0, 0.0, 0.0);
        for (back, load) in risen.iter().enumerate() {
            x += since(back);
            xx += since(back).powi(2);
            xy += since(back) * (load - level);
        }
        let slope = xy / xx;
        let error = (variance / xx + (x / xx).powi(2) * variance / count).sqrt();
        let seen_s = rise as f64 * self.width_s;
        Trend { level: level + slope * seen_s, slope, error, seen_s }
    }
}

/// A load now, and how it grows.
#[derive(Clone, Copy, Debug)]
struct Trend {
    level: f64,
    slope: f64,
    /// The standard error of the slope.
    error: f64,
    /// How long the trend has lasted.
    seen_s: f64,
}

impl Trend {
    /// The load that it leads to, with the part of the slope that chance does not explain.
    fn ahead(&self, lead_s: f64) -> f64 {
        let chance = CHANCE * self.error;
        if self.slope <= chance {
            return 0.0;
        }
        let slope = self.slope * (1.0 - (chance / self.slope).powi(2));
        self.level + slope * lead_s.min(self.seen_s * PROLONGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result for buckets of ten seconds, oldest first, of requests that are a second of work each.
    fn ahead(oldest_first: &[f64], lead_s: f64) -> f64 {
        let loads: Vec<f64> = oldest_first.iter().rev().copied().collect();
        LoadHistory { loads: &loads, width_s: 10.0, age_s: 0.0, grain_s: 1.0 }.ahead(lead_s)
    }

    #[test]
    fn what_does_not_grow_has_no_trend() {
        for loads in [&[4.0; 20][..], &[8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0], &[4.0], &[]] {
            assert_eq!(ahead(loads, 90.0), 0.0, "{loads:?}");
        }
    }

    #[test]
    fn a_rise_that_has_just_begun_shows_against_a_long_level() {
        let mut loads = vec![40.0; 12];
        assert_eq!(ahead(&loads, 90.0), 0.0);
        // By chance, 40 a second vary by 400 ± 20 in ten seconds. This is no chance, though it is only twenty seconds
        // old.
        loads.extend([50.0, 70.0]);
        let soon = ahead(&loads, 90.0);
        assert!((90.0..160.0).contains(&soon), "{soon}");
    }

    #[test]
    fn chance_explains_the_rise_of_few_requests() {
        // The same shape, from a tenth as many requests of ten times the work.
        let loads: Vec<f64> = [vec![4.0; 12], vec![5.0, 7.0]].concat().into_iter().rev().collect();
        let of = |grain_s: f64| {
            LoadHistory { loads: &loads, width_s: 10.0, age_s: 0.0, grain_s }.hinge(2).ahead(90.0)
        };
        assert!(of(0.1) > 9.0 && of(10.0) == 0.0, "{} {}", of(0.1), of(10.0));
    }

    #[test]
    fn a_trend_is_continued_no_longer_than_twice_the_time_that_it_was_seen() {
        let trend = Trend { level: 10.0, slope: 1.0, error: 0.0, seen_s: 20.0 };
        assert_eq!([10.0, 40.0, 90.0].map(|lead| trend.ahead(lead)), [20.0, 50.0, 50.0]);
        // A slope of three errors loses a quarter, one of twelve almost nothing.
        let kept = |error: f64| Trend { error, ..trend }.ahead(1.0) - 10.0;
        assert!((kept(1.0 / 3.0) - 0.75).abs() < 1e-9 && kept(1.0 / 12.0) > 0.98 && kept(0.7) == -10.0);
    }
}

//! A rate over time, as a multiple of a trace's own: `10m:1,12m:3` triples within two minutes.
//!
//! Requests keep their order and arrive sooner or later, so that their rate follows the curve. Between two points the
//! multiple changes linearly; before the first and after the last it is constant.

use std::time::Duration;

use maitre_base::Instant;

use super::Trace;

/// Points of a curve, at most.
pub const POINTS_MAX: usize = 1_000;

#[derive(Clone, Debug, PartialEq)]
pub struct RateCurve {
    /// Seconds and multiples, in order of time.
    points: Vec<(f64, f64)>,
}

impl RateCurve {
    /// Reads `TIME:MULTIPLE,…`, with times as `duration` reads them.
    pub fn read(text: &str, duration: fn(&str) -> Result<Duration, String>) -> Result<RateCurve, String> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for item in text.split(',') {
            let (at, multiple) = item.split_once(':').ok_or_else(|| wrong(item))?;
            let at = duration(at).map_err(|_| wrong(item))?.as_secs_f64();
            let multiple = multiple.parse().ok().filter(|it| (0.001..=1_000.0).contains(it));
            points.push((at, multiple.ok_or_else(|| wrong(item))?));
        }
        if points.len() > POINTS_MAX || !points.is_sorted_by(|one, next| one.0 < next.0) {
            return Err(format!("at most {POINTS_MAX} points, each later than the one before"));
        }
        Ok(RateCurve { points })
    }

    /// Moves the requests of a trace so that their rate follows the curve.
    pub fn apply(&self, trace: &mut Trace) {
        for request in &mut trace.requests {
            let before = request.at.since(Instant::ZERO).as_secs_f64();
            request.at = Instant::ZERO + Duration::from_secs_f64(self.moment(before));
        }
    }

    /// The time at which as much of the trace has passed as `seconds` of its own time.
    fn moment(&self, seconds: f64) -> f64 {
        let mut left = seconds;
        let mut from = (0.0, self.points.first().map_or(1.0, |it| it.1));
        for &to in &self.points {
            let span = to.0 - from.0;
            let passed = span * (from.1 + to.1) / 2.0;
            if left <= passed {
                return from.0 + within(left, from.1, (to.1 - from.1) / span.max(f64::MIN_POSITIVE));
            }
            left -= passed;
            from = to;
        }
        from.0 + left / from.1
    }
}

/// The time in which this much passes at a rate that begins at `rate` and grows by `growth`: solves `rate·t +
/// growth·t²/2 = passed`.
fn within(passed: f64, rate: f64, growth: f64) -> f64 {
    // This form of the solution is exact for a growth of zero, too.
    2.0 * passed / (rate + (rate * rate + 2.0 * growth * passed).max(0.0).sqrt())
}

fn wrong(item: &str) -> String {
    format!("{item:?} is not a point; write TIME:MULTIPLE, such as 10m:1,12m:3")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Result<Duration, String> {
        text.parse().map(Duration::from_secs).map_err(|_| text.to_owned())
    }

    #[test]
    fn a_rate_follows_its_curve() {
        let curve = RateCurve::read("100:1,200:3", seconds).unwrap();
        // Until 100 s as it was; within the next hundred seconds 200 s of the trace; then three a second.
        for (before, expected) in [(0.0, 0.0), (50.0, 50.0), (100.0, 100.0), (300.0, 200.0), (600.0, 300.0)] {
            assert!((curve.moment(before) - expected).abs() < 1e-9, "{before}: {}", curve.moment(before));
        }
        // Half-way it is twice the rate, after a quarter of the additional requests.
        assert!((curve.moment(175.0) - 150.0).abs() < 1e-9);
    }

    #[test]
    fn a_curve_falls_as_it_rises() {
        let curve = RateCurve::read("0:2,10:1", seconds).unwrap();
        let moments: Vec<f64> = (0..40).map(|it| curve.moment(f64::from(it))).collect();
        assert!(moments.is_sorted() && (moments[15] - 10.0).abs() < 1e-9, "{moments:?}");
        assert!((moments[20] - 15.0).abs() < 1e-9);
    }

    #[test]
    fn points_are_checked() {
        for text in ["", "5", "5:0", "5:x", "x:5", "9:1,5:2", "5:1,5:2"] {
            assert!(RateCurve::read(text, seconds).is_err(), "{text}");
        }
    }
}

//! An axis: where a value lies on it, and round numbers to read it by.

use super::words;

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) title: String,
    pub(super) ticks: Vec<Tick>,
    low: f64,
    high: f64,
    scale: Scale,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
}

/// Steps of time that people count in: seconds, then minutes, hours and days of them.
const STEPS_S: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_200.0, 1_800.0, 3_600.0, 7_200.0, 14_400.0,
    21_600.0, 43_200.0, 86_400.0,
];

/// Under this many decades, 2 and 5 are marked as well as 1.
const DECADES_FEW: f64 = 2.5;

impl Axis {
    /// From zero to a round number at or above `high`, with about so many steps.
    pub(super) fn linear(title: &str, high: f64, steps: usize) -> Axis {
        let high = if high > 0.0 { high } else { 1.0 };
        let step = round_up(high / steps.max(1) as f64);
        let count = (high / step - 1e-9).ceil().max(1.0) as u32;
        let ticks = (0..=count).map(|it| tick(f64::from(it) * step, number(f64::from(it) * step, step)));
        Axis {
            title: title.to_owned(),
            ticks: ticks.collect(),
            low: 0.0,
            high: f64::from(count) * step,
            scale: Scale::Linear,
        }
    }

    /// From zero to `high` and no further.
    pub(super) fn up_to(title: &str, high: f64, steps: usize) -> Axis {
        let mut axis = Axis::linear(title, high, steps);
        if high > 0.0 {
            axis.high = high;
            axis.ticks.retain(|it| it.value <= high);
        }
        axis
    }

    /// From nothing to all.
    pub(super) fn part(title: &str) -> Axis {
        let ticks = [0, 20, 40, 60, 80, 100].map(|it| tick(f64::from(it) / 100.0, format!("{it} %")));
        Axis { title: title.to_owned(), ticks: ticks.to_vec(), low: 0.0, high: 1.0, scale: Scale::Linear }
    }

    /// Seconds from zero, in the unit that suits them, with at most so many steps.
    pub(super) fn time(high_s: f64, steps: usize) -> Axis {
        let high = high_s.max(1.0);
        let most = steps.max(1) as f64;
        let fits = |it: &&f64| high / **it <= most;
        let step =
            STEPS_S.iter().find(fits).copied().unwrap_or_else(|| round_up(high / most / 86_400.0) * 86_400.0);
        let (unit, seconds) = match step {
            _ if step < 60.0 => ("s", 1.0),
            _ if step < 3_600.0 => ("min", 60.0),
            _ => ("h", 3_600.0),
        };
        let count = (high / step) as u32;
        let ticks =
            (0..=count).map(|it| f64::from(it) * step).map(|it| tick(it, format!("{}", it / seconds)));
        Axis {
            title: format!("time since the run began ({unit})"),
            ticks: ticks.collect(),
            low: 0.0,
            high,
            scale: Scale::Linear,
        }
    }

    /// Seconds on a log scale, out to 1, 2 or 5 times a power of ten on both sides.
    pub(super) fn log_seconds(title: &str, low_s: f64, high_s: f64) -> Axis {
        let low = round_down(low_s.max(1e-6));
        let high = round_up(high_s.max(low * 1.001)).max(round_up(low * 1.001));
        let decades = (high / low).log10();
        let mantissas: &[f64] = if decades < DECADES_FEW { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let values =
            (first..=last).flat_map(|it| mantissas.iter().map(move |mantissa| mantissa * 10f64.powi(it)));
        let inside = |it: &f64| (low * 0.999..=high * 1.001).contains(it);
        let ticks = values.filter(inside).map(|it| tick(it, short_seconds(it)));
        Axis { title: title.to_owned(), ticks: ticks.collect(), low, high, scale: Scale::Log }
    }

    /// Zero at the low end, one at the high end, and never outside.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        part.clamp(0.0, 1.0)
    }
}

fn tick(value: f64, label: String) -> Tick {
    Tick { value, label }
}

/// 1, 2 or 5 times a power of ten, at or above.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    let mantissa = [1.0, 2.0, 5.0, 10.0].into_iter().find(|it| it * power >= value * (1.0 - 1e-9));
    mantissa.unwrap_or(10.0) * power
}

fn round_down(value: f64) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    let mantissa = [5.0, 2.0, 1.0].into_iter().find(|it| it * power <= value * (1.0 + 1e-9));
    mantissa.unwrap_or(1.0) * power
}

/// With as many digits after the point as the step has.
fn number(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    match digits {
        0 => words::count(value.round() as u64),
        _ => format!("{value:.digits$}"),
    }
}

fn short_seconds(value: f64) -> String {
    match value {
        _ if value >= 0.999 => format!("{} s", words::count(value.round() as u64)),
        _ if value >= 0.000_999 => format!("{:.0} ms", value * 1e3),
        _ => format!("{:.0} µs", value * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(axis: &Axis, expected: &str) {
        let labels: Vec<&str> = axis.ticks.iter().map(|it| it.label.as_str()).collect();
        assert_eq!(labels.join(" | "), expected, "{axis:?}");
    }

    #[test]
    fn ticks_are_round() {
        check(&Axis::linear("", 10_300.0, 5), "0 | 5,000 | 10,000 | 15,000");
        check(&Axis::linear("", 0.3, 5), "0.0 | 0.1 | 0.2 | 0.3");
        check(&Axis::linear("", 7.0, 3), "0 | 5 | 10");
        check(&Axis::linear("", 0.0, 5), "0.0 | 0.2 | 0.4 | 0.6 | 0.8 | 1.0");
        check(&Axis::up_to("", 10_300.0, 5), "0 | 5,000 | 10,000");
        check(&Axis::time(45.0, 6), "0 | 10 | 20 | 30 | 40");
        check(&Axis::time(3_600.0, 6), "0 | 10 | 20 | 30 | 40 | 50 | 60");
        check(&Axis::time(40_000.0, 6), "0 | 2 | 4 | 6 | 8 | 10");
        check(
            &Axis::log_seconds("", 0.03, 3.1),
            "20 ms | 50 ms | 100 ms | 200 ms | 500 ms | 1 s | 2 s | 5 s",
        );
        check(
            &Axis::log_seconds("", 0.000_2, 1_500.0),
            "1 ms | 10 ms | 100 ms | 1 s | 10 s | 100 s | 1,000 s",
        );
        check(&Axis::log_seconds("", 1.0, 1.0), "1 s | 2 s");
    }

    #[test]
    fn values_lie_where_they_should_and_never_outside() {
        let log = Axis::log_seconds("", 0.01, 100.0);
        assert!((log.place(1.0) - 0.5).abs() < 1e-9);
        assert_eq!((log.place(0.0), log.place(1e9)), (0.0, 1.0));
        let linear = Axis::linear("", 90.0, 5);
        assert_eq!((linear.place(50.0), linear.place(-1.0), linear.high), (0.5, 0.0, 100.0));
    }
}

//! Numbers as text: short, with a unit, never wider than a column.

/// An unknown value.
pub(crate) const UNKNOWN: &str = "-";

/// Larger numbers are printed as a word: something is wrong with them.
const MANY: f64 = 999e12;

/// Milliseconds, in the unit that keeps them short.
pub(crate) fn millis(ms: f64) -> String {
    match ms.abs() {
        it if it < 9.95 => format!("{ms:.1} ms"),
        it if it < 999.5 => format!("{ms:.0} ms"),
        it if it < 99_950.0 => format!("{:.1} s", ms / 1e3),
        it if it < 5_999_500.0 => format!("{:.0} s", ms / 1e3),
        _ => span(ms / 1e3),
    }
}

pub(crate) fn millis_or_unknown(ms: Option<f64>) -> String {
    ms.map_or_else(|| UNKNOWN.to_owned(), millis)
}

/// Milliseconds in a column whose title has the unit: always one decimal.
pub(crate) fn bare_millis(ms: f64) -> String {
    if ms.abs() < 1e7 { format!("{ms:.1}") } else { count(ms) }
}

/// A count: whole up to 9999, then in thousands, millions and so on.
pub(crate) fn count(number: f64) -> String {
    const STEPS: [(f64, &str); 5] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")];
    if number.abs() < 9_999.5 {
        return format!("{number:.0}");
    }
    if number.abs() > MANY {
        return "many".to_owned();
    }
    let step = STEPS.iter().rev().find(|it| number.abs() >= it.0 * 0.999_5).unwrap_or(&STEPS[0]);
    let scaled = number / step.0;
    if scaled.abs() < 9.95 { format!("{scaled:.1}{}", step.1) } else { format!("{scaled:.0}{}", step.1) }
}

/// Events per second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second.abs() < 99.95 { format!("{per_second:.1}") } else { count(per_second) }
}

/// A ratio as a percentage.
pub(crate) fn percent(ratio: f64) -> String {
    if ratio.abs() < 100.0 { format!("{:.0}%", ratio * 100.0) } else { "many%".to_owned() }
}

pub(crate) fn percent_or_unknown(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| UNKNOWN.to_owned(), percent)
}

/// A ratio as a bar of this many cells.
pub(crate) fn bar(ratio: f64, cells: usize) -> String {
    let full = (ratio.clamp(0.0, 1.0) * cells as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(cells - full)
}

/// A long duration, in its two largest units.
pub(crate) fn span(seconds: f64) -> String {
    let whole = seconds.clamp(0.0, MANY) as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m {:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h {:02}m", minutes % 60),
        _ if days < 10_000 => format!("{days}d {:02}h", hours % 24),
        _ => "ages".to_owned(),
    }
}

/// The time of day in UTC, as in the log.
pub(crate) fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// A worker in a table: its address without the scheme, or its number once it has left.
pub(crate) fn worker_name(url: Option<&str>, worker: u32) -> String {
    url.map_or_else(|| format!("worker {worker}"), |it| it.trim_start_matches("http://").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_in_every_size() {
        for (ms, expected) in [
            (0.0, "0.0 ms"),
            (6.12, "6.1 ms"),
            (9.96, "10 ms"),
            (64.4, "64 ms"),
            (999.6, "1.0 s"),
            (12_340.0, "12.3 s"),
            (99_960.0, "100 s"),
            (6_000_000.0, "1h 40m"),
            (1e300, "ages"),
            (-3.0, "-3.0 ms"),
        ] {
            assert_eq!(millis(ms), expected, "{ms}");
        }
        assert_eq!(millis_or_unknown(None), UNKNOWN);
        assert_eq!((bare_millis(61.25), bare_millis(1e12)), ("61.2".to_owned(), "1.0T".to_owned()));
    }

    #[test]
    fn counts_are_short_in_every_size() {
        for (number, expected) in [
            (0.0, "0"),
            (9_999.0, "9999"),
            (9_999.9, "10k"),
            (24_000.0, "24k"),
            (999_600.0, "1.0M"),
            (1_234_567.0, "1.2M"),
            (52e9, "52G"),
            (1e300, "many"),
        ] {
            assert_eq!(count(number), expected, "{number}");
        }
        assert_eq!((rate(21.04), rate(1_800.0)), ("21.0".to_owned(), "1800".to_owned()));
    }

    #[test]
    fn any_ratio_is_a_bar_and_a_percentage() {
        assert_eq!(bar(0.43, 8), "███░░░░░");
        assert_eq!((bar(-1.0, 3), bar(7.0, 3), bar(f64::NAN, 2)), ("░░░".into(), "███".into(), "░░".into()));
        assert_eq!((percent(0.794), percent(1e300)), ("79%".into(), "many%".into()));
    }

    #[test]
    fn long_times_have_two_units() {
        for (seconds, expected) in
            [(12.9, "12s"), (192.0, "3m 12s"), (7_500.0, "2h 05m"), (360_000.0, "4d 04h"), (1e300, "ages")]
        {
            assert_eq!(span(seconds), expected);
        }
        assert_eq!(time_of_day(1_763_215_000_123), "13:56:40");
    }
}

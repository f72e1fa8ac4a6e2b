//! The doctor's clock: how long an answer took, and the date.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use maitre_base::time::days_since_1970;

/// Now.
#[expect(clippy::disallowed_methods, reason = "this is the doctor's clock")]
pub(super) fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Since 1970; none on a clock that was never set.
#[expect(clippy::disallowed_methods, reason = "this is the doctor's clock")]
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Seconds since 1970 of a `date` header; none if it is not in the one form that servers write
/// (`Sun, 06 Nov 1994 08:49:37 GMT`).
pub(super) fn of_header(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|it| *it == month)? as i64 + 1;
    let number = |text: &str, most: i64| text.parse::<i64>().ok().filter(|it| (0..=most).contains(it));
    let (day, year) = (number(day, 31)?, number(year, 9_999)?);
    let mut parts = time.split(':');
    let mut part = |most| number(parts.next()?, most);
    let seconds = part(23)? * 3_600 + part(59)? * 60 + part(60)?;
    Some(days_since_1970(year, month, day) * 86_400 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(of_header(text), expected, "{text}");
    }

    #[test]
    fn a_date_header_is_read() {
        check("Thu, 01 Jan 1970 00:00:00 GMT", Some(0));
        check("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777));
        check("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199));
        check("Sat, 01 Mar 2025 00:00:00 GMT", Some(1_740_787_200));
        check("Fri, 31 Dec 1999 12:00:00 GMT", Some(946_641_600));
    }

    #[test]
    fn other_date_formats_are_none() {
        for text in [
            "",
            "now",
            "1994-11-06",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:00:00 GMT",
        ] {
            check(text, None);
        }
    }
}

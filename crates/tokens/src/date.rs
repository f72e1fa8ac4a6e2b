//! The day, as chat templates print it.
//!
//! Templates ask for the date with `strftime_now`. Pure code reads no clock, so the caller passes the day. The hour
//! is not included: an engine renders a moment after us, so we cannot know the prompt of a template that prints the
//! time of day. Such a format is an error, not a guess.

use std::fmt::Write;

use thiserror::Error;

/// A day of the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    year: i32,
    /// 1 to 12.
    month: u8,
    /// 1 to 31.
    day: u8,
    /// Days since 1 January 1970.
    since_epoch: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("strftime_now: {directive:?} depends on more than the day")]
pub(crate) struct NotOfTheDay {
    directive: String,
}

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From Thursday, the day of the epoch.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

impl Date {
    /// The day in UTC, which containers use; for an engine in another time zone, add its offset.
    pub fn of_unix_seconds(seconds: i64) -> Date {
        let since_epoch = seconds.div_euclid(SECONDS_PER_DAY);
        let (year, month, day) = civil(since_epoch);
        Date { year, month, day, since_epoch }
    }

    /// Python's `strftime`, for what a day can answer.
    pub(crate) fn strftime(self, format: &str) -> Result<String, NotOfTheDay> {
        let mut text = String::with_capacity(format.len() + 16);
        let mut rest = format.chars();
        while let Some(char) = rest.next() {
            if char != '%' {
                text.push(char);
                continue;
            }
            let mut directive = rest.next();
            let padded = directive != Some('-');
            if !padded {
                directive = rest.next();
            }
            self.write(&mut text, directive, padded)?;
        }
        Ok(text)
    }

    fn write(self, text: &mut String, directive: Option<char>, padded: bool) -> Result<(), NotOfTheDay> {
        let month = MONTHS[usize::from(self.month - 1)];
        let weekday = WEEKDAYS[self.since_epoch.rem_euclid(7) as usize];
        // Writing to a `String` cannot fail.
        let _ = match directive {
            Some('Y') => write!(text, "{}", self.year),
            Some('y') => number(text, i64::from(self.year.rem_euclid(100)), 2, padded),
            Some('m') => number(text, i64::from(self.month), 2, padded),
            Some('d') => number(text, i64::from(self.day), 2, padded),
            Some('e') if padded => write!(text, "{:2}", self.day),
            Some('e') => write!(text, "{}", self.day),
            Some('j') => number(text, self.since_epoch - january_first(self.year) + 1, 3, padded),
            Some('B') => text.write_str(month),
            Some('b' | 'h') => text.write_str(&month[..3]),
            Some('A') => text.write_str(weekday),
            Some('a') => text.write_str(&weekday[..3]),
            Some('F') => write!(text, "{}-{:02}-{:02}", self.year, self.month, self.day),
            Some('D' | 'x') => {
                write!(text, "{:02}/{:02}/{:02}", self.month, self.day, self.year.rem_euclid(100))
            }
            Some('%') => text.write_char('%'),
            other => {
                return Err(NotOfTheDay {
                    directive: format!("%{}", other.map_or(String::new(), String::from)),
                });
            }
        };
        Ok(())
    }
}

fn number(text: &mut String, value: i64, width: usize, padded: bool) -> std::fmt::Result {
    if padded { write!(text, "{value:0width$}") } else { write!(text, "{value}") }
}

/// Days since the epoch to year, month and day. Counts eras of 400 years from 1 March of year 0: a year that starts in
/// March has its leap day last.
fn civil(since_epoch: i64) -> (i32, u8, u8) {
    const DAYS_PER_ERA: i64 = 146_097;
    let days = since_epoch + 719_468;
    let era = days.div_euclid(DAYS_PER_ERA);
    let day_of_era = days.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32, month as u8, day as u8)
}

fn january_first(year: i32) -> i64 {
    let before = i64::from(year) - 1;
    365 * before + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(seconds: i64, format: &str, expected: &str) {
        assert_eq!(Date::of_unix_seconds(seconds).strftime(format).as_deref(), Ok(expected), "at {seconds}");
    }

    #[test]
    fn a_day_prints_as_python_prints_it() {
        // Each expectation is `datetime.utcfromtimestamp(seconds).strftime(format)`.
        check(0, "%d %b %Y, %A", "01 Jan 1970, Thursday");
        check(1_709_164_800, "%Y-%m-%d %j %a", "2024-02-29 060 Thu");
        check(1_709_164_799, "%F", "2024-02-28");
        check(1_794_700_800, "%B %-d, %y%%", "November 15, 26%");
        check(-1, "%D", "12/31/69");
        check(4_102_444_800, "%d/%m/%Y %j", "01/01/2100 001");
    }

    #[test]
    fn a_format_with_the_time_of_day_is_an_error() {
        for format in ["%H:%M", "%c", "%", "%-"] {
            assert!(Date::of_unix_seconds(0).strftime(format).is_err(), "{format}");
        }
    }
}

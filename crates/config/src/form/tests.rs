//! Measures and numbers, read and shown.

use std::fmt::Debug;

use super::*;

/// Texts that `read` takes, and texts that it refuses with an error that repeats them.
#[track_caller]
pub(crate) fn check<T: Debug>(read: impl Fn(&str) -> Result<T, String>, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(read(text).is_ok(), "{text:?}: {:?}", read(text));
    }
    for text in bad {
        let what = read(text).expect_err(text);
        assert!(what.contains(text), "{what}");
    }
}

#[test]
fn measures_have_a_number_and_a_unit_and_nothing_else() {
    let day = Duration::ZERO..=Duration::from_secs(86_400);
    let bad =
        ["", "5", "s", "-5s", "5 s", "1.5s", "5S", "5sec", "1h30m", "25h", "99999999999999999999s", "٥s"];
    check(|text| Time(day.clone()).read(text), &["0s", "300ms", "2s", "5m", "24h", "007s"], &bad);
    let bad = ["", "16", "MiB", "16MB", "16M", "16mib", "-1B", "1.5MiB", "2GiB", "99999999999999999999GiB"];
    check(|text| Size(0..=1 << 30).read(text), &["0B", "64KiB", "16MiB", "1GiB"], &bad);
}

#[test]
fn measures_are_shown_in_the_largest_unit_that_fits() {
    for (milliseconds, shown) in
        [(0, "0s"), (300, "300ms"), (90_000, "90s"), (60_000, "1m"), (7_200_000, "2h")]
    {
        assert_eq!(show_duration(Duration::from_millis(milliseconds)), shown);
    }
    for (bytes, shown) in [(0, "0B"), (1_000, "1000B"), (1 << 20, "1MiB"), (3 << 10, "3KiB")] {
        assert_eq!(Size(0..=0).show(&bytes), shown);
    }
}

#[test]
fn numbers_are_plain_and_finite() {
    check(
        |text| Count(0u32..=9).read(text),
        &["0", "9", "09"],
        &["", "-", "10", "-1", "+1", "1.0", "0x1", "99999999999"],
    );
    check(|text| Ratio(1.0..=9.0).read(text), &["1", "1.25", "9"], &["", "0.9", "9.1", "inf", "nan", "1,5"]);
}

#[test]
fn a_listener_has_an_ip_or_is_localhost() {
    check(
        socket,
        &["127.0.0.1:8080", "0.0.0.0:0", "[::1]:8080", "localhost:8080", "LocalHost:0"],
        &["", "8080", ":8080", "localhost", "localhost:", "localhost:70000", "localhost:x", "router:8080"],
    );
    assert_eq!(socket("localhost:8080"), Ok(SocketAddr::from(([127, 0, 0, 1], 8080))));
}

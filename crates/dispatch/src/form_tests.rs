#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// What `read` takes and what it does not. A refusal repeats the text, so that it can be found.
    #[track_caller]
    fn check<T: Debug>(read: impl Fn(&str) -> Result<T, String>, good: &[&str], bad: &[&str]) {
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
        check(|text| duration(text, &day), &["0s", "300ms", "2s", "5m", "24h", "007s"], &bad);
        let bad =
            ["", "16", "MiB", "16MB", "16M", "16mib", "-1B", "1.5MiB", "2GiB", "99999999999999999999GiB"];
        check(|text| size(text, &(0..=1 << 30)), &["0B", "64KiB", "16MiB", "1GiB"], &bad);
    }

    #[test]
    fn measures_are_shown_in_the_largest_unit_that_fits() {
        for (milliseconds, shown) in
            [(0, "0s"), (300, "300ms"), (90_000, "90s"), (60_000, "1m"), (7_200_000, "2h")]
        {
            assert_eq!(show_duration(Duration::from_millis(milliseconds)), shown);
        }
        for (bytes, shown) in [(0, "0B"), (1_000, "1000B"), (1 << 20, "1MiB"), (3 << 10, "3KiB")] {
            assert_eq!(show_size(bytes), shown);
        }
    }

    #[test]
    fn numbers_are_plain_and_finite() {
        check(
            |text| count(text, &(0u32..=9)),
            &["0", "9", "09"],
            &["", "-", "10", "-1", "+1", "1.0", "0x1", "99999999999"],
        );
        check(
            |text| ratio(text, &(1.0..=9.0)),
            &["1", "1.25", "9"],
            &["", "0.9", "9.1", "inf", "nan", "1,5"],
        );
    }

    #[test]
    fn paths_begin_with_a_slash() {
        check(path, &["/", "/health", "/health?deep=1"], &["", "health", "/a b", "http://a/b", "/a#b"]);
        check(pattern, &["/a", "/a/*", "/*"], &["", "*", "a", "/*/b", "/a?b"]);
    }

    #[test]
    fn addresses_may_be_told_by_their_beginning() {
        check(
            beginning,
            &["http://a:1", "http://10.0.*", "https://*", "*"],
            &["", "10.0.0.1", "http://a?events=1", "**"],
        );
    }

    #[test]
    fn a_file_is_no_folder() {
        check(file, &["", "a", "/a/b.jsonl", "a b"], &["/a/"]);
        assert_eq!(file(""), Ok(None));
        assert!(file("a\nb").is_err());
    }

    #[test]
    fn names_are_made_of_letters_that_headers_allow() {
        check(header, &["x-session-id", "X-User"], &["", "a b", "a:"]);
        check(cookie, &["sid", "maitre_session"], &["", "a b", "a=b", "a;"]);
    }

    #[test]
    fn a_header_is_kept_from_sight() {
        let (name, value) = header_value("Authorization = Bearer a=b").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer a=b"));
        assert!(!format!("{value:?}").contains("Bearer"));
        for bad in ["", "sk-secret", "a b=sk-secret", "=sk-secret", "a=", "a=sk\nsk-secret"] {
            let what = header_value(bad).expect_err(bad);
            assert!(!what.contains("sk-secret"), "{what}");
        }
        check(collector, &["", "http://a:4318", "https://a/otlp"], &["a:4318", "grpc://a:4317"]);
    }

    #[test]
    fn a_level_is_a_word_that_we_know() {
        let bad = ["", "inof", "info,", "hyper", "hyper=", "=info", "hyper=loud", "a[b]=info"];
        check(level, &["off", "info", "TRACE", "info,hyper=warn", "a::b=debug"], &bad);
    }

    #[test]
    fn every_level_we_take_is_a_filter() {
        for text in ["off", "info", "TRACE", "info,hyper=warn", "a::b-c_d=debug,warn"] {
            assert!(level(text).is_ok() && tracing_subscriber::EnvFilter::try_new(text).is_ok(), "{text}");
        }
    }
}

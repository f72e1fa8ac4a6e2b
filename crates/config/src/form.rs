//! How values are written: from text to value, and back to the same text.
//!
//! A number that measures something carries its unit, so that nobody has to remember which one it is.
//! What cannot be read is answered with what could be.

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue};
use maitre_discover::Source;
use maitre_discover::kubernetes::Api;
use maitre_net::tls::ClientAuth;
use maitre_policy::Name;
use maitre_proxy::secret::BadSecret;
use maitre_proxy::settings::{By, Sense};
use maitre_proxy::{Collector, Secret};
use tracing_subscriber::filter::LevelFilter;

use super::Format;
use super::secrets::{Hidden, SaltBy};

/// From small to large, in milliseconds.
const DURATIONS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
/// From small to large, in bytes.
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
const BYS: [(&str, By); 3] = [("key", By::Key), ("header", By::Header), ("adapter", By::Adapter)];
const SENSES: [(&str, Sense); 2] = [("lower-first", Sense::LowerFirst), ("higher-first", Sense::HigherFirst)];
const SALTS: [(&str, SaltBy); 2] = [("off", SaltBy::Off), ("tenant", SaltBy::Tenant)];
const CLIENT_AUTHS: [(&str, ClientAuth); 2] =
    [("required", ClientAuth::Required), ("optional", ClientAuth::Optional)];
const FORMATS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];

pub fn duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let milliseconds = match (split_unit(text), unit(text, &DURATIONS)) {
        (Some((number, "")), _) => return Err(format!("{text:?} has no unit; write \"{number}s\"")),
        (Some((number, _)), Some(unit)) => number.parse::<u64>().ok().and_then(|it| it.checked_mul(unit)),
        _ => {
            return Err(format!(
                "{text:?} is not a duration; write a whole number and ms, s, m or h, as in \"5s\""
            ));
        }
    };
    let duration = milliseconds.map(Duration::from_millis).filter(|it| range.contains(it));
    duration.ok_or_else(|| {
        let [least, most] = [*range.start(), *range.end()].map(show_duration);
        format!("{text:?} is out of range; write \"{least}\" to \"{most}\"")
    })
}

/// In the largest unit that divides it. What is finer than a millisecond cannot be set, so is not shown.
pub(super) fn show_duration(duration: Duration) -> String {
    show_in(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), &DURATIONS, "0s")
}

pub(super) fn size(text: &str, range: &RangeInclusive<usize>) -> Result<usize, String> {
    let bytes = match (split_unit(text), unit(text, &SIZES)) {
        (Some((number, "")), _) => return Err(format!("{text:?} has no unit; write \"{number}B\"")),
        (Some((number, _)), Some(unit)) => number.parse::<u64>().ok().and_then(|it| it.checked_mul(unit)),
        _ => {
            return Err(format!(
                "{text:?} is not a size; write a whole number and B, KiB, MiB or GiB, as in \"16MiB\""
            ));
        }
    };
    let bytes = bytes.and_then(|it| usize::try_from(it).ok()).filter(|it| range.contains(it));
    bytes.ok_or_else(|| {
        let [least, most] = [*range.start(), *range.end()].map(show_size);
        format!("{text:?} is out of range; write \"{least}\" to \"{most}\"")
    })
}

pub(super) fn show_size(bytes: usize) -> String {
    show_in(bytes as u64, &SIZES, "0B")
}

/// The digits a text begins with and what follows them; none if it does not begin so.
fn split_unit(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (_, name) = split_unit(text)?;
    Some(units.iter().find(|it| it.0 == name)?.1)
}

fn show_in(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    let largest = units.iter().rev().find(|it| value >= it.1 && value.is_multiple_of(it.1));
    largest.map_or(zero.to_owned(), |(name, unit)| format!("{}{name}", value / unit))
}

pub(super) fn count<T>(text: &str, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_whole = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
    let wrong = if is_whole { "out of range" } else { "not a whole number" };
    let value = text.parse().ok().filter(|it| is_whole && range.contains(it));
    value.ok_or_else(|| format!("{text:?} is {wrong}; write {} to {}", range.start(), range.end()))
}

pub fn ratio(text: &str, range: &RangeInclusive<f64>) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    // Not-a-number is in no range, and neither infinity in a range that ends.
    let wrong = if parsed.is_some() { "out of range" } else { "not a number" };
    let value = parsed.filter(|it| range.contains(it));
    value.ok_or_else(|| format!("{text:?} is {wrong}; write {} to {}", range.start(), range.end()))
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an address; write an IP and a port, as in \"127.0.0.1:8080\""))
}

pub(super) fn strategy(text: &str) -> Result<Name, String> {
    text.parse::<Name>().map_err(|error| error.to_string())
}

pub(super) fn model_strategy(text: &str) -> Result<(String, Name), String> {
    // The last one divides: the name of a model may hold the sign, that of a strategy does not.
    match text.rsplit_once('=').map(|(model, name)| (model.trim(), name.trim())) {
        Some((model, name)) if !model.is_empty() => {
            let name = strategy(name).map_err(|what| format!("{model}: {what}"))?;
            Ok((model.to_owned(), name))
        }
        _ => Err(format!("{text:?} names no model and strategy; write \"llama-3=prefix-hash\"")),
    }
}

pub(super) fn model_folder(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=').map(|(model, folder)| (model.trim(), folder.trim())) {
        Some((model, folder)) if !model.is_empty() && !folder.is_empty() => {
            Ok((model.to_owned(), PathBuf::from(folder)))
        }
        _ => Err(format!("{text:?} names no model and folder; write \"llama-3=/models/llama-3\"")),
    }
}

pub(super) fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.parse::<PathAndQuery>().is_ok_and(|it| it.as_str() == text);
    match is_path {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a path; write it as in \"/health\"")),
    }
}

pub(super) fn source(text: &str) -> Result<Source, String> {
    text.parse::<Source>().map_err(|error| error.to_string())
}

/// None if empty.
pub(super) fn api(text: &str) -> Result<Option<Api>, String> {
    match text {
        "" => Ok(None),
        _ => text.parse::<Api>().map(Some).map_err(|error| error.to_string()),
    }
}

/// An address of a worker, or the beginning of many if it ends in `*`.
pub(super) fn beginning(text: &str) -> Result<String, String> {
    let fixed = text.strip_suffix('*').unwrap_or(text);
    let is_address = fixed.starts_with("http://") || fixed.starts_with("https://");
    match (is_address || text == "*") && !fixed.contains(['*', '?', ' ']) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("{text:?} is no address; write \"http://10.0.0.7:8000\" or \"http://10.0.0.*\""))
        }
    }
}

/// A path, or the beginning of many if it ends in `*`.
pub(super) fn pattern(text: &str) -> Result<String, String> {
    let fixed = text.strip_suffix('*').unwrap_or(text);
    match path(fixed) {
        Ok(fixed) if !fixed.contains(['*', '?']) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not a path; write \"/pooling\" or, for all below it, \"/pooling/*\"")),
    }
}

pub(super) fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| format!("{text:?} is not the name of a header; write it as in \"x-session-id\""))
}

/// A header with its value, which is a secret: no error repeats it.
pub(super) fn header_value(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || "an item is no header and its value; write \"authorization=Bearer KEY\"".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let name = name.trim().parse().map_err(|_| wrong())?;
    let mut value = value.trim().parse::<HeaderValue>().map_err(|_| wrong())?;
    if !value.to_str().is_ok_and(|it| !it.is_empty()) {
        return Err(wrong());
    }
    value.set_sensitive(true);
    Ok((name, value))
}

/// A collector, or none if there is nothing.
pub(super) fn collector(text: &str) -> Result<Option<Collector>, String> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|error: maitre_proxy::BadCollector| error.to_string()),
    }
}

pub(super) fn cookie(text: &str) -> Result<String, String> {
    // A cookie's name and a header's are made of the same letters (RFC 6265, section 4.1.1).
    match HeaderName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!("{text:?} is not the name of a cookie; write it as in \"maitre_session\"")),
    }
}

/// The longest free text. Chosen: no topic is a tenth of it.
const TEXT_BYTES_MAX: usize = 1_024;

pub(super) fn text(text: &str) -> Result<String, String> {
    match text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is too long or not printable; write at most {TEXT_BYTES_MAX} bytes")),
    }
}

/// The longest path. Linux's own limit (`PATH_MAX`).
const FILE_BYTES_MAX: usize = 4_096;

/// A file, or none if there is nothing.
pub(super) fn file(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        "" => Ok(None),
        text if text.len() > FILE_BYTES_MAX || text.contains(char::is_control) || text.ends_with('/') => {
            Err(format!("{text:?} is not a file; write it as in \"/var/lib/maitre/trace.jsonl\""))
        }
        text => Ok(Some(PathBuf::from(text))),
    }
}

/// A level, or levels by module: `info,hyper=warn`.
///
/// The logging library takes a word that is no level for a module, to be logged whole. Here a module
/// needs its level, so that `inof` is a mistake and not silence.
pub(super) fn level(text: &str) -> Result<String, String> {
    // The library takes the empty word for a level.
    let is_level = |it: &str| !it.is_empty() && it.parse::<LevelFilter>().is_ok();
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "_-:".contains(it);
    let is_module = |it: &str| !it.is_empty() && it.chars().all(is_letter);
    let is_part = |part: &str| match part.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(part),
    };
    match text.split(',').all(is_part) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not a level; write off, error, warn, info, debug or trace, or by module \"info,hyper=warn\""
        )),
    }
}

pub(super) fn by(text: &str) -> Result<By, String> {
    let known = BYS.iter().find(|it| it.0 == text);
    known
        .map(|it| it.1)
        .ok_or_else(|| format!("{text:?} tells no tenants apart; write key, header or adapter"))
}

pub(super) fn show_by(by: By) -> &'static str {
    match by {
        By::Key => BYS[0].0,
        By::Header => BYS[1].0,
        By::Adapter => BYS[2].0,
    }
}

pub(super) fn sense(text: &str) -> Result<Sense, String> {
    let known = SENSES.iter().find(|it| it.0 == text);
    known.map(|it| it.1).ok_or_else(|| format!("{text:?} is no order; write lower-first or higher-first"))
}

pub(super) fn show_sense(sense: Sense) -> &'static str {
    match sense {
        Sense::LowerFirst => SENSES[0].0,
        Sense::HigherFirst => SENSES[1].0,
    }
}

pub(super) fn salt_by(text: &str) -> Result<SaltBy, String> {
    let known = SALTS.iter().find(|it| it.0 == text);
    known.map(|it| it.1).ok_or_else(|| format!("{text:?} keeps no caches apart; write off or tenant"))
}

pub(super) fn show_salt_by(by: SaltBy) -> &'static str {
    match by {
        SaltBy::Off => SALTS[0].0,
        SaltBy::Tenant => SALTS[1].0,
    }
}

/// A key, or its hash; none if there is nothing. What was written is in no message.
pub(super) fn secret(text: &str) -> Result<Option<Secret>, String> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|it: BadSecret| it.to_string()) }
}

/// The longest secret that is kept as it is. Chosen: no header that engines take is longer.
const HIDDEN_BYTES_MAX: usize = 4_096;

/// What is to be shown to nobody here; none if there is nothing.
pub(super) fn hidden(text: &str) -> Result<Option<Hidden>, String> {
    match text {
        "" => Ok(None),
        text if text.len() > HIDDEN_BYTES_MAX || text.contains(char::is_control) => {
            Err(format!("is too long or not printable; write at most {HIDDEN_BYTES_MAX} bytes"))
        }
        text => Ok(Some(Hidden(text.to_owned()))),
    }
}

pub(super) fn client_auth(text: &str) -> Result<ClientAuth, String> {
    let known = CLIENT_AUTHS.iter().find(|it| it.0 == text);
    known.map(|it| it.1).ok_or_else(|| format!("{text:?} is neither; write required or optional"))
}

pub(super) fn show_client_auth(client_auth: ClientAuth) -> &'static str {
    match client_auth {
        ClientAuth::Required => CLIENT_AUTHS[0].0,
        ClientAuth::Optional => CLIENT_AUTHS[1].0,
    }
}

pub(super) fn format(text: &str) -> Result<Format, String> {
    let known = FORMATS.iter().find(|it| it.0 == text);
    known.map(|it| it.1).ok_or_else(|| format!("{text:?} is not a format; write text or json"))
}

pub(super) fn show_format(format: Format) -> &'static str {
    match format {
        Format::Text => FORMATS[0].0,
        Format::Json => FORMATS[1].0,
    }
}

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

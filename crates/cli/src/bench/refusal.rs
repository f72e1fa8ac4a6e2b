//! Refusals of an overloaded endpoint: how fast they arrive, and whether they say when to retry.

use std::collections::BTreeMap;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use serde::Serialize;

/// How often a client retries after a refusal with `Retry-After`.
pub const RETRIES: u32 = 5;

/// One response with status 429, 503 or 504.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Since the request was sent.
    pub took: Duration,
    pub again: Again,
}

/// The value of `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    Absent,
    In(Duration),
    /// A date, or not understood.
    Unclear,
}

impl Refusal {
    /// None for a status that a retry would not change.
    pub(super) fn read(status: StatusCode, headers: &HeaderMap, took: Duration) -> Option<Refusal> {
        let again = match headers.get(RETRY_AFTER) {
            None => Again::Absent,
            Some(value) => {
                let seconds = value.to_str().ok().and_then(|it| it.trim().parse::<u32>().ok());
                seconds.map_or(Again::Unclear, |it| Again::In(Duration::from_secs(it.into())))
            }
        };
        matches!(status.as_u16(), 429 | 503 | 504).then_some(Refusal { took, again })
    }

    /// When to retry, if the response says so.
    pub(super) fn wait(self) -> Option<Duration> {
        match self.again {
            Again::In(wait) => Some(wait),
            Again::Absent | Again::Unclear => None,
        }
    }
}

/// All refusals of a run, including those after which the client retried.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Refusals {
    /// With a status of 429, 503 or 504.
    pub count: u64,
    /// Refusals that had a `Retry-After`.
    pub with_retry_after: u64,
    /// Since the request was sent.
    pub slowest_ms: f64,
    /// Answers by the number of attempts.
    pub answered_after_tries: BTreeMap<u32, u64>,
}

impl Refusals {
    pub(super) fn add(&mut self, refusal: Refusal) {
        self.count += 1;
        self.with_retry_after += u64::from(refusal.again != Again::Absent);
        // To the microsecond, as all times.
        self.slowest_ms = self.slowest_ms.max(refusal.took.as_micros() as f64 / 1e3);
    }

    pub(super) fn answered(&mut self, tries: u32) {
        *self.answered_after_tries.entry(tries).or_default() += 1;
    }

    /// One sentence each, if there were refusals.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.count > 0 {
            notes.push(format!(
                "{} refusals (429, 503 or 504), {} of them with Retry-After; the slowest came after {:.1} ms",
                self.count, self.with_retry_after, self.slowest_ms
            ));
        }
        let again: Vec<String> =
            self.answered_after_tries.range(2..).map(|it| format!("{} × {}", it.1, it.0)).collect();
        if !again.is_empty() {
            notes.push(format!("answers that took several tries: {}", again.join(", ")));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(status: u16, told: Option<&str>, expected: Option<Again>) {
        let mut headers = HeaderMap::new();
        headers.extend(told.map(|it| (RETRY_AFTER, it.parse().unwrap())));
        let refusal = Refusal::read(StatusCode::from_u16(status).unwrap(), &headers, Duration::ZERO);
        assert_eq!(refusal.map(|it| it.again), expected, "{status} {told:?}");
    }

    #[test]
    fn only_statuses_worth_a_retry_are_refusals() {
        check(429, Some("3"), Some(Again::In(Duration::from_secs(3))));
        check(503, None, Some(Again::Absent));
        check(504, Some("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Again::Unclear));
        check(503, Some("-1"), Some(Again::Unclear));
        check(400, Some("3"), None);
        check(500, None, None);
    }

    #[test]
    fn refusals_are_counted_with_the_slowest() {
        let mut refusals = Refusals::default();
        assert!(refusals.notes().is_empty());
        refusals.add(Refusal { took: Duration::from_micros(1_500), again: Again::Absent });
        refusals.add(Refusal { took: Duration::from_micros(500), again: Again::Unclear });
        assert_eq!((refusals.count, refusals.with_retry_after, refusals.slowest_ms), (2, 1, 1.5));
        [1, 3, 3].into_iter().for_each(|it| refusals.answered(it));
        assert_eq!(refusals.notes()[1], "answers that took several tries: 2 × 3");
    }
}

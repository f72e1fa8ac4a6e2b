//! Why a request was not answered to its end.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::refusal::Refusal;

/// Maximum characters of a message that are kept.
const MESSAGE_CHARS_MAX: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Answered with this status, which is not a success.
    Status(u16),
    /// The connection could not be established.
    Connect,
    /// A server answers, but the TLS handshake fails.
    Handshake,
    /// The connection or the stream ended before the answer did.
    BrokeOff,
    Timeout,
}

impl Kind {
    /// Whether the endpoint refused the request, rather than failed while serving it.
    pub fn is_refusal(self) -> bool {
        matches!(self, Kind::Status(400..))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Status(status) => write!(f, "status {status}"),
            Kind::Connect => f.write_str("connect"),
            Kind::Handshake => f.write_str("handshake"),
            Kind::BrokeOff => f.write_str("broke off"),
            Kind::Timeout => f.write_str("timeout"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {what}")]
pub struct Trouble {
    pub kind: Kind,
    pub what: String,
    /// Whether the status means "not now".
    pub refusal: Option<Refusal>,
}

impl Trouble {
    pub(super) fn new(kind: Kind, what: String) -> Trouble {
        Trouble { kind, what, refusal: None }
    }
}

/// All troubles of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    pub count: u64,
    /// The first message, cut if long.
    pub first: String,
}

/// Troubles by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Troubles(BTreeMap<Kind, Count>);

impl Troubles {
    pub fn add(&mut self, trouble: &Trouble) {
        let count = self.0.entry(trouble.kind).or_default();
        count.count += 1;
        if count.first.is_empty() {
            let plain = trouble.what.chars().map(|it| if it.is_control() { ' ' } else { it });
            count.first = plain.take(MESSAGE_CHARS_MAX).collect();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Kind, &Count)> {
        self.0.iter().map(|(&kind, count)| (kind, count))
    }

    pub fn count(&self) -> u64 {
        self.0.values().map(|it| it.count).sum()
    }
}

/// By the kind's name, as in `{"status 503": {"count": 7, "first": "…"}}`.
impl Serialize for Troubles {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(kind, count)| (kind.to_string(), count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_are_counted_by_kind_with_the_first_message() {
        let mut troubles = Troubles::default();
        let long = "x".repeat(1_000);
        for (kind, what) in
            [(Kind::Status(503), "busy\nnow"), (Kind::Status(503), "later"), (Kind::Connect, &long)]
        {
            troubles.add(&Trouble::new(kind, what.to_owned()));
        }
        let json = serde_json::to_value(&troubles).unwrap();
        assert_eq!(json["status 503"], serde_json::json!({"count": 2, "first": "busy now"}));
        assert_eq!(json["connect"]["first"].as_str().map(str::len), Some(MESSAGE_CHARS_MAX));
        assert_eq!(troubles.count(), 3);
    }

    #[test]
    fn only_refusing_statuses_are_refusals() {
        let refusals = [Kind::Status(429), Kind::Status(503)];
        let others = [Kind::Status(302), Kind::Connect, Kind::BrokeOff, Kind::Timeout];
        assert!(refusals.into_iter().all(Kind::is_refusal) && !others.into_iter().any(Kind::is_refusal));
    }
}

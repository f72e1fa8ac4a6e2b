//! The ids of traces and spans: W3C Trace Context, parsed strictly. A malformed header counts as none.

use http::header::{HeaderMap, HeaderValue};
use maitre_base::hash;
use maitre_dispatch::Placement;

use super::{TRACEPARENT, header_value};

/// The caller's span, from `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent {
    trace: u128,
    pub(super) span: u64,
    flags: u8,
    pub(super) sampled: bool,
}

/// The flag of a sampled trace.
const SAMPLED: u8 = 1;

impl Parent {
    pub(super) fn of(headers: &HeaderMap) -> Option<Parent> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?.to_str().ok()?;
        // Two headers count as none.
        if values.next().is_some() {
            return None;
        }
        Parent::parse(value)
    }

    fn parse(value: &str) -> Option<Parent> {
        let mut parts = value.split('-');
        let version = number(parts.next()?, 2)?;
        let trace = number(parts.next()?, 32)?;
        let span = number(parts.next()?, 16)? as u64;
        let flags = number(parts.next()?, 2)? as u8;
        // Later versions may append fields; version 0 may not.
        let is_known = version != 0xff && (version > 0 || parts.next().is_none());
        let is_one = trace != 0 && span != 0;
        (is_known && is_one).then_some(Parent { trace, span, flags, sampled: flags & SAMPLED != 0 })
    }
}

/// Exactly this many lower-case hex digits.
fn number(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    (text.len() == digits && text.bytes().all(is_hex)).then(|| u128::from_str_radix(text, 16).ok())?
}

/// The trace a request belongs to, and the seed of the spans we add to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(super) trace: u128,
    flags: u8,
    seed: u64,
}

/// Which of a request's spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which<'a> {
    Receive,
    Decide,
    Queue(usize),
    Upstream(&'a Placement),
    Stream,
}

impl Context {
    /// A new trace.
    pub(super) fn new(seed: u64) -> Context {
        let [high, low] = [hash::pair(seed, 1), hash::pair(seed, 2)];
        Context { trace: (u128::from(high) << 64 | u128::from(low)).max(1), flags: SAMPLED, seed }
    }

    /// The same spans within the caller's trace.
    pub(super) fn within(self, parent: &Parent) -> Context {
        Context { trace: parent.trace, flags: parent.flags, ..self }
    }

    /// Whether the trace is in this fraction of all traces. It depends on the trace id only, so that every participant
    /// decides alike.
    pub(super) fn falls_within(&self, part: f64) -> bool {
        // The last seven bytes: the specification requires these to be random.
        const RANGE: u64 = 1 << 56;
        let position = (self.trace as u64 % RANGE) as f64 / RANGE as f64;
        position < part
    }

    /// The id of a span. The exported span and the header to the worker compute the same one.
    pub(super) fn span(&self, which: Which<'_>) -> u64 {
        let number = match which {
            Which::Receive => 3,
            Which::Decide => 4,
            Which::Stream => 5,
            Which::Queue(number) => hash::pair(6, number as u64),
            // A recalled request is placed again with the same attempt number, but after a longer wait.
            Which::Upstream(placement) => {
                let attempt = hash::pair(u64::from(placement.attempt), placement.worker.index() as u64);
                hash::pair(attempt, placement.waited.as_nanos() as u64)
            }
        };
        hash::pair(self.seed, number).max(1)
    }

    /// The header for the worker of this attempt, which is the parent of the worker's spans.
    pub(crate) fn toward(&self, placement: &Placement) -> HeaderValue {
        self.header(self.span(Which::Upstream(placement)), self.flags)
    }

    /// The header for the worker of a request that is not sampled.
    pub(super) fn unsampled(&self) -> HeaderValue {
        self.header(self.span(Which::Receive), 0)
    }

    fn header(&self, span: u64, flags: u8) -> HeaderValue {
        header_value(&format!("00-{:032x}-{span:016x}-{flags:02x}", self.trace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[track_caller]
    fn check(value: &str, expected: Option<bool>) {
        assert_eq!(Parent::parse(value).map(|it| it.sampled), expected, "{value}");
    }

    #[test]
    fn a_parent_is_parsed_strictly() {
        check(GOOD, Some(true));
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false));
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", Some(true));
        check("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more-to-come", Some(true));
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333x-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "+0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn two_parents_count_as_none() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(Parent::of(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(GOOD));
        assert!(Parent::of(&headers).is_none());
    }

    #[test]
    fn the_sampled_fraction_is_about_the_ratio() {
        let count = |part: f64| (0..10_000).filter(|&it| Context::new(it).falls_within(part)).count();
        assert_eq!((count(0.0), count(1.0)), (0, 10_000));
        assert!((2_300..2_700).contains(&count(0.25)), "{}", count(0.25));
    }

    #[test]
    fn the_header_for_a_worker_parses_as_a_parent() {
        let context = Context::new(7);
        let value = context.unsampled();
        let parent = Parent::parse(value.to_str().unwrap()).unwrap();
        assert_eq!((parent.trace, parent.sampled), (context.trace, false));
        let child = Context::new(8).within(&Parent::parse(GOOD).unwrap());
        assert_eq!(format!("{:032x}", child.trace), "0af7651916cd43dd8448eb211c80319c");
    }
}

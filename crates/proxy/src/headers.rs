//! Headers that are not forwarded, and headers that the router adds.

use std::time::Duration;

use http::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use maitre_base::{RequestId, hash};
use maitre_dialect::engine;
use maitre_queue::{Budget, Budgets};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// In answers to probes: who answers is a router, and which.
pub(crate) const ROUTER: HeaderName = HeaderName::from_static(engine::ROUTER);
pub(crate) const WORKER: HeaderName = HeaderName::from_static("x-maitre-worker");
pub(crate) const PREFILL_WORKER: HeaderName = HeaderName::from_static("x-maitre-prefill-worker");
pub(crate) const PULL_WORKER: HeaderName = HeaderName::from_static("x-maitre-pull-worker");
pub(crate) const WHY: HeaderName = HeaderName::from_static("x-maitre-why");
/// Which data-parallel rank of an engine is to take a request; vLLM and SGLang agree on it.
pub(crate) const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Prompt tokens that we expect in the worker's cache.
pub(crate) const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-maitre-cached-tokens");
/// In a request: asks for the whole decision. In a response: the decision.
pub(crate) const EXPLAIN: HeaderName = HeaderName::from_static("x-maitre-explain");
/// Which program a request belongs to; then those of Claude Code and of Codex.
pub(crate) const PROGRAMS: [HeaderName; 3] = [
    HeaderName::from_static("x-maitre-program"),
    HeaderName::from_static("x-claude-code-session-id"),
    HeaderName::from_static("session_id"),
];
/// Whether a stream would go on at another worker if this one failed: `on`, or what prevents it.
pub(crate) const CONTINUE: HeaderName = HeaderName::from_static("x-maitre-continue");
pub(crate) const HEDGE: HeaderName = HeaderName::from_static("x-maitre-hedge");
/// Milliseconds that a request was queued.
pub(crate) const QUEUED: HeaderName = HeaderName::from_static("x-maitre-queue-ms");

/// How the names of our headers begin.
const OURS: &str = "x-maitre-";

pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Azure's name.
pub(crate) const AZURE_KEY: HeaderName = HeaderName::from_static("api-key");

/// What is left of a tenant's limits, under the names that clients of OpenAI read: limit, remaining, reset.
const REQUEST_BUDGET: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKEN_BUDGET: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// Where clients put their keys.
static KEYS: Names<3> = Names::new(["authorization", "x-api-key", "api-key"]);

/// Headers by which a client could route a request within an engine, or make the engine or its sidecar fetch from
/// another machine: the rank, SGLang's routing key, and those of llm-d.
static STEERING: Names<7> = Names::new([
    "x-data-parallel-rank",
    "x-smg-routing-key",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-data-parallel-host-port",
    "epp-profile",
]);

/// The priority within vLLM.
static ENGINE_PRIORITY: Names<1> = Names::new(["x-vllm-priority"]);

/// In a request id, vLLM before 0.24 looks for the addresses of the workers to exchange KV blocks with:
/// `___prefill_addr_HOST:PORT___decode_addr_HOST:PORT_`.
const ADDRESS_IN_ID: &[u8] = b"_addr_";

/// Longest `x-request-id` we pass on; longer ones are replaced by our own.
const REQUEST_ID_MAX: usize = 128;

/// Headers of one connection, not of the message (RFC 9110 §7.6.1), besides those that `connection` names.
static HOP_BY_HOP: Names<8> = Names::new([
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
]);

/// Not needed by a worker, because the body is here already; and a key for a proxy.
static OF_FIRST_HOP: Names<2> = Names::new(["expect", "proxy-authorization"]);

/// Headers that are looked for in every message, and are in few. Their names are compared, because to hash each costs
/// more, and only with names of the same length: comparing all took 1,738 instructions a request.
struct Names<const COUNT: usize> {
    names: [&'static str; COUNT],
    /// A bit for each length that a name has.
    lengths: u64,
}

impl<const COUNT: usize> Names<COUNT> {
    const fn new(names: [&'static str; COUNT]) -> Names<COUNT> {
        let (mut lengths, mut at) = (0, 0);
        while at < COUNT {
            lengths |= 1 << names[at].len();
            at += 1;
        }
        Names { names, lengths }
    }

    fn contains(&self, name: &str) -> bool {
        let bit = u32::try_from(name.len()).ok().and_then(|it| 1_u64.checked_shl(it));
        bit.is_some_and(|it| self.lengths & it != 0) && self.names.contains(&name)
    }

    fn is_any_in(&self, headers: &HeaderMap) -> bool {
        headers.keys().any(|it| self.contains(it.as_str()))
    }

    fn remove_from(&self, headers: &mut HeaderMap) {
        if self.is_any_in(headers) {
            self.names.iter().for_each(|&it| drop(headers.remove(it)));
        }
    }
}

/// Removes the headers that are about the connection. The id stays even if it is named as one of them: it is the router's own by
/// now, and tells the response of this request from that of another.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !HOP_BY_HOP.is_any_in(headers) {
        return;
    }
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(','))
        .filter_map(|it| it.trim().parse().ok())
        .filter(|it| *it != REQUEST_ID)
        .collect();
    for name in named {
        headers.remove(name);
    }
    HOP_BY_HOP.remove_from(headers);
}

/// Removes from a worker's headers what is not for a client: what is about the connection, and what is in our name. The worker
/// may be a router, and its workers are not the business of every client.
pub(crate) fn toward_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    while let Some(name) = headers.keys().find(|it| is_ours(it.as_str())).cloned() {
        headers.remove(name);
    }
}

/// Whether a header is in our name, in lower case.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with(OURS)
}

/// Removes from a client's headers what is not for a worker.
pub(crate) fn toward_worker(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    OF_FIRST_HOP.remove_from(headers);
}

/// Whether a header is about the connection rather than the message, or tells a gateway how to forward it.
pub(crate) fn is_of_connection(name: &str) -> bool {
    matches!(name, "host" | "content-length") || OF_FIRST_HOP.contains(name) || HOP_BY_HOP.contains(name)
}

/// Whether a client asks for the decision. The header is ours, and is not forwarded.
pub(crate) fn asks_to_explain(headers: &mut HeaderMap) -> bool {
    static ASKS: Names<1> = Names::new(["x-maitre-explain"]);
    ASKS.is_any_in(headers) && headers.remove(&EXPLAIN).is_some_and(|it| it == "1" || it == "true")
}

/// Whether there may be a key. Without one, which is usual where no keys are checked, that costs less than to look for each.
pub(crate) fn may_have_key(headers: &HeaderMap) -> bool {
    KEYS.is_any_in(headers)
}

/// Removes the client's key.
pub(crate) fn strip_keys(headers: &mut HeaderMap) {
    KEYS.remove_from(headers);
}

/// For callers that may not steer engines.
pub(crate) fn strip_steering(headers: &mut HeaderMap) {
    STEERING.remove_from(headers);
}

/// For callers that may not choose their priority.
pub(crate) fn strip_priority(headers: &mut HeaderMap) {
    ENGINE_PRIORITY.remove_from(headers);
}

/// The client's own id for this request; or a new one, which replaces what the client sent. Of two ids a worker might read the
/// other one.
pub(crate) fn keep_or_make_id(headers: &mut HeaderMap, request: RequestId, nonce: u64) -> HeaderValue {
    let entry = headers.entry(REQUEST_ID);
    let may_stay = |id: &HeaderValue| {
        (1..=REQUEST_ID_MAX).contains(&id.len())
            && !id.as_bytes().windows(ADDRESS_IN_ID.len()).any(|it| it == ADDRESS_IN_ID)
    };
    if let Entry::Occupied(given) = &entry
        && given.iter().count() == 1
        && may_stay(given.get())
    {
        let id = given.get();
        // Copied: the value shares the buffer that was read from the socket, up to a megabyte with the body in it, and
        // ids are kept for thousands of requests.
        return HeaderValue::from_bytes(id.as_bytes()).unwrap_or_else(|_| id.clone());
    }
    let number = hash::pair(nonce, request.0);
    let made: [u8; 16] =
        std::array::from_fn(|at| b"0123456789abcdef"[(number >> (60 - 4 * at)) as usize & 15]);
    let id = HeaderValue::from_bytes(&made).unwrap_or(HeaderValue::from_static("-"));
    match entry {
        Entry::Occupied(mut given) => drop(given.insert(id.clone())),
        Entry::Vacant(place) => drop(place.insert(id.clone())),
    }
    id
}

/// Says what is left of the tenant's limits. A worker's own limits are not the client's.
pub(crate) fn add_budgets(headers: &mut HeaderMap, budgets: &Budgets) {
    for (names, budget) in [(REQUEST_BUDGET, budgets.requests), (TOKEN_BUDGET, budgets.tokens)] {
        let Some(Budget { per_minute, remaining, reset }) = budget else { continue };
        let [limit_name, remaining_name, reset_name] = names;
        headers.insert(limit_name, HeaderValue::from(per_minute));
        headers.insert(remaining_name, HeaderValue::from(remaining));
        // Only digits and letters, so this cannot fail.
        drop(HeaderValue::from_str(&span(reset)).map(|it| headers.insert(reset_name, it)));
    }
}

/// A duration as OpenAI writes it: `250ms`, `7s`, `6m0s`. Rounded up: a client that waits this long has waited enough.
fn span(span: Duration) -> String {
    let millis = span.as_nanos().div_ceil(1_000_000);
    let seconds = millis.div_ceil(1_000);
    match (millis, seconds / 60, seconds % 60) {
        (0, ..) => "0s".to_owned(),
        (1..1_000, ..) => format!("{millis}ms"),
        (_, 0, seconds) => format!("{seconds}s"),
        (_, minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

/// Joins the cookies of a request that came over HTTP/2: each may be a header of its own there, and not in HTTP/1.1 (RFC 9113
/// §8.2.3). Servers read the first.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

/// The value of one cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let pairs = headers.get_all(header::COOKIE).iter().filter_map(|it| it.to_str().ok());
    let mut pairs = pairs.flat_map(|it| it.split(';')).filter_map(|it| it.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&str, &str)]) -> HeaderMap {
        let row = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
            (name.parse().unwrap(), value.parse().unwrap())
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn connection_headers_and_what_they_name_stay_behind() {
        let mut map = headers(&[
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("traceparent", "00-1-2-01"),
            ("authorization", "Bearer k"),
        ]);
        toward_worker(&mut map);
        let mut left: Vec<&str> = map.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "traceparent"]);
    }

    #[test]
    fn names_are_found_by_all_of_their_bytes_whatever_their_length() {
        let others =
            ["host", "user-agent", "x-request-id", &"x".repeat(63), &"x".repeat(64), &"x".repeat(300)];
        for (name, others) in HOP_BY_HOP.names.iter().map(|it| (it, others)) {
            assert!(HOP_BY_HOP.contains(name) && others.iter().all(|it| !HOP_BY_HOP.contains(it)), "{name}");
        }
        let mut map = headers(&[("x-data-parallel-rank", "1"), ("x-vllm-priority", "2"), ("api-key", "k")]);
        strip_steering(&mut map);
        strip_priority(&mut map);
        strip_keys(&mut map);
        assert!(map.is_empty() && STEERING.contains(RANK.as_str()), "{map:?}");
    }

    #[test]
    fn a_valid_id_is_kept_and_otherwise_one_is_generated() {
        let mut map = headers(&[("x-request-id", "abc")]);
        assert_eq!(keep_or_make_id(&mut map, RequestId(1), 0), "abc");
        let mut map = headers(&[("x-request-id", &"a".repeat(500))]);
        let made = keep_or_make_id(&mut map, RequestId(1), 0);
        assert_eq!((made.len(), map.get(REQUEST_ID)), (16, Some(&made)));
        assert_eq!(made, format!("{:016x}", hash::pair(0, 1)));
        assert_ne!(keep_or_make_id(&mut HeaderMap::new(), RequestId(2), 0), made);
    }

    #[test]
    fn an_id_that_would_make_an_engine_connect_elsewhere_is_replaced() {
        let mut map = headers(&[("x-request-id", "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:80_a")]);
        let made = keep_or_make_id(&mut map, RequestId(1), 0);
        assert_eq!((made.len(), map.get(REQUEST_ID)), (16, Some(&made)));
    }

    #[test]
    fn two_ids_are_replaced_by_one() {
        let mut map = headers(&[("x-request-id", "abc"), ("x-request-id", "___prefill_addr_10.0.0.1:80___")]);
        let made = keep_or_make_id(&mut map, RequestId(1), 0);
        let sent: Vec<_> = map.get_all(REQUEST_ID).iter().collect();
        assert_eq!((made.len(), sent), (16, vec![&made]));
    }

    #[test]
    fn the_id_reaches_the_worker_whatever_the_client_calls_it() {
        let mut map = headers(&[("connection", "x-request-id, x-private"), ("x-private", "1")]);
        let id = keep_or_make_id(&mut map, RequestId(1), 0);
        toward_worker(&mut map);
        assert_eq!((map.len(), map.get(REQUEST_ID)), (1, Some(&id)));
    }

    #[test]
    fn an_id_that_is_remembered_keeps_nothing_else_in_memory() {
        let read = bytes::Bytes::from(b"abc and the body of the request behind it".to_vec());
        let mut map = HeaderMap::new();
        map.insert(REQUEST_ID, HeaderValue::from_maybe_shared(read.slice(..3)).unwrap());
        let id = keep_or_make_id(&mut map, RequestId(1), 0);
        drop(map);
        assert!(read.is_unique() && id == "abc");
    }

    #[test]
    fn resets_are_written_as_openai_does() {
        let rows = [
            (0, "0s"),
            (1, "1ms"),
            (250, "250ms"),
            (1_000, "1s"),
            (6_001, "7s"),
            (60_000, "1m0s"),
            (359_500, "6m0s"),
        ];
        for (millis, text) in rows {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let map = headers(&[("cookie", "a=1; maitre_session=xyz; b=2")]);
        assert_eq!(cookie(&map, "maitre_session"), Some("xyz"));
        assert_eq!(cookie(&map, "session"), None);
    }
}

//! The numbers of requests, and the ids that clients know them by.
//!
//! A number is for the brain; an id is what the client sent as `x-request-id`, or got from us. Ids are kept for the
//! last requests, so that a decision can be looked up by either.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;
use maitre_base::{RequestId, hash};
use parking_lot::Mutex;

/// Ids kept. Four times as many as decisions are kept by default: refused requests have ids, too.
const KEPT: usize = 4_096;

/// The first number of a second attempt: more than there are requests.
const SECONDS: u64 = 1 << 62;

pub(crate) struct RequestIds {
    next: AtomicU64,
    /// Of second attempts, which are no requests that arrive.
    next_second: AtomicU64,
    /// Random. Keeps the ids of two routers, or of two runs, apart.
    pub(crate) instance_nonce: u64,
    /// By number, the newest in the place of the oldest.
    ring: Mutex<Vec<Option<(RequestId, HeaderValue)>>>,
    /// How many ids were made for what a request does besides.
    handoffs: AtomicU64,
}

/// By the nonce of its run.
pub(crate) fn router_name(instance_nonce: u64) -> HeaderValue {
    let name = hash::bytes(instance_nonce, b"router");
    HeaderValue::from_str(&format!("{name:016x}")).unwrap_or(HeaderValue::from_static("maitre"))
}

impl Default for RequestIds {
    fn default() -> RequestIds {
        RequestIds {
            next: AtomicU64::new(1),
            next_second: AtomicU64::new(SECONDS),
            instance_nonce: RandomState::new().build_hasher().finish(),
            ring: Mutex::new(vec![None; KEPT]),
            handoffs: AtomicU64::new(0),
        }
    }
}

impl RequestIds {
    pub(crate) fn next(&self) -> RequestId {
        RequestId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// An id for a transfer of KV cache that no other has, here or at another router.
    pub(crate) fn of_transfer(&self) -> String {
        let number = self.handoffs.fetch_add(1, Ordering::Relaxed);
        format!("maitre-{:016x}-{number}", self.instance_nonce)
    }

    /// What tells this router from all others, without telling its nonce.
    pub(crate) fn router(&self) -> HeaderValue {
        router_name(self.instance_nonce)
    }

    /// The number of a second attempt.
    pub(crate) fn second(&self) -> RequestId {
        RequestId(self.next_second.fetch_add(1, Ordering::Relaxed))
    }

    /// Requests that have arrived since the start, however they ended.
    pub(crate) fn issued(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    pub(crate) fn keep(&self, request: RequestId, id: &HeaderValue) {
        let id = id.clone();
        self.ring.lock()[slot(request)] = Some((request, id));
    }

    pub(crate) fn of(&self, request: RequestId) -> Option<String> {
        let ring = self.ring.lock();
        let (kept, id) = ring[slot(request)].as_ref()?;
        (*kept == request).then(|| String::from_utf8_lossy(id.as_bytes()).into_owned())
    }

    /// The newest request with this id.
    pub(crate) fn find(&self, id: &str) -> Option<RequestId> {
        let ring = self.ring.lock();
        ring.iter().flatten().filter(|(_, it)| it.as_bytes() == id.as_bytes()).map(|it| it.0).max()
    }
}

fn slot(request: RequestId) -> usize {
    (request.0 % KEPT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_found_by_id_and_by_number() {
        let ids = RequestIds::default();
        let id = |it: u64| HeaderValue::from_str(&format!("r{}", it % 5_000)).unwrap();
        (1..=10_000).for_each(|it| ids.keep(RequestId(it), &id(it)));
        assert_eq!(ids.of(RequestId(10_000)), Some("r0".to_owned()));
        assert_eq!(ids.of(RequestId(1)), None);
        assert_eq!(ids.find("r4999"), Some(RequestId(9_999)));
        assert_eq!(ids.find("unknown"), None);
    }
}

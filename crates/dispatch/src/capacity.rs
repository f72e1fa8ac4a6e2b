//! How much more a worker can take, and how soon its first token would come.

use maitre_base::{self as base, PrefillWork, Promise, Tokens};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::attention::PrefillFit;
use maitre_queue::limits::{Caps, WorkerLimits};

/// Share of the KV cache above which it counts as full: preemptions begin before the last block is taken.
const CACHE_FULL: f64 = 0.97;
/// Safety factor on an expected first token. Learned rates are means, so half of all first tokens come later.
const SAFETY_FACTOR: f64 = 1.2;

/// An upper estimate, in seconds, of the time to the first token of a request with this much to prefill: what was promised
/// before it, the wait for a sequence slot if all are taken, and its own prefill, times the safety factor.
pub(crate) fn first_token_by(snapshot: &WorkerSnapshot, prefill: PrefillWork, limits: WorkerLimits) -> f64 {
    let requests = f64::from(snapshot.requests.max(1));
    let slot = match snapshot.requests >= limits.sequences {
        // Responses are half done on average, and the end of any of them frees a slot.
        true => snapshot.promised.decode.0 as f64 / requests / 2.0 * snapshot.decode.at(requests) / requests,
        false => 0.0,
    };
    SAFETY_FACTOR * (snapshot.wait_seconds.max(0.0) + slot + snapshot.prefill.at(prefill))
}

/// Whether a prompt takes longer than a usual first token of this worker. Such a prompt delays the first tokens of others.
pub(crate) fn is_long(snapshot: &WorkerSnapshot, prefill: PrefillWork) -> bool {
    snapshot.prefill.plain_tokens(prefill) > snapshot.knee.prefill_tokens
}

/// A knee counts plain tokens, and a limit tokens as engines count them: as many as take as long, of those that were
/// promised. While both were counted alike, a worker got twice as many seconds of turns after 60,000 tokens.
pub(crate) fn knee_in_tokens(knee: base::Knee, prefill: &PrefillFit, promised: PrefillWork) -> base::Knee {
    base::Knee { prefill_tokens: knee.prefill_tokens / prefill.plain_per_token(promised), ..knee }
}

/// A worker's limit, and the number of routers that share it.
#[derive(Clone, Copy)]
pub(crate) struct Knee {
    pub(crate) limits: WorkerLimits,
    pub(crate) caps: Caps,
    pub(crate) routers: u32,
}

impl Knee {
    /// Whether a worker is below its limit, or this router is below its share of the limit.
    ///
    /// A router that ends a request gives the slot to its own queue at once, and the other routers never learn that the
    /// slot was free: a router that joins a full fleet would wait for ever. So each router may fill its share whatever
    /// the others have, within the operator's caps. Routers with more than their share place nothing until the sum is
    /// below the limit again.
    pub(crate) fn is_above(self, snapshot: &WorkerSnapshot) -> bool {
        let Knee { limits, caps, routers } = self;
        let promised = (snapshot.requests, snapshot.promised.prefill.tokens);
        is_less(promised, limits) && snapshot.promised.prefilling < limits.prefilling
            || routers > 1
                && is_less(snapshot.ours, limits.times(1.0 / f64::from(routers)))
                && is_less(promised, caps.as_limits())
    }
}

/// The worker as it would be without a request of this promise, as far as limits count it.
pub(crate) fn without(mut snapshot: WorkerSnapshot, promise: &Promise) -> WorkerSnapshot {
    snapshot.requests = snapshot.requests.saturating_sub(1);
    snapshot.promised.prefilling = snapshot.promised.prefilling.saturating_sub(1);
    snapshot.promised.prefill -= promise.prefill;
    snapshot.ours = (snapshot.ours.0.saturating_sub(1), snapshot.ours.1 - promise.prefill.tokens);
    snapshot
}

/// Whether the KV cache of a worker has room for this request. An idle worker takes anything, and a prompt larger than
/// the cache waits for nothing. As engines do, we ask for room for the prompt alone, not for the response.
pub(crate) fn has_memory(snapshot: &WorkerSnapshot, promise: &Promise) -> bool {
    snapshot.promised.requests == 0
        || snapshot.room.is_none_or(|it| {
            let room = (it.capacity.0 as f64 * CACHE_FULL) as u64;
            let prefill = promise.prefill.tokens;
            prefill.0 > room || (snapshot.used + prefill).0 <= room
        })
}

fn is_less((requests, prefill): (u32, Tokens), limits: WorkerLimits) -> bool {
    prefill.0 < limits.prefill_tokens && requests < limits.sequences
}

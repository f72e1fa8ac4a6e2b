//! Which requests to recall from their workers.
//!
//! Before the first byte, only the router and the worker know where a request is. So the router can take it back and
//! queue it again without its client noticing. The last to be placed go first: the worker has hardly begun with them. The
//! work on others is lost, or with luck still in the worker's cache. So those are recalled only for a deadline that cannot be
//! met otherwise, and only if the recall is enough to meet it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, PrefillWork, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_queue::limits::{Caps, limits};

use crate::capacity::first_token_by;
use crate::request::PendingRequest;

/// Most requests that are recalled for one.
const RECALLS_MAX: usize = 16;
/// Most times that one request is recalled.
const RECALLED_MAX: usize = 3;

/// A placed request whose response has not begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitingFirstToken {
    placed_at: Instant,
    pub(crate) request: RequestId,
    prefill: PrefillWork,
}

/// Whom to recall so that this request meets its deadline: at the worker where that loses the least work. None if no
/// recall is enough.
pub(crate) fn victims(
    now: Instant,
    id: RequestId,
    pending: &NumberMap<Box<PendingRequest>>,
    snapshots: &[WorkerSnapshot],
    caps: Caps,
) -> Option<Vec<RequestId>> {
    let request = pending.get(&id.0)?;
    let time_left = request.deadline?.since(now).as_secs_f64();
    let whole = PrefillWork::whole(request.ask.prefill);
    let candidates = awaiting_first_token(pending, |it| it.class > request.class);
    let mut best: Option<(Tokens, Vec<RequestId>)> = None;
    for snapshot in snapshots {
        let limits = limits(snapshot.knee, caps);
        let in_time = |it: &WorkerSnapshot| first_token_by(it, whole, limits) <= time_left;
        let (mut after, mut recalled, mut work) = (*snapshot, Vec::new(), Tokens::ZERO);
        for it in candidates.get(&snapshot.worker).into_iter().flatten().take(RECALLS_MAX) {
            if in_time(&after) {
                break;
            }
            after.wait_seconds -= snapshot.prefill.seconds(it.prefill);
            after.requests = after.requests.saturating_sub(1);
            work += it.prefill.tokens;
            recalled.push(it.request);
        }
        let helps = in_time(&after) && !recalled.is_empty();
        if helps && best.as_ref().is_none_or(|it| work < it.0) {
            best = Some((work, recalled));
        }
    }
    best.map(|it| it.1)
}

/// Requests that `may` be recalled and have no first token, by worker. The last to be placed comes first: it has the least
/// to lose.
pub(crate) fn awaiting_first_token(
    pending: &NumberMap<Box<PendingRequest>>,
    may: impl Fn(&PendingRequest) -> bool,
) -> BTreeMap<WorkerId, Vec<AwaitingFirstToken>> {
    let mut workers: BTreeMap<WorkerId, Vec<AwaitingFirstToken>> = BTreeMap::new();
    for request in pending.values() {
        let Some(attempt) = request.attempt().filter(|it| !it.promise.prefilled) else { continue };
        // What another worker prefilled would be lost.
        let is_split = attempt.prefill_leg.is_some();
        let may_be = !request.has_response && !is_split && request.recalled.len() < RECALLED_MAX;
        if may_be && may(request) {
            workers.entry(attempt.worker).or_default().push(AwaitingFirstToken {
                placed_at: attempt.placed_at,
                request: request.id,
                prefill: attempt.promise.prefill,
            });
        }
    }
    workers.values_mut().for_each(|it| it.sort_unstable_by_key(|it| Reverse((it.placed_at, it.request))));
    workers
}

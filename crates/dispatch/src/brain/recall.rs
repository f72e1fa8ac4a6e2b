//! Calls back those of lower classes who have not begun, for one who would come too late.
//!
//! A request without its first byte is known to nobody but us and its worker, so it can be taken from there and put back
//! in line, and its client will never know. What the worker has computed of it is lost, or with luck still in its
//! cache: so it is done only for a deadline that cannot be kept otherwise, and only if it can be kept so.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use maitre_base::{ClassId, Instant, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;

use super::Brain;
use super::placement::{LATER, Tried, foresee, limits};
use crate::event::Effect;
use crate::observer::decision::Outcome;

/// Most that one request calls back.
const RECALLS_MAX: usize = 16;
/// And how often one is called back at most.
const RECALLED_MAX: usize = 3;

/// A seated request whose answer has not begun.
#[derive(Clone, Copy, Debug)]
struct AwaitingFirstToken {
    at: Instant,
    request: RequestId,
    prefill: Tokens,
}

impl Brain {
    /// Makes room for a request that is too late wherever it goes, if others may go later, and seats it.
    pub(super) fn seat_by_recall(
        &mut self,
        now: Instant,
        request: RequestId,
        effects: &mut Vec<Effect>,
    ) -> Tried {
        if !self.settings.queue.recall {
            return Tried::Late;
        }
        let Some(victims) = self.victims(now, request) else { return Tried::Late };
        for victim in victims {
            self.recall(now, victim, effects);
        }
        self.try_seat(now, request, effects)
    }

    /// Whom to call back so that it is in time: at the worker where that is the least work.
    fn victims(&self, now: Instant, request: RequestId) -> Option<Vec<RequestId>> {
        let open = self.open.get(&request.0)?;
        let left = open.deadline?.since(now).as_secs_f64();
        let unborn = self.unborn(open.class);
        let mut best: Option<(Tokens, Vec<RequestId>)> = None;
        for snapshot in &self.snapshots {
            let limits = limits(snapshot.scale, self.settings.queue.caps());
            let in_time = |it: &WorkerSnapshot| LATER * foresee(it, open.ask.prefill, limits) <= left;
            let (mut left_there, mut called, mut work) = (*snapshot, Vec::new(), Tokens::ZERO);
            for it in unborn.get(&snapshot.worker).into_iter().flatten().take(RECALLS_MAX) {
                if in_time(&left_there) {
                    break;
                }
                left_there.wait_seconds -= it.prefill.0 as f64 * snapshot.prefill.slope;
                left_there.requests = left_there.requests.saturating_sub(1);
                work += it.prefill;
                called.push(it.request);
            }
            let helps = in_time(&left_there) && !called.is_empty();
            if helps && best.as_ref().is_none_or(|it| work < it.0) {
                best = Some((work, called));
            }
        }
        best.map(|it| it.1)
    }

    /// Requests of classes below this one without a first token, by worker. The last to come is first: it has the least
    /// to lose.
    fn unborn(&self, class: ClassId) -> BTreeMap<WorkerId, Vec<AwaitingFirstToken>> {
        let mut workers: BTreeMap<WorkerId, Vec<AwaitingFirstToken>> = BTreeMap::new();
        for (&request, open) in &self.open {
            let Some(place) = open.placement.filter(|it| !it.promise.prefilled) else { continue };
            if open.class > class && open.recalled.len() < RECALLED_MAX {
                let (request, prefill) = (RequestId(request), place.promise.prefill);
                workers.entry(place.worker).or_default().push(AwaitingFirstToken {
                    at: place.at,
                    request,
                    prefill,
                });
            }
        }
        workers.values_mut().for_each(|it| it.sort_unstable_by_key(|it| Reverse((it.at, it.request))));
        workers
    }

    /// Takes a request from its worker and puts it back in line, where it was.
    fn recall(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let Some(place) = self.unseat(request) else { return };
        self.note_end(now, &place, Outcome::Recalled, None);
        if let Some(open) = self.open.get_mut(&request.0) {
            open.recalled.push(place.worker);
        }
        self.refund(request);
        effects.push(Effect::Recall { request, worker: place.worker });
        self.join(now, request, effects);
    }
}

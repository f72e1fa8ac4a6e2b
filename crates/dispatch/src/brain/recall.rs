//! Calls back those of lower classes who have not begun, for one who would come too late.
//!
//! A request without its first byte is known to nobody but us and its worker, so it can be taken from there and put back
//! in line, and its client will never know. What the worker has computed of it is lost, or with luck still in its
//! cache: so it is done only for a deadline that cannot be kept otherwise, and only if it can be kept so.

use maitre_base::{ClassId, Instant, RequestId, Tokens, WorkerId};

use maitre_fleet::Standing;

use super::Brain;
use super::seat::{LATER, Tried, foresee};
use crate::event::Effect;

/// Most that one request calls back.
const RECALLS_MAX: usize = 16;

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
        let caps = self.settings.queue.caps();
        let mut best: Option<(Tokens, Vec<RequestId>)> = None;
        for standing in &self.standings {
            let mut victims = self.unborn(standing.worker, open.class);
            // The last to come goes first: it has the least to lose.
            victims.sort_by_key(|it| std::cmp::Reverse((it.1, it.0)));
            victims.truncate(RECALLS_MAX);
            let (mut left_there, mut called, mut work) = (*standing, Vec::new(), Tokens::ZERO);
            let in_time = |it: &Standing| LATER * foresee(it, open.ask.prefill, caps) <= left;
            for (victim, _, prefill) in victims {
                if in_time(&left_there) {
                    break;
                }
                left_there.wait_seconds -= prefill.0 as f64 * standing.prefill.slope;
                left_there.requests = left_there.requests.saturating_sub(1);
                work += prefill;
                called.push(victim);
            }
            let helps = in_time(&left_there) && !called.is_empty();
            if helps && best.as_ref().is_none_or(|it| work < it.0) {
                best = Some((work, called));
            }
        }
        best.map(|it| it.1)
    }

    /// Requests of classes below this one at a worker, without a first token: which, since when, how much to prefill.
    fn unborn(&self, worker: WorkerId, class: ClassId) -> Vec<(RequestId, Instant, Tokens)> {
        let below = self.open.iter().filter(|it| it.1.class > class);
        let there = below.filter_map(|(&request, open)| {
            let place = open.seat.filter(|it| it.worker == worker && !it.promise.prefilled)?;
            Some((RequestId(request), place.at, place.promise.prefill))
        });
        there.collect()
    }

    /// Takes a request from its worker and puts it back in line, where it was.
    fn recall(&mut self, now: Instant, request: RequestId, effects: &mut Vec<Effect>) {
        let Some(place) = self.unseat(request) else { return };
        self.refund(request);
        effects.push(Effect::Recall { request, worker: place.worker });
        self.join(now, request, effects);
    }
}

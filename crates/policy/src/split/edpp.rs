//! EDPP of llm-d's research (drift plus penalty): splits a request while that shrinks the queues.
//!
//! Work that joins a long queue grows the sum of squared queues more than work that joins a short one. So the prompt
//! goes to the lowest cost: its seconds of work times the seconds of work before it, plus the transfer, plus a
//! virtual queue. That queue grows with each split request whose first token came after its deadline. llm-d published
//! only a description; the weights here are 1, and one late request in ten is allowed.
//!
//! Every decision serves the virtual queue, whether it splits or not: each request shrinks it by what is allowed. If
//! only split requests did, a rule that has stopped splitting would never begin again.

use super::Prospect;

/// The part of requests that may be both split and late.
const ALLOWED: f64 = 0.1;
/// Chosen: three hundred requests after the last late one, the queue is empty.
const LATE_MAX: f64 = 30.0;

/// Late split requests in excess of those allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LateSplits(f64);

impl LateSplits {
    /// The first token of a request came; `is_late` only if the request was split.
    pub fn learn(&mut self, is_late: bool) {
        let missed = if is_late { 1.0 } else { 0.0 };
        self.0 = (self.0 + missed - ALLOWED).clamp(0.0, LATE_MAX);
    }

    pub(super) fn requests(self) -> f64 {
        self.0
    }
}

pub(super) fn splits(prospect: &Prospect) -> bool {
    let Prospect { decode, prefill, transfer, late, .. } = prospect;
    let running = f64::from(decode.requests) * decode.step;
    let here = (decode.wait + running) * decode.prefill;
    let there = prefill.wait * prefill.prefill + transfer + late.requests();
    there < here
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::{DecodeSide, PrefillSide};

    fn prospect(requests: u32, prefill_wait: f64, late: LateSplits) -> Prospect {
        Prospect {
            decode: DecodeSide { wait: 0.0, requests, step: 0.02, step_token: 5e-5, prefill: 0.5 },
            prefill: PrefillSide { wait: prefill_wait, prefill: 0.5 },
            transfer: 0.05,
            late,
            ..Prospect::default()
        }
    }

    #[test]
    fn it_goes_where_the_queues_are_short() {
        let none = LateSplits::default();
        assert!(splits(&prospect(40, 0.0, none)));
        assert!(!splits(&prospect(40, 1.0, none)), "a queue at the prefill worker");
        assert!(!splits(&prospect(2, 0.0, none)), "an idle decode worker");
    }

    #[test]
    fn late_first_tokens_keep_prompts_local_until_they_are_made_up_for() {
        let mut late = LateSplits::default();
        late.learn(true);
        assert!(!splits(&prospect(40, 0.0, late)));
        (0..9).for_each(|_| late.learn(false));
        assert!(splits(&prospect(40, 0.0, late)));
        (0..1_000).for_each(|_| late.learn(true));
        assert!(late.requests() <= LATE_MAX);
    }
}

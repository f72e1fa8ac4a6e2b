//! EDPP of llm-d's research (drift plus penalty): sends a prompt away while that shrinks the queues.
//!
//! Work that joins a long queue grows the sum of squared queues more than work that joins a short one. So the prompt goes
//! where its seconds of work times the seconds of work before it are fewest, plus the transfer, plus a virtual queue that
//! grows with each split request whose first token came after its deadline. Published as a description; the weights here
//! are 1, and one late request in ten is allowed.

use std::time::Duration;

use super::Prospect;

/// The part of split requests that may be late.
const ALLOWED: f64 = 0.1;
/// Chosen. Only split requests that come in time make it smaller, so where all are late, the rule splits no more.
const LATE_MAX: f64 = 30.0;

/// Split requests that were late beyond those allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LateSplits(f64);

impl LateSplits {
    /// The first token of a split request came after so long.
    pub fn learn(&mut self, took: Duration, deadline: Duration) {
        let missed = if took > deadline { 1.0 } else { 0.0 };
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
        let deadline = Duration::from_secs(1);
        late.learn(Duration::from_secs(2), deadline);
        assert!(!splits(&prospect(40, 0.0, late)));
        (0..9).for_each(|_| late.learn(Duration::from_millis(10), deadline));
        assert!(splits(&prospect(40, 0.0, late)));
        (0..1_000).for_each(|_| late.learn(Duration::from_secs(9), deadline));
        assert!(late.requests() <= LATE_MAX);
    }
}

//! Prefill deflection (arXiv 2607.02043): a prompt stays at the decode worker if its first token comes sooner there.
//! The worker computes it in chunks so small that no running answer waits longer than a deadline for its next token.
//!
//! The paper searches all decode workers; here only the worker that would answer counts.

use std::time::Duration;

use super::Prospect;

/// Most tokens of a chunk: an engine's usual batch (vLLM).
const CHUNK_MAX: f64 = 8_192.0;
/// A smaller chunk counts as none: every step costs as much as a whole one.
const CHUNK_MIN: f64 = 16.0;

pub(super) fn splits(prospect: &Prospect, token_deadline: Duration) -> bool {
    let there = prospect.prefill.wait + prospect.prefill.prefill + prospect.transfer;
    match here(prospect, token_deadline.as_secs_f64()) {
        Some(here) => there < here,
        None => true,
    }
}

/// Seconds to the first token at the decode worker; `None` if no chunk fits between its steps.
fn here(prospect: &Prospect, deadline: f64) -> Option<f64> {
    let side = &prospect.decode;
    // No running answer waits for a token there.
    let room = if side.requests == 0 { f64::INFINITY } else { deadline - side.step };
    let chunk = (room / side.step_token).min(CHUNK_MAX);
    if chunk < CHUNK_MIN {
        return None;
    }
    let steps = (prospect.lacks.0 as f64 / chunk).ceil();
    Some(side.wait + side.prefill + steps * side.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::{DecodeSide, PrefillSide};
    use maitre_base::Tokens;

    /// A prompt of 8,000 tokens; a token takes 50 µs, a step 20 ms.
    #[track_caller]
    fn check(requests: u32, prefill_wait: f64, deadline_ms: u64, expected: bool) {
        let prospect = Prospect {
            lacks: Tokens(8_000),
            decode: DecodeSide { wait: 0.0, requests, step: 0.02, step_token: 5e-5, prefill: 0.4 },
            prefill: PrefillSide { wait: prefill_wait, prefill: 0.4 },
            transfer: 0.06,
            ..Prospect::default()
        };
        assert_eq!(splits(&prospect, Duration::from_millis(deadline_ms)), expected, "{prospect:?}");
    }

    #[test]
    fn a_prompt_is_deflected_where_its_first_token_comes_sooner() {
        check(0, 0.0, 50, false);
        // Chunks of 600 tokens: fourteen steps.
        check(40, 0.0, 50, true);
        check(40, 1.0, 50, false);
    }

    #[test]
    fn running_answers_do_not_wait_beyond_their_deadline() {
        check(40, 9.0, 20, true);
    }
}

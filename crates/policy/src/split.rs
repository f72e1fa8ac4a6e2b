//! Whether a prompt is prefilled by the worker that answers, or by another one that hands its KV cache over.
//!
//! ```text
//! here      = the price of the whole request at the worker that was picked
//! elsewhere = the price of the prompt at a prefill worker
//!           + the transfer of what the decode worker lacks
//!           + the price of the answer at a decode worker: its queue, its memory, its pace, and no prefill
//! ```
//!
//! All of them are prices of `least_delay`, in seconds of delay to this request and to all others. So a prompt that the
//! decode worker holds is not sent away, a busy prefill worker is not waited for, and a decode worker full of answers is
//! spared a long prefill. There is no threshold.

mod rule;

use maitre_base::Tokens;

pub use rule::{Prospect, PublishedRule, SplitRule};

use crate::least_delay::{price, terms};
use crate::{Ask, Candidate, Pace};

/// The delay of computing the prompt at this worker, for another one.
pub fn prefill_price(ask: &Ask, candidate: &Candidate) -> f64 {
    // Engines generate one token with a prefill.
    price(&Ask { decode: Tokens(1), ..*ask }, candidate)
}

/// The delay of answering at this worker once its KV cache has come, and of fetching that.
pub fn decode_price(ask: &Ask, candidate: &Candidate, transfer_seconds: f64) -> f64 {
    let pace = Pace { prefill_token: 0.0, ..candidate.pace };
    (transfer_seconds + terms(ask, &Candidate { pace, ..*candidate }).sum()) / candidate.share
}

/// The tokens whose KV cache the worker lacks.
pub fn lacks(ask: &Ask, candidate: &Candidate) -> Tokens {
    ask.prefill - candidate.held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    const TRANSFER: f64 = 0.030;

    /// Whether a prompt of so many tokens goes to an idle prefill worker, by requests at the decode worker, promised prefill
    /// at the prefill worker, and tokens held by the decode worker.
    #[track_caller]
    fn check(prompt: u64, (requests, prefill_ahead, held): (u32, u64, u64), expected: bool) {
        let ask = Ask { prefill: Tokens(prompt), decode: Tokens(200), ..Ask::default() };
        let mut workers = fleet(&[(requests, 0), (u32::from(prefill_ahead > 0), prefill_ahead)]);
        workers[0].held = Tokens(held);
        let transfer = if lacks(&ask, &workers[0]) > Tokens::ZERO { TRANSFER } else { 0.0 };
        let elsewhere = prefill_price(&ask, &workers[1]) + decode_price(&ask, &workers[0], transfer);
        let here = price(&ask, &workers[0]);
        assert_eq!(elsewhere < here, expected, "here {here:.3} s, elsewhere {elsewhere:.3} s");
    }

    #[test]
    fn a_long_prompt_leaves_a_busy_decode_worker_alone() {
        check(16_000, (40, 0, 0), true);
        check(16_000, (0, 0, 0), false);
    }

    #[test]
    fn a_short_or_cached_prompt_stays() {
        check(100, (4, 0, 0), false);
        check(16_000, (40, 0, 15_900), false);
    }

    #[test]
    fn a_busy_prefill_worker_is_not_waited_for() {
        check(4_000, (40, 0, 0), true);
        check(4_000, (40, 200_000, 0), false);
    }
}

//! Whether a prompt is prefilled by the worker that answers, or by another one that hands its KV cache over.
//!
//! ```text
//! here      = the price of the whole request at the worker that was picked
//! elsewhere = the price of the prompt at a prefill worker
//!           + the transfer of what the decode worker lacks, and what its link has to carry before
//!           + the price of the answer at a decode worker: its queue, its memory, its pace, and no prefill
//! ```
//!
//! All of them are prices of `least_delay`, in seconds of delay to this request and to all others. So a prompt that
//! the decode worker holds stays there, a busy prefill worker or link is avoided, and a decode worker full of answers
//! is spared a long prefill. There is no threshold.

mod deflection;
mod edpp;
mod rule;

use maitre_base::Tokens;

pub use edpp::LateSplits;
pub use rule::{DecodeSide, PrefillSide, Prospect, PublishedRule, SplitRule};

use crate::least_delay::{OTHERS, terms};
use crate::{Ask, Candidate, Fetch, Pace};

/// Weight of a second for which a running answer pauses, relative to one before our own first token. On twenty kinds
/// of traffic and fleets, 1 gave 0.6 % shorter end-to-end times and 17 % longer first tokens. With short prompts
/// beside many answers, 0.2 was up to 9 % worse end to end.
const PAUSED: f64 = 0.5;

/// The delay of serving the whole request at this worker.
///
/// `least_delay` compares workers that all run answers, and counts the paused answers by their square root. Here the
/// prompt may also go to a worker that runs none, so each paused answer counts in full. With the root, mean
/// end-to-end times of short prompts were 3 to 12 % longer than if all of them went to prefill workers.
pub fn whole_price(ask: &Ask, candidate: &Candidate) -> f64 {
    let terms = terms(ask, candidate);
    let requests = f64::from(candidate.requests);
    let uncounted = PAUSED * requests - OTHERS * requests.sqrt();
    (terms.sum() + terms.prefill * uncounted.max(0.0)) / candidate.share
}

/// The delay of computing the prompt at this worker, for another one.
pub fn prefill_price(ask: &Ask, candidate: &Candidate) -> f64 {
    // Engines generate one token with a prefill. A prefill worker runs no answers that the prefill could pause.
    let terms = terms(&Ask { decode: Tokens(1), ..*ask }, candidate);
    (terms.sum() - terms.others) / candidate.share
}

/// How the KV cache of a prompt gets to a decode worker, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Handover {
    /// Until the prefill worker has answered.
    pub prefilled: f64,
    pub transfer: f64,
    /// Until the link has carried all earlier promised tokens.
    pub queue: f64,
}

/// The delay of the answer at this worker: to fetch the KV cache, and to decode.
pub fn decode_price(ask: &Ask, candidate: &Candidate, handover: Handover) -> f64 {
    let pace = Pace { prefill_token: 0.0, prefill_attended: 0.0, ..candidate.pace };
    let terms = terms(ask, &Candidate { pace, fetch: Fetch::default(), ..*candidate });
    // The link and the worker make progress while another worker prefills the prompt.
    let fetch = handover.transfer + (handover.queue - handover.prefilled).max(0.0);
    let wait = (terms.wait - handover.prefilled - fetch).max(0.0);
    (fetch + wait + terms.sum() - terms.wait) / candidate.share
}

/// The tokens whose KV cache the worker lacks.
pub fn lacks(ask: &Ask, candidate: &Candidate) -> Tokens {
    // Chunks that an engine reuses are not part of this prompt's KV cache.
    ask.prefill - candidate.prefix()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    const TRANSFER: f64 = 0.030;

    /// Whether a prompt of this many tokens goes to an idle prefill worker, by requests at the decode worker,
    /// promised prefill at the prefill worker, and tokens held by the decode worker.
    #[track_caller]
    fn check(prompt: u64, (requests, prefill_ahead, held): (u32, u64, u64), expected: bool) {
        let ask = Ask { prefill: Tokens(prompt), decode: Tokens(200), ..Ask::default() };
        let mut workers = fleet(&[(requests, 0), (u32::from(prefill_ahead > 0), prefill_ahead)]);
        workers[0].held = Tokens(held);
        let transfer = if lacks(&ask, &workers[0]) > Tokens::ZERO { TRANSFER } else { 0.0 };
        let handover = Handover { prefilled: 0.0, transfer, queue: 0.0 };
        let elsewhere = prefill_price(&ask, &workers[1]) + decode_price(&ask, &workers[0], handover);
        let here = whole_price(&ask, &workers[0]);
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
    fn reused_chunks_are_no_kv_cache_of_the_prompt() {
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        let mut worker = fleet(&[(0, 0)])[0];
        worker.held = Tokens(780);
        worker.chunks = crate::ReusedChunks { tokens: Tokens(800), saved: Tokens(680) };
        assert_eq!(lacks(&ask, &worker), Tokens(900));
    }

    #[test]
    fn a_busy_link_is_not_waited_for_unless_the_prefill_takes_as_long() {
        let ask = Ask { prefill: Tokens(4_000), decode: Tokens(200), ..Ask::default() };
        let worker = fleet(&[(40, 0)])[0];
        let price =
            |prefilled, queue| decode_price(&ask, &worker, Handover { prefilled, transfer: TRANSFER, queue });
        assert!((price(0.0, 3.0) - price(0.0, 0.0) - 3.0).abs() < 1e-9);
        assert!((price(3.0, 3.0) - price(0.0, 0.0)).abs() < 1e-9);
    }

    #[test]
    fn what_a_decode_worker_prefills_meanwhile_is_not_waited_for() {
        let ask = Ask { prefill: Tokens(4_000), decode: Tokens(200), ..Ask::default() };
        let idle = fleet(&[(1, 0)])[0];
        let busy = Candidate { wait_seconds: 2.0, ..idle };
        let more = |prefilled| {
            let handover = Handover { prefilled, transfer: TRANSFER, queue: 0.0 };
            decode_price(&ask, &busy, handover) - decode_price(&ask, &idle, handover)
        };
        assert!((more(0.0) - (2.0 - TRANSFER)).abs() < 1e-9, "{}", more(0.0));
        assert!(more(2.0).abs() < 1e-9, "{}", more(2.0));
    }

    #[test]
    fn a_busy_prefill_worker_is_not_waited_for() {
        check(4_000, (40, 0, 0), true);
        check(4_000, (40, 200_000, 0), false);
    }
}

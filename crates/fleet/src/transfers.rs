//! How long a decode worker takes to fetch a KV cache from the worker that prefilled it: a base time plus a time for each
//! token that it lacks, learned from when first tokens came after the prefill worker's answer.
//!
//! A worker's link carries one cache after the other, so the tokens before ours count as well. Without them a link of
//! 1 GB/s looks slow only once it is late by seconds, and gets twice what it can carry.
//!
//! One fit for the fleet. Links that differ from pair to pair are not told apart yet.

use std::time::Duration;

use maitre_base::{Instant, Tokens};

use crate::rates::{Lean, LinearFit, LinearRegression, MEMORY, tame};

/// Before any was observed: what was published of pulls between large GPUs over a fast network, 8,000 tokens in 57 ms and
/// 48,000 in 235.
const USUAL: LinearFit = LinearFit { base: 0.020, slope: 4.5e-6 };
/// How many observations that is worth: links differ a hundredfold.
const USUAL_WEIGHT: f64 = 0.5;
/// How long after the last observation all of them are forgotten. Chosen: a trial every few minutes costs little.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// An ordinary prompt.
const SPAN: f64 = 4_000.0;

/// What a worker is to fetch, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetches {
    /// For all requests there that have no token yet.
    pub promised: Tokens,
    /// For those whose prompt is prefilled.
    pub in_transit: Tokens,
}

/// How long a fetch would take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferTime {
    pub own: f64,
    /// Until the link has carried all that was promised before.
    pub queue: f64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfers {
    seen: LinearRegression,
    fit: LinearFit,
    /// Whether any was observed since the last tick, and the last tick with one.
    is_fresh: bool,
    learned_at: Instant,
}

impl Default for Transfers {
    fn default() -> Transfers {
        let (seen, learned_at) = (LinearRegression::default(), Instant::ZERO);
        Transfers { seen, fit: USUAL, is_fresh: false, learned_at }
    }
}

impl Transfers {
    pub(crate) fn seconds(&self, tokens: Tokens) -> f64 {
        self.fit.at(tokens.0 as f64)
    }

    pub(crate) fn time(&self, fetches: Fetches, tokens: Tokens) -> TransferTime {
        TransferTime { own: self.seconds(tokens), queue: self.fit.slope * fetches.promised.0 as f64 }
    }

    /// Forgets what was observed long ago. Where transfers look slow there are none, and only one could show that they are
    /// fast again.
    pub(crate) fn settle(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_fresh) {
            self.learned_at = now;
        } else if now.since(self.learned_at) >= FORGOTTEN {
            *self = Transfers { learned_at: now, ..Transfers::default() };
        }
    }

    /// The tokens are those that came, and those before them on the same link.
    pub(crate) fn learn(&mut self, tokens: Tokens, took: Duration) {
        let tokens = tokens.0 as f64;
        self.seen.learn(MEMORY, tokens, tame(took.as_secs_f64(), self.fit.at(tokens)));
        self.fit = self.seen.fit(Lean { fit: USUAL, weight: USUAL_WEIGHT }, SPAN);
        self.is_fresh = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_is_learned_from_a_few_dozen_transfers() {
        let mut transfers = Transfers::default();
        let truth = |tokens: u64| 0.3 + tokens as f64 * 80e-6;
        for round in 0..60 {
            let tokens = 500 + round % 7 * 1_500;
            transfers.learn(Tokens(tokens), Duration::from_secs_f64(truth(tokens)));
        }
        for tokens in [1_000, 8_000] {
            let (learned, truth) = (transfers.seconds(Tokens(tokens)), truth(tokens));
            assert!((learned / truth - 1.0).abs() < 0.15, "{tokens} tokens: {learned}, in truth {truth}");
        }
    }

    #[test]
    fn what_the_link_carries_before_counts() {
        let fetches = Fetches { promised: Tokens(100_000), in_transit: Tokens::ZERO };
        let time = Transfers::default().time(fetches, Tokens(8_000));
        assert_eq!(time.own, USUAL.at(8_000.0));
        assert_eq!(time.queue, USUAL.at(100_000.0) - USUAL.base);
    }

    #[test]
    fn a_slow_link_gets_another_chance_after_minutes_without_a_transfer() {
        let mut transfers = Transfers::default();
        let usual = transfers.seconds(Tokens(4_000));
        let minute = |it: u64| Instant::from_millis(it * 60_000);
        (0..20).for_each(|_| transfers.learn(Tokens(4_000), Duration::from_secs(9)));
        transfers.settle(minute(1));
        transfers.settle(minute(5));
        assert!(transfers.seconds(Tokens(4_000)) > 1.0);
        transfers.settle(minute(6));
        assert_eq!(transfers.seconds(Tokens(4_000)), usual);
    }

    #[test]
    fn one_stalled_transfer_does_not_end_all_of_them() {
        let mut transfers = Transfers::default();
        (0..20).for_each(|_| transfers.learn(Tokens(2_000), Duration::from_millis(30)));
        transfers.learn(Tokens(2_000), Duration::from_secs(60));
        assert!(transfers.seconds(Tokens(2_000)) < 0.06, "{}", transfers.seconds(Tokens(2_000)));
    }
}

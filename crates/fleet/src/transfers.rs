//! How long a worker takes to receive KV cache, from the worker that prefilled or holds it, or from a store. It is a
//! base time plus a time for each token, learned from the times of first tokens.
//!
//! A worker's link carries one cache after the other, so the tokens before ours count as well. Without them a link of
//! 1 GB/s looks slow only once it is seconds late, and gets twice what it can carry.
//!
//! Links differ from pair to pair: within a rack and across racks. Each pair has its own fit, which begins as the
//! fleet's, scaled by how slow the pair was seen to be. The fleet's fit is the median of the pairs, and the
//! expectation for a pair that was never seen. With a fit through all transfers instead, one slow pair made all
//! others look slow.
//!
//! The fleet's fit has little weight for a pair until other pairs have confirmed it: at first it is only the usual
//! figures. And a pair is fitted when it is read, with what the fleet has learned by then. A pair whose first
//! transfers were short says nothing about long ones. Without these rules, each of sixteen pairs at 1 GB/s got 20,000
//! to 90,000 tokens before it looked slow, and the first tokens of long documents took 2.1 instead of 1.5 s on
//! average.
//!
//! Before anything is known of pulls, the router tries them one at a time. Over a slow link the result of the first
//! comes after seconds, and until then all would look fast: up to nine requests pulled 24,000 tokens each over 1
//! GB/s, where computing takes a third of the time. Handovers are not held back like this: it made RAG over 1 GB/s 6
//! % slower, because decode workers are slow to prefill the requests that wait for the trial.

use std::time::Duration;

use maitre_base::recent::Recent;
use maitre_base::{Instant, Tokens, WorkerId};

use crate::rates::{Lean, LinearFit, LinearRegression, tame};

/// The prior, from published figures for pulls between large GPUs over a fast network: 8,000 tokens in 57 ms and
/// 48,000 in 235.
const USUAL: LinearFit = LinearFit { base: 0.020, slope: 4.5e-6 };
/// How many observations the fleet's fit is worth to a pair: the first value, as for the rates of workers, once other
/// pairs have confirmed it, and the second while it is only the usual figures. Links differ a hundredfold.
const LEAN: f64 = 4.0;
const LEAN_USUAL: f64 = 0.5;
/// The weight that a transfer keeps after the next one of its pair: half after 14. A pair has fewer transfers than a
/// worker has first tokens.
const PAIR_MEMORY: f64 = 0.95;
/// A pair with less weight than `KNOWN` may be slower than expected by a factor of up to `UNKNOWN`: links differ a
/// hundredfold. With 16, a pull of 24,000 tokens over 1 GB/s was still expected to take 2 s after two that had taken
/// 6.
const KNOWN: f64 = 2.0;
const UNKNOWN: f64 = 100.0;
/// How long after its last transfer a pair is forgotten. Chosen: a trial every few minutes costs little.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// An ordinary prompt.
const SPAN: f64 = 4_000.0;
/// How many pairs are remembered; the least recently seen leave first. All pairs of 64 workers, half a megabyte.
const PAIRS_MAX: usize = 4_096;
/// Transfers that the router tries one at a time. Chosen: once two pairs disagree, the fleet drops the usual figures.
const TRIALS: u32 = 2;
/// With more pairs the median is updated by ticks alone.
const FEW_PAIRS: usize = 128;

/// Where KV cache comes from, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub from: KvOrigin,
    pub to: WorkerId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvOrigin {
    Worker(WorkerId),
    /// A store, by its number.
    Store(u32),
}

impl Way {
    pub fn between(from: WorkerId, to: WorkerId) -> Way {
        Way { from: KvOrigin::Worker(from), to }
    }

    /// All members of a store share one fit. With a fit for each, agents over a slow store waited twice as long for
    /// first tokens.
    fn key(self) -> u64 {
        match self.from {
            KvOrigin::Worker(from) => (u64::from(from.0) + 1) << 32 | u64::from(self.to.0),
            KvOrigin::Store(store) => store.into(),
        }
    }

    fn touches(self, worker: WorkerId) -> bool {
        match self.from {
            KvOrigin::Worker(from) => from == worker || self.to == worker,
            KvOrigin::Store(_) => false,
        }
    }
}

/// What a worker still has to fetch, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetches {
    /// For all requests there that have no first token yet.
    pub promised: Tokens,
    /// For those whose prompt has been prefilled.
    pub in_transit: Tokens,
}

/// How long a fetch would take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferTime {
    pub own: f64,
    /// Until the link has carried all earlier promised tokens.
    pub queue: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Transfers {
    /// The fleet's.
    fit: LinearFit,
    pairs: Recent<Pair>,
    /// Transfers that have ended, up to the number of trials, and transfers under way. Only pulls are counted.
    tried: u32,
    under_way: u32,
    /// The time of the last tick.
    now: Instant,
}

/// The observations of one pair.
#[derive(Clone, Copy, Debug)]
struct Pair {
    way: Way,
    seen: LinearRegression,
    /// The fit as of its last transfer.
    fit: LinearFit,
    learned_at: Instant,
}

impl Default for Transfers {
    fn default() -> Transfers {
        let pairs = Recent::new(PAIRS_MAX);
        Transfers { fit: USUAL, pairs, tried: 0, under_way: 0, now: Instant::ZERO }
    }
}

impl Transfers {
    pub(crate) fn time(&self, way: Way, fetches: Fetches, tokens: Tokens) -> TransferTime {
        let fit = self.pairs.peek(way.key()).map_or(self.fit, |it| self.fit_of(&it.seen));
        TransferTime { own: fit.at(tokens.0 as f64), queue: fit.slope * fetches.promised.0 as f64 }
    }

    /// Forgets old observations. If transfers look slow the router makes none, and only a transfer could show that
    /// they are fast again.
    pub(crate) fn settle(&mut self, now: Instant) {
        self.now = now;
        let knew_any = !self.pairs.is_empty();
        self.pairs.retain(|it| now.since(it.learned_at) < FORGOTTEN);
        if knew_any && self.pairs.is_empty() {
            self.tried = 0;
        }
        self.fit = self.median();
    }

    /// Whether a transfer is under way whose result the router should wait for before the next.
    pub(crate) fn awaits_trial(&self) -> bool {
        self.tried < TRIALS && self.under_way > 0
    }

    pub(crate) fn begin(&mut self) {
        self.under_way += 1;
    }

    /// A transfer that showed nothing counts as well: its client may have disconnected.
    pub(crate) fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.tried = (self.tried + 1).min(TRIALS);
    }

    /// The router gave up on a transfer after this time.
    pub(crate) fn learn_at_least(&mut self, way: Way, tokens: Tokens, took: Duration) {
        let fit = self.pairs.peek(way.key()).map_or(self.fit, |it| self.fit_of(&it.seen));
        if took.as_secs_f64() > fit.at(tokens.0 as f64) {
            self.learn(way, tokens, took);
        }
    }

    /// A worker has left. Another worker may get its number.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.pairs.retain(|it| !it.way.touches(worker));
    }

    /// `tokens` includes the tokens before them on the same link.
    pub(crate) fn learn(&mut self, way: Way, tokens: Tokens, took: Duration) {
        let (tokens, took, learned_at) = (tokens.0 as f64, took.as_secs_f64(), self.now);
        let new = Pair { way, seen: LinearRegression::default(), fit: self.fit, learned_at };
        let mut pair = self.pairs.peek(way.key()).unwrap_or(new);
        let expected = self.fit_of(&pair.seen).at(tokens);
        let seconds = match pair.seen.weight < KNOWN {
            true => tame(took, expected).max(took.min(UNKNOWN * expected)),
            false => tame(took, expected),
        };
        pair.seen.learn(PAIR_MEMORY, tokens, seconds);
        pair.fit = self.fit_of(&pair.seen);
        pair.learned_at = learned_at;
        self.pairs.put(way.key(), pair);
        if self.pairs.len() <= FEW_PAIRS {
            self.fit = self.median();
        }
    }

    /// The fit of a pair with these observations.
    fn fit_of(&self, seen: &LinearRegression) -> LinearFit {
        let others = self.pairs.len().saturating_sub(1) as f64;
        let weight = (LEAN_USUAL + others).min(LEAN);
        let fit = seen.slowed(self.fit, weight * self.fit.at(SPAN));
        seen.fit(Lean { fit, weight }, SPAN)
    }

    /// The median of the pairs, the faster of two. The usual figures count as a pair, so that one stalled transfer
    /// does not decide for a fleet of which nothing else is known.
    fn median(&self) -> LinearFit {
        let by_time = |fit: &LinearFit| (fit.at(SPAN), fit.base);
        let mut fits: Vec<LinearFit> = self.pairs.iter().map(|it| it.1.fit).chain([USUAL]).collect();
        let middle = (fits.len() - 1) / 2;
        let (_, median, _) = fits.select_nth_unstable_by(middle, |one, other| {
            let (one, other) = (by_time(one), by_time(other));
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        *median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: Way = Way { from: KvOrigin::Worker(WorkerId(0)), to: WorkerId(1) };

    fn way(from: u32, to: u32) -> Way {
        Way::between(WorkerId(from), WorkerId(to))
    }

    impl Transfers {
        fn seconds(&self, way: Way, tokens: u64) -> f64 {
            self.time(way, Fetches::default(), Tokens(tokens)).own
        }
    }

    /// Feeds transfers of different lengths that take `base` plus `slope` seconds per token.
    fn teach(transfers: &mut Transfers, way: Way, rounds: u64, (base, slope): (f64, f64)) {
        for round in 0..rounds {
            let tokens = 500 + round % 7 * 1_500;
            let took = Duration::from_secs_f64(base + tokens as f64 * slope);
            transfers.learn(way, Tokens(tokens), took);
        }
    }

    const FAST: (f64, f64) = (0.03, 5e-6);
    const SLOW: (f64, f64) = (0.3, 80e-6);

    #[test]
    fn a_slow_link_is_learned_from_a_few_dozen_transfers() {
        let mut transfers = Transfers::default();
        teach(&mut transfers, WAY, 60, SLOW);
        for tokens in [1_000, 8_000] {
            let (learned, truth) = (transfers.seconds(WAY, tokens), SLOW.0 + tokens as f64 * SLOW.1);
            assert!((learned / truth - 1.0).abs() < 0.15, "{tokens} tokens: {learned}, in truth {truth}");
        }
    }

    #[test]
    fn a_slow_pair_does_not_spoil_the_fast_ones() {
        let mut transfers = Transfers::default();
        let slow = way(9, 1);
        for _ in 0..20 {
            (0..4).for_each(|from| teach(&mut transfers, way(from, 1), 2, FAST));
            teach(&mut transfers, slow, 2, SLOW);
        }
        let truth = |(base, slope): (f64, f64)| base + 8_000.0 * slope;
        for (pair, truth, why) in [
            (way(0, 1), truth(FAST), "a fast pair"),
            (way(7, 1), truth(FAST), "a pair that was never seen"),
            (slow, truth(SLOW), "the slow pair"),
        ] {
            let learned = transfers.seconds(pair, 8_000);
            assert!((learned / truth - 1.0).abs() < 0.25, "{why}: {learned}, in truth {truth}");
        }
    }

    #[test]
    fn where_all_pairs_are_slow_a_new_one_is_expected_to_be() {
        let mut transfers = Transfers::default();
        (0..16).for_each(|it| teach(&mut transfers, way(it, 20 + it), 4, SLOW));
        let learned = transfers.seconds(way(3, 99), 8_000);
        assert!(learned > 0.5 * (SLOW.0 + 8_000.0 * SLOW.1), "{learned}");
    }

    #[test]
    fn a_pair_that_carried_little_follows_the_others() {
        let mut transfers = Transfers::default();
        let slow = |tokens: u64| SLOW.0 + tokens as f64 * SLOW.1;
        let mut learn =
            |way, tokens| transfers.learn(way, Tokens(tokens), Duration::from_secs_f64(slow(tokens)));
        learn(WAY, 500);
        (2..5).for_each(|from| [20_000, 2_000, 20_000].into_iter().for_each(|it| learn(way(from, 1), it)));
        let (learned, truth) = (transfers.seconds(WAY, 20_000), slow(20_000));
        assert!((learned / truth - 1.0).abs() < 0.3, "{learned}, in truth {truth}");
    }

    #[test]
    fn the_first_transfer_counts_more_than_the_usual_figures() {
        let mut transfers = Transfers::default();
        teach(&mut transfers, WAY, 1, SLOW);
        let (learned, truth) = (transfers.seconds(WAY, 500), SLOW.0 + 500.0 * SLOW.1);
        assert!(learned > 0.8 * truth, "{learned}, in truth {truth}");
    }

    #[test]
    fn a_fleet_whose_links_all_turn_slow_is_learned_pair_by_pair() {
        let mut transfers = Transfers::default();
        (0..8).for_each(|it| teach(&mut transfers, way(it, 20), 20, FAST));
        teach(&mut transfers, way(3, 20), 30, SLOW);
        let learned = transfers.seconds(way(3, 20), 8_000);
        assert!(learned > 0.6, "{learned}");
    }

    #[test]
    fn the_number_of_a_worker_that_left_begins_anew() {
        let mut transfers = Transfers::default();
        teach(&mut transfers, way(0, 1), 20, FAST);
        teach(&mut transfers, way(5, 1), 20, SLOW);
        teach(&mut transfers, way(1, 5), 20, SLOW);
        transfers.forget(WorkerId(5));
        for pair in [way(5, 1), way(1, 5)] {
            assert_eq!(transfers.seconds(pair, 8_000), transfers.seconds(way(7, 7), 8_000));
        }
    }

    #[test]
    fn pairs_are_bounded() {
        let mut transfers = Transfers::default();
        (0..3 * PAIRS_MAX as u32).for_each(|it| teach(&mut transfers, way(it, it + 1), 1, FAST));
        assert!(transfers.pairs.len() <= PAIRS_MAX);
    }

    #[test]
    fn what_the_link_carries_before_counts() {
        let fetches = Fetches { promised: Tokens(100_000), in_transit: Tokens::ZERO };
        let time = Transfers::default().time(WAY, fetches, Tokens(8_000));
        assert_eq!(time.own, USUAL.at(8_000.0));
        assert_eq!(time.queue, USUAL.at(100_000.0) - USUAL.base);
    }

    #[test]
    fn a_slow_link_gets_another_chance_after_minutes_without_a_transfer() {
        let mut transfers = Transfers::default();
        let usual = transfers.seconds(WAY, 4_000);
        let minute = |it: u64| Instant::from_millis(it * 60_000);
        (0..20).for_each(|_| transfers.learn(WAY, Tokens(4_000), Duration::from_secs(9)));
        transfers.settle(minute(1));
        transfers.settle(minute(4));
        assert!(transfers.seconds(WAY, 4_000) > 1.0);
        transfers.settle(minute(6));
        assert_eq!(transfers.seconds(WAY, 4_000), usual);
    }

    #[test]
    fn a_slow_pair_gets_another_chance_while_others_go_on() {
        let mut transfers = Transfers::default();
        teach(&mut transfers, way(9, 1), 20, SLOW);
        for minute in 1..7 {
            teach(&mut transfers, WAY, 20, FAST);
            transfers.settle(Instant::from_millis(minute * 60_000));
        }
        assert!(transfers.seconds(way(9, 1), 8_000) < 0.1, "{}", transfers.seconds(way(9, 1), 8_000));
    }

    #[test]
    fn one_stalled_transfer_does_not_end_all_of_them() {
        let mut transfers = Transfers::default();
        (0..20).for_each(|_| transfers.learn(WAY, Tokens(2_000), Duration::from_millis(30)));
        transfers.learn(WAY, Tokens(2_000), Duration::from_secs(60));
        assert!(transfers.seconds(WAY, 2_000) < 0.06, "{}", transfers.seconds(WAY, 2_000));
    }
}

//! Seats a request where it delays everyone least, itself included. The default.
//!
//! A cached prefix saves prefill, a queue in front of it gives the saving back, and a crowd streams slower.
//! These can be compared in one unit only, seconds, so every worker is priced in seconds of delay and the
//! smallest price wins. A warm cache makes a price small, a hot worker loses by arithmetic, and a popular
//! prefix moves to a second worker by itself once waiting for the first costs more than computing it again.
//! There is no threshold to tune.
//!
//! ```text
//! price =             wait + floor + prefill     until the first token: what was promised before, then ours
//!       + BEHIND ·    prefill · prefilling       those who come while we stand in line: as many as stood before us
//!       + PUSHED ·    prefill · full             what it pushes out of a full cache, to be computed again
//!       + OTHERS ·    prefill · √requests        what our prefill takes from those who stream there
//!       + OTHERS ·    steps · step_request · √requests    and our place in every step they share with us
//!       + ANSWER ·    steps · step               our own answer, at the pace of that crowd
//!       +             room                       memory: the wait for KV blocks, and what ours keep from others
//!       +             adapter                    the wait for the adapter, if it must be loaded
//! ```
//!
//! The weights were found on fifteen workloads in virtual time, and are the same for all (decision 012). Greed for
//! the own first token alone is worse for everybody's, because what is computed twice is queued for, and held,
//! twice. Seconds that a crowd loses count by its root: a pause matters less to an answer that the crowd makes
//! long anyway, and with the whole crowd one weight could not suit both six long contexts and forty short ones.
//!
//! What other routers have promised enters as what we have, once they have told it; in the moment before two of them
//! may pick the same worker.
//! Where a signal is missing its term is the same for everybody, and least work is what remains.

use maitre_base::{AdapterSlot, KvRoom, Rng, Tokens};

use crate::choose::Equals;
use crate::{Ask, Candidate, Pick, Why};

/// What a second before the first token of somebody who will come weighs against one before our own.
const BEHIND: f64 = 0.35;
/// What a token that is pushed out of a cache costs: to be asked for again, on average, several times.
const PUSHED: f64 = 4.0;
/// What a second of answers that already stream weighs, everybody else's and our own.
const OTHERS: f64 = 0.8;
const ANSWER: f64 = 0.05;
/// Loading a token's KV from slower memory, beside computing it: 128 KiB over PCIe take 5 to 10 µs, a
/// token's prefill 15 to 100.
const LOAD: f64 = 0.25;
/// From here on a cache is pressed: preemptions begin before the last block is taken.
const PRESSED: f64 = 0.8;
/// What the last block costs, and what waiting for the whole cache to turn over costs, in our answers' time.
const PRESS: f64 = 0.2;
const MISSING: f64 = 0.3;
/// What a part of the cache that we hold for the time of our answer costs each request there once it is full.
const CROWD: f64 = 0.3;
/// Loading an adapter from host memory; public measurements give 0.05 to 0.5 s for ranks of 8 to 64.
const ADAPTER_SECONDS: f64 = 0.2;
/// Prices this near to the best are equal: no rate is known better, and nobody feels two milliseconds.
const NEAR: f64 = 1.02;
const NEAR_SECONDS: f64 = 0.002;

/// `prices` is scratch, so that every worker is priced once: to price them twice, for the best and for those
/// near it, was a fifth of a decision among a thousand.
pub fn pick(ask: &Ask, candidates: &[Candidate], prices: &mut Vec<f64>, rng: &mut Rng) -> Option<Pick> {
    prices.clear();
    prices.extend(candidates.iter().map(|it| price(ask, it)));
    let best = prices.iter().copied().min_by(f64::total_cmp)?;
    let limit = best * NEAR + NEAR_SECONDS;
    // Of equals the one with the fewest requests, and then the dice, or what routers agree on.
    let mut chosen: Option<usize> = None;
    let mut equals = 0;
    for (index, (candidate, price)) in candidates.iter().zip(prices).enumerate() {
        if *price > limit {
            continue;
        }
        let fewest = chosen.map_or(u32::MAX, |it| candidates[it].requests);
        if candidate.requests < fewest {
            (chosen, equals) = (Some(index), 1);
        } else if candidate.requests == fewest {
            equals += 1;
            let one = chosen.map_or(candidate, |it| &candidates[it]);
            let both = Equals { one, other: candidate, met: equals };
            if both.prefer_other(ask, rng) {
                chosen = Some(index);
            }
        }
    }
    Some(Pick::priced(candidates, chosen?, Why::LeastDelay))
}

/// What a price is made of: seconds, weighed as they enter it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayTerms {
    /// Until what was promised before is prefilled.
    pub wait: f64,
    /// What a first token takes however short the prompt.
    pub floor: f64,
    /// What is not cached of the prompt.
    pub prefill: f64,
    /// What those lose who will come while we stand in line there.
    pub behind: f64,
    /// What is pushed out of a full cache, to be computed again.
    pub pushed: f64,
    /// What those lose who stream there.
    pub others: f64,
    /// Our own answer, at the pace of that crowd.
    pub answer: f64,
    /// The wait for KV blocks, and what ours keep from others.
    pub room: f64,
    /// The wait for the adapter.
    pub adapter: f64,
}

impl DelayTerms {
    pub fn sum(&self) -> f64 {
        let weighed = self.behind + self.pushed + self.others + self.answer;
        (self.wait + self.floor + self.prefill) + weighed + self.room + self.adapter
    }
}

/// Seconds to the first token, as the price sees it: the terms `wait`, `floor`, `prefill` and `adapter`.
#[inline]
pub fn first_token(ask: &Ask, candidate: &Candidate) -> f64 {
    let pace = &candidate.pace;
    let answer = || ask.decode.0 as f64 * (pace.step + pace.step_request * f64::from(candidate.requests));
    candidate.wait_seconds + pace.floor + compute(ask, candidate).seconds + adapter(candidate, answer)
}

/// What it costs everyone, in seconds, to seat the request there.
pub fn price(ask: &Ask, candidate: &Candidate) -> f64 {
    terms(ask, candidate).sum() / candidate.share
}

/// The same, term by term. The price is their sum, divided by the worker's share.
#[inline]
pub fn terms(ask: &Ask, candidate: &Candidate) -> DelayTerms {
    let pace = &candidate.pace;
    let requests = f64::from(candidate.requests);
    let steps = ask.decode.0 as f64;
    let step = pace.step + pace.step_request * requests;

    let Computed { tokens, seconds: prefill } = compute(ask, candidate);
    let answer = steps * step;
    let held = Hold { computed: tokens, answer: ask.decode, seconds: answer };
    DelayTerms {
        wait: candidate.wait_seconds,
        floor: pace.floor,
        prefill,
        behind: BEHIND * (prefill * f64::from(candidate.promised.prefilling)),
        pushed: PUSHED * (prefill * candidate.room.map_or(0.0, |it| full(it, candidate.holds))),
        others: OTHERS * (requests.sqrt() * (prefill + steps * pace.step_request)),
        answer: ANSWER * answer,
        room: candidate.room.map_or(0.0, |it| room(it, held, requests)),
        adapter: adapter(candidate, || answer),
    }
}

/// What is not there of the prompt, and how long it takes to get there.
struct Computed {
    tokens: Tokens,
    seconds: f64,
}

#[inline]
fn compute(ask: &Ask, candidate: &Candidate) -> Computed {
    // The index may know more than this prompt has (a longer sibling); never count below zero.
    let below = candidate.held_below.0.min(ask.prefill.0.saturating_sub(candidate.held.0));
    let computed = ask.prefill.0.saturating_sub(candidate.held.0 + below);
    let seconds = candidate.pace.prefill_token * (computed as f64 + LOAD * below as f64);
    Computed { tokens: Tokens(computed + below), seconds }
}

/// The wait for the adapter, where an answer takes so long.
#[inline]
fn adapter(candidate: &Candidate, answer: impl Fn() -> f64) -> f64 {
    match candidate.adapter {
        AdapterSlot::Ready => 0.0,
        AdapterSlot::Loads => ADAPTER_SECONDS,
        AdapterSlot::Waits => ADAPTER_SECONDS + answer(),
    }
}

/// The part of a cache that holds something. What is computed there takes the place of something else.
pub(crate) fn full(room: KvRoom, holds: Tokens) -> f64 {
    (holds.0 as f64 / room.capacity.0.max(1) as f64).min(1.0)
}

/// What a request will hold of a cache, and for how long.
#[derive(Clone, Copy)]
struct Hold {
    computed: Tokens,
    answer: Tokens,
    seconds: f64,
}

/// What memory costs. A worker whose cache is full of running requests frees it at the pace at which they end, all
/// of it in about the time of one answer: so long we wait for the part that is missing. And what we compute
/// there is held until our answer ends, which shortens what all others have; what is held there already
/// costs nothing more. So a new prefix goes where there is memory, and an old one stays where it is.
fn room(room: KvRoom, held: Hold, requests: f64) -> f64 {
    let capacity = room.capacity.0.max(1) as f64;
    let filled = (room.pinned + held.computed + held.answer).0 as f64 / capacity;
    let pressed = ((filled - PRESSED) / (1.0 - PRESSED)).clamp(0.0, 1.0);
    let missing = (filled - 1.0).max(0.0);
    let taken = held.computed.0 as f64 / capacity * (room.pinned.0 as f64 / capacity);
    held.seconds * (PRESS * pressed + MISSING * missing + CROWD * taken * requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::{PACE, fleet};
    use proptest::prelude::{prop_assert, proptest};

    /// Each row is `(requests, promised prefill, held)`; the prompt has 1,000 tokens and a short answer.
    #[track_caller]
    fn check(rows: &[(u32, u64, u64)], expected: (usize, Why)) {
        let mut candidates = fleet(&rows.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            candidate.held = Tokens(row.2);
        }
        let pick = pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap();
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    fn ask() -> Ask {
        Ask { prefill: Tokens(1_000), decode: Tokens(10), ..Ask::default() }
    }

    #[test]
    fn the_longest_prefix_wins_when_queues_are_equal() {
        check(&[(0, 0, 200), (0, 0, 900)], (1, Why::Cached));
    }

    #[test]
    fn cache_loses_once_its_queue_costs_more_than_it_saves() {
        check(&[(0, 800, 900), (0, 0, 0)], (0, Why::Cached));
        check(&[(0, 1_000, 900), (0, 0, 0)], (1, Why::CacheTooBusy));
    }

    #[test]
    fn a_crowd_that_streams_is_not_disturbed_for_a_little_cache() {
        check(&[(50, 0, 100), (0, 0, 0)], (1, Why::CacheTooBusy));
    }

    #[test]
    fn a_cold_prompt_goes_to_the_shortest_queue() {
        check(&[(1, 5_000, 0), (1, 400, 0)], (1, Why::LeastDelay));
    }

    #[test]
    fn near_equals_go_to_the_fewest_requests() {
        check(&[(2, 0, 999), (1, 0, 999), (3, 0, 1_000)], (1, Why::CacheTooBusy));
    }

    #[test]
    fn a_longer_sibling_in_the_index_does_not_underflow() {
        check(&[(0, 0, 5_000), (0, 0, 0)], (0, Why::Cached));
    }

    #[test]
    fn a_slow_worker_is_priced_as_slow() {
        let mut candidates = fleet(&[(0, 0), (0, 500)]);
        candidates[0].pace.prefill_token *= 3.0;
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
    }

    #[test]
    fn slower_memory_is_better_than_none_and_worse_than_fast() {
        let mut candidates = fleet(&[(0, 0), (0, 0), (0, 0)]);
        candidates[1].held_below = Tokens(1_000);
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
        candidates[2].held = Tokens(900);
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 2);
    }

    #[test]
    fn a_full_cache_makes_newcomers_wait() {
        let ask = Ask { decode: Tokens(1_000), ..ask() };
        let mut candidates = fleet(&[(0, 0), (0, 1_000)]);
        candidates[0].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(9_500) });
        candidates[1].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(1_000) });
        assert_eq!(pick(&ask, &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
        // Below four fifths nobody is pressed.
        candidates[0].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(6_000) });
        assert_eq!(pick(&ask, &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 0);
    }

    #[test]
    fn an_adapter_that_is_there_is_worth_a_short_wait() {
        let mut candidates = fleet(&[(0, 0), (0, 1_000)]);
        candidates[0].adapter = AdapterSlot::Loads;
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
        candidates[1].wait_seconds = 1.0;
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 0);
    }

    #[test]
    fn the_terms_are_the_price_and_four_of_them_the_first_token() {
        let mut candidates = fleet(&[(0, 0), (7, 3_000), (30, 90_000)]);
        candidates[1].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(9_500) });
        (candidates[1].held, candidates[1].held_below, candidates[1].holds) =
            (Tokens(300), Tokens(200), Tokens(9_000));
        (candidates[2].adapter, candidates[2].share, candidates[2].promised.prefilling) =
            (AdapterSlot::Waits, 0.25, 3);
        for it in &candidates {
            let terms = terms(&ask(), it);
            assert!((terms.sum() / it.share - price(&ask(), it)).abs() < 1e-12, "{terms:?}");
            let first = terms.wait + terms.floor + terms.prefill + terms.adapter;
            assert!((first - first_token(&ask(), it)).abs() < 1e-12, "{terms:?}");
        }
    }

    proptest! {
        /// More work, more company or less cache never make a worker cheaper.
        #[test]
        fn prices_move_the_right_way(
            requests in 0u32..200, prefill in 0u64..100_000, held in 0u64..1_000, pinned in 0u64..20_000,
        ) {
            let mut candidate = fleet(&[(requests, prefill)])[0];
            candidate.held = Tokens(held);
            candidate.room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(pinned) });
            let before = price(&ask(), &candidate);
            prop_assert!(before.is_finite() && before >= 0.0);
            let worse = [
                Candidate { requests: requests + 1, ..candidate },
                Candidate { wait_seconds: candidate.wait_seconds + 0.1, ..candidate },
                Candidate { held: Tokens(held / 2), ..candidate },
                Candidate { room: Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(pinned + 500) }), ..candidate },
                Candidate { pace: crate::Pace { prefill_token: PACE.prefill_token * 2.0, ..PACE }, ..candidate },
                Candidate { share: 0.5, ..candidate },
            ];
            for it in worse {
                prop_assert!(price(&ask(), &it) >= before, "{:?}", it);
            }
        }
    }
}

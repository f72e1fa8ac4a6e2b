//! Places a request where it adds the least delay, to itself and to all others. The default.
//!
//! A cached prefix saves prefill, a queue in front of it gives the saving back, and a busy worker decodes
//! slower. All three are measured in seconds, so every worker is priced in seconds of delay and the lowest
//! price wins. A cached prefix makes the price small, a busy worker loses by arithmetic, and a popular prefix
//! moves to a second worker once waiting for the first costs more than computing it again. There is no
//! threshold to tune.
//!
//! ```text
//! price =             wait + floor + prefill     time to first token: promised prefill first, then ours
//!       +             fetch                      until what another worker or a store holds of the prompt is here
//!       + BEHIND ·    prefill · prefilling       delay of requests that queue behind us: as many as are ahead of us
//!       + PUSHED ·    prefill · full             blocks evicted from a full cache, to be computed again; those that a pull
//!                                                evicts, too
//!       + OTHERS ·    prefill · √requests        pause of running answers during our prefill
//!       + OTHERS ·    steps · step_request · √requests    and our part of every step we share with them
//!       + ANSWER ·    steps · step · crowding    our own answer, at that worker's pace; more if the worker is crowded
//!       +             room                       memory: the wait for KV blocks, and blocks we keep from others
//!       +             adapter                    the wait for the adapter, if it must be loaded
//! ```
//!
//! The weights were found on fifteen workloads in virtual time, and are the same for all (decision 012). Minimising
//! only the own first token is worse for all first tokens: a prefix that is computed twice takes queue time and
//! memory twice. Seconds lost by running requests count by the square root of their number. A pause matters less to
//! an answer that takes long anyway, and with a linear count no single weight suits both six long contexts and forty
//! short ones.
//!
//! What other routers have promised counts like our own, once they have reported it; before that two routers may pick
//! the same worker. If a signal is missing its term is the same for every worker, and the rule becomes least work.

use maitre_base::{AdapterSlot, KvRoom, PrefillWork, Rng, Tokens};

use crate::choose::Equals;
use crate::{Ask, Candidate, Fetch, Pace, Pick, Why};

/// Weight of a second before a later request's first token, relative to one before our own.
const BEHIND: f64 = 0.35;
/// Cost of an evicted token, which is on average requested again several times.
const PUSHED: f64 = 4.0;
/// Cost of a token that a pulled token evicts, relative to `PUSHED`: another worker may still have it. We tried 0,
/// 0.1, 0.2, 0.4 and 0.8. Near saturation the mean TTFT of agents was 2.6, 1.5, 1.16, 0.94 and 0.90 times that
/// without pulls, and below saturation 0.96, 0.84, 0.88, 0.92 and 0.96 times (twelve seeds).
const PUSHED_BY_PULL: f64 = 0.4;
/// How many more requests use a copy, for each request in flight that shares its prefix. We tried 0, 0.3 and 1: agents
/// with 12 system prompts gained 22, 22 and 23 %, prefix groups at 16 requests/s 24, 26 and 26 %, and 60 kinds of agents
/// past saturation lose with 1.
const SHARED: f64 = 0.3;
/// Weight of a second of running answers, those of others and our own.
pub(crate) const OTHERS: f64 = 0.8;
const ANSWER: f64 = 0.05;
/// Loading a token's KV from a slower tier, relative to computing it: 128 KiB over PCIe take 5 to 10 µs, a
/// token's prefill 15 to 100.
const LOAD: f64 = 0.25;
/// Usage from which a cache is under pressure: preemptions begin before the last block is taken.
const PRESSED: f64 = 0.8;
/// Cost of the last block, and of waiting until the whole cache has turned over, as a multiple of our answer's time.
const PRESS: f64 = 0.2;
const MISSING: f64 = 0.3;
/// A worker with more than this many times the requests of the others is crowded. With 2, conversations past saturation
/// moved too: their TTFT was 8 % longer.
const CROWDED: f64 = 3.0;
/// Steps count as at most this many times longer, whatever the learned rates.
const CROWDING_MAX: f64 = 16.0;
/// Cost, per request already on a full worker, of the KV blocks we occupy while we decode.
const CROWD: f64 = 0.3;
/// Loading an adapter from host memory; public measurements give 0.05 to 0.5 s for ranks of 8 to 64.
const ADAPTER_SECONDS: f64 = 0.2;
/// Prices this close to the best count as equal: no rate is known better, and two milliseconds are not
/// noticeable.
const NEAR: f64 = 1.02;
const NEAR_SECONDS: f64 = 0.002;
/// The same for idle workers that hold equally much: their prices differ only by their rates, which a few dozen first
/// tokens give to within a tenth. Otherwise the worker that once looked a little faster would get everything.
const NEAR_IDLE: f64 = 1.1;

/// `prices` is scratch space, so that every worker is priced once. Pricing twice, for the best and for those near it,
/// took a fifth of a decision among a thousand workers.
pub fn pick(ask: &Ask, candidates: &[Candidate], prices: &mut Vec<f64>, rng: &mut Rng) -> Option<Pick> {
    prices.clear();
    prices.extend(candidates.iter().map(|it| price(ask, it)));
    pick_priced(ask, candidates, prices, rng)
}

/// The same, given the price of each candidate.
pub fn pick_priced(ask: &Ask, candidates: &[Candidate], prices: &[f64], rng: &mut Rng) -> Option<Pick> {
    let (cheapest, best) = candidates
        .iter()
        .zip(prices)
        .map(|(it, &price)| (it, price))
        .min_by(|one, other| one.1.total_cmp(&other.1))?;
    let limit = best * NEAR + NEAR_SECONDS;
    let idle_limit = if cheapest.requests == 0 { limit.max(best * NEAR_IDLE) } else { limit };
    let is_near = |it: &Candidate, price: f64| {
        price <= limit || price <= idle_limit && it.requests == 0 && it.held == cheapest.held
    };
    // If equal, the one with the fewest requests, then the tie-breaker.
    let mut chosen: Option<usize> = None;
    let mut equals = 0;
    for (index, (candidate, price)) in candidates.iter().zip(prices).enumerate() {
        if !is_near(candidate, *price) {
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

/// The terms of a price, in seconds and weighted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayTerms {
    /// Until the promised prefill is done.
    pub wait: f64,
    /// Time to first token of an empty prompt.
    pub floor: f64,
    /// Prefill of the uncached part.
    pub prefill: f64,
    /// Fetching what others hold.
    pub fetch: f64,
    /// Delay of later requests that queue behind this one.
    pub behind: f64,
    /// Recomputing what is evicted from a full cache.
    pub pushed: f64,
    /// Delay of the answers running there.
    pub others: f64,
    /// Our own answer, at that worker's pace; more if it has far more requests than the others.
    pub answer: f64,
    /// The wait for KV blocks, and the blocks we keep from others.
    pub room: f64,
    /// The wait for the adapter.
    pub adapter: f64,
}

impl DelayTerms {
    pub fn sum(&self) -> f64 {
        let weighed = self.behind + self.pushed + self.others + self.answer;
        (self.wait + self.floor + self.prefill + self.fetch) + weighed + self.room + self.adapter
    }
}

/// Whether fetching these tokens, after those that the worker holds, takes less time than computing them there. A
/// fetch delays no other request, but that is no reason to accept a longer one: near saturation, links slower than
/// the GPUs would be used and get queues of their own.
pub fn pays((fetch, held): (Fetch, Tokens), pace: &Pace) -> bool {
    fetch.seconds < pace.prefill(PrefillWork::after(held, fetch.tokens))
}

/// Seconds to the first token as the price sees it: the terms `wait`, `floor`, `prefill`, `fetch` and `adapter`.
#[inline]
pub fn first_token(ask: &Ask, candidate: &Candidate) -> f64 {
    let pace = &candidate.pace;
    let answer = || ask.decode.0 as f64 * (pace.step + pace.step_request * f64::from(candidate.requests));
    let Computed { seconds, fetch, .. } = compute(ask, candidate);
    candidate.wait_seconds + pace.floor + seconds + fetch + adapter(candidate, answer)
}

/// The delay, in seconds, of placing the request there.
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

    let Computed { tokens, seconds: prefill, fetch } = compute(ask, candidate);
    let answer = steps * step;
    let held = Hold { computed: tokens, answer: ask.decode, seconds: answer };
    DelayTerms {
        wait: candidate.wait_seconds,
        floor: pace.floor,
        prefill,
        fetch,
        behind: BEHIND * (prefill * f64::from(candidate.promised.prefilling)),
        pushed: PUSHED
            * ((prefill + pulled(candidate)) * candidate.room.map_or(0.0, |it| full(it, candidate.holds))),
        others: OTHERS * (requests.sqrt() * (prefill + steps * pace.step_request)),
        answer: ANSWER * answer * crowding(pace, requests, candidate.requests_elsewhere),
        room: candidate.room.map_or(0.0, |it| room(it, held, requests)) + candidate.displaced_seconds,
        adapter: adapter(candidate, || answer),
    }
}

/// The factor by which our answer's time counts more if a worker has far more requests than the others. It is how many times
/// longer its steps take than with `CROWDED` times as many requests as the others have, squared.
///
/// A crowd that shares a long prefix which no other worker has does not disperse by itself. For each single request it is cheaper
/// to join the crowd than to compute the prefix again. One worker of eight had 405 requests, and the others ten each. With this
/// factor another worker gets the prefix too, and the crowd splits. We tried to count the steps of all busy workers more instead,
/// and dropped it: it moves the contexts of agents, which no other request shares.
#[inline]
fn crowding(pace: &Pace, requests: f64, elsewhere: f64) -> f64 {
    let step = |requests: f64| pace.step + pace.step_request * requests;
    let longer = step(requests) / step(CROWDED * elsewhere);
    if longer > 1.0 { longer.min(CROWDING_MAX).powi(2) } else { 1.0 }
}

/// The uncached part of the prompt, the time to compute or load it, and the time of the fetch.
struct Computed {
    tokens: Tokens,
    seconds: f64,
    fetch: f64,
}

#[inline]
fn compute(ask: &Ask, candidate: &Candidate) -> Computed {
    // The index may know more than this prompt has (a longer sibling); never count below zero.
    let below = candidate.held_below.0.min(ask.prefill.0.saturating_sub(candidate.held.0));
    let uncached = ask.prefill.0.saturating_sub(candidate.held.0 + below);
    let Fetch { tokens, seconds: fetch, .. } = candidate.fetch;
    let computed = uncached.saturating_sub(tokens.0);
    let pace = &candidate.pace;
    let work = PrefillWork::after(Tokens(ask.prefill.0.saturating_sub(computed)), Tokens(computed));
    let seconds = pace.prefill(work) + pace.prefill_token * LOAD * below as f64;
    // Reused chunks take new blocks too.
    Computed { tokens: Tokens(uncached + below) + candidate.chunks.saved, seconds, fetch }
}

/// The time to compute the tokens that are pulled from another worker: they evict as much here as if they were
/// computed. Tokens in a store are not lost by an eviction.
#[inline]
fn pulled(candidate: &Candidate) -> f64 {
    let tokens = candidate.fetch.from.map_or(Tokens::ZERO, |_| candidate.fetch.tokens);
    // A copy of a popular prefix serves later requests, too.
    let weight = PUSHED_BY_PULL / (1.0 + SHARED * f64::from(candidate.fetch.shared_by));
    weight * candidate.pace.prefill(PrefillWork::after(candidate.held, tokens))
}

/// The wait for the adapter, given the time of an answer.
#[inline]
fn adapter(candidate: &Candidate, answer: impl Fn() -> f64) -> f64 {
    match candidate.adapter {
        AdapterSlot::Ready => 0.0,
        AdapterSlot::Loads => ADAPTER_SECONDS,
        AdapterSlot::Waits => ADAPTER_SECONDS + answer(),
    }
}

/// The used part of a cache. This part of what the worker computes evicts other blocks.
pub(crate) fn full(room: KvRoom, holds: Tokens) -> f64 {
    (holds.0 as f64 / room.capacity.0.max(1) as f64).min(1.0)
}

/// The KV blocks that a request will hold, and for how long.
#[derive(Clone, Copy)]
struct Hold {
    computed: Tokens,
    answer: Tokens,
    seconds: f64,
}

/// The cost of memory. A worker whose cache is full of running requests frees it as they end, all of it in about the
/// time of one answer. We wait that long for the missing part. Blocks we compute are held until our answer ends,
/// which leaves less for all others; blocks that are cached already cost nothing more. So a new prefix goes where
/// there is memory, and a cached one stays where it is.
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
    use maitre_base::WorkerId;
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
    fn reused_chunks_save_time_and_no_memory() {
        let ask = Ask { prefill: Tokens(1_000), decode: Tokens(10), ..Ask::default() };
        let mut candidates = fleet(&[(0, 0), (0, 0)]);
        let chunks = crate::ReusedChunks { tokens: Tokens(800), saved: Tokens(680) };
        candidates.iter_mut().for_each(|it| it.held = Tokens(680));
        candidates[1].chunks = chunks;
        let [prefix, chunks] = [0, 1].map(|it| compute(&ask, &candidates[it]));
        assert_eq!((prefix.tokens, chunks.tokens), (Tokens(320), Tokens(1_000)));
        assert_eq!(prefix.seconds, chunks.seconds);
        assert_eq!((candidates[1].prefix(), candidates[1].cached()), (Tokens(0), Tokens(800)));
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

    /// For each single request it is cheaper to join a crowd that has its prefix than to compute the prefix again.
    #[test]
    fn a_crowd_that_shares_a_prefix_parts() {
        let ask = Ask { prefill: Tokens(12_000), decode: Tokens(100), ..Ask::default() };
        let pick = |crowd: u32, others: [f64; 2]| {
            let mut candidates = fleet(&[(crowd, 0), (5, 0)]);
            candidates[0].held = Tokens(11_800);
            for (candidate, others) in candidates.iter_mut().zip(others) {
                candidate.requests_elsewhere = others;
            }
            pick(&ask, &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index
        };
        let alone = [f64::INFINITY; 2];
        assert_eq!([10, 100, 500].map(|it| pick(it, alone)), [0, 0, 0]);
        // Others have five requests each. If all have as many as this one, no other worker is better.
        assert_eq!([10, 100, 500].map(|it| pick(it, [5.0, f64::from(it)])), [0, 0, 1]);
        assert_eq!([10, 100, 500].map(|it| pick(it, [f64::from(it); 2])), [0, 0, 0]);
    }

    #[test]
    fn crowding_is_bounded_whatever_was_learned() {
        let crowding =
            |step, step_request, others| super::crowding(&Pace { step, step_request, ..PACE }, 600.0, others);
        assert_eq!([300.0, 1e9, f64::INFINITY].map(|it| crowding(0.01, 1e-4, it)), [1.0; 3]);
        assert!((crowding(0.01, 1e-4, 100.0) - (7.0_f64 / 4.0).powi(2)).abs() < 1e-9);
        assert_eq!(crowding(0.0, 1e-4, 0.0), 256.0);
        assert_eq!([0.0, 600.0, f64::INFINITY].map(|it| crowding(0.0, 0.0, it)), [1.0; 3]);
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
    fn tokens_far_into_a_prompt_take_longer() {
        // A token takes twice as long after 50,000 tokens.
        let pace = Pace { prefill_attended: PACE.prefill_token / 50_000.0, ..PACE };
        let mut worker = Candidate { pace, ..fleet(&[(0, 0)])[0] };
        let seconds = |prompt: u64, held: u64, worker: &mut Candidate| {
            worker.held = Tokens(held);
            compute(&Ask { prefill: Tokens(prompt), ..ask() }, worker).seconds
        };
        for (prompt, held, expected) in [(1_000, 0, 0.101), (100_000, 0, 20.0), (100_000, 99_000, 0.299)] {
            let found = seconds(prompt, held, &mut worker);
            assert!((found - expected).abs() < 1e-9, "{prompt}, {held} held: {found}");
        }
        worker.pace = PACE;
        assert!((seconds(100_000, 0, &mut worker) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn idle_workers_whose_rates_differ_by_noise_share_the_requests() {
        let picks = |slowness: f64, requests: u32, held: u64| {
            let mut candidates = fleet(&[(requests, 0), (requests, 0), (requests, 0)]);
            candidates[2].pace.prefill_token *= slowness;
            candidates[2].pace.floor *= slowness;
            candidates[0].held = Tokens(held);
            candidates[1].held = Tokens(held);
            let mut rng = Rng::new(1);
            let ask = Ask { prefill: Tokens(20_000), ..ask() };
            (0..300)
                .filter(|_| pick(&ask, &candidates, &mut Vec::new(), &mut rng).unwrap().index == 2)
                .count()
        };
        assert!((70..130).contains(&picks(1.08, 0, 0)), "a third of them: {}", picks(1.08, 0, 0));
        for (slowness, requests, held) in [(1.2, 0, 0), (1.08, 1, 0), (1.0, 0, 1_000)] {
            assert_eq!(
                picks(slowness, requests, held),
                0,
                "{slowness} × as slow, {requests} requests, {held} held"
            );
        }
    }

    #[test]
    fn slower_memory_is_better_than_none_and_worse_than_fast() {
        let mut candidates = fleet(&[(0, 0), (0, 0), (0, 0)]);
        candidates[1].held_below = Tokens(1_000);
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
        candidates[2].held = Tokens(900);
        assert_eq!(pick(&ask(), &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 2);
    }

    fn loaded(tokens: u64, seconds: f64) -> Fetch {
        Fetch { tokens: Tokens(tokens), seconds, ..Fetch::default() }
    }

    #[test]
    fn an_idle_worker_that_fetches_beats_a_busy_holder() {
        let fetch = |tokens, seconds| Fetch { from: Some(WorkerId(0)), ..loaded(tokens, seconds) };
        let picked = |it: Fetch| {
            let mut candidates = fleet(&[(8, 1_500), (0, 0)]);
            candidates[0].held = Tokens(9_000);
            candidates[1].fetch = it;
            let ask = Ask { prefill: Tokens(10_000), ..ask() };
            pick(&ask, &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index
        };
        assert_eq!(picked(Fetch::default()), 0, "computing 9,000 tokens takes 0.9 s");
        assert_eq!(picked(fetch(9_000, 0.05)), 1);
        assert_eq!(picked(fetch(9_000, 2.0)), 0);
    }

    #[test]
    fn a_fetch_pays_where_computing_takes_longer() {
        // 1,000 tokens take 0.1 s to compute.
        for (seconds, expected) in [(0.09, true), (0.11, false)] {
            let fetch = loaded(1_000, seconds);
            assert_eq!(pays((fetch, Tokens::ZERO), &PACE), expected, "{seconds} s");
        }
    }

    #[test]
    fn a_pull_into_a_full_cache_costs_what_it_evicts() {
        let pushed = |from, holds, shared_by| {
            let mut worker = fleet(&[(0, 0)])[0];
            worker.room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens::ZERO });
            (worker.holds, worker.fetch) = (Tokens(holds), Fetch { from, shared_by, ..loaded(1_000, 0.01) });
            terms(&ask(), &worker).pushed
        };
        let source = Some(WorkerId(7));
        assert_eq!(pushed(source, 0, 0), 0.0);
        assert!(pushed(source, 10_000, 0) > pushed(source, 5_000, 0) && pushed(source, 5_000, 0) > 0.0);
        assert_eq!(pushed(None, 10_000, 0), 0.0, "a store keeps what is evicted");
        let shared = [1, 10, u32::MAX].map(|it| pushed(source, 10_000, it));
        assert!(pushed(source, 10_000, 0) > shared[0] && shared[0] > 2.0 * shared[1], "{shared:?}");
        assert!(shared[2] > 0.0, "{shared:?}");
    }

    #[test]
    fn a_full_cache_makes_newcomers_wait() {
        let ask = Ask { decode: Tokens(1_000), ..ask() };
        let mut candidates = fleet(&[(0, 0), (0, 1_000)]);
        candidates[0].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(9_500) });
        candidates[1].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(1_000) });
        assert_eq!(pick(&ask, &candidates, &mut Vec::new(), &mut Rng::new(1)).unwrap().index, 1);
        // Below four fifths a cache is under no pressure.
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
    fn the_terms_are_the_price_and_five_of_them_the_first_token() {
        let mut candidates = fleet(&[(0, 0), (7, 3_000), (30, 90_000)]);
        candidates[1].room = Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(9_500) });
        (candidates[1].held, candidates[1].held_below, candidates[1].holds) =
            (Tokens(300), Tokens(200), Tokens(9_000));
        candidates[2].fetch = loaded(600, 0.03);
        (candidates[2].adapter, candidates[2].share, candidates[2].promised.prefilling) =
            (AdapterSlot::Waits, 0.25, 3);
        for it in &candidates {
            let terms = terms(&ask(), it);
            assert!((terms.sum() / it.share - price(&ask(), it)).abs() < 1e-12, "{terms:?}");
            let first = terms.wait + terms.floor + terms.prefill + terms.fetch + terms.adapter;
            assert!((first - first_token(&ask(), it)).abs() < 1e-12, "{terms:?}");
        }
    }

    proptest! {
        /// More work, more requests or less cache never make a worker cheaper.
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

//! Where queued requests go: they are looked up again, and may reserve a busy worker that has their prefix cached.

use super::*;
use maitre_base::Tier;
use maitre_index::feed::Trust;
use maitre_index::prefix;

const BLOCK: u32 = 16;

/// Four thousand tokens that all prompts share, and some of its own.
fn text(which: u32, own: u32) -> Vec<u32> {
    let own = (0..own).map(|it| 1_000_000 * which + it);
    (0..4_000).chain(own).collect()
}

pub(super) fn prompt(tokens: &[u32]) -> PromptChain {
    let mut chain = Vec::new();
    let root = Root::new(Unit::Tokens, "llama", None, None);
    prefix::chain(root, tokens, BLOCK as usize, &mut chain);
    PromptChain {
        unit: Unit::Tokens,
        units: tokens.len() as u64,
        block: BLOCK,
        chain: chain.into(),
        chunks: None,
    }
}

fn with(prompt: &PromptChain, request: u64) -> Arrival<'_> {
    Arrival { size: Size::Tokens(prompt.units), prompt: Some(prompt), ..one(request) }
}

impl Harness {
    /// Two workers that report their caches, and that take one request at a time.
    fn with_caches() -> Harness {
        let queue = Queue { sequences_max: 1, ..Queue::default() };
        let mut harness = Harness::with_queue(2, BrainSettings { queue, ..BrainSettings::default() });
        for worker in [0, 1].map(WorkerId) {
            harness.on(Event::TrustChanged { worker, trust: Trust::Fresh });
        }
        harness
    }

    /// The worker's engine reports these tokens as cached.
    fn stored(&mut self, worker: u32, tokens: &[u32]) {
        let names: Vec<u64> = (0..tokens.len() as u64 / u64::from(BLOCK)).collect();
        let blocks = StoredBlocks {
            names: &names,
            parent: None,
            tokens: &tokens[..names.len() * BLOCK as usize],
            block_tokens: BLOCK,
            adapter: None,
            salt: None,
            extras: &[],
            tier: Tier::Gpu,
        };
        self.on(Event::CacheChanged { worker: WorkerId(worker), event: KvEvent::Stored(blocks) });
    }
}

#[test]
fn a_queued_request_is_looked_up_again() {
    for holder in [0, 1] {
        let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
        let seats = [0, 1].map(|it| placement(&harness.step(Come(one(it)))).worker.0);
        assert_eq!(
            harness.summary_of(Come(with(&shared, 2))),
            "2 waits",
            "no worker holds it, and no worker has room"
        );
        harness.stored(holder, &text(0, 0));
        let there = seats.iter().position(|&it| it == holder).unwrap() as u64;
        let placement = placement(&harness.step(End(there)));
        assert_eq!((placement.request.0, placement.worker.0), (2, holder));
        assert!(placement.held.unwrap() >= Tokens(3_900), "{placement:?}");
    }
}

/// The holder is busy for about 25 ms, and the other worker would take 200 ms to compute the prefix again.
#[test]
fn a_request_waits_for_a_cached_worker_rather_than_take_a_free_one() {
    let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
    harness.stored(1, &text(0, 0));
    harness.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    assert_eq!(harness.reserved(1).0, 1);
    harness.play(&[(First(1), ""), (After(100), ""), (End(1), "2@1")]);
    assert_eq!(harness.reserved(1), (0, 0));
    // A prompt that is cached nowhere takes the free worker.
    assert_eq!(harness.summary_of(Come(one(3))), "3@0");
    harness.play(&[(End(2), ""), (End(3), "")]);
    harness.is_clear();
}

/// Each reservation makes the next wait longer, until computing the prefix again is cheaper.
#[test]
fn later_requests_account_for_reservations() {
    let prompts: Vec<PromptChain> = (0..12).map(|it| prompt(&text(it + 1, 500))).collect();
    let mut harness = Harness::with_caches();
    harness.stored(1, &text(0, 0));
    let effects: Vec<String> =
        prompts.iter().zip(0..).map(|(it, request)| harness.summary_of(Come(with(it, request)))).collect();
    let cold = effects.iter().position(|it| it.ends_with("@0")).unwrap();
    assert_eq!(effects[0], "0@1");
    assert!((2..10).contains(&cold), "{effects:?}");
    assert!(effects[1..cold].iter().all(|it| it.ends_with("waits")), "{effects:?}");
    // Now both are busy, and every queued request waits for one of them.
    let reserved = (harness.reserved(0).0 + harness.reserved(1).0) as usize;
    assert_eq!(reserved, harness.waiting(), "{effects:?}");
    for request in 0..12 {
        harness.step(Leave(request));
    }
    harness.is_clear();
}

#[test]
fn a_reservation_at_a_worker_that_takes_no_request_ends_after_ten_seconds() {
    let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
    harness.stored(1, &text(0, 0));
    harness.play(&[
        (Come(with(&shared, 1)), "1@1"),
        (First(1), ""),
        (Come(with(&shared, 2)), "2 waits"),
        (After(9_990), ""),
        (After(20), "2@0"),
    ]);
    assert_eq!(harness.reserved(1), (0, 0));
}

#[test]
fn ten_thousand_reservations_that_end_leave_nothing() {
    let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
    harness.stored(1, &text(0, 0));
    harness.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    for request in 10..10_010 {
        harness.step(Come(with(&shared, request)));
        harness.step(Leave(request));
    }
    assert_eq!((harness.waiting(), harness.reserved(1).0), (1, 1));
    harness.play(&[(Leave(2), ""), (End(1), "")]);
    harness.is_clear();
}

/// Requests that go to another worker do not overtake it: it waits for its own turn, and blocks none of them.
#[test]
fn a_request_that_waits_for_its_worker_keeps_no_other_from_going() {
    let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
    harness.stored(1, &text(0, 0));
    harness.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    for request in 3..60 {
        assert_eq!(harness.summary_of(Come(one(request))), format!("{request}@0"));
        harness.step(After(1));
        harness.step(Leave(request));
    }
    harness.play(&[(First(1), ""), (End(1), "2@1"), (End(2), "")]);
    harness.is_clear();
}

/// Issue 16: each strategy that has a reason to prefer a worker waits for it, and one that only counts load does not.
#[test]
fn every_strategy_but_those_that_only_count_load_waits_for_its_pick() {
    for strategy in Name::ALL {
        let queue = Queue { sequences_max: 1, ..Queue::default() };
        let settings = BrainSettings { strategy, queue, ..BrainSettings::default() };
        let (mut harness, shared) = (Harness::with_queue(2, settings), prompt(&text(0, 0)));
        for worker in [0, 1].map(WorkerId) {
            harness.on(Event::TrustChanged { worker, trust: Trust::Fresh });
        }
        harness.stored(1, &text(0, 0));
        // The same head and session take those strategies to one worker too.
        let arrival = |request| Arrival { session: Some(7), head: Some(7), ..with(&shared, request) };
        let first = placement(&harness.step(Come(arrival(1)))).worker;
        let then = harness.summary_of(Come(arrival(2)));
        let expected =
            if strategy.waits_for_pick() { "2 waits".to_owned() } else { format!("2@{}", 1 - first.0) };
        assert_eq!(then, expected, "{strategy}");
    }
}

/// The second prompt shares its beginning with one that waits: it will be cached where that one goes.
#[test]
fn a_waiting_prompt_attracts_those_that_share_its_beginning() {
    let (mut harness, first, second) = (Harness::with_caches(), prompt(&text(1, 500)), prompt(&text(2, 500)));
    [8, 9].into_iter().for_each(|it| drop(harness.step(Come(one(it)))));
    harness.play(&[(Come(with(&first, 1)), "1 waits"), (Come(with(&second, 2)), "2 waits")]);
    let worker = |request: u64| harness.brain.pending[&request].reservation().map(|it| it.worker);
    assert_eq!(worker(1), worker(2));
    let reserved = harness.brain.pending[&2].reservation().unwrap();
    assert!(reserved.promise.prefill.tokens < Tokens(600), "{reserved:?}");
    // What only the second would have brought there is not expected any more.
    let there = worker(1).unwrap();
    let predicted = |harness: &Harness| harness.brain.cache().numbers(there).unwrap().predicted_blocks;
    let both = predicted(&harness);
    harness.step(Leave(2));
    assert_eq!(both - predicted(&harness), 500 / BLOCK);
}

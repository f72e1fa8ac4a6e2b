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
    PromptChain { unit: Unit::Tokens, units: tokens.len() as u64, block: BLOCK, chain: chain.into() }
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
    // Now both are busy. The queued requests that were tried have a reservation.
    let reserved = (harness.reserved(0).0 + harness.reserved(1).0) as usize;
    assert_eq!(reserved, harness.waiting().min(maitre_queue::wait_queue::LOOK), "{effects:?}");
    for request in 0..12 {
        harness.step(Leave(request));
    }
    harness.is_clear();
}

#[test]
fn a_reservation_lasts_ten_seconds_at_most() {
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

/// It waits while thirty-two others go to the free worker; then it goes there itself.
#[test]
fn a_request_that_may_not_be_overtaken_any_more_takes_a_free_worker() {
    let (mut harness, shared) = (Harness::with_caches(), prompt(&text(0, 0)));
    harness.stored(1, &text(0, 0));
    harness.play(&[(Come(with(&shared, 1)), "1@1"), (Come(with(&shared, 2)), "2 waits")]);
    for request in 3..60 {
        harness.step(Come(one(request)));
        harness.step(After(1));
        harness.step(Leave(request));
    }
    let placement = harness.brain.worker_of(RequestId(2));
    assert_eq!(placement, Some(WorkerId(0)), "{:?}", harness.brain.pending.get(&2));
}

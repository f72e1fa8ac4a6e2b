//! Prompts with the same documents in another order, at workers whose engines reuse KV at any position.

use super::*;

/// A fleet of four whose engines compute 15 % of a reused chunk again.
fn reusing(seed: u64) -> Harness {
    let mut harness = Harness::cached(4, Name::LeastDelay, seed);
    let reuse = "0.15".parse().unwrap();
    for worker in 0..4 {
        harness.on(Event::WorkerReusesChunks { worker: WorkerId(worker), reuse });
    }
    harness
}

/// An opening of its own, and then these documents of 2,000 tokens each.
fn documents(opening: u32, order: &[u32]) -> Vec<u32> {
    [text(opening, 64), order.iter().flat_map(|&it| text(it, 2_000)).collect()].concat()
}

/// How much of a prompt of four documents and a new opening is expected to be cached, if all four are.
const ALL: std::ops::RangeInclusive<u64> = 7_600..=8_000;

#[test]
fn documents_in_another_order_go_to_their_holder() {
    for seed in 0..6 {
        let mut harness = reusing(seed);
        let home = harness.serve(1, &documents(100, &[1, 2, 3, 4]));
        harness.serve(2, &documents(101, &[5, 6, 7, 8]));
        let next = harness.serve(3, &documents(102, &[4, 2, 1, 3]));
        assert_eq!((next.worker, next.why), (home.worker, Why::Cached));
        assert!(ALL.contains(&next.held.unwrap().0), "{next:?}");
    }
}

#[test]
fn what_is_computed_again_is_promised() {
    let mut harness = reusing(0);
    let home = harness.serve(1, &documents(100, &[1, 2, 3, 4])).worker;
    let held = harness.ask(2, &documents(102, &[4, 2, 1, 3])).held.unwrap().0;
    let promised = harness.brain.fleet().worker(home).unwrap().promised.work;
    let saved = (held as f64 * 0.85) as u64;
    assert_eq!(promised.prefill.tokens.0, 8_064 - saved);
    // Reused KV takes blocks like any other.
    assert_eq!(promised.context.0, 8_064 + promised.decode.0);
    let decision = harness.brain.decisions().of(RequestId(2)).unwrap();
    let chosen = decision.chosen().unwrap().candidate;
    assert_eq!((chosen.chunks.tokens.0, chosen.chunks.saved.0, chosen.prefix().0), (held, saved, 0));
}

#[test]
fn a_prefix_is_worth_more_than_chunks_and_both_add_up() {
    let mut harness = reusing(0);
    harness.serve(1, &documents(100, &[1, 2, 3, 4]));
    let next = harness.ask(2, &documents(100, &[1, 4, 3, 2]));
    let decision = harness.brain.decisions().of(RequestId(2)).unwrap();
    let chosen = decision.chosen().unwrap().candidate;
    assert_eq!(chosen.prefix(), Tokens(2_064));
    assert!((5_600..=6_000).contains(&chosen.chunks.tokens.0), "{chosen:?}");
    assert_eq!(next.held, Some(chosen.cached()));
}

#[test]
fn without_such_a_worker_no_prompt_is_cut() {
    let mut harness = Harness::cached(2, Name::LeastDelay, 0);
    let plans = |harness: &Harness| harness.brain.plan(Some("llama")).unwrap().chunks;
    assert!(!plans(&harness));
    let reuse = "0.15".parse().unwrap();
    harness.on(Event::WorkerReusesChunks { worker: WorkerId(1), reuse });
    assert!(plans(&harness));
    // The other worker's engine reuses prefixes only.
    harness.on(Event::WorkerDrained { worker: WorkerId(1), draining: true });
    harness.serve(1, &documents(100, &[1, 2]));
    check_not_held(harness.serve(2, &documents(101, &[2, 1])));
    harness.on(Event::WorkerGone { worker: WorkerId(1) });
    assert!(!plans(&harness));
}

#[test]
fn a_cleared_or_refused_worker_holds_no_chunks() {
    let cleared = Event::CacheChanged { worker: WorkerId(0), event: KvEvent::Cleared };
    let refused = Event::Probed { worker: WorkerId(0), evidence: Evidence::Refused };
    for event in [cleared, refused] {
        let mut harness = reusing(0);
        for other in 1..4 {
            harness.on(Event::WorkerGone { worker: WorkerId(other) });
        }
        harness.serve(1, &documents(100, &[1, 2]));
        assert!(harness.serve(2, &documents(101, &[2, 1])).held.unwrap() > Tokens(3_500));
        harness.on(event);
        harness.on(Event::Probed { worker: WorkerId(0), evidence: Evidence::ProbeAnswered });
        check_not_held(harness.serve(3, &documents(102, &[2, 1])));
    }
}

#[test]
fn an_attempt_that_was_not_prefilled_leaves_no_chunks() {
    let mut harness = reusing(0);
    harness.ask(1, &documents(100, &[1, 2]));
    harness.on(Event::Left { request: RequestId(1) });
    check_not_held(harness.ask(2, &documents(101, &[2, 1])));
}

#[test]
fn counted_chunks_are_no_surprise_about_the_prefix() {
    let mut harness = reusing(0);
    let home = harness.serve(1, &documents(100, &[1, 2, 3, 4])).worker;
    let capacity = |harness: &Harness| harness.brain.cache().numbers(home).unwrap().capacity_blocks;
    let before = capacity(&harness);
    harness.ask(2, &documents(102, &[4, 2, 1, 3]));
    harness.answer(2, Some(Counted { prompt: Some(8_064), cached: Some(8_000), answer: Some(2) }));
    assert_eq!(capacity(&harness), before);
    // Both prompts are still believed to be there.
    for (request, opening, order) in [(3, 100, [1, 2, 3, 4]), (4, 102, [4, 2, 1, 3])] {
        let next = harness.serve(request, &documents(opening, &order));
        assert_eq!((next.worker, next.held), (home, Some(Tokens(8_048))));
    }
    // Less than the prefix is a miss, as ever.
    harness.ask(5, &documents(100, &[1, 2, 3, 4]));
    harness.answer(5, Some(Counted { prompt: Some(8_064), cached: Some(0), answer: Some(2) }));
    assert!(capacity(&harness) < before);
}

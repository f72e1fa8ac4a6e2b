//! A worker pulls KV cache from another that holds it, or loads it from a store: when, from where, and what ends with it.

use super::*;
use crate::cache::CacheQuery;
use crate::cache::stores::StoreId;
use maitre_fleet::pulls::PullWatch;
use maitre_fleet::transfers::Way;

/// Tokens of a prompt, and how long it takes to compute.
const LONG: u32 = 32_000;
const LONG_TAKES: Duration = Duration::from_millis(1_600);

/// So many workers that pull, one of which has computed the long prompt. Returns which.
fn fleet(count: u32) -> (Harness, WorkerId) {
    let mut harness = Harness::cached(count, Name::LeastDelay, 1);
    (0..count).for_each(|it| drop(harness.on(Event::WorkerPulls { worker: WorkerId(it), pulls: true })));
    let holder = harness.ask(1, &text(1, LONG)).worker;
    harness.now = harness.now + LONG_TAKES;
    harness.answer(1, None);
    (harness, holder)
}

/// The holder has so much to prefill that it is not worth the wait.
fn busy(harness: &mut Harness, holder: WorkerId) {
    compute(harness, holder, 900..903);
}

/// The worker gets these requests, each with a long prompt of its own.
fn compute(harness: &mut Harness, worker: WorkerId, requests: std::ops::Range<u64>) {
    for request in requests {
        for other in 0..harness.brain.fleet().workers().count() as u32 {
            let draining = WorkerId(other) != worker;
            harness.on(Event::WorkerDrained { worker: WorkerId(other), draining });
        }
        assert_eq!(harness.ask(request, &text(request as u32, LONG)).worker, worker);
    }
    (0..harness.brain.fleet().workers().count() as u32).for_each(|it| {
        harness.on(Event::WorkerDrained { worker: WorkerId(it), draining: false });
    });
}

fn pulled_from(placement: Placement) -> Option<WorkerId> {
    placement.pull.map(|it| it.worker)
}

#[test]
fn a_prefix_of_a_busy_worker_is_pulled_by_an_idle_one() {
    let (mut harness, holder) = fleet(2);
    assert_eq!(pulled_from(harness.ask(2, &text(1, LONG))), None, "the holder itself is idle");
    busy(&mut harness, holder);
    let placement = harness.ask(3, &text(1, LONG));
    assert_ne!(placement.worker, holder);
    assert_eq!(pulled_from(placement), Some(holder));
    let promised = harness.promised()[placement.worker.index()];
    assert!(promised.prefill.tokens < Tokens(100), "only the last block is computed: {promised:?}");
    assert!(promised.context > Tokens(u64::from(LONG)), "but all of it needs room: {promised:?}");
}

#[test]
fn nothing_is_pulled_where_it_cannot_or_need_not_be() {
    let check = |change: &dyn Fn(&mut Harness, WorkerId), why: &str| {
        let (mut harness, holder) = fleet(2);
        busy(&mut harness, holder);
        change(&mut harness, holder);
        assert_eq!(pulled_from(harness.ask(3, &text(1, LONG))), None, "{why}");
    };
    check(
        &|it, holder| drop(it.on(Event::WorkerPulls { worker: holder, pulls: false })),
        "the holder does not share",
    );
    check(
        &|it, holder| drop(it.on(Event::WorkerPulls { worker: WorkerId(1 - holder.0), pulls: false })),
        "the other cannot pull",
    );
    let slow = |it: &mut Harness, holder: WorkerId| {
        for _ in 0..50 {
            let fleet = &mut it.brain.parts.fleet;
            let way = Way::between(holder, WorkerId(1 - holder.0));
            fleet.learn_pull(it.now, way, Tokens(10_000), Duration::from_secs(9));
        }
    };
    check(&slow, "computing is faster than this link");
    check(&|it, holder| drop(it.on(Event::WorkerGone { worker: holder })), "the holder is gone");
}

#[test]
fn what_the_holder_is_still_computing_cannot_be_pulled() {
    let (mut harness, _) = fleet(2);
    let holder = harness.ask(2, &text(2, LONG)).worker;
    busy(&mut harness, holder);
    let elsewhere = |harness: &mut Harness, request| {
        let placement = harness.ask(request, &text(2, LONG));
        assert_ne!(placement.worker, holder);
        harness.on(Event::Left { request: RequestId(request) });
        pulled_from(placement)
    };
    assert_eq!(elsewhere(&mut harness, 3), None);
    harness.begin(2);
    assert_eq!(elsewhere(&mut harness, 4), Some(holder));
}

#[test]
fn what_the_holder_computes_meanwhile_is_pulled_by_a_worker_that_is_busy_for_longer() {
    let check = |busy_for: u64, expected: bool| {
        let (mut harness, _) = fleet(2);
        let holder = harness.ask(2, &text(2, LONG)).worker;
        let other = WorkerId(1 - holder.0);
        compute(&mut harness, holder, 900..904);
        compute(&mut harness, other, 910..910 + busy_for);
        let placement = harness.ask(3, &text(2, LONG));
        assert_eq!(placement.worker, other);
        assert_eq!(pulled_from(placement), expected.then_some(holder), "busy for {busy_for} prompts");
    };
    check(2, true);
    check(1, false);
}

#[test]
fn what_is_computed_already_is_pulled_if_the_link_to_what_comes_later_is_slow() {
    let check = |is_slow: bool| {
        let (mut harness, holder) = fleet(3);
        let longer = [text(1, LONG), text(2, LONG / 4)].concat();
        // It computes all of it, since it cannot pull yet.
        let [later, other] = [1, 2].map(|it| WorkerId((holder.0 + it) % 3));
        let drain = |harness: &mut Harness, draining| {
            for worker in [holder, other] {
                harness.on(Event::WorkerDrained { worker, draining });
            }
            harness.on(Event::WorkerPulls { worker: later, pulls: !draining });
        };
        drain(&mut harness, true);
        assert_eq!(harness.ask(2, &longer).worker, later);
        drain(&mut harness, false);
        for (worker, prompts, first) in [(holder, 3, 900), (later, 2, 910), (other, 2, 920)] {
            compute(&mut harness, worker, first..first + prompts);
        }
        for (from, took) in [(later, if is_slow { 9_000 } else { 10 }), (holder, 10)] {
            let (fleet, took) = (&mut harness.brain.parts.fleet, Duration::from_millis(took));
            (0..50)
                .for_each(|_| fleet.learn_pull(harness.now, Way::between(from, other), Tokens(10_000), took));
        }
        harness.ask(3, &longer);
        let pull = harness.brain.parts.placer.survey().pulls.at(other.index());
        assert_eq!(pull.from, Some(if is_slow { holder } else { later }));
    };
    check(false);
    check(true);
}

#[test]
fn a_prompt_that_overtakes_a_pull_does_not_make_the_link_look_slow() {
    let (mut harness, holder) = fleet(2);
    busy(&mut harness, holder);
    let other = harness.ask(3, &text(1, LONG)).worker;
    compute(&mut harness, other, 910..911);
    harness.now = harness.now + LONG_TAKES;
    harness.begin(910);
    harness.now = harness.now + FIRST_TOKEN;
    harness.begin(3);
    let took = harness.brain.fleet().pull_time(Way::between(holder, other), Tokens(LONG.into())).own;
    assert!(took < 0.5, "{took} s");
}

#[test]
fn a_request_counts_as_one_that_shares_its_prefix_until_it_ends() {
    let (mut harness, holder) = fleet(4);
    busy(&mut harness, holder);
    harness.ask(3, &text(1, LONG));
    harness.now = harness.now + FIRST_TOKEN;
    harness.begin(3);
    harness
        .on(Event::WorkerDrained { worker: harness.brain.worker_of(RequestId(3)).unwrap(), draining: true });
    let shared_by = |harness: &mut Harness, request| {
        assert_eq!(pulled_from(harness.ask(request, &text(1, LONG))), Some(holder));
        let pulls = &harness.brain.parts.placer.survey().pulls;
        let shared_by = (0..3).map(|it| pulls.at(it).shared_by).max();
        harness.on(Event::Left { request: RequestId(request) });
        shared_by
    };
    assert_eq!(shared_by(&mut harness, 4), Some(1));
    harness.on(Event::Left { request: RequestId(3) });
    assert_eq!(shared_by(&mut harness, 5), Some(0));
}

#[test]
fn a_pull_that_fails_is_not_tried_again_and_the_request_stays_possible_there() {
    let (mut harness, holder) = fleet(2);
    busy(&mut harness, holder);
    let first = harness.ask(3, &text(1, LONG));
    assert_eq!(pulled_from(first), Some(holder));
    harness.on(Event::WorkerDrained { worker: holder, draining: true });
    let second = placement(&harness.fail_attempt(3, Failure::Handoff));
    assert_eq!((second.worker, pulled_from(second)), (first.worker, None));
    harness.on(Event::WorkerDrained { worker: holder, draining: false });
    assert_eq!(pulled_from(harness.ask(4, &text(1, LONG))), None);
    assert!(harness.brain.fleet().workers().all(|it| it.fetches == Default::default()));
}

#[test]
fn an_unproven_source_serves_one_pull_at_a_time_and_a_proven_one_many() {
    let (mut harness, holder) = fleet(4);
    busy(&mut harness, holder);
    let pulls = |harness: &mut Harness, request| pulled_from(harness.ask(request, &text(1, LONG)));
    assert_eq!(pulls(&mut harness, 3), Some(holder));
    assert_eq!(pulls(&mut harness, 4), None, "until the first is there");
    harness.on(Event::Left { request: RequestId(4) });
    harness.now = harness.now + FIRST_TOKEN;
    harness.begin(3);
    let second = harness.brain.worker_of(RequestId(3)).unwrap();
    harness.on(Event::WorkerDrained { worker: second, draining: true });
    assert_eq!(pulls(&mut harness, 5), Some(holder));
    let fleet = harness.brain.fleet();
    assert!(fleet.is_source(harness.now, holder, PullWatch::FirstToken), "one is under way, and more may be");
}

#[test]
fn an_answer_in_one_piece_pulls_only_from_a_proven_source() {
    let (mut harness, holder) = fleet(3);
    busy(&mut harness, holder);
    let prompt = harness.prompt(&text(1, LONG), None);
    let whole = |it| Arrival { form: Form::Whole, ..of_prompt(it, &prompt) };
    assert_eq!(pulled_from(harness.placement(whole(3))), None);
    harness.on(Event::Left { request: RequestId(3) });
    let way = Way::between(holder, WorkerId(99));
    harness.brain.parts.fleet.learn_pull(harness.now, way, Tokens(1_000), Duration::from_millis(25));
    assert_eq!(pulled_from(harness.placement(whole(4))), Some(holder));
}

const STORE: StoreId = StoreId(0);

/// So many workers that share a store. One has computed the long prompt; returns which.
fn sharing(count: u32) -> (Harness, WorkerId) {
    let mut harness = Harness::cached(count, Name::LeastDelay, 1);
    for worker in (0..count).map(WorkerId) {
        harness.on(Event::WorkerStore { worker, store: Some(STORE) });
    }
    let holder = harness.ask(1, &text(1, LONG)).worker;
    harness.now = harness.now + LONG_TAKES;
    harness.answer(1, None);
    (harness, holder)
}

/// Tokens that the worker of a request is to prefill for it.
fn prefill(harness: &mut Harness, request: u64, tokens: &[u32]) -> Tokens {
    let before = harness.promised();
    let worker = harness.ask(request, tokens).worker.index();
    harness.promised()[worker].prefill.tokens - before[worker].prefill.tokens
}

#[test]
fn what_one_member_computed_every_member_loads() {
    let (mut harness, holder) = sharing(2);
    busy(&mut harness, holder);
    let placement = harness.ask(3, &text(1, LONG));
    assert_ne!(placement.worker, holder);
    assert_eq!(placement.pull, None, "the engine loads by itself");
    assert!(harness.promised()[placement.worker.index()].prefill.tokens < Tokens(100));
}

#[test]
fn a_store_has_only_what_is_computed_and_only_for_its_members() {
    let (mut harness, holder) = sharing(2);
    busy(&mut harness, holder);
    // These are being computed by the holder.
    assert!(prefill(&mut harness, 3, &text(900, LONG)) > Tokens(30_000));
    harness.on(Event::Left { request: RequestId(3) });
    harness.begin(900);
    assert!(prefill(&mut harness, 4, &text(900, LONG)) < Tokens(100));
    harness.on(Event::Left { request: RequestId(4) });
    harness.on(Event::WorkerStore { worker: WorkerId(1 - holder.0), store: Some(StoreId(1)) });
    assert!(prefill(&mut harness, 5, &text(900, LONG)) > Tokens(30_000));
}

#[test]
fn a_store_that_lost_its_members_is_forgotten() {
    let (mut harness, holder) = sharing(2);
    for store in [None, Some(STORE)] {
        (0..2).for_each(|it| drop(harness.on(Event::WorkerStore { worker: WorkerId(it), store })));
    }
    busy(&mut harness, holder);
    assert!(prefill(&mut harness, 3, &text(1, LONG)) > Tokens(30_000));
}

/// What the store is believed to hold of a prompt.
fn stored(harness: &mut Harness, tokens: &[u32]) -> Tokens {
    let prompt = harness.prompt(tokens, None);
    let tokens = Tokens(prompt.units);
    let cache = &mut harness.brain.parts.cache;
    cache.peek(CacheQuery { prompt: &prompt, tokens, snapshots: &[] }, &mut Vec::new());
    cache.in_store(WorkerId(0), &prompt, tokens)
}

#[test]
fn what_a_store_has_evicted_is_learned_from_the_counts_of_answers() {
    let (mut harness, _) = sharing(2);
    let serve = |harness: &mut Harness, request, which, counted| {
        harness.ask(request, &text(which, LONG));
        harness.now = harness.now + LONG_TAKES;
        harness.answer(request, counted);
    };
    serve(&mut harness, 2, 2, None);
    assert!(stored(&mut harness, &text(1, LONG)) > Tokens(30_000));
    let missed = Counted { prompt: Some(u64::from(LONG)), cached: Some(0), answer: Some(2) };
    serve(&mut harness, 3, 2, Some(missed));
    assert_eq!(stored(&mut harness, &text(1, LONG)), Tokens::ZERO, "it is older than what was missed");
    assert!(stored(&mut harness, &text(2, LONG)) > Tokens(30_000), "it was computed again");
}

/// A member reports that it has written this prompt to the store.
fn report_stored(harness: &mut Harness, worker: u32, tokens: &[u32]) {
    harness.store(worker, tokens, Store { tier: Tier::Shared, ..PLAIN });
}

fn report_evicted(harness: &mut Harness, worker: u32, tokens: &[u32]) {
    let names = names(tokens, 16);
    let event = KvEvent::Removed { names: &names, tier: Tier::Shared };
    harness.on(Event::CacheChanged { worker: WorkerId(worker), event });
}

#[test]
fn what_a_member_reports_of_its_store_every_member_loads() {
    let (mut harness, _) = sharing(2);
    let prompt = text(7, LONG);
    assert_eq!(stored(&mut harness, &prompt), Tokens::ZERO);
    // Before this router was there, or by way of another one.
    report_stored(&mut harness, 1, &prompt);
    assert!(stored(&mut harness, &prompt) > Tokens(30_000));
    assert!(prefill(&mut harness, 3, &prompt) < Tokens(100), "either of them loads it");
    report_stored(&mut harness, 0, &prompt);
    report_evicted(&mut harness, 1, &prompt);
    assert_eq!(stored(&mut harness, &prompt), Tokens::ZERO, "a store keeps one copy");
}

#[test]
fn what_a_store_reports_as_evicted_is_gone_although_a_member_computed_it() {
    let (mut harness, holder) = sharing(2);
    let prompt = text(1, LONG);
    report_stored(&mut harness, holder.0, &prompt);
    report_evicted(&mut harness, 1 - holder.0, &prompt);
    assert_eq!(stored(&mut harness, &prompt), Tokens::ZERO);
}

#[test]
fn a_prediction_that_no_member_confirms_is_dropped_once_all_of_them_report() {
    let (mut harness, _) = sharing(2);
    let computed = text(1, LONG);
    let tick = |harness: &mut Harness| {
        harness.now = harness.now + Duration::from_secs(10);
        harness.on(Event::Tick);
    };
    for worker in 0..2 {
        tick(&mut harness);
        assert!(stored(&mut harness, &computed) > Tokens(30_000), "{worker} members report");
        harness.on(Event::TrustChanged { worker: WorkerId(worker), trust: Trust::Fresh });
        report_stored(&mut harness, worker, &text(50 + worker, LONG));
    }
    tick(&mut harness);
    assert_eq!(stored(&mut harness, &computed), Tokens::ZERO);
    assert!(stored(&mut harness, &text(50, LONG)) > Tokens(30_000));
    // A gap may have hidden an eviction: what was reported is a prediction again.
    harness.on(Event::ReportsLost { worker: WorkerId(0) });
    assert!(stored(&mut harness, &text(50, LONG)) > Tokens(30_000));
}

#[test]
fn a_worker_without_a_store_teaches_nothing_by_shared_blocks() {
    let mut harness = Harness::cached(2, Name::LeastDelay, 1);
    report_stored(&mut harness, 0, &text(1, LONG));
    assert!(prefill(&mut harness, 1, &text(1, LONG)) > Tokens(30_000));
    assert_eq!(harness.brain.cache().numbers(WorkerId(0)).unwrap().reported_blocks, 0);
}

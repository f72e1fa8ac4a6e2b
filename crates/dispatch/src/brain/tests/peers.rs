//! What routers publish to each other: tables first, then routers that are connected.
//!
//! The transport is as plain as possible: what a router publishes arrives at all others after a fixed delay, and what all
//! others have promised is the sum of what each of them last published.

use super::*;
use crate::peers::{Assessment, Outbox, PeerUpdate};
use maitre_cluster::{Spent, Verdict};
use maitre_fleet::Barred;
use maitre_fleet::rates::LinearFit;
use maitre_fleet::worker::key;
use maitre_index::PrefixHash;

mod publish;
mod several_routers;
mod tenant_limit;

fn url(number: u32) -> String {
    format!("http://127.0.0.1:{number}")
}

fn key_of(number: u32) -> u64 {
    key(&url(number))
}

fn hash_of(model: &str) -> u64 {
    maitre_base::hash::bytes(0, model.as_bytes())
}

/// So many requests, each with this much to prefill and a response of a hundred tokens.
fn load(requests: u32, prefill: u64) -> PromisedWork {
    let all = |it: u64| Tokens(u64::from(requests) * it);
    let prefilling = if prefill > 0 { requests } else { 0 };
    let work = (0..requests).fold(PrefillWork::ZERO, |sum, _| sum + PrefillWork::whole(Tokens(prefill)));
    let decode = all(100);
    PromisedWork { requests, prefilling, prefill: work, decode, context: work.tokens + decode }
}

/// A prompt of so many blocks of 16 tokens; prompts of one `text` share their prefix.
fn prompt(text: u64, blocks: u64) -> PromptChain {
    let chain = (0..blocks).map(|it| PrefixHash(1 + text * 10_000 + it)).collect();
    PromptChain { unit: Unit::Tokens, units: blocks * 16, block: 16, chain, chunks: None }
}

fn chat(request: u64, prompt: &PromptChain) -> Arrival<'_> {
    Arrival { prompt: Some(prompt), size: Size::Tokens(prompt.units), ..arrival(request, Some("llama")) }
}

impl Harness {
    fn receive(&mut self, update: PeerUpdate<'_>) -> Vec<Effect> {
        self.on(Event::Peers(update))
    }

    /// Other routers have promised this to a worker.
    fn promise_elsewhere(&mut self, worker: u32, load: PromisedWork) -> Vec<Effect> {
        self.receive(PeerUpdate::Promised { worker: key_of(worker), work: load })
    }

    fn outbox(&mut self) -> Outbox {
        let mut outbox = Outbox::default();
        self.brain.take_outbox(&mut outbox);
        outbox
    }

    /// Where a prompt that no worker holds would go now.
    fn would_go(&mut self, text: u64) -> u32 {
        let prompt = prompt(text, 20);
        let decision = self.brain.explain(self.now, &chat(0, &prompt)).unwrap();
        decision.worker.0
    }
}

fn sharing(strategy: Name) -> BrainSettings {
    BrainSettings { strategy, shares: true, ..BrainSettings::default() }
}

// Promises.

#[test]
fn promises_of_other_routers_move_a_pick_and_their_end_moves_it_back() {
    for strategy in [Name::LeastDelay, Name::LeastWork, Name::LeastRequest, Name::Lmetric, Name::Preble] {
        let mut harness = Harness::with(2, BrainSettings { strategy, ..BrainSettings::default() });
        let picks = |harness: &mut Harness| (0..8).map(|it| harness.would_go(it)).collect::<Vec<_>>();
        let alone = picks(&mut harness);
        let (busy, idle) = (alone[0], 1 - alone[0]);
        for (load, expected) in [(load(3, 2_000), idle), (load(2, 0), idle), (PromisedWork::default(), busy)]
        {
            harness.promise_elsewhere(busy, load);
            assert_eq!(picks(&mut harness), [expected; 8], "{strategy} with {load:?}");
            // Our own promises stay apart.
            assert_eq!(harness.promised(), [PromisedWork::default(); 2]);
        }
        assert!(
            harness.brain.fleet().workers().all(|it| it.promised_by_others.work == PromisedWork::default())
        );
    }
}

#[test]
fn the_wait_at_a_worker_is_the_sum_over_all_routers_less_the_elapsed_time() {
    let mut harness = Harness::with(1, BrainSettings::default());
    let snapshot = |harness: &Harness| harness.brain.fleet().snapshot_of(harness.now, WorkerId(0)).unwrap();
    harness.now = Instant::from_millis(1_000);
    harness.arrive(1, Some("llama")).unwrap();
    let alone = snapshot(&harness);
    harness.now = Instant::from_millis(1_010);
    harness.promise_elsewhere(0, load(2, 1_000));
    let both = snapshot(&harness);
    assert_eq!(
        (both.requests, both.promised.prefilling, both.promised.prefill.tokens),
        (3, 3, Tokens(3_000))
    );
    assert_eq!((both.ours, alone.ours), ((1, Tokens(1_000)), (1, Tokens(1_000))));
    // Their requests are behind ours, which has been computed for ten milliseconds.
    assert!((both.wait_seconds - (3.0 * alone.wait_seconds - 0.010)).abs() < 1e-9, "{}", both.wait_seconds);
    // Our first token is out: now theirs are computed.
    harness.now = Instant::from_millis(1_060);
    harness.begin(1);
    harness.now = Instant::from_millis(1_070);
    let left = snapshot(&harness);
    let each = left.prefill.seconds(PrefillWork::whole(Tokens(1_000)));
    assert!((left.wait_seconds - (2.0 * each - 0.010)).abs() < 1e-9, "{}", left.wait_seconds);
    // Our next request is behind theirs.
    harness.arrive(2, Some("llama")).unwrap();
    harness.now = Instant::from_millis(1_080);
    let more = snapshot(&harness).wait_seconds;
    assert!((more - (3.0 * each - 0.020)).abs() < 1e-9, "{more}");
}

#[test]
fn reported_requests_of_known_routers_count_once() {
    let mut harness = Harness::with(1, BrainSettings::default());
    harness.arrive(1, Some("llama")).unwrap();
    harness.promise_elsewhere(0, load(3, 0));
    let report =
        maitre_base::EngineLoad { running: Some(6), waiting: Some(0), ..maitre_base::EngineLoad::default() };
    for _ in 0..2 {
        harness.on(Event::LoadReported { worker: WorkerId(0), load: report });
    }
    let requests =
        |harness: &Harness| harness.brain.fleet().snapshot_of(harness.now, WorkerId(0)).unwrap().requests;
    assert_eq!(requests(&harness), 6, "one is ours, three are of known routers, two of unknown senders");
    harness.promise_elsewhere(0, load(1, 0));
    assert_eq!(requests(&harness), 4);
}

#[test]
fn cache_room_counts_all_routers() {
    let mut harness = Harness::with(1, BrainSettings::default());
    let report = maitre_base::EngineLoad { kv_tokens: Some(10_000), ..maitre_base::EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load: report });
    harness.promise_elsewhere(0, load(4, 1_000));
    let snapshot = harness.brain.fleet().snapshot_of(harness.now, WorkerId(0)).unwrap();
    assert_eq!(
        (snapshot.room, snapshot.used),
        (Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(4_400) }), Tokens(4_000))
    );
}

#[test]
fn promises_of_others_count_for_a_worker_that_joins_later() {
    let mut harness = Harness::with(1, BrainSettings::default());
    harness.promise_elsewhere(1, load(2, 500));
    harness.promise_elsewhere(2, load(9, 500));
    harness.promise_elsewhere(2, PromisedWork::default());
    for number in [1, 2] {
        harness.on(Event::WorkerJoined { url: &url(number) });
    }
    let elsewhere = |harness: &Harness| {
        harness.brain.fleet().workers().map(|it| it.promised_by_others.work).collect::<Vec<_>>()
    };
    assert_eq!(elsewhere(&harness), [PromisedWork::default(), load(2, 500), PromisedWork::default()]);
    // It leaves and comes back under another id.
    harness.on(Event::WorkerGone { worker: WorkerId(1) });
    harness.promise_elsewhere(1, load(3, 500));
    harness.on(Event::WorkerJoined { url: &url(1) });
    assert_eq!(elsewhere(&harness), [PromisedWork::default(), PromisedWork::default(), load(3, 500)]);
}

#[test]
fn updates_about_unknown_workers_are_ignored_and_bounded() {
    let mut harness = Harness::with(1, sharing(Name::StickySession));
    let before = format!("{:?}", harness.brain.fleet());
    let text = prompt(1, 10);
    for number in 100..100 + 2 * maitre_fleet::fleet::ABSENT_WORKERS_MAX as u32 {
        let worker = key_of(number);
        harness.receive(PeerUpdate::Promised { worker, work: load(1, 1) });
        harness.receive(PeerUpdate::Pinned { model: u64::from(number), session: 1, worker });
    }
    for worker in [key_of(100), 0] {
        let assessment = Assessment { verdict: Verdict::Ejected, rates: None };
        assert_eq!(harness.receive(PeerUpdate::Assessed { worker, assessment }), []);
        harness.receive(PeerUpdate::Placed { worker, prompt: &text });
        harness.receive(PeerUpdate::Promised { worker, work: PromisedWork::default() });
    }
    harness.receive(PeerUpdate::Spent {
        model: 5,
        tenant: TenantId(5),
        more: Spent { requests: 5, tokens: 5 },
    });
    assert_eq!(harness.brain.parts.placer.early_pins.len(), 4_096);
    for number in 100..100 + 2 * maitre_fleet::fleet::ABSENT_WORKERS_MAX as u32 {
        harness.receive(PeerUpdate::Promised { worker: key_of(number), work: PromisedWork::default() });
    }
    assert_eq!(format!("{:?}", harness.brain.fleet()), before, "nothing is left of it");
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
}

#[test]
fn a_recovering_worker_is_tried_by_one_router_at_a_time() {
    let mut harness = Harness::of(2);
    let one = WorkerId(0);
    harness.on(Event::Probed { worker: one, evidence: Evidence::Refused });
    harness.on(Event::Probed { worker: one, evidence: Evidence::ProbeAnswered });
    for (load, expected) in [(load(1, 100), vec![1]), (PromisedWork::default(), vec![0, 1])] {
        harness.promise_elsewhere(0, load);
        let mut fit = Vec::new();
        harness.brain.fleet().snapshots(harness.now, Wanted::Anything, Barred::default(), &mut fit);
        assert_eq!(fit.iter().map(|it| it.worker.0).collect::<Vec<_>>(), expected, "{load:?}");
    }
}

// The queue.

#[test]
fn the_limit_counts_all_routers_and_capacity_they_free_is_used() {
    let queue = maitre_queue::QueueSettings { sequences_max: 2, ..maitre_queue::QueueSettings::default() };
    let mut harness = Harness::with_queue(
        1,
        BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() },
    );
    harness.promise_elsewhere(0, load(1, 0));
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    let waits = harness.on(Event::Arrived(arrival(2, Some("llama"))));
    assert_eq!(waits, [Effect::Wait { request: RequestId(2) }]);
    assert_eq!(harness.promise_elsewhere(0, load(2, 0)), [], "more promises free nothing");
    assert_eq!(harness.promise_elsewhere(0, load(1, 0)), [], "still two there");
    assert_eq!(outcome(&harness.promise_elsewhere(0, PromisedWork::default())), Ok(0));
    assert_eq!(harness.brain.parts.scheduler.waiting(), 0);
}

#[test]
fn a_router_that_joins_late_gets_its_share_within_the_caps() {
    let settings = |sequences_max| {
        let queue = maitre_queue::QueueSettings { sequences_max, ..maitre_queue::QueueSettings::default() };
        BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() }
    };
    // How many of our requests are placed at a worker that others have filled to its limit, by routers and caps.
    for (live, cap, expected) in [(1, 0, 0), (2, 0, 4_000 / 2), (4, 0, 1_000), (4, 10, 0)] {
        let mut harness = Harness::with_queue(1, settings(cap));
        harness.receive(PeerUpdate::Routers { live, known: 4 });
        harness.come_and_go(ClassId(0));
        let most = harness.brain.limits(WorkerId(0)).unwrap();
        harness.promise_elsewhere(0, load(most.sequences, 0));
        let mut placed = 0;
        for request in 0..4_000 {
            let small = Arrival { size: Size::Tokens(1), ..arrival(request, Some("llama")) };
            let effects = harness.on(Event::Arrived(small));
            placed += effects.iter().filter(|it| matches!(it, Effect::Place(_))).count();
        }
        let expected = expected * most.sequences as usize / 4_000;
        assert_eq!(placed, expected, "{live} routers, cap {cap}, {most:?}");
    }
}

// Prompts, sessions, assessments.

#[test]
fn a_prompt_follows_a_prefix_that_another_router_placed() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        for worker in 0..4 {
            let mut harness = Harness::with(4, BrainSettings { strategy, ..BrainSettings::default() });
            harness.receive(PeerUpdate::Placed { worker: key_of(worker), prompt: &prompt(1, 100) });
            let text = prompt(1, 120);
            let placement = placement(&harness.on(Event::Arrived(chat(1, &text))));
            assert_eq!((placement.worker.0, placement.held), (worker, Some(Tokens(1_600))), "{strategy}");
        }
    }
}

#[test]
fn a_chain_that_does_not_fit_the_block_size_is_ignored() {
    let mut harness = Harness::with(2, BrainSettings::default());
    let text = PromptChain { block: 24, ..prompt(1, 100) };
    harness.receive(PeerUpdate::Placed { worker: key_of(0), prompt: &text });
    let holds = |it: u32| harness.brain.cache().numbers(WorkerId(it)).unwrap().predicted_blocks;
    assert_eq!([holds(0), holds(1)], [0, 0]);
}

#[test]
fn a_session_goes_where_another_router_pinned_it() {
    let mut harness =
        Harness::with(4, BrainSettings { strategy: Name::StickySession, ..BrainSettings::default() });
    let placement = |harness: &mut Harness, request, model| {
        outcome(&harness.on(Event::Arrived(Arrival { session: Some(7), ..arrival(request, model) }))).unwrap()
    };
    let home = placement(&mut harness, 1, Some("llama"));
    let other = (home + 1) % 4;
    harness.receive(PeerUpdate::Pinned { model: hash_of("llama"), session: 7, worker: key_of(other) });
    assert_eq!(placement(&mut harness, 2, Some("llama")), other);
    assert_eq!(placement(&mut harness, 3, None), home, "whose requests name no model is another matter");
    harness.receive(PeerUpdate::Pinned { model: 0, session: 7, worker: key_of(other) });
    assert_eq!(placement(&mut harness, 4, None), other);
}

#[test]
fn an_early_pin_gives_way_to_a_later_one() {
    let mut harness = Harness::with(4, sharing(Name::StickySession));
    let placement = |harness: &mut Harness, request, session| {
        let arrival = Arrival { session: Some(session), ..arrival(request, Some("llama")) };
        outcome(&harness.on(Event::Arrived(arrival))).unwrap()
    };
    let update =
        |session, worker| PeerUpdate::Pinned { model: hash_of("llama"), session, worker: key_of(worker) };
    for session in [1, 2] {
        harness.receive(update(session, 4));
    }
    // One session moved to another worker, the other arrived here.
    harness.receive(update(1, 2));
    let here = placement(&mut harness, 1, 2);
    let worker = WorkerId(4);
    harness.on(Event::WorkerJoined { url: &url(4) });
    harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
    harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    assert_eq!((placement(&mut harness, 2, 1), placement(&mut harness, 3, 2)), (2, here));
    assert_eq!(harness.brain.parts.placer.early_pins.len(), 0);
}

#[test]
fn a_pin_applies_when_its_worker_and_model_become_known() {
    let mut harness =
        Harness::with(0, BrainSettings { strategy: Name::StickySession, ..BrainSettings::default() });
    for session in 0..16 {
        harness.receive(PeerUpdate::Pinned {
            model: hash_of("llama"),
            session,
            worker: key_of(session as u32 % 4),
        });
    }
    for number in 0..4 {
        let worker = WorkerId(number);
        harness.on(Event::WorkerJoined { url: &url(number) });
        harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    }
    assert_eq!(harness.brain.parts.placer.early_pins.len(), 0);
    for session in 0..16 {
        let arrival = Arrival { session: Some(session), ..arrival(session, Some("llama")) };
        assert_eq!(outcome(&harness.on(Event::Arrived(arrival))), Ok(session as u32 % 4));
    }
}

#[test]
fn a_peers_doubt_asks_for_a_probe_and_no_more() {
    let mut harness = Harness::of(2);
    let worker = WorkerId(0);
    let update =
        |verdict| PeerUpdate::Assessed { worker: key_of(0), assessment: Assessment { verdict, rates: None } };
    // After this many milliseconds another router publishes this verdict, and we probe or not.
    for (millis, verdict, probes) in [
        (0, Verdict::Healthy, false),
        (0, Verdict::Suspect, true),
        (500, Verdict::Ejected, false),
        (600, Verdict::Ejected, true),
        (10, Verdict::Ejected, false),
    ] {
        harness.now = harness.now + Duration::from_millis(millis);
        let expected = if probes { vec![Effect::Probe { worker }] } else { Vec::new() };
        assert_eq!(harness.receive(update(verdict)), expected, "{verdict:?} after {millis}");
        assert_eq!(harness.brain.fleet().worker(worker).unwrap().health.state(), HealthState::Ready);
    }
    // An ejected worker is not probed again for it.
    harness.now = harness.now + Duration::from_secs(5);
    harness.on(Event::Probed { worker, evidence: Evidence::Refused });
    assert_eq!(harness.receive(update(Verdict::Ejected)), []);
}

#[test]
fn a_new_router_prices_by_the_rates_of_others() {
    let mut harness = Harness::with(2, BrainSettings::default());
    let slow = (LinearFit { base: 0.1, slope: 500e-6 }, LinearFit { base: 0.03, slope: 1e-3 });
    let fast = (LinearFit { base: 0.02, slope: 30e-6 }, LinearFit { base: 0.01, slope: 1e-4 });
    for (worker, rates) in [(0, slow), (1, fast), (0, slow), (1, fast)] {
        let assessment = Assessment { verdict: Verdict::Healthy, rates: Some(rates) };
        harness.receive(PeerUpdate::Assessed { worker: key_of(worker), assessment });
    }
    assert!(harness.brain.fleet().model_rates(harness.brain.fleet().model("llama")).rates().is_learned());
    assert!((0..20).all(|it| harness.would_go(it) == 1), "the fast one");
    harness.on(Event::Tick);
    assert!((0..20).all(|it| harness.would_go(it) == 1), "and after it was looked at again");
    harness.promise_elsewhere(1, load(2, 1_000));
    assert!((0..20).all(|it| harness.would_go(it) == 1), "also when it is busy");
}

//! What other routers tell, and what they are told: tables first, then routers that are wired together.
//!
//! The wire is the plainest there could be: what each tells arrives at all others so much later, and what all others have
//! promised is the sum of what each of them last said.

use super::*;
use crate::peers::{Assessment, Outbox, PeerUpdate};
use maitre_cluster::{Spent, Verdict};
use maitre_fleet::rates::Fit;
use maitre_fleet::worker::key;
use maitre_index::PrefixHash;

mod limit;
mod together;
mod told;

fn url(number: u32) -> String {
    format!("http://127.0.0.1:{number}")
}

fn key_of(number: u32) -> u64 {
    key(&url(number))
}

fn hash_of(model: &str) -> u64 {
    maitre_base::hash::bytes(0, model.as_bytes())
}

/// So many requests there, all with this much to prefill, and answers of a hundred tokens.
fn load(requests: u32, prefill: u64) -> PromisedWork {
    let all = |it: u64| Tokens(u64::from(requests) * it);
    let prefilling = if prefill > 0 { requests } else { 0 };
    let (prefill, decode) = (all(prefill), all(100));
    PromisedWork { requests, prefilling, prefill, decode, context: prefill + decode }
}

/// A prompt of so many blocks of 16 tokens, those of one `text` the same in all.
fn prompt(text: u64, blocks: u64) -> Prompt {
    let chain = (0..blocks).map(|it| PrefixHash(1 + text * 10_000 + it)).collect();
    Prompt { unit: Unit::Tokens, units: blocks * 16, block: 16, chain }
}

fn chat(request: u64, prompt: &Prompt) -> Arrival<'_> {
    Arrival { prompt: Some(prompt), size: Size::Tokens(prompt.units), ..arrival(request, Some("llama")) }
}

impl Table {
    fn hear(&mut self, news: PeerUpdate<'_>) -> Vec<Effect> {
        self.on(Event::Peers(news))
    }

    /// Others have this promised to a worker.
    fn promise_elsewhere(&mut self, worker: u32, load: PromisedWork) -> Vec<Effect> {
        self.hear(PeerUpdate::Promised { worker: key_of(worker), work: load })
    }

    fn outbox(&mut self) -> Outbox {
        let mut outbox = Outbox::default();
        self.brain.take_outbox(&mut outbox);
        outbox
    }

    /// Where a prompt would go now that nobody has.
    fn would_go(&mut self, text: u64) -> u32 {
        let prompt = prompt(text, 20);
        let decision = self.brain.explain(self.now, &chat(0, &prompt)).unwrap();
        decision.worker.0
    }
}

fn sharing(strategy: Name) -> Settings {
    Settings { strategy, shares: true, ..Settings::default() }
}

// What others promised.

#[test]
fn what_others_promised_moves_a_pick_and_what_they_have_done_moves_it_back() {
    for strategy in [Name::LeastDelay, Name::LeastWork, Name::LeastRequest, Name::Lmetric, Name::Preble] {
        let mut table = Table::with(2, Settings { strategy, ..Settings::default() });
        let picks = |table: &mut Table| (0..8).map(|it| table.would_go(it)).collect::<Vec<_>>();
        let alone = picks(&mut table);
        let (busy, idle) = (alone[0], 1 - alone[0]);
        for (load, expected) in [(load(3, 2_000), idle), (load(2, 0), idle), (PromisedWork::default(), busy)]
        {
            table.promise_elsewhere(busy, load);
            assert_eq!(picks(&mut table), [expected; 8], "{strategy} with {load:?}");
            // What is ours is ours.
            assert_eq!(table.promised(), [PromisedWork::default(); 2]);
        }
        assert!(
            table.brain.fleet().workers().all(|it| it.promised_by_others.work == PromisedWork::default())
        );
    }
}

#[test]
fn what_stands_there_is_the_sum_and_time_goes_into_the_first_of_all() {
    let mut table = Table::with(1, Settings::default());
    let snapshot = |table: &Table| table.brain.fleet().snapshot_of(table.now, WorkerId(0)).unwrap();
    table.now = Instant::from_millis(1_000);
    table.arrive(1, Some("llama")).unwrap();
    let alone = snapshot(&table);
    table.now = Instant::from_millis(1_010);
    table.promise_elsewhere(0, load(2, 1_000));
    let both = snapshot(&table);
    assert_eq!((both.requests, both.promised.prefilling, both.promised.prefill), (3, 3, Tokens(3_000)));
    assert_eq!((both.ours, alone.ours), ((1, Tokens(1_000)), (1, Tokens(1_000))));
    // Theirs stand behind ours, which has been computed for ten milliseconds.
    assert!((both.wait_seconds - (3.0 * alone.wait_seconds - 0.010)).abs() < 1e-9, "{}", both.wait_seconds);
    // Its first token is out: now the time goes into theirs.
    table.now = Instant::from_millis(1_060);
    table.begin(1);
    table.now = Instant::from_millis(1_070);
    let left = snapshot(&table);
    let each = 1_000.0 * left.prefill.slope;
    assert!((left.wait_seconds - (2.0 * each - 0.010)).abs() < 1e-9, "{}", left.wait_seconds);
    // And one of ours that comes now is not the first there.
    table.arrive(2, Some("llama")).unwrap();
    table.now = Instant::from_millis(1_080);
    let more = snapshot(&table).wait_seconds;
    assert!((more - (3.0 * each - 0.020)).abs() < 1e-9, "{more}");
}

#[test]
fn what_an_engine_reports_of_told_requests_is_not_foreign() {
    let mut table = Table::with(1, Settings::default());
    table.arrive(1, Some("llama")).unwrap();
    table.promise_elsewhere(0, load(3, 0));
    let report =
        maitre_base::EngineLoad { running: Some(6), waiting: Some(0), ..maitre_base::EngineLoad::default() };
    for _ in 0..2 {
        table.on(Event::LoadReported { worker: WorkerId(0), load: report });
    }
    let requests = |table: &Table| table.brain.fleet().snapshot_of(table.now, WorkerId(0)).unwrap().requests;
    assert_eq!(requests(&table), 6, "one is ours, three are told of, two are strangers");
    table.promise_elsewhere(0, load(1, 0));
    assert_eq!(requests(&table), 4);
}

#[test]
fn room_in_a_cache_is_what_all_routers_leave() {
    let mut table = Table::with(1, Settings::default());
    let report = maitre_base::EngineLoad { kv_tokens: Some(10_000), ..maitre_base::EngineLoad::default() };
    table.on(Event::LoadReported { worker: WorkerId(0), load: report });
    table.promise_elsewhere(0, load(4, 1_000));
    let snapshot = table.brain.fleet().snapshot_of(table.now, WorkerId(0)).unwrap();
    assert_eq!(
        (snapshot.room, snapshot.used),
        (Some(KvRoom { capacity: Tokens(10_000), pinned: Tokens(4_400) }), Tokens(4_000))
    );
}

#[test]
fn a_worker_that_joins_later_finds_what_was_promised_to_it() {
    let mut table = Table::with(1, Settings::default());
    table.promise_elsewhere(1, load(2, 500));
    table.promise_elsewhere(2, load(9, 500));
    table.promise_elsewhere(2, PromisedWork::default());
    for number in [1, 2] {
        table.on(Event::WorkerJoined { url: &url(number) });
    }
    let elsewhere = |table: &Table| {
        table.brain.fleet().workers().map(|it| it.promised_by_others.work).collect::<Vec<_>>()
    };
    assert_eq!(elsewhere(&table), [PromisedWork::default(), load(2, 500), PromisedWork::default()]);
    // It leaves and comes again, with another number.
    table.on(Event::WorkerGone { worker: WorkerId(1) });
    table.promise_elsewhere(1, load(3, 500));
    table.on(Event::WorkerJoined { url: &url(1) });
    assert_eq!(elsewhere(&table), [PromisedWork::default(), PromisedWork::default(), load(3, 500)]);
}

#[test]
fn what_is_not_known_is_ignored_and_bounded() {
    let mut table = Table::with(1, sharing(Name::StickySession));
    let before = format!("{:?}", table.brain.fleet());
    let text = prompt(1, 10);
    for number in 100..100 + 2 * maitre_fleet::fleet::STRANGERS_MAX as u32 {
        let worker = key_of(number);
        table.hear(PeerUpdate::Promised { worker, work: load(1, 1) });
        table.hear(PeerUpdate::Pinned { model: u64::from(number), session: 1, worker });
    }
    for worker in [key_of(100), 0] {
        let assessment = Assessment { verdict: Verdict::Ejected, rates: None };
        assert_eq!(table.hear(PeerUpdate::Assessed { worker, assessment }), []);
        table.hear(PeerUpdate::Placed { worker, prompt: &text });
        table.hear(PeerUpdate::Promised { worker, work: PromisedWork::default() });
    }
    table.hear(PeerUpdate::Spent { model: 5, tenant: TenantId(5), more: Spent { requests: 5, tokens: 5 } });
    assert_eq!(table.brain.parts.placer.early_pins.len(), 4_096);
    for number in 100..100 + 2 * maitre_fleet::fleet::STRANGERS_MAX as u32 {
        table.hear(PeerUpdate::Promised { worker: key_of(number), work: PromisedWork::default() });
    }
    assert_eq!(format!("{:?}", table.brain.fleet()), before, "nothing is left of it");
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
}

#[test]
fn one_that_comes_back_is_tried_by_one_router_at_a_time() {
    let mut table = Table::of(2);
    let one = WorkerId(0);
    table.on(Event::Probed { worker: one, evidence: Evidence::Refused });
    table.on(Event::Probed { worker: one, evidence: Evidence::ProbeAnswered });
    for (load, expected) in [(load(1, 100), vec![1]), (PromisedWork::default(), vec![0, 1])] {
        table.promise_elsewhere(0, load);
        let mut fit = Vec::new();
        table.brain.fleet().snapshots(table.now, Wanted::Anything, &[], &mut fit);
        assert_eq!(fit.iter().map(|it| it.worker.0).collect::<Vec<_>>(), expected, "{load:?}");
    }
}

// The line.

#[test]
fn the_knee_holds_over_all_routers_and_what_they_free_lets_somebody_go() {
    let queue = maitre_queue::Settings { sequences_max: 2, ..maitre_queue::Settings::default() };
    let mut table =
        Table::with_line(1, Settings { strategy: Name::RoundRobin, queue, ..Settings::default() });
    table.promise_elsewhere(0, load(1, 0));
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
    let waits = table.on(Event::Arrived(arrival(2, Some("llama"))));
    assert_eq!(waits, [Effect::Wait { request: RequestId(2) }]);
    assert_eq!(table.promise_elsewhere(0, load(2, 0)), [], "more frees nobody");
    assert_eq!(table.promise_elsewhere(0, load(1, 0)), [], "still two there");
    assert_eq!(outcome(&table.promise_elsewhere(0, PromisedWork::default())), Ok(0));
    assert_eq!(table.brain.parts.scheduler.waiting(), 0);
}

#[test]
fn a_router_that_comes_late_gets_its_part_and_the_caps_hold() {
    let settings = |sequences_max| {
        let queue = maitre_queue::Settings { sequences_max, ..maitre_queue::Settings::default() };
        Settings { strategy: Name::RoundRobin, queue, ..Settings::default() }
    };
    // How many of ours go where others have filled a worker to its knee, by routers and caps.
    for (heard, cap, expected) in [(1, 0, 0), (2, 0, 4_000 / 2), (4, 0, 1_000), (4, 10, 0)] {
        let mut table = Table::with_line(1, settings(cap));
        table.hear(PeerUpdate::Routers { live: heard, known: 4 });
        let most = table.brain.limits(WorkerId(0)).unwrap();
        table.promise_elsewhere(0, load(most.sequences, 0));
        let mut seated = 0;
        for request in 0..4_000 {
            let small = Arrival { size: Size::Tokens(1), ..arrival(request, Some("llama")) };
            let effects = table.on(Event::Arrived(small));
            seated += effects.iter().filter(|it| matches!(it, Effect::Place(_))).count();
        }
        let expected = expected * most.sequences as usize / 4_000;
        assert_eq!(seated, expected, "{heard} routers, cap {cap}, {most:?}");
    }
}

// What caches hold, sessions, verdicts.

#[test]
fn a_prompt_follows_where_another_router_sent_its_beginning() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        for worker in 0..4 {
            let mut table = Table::with(4, Settings { strategy, ..Settings::default() });
            table.hear(PeerUpdate::Placed { worker: key_of(worker), prompt: &prompt(1, 100) });
            let text = prompt(1, 120);
            let placement = placement(&table.on(Event::Arrived(chat(1, &text))));
            assert_eq!((placement.worker.0, placement.held), (worker, Some(Tokens(1_600))), "{strategy}");
        }
    }
}

#[test]
fn a_chain_that_does_not_fit_the_blocks_there_is_passed_over() {
    let mut table = Table::with(2, Settings::default());
    let text = Prompt { block: 24, ..prompt(1, 100) };
    table.hear(PeerUpdate::Placed { worker: key_of(0), prompt: &text });
    let holds = |it: u32| table.brain.cache().numbers(WorkerId(it)).unwrap().predicted_blocks;
    assert_eq!([holds(0), holds(1)], [0, 0]);
}

#[test]
fn a_session_goes_where_another_router_pinned_it() {
    let mut table = Table::with(4, Settings { strategy: Name::StickySession, ..Settings::default() });
    let placement = |table: &mut Table, request, model| {
        outcome(&table.on(Event::Arrived(Arrival { session: Some(7), ..arrival(request, model) }))).unwrap()
    };
    let home = placement(&mut table, 1, Some("llama"));
    let other = (home + 1) % 4;
    table.hear(PeerUpdate::Pinned { model: hash_of("llama"), session: 7, worker: key_of(other) });
    assert_eq!(placement(&mut table, 2, Some("llama")), other);
    assert_eq!(placement(&mut table, 3, None), home, "whose requests name no model is another matter");
    table.hear(PeerUpdate::Pinned { model: 0, session: 7, worker: key_of(other) });
    assert_eq!(placement(&mut table, 4, None), other);
}

#[test]
fn a_pin_that_came_too_early_gives_way_to_what_came_after_it() {
    let mut table = Table::with(4, sharing(Name::StickySession));
    let placement = |table: &mut Table, request, session| {
        let arrival = Arrival { session: Some(session), ..arrival(request, Some("llama")) };
        outcome(&table.on(Event::Arrived(arrival))).unwrap()
    };
    let told =
        |session, worker| PeerUpdate::Pinned { model: hash_of("llama"), session, worker: key_of(worker) };
    for session in [1, 2] {
        table.hear(told(session, 4));
    }
    // One moved on elsewhere, the other came here.
    table.hear(told(1, 2));
    let here = placement(&mut table, 1, 2);
    let worker = WorkerId(4);
    table.on(Event::WorkerJoined { url: &url(4) });
    table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
    table.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    assert_eq!((placement(&mut table, 2, 1), placement(&mut table, 3, 2)), (2, here));
    assert_eq!(table.brain.parts.placer.early_pins.len(), 0);
}

#[test]
fn a_pin_that_comes_before_its_worker_and_its_model_counts_when_they_do() {
    let mut table = Table::with(0, Settings { strategy: Name::StickySession, ..Settings::default() });
    for session in 0..16 {
        table.hear(PeerUpdate::Pinned {
            model: hash_of("llama"),
            session,
            worker: key_of(session as u32 % 4),
        });
    }
    for number in 0..4 {
        let worker = WorkerId(number);
        table.on(Event::WorkerJoined { url: &url(number) });
        table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        table.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    }
    assert_eq!(table.brain.parts.placer.early_pins.len(), 0);
    for session in 0..16 {
        let arrival = Arrival { session: Some(session), ..arrival(session, Some("llama")) };
        assert_eq!(outcome(&table.on(Event::Arrived(arrival))), Ok(session as u32 % 4));
    }
}

#[test]
fn a_doubt_of_others_is_a_reason_to_look_and_no_more() {
    let mut table = Table::of(2);
    let worker = WorkerId(0);
    let told =
        |verdict| PeerUpdate::Assessed { worker: key_of(0), assessment: Assessment { verdict, rates: None } };
    // After so many milliseconds a router says so, and we probe or not.
    for (millis, verdict, probes) in [
        (0, Verdict::Healthy, false),
        (0, Verdict::Suspect, true),
        (500, Verdict::Ejected, false),
        (600, Verdict::Ejected, true),
        (10, Verdict::Ejected, false),
    ] {
        table.now = table.now + Duration::from_millis(millis);
        let expected = if probes { vec![Effect::Probe { worker }] } else { Vec::new() };
        assert_eq!(table.hear(told(verdict)), expected, "{verdict:?} after {millis}");
        assert_eq!(table.brain.fleet().worker(worker).unwrap().health.state(), State::Ready);
    }
    // Who is out here needs no more of it.
    table.now = table.now + Duration::from_secs(5);
    table.on(Event::Probed { worker, evidence: Evidence::Refused });
    assert_eq!(table.hear(told(Verdict::Ejected)), []);
}

#[test]
fn a_router_that_has_seen_nothing_prices_as_others_have_learned() {
    let mut table = Table::with(2, Settings::default());
    let slow = (Fit { base: 0.1, slope: 500e-6 }, Fit { base: 0.03, slope: 1e-3 });
    let fast = (Fit { base: 0.02, slope: 30e-6 }, Fit { base: 0.01, slope: 1e-4 });
    for (worker, rates) in [(0, slow), (1, fast), (0, slow), (1, fast)] {
        let assessment = Assessment { verdict: Verdict::Healthy, rates: Some(rates) };
        table.hear(PeerUpdate::Assessed { worker: key_of(worker), assessment });
    }
    assert!(table.brain.fleet().rates().is_learned());
    assert!((0..20).all(|it| table.would_go(it) == 1), "the fast one");
    table.on(Event::Tick);
    assert!((0..20).all(|it| table.would_go(it) == 1), "and after it was looked at again");
    table.promise_elsewhere(1, load(2, 1_000));
    assert!((0..20).all(|it| table.would_go(it) == 1), "also when it is busy");
}

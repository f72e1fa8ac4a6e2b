//! New settings for a running brain.

use super::*;
use crate::brain::reconfigure::{Fixed, NeedsRestart};

fn change(harness: &mut Harness, change: impl FnOnce(&mut BrainSettings)) -> Result<Vec<Effect>, Vec<Fixed>> {
    let mut settings = harness.brain.settings().clone();
    change(&mut settings);
    let mut effects = Vec::new();
    let result = harness.brain.reconfigure(harness.now, settings, &mut effects);
    result.map(|()| effects).map_err(|it| it.fixed)
}

#[test]
fn turns_and_pins_survive_new_settings_unless_the_strategy_changes() {
    let mut harness = Harness::of(3);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    change(&mut harness, |it| it.knobs.load_factor = 2.0).unwrap();
    assert_eq!(harness.arrive(2, Some("llama")), Ok(1), "its turn goes on");

    change(&mut harness, |it| it.strategy = Name::StickySession).unwrap();
    let sit = |harness: &mut Harness, request| {
        outcome(&harness.on(Event::Arrived(Arrival { session: Some(9), ..arrival(request, Some("llama")) })))
    };
    let home = sit(&mut harness, 3).unwrap();
    let gone = WorkerId(home);
    harness.on(Event::WorkerDrained { worker: gone, draining: true });
    let moved = sit(&mut harness, 4).unwrap();
    harness.on(Event::WorkerDrained { worker: gone, draining: false });
    change(&mut harness, |it| it.failovers_max = 3).unwrap();
    assert_eq!(sit(&mut harness, 5), Ok(moved), "it is pinned there still");
    change(&mut harness, |it| it.strategy = Name::RoundRobin).unwrap();
    assert_eq!(sit(&mut harness, 6), Ok(0), "turns begin anew");
}

#[test]
fn a_model_gets_and_loses_a_strategy_of_its_own() {
    let mut harness = Harness::of(2);
    let name = |harness: &mut Harness, request| {
        harness.arrive(request, Some("llama")).unwrap();
        harness.last().strategy
    };
    assert_eq!(name(&mut harness, 1), Name::RoundRobin);
    change(&mut harness, |it| it.strategies = BTreeMap::from([("llama".to_owned(), Name::Lmetric)])).unwrap();
    assert_eq!(name(&mut harness, 2), Name::Lmetric);
    assert!(harness.brain.plan(Some("llama")).is_some_and(|it| it.reader == PromptReader::Strategy));
    change(&mut harness, |it| it.strategies.clear()).unwrap();
    assert_eq!(name(&mut harness, 3), Name::RoundRobin);
}

#[test]
fn fixed_settings_are_named_all_at_once_and_nothing_changes() {
    let mut harness = Harness::of(2);
    let fixed = change(&mut harness, |it| {
        it.strategy = Name::Random;
        it.seed = 7;
        it.index.budget_bytes /= 2;
        it.queue.classes.truncate(2);
    });
    assert_eq!(fixed, Err(vec![Fixed::Seed, Fixed::Index, Fixed::Classes]));
    assert_eq!(harness.brain.settings().strategy, Name::RoundRobin);
    let error = NeedsRestart { fixed: vec![Fixed::Index, Fixed::Classes] }.to_string();
    assert!(error.contains("index.budget, classes"), "{error}");
    // What a class allows may change.
    change(&mut harness, |it| it.queue.classes[0].requests_max = 1).unwrap();
}

#[test]
fn counters_stay_exact_when_the_strategy_changes_under_pending_requests() {
    let text = prompt(3, 60);
    let mut harness =
        Harness::with(3, BrainSettings { strategy: Name::RoundRobin, ..BrainSettings::default() });
    let names = [Name::DynamoCost, Name::LeastDelay, Name::DynamoCost, Name::RoundRobin, Name::CacheAware];
    for (round, name) in names.into_iter().enumerate() {
        let first = round as u64 * 10;
        (first..first + 10).for_each(|it| drop(harness.on(Event::Arrived(chat(it, &text)))));
        harness.after(30).begin(first + 1);
        harness.fail_attempt(first + 2, Failure::Busy);
        harness.on(Event::Finished { request: RequestId(first + 3), counted: None, pieces: 9 });
        change(&mut harness, |it| it.strategy = name).unwrap();
        // All placed requests use the same blocks, which are counted while a strategy asks for it.
        let used = |it| {
            harness.brain.parts.placer.in_use.as_ref().map(|in_use| in_use.at(WorkerId(it), Some(&text)))
        };
        let placed = harness.promised().iter().filter(|it| it.requests > 0).count();
        let counted = (0..3).filter_map(used).filter(|it| it.of_prompt == Tokens(960)).count();
        assert_eq!(counted, if name == Name::DynamoCost { placed } else { 0 }, "{name}");
    }
    (0..50).for_each(|it| drop(harness.on(Event::Left { request: RequestId(it) })));
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 3], 0));
}

#[test]
fn queued_requests_that_wait_for_a_worker_count_there_when_a_strategy_begins_to_ask() {
    let queue = maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let settings = BrainSettings { strategy: Name::LeastDelay, queue, ..BrainSettings::default() };
    let mut harness = Harness::with_queue(1, settings);
    let texts = [prompt(1, 60), prompt(2, 60)];
    (0..2).for_each(|it| drop(harness.on(Event::Arrived(chat(it as u64, &texts[it])))));
    assert_eq!(harness.brain.waiting(ClassId(1)).requests, 1);
    change(&mut harness, |it| it.strategy = Name::DynamoCost).unwrap();
    let used = |harness: &Harness| harness.brain.parts.placer.in_use.as_ref().unwrap().at(WorkerId(0), None);
    assert_eq!(used(&harness).all, Tokens(2 * 960));
    (0..2).for_each(|it| drop(harness.on(Event::Left { request: RequestId(it) })));
    assert_eq!((used(&harness).all, harness.brain.open()), (Tokens::ZERO, 0));
}

#[test]
fn queued_requests_keep_their_places_and_go_at_once_when_the_queue_is_switched_off() {
    let queue = maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let settings = BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() };
    let mut harness = Harness::with_queue(1, settings);
    (1..=4).for_each(|it| drop(harness.after(5).on(Event::Arrived(arrival(it, Some("llama"))))));
    assert_eq!(harness.brain.waiting(ClassId(1)).requests, 3);
    let fewer = |it: &mut BrainSettings| {
        (it.queue.classes[1].requests_max, it.queue.classes[1].tokens_max) = (1, 1);
        it.queue.aging = Duration::from_secs(1);
    };
    assert_eq!(change(&mut harness, fewer), Ok(vec![]));
    assert_eq!(harness.brain.waiting(ClassId(1)).requests, 3, "no queued request is refused");
    assert!(matches!(harness.arrive(9, Some("llama")), Err(Refusal::QueueFull { .. })));
    harness.on(Event::Left { request: RequestId(1) });
    assert_eq!(harness.brain.worker_of(RequestId(2)), Some(WorkerId(0)));

    let effects = change(harness.after(5), |it| it.queue.enabled = false).unwrap();
    let placed: Vec<_> = effects
        .iter()
        .map(|it| match it {
            Effect::Place(placement) => (placement.request.0, placement.waited > Duration::ZERO),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(placed, [(3, true), (4, true)]);
    assert_eq!((harness.brain.waiting(ClassId(1)).requests, harness.brain.due()), (0, None));
    change(&mut harness, |it| it.queue.enabled = true).unwrap();
    (2..=4).for_each(|it| drop(harness.on(Event::Left { request: RequestId(it) })));
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default()], 0));
}

#[test]
fn records_and_shadows_come_and_go() {
    let mut harness = Harness::of(3);
    (1..=5).for_each(|it| assert!(harness.arrive(it, Some("llama")).is_ok()));
    change(&mut harness, |it| (it.explain.decisions, it.shadows) = (2, vec![Name::LeastWork])).unwrap();
    assert_eq!(harness.brain.decisions().since(0).map(|it| it.number).collect::<Vec<_>>(), [4, 5]);
    harness.arrive(6, Some("llama")).unwrap();
    assert_eq!(harness.last().shadows.len(), 1);
    change(&mut harness, |it| it.shadows = vec![Name::Random, Name::LeastWork]).unwrap();
    harness.arrive(7, Some("llama")).unwrap();
    let counts: Vec<_> = harness.brain.shadows().map(|it| (it.name, it.decisions)).collect();
    assert_eq!(counts, [(Name::Random, 1), (Name::LeastWork, 2)]);
    change(&mut harness, |it| (it.explain.decisions, it.shadows) = (0, vec![])).unwrap();
    harness.arrive(8, Some("llama")).unwrap();
    assert_eq!((harness.brain.decisions().since(0).count(), harness.brain.shadows().count()), (0, 0));
    // Requests end whose records are gone.
    (1..=8).for_each(|it| drop(harness.on(Event::Left { request: RequestId(it) })));
}

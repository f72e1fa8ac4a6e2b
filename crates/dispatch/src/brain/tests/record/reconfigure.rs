//! Other settings in the middle of everything.

use super::*;
use crate::brain::reconfigure::{Fixed, NeedsRestart};

fn change(table: &mut Table, change: impl FnOnce(&mut Settings)) -> Result<Vec<Effect>, Vec<Fixed>> {
    let mut settings = table.brain.settings().clone();
    change(&mut settings);
    let mut effects = Vec::new();
    let result = table.brain.reconfigure(table.now, settings, &mut effects);
    result.map(|()| effects).map_err(|it| it.fixed)
}

#[test]
fn turns_and_pins_outlive_other_settings_and_another_rule_begins_anew() {
    let mut table = Table::of(3);
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
    change(&mut table, |it| it.knobs.load_factor = 2.0).unwrap();
    assert_eq!(table.arrive(2, Some("llama")), Ok(1), "its turn goes on");

    change(&mut table, |it| it.strategy = Name::StickySession).unwrap();
    let sit = |table: &mut Table, request| {
        outcome(&table.on(Event::Arrived(Arrival { session: Some(9), ..arrival(request, Some("llama")) })))
    };
    let home = sit(&mut table, 3).unwrap();
    let gone = WorkerId(home);
    table.on(Event::WorkerDrained { worker: gone, draining: true });
    let moved = sit(&mut table, 4).unwrap();
    table.on(Event::WorkerDrained { worker: gone, draining: false });
    change(&mut table, |it| it.failovers_max = 3).unwrap();
    assert_eq!(sit(&mut table, 5), Ok(moved), "it is pinned there still");
    change(&mut table, |it| it.strategy = Name::RoundRobin).unwrap();
    assert_eq!(sit(&mut table, 6), Ok(0), "turns begin anew");
}

#[test]
fn a_model_gets_and_loses_a_strategy_of_its_own() {
    let mut table = Table::of(2);
    let name = |table: &mut Table, request| {
        table.arrive(request, Some("llama")).unwrap();
        table.last().strategy
    };
    assert_eq!(name(&mut table, 1), Name::RoundRobin);
    change(&mut table, |it| it.strategies = BTreeMap::from([("llama".to_owned(), Name::Lmetric)])).unwrap();
    assert_eq!(name(&mut table, 2), Name::Lmetric);
    assert!(table.brain.plan(Some("llama")).is_some_and(|it| it.reader == Reader::Strategy));
    change(&mut table, |it| it.strategies.clear()).unwrap();
    assert_eq!(name(&mut table, 3), Name::RoundRobin);
}

#[test]
fn what_cannot_change_is_named_all_at_once_and_nothing_changes() {
    let mut table = Table::of(2);
    let fixed = change(&mut table, |it| {
        it.strategy = Name::Random;
        it.seed = 7;
        it.index.budget_bytes /= 2;
        it.queue.classes.truncate(2);
    });
    assert_eq!(fixed, Err(vec![Fixed::Seed, Fixed::Index, Fixed::Classes]));
    assert_eq!(table.brain.settings().strategy, Name::RoundRobin);
    let error = NeedsRestart { fixed: vec![Fixed::Index, Fixed::Classes] }.to_string();
    assert!(error.contains("index.budget, classes"), "{error}");
    // What a class allows is another matter.
    change(&mut table, |it| it.queue.classes[0].requests_max = 1).unwrap();
}

#[test]
fn a_strategy_may_change_under_open_requests_and_every_counter_stays_exact() {
    let text = prompt(3, 60);
    let mut table = Table::with(3, Settings { strategy: Name::RoundRobin, ..Settings::default() });
    let names = [Name::DynamoCost, Name::LeastDelay, Name::DynamoCost, Name::RoundRobin, Name::CacheAware];
    for (round, name) in names.into_iter().enumerate() {
        let first = round as u64 * 10;
        (first..first + 10).for_each(|it| drop(table.on(Event::Arrived(chat(it, &text)))));
        table.after(30).begin(first + 1);
        table.break_down(first + 2, Failure::Busy);
        table.on(Event::Finished { request: RequestId(first + 3), counted: None, pieces: 9 });
        change(&mut table, |it| it.strategy = name).unwrap();
        // All who are seated read the same, and are counted wherever somebody asks for it.
        let used =
            |it| table.brain.parts.placer.in_use.as_ref().map(|in_use| in_use.at(WorkerId(it), Some(&text)));
        let seated = table.promised().iter().filter(|it| it.requests > 0).count();
        let counted = (0..3).filter_map(used).filter(|it| it.of_prompt == Tokens(960)).count();
        assert_eq!(counted, if name == Name::DynamoCost { seated } else { 0 }, "{name}");
    }
    (0..50).for_each(|it| drop(table.on(Event::Left { request: RequestId(it) })));
    assert_eq!((table.promised(), table.brain.open()), (vec![PromisedWork::default(); 3], 0));
}

#[test]
fn who_stands_in_line_keeps_its_place_and_goes_at_once_if_there_is_no_line_any_more() {
    let queue = maitre_queue::Settings { sequences_max: 1, ..maitre_queue::Settings::default() };
    let settings = Settings { strategy: Name::RoundRobin, queue, ..Settings::default() };
    let mut table = Table::with_line(1, settings);
    (1..=4).for_each(|it| drop(table.after(5).on(Event::Arrived(arrival(it, Some("llama"))))));
    assert_eq!(table.brain.waiting(ClassId(1)).requests, 3);
    let fewer = |it: &mut Settings| {
        (it.queue.classes[1].requests_max, it.queue.classes[1].tokens_max) = (1, 1);
        it.queue.aging = Duration::from_secs(1);
    };
    assert_eq!(change(&mut table, fewer), Ok(vec![]));
    assert_eq!(table.brain.waiting(ClassId(1)).requests, 3, "nobody is sent away");
    assert!(matches!(table.arrive(9, Some("llama")), Err(Refusal::QueueFull { .. })));
    table.on(Event::Left { request: RequestId(1) });
    assert_eq!(table.brain.worker_of(RequestId(2)), Some(WorkerId(0)));

    let told = change(table.after(5), |it| it.queue.enabled = false).unwrap();
    let seats: Vec<_> = told
        .iter()
        .map(|it| match it {
            Effect::Place(placement) => (placement.request.0, placement.waited > Duration::ZERO),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seats, [(3, true), (4, true)]);
    assert_eq!((table.brain.waiting(ClassId(1)).requests, table.brain.due()), (0, None));
    change(&mut table, |it| it.queue.enabled = true).unwrap();
    (2..=4).for_each(|it| drop(table.on(Event::Left { request: RequestId(it) })));
    assert_eq!((table.promised(), table.brain.open()), (vec![PromisedWork::default()], 0));
}

#[test]
fn records_and_shadows_come_and_go() {
    let mut table = Table::of(3);
    (1..=5).for_each(|it| assert!(table.arrive(it, Some("llama")).is_ok()));
    change(&mut table, |it| (it.explain.decisions, it.shadows) = (2, vec![Name::LeastWork])).unwrap();
    assert_eq!(table.brain.decisions().since(0).map(|it| it.number).collect::<Vec<_>>(), [4, 5]);
    table.arrive(6, Some("llama")).unwrap();
    assert_eq!(table.last().shadows.len(), 1);
    change(&mut table, |it| it.shadows = vec![Name::Random, Name::LeastWork]).unwrap();
    table.arrive(7, Some("llama")).unwrap();
    let counts: Vec<_> = table.brain.shadows().map(|it| (it.name, it.decisions)).collect();
    assert_eq!(counts, [(Name::Random, 1), (Name::LeastWork, 2)]);
    change(&mut table, |it| (it.explain.decisions, it.shadows) = (0, vec![])).unwrap();
    table.arrive(8, Some("llama")).unwrap();
    assert_eq!((table.brain.decisions().since(0).count(), table.brain.shadows().count()), (0, 0));
    // The end of one whose record is gone.
    (1..=8).for_each(|it| drop(table.on(Event::Left { request: RequestId(it) })));
}

//! Numbers are used again: when, whose, and that nothing of the last owner reaches the next.

use super::*;
use crate::settings::QUARANTINE;
use maitre_base::EngineLoad;

/// Past the quarantine of all who have left.
fn rest(table: &mut Table) {
    table.now = table.now + QUARANTINE;
}

fn join(table: &mut Table, url: &str) -> u32 {
    let joined = table.on(Event::WorkerJoined { url }).into_iter().find_map(|it| match it {
        Effect::Watch { worker } => Some(worker),
        _ => None,
    });
    let worker = joined.unwrap();
    table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
    table.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    worker.0
}

fn leave(table: &mut Table, worker: u32) {
    table.on(Event::WorkerGone { worker: WorkerId(worker) });
}

fn end(table: &mut Table, request: u64) {
    table.on(Event::Finished { request: RequestId(request), counted: None, pieces: 2 });
}

#[test]
fn the_lowest_number_that_has_rested_is_used_again() {
    let mut table = Table::of(3);
    leave(&mut table, 2);
    leave(&mut table, 0);
    table.now = table.now + (QUARANTINE - Duration::from_nanos(1));
    assert_eq!(join(&mut table, "http://early"), 3, "a moment too soon");
    table.now = table.now + Duration::from_nanos(1);
    assert_eq!(join(&mut table, "http://b"), 0);
    assert_eq!(join(&mut table, "http://c"), 2);
    assert_eq!(join(&mut table, "http://d"), 4);
    // Whoever is said to have left twice has left when it did.
    leave(&mut table, 0);
    rest(&mut table);
    assert!(table.on(Event::WorkerGone { worker: WorkerId(0) }).is_empty());
    assert_eq!(join(&mut table, "http://e"), 0);
}

#[test]
fn a_year_of_pods_that_come_and_go_needs_two_numbers() {
    let mut table = Table::of(1);
    for pod in 0..1_000 {
        let worker = join(&mut table, &format!("http://pod-{pod}"));
        assert_eq!(worker, 1);
        leave(&mut table, worker);
        rest(&mut table);
    }
    assert_eq!(table.brain.fleet().numbers(), 2);
}

#[test]
fn a_number_waits_for_the_requests_that_were_there_and_their_ends_are_not_the_next_ones() {
    let mut table = Table::of(1);
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
    assert_eq!(table.arrive(2, Some("llama")), Ok(0));
    table.begin(2);
    leave(&mut table, 0);
    rest(&mut table);
    assert_eq!(join(&mut table, "http://b"), 1, "two are still there");
    end(&mut table, 1);
    assert_eq!(join(&mut table, "http://c"), 2, "one is");
    table.begin(2);
    end(&mut table, 2);
    assert_eq!(join(&mut table, "http://d"), 0);
    assert_eq!(table.promised(), [PromisedWork::default(); 3]);
}

#[test]
fn a_number_waits_for_those_who_failed_there() {
    let mut table = Table::of(2);
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
    assert_eq!(table.fail(1, Failure::Refused), Ok(1));
    leave(&mut table, 0);
    rest(&mut table);
    // Else it would not be asked, though it never failed.
    assert_eq!(join(&mut table, "http://b"), 2);
    assert_eq!(table.fail(1, Failure::Refused), Ok(2));
    end(&mut table, 1);
    assert_eq!(join(&mut table, "http://c"), 0);
}

#[test]
fn what_was_known_of_a_cache_goes_with_its_worker() {
    let mut table = Table::with(1, Settings { strategy: Name::LeastDelay, ..Settings::default() });
    let load = EngineLoad { kv_tokens: Some(64_000), block_size: Some(64), ..EngineLoad::default() };
    table.on(Event::LoadReported { worker: WorkerId(0), load });
    table.on(Event::TrustChanged { worker: WorkerId(0), trust: maitre_index::feed::Trust::Fresh });
    assert_eq!(
        (table.brain.parts.cache.block(WorkerId(0)), table.brain.parts.cache.anyone_reports()),
        (64, true)
    );
    leave(&mut table, 0);
    rest(&mut table);
    assert_eq!(join(&mut table, "http://b"), 0);
    let cache = table.brain.cache();
    assert_eq!((cache.block(WorkerId(0)), cache.anyone_reports()), (crate::cache::BLOCK_TOKENS, false));
    assert_eq!(cache.holds(WorkerId(0)), Tokens::ZERO);
}

#[test]
fn a_record_and_a_vote_know_whose_the_number_was() {
    let settings =
        Settings { strategy: Name::RoundRobin, shadows: vec![Name::Random], ..Settings::default() };
    let mut table = Table::with(1, settings);
    let first = table.brain.fleet().worker(WorkerId(0)).unwrap().key;
    table.arrive(1, Some("llama")).unwrap();
    end(&mut table, 1);
    leave(&mut table, 0);
    rest(&mut table);
    assert_eq!(join(&mut table, "http://b"), 0);
    let decision = table.brain.decisions().get(1).unwrap();
    assert_eq!(decision.chosen().map(|it| it.candidate.key), Some(first));
    assert_eq!(decision.shadows[0].key, first);
    assert_ne!(table.brain.fleet().worker(WorkerId(0)).unwrap().key, first);
}

//! Reused worker ids: when, and that nothing of the last owner reaches the next.

use super::*;
use crate::settings::QUARANTINE;
use maitre_base::EngineLoad;

/// Waits for the quarantine of all ids.
fn rest(harness: &mut Harness) {
    harness.now = harness.now + QUARANTINE;
}

fn join(harness: &mut Harness, url: &str) -> u32 {
    let joined = harness.on(Event::WorkerJoined { url }).into_iter().find_map(|it| match it {
        Effect::Watch { worker } => Some(worker),
        _ => None,
    });
    let worker = joined.unwrap();
    harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
    harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    worker.0
}

fn leave(harness: &mut Harness, worker: u32) {
    harness.on(Event::WorkerGone { worker: WorkerId(worker) });
}

fn end(harness: &mut Harness, request: u64) {
    harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 2 });
}

#[test]
fn the_lowest_id_that_has_rested_is_reused() {
    let mut harness = Harness::of(3);
    leave(&mut harness, 2);
    leave(&mut harness, 0);
    harness.now = harness.now + (QUARANTINE - Duration::from_nanos(1));
    assert_eq!(join(&mut harness, "http://early"), 3, "a moment too soon");
    harness.now = harness.now + Duration::from_nanos(1);
    assert_eq!(join(&mut harness, "http://b"), 0);
    assert_eq!(join(&mut harness, "http://c"), 2);
    assert_eq!(join(&mut harness, "http://d"), 4);
    // A second departure changes nothing.
    leave(&mut harness, 0);
    rest(&mut harness);
    assert!(harness.on(Event::WorkerGone { worker: WorkerId(0) }).is_empty());
    assert_eq!(join(&mut harness, "http://e"), 0);
}

#[test]
fn a_thousand_pods_in_a_row_need_two_ids() {
    let mut harness = Harness::of(1);
    for pod in 0..1_000 {
        let worker = join(&mut harness, &format!("http://pod-{pod}"));
        assert_eq!(worker, 1);
        leave(&mut harness, worker);
        rest(&mut harness);
    }
    assert_eq!(harness.brain.fleet().numbers(), 2);
}

#[test]
fn an_id_is_not_reused_while_requests_placed_there_are_pending() {
    let mut harness = Harness::of(1);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    assert_eq!(harness.arrive(2, Some("llama")), Ok(0));
    harness.begin(2);
    leave(&mut harness, 0);
    rest(&mut harness);
    assert_eq!(join(&mut harness, "http://b"), 1, "two are still there");
    end(&mut harness, 1);
    assert_eq!(join(&mut harness, "http://c"), 2, "one is");
    harness.begin(2);
    end(&mut harness, 2);
    assert_eq!(join(&mut harness, "http://d"), 0);
    assert_eq!(harness.promised(), [PromisedWork::default(); 3]);
}

#[test]
fn an_id_is_not_reused_while_a_request_that_failed_there_is_pending() {
    let mut harness = Harness::of(2);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    assert_eq!(harness.fail(1, Failure::Refused), Ok(1));
    leave(&mut harness, 0);
    rest(&mut harness);
    // Otherwise the new worker would be excluded, though it never failed.
    assert_eq!(join(&mut harness, "http://b"), 2);
    assert_eq!(harness.fail(1, Failure::Refused), Ok(2));
    end(&mut harness, 1);
    assert_eq!(join(&mut harness, "http://c"), 0);
}

#[test]
fn cache_contents_are_forgotten_with_their_worker() {
    let mut harness =
        Harness::with(1, BrainSettings { strategy: Name::LeastDelay, ..BrainSettings::default() });
    let load = EngineLoad { kv_tokens: Some(64_000), block_size: Some(64), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    harness.on(Event::TrustChanged { worker: WorkerId(0), trust: maitre_index::feed::Trust::Fresh });
    assert_eq!(
        (harness.brain.parts.cache.block(WorkerId(0)), harness.brain.parts.cache.anyone_reports()),
        (64, true)
    );
    leave(&mut harness, 0);
    rest(&mut harness);
    assert_eq!(join(&mut harness, "http://b"), 0);
    let cache = harness.brain.cache();
    assert_eq!((cache.block(WorkerId(0)), cache.anyone_reports()), (crate::cache::BLOCK_TOKENS, false));
    assert_eq!(cache.known().holds(WorkerId(0)), Tokens::ZERO);
}

#[test]
fn a_record_and_a_vote_keep_the_workers_key() {
    let settings =
        BrainSettings { strategy: Name::RoundRobin, shadows: vec![Name::Random], ..BrainSettings::default() };
    let mut harness = Harness::with(1, settings);
    let first = harness.brain.fleet().worker(WorkerId(0)).unwrap().key;
    harness.arrive(1, Some("llama")).unwrap();
    end(&mut harness, 1);
    leave(&mut harness, 0);
    rest(&mut harness);
    assert_eq!(join(&mut harness, "http://b"), 0);
    let decision = harness.brain.decisions().get(1).unwrap();
    assert_eq!(decision.chosen().map(|it| it.candidate.key), Some(first));
    assert_eq!(decision.shadows[0].key, first);
    assert_ne!(harness.brain.fleet().worker(WorkerId(0)).unwrap().key, first);
}

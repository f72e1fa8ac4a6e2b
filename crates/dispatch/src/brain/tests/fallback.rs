//! Requests that a gateway carries: the workers that may take them, those that come next, and where a promise moves.

use super::*;
use crate::observer::decision::AttemptOutcome;

fn ids(numbers: &[u32]) -> Vec<WorkerId> {
    numbers.iter().map(|&it| WorkerId(it)).collect()
}

#[track_caller]
fn check_only(allowed: &[u32], expected: Result<u32, Refusal>) {
    let mut harness = Harness::of(4);
    let only = ids(allowed);
    let arrival = Arrival { only: Some(&only), ..arrival(1, Some("llama")) };
    assert_eq!(outcome(&harness.on(Event::Arrived(arrival))), expected, "{allowed:?}");
}

#[test]
fn a_request_goes_to_an_allowed_worker_or_nowhere() {
    check_only(&[2], Ok(2));
    check_only(&[3, 1], Ok(1));
    check_only(&[9], Err(Refusal::NoWorker));
    check_only(&[], Err(Refusal::NoWorker));
}

#[test]
fn a_request_waits_for_an_allowed_worker_though_others_have_room() {
    let mut settings = BrainSettings { strategy: Name::LeastRequest, ..BrainSettings::default() };
    settings.queue.sequences_max = 1;
    let mut harness = Harness::with_queue(2, settings);
    let only = ids(&[0]);
    let limited = |request| Arrival { only: Some(&only), ..arrival(request, Some("llama")) };
    assert_eq!(outcome(&harness.on(Event::Arrived(limited(1)))), Ok(0));
    let effects = harness.on(Event::Arrived(limited(2)));
    assert_eq!(effects, [Effect::Wait { request: RequestId(2) }]);
    harness.begin(1);
    let effects = harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 10 });
    assert_eq!(outcome(&effects), Ok(0));
}

#[test]
fn fallbacks_are_what_the_strategy_would_pick_next() {
    let mut harness =
        Harness::with(4, BrainSettings { strategy: Name::LeastRequest, ..BrainSettings::default() });
    // Three requests at worker 0, one at worker 3.
    for (request, worker) in [(10, 0), (11, 0), (12, 0), (13, 3)] {
        let only = ids(&[worker]);
        harness.on(Event::Arrived(Arrival { only: Some(&only), ..arrival(request, Some("llama")) }));
    }
    let before = harness.promised();
    let first = harness.arrive(1, Some("llama")).unwrap();
    assert!(first == 1 || first == 2);
    let after = harness.promised();
    let next = harness.brain.fallbacks(harness.now, RequestId(1), 9);
    assert_eq!(next, ids(&[3 - first, 3, 0]));
    assert_eq!(harness.brain.fallbacks(harness.now, RequestId(1), 1), ids(&[3 - first]));
    assert_eq!(harness.promised(), after, "nothing changes");
    assert!(harness.brain.fallbacks(harness.now, RequestId(99), 9).is_empty());
    harness.on(Event::Left { request: RequestId(1) });
    assert_eq!(harness.promised(), before);
}

#[test]
fn fallbacks_stay_among_the_allowed_workers() {
    let mut harness = Harness::of(4);
    let only = ids(&[1, 3]);
    harness.on(Event::Arrived(Arrival { only: Some(&only), ..arrival(1, Some("llama")) }));
    assert_eq!(harness.brain.fallbacks(harness.now, RequestId(1), 9), ids(&[3]));
}

#[test]
fn the_promise_moves_to_the_worker_that_served() {
    let mut harness = Harness::of(3);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    let promised = harness.promised()[0];
    let effects = harness.on(Event::Moved { request: RequestId(1), worker: WorkerId(2) });
    assert!(effects.contains(&Effect::Probe { worker: WorkerId(0) }), "{effects:?}");
    assert_eq!((placement(&effects).worker, placement(&effects).attempt), (WorkerId(2), 1));
    assert_eq!(harness.promised(), [PromisedWork::default(), PromisedWork::default(), promised]);
    harness.begin(1);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 10 });
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 3], 0));
    let outcomes: Vec<_> = harness.brain.decisions().newest_first().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [AttemptOutcome::Answered, AttemptOutcome::Failed]);
}

#[test]
fn a_move_to_where_it_is_or_to_an_unknown_worker_breaks_nothing() {
    let mut harness = Harness::of(2);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    let promised = harness.promised();
    assert!(harness.on(Event::Moved { request: RequestId(1), worker: WorkerId(0) }).is_empty());
    assert_eq!(harness.promised(), promised);
    harness.on(Event::Moved { request: RequestId(1), worker: WorkerId(77) });
    assert_eq!(harness.promised(), vec![PromisedWork::default(); 2]);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 10 });
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 2], 0));
}

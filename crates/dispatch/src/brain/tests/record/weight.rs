//! Weights of workers, and drained workers.

use super::*;

/// Places this many requests, each of which ends at once; counts them by worker.
fn spread(harness: &mut Harness, count: u64) -> Vec<u64> {
    let mut seen = vec![0; harness.brain.fleet().workers().count()];
    for request in 0..count {
        seen[harness.arrive(request, Some("llama")).unwrap() as usize] += 1;
        harness.on(Event::Left { request: RequestId(request) });
    }
    seen
}

/// The same while the last 60 stay in flight.
fn in_flight(harness: &mut Harness, count: u64) -> Vec<u64> {
    for request in 0..count {
        harness.arrive(request, Some("llama")).unwrap();
        if let Some(old) = request.checked_sub(60) {
            harness.on(Event::Left { request: RequestId(old) });
        }
    }
    harness.promised().iter().map(|it| u64::from(it.requests)).collect()
}

fn weigh(harness: &mut Harness, worker: u32, weight: f64) {
    harness.on(Event::WorkerWeighed { worker: WorkerId(worker), weight });
}

#[test]
fn turns_and_dice_follow_the_weights() {
    for strategy in [Name::RoundRobin, Name::Random] {
        let mut harness = Harness::with(3, BrainSettings { strategy, ..BrainSettings::default() });
        weigh(&mut harness, 2, 4.0);
        let seen = spread(&mut harness, 3_000);
        assert!((400..620).contains(&seen[0]) && (400..620).contains(&seen[1]), "{strategy}: {seen:?}");
        weigh(&mut harness, 2, 0.25);
        let seen = spread(&mut harness, 3_000);
        assert!((200..420).contains(&seen[2]), "{strategy}: {seen:?}");
    }
}

#[test]
fn loads_settle_by_the_weights() {
    for strategy in [Name::LeastRequest, Name::LeastWork, Name::LeastDelay] {
        let mut harness = Harness::with(3, BrainSettings { strategy, ..BrainSettings::default() });
        weigh(&mut harness, 1, 2.0);
        let open = in_flight(&mut harness, 600);
        assert!(open[1] > open[0] + 5 && open[1] > open[2] + 5, "{strategy}: {open:?}");
    }
}

#[test]
fn a_weight_stays_within_its_range() {
    let mut harness = Harness::of(1);
    let weight = |harness: &Harness| harness.brain.fleet().worker(WorkerId(0)).unwrap().weight;
    for (set, expected) in [(0.5, 0.5), (0.0, 0.01), (1e9, 100.0), (f64::NAN, 100.0), (1.0, 1.0)] {
        weigh(&mut harness, 0, set);
        assert_eq!(weight(&harness), expected);
    }
    weigh(&mut harness, 7, 2.0);
}

#[test]
fn a_drained_worker_finishes_what_it_has_and_takes_nothing_new_until_it_is_resumed() {
    let mut harness = Harness::of(2);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    let worker = WorkerId(0);
    harness.on(Event::WorkerDrained { worker, draining: true });
    assert!((2..10).all(|it| harness.arrive(it, Some("llama")) == Ok(1)));
    harness.begin(1);
    assert_eq!(harness.promised()[0].requests, 1);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    assert_eq!(harness.promised()[0], PromisedWork::default());
    // A second attempt does not go there either.
    assert!(harness.fail(2, Failure::Refused).is_err());
    harness.on(Event::WorkerDrained { worker, draining: false });
    assert_eq!(harness.arrive(20, Some("llama")), Ok(0));
}

#[test]
fn a_queued_request_goes_to_a_drained_worker_only_after_it_resumes() {
    let queue = maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let settings = BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() };
    let mut harness = Harness::with_queue(2, settings);
    (1..=3).for_each(|it| drop(harness.on(Event::Arrived(arrival(it, Some("llama"))))));
    let worker = harness.brain.worker_of(RequestId(1)).unwrap();
    harness.on(Event::WorkerDrained { worker, draining: true });
    let freed = harness.after(10).on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    assert_eq!(freed, [], "a drained worker takes no request");
    harness.after(1_000).on(Event::Tick);
    assert_eq!(harness.brain.worker_of(RequestId(3)), None);
    let effects = harness.on(Event::WorkerDrained { worker, draining: false });
    assert_eq!(placement(&effects).worker, worker);
}

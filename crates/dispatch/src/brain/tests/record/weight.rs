//! Workers that should take more or less than others, and workers that should take nothing new.

use super::*;

/// Where this many requests go that come and go at once, by worker.
fn spread(table: &mut Table, count: u64) -> Vec<u64> {
    let mut seen = vec![0; table.brain.fleet().workers().count()];
    for request in 0..count {
        seen[table.arrive(request, Some("llama")).unwrap() as usize] += 1;
        table.on(Event::Left { request: RequestId(request) });
    }
    seen
}

/// The same while the last 60 stay open.
fn snapshot(table: &mut Table, count: u64) -> Vec<u64> {
    for request in 0..count {
        table.arrive(request, Some("llama")).unwrap();
        if let Some(old) = request.checked_sub(60) {
            table.on(Event::Left { request: RequestId(old) });
        }
    }
    table.promised().iter().map(|it| u64::from(it.requests)).collect()
}

fn weigh(table: &mut Table, worker: u32, weight: f64) {
    table.on(Event::WorkerWeighed { worker: WorkerId(worker), weight });
}

#[test]
fn turns_and_dice_follow_the_weights() {
    for strategy in [Name::RoundRobin, Name::Random] {
        let mut table = Table::with(3, Settings { strategy, ..Settings::default() });
        weigh(&mut table, 2, 4.0);
        let seen = spread(&mut table, 3_000);
        assert!((400..620).contains(&seen[0]) && (400..620).contains(&seen[1]), "{strategy}: {seen:?}");
        weigh(&mut table, 2, 0.25);
        let seen = spread(&mut table, 3_000);
        assert!((200..420).contains(&seen[2]), "{strategy}: {seen:?}");
    }
}

#[test]
fn loads_settle_by_the_weights() {
    for strategy in [Name::LeastRequest, Name::LeastWork, Name::LeastDelay] {
        let mut table = Table::with(3, Settings { strategy, ..Settings::default() });
        weigh(&mut table, 1, 2.0);
        let open = snapshot(&mut table, 600);
        assert!(open[1] > open[0] + 5 && open[1] > open[2] + 5, "{strategy}: {open:?}");
    }
}

#[test]
fn a_weight_stays_within_its_range() {
    let mut table = Table::of(1);
    let weight = |table: &Table| table.brain.fleet().worker(WorkerId(0)).unwrap().weight;
    for (told, heard) in [(0.5, 0.5), (0.0, 0.01), (1e9, 100.0), (f64::NAN, 100.0), (1.0, 1.0)] {
        weigh(&mut table, 0, told);
        assert_eq!(weight(&table), heard);
    }
    weigh(&mut table, 7, 2.0);
}

#[test]
fn a_drained_worker_finishes_what_it_has_and_takes_nothing_new_until_it_is_resumed() {
    let mut table = Table::of(2);
    assert_eq!(table.arrive(1, Some("llama")), Ok(0));
    let worker = WorkerId(0);
    table.on(Event::WorkerDrained { worker, draining: true });
    assert!((2..10).all(|it| table.arrive(it, Some("llama")) == Ok(1)));
    table.begin(1);
    assert_eq!(table.promised()[0].requests, 1);
    table.on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    assert_eq!(table.promised()[0], PromisedWork::default());
    // A second attempt does not go there either.
    assert!(table.fail(2, Failure::Refused).is_err());
    table.on(Event::WorkerDrained { worker, draining: false });
    assert_eq!(table.arrive(20, Some("llama")), Ok(0));
}

#[test]
fn whoever_stands_in_line_does_not_go_to_a_drained_worker_and_goes_when_it_is_resumed() {
    let queue = maitre_queue::Settings { sequences_max: 1, ..maitre_queue::Settings::default() };
    let settings = Settings { strategy: Name::RoundRobin, queue, ..Settings::default() };
    let mut table = Table::with_line(2, settings);
    (1..=3).for_each(|it| drop(table.on(Event::Arrived(arrival(it, Some("llama"))))));
    let worker = table.brain.worker_of(RequestId(1)).unwrap();
    table.on(Event::WorkerDrained { worker, draining: true });
    let freed = table.after(10).on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    assert_eq!(freed, [], "its place is nobody's now");
    table.after(1_000).on(Event::Tick);
    assert_eq!(table.brain.worker_of(RequestId(3)), None);
    let effects = table.on(Event::WorkerDrained { worker, draining: false });
    assert_eq!(placement(&effects).worker, worker);
}

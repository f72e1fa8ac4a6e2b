//! Deadlines: of requests, which are about first tokens, and of classes, which are about the line.

use super::*;

fn within(millis: u64, arrival: Arrival<'static>, table: &Table) -> Arrival<'static> {
    Arrival { deadline: Some(table.now + Duration::from_millis(millis)), ..arrival }
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    let mut table = Table::in_line(1, |_| ()).learn();
    for (millis, expected) in [(0, "1 late"), (60, "1 late"), (80, "1 late"), (90, "1@0"), (1_000, "1@0")] {
        let effects = table.step(Come(within(millis, one(1), &table)));
        assert_eq!(told(&effects), expected, "{millis} ms");
        if expected == "1 late" {
            assert!(retry_after(&effects) >= Duration::from_secs(1));
        }
        table.step(Leave(1));
    }
    table.is_clear();
}

#[test]
fn what_is_promised_before_it_counts() {
    let mut table = Table::in_line(1, |it| it.sequences_max = 0).learn();
    table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2@0")]);
    // A tenth of a second of theirs and 0.07 of its own, and a fifth more for luck.
    assert_eq!(table.tell(Come(within(190, one(3), &table))), "3 late");
    assert_eq!(table.tell(Come(within(220, one(3), &table))), "3@0");
}

#[test]
fn while_nothing_is_learned_nobody_is_refused_for_what_engines_usually_do() {
    let mut table = Table::in_line(1, |_| ());
    assert_eq!(table.tell(Come(within(30, one(1), &table))), "1@0", "it may be fast enough");
    assert_eq!(table.tell(Come(within(30, one(2), &table))), "2 waits");
    assert_eq!(table.tell(Fail(1, Failure::Late)), "1 late, 2@0");
}

#[test]
fn only_streams_with_a_deadline_of_their_own_are_watched() {
    let deadline = Some(Instant::from_millis(5_000));
    let whole = |it| Arrival { form: Form::Whole, ..it };
    for (arrival, expected) in [
        (one(1), None),
        (chat(2), None),
        (Arrival { deadline, ..one(3) }, deadline),
        (whole(Arrival { deadline, ..one(4) }), None),
        (whole(one(5)), None),
    ] {
        let mut table = Table::in_line(1, |_| ());
        assert_eq!(placement(&table.step(Come(arrival))).deadline, expected, "{:?}", arrival.request);
    }
}

/// Goes from one due moment to the next, until something is told; when that was.
#[track_caller]
fn next_told(table: &mut Table) -> (Instant, String) {
    for _ in 0..10_000 {
        let due = table.brain.due().expect("somebody waits");
        assert!(due > table.now, "due in the past");
        table.now = due;
        let told = told(&table.on(Event::Tick));
        if !told.is_empty() {
            return (due, told);
        }
    }
    panic!("nothing was told in 10,000 pulses");
}

#[test]
fn one_whose_time_runs_out_in_line_is_told_at_once() {
    let mut table = Table::in_line(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0)).learn();
    table.play(&[(Come(one(1)), "1@0")]);
    let deadline = table.now + Duration::from_secs(2);
    assert_eq!(table.tell(Come(Arrival { deadline: Some(deadline), ..one(2) })), "2 waits");
    let (at, told) = next_told(&mut table);
    assert_eq!(told, "2 late");
    // No sooner than it could still be in time, and at the first look after that.
    let left = deadline.since(at);
    assert!((Duration::from_millis(1)..Duration::from_millis(150)).contains(&left), "{left:?} before");
    table.step(End(1));
    table.is_clear();
}

#[test]
fn a_class_bounds_the_time_in_line_to_the_moment_and_nothing_else() {
    let mut table = Table::in_line(1, |it| it.classes[1].deadline = Some(Duration::from_secs(5)));
    let begun = table.now;
    table.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (After(1_000), ""),
        (Come(one(3)), "3 waits"),
    ]);
    let (first, second) = (next_told(&mut table), next_told(&mut table));
    let just_after = |seconds| begun + Duration::from_secs(seconds) + Duration::from_nanos(1);
    assert_eq!(first, (just_after(5), "2 late".to_owned()));
    assert_eq!(second, (just_after(6), "3 late".to_owned()));
    // The one that is seated has no first token yet, and may take as long as it likes.
    table.play(&[(After(100_000), ""), (First(1), ""), (End(1), "")]);
    table.is_clear();
}

#[test]
fn at_its_last_moment_one_may_still_go() {
    let mut table = Table::in_line(1, |it| it.classes[1].deadline = Some(Duration::from_secs(5)));
    table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (After(5_000), ""), (End(1), "2@0")]);
}

#[test]
fn an_attempt_that_came_too_late_is_not_tried_elsewhere() {
    let mut table = Table::in_line(2, |_| ());
    let arrival = within(1_000, one(1), &table);
    assert_eq!(table.tell(Come(arrival)), "1@0");
    table.step(After(1_000));
    let effects = table.step(Fail(1, Failure::Late));
    assert_eq!(told(&effects), "1 late");
    assert!(retry_after(&effects) >= Duration::from_secs(1));
    assert!(table.brain.fleet().workers().all(|it| it.health.state() == State::Ready), "no fault of its");
    table.is_clear();
}

#[test]
fn the_nearest_deadline_of_a_tenant_goes_first() {
    let mut table = Table::in_line(1, |_| ());
    let (soon, later) = (within(20_000, one(4), &table), within(30_000, one(3), &table));
    table.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(later), "3 waits"),
        (Come(soon), "4 waits"),
        (End(1), "4@0"),
        (End(4), "3@0"),
        (End(3), "2@0"),
    ]);
}

/// The line moves by one every second: the sixth in it comes after five.
#[test]
fn one_whose_turn_would_come_too_late_is_refused_at_once() {
    let mut table = Table::in_line(1, |it| it.classes[1].deadline = Some(Duration::from_secs(1_000)));
    for request in 0..20 {
        table.step(Come(one(request)));
    }
    for request in 0..10 {
        table.play(&[(After(1_000), "")]);
        assert_eq!(table.tell(End(request)), format!("{}@0", request + 1));
    }
    // Nine wait.
    let mut ask = |millis| {
        let arrival = within(millis, Arrival { tenant: TenantId(0), ..one(100) }, &table);
        // Not before those who came earlier by its deadline: it is the only one that has one.
        let told = table.tell(Come(Arrival { class: BATCH, ..arrival }));
        table.step(Leave(100));
        told
    };
    assert_eq!(ask(6_000), "100 late");
    assert_eq!(ask(14_000), "100 waits");
}

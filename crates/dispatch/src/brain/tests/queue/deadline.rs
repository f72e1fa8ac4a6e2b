//! Deadlines of requests, which concern first tokens, and of classes, which concern the time in the queue.

use super::*;

fn within(millis: u64, arrival: Arrival<'static>, harness: &Harness) -> Arrival<'static> {
    Arrival { deadline: Some(harness.now + Duration::from_millis(millis)), ..arrival }
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    let mut harness = Harness::queueing(1, |_| ()).learn();
    for (millis, expected) in [(0, "1 late"), (60, "1 late"), (80, "1 late"), (90, "1@0"), (1_000, "1@0")] {
        let effects = harness.step(Come(within(millis, one(1), &harness)));
        assert_eq!(summary(&effects), expected, "{millis} ms");
        if expected == "1 late" {
            assert!(retry_after(&effects) >= Duration::from_secs(1));
        }
        harness.step(Leave(1));
    }
    harness.is_clear();
}

#[test]
fn earlier_promises_count_for_a_deadline() {
    let mut harness = Harness::queueing(1, |it| it.sequences_max = 0).learn();
    harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2@0")]);
    // 0.1 s for the two before it and 0.07 s of its own, times the safety factor of 1.2.
    assert_eq!(harness.summary_of(Come(within(190, one(3), &harness))), "3 late");
    assert_eq!(harness.summary_of(Come(within(220, one(3), &harness))), "3@0");
}

#[test]
fn before_rates_are_learned_no_deadline_is_refused() {
    let mut harness = Harness::queueing(1, |_| ());
    assert_eq!(harness.summary_of(Come(within(30, one(1), &harness))), "1@0", "it may be fast enough");
    assert_eq!(harness.summary_of(Come(within(30, one(2), &harness))), "2 waits");
    assert_eq!(harness.summary_of(Fail(1, Failure::Late)), "1 late, 2@0");
}

#[test]
fn what_one_model_takes_is_no_reason_to_refuse_the_deadline_of_another() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    let mut harness = harness.learn();
    let qwen = |request| Arrival { model: Some("qwen"), ..one(request) };
    assert_eq!(harness.summary_of(Come(within(30, one(1), &harness))), "1 late");
    assert_eq!(harness.summary_of(Come(within(30, qwen(2), &harness))), "2@1", "it may be fast enough");
}

/// A worker that has become faster would otherwise never show it where all requests have deadlines.
#[test]
fn an_idle_worker_gets_one_request_whatever_its_deadline() {
    for (idle, expected) in [(0, "1 late"), (4_000, "1 late"), (5_000, "1@0"), (60_000, "1@0")] {
        let mut harness = Harness::queueing(1, |_| ()).learn();
        harness.step(After(idle));
        assert_eq!(harness.summary_of(Come(within(1, one(1), &harness))), expected, "idle for {idle} ms");
        if expected == "1 late" {
            continue;
        }
        // One at a time, and none once it has answered.
        assert_eq!(harness.summary_of(Come(within(1, one(2), &harness))), "2 late");
        harness.now = harness.now + FIRST_TOKEN;
        harness.play(&[(First(1), ""), (End(1), "")]);
        assert_eq!(harness.summary_of(Come(within(1, one(3), &harness))), "3 late");
    }
}

#[test]
fn only_streams_with_their_own_deadline_have_one_at_the_worker() {
    let deadline = Some(Instant::from_millis(5_000));
    let whole = |it| Arrival { form: Form::Whole, ..it };
    for (arrival, expected) in [
        (one(1), None),
        (chat(2), None),
        (Arrival { deadline, ..one(3) }, deadline),
        (whole(Arrival { deadline, ..one(4) }), None),
        (whole(one(5)), None),
    ] {
        let mut harness = Harness::queueing(1, |_| ());
        assert_eq!(placement(&harness.step(Come(arrival))).deadline, expected, "{:?}", arrival.request);
    }
}

/// Goes from one due moment to the next until there is an effect; returns the moment and the effect.
#[track_caller]
fn next_effect(harness: &mut Harness) -> (Instant, String) {
    for _ in 0..10_000 {
        let due = harness.brain.due().expect("a request waits");
        assert!(due > harness.now, "due in the past");
        harness.now = due;
        let effect = summary(&harness.on(Event::Tick));
        if !effect.is_empty() {
            return (due, effect);
        }
    }
    panic!("no effect in 10,000 pulses");
}

#[test]
fn a_request_that_expires_in_the_queue_is_refused_at_once() {
    let mut harness = Harness::queueing(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0)).learn();
    harness.play(&[(Come(one(1)), "1@0")]);
    let deadline = harness.now + Duration::from_secs(2);
    assert_eq!(harness.summary_of(Come(Arrival { deadline: Some(deadline), ..one(2) })), "2 waits");
    let (at, effect) = next_effect(&mut harness);
    assert_eq!(effect, "2 late");
    // Not while it could still be in time, and at the first pulse after that.
    let left = deadline.since(at);
    assert!((Duration::from_millis(1)..Duration::from_millis(150)).contains(&left), "{left:?} before");
    harness.step(End(1));
    harness.is_clear();
}

#[test]
fn a_class_deadline_limits_the_time_in_the_queue_and_nothing_else() {
    let mut harness = Harness::queueing(1, |it| it.classes[1].deadline = Some(Duration::from_secs(5)));
    let begun = harness.now;
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (After(1_000), ""),
        (Come(one(3)), "3 waits"),
    ]);
    let (first, second) = (next_effect(&mut harness), next_effect(&mut harness));
    let just_after = |seconds| begun + Duration::from_secs(seconds) + Duration::from_nanos(1);
    assert_eq!(first, (just_after(5), "2 late".to_owned()));
    assert_eq!(second, (just_after(6), "3 late".to_owned()));
    // The placed request has no first token yet, and no deadline.
    harness.play(&[(After(100_000), ""), (First(1), ""), (End(1), "")]);
    harness.is_clear();
}

#[test]
fn a_request_may_go_at_its_latest_moment() {
    let mut harness = Harness::queueing(1, |it| it.classes[1].deadline = Some(Duration::from_secs(5)));
    harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits"), (After(5_000), ""), (End(1), "2@0")]);
}

#[test]
fn a_late_attempt_is_not_retried() {
    let mut harness = Harness::queueing(2, |_| ());
    let arrival = within(1_000, one(1), &harness);
    assert_eq!(harness.summary_of(Come(arrival)), "1@0");
    harness.step(After(1_000));
    let effects = harness.step(Fail(1, Failure::Late));
    assert_eq!(summary(&effects), "1 late");
    assert!(retry_after(&effects) >= Duration::from_secs(1));
    assert!(
        harness.brain.fleet().workers().all(|it| it.health.state() == HealthState::Ready),
        "no fault of its"
    );
    harness.is_clear();
}

#[test]
fn the_earliest_deadline_of_a_tenant_goes_first() {
    let mut harness = Harness::queueing(1, |_| ());
    let (soon, later) = (within(20_000, one(4), &harness), within(30_000, one(3), &harness));
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(later), "3 waits"),
        (Come(soon), "4 waits"),
        (End(1), "4@0"),
        (End(4), "3@0"),
        (End(3), "2@0"),
    ]);
}

/// One request goes every second, so the sixth goes after five.
#[test]
fn a_request_whose_turn_would_come_too_late_is_refused_at_once() {
    let mut harness = Harness::queueing(1, |it| it.classes[1].deadline = Some(Duration::from_secs(1_000)));
    for request in 0..20 {
        harness.step(Come(one(request)));
    }
    for request in 0..10 {
        harness.play(&[(After(1_000), "")]);
        assert_eq!(harness.summary_of(End(request)), format!("{}@0", request + 1));
    }
    // Nine requests wait.
    let mut ask = |millis| {
        let arrival = within(millis, Arrival { tenant: TenantId(0), ..one(100) }, &harness);
        // No other request has a deadline, so it goes by its arrival.
        let effect = harness.summary_of(Come(Arrival { class: BATCH, ..arrival }));
        harness.step(Leave(100));
        effect
    };
    assert_eq!(ask(6_000), "100 late");
    assert_eq!(ask(14_000), "100 waits");
}

//! What `explain` says of a request is what happens to it when it arrives (issue 15: both look at the same queue).

use super::*;
use crate::observer::decision::AttemptOutcome;

/// What `explain` says, in the terms of `summary`.
fn explained(harness: &mut Harness, arrival: &Arrival<'_>) -> String {
    let number = arrival.request.0;
    match harness.brain.explain(harness.now, arrival) {
        Ok(it) if it.outcome == AttemptOutcome::Asked => format!("{number}@{}", it.worker.0),
        Ok(_) => format!("{number} waits"),
        Err(refusal) => summary(&[Effect::Refuse { request: arrival.request, refusal }]),
    }
}

/// Explains a request and lets it arrive: both say this.
#[track_caller]
fn check(harness: &mut Harness, arrival: Arrival<'_>, expected: &str) {
    let said = explained(harness, &arrival);
    assert_eq!((&*said, &*harness.summary_of(Come(arrival))), (expected, expected));
}

/// One worker with a small cache, of which a chat uses a tenth, and one prompt in the queue that does not fit.
fn blocked() -> Harness {
    let mut harness = Harness::queueing(1, |it| it.sequences_max = 0);
    let load = maitre_base::EngineLoad { kv_tokens: Some(10_000), ..maitre_base::EngineLoad::default() };
    let big = Arrival { size: Size::Tokens(9_500), ..one(1) };
    harness.play(&[(Report(0, load), ""), (Come(chat(2)), "2@0"), (Come(big), "1 waits"), (After(1), "")]);
    harness
}

#[test]
fn a_request_that_fits_overtakes_one_of_its_own_class_that_does_not() {
    check(&mut blocked(), one(3), "3@0");
    check(&mut blocked(), chat(3), "3@0");
    check(&mut blocked(), batch(3), "3@0");
}

#[test]
fn a_request_that_does_not_fit_either_waits() {
    check(&mut blocked(), Arrival { size: Size::Tokens(9_600), ..one(3) }, "3 waits");
    // With no class above its own, the engine decides about memory.
    check(&mut blocked(), Arrival { size: Size::Tokens(9_600), ..chat(3) }, "3@0");
}

#[test]
fn a_full_class_refuses_though_only_lower_classes_wait() {
    let mut harness = Harness::queueing(1, |it| it.classes[0].tokens_max = 500);
    harness.play(&[(Come(one(1)), "1@0"), (Come(batch(2)), "2 waits"), (First(1), "")]);
    check(&mut harness, chat(3), "3 full");
    let small = Arrival { size: Size::Tokens(10), answer_max: Some(10), ..chat(4) };
    check(&mut harness, small, "4 waits");
}

#[test]
fn a_deadline_that_the_queue_cannot_meet_is_refused() {
    let mut harness = Harness::queueing(1, |_| ()).learn();
    harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits")]);
    let within = |millis, harness: &Harness| harness.now + Duration::from_millis(millis);
    let urgent = Arrival { deadline: Some(within(1, &harness)), ..one(3) };
    check(&mut harness, urgent, "3 late");
    let patient = Arrival { deadline: Some(within(60_000, &harness)), ..one(4) };
    check(&mut harness, patient, "4 waits");
}

/// Neither the queue nor its pool can be cloned, so this takes as long as with a short queue.
#[test]
fn a_deep_queue_is_explained_as_it_is_served() {
    let mut harness = Harness::queueing(1, |it| {
        it.classes.iter_mut().for_each(|it| (it.requests_max, it.tokens_max) = (3_000, u64::MAX));
    });
    harness.play(&[(Come(one(1)), "1@0")]);
    for request in 2..3_000 {
        let arrival = Arrival { tenant: TenantId(request % 7), ..one(request) };
        assert_eq!(harness.summary_of(Come(arrival)), format!("{request} waits"));
    }
    check(&mut harness, Arrival { tenant: TenantId(8), ..one(3_000) }, "3000 waits");
    check(&mut harness, chat(3_001), "3001 waits");
    check(&mut harness, Arrival { tenant: TenantId(1), ..one(3_002) }, "3002 waits");
    check(&mut harness, Arrival { tenant: TenantId(1), ..one(3_003) }, "3003 full");
    let before = format!("{:?}", harness.brain.parts.scheduler);
    explained(&mut harness, &Arrival { tenant: TenantId(9), ..one(3_004) });
    assert!(format!("{:?}", harness.brain.parts.scheduler) == before, "the scheduler has changed");
}

#[test]
fn to_explain_leaves_the_queue_as_it_was() {
    let mut harness = blocked();
    let before = format!("{:?}", harness.brain.parts.scheduler);
    for request in 10..20 {
        explained(&mut harness, &one(request));
        explained(&mut harness, &Arrival { tenant: TenantId(request), ..chat(request) });
    }
    assert_eq!(harness.waiting(), 1);
    let after = format!("{:?}", harness.brain.parts.scheduler);
    assert!(after == before, "the scheduler has changed");
}

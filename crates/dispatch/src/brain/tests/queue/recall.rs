//! Which requests are recalled, for which others, and what becomes of them.

use super::*;

fn job(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(3_800), ..batch(request) }
}

/// One worker with two jobs of 0.2 s each, together below its limit, neither of which has its first token.
fn busy(recall: bool) -> Harness {
    let mut harness = Harness::queueing(1, |it| (it.sequences_max, it.recall) = (0, recall)).learn();
    harness.play(&[(Come(job(1)), "1@0"), (After(10), ""), (Come(job(2)), "2@0")]);
    harness
}

/// A chat whose first token is due within so many milliseconds.
fn urgent(harness: &Harness, millis: u64) -> Arrival<'static> {
    Arrival { deadline: Some(harness.now + Duration::from_millis(millis)), ..chat(3) }
}

#[track_caller]
fn check(harness: &mut Harness, millis: u64, expected: &str) {
    let arrival = urgent(harness, millis);
    assert_eq!(harness.summary_of(Come(arrival)), expected, "{millis} ms");
}

#[test]
fn nothing_is_recalled_unless_enabled() {
    check(&mut busy(false), 150, "3 late");
    check(&mut busy(false), 1_000, "3@0");
}

#[test]
fn as_few_as_needed_are_recalled_the_last_first_and_none_if_it_does_not_help() {
    check(&mut busy(true), 1_000, "3@0");
    check(&mut busy(true), 400, "2 back from 0, 3@0");
    check(&mut busy(true), 150, "2 back from 0, 1 back from 0, 3@0");
    check(&mut busy(true), 50, "3 late");
}

#[test]
fn only_requests_of_lower_classes_without_a_first_token_are_recalled() {
    let mut harness = busy(true);
    let same = Arrival { class: BATCH, ..urgent(&harness, 150) };
    assert_eq!(harness.summary_of(Come(same)), "3 late");
    // The first has begun, so only the second can be recalled.
    harness.play(&[(After(200), ""), (First(1), "")]);
    check(&mut harness, 150, "2 back from 0, 3@0");
}

#[test]
fn a_request_whose_client_has_the_head_of_a_response_is_not_recalled() {
    let mut harness = busy(true);
    harness.on(Event::ResponseBegun { request: RequestId(2) });
    check(&mut harness, 400, "1 back from 0, 3@0");
}

#[test]
fn a_recalled_request_waits_and_goes_later() {
    let mut harness = busy(true);
    check(&mut harness, 150, "2 back from 0, 1 back from 0, 3@0");
    assert_eq!((harness.waiting(), harness.promised()[0].requests), (2, 1));
    // Failures of the cancelled attempts change nothing.
    harness.play(&[(Fail(1, Failure::Broke), ""), (Fail(2, Failure::Abandoned), "")]);
    assert_eq!(harness.waiting(), 2);
    // The worker has room beside the chat.
    let mut effects: Vec<String> = (0..40).map(|_| harness.summary_of(After(50))).collect();
    effects.extend([First(3), End(3)].map(|it| harness.summary_of(it)));
    let effects: Vec<String> = effects.into_iter().filter(|it| !it.is_empty()).collect();
    assert_eq!(effects.join(", "), "1@0, 2@0", "the older first");
    harness.play(&[(First(1), ""), (End(1), ""), (End(2), "")]);
    harness.is_clear();
}

#[test]
fn a_request_that_began_before_its_recall_arrived_is_not_placed_again() {
    let mut harness = busy(true);
    check(&mut harness, 150, "2 back from 0, 1 back from 0, 3@0");
    harness.play(&[(First(1), ""), (Leave(2), "")]);
    assert_eq!((harness.waiting(), harness.brain.due()), (0, None));
    harness.play(&[(First(3), ""), (End(3), ""), (End(1), "")]);
    harness.is_clear();
}

#[test]
fn a_recalled_request_may_disconnect() {
    let mut harness = busy(true);
    check(&mut harness, 150, "2 back from 0, 1 back from 0, 3@0");
    harness.play(&[(Leave(1), ""), (Leave(2), ""), (Leave(3), "")]);
    harness.is_clear();
}

/// Recalled from worker 1 and placed at 0 before the attempt at 1 has ended.
#[test]
fn an_event_of_a_recalled_attempt_concerns_its_worker_alone() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[(Come(one(1)), "1@0")]);
    let (request, worker) = (RequestId(1), WorkerId(1));
    let promised = harness.promised();
    let effects = harness.on(Event::Failed { request, worker, failure: Failure::Refused });
    assert!(matches!(effects[..], [Effect::Changed(it)] if it.worker == worker), "{effects:?}");
    assert_eq!((harness.brain.worker_of(request), harness.promised()), (Some(WorkerId(0)), promised));
    // Its response begins at worker 1: the client has it, so the promise at worker 0 ends.
    harness.on(Event::FirstToken { request, worker });
    assert_eq!((harness.brain.worker_of(request), harness.promised()[0].requests), (None, 0));
    harness.play(&[(End(1), "")]);
    harness.is_clear();
}

/// The event that ends a recalled attempt may come after its worker has left.
#[test]
fn an_id_is_not_reused_while_a_pending_request_was_recalled_from_it() {
    let mut harness = busy(true);
    check(&mut harness, 150, "2 back from 0, 1 back from 0, 3@0");
    let join = |harness: &mut Harness, url| {
        let joined = harness.on(Event::WorkerJoined { url });
        let [Effect::Watch { worker }] = joined[..] else { panic!("{joined:?}") };
        harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
        worker.0
    };
    harness.play(&[(Leave(2), ""), (Drain(0), "")]);
    assert_eq!(join(&mut harness, "http://b"), 1);
    assert_eq!(harness.brain.worker_of(RequestId(1)), Some(WorkerId(1)));
    harness.play(&[(Leave(3), ""), (Gone(0), "")]);
    harness.now = harness.now + crate::settings::QUARANTINE;
    assert_eq!(join(&mut harness, "http://c"), 2);
    harness.play(&[(End(1), "")]);
    assert_eq!(join(&mut harness, "http://d"), 0);
}

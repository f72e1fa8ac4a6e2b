//! Queued requests when workers fail, leave and come back.

use super::*;

#[test]
fn a_failed_request_is_queued_by_its_arrival() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (After(10), ""),
        (Come(one(3)), "3 waits"),
        (Come(one(4)), "4 waits"),
        // It may not return to the worker where it failed, and the other is busy: the next request goes there.
        (Fail(1, Failure::Busy), "1 waits, 3@0"),
        (End(2), "1@1"),
        (End(1), "4@1"),
        (End(3), ""),
        (End(4), ""),
    ]);
    harness.is_clear();
}

#[test]
fn a_request_that_failed_at_every_worker_is_refused_at_once() {
    for others in [&[][..], &[2, 3]] {
        let mut harness = Harness::queueing(1, |_| ());
        assert_eq!(harness.summary_of(Come(batch(1))), "1@0");
        for &request in others {
            harness.step(Come(one(request)));
        }
        let effects = harness.summary_of(Fail(1, Failure::Busy));
        assert!(effects.starts_with("1 failed"), "{others:?}: {effects}");
        others.iter().for_each(|&it| drop(harness.step(End(it))));
        harness.is_clear();
    }
}

#[test]
fn queued_requests_outlive_a_worker_and_go_elsewhere() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (Come(one(3)), "3 waits"),
        (Gone(1), ""),
        (Fail(2, Failure::Abandoned), "2 waits"),
        (After(500), ""),
        (End(1), "2@0"),
        (End(2), "3@0"),
        (End(3), ""),
    ]);
    harness.is_clear();
}

#[test]
fn a_drained_worker_gets_no_queued_request_until_it_resumes() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (Come(one(3)), "3 waits"),
        (Come(one(4)), "4 waits"),
        (Drain(0), ""),
        (End(1), ""),
        (After(100), ""),
        (End(2), "3@1"),
        (Resume(0), "4@0"),
        (End(3), ""),
        (End(4), ""),
    ]);
    harness.is_clear();
}

#[test]
fn an_ejected_worker_gets_no_queued_request_until_it_answers() {
    let mut harness = Harness::queueing(2, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (Come(one(3)), "3 waits"),
        (See(0, Evidence::Silent), ""),
        (See(0, Evidence::Silent), ""),
        (Leave(1), ""),
        (After(100), ""),
        (See(0, Evidence::ProbeAnswered), "3@0"),
        (End(2), ""),
        (End(3), ""),
    ]);
    harness.is_clear();
}

#[test]
fn no_request_waits_for_workers_that_left() {
    let mut harness = Harness::queueing(1, |_| ());
    harness.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(batch(3)), "3 waits"),
        (Gone(0), ""),
        (Leave(1), ""),
        (After(500), "2 no worker, 3 no worker"),
        (Come(one(4)), "4 no worker"),
    ]);
    harness.is_clear();
}

#[test]
fn a_worker_that_joins_takes_the_next_request_at_once() {
    let mut harness = Harness::queueing(1, |_| ());
    harness.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits")]);
    harness.on(Event::WorkerJoined { url: "http://127.0.0.1:9" });
    harness.on(Event::Probed { worker: WorkerId(1), evidence: Evidence::ProbeAnswered });
    let cards = [Card { name: "llama", parent: None }];
    assert_eq!(summary(&harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &cards })), "2@1");
}

/// They do not report the end of their prefill, so a tick must check when it should be done.
#[test]
fn unstreamed_responses_make_room_when_their_prefill_should_be_done() {
    let mut harness = Harness::queueing(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0));
    let whole = Arrival { form: Form::Whole, ..one(1) };
    harness.play(&[(Come(whole), "1@0"), (Come(one(2)), "2 waits"), (After(60), ""), (After(11), "2@0")]);
}

/// Ten wait for the only worker with an adapter; requests for the base model go to the other.
#[test]
fn requests_for_another_worker_do_not_block_a_free_one() {
    let mut harness = Harness::queueing(2, |_| ());
    let cards = [Card { name: "llama", parent: None }, Card { name: "sql", parent: Some("llama") }];
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &cards });
    let sql = |request| Arrival { model: Some("sql"), ..one(request) };
    harness.play(&[(Come(sql(1)), "1@1"), (Come(one(2)), "2@0")]);
    for request in 3..13 {
        assert_eq!(harness.summary_of(Come(sql(request))), format!("{request} waits"));
    }
    harness.play(&[(Come(one(13)), "13 waits"), (End(2), "13@0"), (End(13), ""), (Come(one(14)), "14@0")]);
}

/// Events that make no room do not postpone the pulse.
#[test]
fn the_queue_is_served_every_pulse_under_load() {
    let mut harness = Harness::queueing(1, |_| ());
    harness.play(&[(Come(one(1)), "1@0"), (First(1), ""), (Come(one(2)), "2 waits")]);
    let due = harness.brain.due();
    harness.now = harness.now + Duration::from_millis(40);
    harness.on(Event::Streamed { request: RequestId(1), pieces: 32 });
    assert_eq!(harness.brain.due(), due);
}

/// A burst in a lower class beside one chat at an idle worker.
#[test]
fn lower_classes_are_not_delayed_while_higher_ones_use_almost_nothing() {
    let mut harness = Harness::queueing(1, |it| it.sequences_max = 0);
    harness.play(&[(Come(chat(0)), "0@0"), (First(0), ""), (After(100), "")]);
    let effects: Vec<String> = (1..4).map(|it| harness.summary_of(Come(one(it)))).collect();
    assert_eq!(effects, ["1@0", "2@0", "3@0"]);
}

//! What becomes of those who wait when workers fail, leave, and come back.

use super::*;

#[test]
fn one_that_failed_regains_its_place_by_when_it_came() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2@1"),
        (After(10), ""),
        (Come(one(3)), "3 waits"),
        (Come(one(4)), "4 waits"),
        // It may not go where it was, and the other is busy: the next goes there.
        (Fail(1, Failure::Busy), "1 waits, 3@0"),
        (End(2), "1@1"),
        (End(1), "4@1"),
        (End(3), ""),
        (End(4), ""),
    ]);
    table.is_clear();
}

#[test]
fn one_for_whom_nobody_is_left_is_refused_at_once_whoever_waits() {
    for others in [&[][..], &[2, 3]] {
        let mut table = Table::in_line(1, |_| ());
        assert_eq!(table.tell(Come(batch(1))), "1@0");
        for &request in others {
            table.step(Come(one(request)));
        }
        let told = table.tell(Fail(1, Failure::Busy));
        assert!(told.starts_with("1 failed"), "{others:?}: {told}");
        others.iter().for_each(|&it| drop(table.step(End(it))));
        table.is_clear();
    }
}

#[test]
fn those_who_wait_outlive_a_worker_and_go_elsewhere() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[
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
    table.is_clear();
}

#[test]
fn a_drained_worker_gets_nobody_who_waits_until_it_is_back() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[
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
    table.is_clear();
}

#[test]
fn an_ejected_worker_gets_nobody_who_waits_until_it_answers() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[
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
    table.is_clear();
}

#[test]
fn nobody_waits_for_workers_that_are_gone() {
    let mut table = Table::in_line(1, |_| ());
    table.play(&[
        (Come(one(1)), "1@0"),
        (Come(one(2)), "2 waits"),
        (Come(batch(3)), "3 waits"),
        (Gone(0), ""),
        (Leave(1), ""),
        (After(500), "2 nobody, 3 nobody"),
        (Come(one(4)), "4 nobody"),
    ]);
    table.is_clear();
}

#[test]
fn one_that_joins_takes_the_next_at_once() {
    let mut table = Table::in_line(1, |_| ());
    table.play(&[(Come(one(1)), "1@0"), (Come(one(2)), "2 waits")]);
    table.on(Event::WorkerJoined { url: "http://127.0.0.1:9" });
    table.on(Event::Probed { worker: WorkerId(1), evidence: Evidence::ProbeAnswered });
    let cards = [Card { name: "llama", parent: None }];
    assert_eq!(told(&table.on(Event::ModelsReported { worker: WorkerId(1), cards: &cards })), "2@1");
}

/// They do not say when their prompt is done: it is when it should be, and somebody has to look.
#[test]
fn answers_in_one_piece_make_room_when_their_prompts_should_be_done() {
    let mut table = Table::in_line(1, |it| (it.prefill_tokens_max, it.sequences_max) = (1, 0));
    let whole = Arrival { form: Form::Whole, ..one(1) };
    table.play(&[(Come(whole), "1@0"), (Come(one(2)), "2 waits"), (After(60), ""), (After(11), "2@0")]);
}

/// Ten wait for the only worker that has an adapter; those for the model under it go to the other.
#[test]
fn those_for_another_worker_keep_nobody_from_a_free_one() {
    let mut table = Table::in_line(2, |_| ());
    let cards = [Card { name: "llama", parent: None }, Card { name: "sql", parent: Some("llama") }];
    table.on(Event::ModelsReported { worker: WorkerId(1), cards: &cards });
    let sql = |request| Arrival { model: Some("sql"), ..one(request) };
    table.play(&[(Come(sql(1)), "1@1"), (Come(one(2)), "2@0")]);
    for request in 3..13 {
        assert_eq!(table.tell(Come(sql(request))), format!("{request} waits"));
    }
    table.play(&[(Come(one(13)), "13 waits"), (End(2), "13@0"), (End(13), ""), (Come(one(14)), "14@0")]);
}

/// Events that make no room for anybody do not put the alarm off.
#[test]
fn the_pulse_comes_however_much_happens() {
    let mut table = Table::in_line(1, |_| ());
    table.play(&[(Come(one(1)), "1@0"), (First(1), ""), (Come(one(2)), "2 waits")]);
    let due = table.brain.due();
    table.now = table.now + Duration::from_millis(40);
    table.on(Event::Streamed { request: RequestId(1), pieces: 32 });
    assert_eq!(table.brain.due(), due);
}

/// A burst in a lower class beside one chat at an idle worker.
#[test]
fn classes_below_are_not_held_back_where_those_above_use_next_to_nothing() {
    let mut table = Table::in_line(1, |it| it.sequences_max = 0);
    table.play(&[(Come(chat(0)), "0@0"), (First(0), ""), (After(100), "")]);
    let told: Vec<String> = (1..4).map(|it| table.tell(Come(one(it)))).collect();
    assert_eq!(told, ["1@0", "2@0", "3@0"]);
}

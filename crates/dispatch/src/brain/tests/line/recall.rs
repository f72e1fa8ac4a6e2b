//! Who is called back, for whom, and what becomes of it.

use super::*;

fn job(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(3_900), ..batch(request) }
}

/// One worker with two jobs of 0.2 s each, of which nothing is out yet.
fn busy(recall: bool) -> Table {
    let mut table = Table::in_line(1, |it| (it.sequences_max, it.recall) = (0, recall)).learn();
    table.play(&[(Come(job(1)), "1@0"), (After(10), ""), (Come(job(2)), "2@0")]);
    table
}

/// A chat that must begin within so many milliseconds.
fn urgent(table: &Table, millis: u64) -> Arrival<'static> {
    Arrival { deadline: Some(table.now + Duration::from_millis(millis)), ..chat(3) }
}

#[track_caller]
fn check(table: &mut Table, millis: u64, expected: &str) {
    let arrival = urgent(table, millis);
    assert_eq!(table.tell(Come(arrival)), expected, "{millis} ms");
}

#[test]
fn nobody_is_called_back_unless_it_is_asked_for() {
    check(&mut busy(false), 150, "3 late");
    check(&mut busy(false), 1_000, "3@0");
}

#[test]
fn as_few_as_help_are_called_back_the_last_first_and_none_if_it_does_not_help() {
    check(&mut busy(true), 1_000, "3@0");
    check(&mut busy(true), 400, "2 back from 0, 3@0");
    check(&mut busy(true), 150, "2 back from 0, 1 back from 0, 3@0");
    check(&mut busy(true), 50, "3 late");
}

#[test]
fn only_who_is_of_a_lower_class_and_has_not_begun_is_called_back() {
    let mut table = busy(true);
    let same = Arrival { class: BATCH, ..urgent(&table, 150) };
    assert_eq!(table.tell(Come(same)), "3 late");
    // The first has begun: the second is all there is in the way.
    table.play(&[(After(200), ""), (First(1), "")]);
    check(&mut table, 150, "2 back from 0, 3@0");
}

#[test]
fn who_was_called_back_stands_in_line_and_goes_later() {
    let mut table = busy(true);
    check(&mut table, 150, "2 back from 0, 1 back from 0, 3@0");
    assert_eq!((table.waiting(), table.promised()[0].requests), (2, 1));
    // What we hear of the attempts that were broken off changes nothing.
    table.play(&[(Fail(1, Failure::Broke), ""), (Fail(2, Failure::Abandoned), "")]);
    assert_eq!(table.waiting(), 2);
    // There is room behind the chat.
    let mut told: Vec<String> = (0..40).map(|_| table.tell(After(50))).collect();
    told.extend([First(3), End(3)].map(|it| table.tell(it)));
    let told: Vec<String> = told.into_iter().filter(|it| !it.is_empty()).collect();
    assert_eq!(told.join(", "), "1@0, 2@0", "the older first");
    table.play(&[(First(1), ""), (End(1), ""), (End(2), "")]);
    table.is_clear();
}

#[test]
fn one_that_began_before_its_recall_came_through_wants_no_other_seat() {
    let mut table = busy(true);
    check(&mut table, 150, "2 back from 0, 1 back from 0, 3@0");
    table.play(&[(First(1), ""), (Leave(2), "")]);
    assert_eq!((table.waiting(), table.brain.due()), (0, None));
    table.play(&[(First(3), ""), (End(3), ""), (End(1), "")]);
    table.is_clear();
}

#[test]
fn who_is_called_back_may_leave() {
    let mut table = busy(true);
    check(&mut table, 150, "2 back from 0, 1 back from 0, 3@0");
    table.play(&[(Leave(1), ""), (Leave(2), ""), (Leave(3), "")]);
    table.is_clear();
}

/// Called back from worker 1 and seated at 0 again before we heard how the attempt at 1 ended.
#[test]
fn news_of_an_attempt_that_is_over_are_news_of_its_worker_alone() {
    let mut table = Table::in_line(2, |_| ());
    table.play(&[(Come(one(1)), "1@0")]);
    let (request, worker) = (RequestId(1), WorkerId(1));
    let promised = table.promised();
    let effects = table.on(Event::Failed { request, worker, failure: Failure::Refused });
    assert!(matches!(effects[..], [Effect::Changed(it)] if it.worker == worker), "{effects:?}");
    assert_eq!((table.brain.worker_of(request), table.promised()), (Some(WorkerId(0)), promised));
    // Its answer begins there: the client has it, and what was promised elsewhere is not wanted.
    table.on(Event::FirstToken { request, worker });
    assert_eq!((table.brain.worker_of(request), table.promised()[0].requests), (None, 0));
    table.play(&[(End(1), "")]);
    table.is_clear();
}

/// The end of an attempt that was called back is still to be told, of a worker that is gone by then.
#[test]
fn nobody_gets_the_number_of_a_worker_that_somebody_open_was_called_back_from() {
    let mut table = busy(true);
    check(&mut table, 150, "2 back from 0, 1 back from 0, 3@0");
    let join = |table: &mut Table, url| {
        let joined = table.on(Event::WorkerJoined { url });
        let [Effect::Watch { worker }] = joined[..] else { panic!("{joined:?}") };
        table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        table.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
        worker.0
    };
    table.play(&[(Leave(2), ""), (Drain(0), "")]);
    assert_eq!(join(&mut table, "http://b"), 1);
    assert_eq!(table.brain.worker_of(RequestId(1)), Some(WorkerId(1)));
    table.play(&[(Leave(3), ""), (Gone(0), "")]);
    table.now = table.now + crate::settings::QUARANTINE;
    assert_eq!(join(&mut table, "http://c"), 2);
    table.play(&[(End(1), "")]);
    assert_eq!(join(&mut table, "http://d"), 0);
}

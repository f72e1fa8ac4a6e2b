//! How fast workers are, learned from streams and from answers in one piece, and what that does to the seats.

use super::*;

/// Seconds a token: what engines usually take, and five times that.
const TRUTH: [f64; 2] = [50e-6, 250e-6];
const FLOOR: f64 = 0.02;
const PROMPT: u32 = 2_000;
/// Between two tokens of an answer, and how many there are.
const STEP: Duration = Duration::from_millis(10);
const ANSWER: u32 = 5;

/// Rounds of a few prompts at once, each worker prefilling one after the other at its true pace. Returns how
/// many each of the two was given in the later half.
fn run(form: Form, rounds: u64) -> (Table, [u32; 2]) {
    let mut table = Table::cached(2, Name::LeastDelay, 1);
    let mut given = [0; 2];
    for round in 0..rounds {
        let (mut lines, mut script) = ([FLOOR; 2], Vec::new());
        for place in 0..8 {
            let request = round * 8 + place;
            let prompt = table.prompt(&text(request as u32, PROMPT), None);
            let worker = table.placement(Arrival { form, ..of_prompt(request, &prompt) }).worker.index();
            lines[worker] += TRUTH[worker] * f64::from(PROMPT);
            script.push((table.now + Duration::from_secs_f64(lines[worker]), request));
            given[worker] += u32::from(round >= rounds / 2);
        }
        script.sort_unstable();
        for (first, request) in script {
            let ends = first + STEP * (ANSWER - 1);
            // An answer in one piece begins when it ends.
            table.now = if form == Form::Stream { first } else { ends };
            table.begin(request);
            table.now = ends;
            let counted = Counted { prompt: None, cached: None, answer: Some(u64::from(ANSWER)) };
            table.on(Event::Finished { request: RequestId(request), counted: Some(counted), pieces: 1 });
        }
        table.now = table.now + Duration::from_secs(1);
        table.on(Event::Tick);
    }
    (table, given)
}

#[track_caller]
fn check_learned(table: &Table, within: f64) {
    for (worker, slope) in table.brain.fleet().workers().zip(TRUTH) {
        let expected = FLOOR + slope * 2.0 * f64::from(PROMPT);
        let learned = worker.rates.prefill.at(2.0 * f64::from(PROMPT));
        assert!((learned / expected - 1.0).abs() < within, "{learned} s, really {expected} s");
    }
}

#[test]
fn a_worker_five_times_slower_gets_less_by_what_its_streams_tell() {
    let (table, [fast, slow]) = run(Form::Stream, 60);
    check_learned(&table, 0.3);
    assert!(slow > 0 && slow * 3 < fast, "{fast} to {slow}");
}

#[test]
fn a_worker_five_times_slower_gets_less_by_what_whole_answers_tell() {
    let (table, [fast, slow]) = run(Form::Whole, 60);
    check_learned(&table, 0.5);
    assert!(slow > 0 && slow * 2 < fast, "{fast} to {slow}");
}

#[test]
fn the_prefill_of_an_answer_in_one_piece_is_presumed_done_when_it_should_be() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    let prompt = table.prompt(&text(1, 1_600), None);
    for (request, form) in [(1, Form::Whole), (2, Form::Stream)] {
        table.placement(Arrival { form, ..of_prompt(request, &prompt) });
    }
    // 20 ms and 1,600 tokens at 50 µs.
    for (millis, prefilling) in [(0, 2), (99, 2), (101, 1), (60_000, 1)] {
        table.now = Instant::from_millis(1 + millis);
        table.on(Event::Tick);
        assert_eq!(table.promised()[0].prefilling, prefilling, "after {millis} ms");
    }
    for request in [1, 2] {
        table.begin(request);
        table.on(Event::Finished { request: RequestId(request), counted: None, pieces: 1 });
    }
    assert_eq!(table.promised(), [PromisedWork::default()]);
}

#[test]
fn one_piece_waits_for_those_before_it() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    for request in 0..2 {
        let prompt = table.prompt(&text(request, 1_600), None);
        table.placement(Arrival { form: Form::Whole, ..of_prompt(u64::from(request), &prompt) });
    }
    for (millis, prefilling) in [(99, 2), (101, 1), (179, 1), (181, 0)] {
        table.now = Instant::from_millis(1 + millis);
        table.on(Event::Tick);
        assert_eq!(table.promised()[0].prefilling, prefilling, "after {millis} ms");
    }
}

/// An embedding's body comes in many pieces, none of them a token; and to count tokens takes no prefill.
#[test]
fn what_writes_no_answer_tells_nothing_of_the_pace() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    let before = table.brain.fleet().worker(WorkerId(0)).unwrap().rates;
    for request in 0..50 {
        let size = Size::Tokens(20_000);
        let arrival =
            Arrival { size, decodes: Decodes::No, form: Form::Whole, ..arrival(request, Some("llama")) };
        table.placement(arrival);
        table.now = table.now + Duration::from_millis(3);
        table.begin(request);
        table.on(Event::Finished { request: RequestId(request), counted: None, pieces: 30 });
    }
    assert_eq!(table.brain.fleet().worker(WorkerId(0)).unwrap().rates, before);
}

#[test]
fn pieces_of_an_answer_in_one_piece_are_not_its_tokens() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    let before = table.brain.fleet().worker(WorkerId(0)).unwrap().rates;
    for request in 0..50 {
        table.placement(Arrival { form: Form::Whole, ..arrival(request, Some("llama")) });
        table.now = table.now + Duration::from_secs(5);
        table.begin(request);
        table.on(Event::Finished { request: RequestId(request), counted: None, pieces: 2 });
    }
    assert_eq!(table.brain.fleet().worker(WorkerId(0)).unwrap().rates, before);
}

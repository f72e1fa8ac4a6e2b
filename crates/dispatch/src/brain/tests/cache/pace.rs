//! The speed of workers, learned from streams and from unstreamed responses, and what it does to placements.

use super::*;

/// Seconds per token: what engines usually take, and five times that.
const TRUTH: [f64; 2] = [50e-6, 250e-6];
const FLOOR: f64 = 0.02;
const PROMPT: u32 = 2_000;
/// Time between two tokens of a response, and their number.
const STEP: Duration = Duration::from_millis(10);
const ANSWER: u32 = 5;

/// Rounds of a few prompts at once, each worker prefilling one after the other at its true pace. Returns how
/// many each of the two was given in the later half.
fn run(form: Form, rounds: u64) -> (Harness, [u32; 2]) {
    let mut harness = Harness::cached(2, Name::LeastDelay, 1);
    let mut given = [0; 2];
    for round in 0..rounds {
        let (mut lines, mut script) = ([FLOOR; 2], Vec::new());
        for place in 0..8 {
            let request = round * 8 + place;
            let prompt = harness.prompt(&text(request as u32, PROMPT), None);
            let worker = harness.placement(Arrival { form, ..of_prompt(request, &prompt) }).worker.index();
            lines[worker] += TRUTH[worker] * f64::from(PROMPT);
            script.push((harness.now + Duration::from_secs_f64(lines[worker]), request));
            given[worker] += u32::from(round >= rounds / 2);
        }
        script.sort_unstable();
        for (first, request) in script {
            let ends = first + STEP * (ANSWER - 1);
            // The first byte of an unstreamed response comes at its end.
            harness.now = if form == Form::Stream { first } else { ends };
            harness.begin(request);
            harness.now = ends;
            let counted = Counted { prompt: None, cached: None, answer: Some(u64::from(ANSWER)) };
            harness.on(Event::Finished { request: RequestId(request), counted: Some(counted), pieces: 1 });
        }
        harness.now = harness.now + Duration::from_secs(1);
        harness.on(Event::Tick);
    }
    (harness, given)
}

#[track_caller]
fn check_learned(harness: &Harness, within: f64) {
    for (worker, slope) in harness.brain.fleet().workers().zip(TRUTH) {
        let expected = FLOOR + slope * 2.0 * f64::from(PROMPT);
        let learned = worker.rates.prefill.by_plain_tokens().at(2.0 * f64::from(PROMPT));
        assert!((learned / expected - 1.0).abs() < within, "{learned} s, really {expected} s");
    }
}

#[test]
fn a_worker_five_times_slower_gets_less_by_its_streams() {
    let (harness, [fast, slow]) = run(Form::Stream, 60);
    check_learned(&harness, 0.2);
    assert!(slow > 0 && slow * 3 < fast, "{fast} to {slow}");
}

/// After a while without requests the slow worker may be as fast as the other. Only a request tells, and only one that can
/// afford to be slow is sent.
#[test]
fn a_slow_worker_is_tried_again_with_a_request_that_can_afford_it() {
    let (mut harness, _) = run(Form::Stream, 60);
    let mut next = 1_000;
    let mut worker_of = |tokens: u32| {
        next += 1;
        let prompt = harness.prompt(&text(next as u32, tokens), None);
        let worker = harness.placement(of_prompt(next, &prompt)).worker.index();
        let took = FLOOR + TRUTH[worker] * f64::from(tokens);
        harness.now = harness.now + Duration::from_secs_f64(took);
        harness.begin(next);
        harness.now = harness.now + STEP * (ANSWER - 1);
        let counted = Counted { prompt: None, cached: None, answer: Some(u64::from(ANSWER)) };
        harness.on(Event::Finished { request: RequestId(next), counted: Some(counted), pieces: 1 });
        harness.now = harness.now + Duration::from_secs(1);
        harness.on(Event::Tick);
        worker
    };
    let (mut trials, mut long) = (0, 0);
    for number in 0..400 {
        match number % 5 {
            0 => long += worker_of(20 * PROMPT),
            _ => trials += worker_of(PROMPT),
        }
    }
    assert_eq!(long, 0, "long prompts were sent there");
    assert!((1..=20).contains(&trials), "{trials} trials, at most one request in twenty");
}

/// A worker whose steps take five times as long is known before its first response has ended, also when the lengths of
/// responses are known already.
#[test]
fn a_stream_under_way_shows_a_slow_worker() {
    let mut harness = Harness::cached(2, Name::RoundRobin, 1);
    let counted = Counted { prompt: None, cached: None, answer: Some(100) };
    for request in 0..100 {
        let worker = harness.placement(arrival(request, Some("llama"))).worker;
        harness.begin(request);
        let request = RequestId(request);
        if worker == WorkerId(0) {
            harness.now = harness.now + STEP * 99;
            harness.on(Event::Finished { request, counted: Some(counted), pieces: 100 });
            continue;
        }
        if request.0 > 60 {
            harness.now = harness.now + STEP * 5 * 31;
            harness.on(Event::Streamed { request, pieces: 32 });
        }
        harness.on(Event::Left { request });
    }
    let [fast, slow] = [0, 1].map(|it| harness.brain.fleet().worker(WorkerId(it)).unwrap().rates.decode.base);
    assert!(slow > 1.5 * fast, "{slow} s a step beside {fast} s");
}

#[test]
fn a_worker_five_times_slower_gets_less_by_its_unstreamed_responses() {
    let (harness, [fast, slow]) = run(Form::Whole, 60);
    check_learned(&harness, 0.5);
    assert!(slow > 0 && slow * 2 < fast, "{fast} to {slow}");
}

#[test]
fn the_prefill_of_an_unstreamed_response_counts_as_done_when_it_should_be() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    let prompt = harness.prompt(&text(1, 1_600), None);
    for (request, form) in [(1, Form::Whole), (2, Form::Stream)] {
        harness.placement(Arrival { form, ..of_prompt(request, &prompt) });
    }
    // 20 ms and 1,600 tokens at 50 µs, and 1.1 ms for what they attend to.
    for (millis, prefilling) in [(0, 2), (100, 2), (102, 1), (60_000, 1)] {
        harness.now = Instant::from_millis(1 + millis);
        harness.on(Event::Tick);
        assert_eq!(harness.promised()[0].prefilling, prefilling, "after {millis} ms");
    }
    for request in [1, 2] {
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 1 });
    }
    assert_eq!(harness.promised(), [PromisedWork::default()]);
}

#[test]
fn an_unstreamed_response_waits_for_those_before_it() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    for request in 0..2 {
        let prompt = harness.prompt(&text(request, 1_600), None);
        harness.placement(Arrival { form: Form::Whole, ..of_prompt(u64::from(request), &prompt) });
    }
    for (millis, prefilling) in [(100, 2), (102, 1), (181, 1), (183, 0)] {
        harness.now = Instant::from_millis(1 + millis);
        harness.on(Event::Tick);
        assert_eq!(harness.promised()[0].prefilling, prefilling, "after {millis} ms");
    }
}

/// The body of an embedding comes in many pieces, none of them a token, and counting tokens takes no prefill.
#[test]
fn a_response_without_decode_teaches_no_pace() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    let before = harness.brain.fleet().worker(WorkerId(0)).unwrap().rates;
    for request in 0..50 {
        let size = Size::Tokens(20_000);
        let arrival =
            Arrival { size, answers: Answers::NONE, form: Form::Whole, ..arrival(request, Some("llama")) };
        harness.placement(arrival);
        harness.now = harness.now + Duration::from_millis(3);
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 30 });
    }
    assert_eq!(harness.brain.fleet().worker(WorkerId(0)).unwrap().rates, before);
}

#[test]
fn pieces_of_an_unstreamed_response_are_not_its_tokens() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    let before = harness.brain.fleet().worker(WorkerId(0)).unwrap().rates;
    for request in 0..50 {
        harness.placement(Arrival { form: Form::Whole, ..arrival(request, Some("llama")) });
        harness.now = harness.now + Duration::from_secs(5);
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 2 });
    }
    assert_eq!(harness.brain.fleet().worker(WorkerId(0)).unwrap().rates, before);
}

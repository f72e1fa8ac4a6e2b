//! What is written down of decisions; and the laws that nothing of it reaches a decision.

use super::*;
use crate::observer::decision::{CANDIDATES_MAX, Decision, Outcome};
use crate::placer::survey::Opening;
use maitre_index::PrefixHash;
use maitre_policy::Why;

mod law;
mod reconfigure;
mod shadow;
mod weight;

/// A prompt of so many blocks of 16 tokens, those of one `text` the same in all.
fn prompt(text: u64, blocks: u64) -> Prompt {
    let chain = (0..blocks).map(|it| PrefixHash(1 + text * 10_000 + it)).collect();
    Prompt { unit: Unit::Tokens, units: blocks * 16, block: 16, chain }
}

fn chat(request: u64, prompt: &Prompt) -> Arrival<'_> {
    Arrival { prompt: Some(prompt), size: Size::Tokens(prompt.units), ..arrival(request, Some("llama")) }
}

impl Table {
    fn last(&self) -> &Decision {
        let ring = self.brain.decisions();
        ring.get(ring.newest()).expect("a decision was written down")
    }

    fn after(&mut self, millis: u64) -> &mut Table {
        self.now = self.now + Duration::from_millis(millis);
        self
    }
}

#[test]
fn a_record_says_who_was_there_and_what_became_of_it() {
    let mut table = Table::with(3, Settings::default());
    let text = prompt(1, 100);
    table.on(Event::Arrived(chat(1, &text)));
    table.after(40).begin(1);
    let counted = Counted { prompt: Some(1_600), cached: Some(0), answer: Some(30) };
    table.after(400).on(Event::Finished { request: RequestId(1), counted: Some(counted), pieces: 30 });

    let first = table.last().clone();
    assert_eq!((first.number, first.request, first.attempt), (1, RequestId(1), 0));
    assert_eq!((first.why, first.strategy, first.held), (Why::LeastDelay, Name::LeastDelay, Some(Tokens(0))));
    assert_eq!((first.outcome, first.first_token), (Outcome::Answered, Some(Duration::from_millis(40))));
    assert_eq!((first.total, first.counted), (Some(Duration::from_millis(440)), counted));
    assert_eq!((first.candidates.len(), first.candidates_total), (3, 3));
    assert_eq!(first.ask.prefill, Tokens(1_600));

    // The next one finds it in the cache, and the record says so of that worker alone.
    table.on(Event::Arrived(chat(2, &text)));
    let second = table.last();
    assert_eq!((second.worker, second.why, second.outcome), (first.worker, Why::Cached, Outcome::InFlight));
    let chosen = second.chosen().expect("it is among the candidates");
    assert_eq!((chosen.candidate.held, second.held), (Tokens(1_584), Some(Tokens(1_584))));
    assert_eq!(second.candidates[0].candidate.worker, second.worker, "the cheapest is first");
    for it in &second.candidates {
        let terms = it.terms(&second.ask);
        assert!((terms.sum() / it.candidate.share - it.price).abs() < 1e-12, "{it:?}");
        assert!(it.opening == Opening::Now && it.ttft.is_some_and(|it| it > 0.0), "{it:?}");
    }
    assert!(second.predicted < first.predicted, "what is cached comes sooner");
}

#[test]
fn each_attempt_has_a_record_and_each_ends_as_it_did() {
    let mut table = Table::of(3);
    table.arrive(1, Some("llama")).unwrap();
    table.fail(1, Failure::Refused).unwrap();
    table.on(Event::BrokeOff { request: RequestId(1) });
    table.arrive(2, Some("llama")).unwrap();
    table.on(Event::Left { request: RequestId(2) });
    table.arrive(3, Some("llama")).unwrap();
    table.on(Event::Declined { request: RequestId(3) });
    let ring = table.brain.decisions();
    let all: Vec<_> = ring.since(0).map(|it| (it.request.0, it.attempt, it.outcome)).collect();
    let expected = [
        (1, 0, Outcome::Failed),
        (1, 1, Outcome::BrokeOff),
        (2, 0, Outcome::Left),
        (3, 0, Outcome::Declined),
    ];
    assert_eq!(all, expected);
    assert_eq!(ring.of(RequestId(1)).map(|it| it.attempt), Some(1));
    assert_eq!(ring.revision(), 8, "made and ended, each");
}

#[test]
fn of_many_workers_the_cheapest_are_shown_and_the_chosen_one_always() {
    for strategy in [Name::LeastDelay, Name::RoundRobin] {
        let mut table = Table::with(200, Settings { strategy, ..Settings::default() });
        for request in 0..250 {
            table.arrive(request, Some("llama")).unwrap();
            let it = table.last();
            assert_eq!((it.candidates.len(), it.candidates_total), (CANDIDATES_MAX, 200));
            assert!(it.chosen().is_some(), "{strategy}: {request}");
            let rest = it.candidates.iter().filter(|there| there.candidate.worker != it.worker);
            assert!(rest.map(|it| it.price).is_sorted(), "{strategy}: {request}");
        }
    }
}

#[test]
fn those_without_room_are_shown_as_such() {
    let queue = maitre_queue::Settings { sequences_max: 1, ..maitre_queue::Settings::default() };
    let settings = Settings { strategy: Name::RoundRobin, queue, ..Settings::default() };
    let mut table = Table::with_line(2, settings);
    table.on(Event::Arrived(arrival(1, Some("llama"))));
    table.on(Event::Arrived(arrival(2, Some("llama"))));
    let it = table.last();
    let mut openings: Vec<_> = it.candidates.iter().map(|it| (it.candidate.worker.0, it.opening)).collect();
    openings.sort_by_key(|it| it.0);
    assert_eq!(openings, [(0, Opening::Later), (1, Opening::Now)]);
    // Who waits has no record until it goes; then it says how long it waited.
    table.on(Event::Arrived(arrival(3, Some("llama"))));
    assert_eq!(table.brain.decisions().newest(), 2);
    table.after(250).on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    let it = table.last();
    assert_eq!((it.number, it.request.0, it.waited), (3, 3, Duration::from_millis(250)));
}

#[test]
fn nothing_is_kept_where_nobody_wants_it() {
    let explain = RecordSettings { decisions: 0 };
    let mut table = Table::with(2, Settings { explain, ..Settings::default() });
    table.arrive(1, Some("llama")).unwrap();
    table.begin(1);
    table.on(Event::Left { request: RequestId(1) });
    assert_eq!((table.brain.decisions().newest(), table.brain.prediction().count), (0, 0));
}

#[test]
fn what_would_be_done_is_told_without_doing_it() {
    let queue = maitre_queue::Settings { sequences_max: 1, ..maitre_queue::Settings::default() };
    let settings = Settings {
        strategy: Name::RoundRobin,
        shadows: vec![Name::LeastDelay],
        queue,
        ..Settings::default()
    };
    let mut table = Table::with_line(2, settings);
    let ask = |table: &mut Table, model| table.brain.explain(table.now, &arrival(9, model));
    for _ in 0..3 {
        let it = ask(&mut table, Some("llama")).unwrap();
        assert_eq!((it.number, it.worker, it.why, it.outcome), (0, WorkerId(0), Why::Turn, Outcome::Asked));
        assert_eq!((it.shadows.len(), it.candidates.len()), (1, 2));
    }
    assert_eq!(ask(&mut table, Some("gpt")).unwrap_err(), Refusal::UnknownModel);
    table.on(Event::Arrived(arrival(1, Some("llama"))));
    assert_eq!(ask(&mut table, Some("llama")).unwrap().worker, WorkerId(1));
    table.on(Event::Arrived(arrival(2, Some("llama"))));
    let it = ask(&mut table, Some("llama")).unwrap();
    assert_eq!((it.outcome, it.chosen().map(|it| it.opening)), (Outcome::WouldWait, Some(Opening::Later)));
    assert_eq!((table.brain.open(), table.brain.decisions().newest()), (2, 2));
    assert_eq!(table.brain.shadows().map(|it| it.decisions).collect::<Vec<_>>(), [2]);
}

//! Records of decisions, and the law that they change no decision.

use super::*;
use crate::observer::decision::{AttemptOutcome, CANDIDATES_MAX, Decision};
use crate::placer::survey::Opening;
use maitre_index::PrefixHash;
use maitre_policy::Why;

mod law;
mod reconfigure;
mod shadow;
mod weight;

/// A prompt of so many blocks of 16 tokens; prompts of one `text` share their prefix.
fn prompt(text: u64, blocks: u64) -> PromptChain {
    let chain = (0..blocks).map(|it| PrefixHash(1 + text * 10_000 + it)).collect();
    PromptChain { unit: Unit::Tokens, units: blocks * 16, block: 16, chain, chunks: None }
}

fn chat(request: u64, prompt: &PromptChain) -> Arrival<'_> {
    Arrival { prompt: Some(prompt), size: Size::Tokens(prompt.units), ..arrival(request, Some("llama")) }
}

impl Harness {
    fn last(&self) -> &Decision {
        let ring = self.brain.decisions();
        ring.get(ring.newest()).expect("a decision was written down")
    }

    fn after(&mut self, millis: u64) -> &mut Harness {
        self.now = self.now + Duration::from_millis(millis);
        self
    }
}

#[test]
fn a_record_has_the_candidates_and_the_outcome() {
    let mut harness = Harness::with(3, BrainSettings::default());
    let text = prompt(1, 100);
    harness.on(Event::Arrived(chat(1, &text)));
    harness.after(40).begin(1);
    let counted = Counted { prompt: Some(1_600), cached: Some(0), answer: Some(30) };
    harness.after(400).on(Event::Finished { request: RequestId(1), counted: Some(counted), pieces: 30 });

    let first = harness.last().clone();
    assert_eq!((first.number, first.request, first.attempt), (1, RequestId(1), 0));
    assert_eq!((first.why, first.strategy, first.held), (Why::LeastDelay, Name::LeastDelay, Some(Tokens(0))));
    assert_eq!(
        (first.outcome, first.first_token),
        (AttemptOutcome::Answered, Some(Duration::from_millis(40)))
    );
    assert_eq!((first.total, first.counted), (Some(Duration::from_millis(440)), counted));
    assert_eq!((first.candidates.len(), first.candidates_total), (3, 3));
    assert_eq!(first.ask.prefill, Tokens(1_600));

    // The next request finds it cached, and the record shows that for this worker alone.
    harness.on(Event::Arrived(chat(2, &text)));
    let second = harness.last();
    assert_eq!(
        (second.worker, second.why, second.outcome),
        (first.worker, Why::Cached, AttemptOutcome::InFlight)
    );
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
fn each_attempt_has_a_record_with_its_own_outcome() {
    let mut harness = Harness::of(3);
    harness.arrive(1, Some("llama")).unwrap();
    harness.fail(1, Failure::Refused).unwrap();
    harness.on(Event::BrokeOff { request: RequestId(1) });
    harness.arrive(2, Some("llama")).unwrap();
    harness.on(Event::Left { request: RequestId(2) });
    harness.arrive(3, Some("llama")).unwrap();
    harness.on(Event::Declined { request: RequestId(3) });
    let ring = harness.brain.decisions();
    let all: Vec<_> = ring.since(0).map(|it| (it.request.0, it.attempt, it.outcome)).collect();
    let expected = [
        (1, 0, AttemptOutcome::Failed),
        (1, 1, AttemptOutcome::BrokeOff),
        (2, 0, AttemptOutcome::Left),
        (3, 0, AttemptOutcome::Declined),
    ];
    assert_eq!(all, expected);
    assert_eq!(ring.of(RequestId(1)).map(|it| it.attempt), Some(1));
    assert_eq!(ring.revision(), 8, "made and ended, each");
}

#[test]
fn a_record_of_many_workers_has_the_cheapest_and_the_chosen_one() {
    for strategy in [Name::LeastDelay, Name::RoundRobin] {
        let mut harness = Harness::with(200, BrainSettings { strategy, ..BrainSettings::default() });
        for request in 0..250 {
            harness.arrive(request, Some("llama")).unwrap();
            let it = harness.last();
            assert_eq!((it.candidates.len(), it.candidates_total), (CANDIDATES_MAX, 200));
            assert!(it.chosen().is_some(), "{strategy}: {request}");
            let rest = it.candidates.iter().filter(|there| there.candidate.worker != it.worker);
            assert!(rest.map(|it| it.price).is_sorted(), "{strategy}: {request}");
        }
    }
}

#[test]
fn workers_without_room_are_recorded_as_such() {
    let queue = maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let settings = BrainSettings { strategy: Name::RoundRobin, queue, ..BrainSettings::default() };
    let mut harness = Harness::with_queue(2, settings);
    harness.on(Event::Arrived(arrival(1, Some("llama"))));
    harness.on(Event::Arrived(arrival(2, Some("llama"))));
    let it = harness.last();
    let mut openings: Vec<_> = it.candidates.iter().map(|it| (it.candidate.worker.0, it.opening)).collect();
    openings.sort_by_key(|it| it.0);
    assert_eq!(openings, [(0, Opening::Later), (1, Opening::Now)]);
    // A queued request has no record until it is placed; then the record has its time in the queue.
    harness.on(Event::Arrived(arrival(3, Some("llama"))));
    assert_eq!(harness.brain.decisions().newest(), 2);
    harness.after(250).on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    let it = harness.last();
    assert_eq!((it.number, it.request.0, it.waited), (3, 3, Duration::from_millis(250)));
}

#[test]
fn nothing_is_recorded_when_recording_is_off() {
    let explain = RecordSettings { decisions: 0 };
    let mut harness = Harness::with(2, BrainSettings { explain, ..BrainSettings::default() });
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    harness.on(Event::Left { request: RequestId(1) });
    assert_eq!((harness.brain.decisions().newest(), harness.brain.prediction().count), (0, 0));
}

#[test]
fn explain_places_nothing() {
    let queue = maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let settings = BrainSettings {
        strategy: Name::RoundRobin,
        shadows: vec![Name::LeastDelay],
        queue,
        ..BrainSettings::default()
    };
    let mut harness = Harness::with_queue(2, settings);
    let ask = |harness: &mut Harness, model| harness.brain.explain(harness.now, &arrival(9, model));
    for _ in 0..3 {
        let it = ask(&mut harness, Some("llama")).unwrap();
        assert_eq!(
            (it.number, it.worker, it.why, it.outcome),
            (0, WorkerId(0), Why::Turn, AttemptOutcome::Asked)
        );
        assert_eq!((it.shadows.len(), it.candidates.len()), (1, 2));
    }
    assert_eq!(ask(&mut harness, Some("gpt")).unwrap_err(), Refusal::UnknownModel);
    harness.on(Event::Arrived(arrival(1, Some("llama"))));
    assert_eq!(ask(&mut harness, Some("llama")).unwrap().worker, WorkerId(1));
    harness.on(Event::Arrived(arrival(2, Some("llama"))));
    let it = ask(&mut harness, Some("llama")).unwrap();
    assert_eq!(
        (it.outcome, it.chosen().map(|it| it.opening)),
        (AttemptOutcome::WouldWait, Some(Opening::Later))
    );
    assert_eq!((harness.brain.open(), harness.brain.decisions().newest()), (2, 2));
    assert_eq!(harness.brain.shadows().map(|it| it.decisions).collect::<Vec<_>>(), [2]);
}

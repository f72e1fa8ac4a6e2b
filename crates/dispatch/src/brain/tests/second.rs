//! Second attempts: where they go, what is promised for each, and that nothing of either stays.

use super::*;
use crate::event::SecondCause;
use crate::observer::decision::AttemptOutcome;
use crate::settings::HedgeSettings;

const FIRST: RequestId = RequestId(1);
const SECOND: RequestId = RequestId(1 << 40);

fn hedging(workers: u32) -> Harness {
    let hedges = HedgeSettings { are_on: true, share: 1.0 };
    Harness::with(workers, BrainSettings { strategy: Name::RoundRobin, hedges, ..BrainSettings::default() })
}

fn ask_second(harness: &mut Harness, cause: SecondCause) -> Vec<Effect> {
    harness.on(Event::Second { request: FIRST, number: SECOND, cause })
}

fn in_flight(harness: &Harness) -> Vec<u32> {
    harness.promised().iter().map(|it| it.requests).collect()
}

#[test]
fn a_placement_says_when_to_hedge_only_where_that_is_wanted() {
    for (are_on, of_class, expected) in
        [(true, None, true), (false, None, false), (false, Some(true), true), (true, Some(false), false)]
    {
        let mut harness = hedging(2);
        let mut settings = harness.brain.settings().clone();
        settings.hedges.are_on = are_on;
        settings.queue.classes.iter_mut().for_each(|it| it.hedges = of_class);
        harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
        let deadline = Some(harness.now + Duration::from_secs(30));
        let effects = harness.on(Event::Arrived(Arrival { deadline, ..arrival(1, Some("llama")) }));
        assert_eq!(placement(&effects).hedge_at.is_some(), expected, "{are_on} {of_class:?}");
    }
}

#[test]
fn each_attempt_is_promised_and_the_loser_released() {
    for second_wins in [false, true] {
        let mut harness = hedging(3);
        harness.arrive(1, Some("llama")).unwrap();
        let effects = ask_second(&mut harness, SecondCause::Hedge);
        assert_eq!((placement(&effects).request, placement(&effects).worker), (SECOND, WorkerId(1)));
        assert_eq!((in_flight(&harness), placement(&effects).hedge_at), (vec![1, 1, 0], None));
        let (winner, loser) = if second_wins { (SECOND, FIRST) } else { (FIRST, SECOND) };
        harness.on(Event::Outpaced { request: loser, by: winner });
        harness.begin(winner.0);
        assert_eq!(in_flight(&harness), if second_wins { [0, 1, 0] } else { [1, 0, 0] });
        harness.on(Event::Finished { request: winner, counted: None, pieces: 9 });
        assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 3], 0));
        let outcomes: Vec<_> = harness.brain.decisions().newest_first().map(|it| it.outcome).collect();
        assert!(outcomes.contains(&AttemptOutcome::Outpaced) && outcomes.contains(&AttemptOutcome::Answered));
    }
}

#[test]
fn without_another_worker_or_budget_there_is_none() {
    let mut harness = hedging(1);
    harness.arrive(1, Some("llama")).unwrap();
    assert_eq!(ask_second(&mut harness, SecondCause::Hedge), []);
    let mut harness = Harness::of(2);
    let mut settings = harness.brain.settings().clone();
    settings.hedges = HedgeSettings { are_on: true, share: 0.0 };
    harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
    harness.arrive(1, Some("llama")).unwrap();
    assert_eq!(ask_second(&mut harness, SecondCause::Hedge), []);
    assert_eq!((in_flight(&harness), harness.brain.open()), (vec![1, 0], 1));
}

#[test]
fn a_second_attempt_that_fails_leaves_the_first_alone() {
    let mut harness = hedging(2);
    harness.arrive(1, Some("llama")).unwrap();
    ask_second(&mut harness, SecondCause::Hedge);
    harness.on(Event::Left { request: SECOND });
    assert_eq!(in_flight(&harness), [1, 0]);
    harness.begin(1);
    harness.on(Event::Finished { request: FIRST, counted: None, pieces: 9 });
    assert_eq!(harness.promised(), vec![PromisedWork::default(); 2]);
}

#[test]
fn a_worker_that_was_outpaced_is_expected_to_stay_silent_as_long_again() {
    let settings =
        BrainSettings { hedges: HedgeSettings { are_on: true, share: 1.0 }, ..BrainSettings::default() };
    let mut harness = Harness::with(2, settings);
    let slow = harness.arrive(1, Some("llama")).unwrap();
    harness.now = harness.now + Duration::from_millis(800);
    ask_second(&mut harness, SecondCause::Hedge);
    harness.on(Event::Outpaced { request: FIRST, by: SECOND });
    harness.begin(SECOND.0);
    harness.on(Event::Finished { request: SECOND, counted: None, pieces: 9 });
    for request in 10..14 {
        let at = harness.arrive(request, Some("llama")).unwrap();
        assert_ne!(at, slow, "request {request}");
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 9 });
    }
}

#[test]
fn a_drained_worker_hands_a_response_over_as_the_rest_of_itself() {
    let mut harness = Harness::of(2);
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    harness.on(Event::WorkerDrained { worker: WorkerId(0), draining: true });
    let effects = ask_second(&mut harness, SecondCause::HandOver { delivered: Tokens(40) });
    assert_eq!(placement(&effects).worker, WorkerId(1));
    assert_eq!(harness.promised()[1].prefill.tokens, Tokens(1_040));
    harness.on(Event::HandedOver { request: FIRST, by: SECOND });
    harness.begin(SECOND.0);
    assert_eq!(in_flight(&harness), [0, 1]);
    harness.on(Event::Finished { request: SECOND, counted: None, pieces: 60 });
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 2], 0));
    let first = harness.brain.decisions().newest_first().last().unwrap();
    assert_eq!(first.outcome, AttemptOutcome::HandedOver);
}

//! Responses that broke off: where they go on, what is promised, and what bounds them.

use super::*;
use crate::observer::decision::AttemptOutcome;
use crate::request::{BREAKS_MAX, STANDSTILLS_MAX};
use crate::scheduler::retry_budget::RetryIncome;

impl Harness {
    /// The worker of a request fails after so many tokens of the response.
    fn interrupt(&mut self, request: u64, delivered: u64) -> Vec<Effect> {
        let request = RequestId(request);
        let worker = self.brain.worker_of(request).unwrap_or(WorkerId(0));
        self.on(Event::Interrupted { request, worker, delivered: Tokens(delivered) })
    }
}

#[test]
fn the_rest_is_promised_to_another_worker_with_a_longer_prompt() {
    let mut harness = Harness::of(2);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    harness.begin(1);
    let effects = harness.interrupt(1, 40);
    assert!(effects.contains(&Effect::Probe { worker: WorkerId(0) }), "the worker is suspect: {effects:?}");
    assert_eq!((placement(&effects).worker, placement(&effects).attempt), (WorkerId(1), 1));
    let rest = PromisedWork {
        requests: 1,
        prefilling: 1,
        prefill: PrefillWork::whole(Tokens(1_040)),
        decode: Tokens(60),
        context: Tokens(1_100),
    };
    assert_eq!(harness.promised(), [PromisedWork::default(), rest]);
    harness.begin(1);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 60 });
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 2], 0));
    let outcomes: Vec<_> = harness.brain.decisions().newest_first().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [AttemptOutcome::Answered, AttemptOutcome::Continued]);
}

/// A stream that is longer than expected is promised as one that goes on, not as one that has just ended: it would look free.
#[test]
fn what_is_left_of_a_stream_that_outran_its_estimate_is_promised() {
    for (answer_max, breaks, expected) in [
        (None, vec![100], 156),
        (None, vec![600], 300),
        (Some(1_500), vec![600], 300),
        (Some(650), vec![600], 50),
        (Some(600), vec![600], 1),
        // Across several workers as at one.
        (None, vec![100, 200, 600], 300),
        (None, vec![600, 700], 350),
    ] {
        let mut harness = Harness::of(2);
        harness.on(Event::Arrived(Arrival { answer_max, ..arrival(1, Some("llama")) }));
        for &delivered in &breaks {
            harness.begin(1);
            harness.interrupt(1, delivered);
            for worker in [0, 1].map(WorkerId) {
                harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            }
        }
        let decode: Tokens =
            harness.promised().iter().map(|it| it.decode).fold(Tokens::ZERO, |sum, it| sum + it);
        assert_eq!(decode, Tokens(expected), "{breaks:?}, at most {answer_max:?}");
        harness.begin(1);
        harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 60 });
        assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 2], 0));
    }
}

#[test]
fn a_worker_that_failed_before_may_be_asked_again_but_not_the_last_one() {
    let mut harness = Harness::of(2);
    harness.arrive(1, Some("llama")).unwrap();
    for (round, delivered) in (1..=4u64).map(|it| (it, 10 * it)) {
        harness.begin(1);
        let effects = harness.interrupt(1, delivered);
        assert_eq!(u64::from(placement(&effects).worker.0), round % 2);
        for worker in [0, 1].map(WorkerId) {
            harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        }
    }
}

#[test]
fn a_response_that_does_not_get_any_further_ends() {
    let mut harness = Harness::of(8);
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    assert!(outcome(&harness.interrupt(1, 40)).is_ok());
    harness.begin(1);
    assert_eq!(
        outcome(&harness.interrupt(1, 40)),
        Err(Refusal::Failed { last: Failure::Broke, limit: RetryLimit::Failovers })
    );
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default(); 8], 0));
}

#[test]
fn an_attempt_to_go_on_that_fails_is_tried_elsewhere() {
    let mut harness = Harness::of(4);
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    assert_eq!(outcome(&harness.interrupt(1, 40)), Ok(1));
    assert_eq!(harness.fail(1, Failure::Refused), Ok(2), "nothing was sent");
    assert!(harness.fail(1, Failure::Broke).is_err(), "two workers broke one after another");
}

/// How many of a thousand workers fail under a response that gets one token further at each, if each lives so long.
fn deaths_of(life: Duration) -> u32 {
    let mut harness = Harness::of(4);
    harness.arrive(1, Some("llama")).unwrap();
    let mut deaths = 0;
    for delivered in 1..=1_000 {
        harness.begin(1);
        harness.now = harness.now + life;
        deaths += 1;
        let effects = harness.interrupt(1, delivered);
        for worker in [0, 1, 2, 3].map(WorkerId) {
            harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        }
        if outcome(&effects).is_err() {
            break;
        }
    }
    deaths
}

#[test]
fn a_request_that_kills_every_worker_ends() {
    assert_eq!(deaths_of(Duration::ZERO), BREAKS_MAX + 1);
    assert_eq!(deaths_of(Duration::from_secs(1)), 20);
}

#[test]
fn a_long_response_that_gets_further_is_not_ended_by_a_fleet_that_keeps_dying() {
    assert_eq!(deaths_of(Duration::from_secs(8)), 1_000);
}

#[test]
fn a_deadline_for_the_first_token_does_not_hold_for_the_rest() {
    let mut harness =
        Harness::with_queue(2, BrainSettings { strategy: Name::RoundRobin, ..BrainSettings::default() });
    let deadline = Some(harness.now + Duration::from_millis(500));
    harness.on(Event::Arrived(Arrival { deadline, ..arrival(1, Some("llama")) }));
    harness.begin(1);
    harness.now = Instant::from_millis(5_000);
    let effects = harness.interrupt(1, 10);
    assert_eq!(placement(&effects).deadline, None);
}

#[test]
fn a_late_report_of_another_worker_moves_nothing() {
    let mut harness = Harness::of(3);
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    let stale = Event::Interrupted { request: RequestId(1), worker: WorkerId(2), delivered: Tokens(3) };
    assert!(!harness.on(stale).iter().any(|it| matches!(it, Effect::Place(_) | Effect::Refuse { .. })));
    assert_eq!(harness.brain.worker_of(RequestId(1)), Some(WorkerId(0)));
}

/// Another request stays at each worker, so that none fails of this one alone.
fn with_company(workers: u32) -> Harness {
    let mut harness = Harness::of(workers);
    for other in 0..workers {
        harness.arrive(100 + u64::from(other), Some("llama")).unwrap();
        harness.begin(100 + u64::from(other));
    }
    harness.arrive(1, Some("llama")).unwrap();
    harness.begin(1);
    harness
}

#[test]
fn a_response_is_not_blamed_for_workers_that_it_shares() {
    let mut harness = with_company(8);
    assert!(outcome(&harness.interrupt(1, 40)).is_ok());
    let mut standstills = 1;
    while outcome(&harness.interrupt(1, 40)).is_ok() {
        standstills += 1;
        for worker in (0..8).map(WorkerId) {
            harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        }
    }
    assert_eq!(standstills, STANDSTILLS_MAX);
}

#[test]
fn further_attempts_of_a_response_are_moves_and_no_retries() {
    let settings = BrainSettings {
        budget: RetryIncome { per_request: 0.0, per_second: 0.0 },
        strategy: Name::RoundRobin,
        ..BrainSettings::default()
    };
    let mut harness = Harness::with(8, settings);
    for request in 0..24 {
        harness.arrive(request, Some("llama")).unwrap();
        harness.begin(request);
    }
    assert!(outcome(&harness.interrupt(20, 40)).is_ok());
    assert!(harness.fail(20, Failure::Broke).is_ok(), "another worker broke before it went on");
}

#[test]
fn a_fleet_that_keeps_dying_ends_no_response_that_gets_further() {
    let mut harness = with_company(8);
    for delivered in 1..=u64::from(BREAKS_MAX) {
        for request in 100..108 {
            assert!(outcome(&harness.interrupt(request, delivered)).is_ok(), "{request} after {delivered}");
            for worker in (0..8).map(WorkerId) {
                harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            }
        }
    }
}

#[test]
fn a_fleet_whose_responses_get_no_further_is_left_alone() {
    let mut harness = Harness::of(8);
    for request in 0..64 {
        harness.arrive(request, Some("llama")).unwrap();
        harness.begin(request);
    }
    let mut moves = 0;
    for _round in 0..STANDSTILLS_MAX {
        let open: Vec<u64> = (0..64).filter(|it| harness.brain.worker_of(RequestId(*it)).is_some()).collect();
        for request in open {
            moves += u32::from(outcome(&harness.interrupt(request, 1)).is_ok());
            for worker in (0..8).map(WorkerId) {
                harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            }
        }
    }
    assert_eq!(moves, 2 * 64, "one of each after its token, and one of each from the budget");
}

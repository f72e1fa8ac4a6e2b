//! Decisions and retries as scripts of events, and the law that promises return to exactly zero.

use super::*;
use crate::cache::PromptChain;
use crate::event::{Arrival, Form, Placement, Refusal, RetryLimit};
use crate::observer::decision::RecordSettings;
use crate::scheduler::retry_budget::RetryIncome;
use maitre_base::{AdapterSlot, KvRoom, PrefillWork, PromisedWork, StoredBlocks, TenantId, Tokens};
use maitre_fleet::estimate::{Answers, Counted, Size};
use maitre_fleet::{Card, Wanted};
use maitre_index as index;
use maitre_index::Root;
use maitre_index::prefix::Unit;
use maitre_policy::Name;
use proptest::prelude::{any, prop, prop_assert_eq, proptest};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

mod cache;
mod continuation;
mod fallback;
mod peers;
mod programs;
mod queue;
mod record;
mod scaling;
mod second;
mod split;
mod state_owners;
mod worker_ids;

struct Harness {
    brain: Brain,
    now: Instant,
}

impl Harness {
    /// A fleet of this many workers, all ready, all serving `llama`.
    fn of(count: u32) -> Harness {
        Harness::with(count, BrainSettings { strategy: Name::RoundRobin, ..BrainSettings::default() })
    }

    /// Without a queue: for tests about where requests go, not when.
    fn with(count: u32, mut settings: BrainSettings) -> Harness {
        settings.queue.enabled = false;
        Harness::with_queue(count, settings)
    }

    fn with_queue(count: u32, settings: BrainSettings) -> Harness {
        let mut harness = Harness { brain: Brain::new(settings), now: Instant::from_millis(1) };
        for number in 0..count {
            let worker = WorkerId(number);
            harness.on(Event::WorkerJoined { url: &format!("http://127.0.0.1:{number}") });
            harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
        }
        harness
    }

    fn on(&mut self, event: Event<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.brain.on(self.now, event, &mut effects);
        effects
    }

    /// A request of this class was here: the classes below yield to it.
    fn come_and_go(&mut self, class: ClassId) {
        let request = RequestId(u64::MAX - 1);
        self.on(Event::Arrived(Arrival { class, ..arrival(request.0, Some("llama")) }));
        self.on(Event::Left { request });
    }

    /// The first token of a request comes from its worker.
    fn begin(&mut self, request: u64) -> Vec<Effect> {
        let request = RequestId(request);
        let worker = self.brain.worker_of(request).unwrap_or(WorkerId(0));
        self.on(Event::FirstToken { request, worker })
    }

    /// The attempt of a request fails at its worker.
    fn fail_attempt(&mut self, request: u64, failure: Failure) -> Vec<Effect> {
        let request = RequestId(request);
        let worker = self.brain.worker_of(request).unwrap_or(WorkerId(0));
        self.on(Event::Failed { request, worker, failure })
    }

    fn arrive(&mut self, request: u64, model: Option<&str>) -> Result<u32, Refusal> {
        outcome(&self.on(Event::Arrived(arrival(request, model))))
    }

    fn fail(&mut self, request: u64, failure: Failure) -> Result<u32, Refusal> {
        outcome(&self.fail_attempt(request, failure))
    }

    fn promised(&self) -> Vec<PromisedWork> {
        self.brain.fleet().workers().map(|it| it.promised.work).collect()
    }
}

fn arrival(request: u64, model: Option<&str>) -> Arrival<'_> {
    Arrival {
        request: RequestId(request),
        model,
        size: Size::Bytes(4_000),
        answer_max: Some(100),
        answers: Answers::ONE,
        form: Form::Stream,
        session: None,
        program: None,
        head: None,
        class: ClassId(1),
        tenant: TenantId(0),
        deadline: None,
        prompt: None,
        may_split: true,
        state: None,
        only: None,
    }
}

#[track_caller]
fn placement(effects: &[Effect]) -> Placement {
    let found = effects.iter().find_map(|it| match it {
        Effect::Place(placement) => Some(*placement),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("not placed: {effects:?}"))
}

#[track_caller]
fn outcome(effects: &[Effect]) -> Result<u32, Refusal> {
    let found = effects.iter().find_map(|it| match it {
        Effect::Place(placement) => Some(Ok(placement.worker.0)),
        Effect::Refuse { refusal, .. } => Some(Err(*refusal)),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("neither placed nor refused: {effects:?}"))
}

#[test]
fn a_request_is_promised_only_while_it_is_pending() {
    let mut harness = Harness::of(1);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    let full = PromisedWork {
        requests: 1,
        prefilling: 1,
        prefill: PrefillWork::whole(Tokens(1_000)),
        decode: Tokens(100),
        context: Tokens(1_100),
    };
    assert_eq!(harness.promised(), [full]);
    harness.begin(1);
    assert_eq!(harness.promised(), [PromisedWork { prefill: PrefillWork::ZERO, prefilling: 0, ..full }]);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    assert_eq!((harness.promised(), harness.brain.open()), (vec![PromisedWork::default()], 0));
}

#[test]
fn unknown_missing_and_unserved_models_have_their_own_refusals() {
    let mut harness = Harness::of(2);
    assert_eq!(harness.arrive(1, Some("gpt")), Err(Refusal::UnknownModel));
    assert_eq!(harness.arrive(2, None), Ok(0), "all workers serve the same: no need to name it");
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "qwen", parent: None }] });
    assert_eq!(harness.arrive(3, None), Err(Refusal::ModelRequired));
    assert_eq!(harness.arrive(4, Some("qwen")), Ok(1));
    assert_eq!(Harness::of(0).arrive(5, Some("llama")), Err(Refusal::NoWorker));
}

#[test]
fn a_worker_that_lists_nothing_may_serve_any_name() {
    let mut harness = Harness::of(1);
    harness.on(Event::WorkerJoined { url: "http://127.0.0.1:99" });
    harness.on(Event::Probed { worker: WorkerId(1), evidence: Evidence::ProbeAnswered });
    assert_eq!(harness.arrive(1, Some("whatever")), Ok(1));
}

#[test]
fn an_unsent_request_is_tried_on_every_worker() {
    let mut harness = Harness::of(3);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    assert_eq!(harness.fail(1, Failure::Refused), Ok(1));
    assert_eq!(harness.fail(1, Failure::Unreachable), Ok(2));
    let nobody_left = Refusal::Failed { last: Failure::Refused, limit: RetryLimit::Workers };
    assert_eq!(harness.fail(1, Failure::Refused), Err(nobody_left));
    assert_eq!(harness.promised(), [PromisedWork::default(); 3]);
}

#[test]
fn a_request_that_breaks_two_workers_is_not_sent_to_a_third() {
    let mut harness = Harness::of(4);
    assert_eq!(harness.arrive(1, Some("llama")), Ok(0));
    assert_eq!(harness.fail(1, Failure::Broke), Ok(1));
    assert_eq!(
        harness.fail(1, Failure::Broke),
        Err(Refusal::Failed { last: Failure::Broke, limit: RetryLimit::Failovers })
    );
}

#[test]
fn a_timeout_is_not_retried() {
    let mut harness = Harness::of(2);
    harness.arrive(1, Some("llama")).unwrap();
    assert_eq!(
        harness.fail(1, Failure::TimedOut),
        Err(Refusal::Failed { last: Failure::TimedOut, limit: RetryLimit::Failure })
    );
}

#[test]
fn an_empty_retry_budget_stops_only_retries_of_sent_requests() {
    let budget = RetryIncome { per_request: 0.0, per_second: 0.0 };
    let mut harness =
        Harness::with(3, BrainSettings { budget, strategy: Name::RoundRobin, ..BrainSettings::default() });
    harness.arrive(1, Some("llama")).unwrap();
    assert!(harness.fail(1, Failure::Broke).is_err());
    harness.arrive(2, Some("llama")).unwrap();
    assert!(harness.fail(2, Failure::Refused).is_ok());
}

#[test]
fn a_broken_attempt_asks_for_a_probe_at_once() {
    let mut harness = Harness::of(2);
    harness.arrive(1, Some("llama")).unwrap();
    let effects = harness.fail_attempt(1, Failure::Broke);
    assert!(effects.contains(&Effect::Probe { worker: WorkerId(0) }), "{effects:?}");
}

#[test]
fn a_complete_answer_leaves_the_end_of_a_ramp_to_what_announces_it() {
    let mut harness = Harness::of(2);
    harness.on(Event::Probed { worker: WorkerId(0), evidence: Evidence::Refused });
    harness.on(Event::Probed { worker: WorkerId(0), evidence: Evidence::ProbeAnswered });
    let request = (1..100).find(|&it| harness.arrive(it, Some("llama")) == Ok(0)).unwrap();
    harness.begin(request);
    harness.now = harness.now + Duration::from_secs(60);
    harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 1 });
    let effects = harness.on(Event::Tick);
    let is_announced = |it: &Effect| matches!(it, Effect::Changed(change) if change.to == HealthState::Ready);
    assert!(effects.iter().any(is_announced), "{effects:?}");
}

#[test]
fn a_full_worker_stays_healthy() {
    let mut harness = Harness::of(2);
    for request in 0..50 {
        harness.arrive(request, Some("llama")).unwrap();
        let _ = harness.fail(request, Failure::Busy);
    }
    assert!(harness.brain.fleet().workers().all(|it| it.health.state() == HealthState::Ready));
}

#[test]
fn a_model_may_have_a_strategy_of_its_own() {
    let strategies = BTreeMap::from([("llama".to_owned(), Name::StickySession)]);
    let mut harness = Harness::with(3, BrainSettings { strategies, ..BrainSettings::default() });
    let mut placement = |request| {
        let arrival = Arrival { session: Some(7), ..arrival(request, Some("llama")) };
        outcome(&harness.on(Event::Arrived(arrival))).unwrap()
    };
    let home = placement(0);
    assert!((1..20).all(|request| placement(request) == home));
}

#[test]
fn responses_teach_sizes() {
    let mut harness = Harness::of(1);
    for request in 0..200 {
        harness.arrive(request, Some("llama")).unwrap();
        let counted = Counted { prompt: Some(2_000), cached: None, answer: Some(10) };
        harness.on(Event::Finished { request: RequestId(request), counted: Some(counted), pieces: 1 });
    }
    harness.arrive(999, Some("llama")).unwrap();
    let promised = harness.promised()[0];
    assert_eq!((promised.prefill.tokens, promised.decode), (Tokens(2_000), Tokens(10)));
}

proptest! {
    #[test]
    fn promises_return_to_exactly_zero(
        script in prop::collection::vec((0u64..30, 0u8..10, any::<prop::sample::Index>()), 0..400),
    ) {
        let mut harness = Harness::of(3);
        for (request, step, choice) in script {
            let id = RequestId(request);
            match step {
                0..=2 if !harness.brain.pending.contains_key(&request) => {
                    harness.on(Event::Arrived(arrival(request, Some("llama"))));
                }
                3 => drop(harness.begin(request)),
                4 => drop(harness.on(Event::Finished { request: id, counted: None, pieces: 1 })),
                5 => drop(harness.on(Event::Left { request: id })),
                6 => drop(harness.on(Event::BrokeOff { request: id })),
                7 => {
                    let worker = WorkerId(choice.index(3) as u32);
                    harness.on(Event::Interrupted { request: id, worker, delivered: Tokens(request) });
                }
                _ => {
                    let failure = Failure::ALL[choice.index(Failure::ALL.len())];
                    harness.fail_attempt(request, failure);
                }
            }
        }
        for request in 0..30 {
            harness.on(Event::Left { request: RequestId(request) });
        }
        prop_assert_eq!(harness.promised(), [PromisedWork::default(); 3]);
        prop_assert_eq!(harness.brain.open(), 0);
    }
}

/// One request for many answers costs as much as many requests, and says as much of their length.
#[test]
fn several_answers_are_promised_and_learned_one_by_one() {
    let mut harness = Harness::of(1);
    let many = Arrival { answers: Answers(64), ..arrival(1, Some("llama")) };
    harness.on(Event::Arrived(many));
    assert_eq!(harness.promised()[0].decode, Tokens(6_400));
    let counted = Counted { prompt: Some(1_000), cached: None, answer: Some(6_400) };
    harness.begin(1);
    harness.on(Event::Finished { request: RequestId(1), counted: Some(counted), pieces: 6_400 });
    assert_eq!(harness.promised()[0], PromisedWork::default());
    harness.on(Event::Arrived(Arrival { answer_max: None, ..arrival(2, Some("llama")) }));
    assert!(harness.promised()[0].decode < Tokens(256), "{:?}", harness.promised());
}

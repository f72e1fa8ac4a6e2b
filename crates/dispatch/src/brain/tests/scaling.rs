//! How many workers the brain asks for, from what arrives and what waits.

use super::*;
use crate::scaling::ModelScaling;
use maitre_base::EngineLoad;
use maitre_fleet::scaling::{ScalingReason, ScalingSettings};

impl Harness {
    /// The number of one model, a second from now.
    fn scaling(&mut self) -> Vec<ModelScaling> {
        self.now = self.now + Duration::from_secs(1);
        self.on(Event::Tick);
        self.brain.scaling().to_vec()
    }
}

#[test]
fn a_fleet_without_requests_needs_one_worker_for_each_model() {
    let mut harness = Harness::of(3);
    harness.on(Event::ModelsReported { worker: WorkerId(2), cards: &[Card { name: "qwen", parent: None }] });
    let numbers: Vec<(u32, u32, ScalingReason)> =
        harness.scaling().iter().map(|it| (it.workers, it.desired.workers, it.desired.reason)).collect();
    assert_eq!(numbers, [(2, 1, ScalingReason::Least), (1, 1, ScalingReason::Least)]);
}

#[test]
fn a_model_whose_workers_have_left_still_has_a_number() {
    let scaling =
        ScalingSettings { idle: Duration::from_secs(30), settle: Duration::ZERO, ..Default::default() };
    let settings = BrainSettings { strategy: Name::RoundRobin, scaling, ..BrainSettings::default() };
    let mut harness = Harness::with_queue(1, settings);
    harness.arrive(1, Some("llama")).unwrap();
    assert_eq!(harness.scaling()[0].desired.workers, 1);
    harness.on(Event::Left { request: RequestId(1) });
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    assert_eq!(harness.scaling()[0].workers, 0);
    harness.now = harness.now + Duration::from_secs(40);
    assert_eq!(harness.scaling()[0].desired.reason, ScalingReason::Idle);
}

/// Nobody starts workers for a model that was renamed or taken out of service.
#[test]
fn a_model_that_is_neither_served_nor_asked_for_is_forgotten() {
    let mut harness = Harness::of(2);
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "old", parent: None }] });
    let later = |harness: &mut Harness, seconds: u64| {
        harness.now = harness.now + Duration::from_secs(seconds);
        harness.scaling().len()
    };
    assert_eq!(later(&mut harness, 0), 2);
    harness.on(Event::WorkerGone { worker: WorkerId(1) });
    assert_eq!(later(&mut harness, 500), 2, "it may come back");
    assert_eq!([200, 200].map(|it| later(&mut harness, it)), [1, 1]);
    // A worker serves it again.
    harness.on(Event::WorkerJoined { url: "http://127.0.0.1:9" });
    let worker = harness.brain.fleet().workers().map(|it| it.id).find(|it| it.0 != 0).unwrap();
    harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
    harness.on(Event::ModelsReported { worker, cards: &[Card { name: "old", parent: None }] });
    assert_eq!(later(&mut harness, 0), 2);
}

/// They are missing, whatever the reason.
#[test]
fn a_model_whose_workers_are_down_or_that_the_operator_names_is_not_forgotten() {
    let mut harness = Harness::of(3);
    let mut settings = harness.brain.settings().clone();
    settings.expected_models = vec!["rare".to_owned()];
    harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
    harness.on(Event::ModelsReported { worker: WorkerId(2), cards: &[Card { name: "old", parent: None }] });
    harness.on(Event::Probed { worker: WorkerId(2), evidence: Evidence::Refused });
    harness.now = harness.now + Duration::from_secs(10_000);
    let numbers: Vec<(u32, u32)> =
        harness.scaling().iter().map(|it| (it.workers, it.desired.workers)).collect();
    assert_eq!(numbers, [(2, 1), (0, 1), (0, 1)]);
}

#[test]
fn traffic_raises_the_number() {
    let mut harness = Harness::of(2);
    for request in 0..400 {
        harness.now = harness.now + Duration::from_millis(100);
        let arrival = Arrival { size: Size::Tokens(8_000), ..arrival(request, Some("llama")) };
        harness.on(Event::Arrived(arrival));
        harness.on(Event::Left { request: RequestId(request) });
    }
    // Ten prompts of 8,000 tokens a second, at 50 µs a token, and answers.
    let number = harness.scaling()[0].desired;
    assert!((3.9..4.3).contains(&number.load), "{number:?}");
    assert!((5..=7).contains(&number.workers), "{number:?}");
}

/// A large model takes longer for a token than a small one that gets most requests of the fleet.
#[test]
fn each_model_of_a_fleet_is_measured_by_its_own_workers() {
    let mut harness = Harness::of(2);
    harness.on(Event::ModelsReported { worker: WorkerId(1), cards: &[Card { name: "large", parent: None }] });
    for request in 0..400 {
        let (model, micros) = if request % 8 == 0 { ("large", 400) } else { ("llama", 25) };
        // Of several lengths: those of one do not show what a token takes.
        let tokens = 2_000 * (1 + request % 7);
        let arrival = Arrival { size: Size::Tokens(tokens), ..arrival(request, Some(model)) };
        harness.on(Event::Arrived(arrival));
        harness.now = harness.now + Duration::from_micros(micros * tokens);
        harness.begin(request);
        harness.on(Event::Left { request: RequestId(request) });
    }
    harness.now = harness.now + Duration::from_secs(600);
    for request in 1_000..1_400 {
        harness.now = harness.now + Duration::from_millis(200);
        for (request, model) in [(request, "llama"), (request + 1_000, "large")] {
            let arrival = Arrival { size: Size::Tokens(8_000), ..arrival(request, Some(model)) };
            harness.on(Event::Arrived(arrival));
            harness.on(Event::Left { request: RequestId(request) });
        }
    }
    // Five prompts of 8,000 tokens a second of each: 25 µs a token of one, 400 of the other, and answers.
    let load: Vec<f64> = harness.scaling().iter().map(|it| it.desired.load).collect();
    assert!((0.8..2.0).contains(&load[0]) && (13.0..19.0).contains(&load[1]), "{load:?}");
}

#[test]
fn a_full_kv_cache_asks_for_another_worker() {
    let mut harness = Harness::of(1);
    let load = EngineLoad { kv_usage: Some(0.95), kv_tokens: Some(100_000), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    let number = harness.scaling()[0].desired;
    assert_eq!((number.workers, number.reason), (2, ScalingReason::KvCache), "{number:?}");
    assert!((number.kv_usage.unwrap() - 0.95).abs() < 0.01, "{number:?}");
}

/// A fleet of `llama` that goes to no worker after 30 seconds, without one.
fn from_zero() -> Harness {
    let scaling = ScalingSettings { idle: Duration::from_secs(30), ..Default::default() };
    let settings = BrainSettings { strategy: Name::RoundRobin, scaling, ..BrainSettings::default() };
    Harness::with_queue(0, BrainSettings { expected_models: vec!["llama".to_owned()], ..settings })
}

/// A worker joins that serves these models; returns what follows from that.
fn join(harness: &mut Harness, names: &[&str]) -> Vec<Effect> {
    let worker = WorkerId(harness.brain.fleet().numbers() as u32);
    let cards: Vec<Card<'_>> = names.iter().map(|name| Card { name, parent: None }).collect();
    let mut effects = harness.on(Event::WorkerJoined { url: &format!("http://127.0.0.1:{}", worker.0) });
    effects.extend(harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered }));
    effects.extend(harness.on(Event::ModelsReported { worker, cards: &cards }));
    effects
}

fn placed(effects: &[Effect]) -> Vec<u64> {
    let placed = |it: &Effect| match it {
        Effect::Place(it) => Some(it.request.0),
        _ => None,
    };
    effects.iter().filter_map(placed).collect()
}

fn waits(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Wait { .. }])
}

#[test]
fn a_request_waits_for_the_first_worker_and_asks_for_it() {
    let mut harness = from_zero();
    assert!(harness.brain.awaits_requests());
    let number = harness.scaling()[0].desired;
    assert_eq!((number.workers, number.reason), (0, ScalingReason::Idle), "before any request");
    assert!(waits(&harness.on(Event::Arrived(arrival(1, Some("llama"))))));
    assert!(waits(&harness.on(Event::Arrived(arrival(2, None)))), "there is only this model");
    let number = harness.scaling()[0];
    assert_eq!((number.workers, number.desired.workers), (0, 1));
    assert_eq!(number.desired.reason, ScalingReason::FirstWorker);
    harness.now = harness.now + Duration::from_secs(120);
    assert_eq!(harness.on(Event::Tick), []);
    let mut went = placed(&join(&mut harness, &["llama"]));
    went.extend(placed(&harness.begin(1)));
    assert_eq!(went, [1, 2]);
    assert_ne!(harness.scaling()[0].desired.reason, ScalingReason::FirstWorker);
}

#[test]
fn a_request_waits_no_longer_than_it_may() {
    let mut harness = from_zero();
    let deadline = Some(harness.now + Duration::from_secs(10));
    harness.on(Event::Arrived(arrival(1, Some("llama"))));
    harness.on(Event::Arrived(Arrival { deadline, ..arrival(2, Some("llama")) }));
    harness.now = harness.now + Duration::from_secs(11);
    let effects = harness.on(Event::Tick);
    let is_late = |it: &Effect| matches!(it, Effect::Refuse { refusal: Refusal::Deadline { .. }, .. });
    assert!(matches!(&effects[..], [it] if is_late(it)), "its own deadline: {effects:?}");
    harness.now = harness.now + Duration::from_secs(288);
    assert_eq!(harness.on(Event::Tick), []);
    harness.now = harness.now + Duration::from_secs(2);
    let refused = Effect::Refuse { request: RequestId(1), refusal: Refusal::NoWorker };
    assert_eq!(harness.on(Event::Tick), [refused]);
    assert_eq!(harness.brain.open(), 0);
}

#[test]
fn a_model_that_was_served_before_is_known() {
    let mut harness = from_zero();
    join(&mut harness, &["qwen"]);
    assert_eq!(harness.arrive(1, Some("mistral")), Err(Refusal::UnknownModel));
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    assert!(waits(&harness.on(Event::Arrived(arrival(2, Some("qwen"))))));
    assert_eq!(harness.arrive(3, Some("mistral")), Err(Refusal::NoWorker));
    assert_eq!(harness.arrive(4, None), Err(Refusal::NoWorker), "of two models, neither");
}

#[test]
fn requests_that_wait_stay_when_the_last_worker_leaves() {
    let mut harness = from_zero();
    join(&mut harness, &["llama"]);
    harness.on(Event::WorkerDrained { worker: WorkerId(0), draining: true });
    assert!(waits(&harness.on(Event::Arrived(arrival(1, Some("llama"))))));
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    harness.now = harness.now + Duration::from_secs(1);
    assert_eq!(harness.on(Event::Tick), []);
    assert_eq!(placed(&join(&mut harness, &["llama"])), [1]);
}

#[test]
fn requests_that_the_last_worker_leaves_in_the_queue_wait_like_those_that_come_later() {
    let mut harness = from_zero();
    let mut settings = harness.brain.settings().clone();
    settings.queue.sequences_max = 1;
    harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
    join(&mut harness, &["llama"]);
    harness.arrive(1, Some("llama")).unwrap();
    let batch = Arrival { class: ClassId(2), ..arrival(2, Some("llama")) };
    assert!(waits(&harness.on(Event::Arrived(batch))));
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    // Its class has no longest wait.
    harness.now = harness.now + Duration::from_secs(301);
    let effects = harness.on(Event::Tick);
    assert!(
        effects.contains(&Effect::Refuse { request: RequestId(2), refusal: Refusal::NoWorker }),
        "{effects:?}"
    );
}

#[test]
fn requests_under_another_name_go_to_the_model_behind_it() {
    let mut harness = from_zero();
    harness.brain.parts.fleet.expect(["llama-latest"]);
    assert!(waits(&harness.on(Event::Arrived(arrival(1, Some("llama-latest"))))));
    assert_eq!(harness.scaling().len(), 2);
    let mut went = placed(&join(&mut harness, &["llama-latest", "llama"]));
    harness.now = harness.now + Duration::from_secs(1);
    went.extend(placed(&harness.on(Event::Tick)));
    assert_eq!(went, [1]);
    assert_eq!(harness.scaling().len(), 1, "one model, one number");
}

#[test]
fn nothing_waits_for_a_first_worker_unless_a_fleet_may_go_to_none() {
    let queueless = |it: &mut BrainSettings| it.queue.enabled = false;
    let no_wait = |it: &mut BrainSettings| it.scaling.first_worker = Duration::ZERO;
    let always_one = |it: &mut BrainSettings| it.scaling.idle = Duration::ZERO;
    for change in [queueless, no_wait, always_one] {
        let mut settings = from_zero().brain.settings().clone();
        change(&mut settings);
        let mut harness = Harness::with_queue(0, settings);
        assert_eq!(harness.arrive(1, Some("llama")), Err(Refusal::NoWorker));
        assert!(!harness.brain.awaits_requests());
    }
}

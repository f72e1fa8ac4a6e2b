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

#[test]
fn a_full_kv_cache_asks_for_another_worker() {
    let mut harness = Harness::of(1);
    let load = EngineLoad { kv_usage: Some(0.95), kv_tokens: Some(100_000), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(0), load });
    let number = harness.scaling()[0].desired;
    assert_eq!((number.workers, number.reason), (2, ScalingReason::KvCache), "{number:?}");
    assert!((number.kv_usage.unwrap() - 0.95).abs() < 0.01, "{number:?}");
}

//! Accuracy of predicted first-token times in virtual time, on the demo's traffic and others.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use maitre_base::{Instant, Rng};
use maitre_sim::generate::Plan;
use maitre_sim::lab::{AnsweredRequest, Knowledge, LabConfig, PreparedTrace, play};
use maitre_sim::profile::{A10G_8B, H100X2_32B, H200_8B, Profile};
use maitre_sim::trace::{Piece, Request, Trace};
use maitre_sim::workload::{DEMO_KV_BLOCKS, Mix};

/// Requests before the accuracy counts: the predictor has to learn first.
const LEARNING: usize = 200;
/// The documented median error.
const ERROR_MAX: f64 = 0.15;

/// The demo's traffic as a trace: chats, questions about documents and giants, with answers of maximum length.
fn demo(sessions: usize, rate: f64, seed: u64) -> Trace {
    let mix = Mix::default();
    let mut rng = Rng::new(seed);
    let weights: Vec<f64> = (1..=mix.documents).map(|it| f64::from(it).powf(-mix.zipf)).collect();
    let total: f64 = weights.iter().sum();
    let (mut requests, mut now) = (Vec::new(), 0.0);
    for session in 0..sessions as u64 {
        now += rng.exponential(1.0 / rate);
        let dice = rng.unit();
        let (opening, turns) = if dice < mix.giant_share {
            (Piece { text: 1_000_000 + session, tokens: mix.giant_tokens }, 1)
        } else if dice < mix.giant_share + mix.question_share {
            let mut left = rng.unit() * total;
            let document = weights.iter().position(|it| {
                left -= it;
                left < 0.0
            });
            (Piece { text: 10 + document.unwrap_or(0) as u64, tokens: mix.document_tokens }, 1)
        } else {
            let turns = 2 + rng.below(mix.turns_max as usize - 1);
            (Piece { text: 1, tokens: mix.system_tokens }, turns)
        };
        let (mut prompt, mut at) = (vec![opening], now);
        for turn in 0..turns as u64 {
            let name = 10_000_000 + session * 100 + turn * 2;
            prompt.push(Piece { text: name, tokens: 1 + rng.below(mix.question_tokens_max as usize) as u32 });
            let answer_tokens = 1 + rng.below(mix.answer_tokens_max as usize) as u32;
            requests.push(Request {
                at: Instant::from_nanos((at * 1e9) as u64),
                prompt: prompt.clone().into(),
                answer_tokens,
                answer: name + 1,
                session: Some(session),
                ..Request::default()
            });
            prompt.push(Piece { text: name + 1, tokens: answer_tokens });
            at += f64::from(answer_tokens) * 0.008 + rng.unit() * mix.think_max.as_secs_f64();
        }
    }
    requests.sort_by_key(|it| it.at);
    Trace { requests }
}

struct Case<'a> {
    name: &'a str,
    fleet: Vec<Profile>,
    trace: Trace,
    knowledge: Knowledge,
}

impl Case<'_> {
    fn new(name: &str, fleet: Vec<Profile>, trace: Trace) -> Case<'_> {
        Case { name, fleet, trace, knowledge: Knowledge::Reported }
    }

    /// Answers after the first ones, in order of arrival.
    fn play(&self) -> Vec<AnsweredRequest> {
        let brain = maitre_dispatch::BrainSettings { seed: 1, ..maitre_dispatch::BrainSettings::default() };
        let config = LabConfig { knowledge: self.knowledge, ..LabConfig::new(self.fleet.clone(), brain) };
        let mut answers = play(&config, &PreparedTrace::new(&self.trace, 16), &mut ()).answers;
        assert!(answers.len() >= 3 * LEARNING, "{}: {} answers", self.name, answers.len());
        answers.sort_by_key(|it| it.metrics.at);
        answers.split_off(LEARNING)
    }
}

fn median_error(answers: &[AnsweredRequest]) -> f64 {
    let error = |(foreseen, took): (Duration, Duration)| {
        (foreseen.as_secs_f64() - took.as_secs_f64()).abs() / took.as_secs_f64()
    };
    let mut errors: Vec<f64> = answers.iter().filter_map(|it| it.predicted.map(error)).collect();
    assert_eq!(errors.len(), answers.len(), "all were foreseen");
    errors.sort_by(f64::total_cmp);
    errors[errors.len() / 2]
}

#[track_caller]
fn check(case: &Case<'_>) {
    let error = median_error(&case.play());
    assert!(error < ERROR_MAX, "{}: a median error of {error:.3}", case.name);
}

/// The demo's: a seventh of the cache that the GPU has.
const ENGINE: Profile = Profile { kv_blocks: DEMO_KV_BLOCKS, ..H200_8B };

#[test]
fn first_token_times_of_the_demo_are_predicted() {
    check(&Case::new("the demo", vec![ENGINE; 4], demo(700, 20.0, 1)));
    check(&Case::new("half of it", vec![ENGINE; 4], demo(400, 10.0, 2)));
    let predicted = Case::new("without events", vec![ENGINE; 4], demo(400, 20.0, 3));
    check(&Case { knowledge: Knowledge::Predicted, ..predicted });
}

#[test]
fn first_token_times_are_predicted_with_a_slow_worker() {
    let fleet = vec![ENGINE, ENGINE, ENGINE, ENGINE.slower(3.0)];
    let case = Case::new("one three times as slow", fleet, demo(700, 16.0, 1));
    check(&case);
    let slow: Vec<AnsweredRequest> = case.play().into_iter().filter(|it| it.worker.0 == 3).collect();
    let error = median_error(&slow);
    assert!(slow.len() > 20 && error < 0.25, "{} answers there, {error:.3}", slow.len());
}

#[test]
fn first_token_times_of_other_engines_and_traffic_are_predicted() {
    let plan = |line: &str| line.parse::<Plan>().unwrap().generate(3);
    check(&Case::new("a larger model", vec![H100X2_32B; 4], demo(500, 8.0, 1)));
    check(&Case::new("a small GPU", vec![A10G_8B; 8], plan("noreuse:qps=3,prompt=2000,seconds=300")));
    check(&Case::new("chats", vec![H200_8B; 4], plan("chat:rate=4,seconds=120")));
}

//! Requests whose prompt one worker prefills and another answers.

use std::time::Duration;

use maitre_base::{Instant, Role, WorkerId};
use maitre_policy::split::SplitRule;
use proptest::prelude::{any, prop, proptest};

use super::{ENGINE, fleet, line, request, row, run, run_whole, scripted, traffic, written};
use crate::engine::{Engine, EngineConfig, Finish, Job, Transfer};
use crate::kv::{Names, Root};
use crate::lab::{Knowledge, LabConfig, LinkChange};
use crate::link::LinkModel;
use crate::profile::Work;

const ROLES: [Role; 4] = [Role::Prefill, Role::Decode, Role::Decode, Role::Both];

fn roles(roles: &[Role], split: SplitRule) -> LabConfig {
    let mut config = LabConfig { roles: roles.to_vec(), ..fleet(roles.len()) };
    config.brain.split = split;
    config
}

/// How long an engine alone takes to the first token of such a prompt.
fn prefill(tokens: u32) -> Duration {
    let mut engine = Engine::new(EngineConfig::new(ENGINE));
    let job = Job {
        prompt: (0..tokens).collect(),
        root: Root::new(Names { model: "legs", adapter: None, salt: "" }),
        seed: 1,
        answer_tokens: 1,
        finish: Finish::Length,
    };
    engine
        .submit_transfer(Instant::ZERO, job, Default::default(), Transfer::Out { lease: Duration::MAX })
        .unwrap();
    let (mut now, mut outputs) = (Instant::ZERO, Vec::new());
    while let Some(span) = engine.begin_step() {
        now = now + span;
        engine.finish_step(now, &mut outputs);
    }
    now.since(Instant::ZERO)
}

#[test]
fn a_first_token_takes_a_prefill_a_transfer_and_a_step() {
    let mut trace = traffic(14.0);
    trace.requests.truncate(1);
    let link = LinkChange { floor: Some(Duration::from_millis(40)), bytes_per_second: Some(2e9) };
    let config = LabConfig { link, ..roles(&[Role::Prefill, Role::Decode], SplitRule::Always) };
    let outcome = run_whole(&config, &trace);
    let answer = &outcome.answers[0];
    assert_eq!((answer.worker, answer.metrics.cached_tokens), (WorkerId(1), 0));
    let tokens = answer.metrics.prompt_tokens;
    let bytes = link.of(&ENGINE).bytes(u64::from(tokens.div_ceil(16)), 16);
    let transfer = Duration::from_millis(40) + Duration::from_secs_f64(bytes as f64 / 2e9);
    let last = Work { prefill_tokens: 1, attended_tokens: f64::from(tokens) - 0.5, ..Work::default() };
    let expected = ENGINE.overhead * 2 + prefill(tokens) + transfer + ENGINE.step.duration(&last);
    let error = answer.metrics.first_token.abs_diff(expected);
    assert!(error < Duration::from_micros(1), "{:?} and not {expected:?}", answer.metrics.first_token);
}

#[test]
fn what_the_decode_worker_holds_is_not_fetched() {
    let mut trace = traffic(14.0);
    trace.requests.truncate(2);
    trace.requests[0].at = Instant::ZERO;
    trace.requests[1].at = Instant::from_millis(5_000);
    trace.requests[1].prompt = trace.requests[0].prompt.clone();
    let link = LinkChange { floor: Some(Duration::ZERO), bytes_per_second: Some(1e8) };
    let config = LabConfig { link, ..roles(&[Role::Prefill, Role::Decode], SplitRule::Always) };
    let answers = run_whole(&config, &trace).answers;
    let [first, second] = [0, 1].map(|it| answers[it].metrics.first_token.as_secs_f64());
    let whole =
        f64::from(answers[0].metrics.prompt_tokens) * f64::from(LinkModel::of(&ENGINE).token_bytes) / 1e8;
    assert!(first > whole && second < whole / 20.0, "{first} s, then {second} s; all of it takes {whole} s");
    assert_eq!(answers[1].metrics.cached_tokens, 2_192, "the prefill worker held it too");
}

#[test]
fn prefill_workers_answer_nobody() {
    for split in [SplitRule::Price, SplitRule::Always, SplitRule::Never] {
        let outcome = run_whole(&roles(&ROLES, split), &traffic(12.0));
        let (prefill, decode) = (&outcome.workers[0], &outcome.workers[1]);
        assert_eq!(prefill.answered, 0, "{split}");
        assert!(decode.answered > 0, "{split}");
        assert_eq!(prefill.busy > Duration::ZERO, split != SplitRule::Never, "{split}");
    }
}

#[test]
fn roles_without_prefill_workers_change_nothing() {
    let trace = traffic(14.0);
    let (plain, decode) = (fleet(3), roles(&[Role::Decode; 3], SplitRule::Price));
    assert_eq!(row(&run_whole(&plain, &trace)), row(&run_whole(&decode, &trace)));
}

#[test]
fn a_prefill_worker_that_dies_costs_no_request() {
    let config = LabConfig {
        roles: ROLES.to_vec(),
        link: LinkChange { floor: Some(Duration::from_millis(300)), bytes_per_second: None },
        ..scripted(4, "4s crash 0\n5s start 0\n8s crash 0")
    };
    let mut always = config.clone();
    always.brain.split = SplitRule::Always;
    for config in [config, always] {
        run_whole(&config, &traffic(12.0));
    }
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(64))]

    #[test]
    fn every_split_request_ends_once_and_no_promise_outlives_it(
        lines in prop::collection::vec(line(), 0..8),
        rows in prop::collection::vec(request(), 1..60),
        roles in prop::collection::vec(prop::sample::select(Role::ALL.to_vec()), 3),
        split in prop::sample::select(vec![SplitRule::Price, SplitRule::Always]),
        knowledge in prop::sample::select(vec![Knowledge::Reported, Knowledge::Predicted, Knowledge::None]),
        (routers, floor_ms, queue) in (1..3_usize, 0..2_000_u64, any::<bool>()),
        seed in any::<u64>(),
    ) {
        let link = LinkChange { floor: Some(Duration::from_millis(floor_ms)), bytes_per_second: Some(1e9) };
        let mut config = LabConfig { roles, link, knowledge, routers, ..scripted(3, &lines.join("\n")) };
        (config.brain.split, config.brain.seed, config.brain.queue.enabled) = (split, seed, queue);
        run(&config, &written(&rows));
    }
}

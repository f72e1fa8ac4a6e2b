//! Workers that pull KV from each other.

use std::time::Duration;

use maitre_base::{Instant, Role, WorkerId};
use proptest::prelude::{any, prop, proptest};

use super::{ENGINE, fleet, line, request, run, run_whole, scripted, written};
use crate::lab::{
    AnsweredRequest, Knowledge, LabConfig, LinkChange, PullingWorkers, RunOutcome, StoreConfig,
};
use crate::profile::Work;
use crate::trace::{Piece, Request, Trace};

const LINK: LinkChange = LinkChange { floor: Some(Duration::from_millis(20)), bytes_per_second: Some(10e9) };

/// One long prefix that all share, computed once; then so many requests per second that one worker is too few.
fn hot() -> Trace {
    let request = |number: u64| Request {
        at: Instant::from_millis(if number == 0 { 0 } else { 2_000 + number * 40 }),
        prompt: [Piece { text: 1, tokens: 6_400 }, Piece { text: 1_000 + number, tokens: 60 }].into(),
        answer_tokens: 60,
        answer: 1_000_000 + number,
        ..Request::default()
    };
    Trace { requests: (0..150).map(request).collect() }
}

fn pulling(workers: usize, link: LinkChange) -> LabConfig {
    LabConfig { pulls: PullingWorkers::All, link, ..fleet(workers) }
}

fn pulled(outcome: &RunOutcome) -> Vec<&AnsweredRequest> {
    let mut pulled: Vec<_> = outcome.answers.iter().filter(|it| it.arrived.pulled_tokens > 0).collect();
    pulled.sort_by_key(|it| it.metrics.at);
    pulled
}

#[test]
fn a_first_token_takes_a_pull_and_the_rest_of_the_prompt() {
    let outcome = run_whole(&pulling(2, LINK), &hot());
    // The first to arrive at the other worker, which is idle.
    let first = pulled(&outcome)[0];
    let holder = outcome.answers.iter().min_by_key(|it| it.metrics.at).unwrap().worker;
    assert_ne!(first.worker, holder);
    assert_eq!((first.metrics.cached_tokens, first.arrived.pulled_tokens), (6_400, 6_400));
    let bytes = LINK.of(&ENGINE).bytes(400, 16);
    let pull = Duration::from_millis(20) + Duration::from_secs_f64(bytes as f64 / 10e9);
    let rest = Work { prefill_tokens: 60, attended_tokens: 60.0 * 6_430.0, ..Work::default() };
    let expected = ENGINE.overhead + pull + ENGINE.step.duration(&rest);
    let error = first.metrics.first_token.abs_diff(expected);
    assert!(error < Duration::from_micros(1), "{:?} and not {expected:?}", first.metrics.first_token);
}

#[test]
fn nothing_is_pulled_where_computing_is_cheaper_or_workers_cannot() {
    let slow = LinkChange { bytes_per_second: Some(2e8), ..LINK };
    assert!(pulled(&run_whole(&fleet(2), &hot())).is_empty(), "nobody can");
    let one = LabConfig { pulls: PullingWorkers::Some(vec![1]), ..pulling(2, LINK) };
    assert!(pulled(&run_whole(&one, &hot())).is_empty(), "one has nobody to pull from");
    // The router learns that from its first pulls.
    let first = pulled(&run_whole(&pulling(3, slow), &hot())).len();
    assert!(first <= 4, "{first} pulls of 168 MB at 0.2 GB/s");
    let two = LabConfig { pulls: PullingWorkers::Some(vec![0, 2]), ..pulling(3, LINK) };
    let outcome = run_whole(&two, &hot());
    assert!(pulled(&outcome).iter().all(|it| it.worker != WorkerId(1)));
}

#[test]
fn a_source_that_dies_costs_the_routers_limit_and_no_request() {
    // Every pull takes two seconds. In the middle of it both possible sources die for good.
    let link = LinkChange { floor: Some(Duration::from_secs(2)), bytes_per_second: None };
    for script in ["3s crash 0", "3s crash 1", "2500ms crash 0\n2600ms start 0"] {
        let config = LabConfig { pulls: PullingWorkers::All, link, ..scripted(2, script) };
        let outcome = run(&config, &hot());
        let longest = outcome.answers.iter().map(|it| it.metrics.first_token).max().unwrap();
        assert!(longest < Duration::from_secs(30), "{script}: {longest:?}, the whole timeout of the engine");
    }
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(64))]

    #[test]
    fn every_request_ends_once_with_pulls(
        lines in prop::collection::vec(line(), 0..8),
        rows in prop::collection::vec(request(), 1..60),
        roles in prop::collection::vec(prop::sample::select(Role::ALL.to_vec()), 3),
        knowledge in prop::sample::select(vec![Knowledge::Reported, Knowledge::Predicted, Knowledge::None]),
        (routers, floor_ms, queue, store) in (1..3_usize, 0..2_000_u64, any::<bool>(), any::<bool>()),
        seed in any::<u64>(),
    ) {
        let link = LinkChange { floor: Some(Duration::from_millis(floor_ms)), bytes_per_second: Some(1e10) };
        let store = store.then_some(StoreConfig { tokens: 20_000, link });
        let pulls = PullingWorkers::All;
        let mut config =
            LabConfig { roles, link, knowledge, routers, pulls, store, ..scripted(3, &lines.join("\n")) };
        (config.brain.seed, config.brain.queue.enabled) = (seed, queue);
        run(&config, &written(&rows));
    }
}

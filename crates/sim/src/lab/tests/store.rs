//! Workers that share a store of KV.

use std::time::Duration;

use maitre_base::{Instant, Role, WorkerId};
use maitre_policy::Name;
use proptest::prelude::{any, prop, proptest};

use super::{ENGINE, fleet, hit_ratio, line, request, row, run, run_whole, scripted, traffic, written};
use crate::lab::{Knowledge, LabConfig, LinkChange, StoreConfig};
use crate::profile::Work;

const LINK: LinkChange = LinkChange { floor: Some(Duration::from_millis(5)), bytes_per_second: Some(20e9) };

fn with_store(tokens: u64, config: LabConfig) -> LabConfig {
    LabConfig { store: Some(StoreConfig { tokens, link: LINK }), ..config }
}

#[test]
fn a_first_token_takes_a_load_and_the_rest_of_the_prompt() {
    let mut trace = traffic(14.0);
    trace.requests.truncate(2);
    trace.requests[1].at = Instant::from_millis(5_000);
    trace.requests[1].prompt = trace.requests[0].prompt.clone();
    let mut config = with_store(1 << 20, fleet(2));
    config.brain.strategy = Name::RoundRobin;
    let answers = run_whole(&config, &trace).answers;
    assert_eq!((answers[0].worker, answers[1].worker), (WorkerId(0), WorkerId(1)));
    // 2,200 tokens are 137 whole blocks and a half.
    assert_eq!((answers[1].metrics.cached_tokens, answers[1].arrived.loaded_tokens), (2_192, 2_192));
    let bytes = LINK.of(&ENGINE).bytes(137, 16);
    let load = Duration::from_millis(5) + Duration::from_secs_f64(bytes as f64 / 20e9);
    let rest = Work { prefill_tokens: 8, attended_tokens: 8.0 * 2_196.0, ..Work::default() };
    let expected = ENGINE.overhead + load + ENGINE.step.duration(&rest);
    let error = answers[1].metrics.first_token.abs_diff(expected);
    assert!(error < Duration::from_micros(1), "{:?} and not {expected:?}", answers[1].metrics.first_token);
}

#[test]
fn a_store_that_holds_all_prompts_beats_the_caches_alone() {
    let trace = traffic(14.0);
    // Keeps no group on its worker, so that a third of the groups is cached anywhere.
    let mut plain = fleet(3);
    plain.brain.strategy = Name::RoundRobin;
    let [alone, small, large] = [0, 24_000, 1 << 20].map(|tokens| match tokens {
        0 => run_whole(&plain, &trace),
        tokens => run_whole(&with_store(tokens, plain.clone()), &trace),
    });
    let [alone_hits, small_hits, large_hits] = [&alone, &small, &large].map(|it| hit_ratio(&it.answers));
    assert!(alone_hits < small_hits && small_hits < large_hits, "{alone_hits} {small_hits} {large_hits}");
    let first = |it| row(it).ttft_mean_s;
    assert!(first(&large) < first(&alone) * 0.9, "{} and {}", first(&large), first(&alone));
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(48))]

    #[test]
    fn every_request_ends_once_with_a_store(
        lines in prop::collection::vec(line(), 0..8),
        rows in prop::collection::vec(request(), 1..60),
        roles in prop::collection::vec(prop::sample::select(Role::ALL.to_vec()), 3),
        knowledge in prop::sample::select(vec![Knowledge::Reported, Knowledge::Predicted, Knowledge::None]),
        (tokens, floor_ms, queue) in (0..60_000_u64, 0..2_000_u64, any::<bool>()),
        seed in any::<u64>(),
    ) {
        let link = LinkChange { floor: Some(Duration::from_millis(floor_ms)), bytes_per_second: Some(1e9) };
        let store = Some(StoreConfig { tokens, link });
        let mut config = LabConfig { roles, store, knowledge, ..scripted(3, &lines.join("\n")) };
        (config.brain.seed, config.brain.queue.enabled) = (seed, queue);
        run(&config, &written(&rows));
    }
}

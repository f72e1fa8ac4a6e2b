//! `cache-aware` follows a prompt to the worker that was sent it before, as sglang-router does. The first version went by
//! the predicted cache alone: of 864 turns of the conversation trace that sglang-router sent back to their worker, it sent
//! 340 elsewhere.

use super::*;
use crate::peers::PeerUpdate;
use maitre_base::EngineLoad;

/// A fleet of four. Each cache has the size of one prompt of 1,600 tokens, or an unknown one; then a prompt is served,
/// and so many others after it that no cache should still have it. Returns the worker that served it.
fn with_an_old_prompt(strategy: Name, kv_tokens: Option<u64>, seed: u64) -> (Harness, u32) {
    let mut harness = Harness::cached(4, strategy, seed);
    for worker in 0..4 {
        let load = EngineLoad { kv_tokens, block_size: Some(16), ..EngineLoad::default() };
        harness.on(Event::LoadReported { worker: WorkerId(worker), load });
    }
    let home = harness.serve(1, &text(1, 1_600)).worker.0;
    let others = kv_tokens.map_or(1_000, |_| 100);
    for other in 2..2 + others {
        harness.serve(u64::from(other), &text(other, 1_600));
    }
    (harness, home)
}

#[track_caller]
fn check_returns(script: impl Fn(&mut Harness, u32)) {
    for kv_tokens in [Some(1_600), None] {
        for seed in 0..6 {
            let (mut harness, home) = with_an_old_prompt(Name::CacheAware, kv_tokens, seed);
            script(&mut harness, home);
        }
    }
}

#[test]
fn a_turn_goes_where_its_prompt_was_sent_although_the_cache_should_have_evicted_it() {
    check_returns(|harness, home| {
        let next = harness.ask(9_000, &text(1, 2_000));
        assert_eq!((next.worker.0, next.why), (home, Why::Cached));
        // Only the pick goes by it: the work that is promised there is that of the whole prompt.
        assert_eq!(next.held, Some(Tokens(0)));
    });
}

#[test]
fn too_small_a_part_goes_to_the_fewest_requests() {
    check_returns(|harness, home| {
        for worker in 0..4 {
            let is_idle = worker == (home + 1) % 4;
            harness.on(Event::WorkerDrained { worker: WorkerId(worker), draining: is_idle });
        }
        for other in 0..12 {
            harness.ask(9_000 + u64::from(other), &text(3_000 + other, 160));
        }
        for worker in 0..4 {
            harness.on(Event::WorkerDrained { worker: WorkerId(worker), draining: false });
        }
        let next = harness.ask(9_100, &[text(1, 1_600), text(4_000, 4_000)].concat());
        assert_eq!((next.worker.0, next.why), ((home + 1) % 4, Why::FewestRequests));
    });
}

#[test]
fn a_worker_that_lost_its_cache_or_reports_it_does_not_attract_what_it_was_sent() {
    let refused = |worker| Event::Probed { worker, evidence: Evidence::Refused };
    let answered = |worker| Event::Probed { worker, evidence: Evidence::ProbeAnswered };
    check_returns(|harness, home| {
        let worker = WorkerId(home);
        harness.on(refused(worker));
        harness.on(answered(worker));
        check_not_held(harness.ask(9_000, &text(1, 2_000)));
    });
    check_returns(|harness, home| {
        harness.on(Event::TrustChanged { worker: WorkerId(home), trust: Trust::Fresh });
        check_not_held(harness.ask(9_000, &text(1, 2_000)));
    });
}

#[test]
fn a_request_without_a_first_token_was_not_sent() {
    check_returns(|harness, home| {
        harness.on(Event::WorkerDrained { worker: WorkerId(home), draining: true });
        harness.ask(9_000, &text(1, 2_000));
        harness.on(Event::Left { request: RequestId(9_000) });
        harness.on(Event::WorkerDrained { worker: WorkerId(home), draining: false });
        assert_eq!(harness.ask(9_001, &text(1, 2_000)).worker.0, home);
    });
}

#[test]
fn what_other_routers_sent_counts_too() {
    for seed in 0..6 {
        let mut harness = Harness::cached(4, Name::CacheAware, seed);
        let key = harness.brain.fleet().worker(WorkerId(2)).unwrap().key;
        let prompt = harness.prompt(&text(1, 1_600), None);
        harness.on(Event::Peers(PeerUpdate::Placed { worker: key, prompt: &prompt }));
        // Nothing is predicted any more.
        harness.brain.parts.cache.clear(WorkerId(2));
        let next = harness.ask(1, &text(1, 2_000));
        assert_eq!((next.worker.0, next.why, next.held), (2, Why::Cached, Some(Tokens(0))));
    }
}

#[test]
fn only_cache_aware_remembers_what_was_sent() {
    assert!(Name::ALL.iter().filter(|it| it.needs().sent).eq([&Name::CacheAware]));
    for seed in 0..6 {
        let (mut harness, _) = with_an_old_prompt(Name::LeastDelay, Some(1_600), seed);
        assert!(harness.brain.parts.placer.sent.is_none());
        check_not_held(harness.ask(9_000, &text(1, 2_000)));
        harness.on(Event::Left { request: RequestId(9_000) });
        // From a reload on, until the next one.
        for (strategy, is_kept) in [(Name::CacheAware, true), (Name::LeastDelay, false)] {
            let settings = BrainSettings { strategy, ..harness.brain.settings().clone() };
            harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
            assert_eq!(harness.brain.parts.placer.sent.is_some(), is_kept);
        }
    }
}

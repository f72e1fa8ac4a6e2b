//! Engines that share a store.

use super::*;
use crate::engine::transfer::{Content, FetchOutcome};
use crate::store::SharedStore;

/// Two engines and their store.
fn pair(capacity_blocks: usize, profile: Profile) -> ([Engine; 2], SharedStore) {
    let store = SharedStore::new(capacity_blocks);
    let engines = [1, 2].map(|_| {
        let mut engine = Engine::new(EngineConfig { changes_max: 100, ..EngineConfig::new(profile) });
        engine.join_store(store.clone());
        engine
    });
    (engines, store)
}

/// Ends all loads that have begun, and returns how many tokens each prompt had and has.
fn load(engine: &mut Engine) -> Vec<(u32, u32)> {
    let fetches = engine.take_fetches();
    let loaded = fetches.iter().map(|it| match it.origin {
        FetchOrigin::Store { tokens } => (it.held_tokens, tokens),
        FetchOrigin::Request => panic!("{it:?}"),
    });
    let loaded: Vec<(u32, u32)> = loaded.collect();
    for (fetch, &(_, tokens)) in fetches.iter().zip(&loaded) {
        engine.finish_fetch(fetch.job, FetchOutcome::Arrived { tokens, content: Content::Right });
    }
    loaded
}

#[test]
fn what_one_engine_prefilled_another_loads() {
    let ([mut one, mut other], store) = pair(100, TINY);
    submit(&mut one, job(1, 30, 5));
    run(&mut one);
    assert_eq!(store.used_blocks(), 7, "whole blocks of the prompt, and none of the answer");
    submit(&mut other, job(1, 40, 1));
    assert_eq!(other.begin_step(), None, "it computes nothing while it loads");
    assert_eq!(load(&mut other), [(0, 28)]);
    let (prefill, _, outputs) = step(&mut other).unwrap();
    assert_eq!((prefill, outputs[0].cached_tokens), (12, 28));
    let counters = other.transfer_counters();
    assert_eq!((counters.loaded_tokens, counters.received_tokens, counters.local_tokens), (28, 0, 0));
    assert_eq!(store.used_blocks(), 10, "the rest was written");
}

#[test]
fn only_what_is_not_cached_is_loaded_and_never_the_last_token() {
    let ([mut one, mut other], _) = pair(100, TINY);
    submit(&mut one, job(1, 32, 1));
    run(&mut one);
    submit(&mut one, job(1, 32, 1));
    run(&mut one);
    assert_eq!(load(&mut one), [], "it has all of it");
    submit(&mut other, job(1, 8, 1));
    assert_eq!((other.begin_step(), load(&mut other)), (None, vec![(0, 4)]));
    run(&mut other);
    submit(&mut other, job(1, 32, 1));
    assert_eq!((other.begin_step(), load(&mut other)), (None, vec![(8, 28)]));
    run(&mut other);
}

#[test]
fn a_preempted_prompt_is_loaded_again_and_hit_once() {
    // Both answers need 8 of 9 blocks in the end.
    let ([mut one, mut other], _) = pair(100, Profile { kv_blocks: 10, ..TINY });
    for family in [1, 2] {
        submit(&mut other, job(family, 12, 1));
        run(&mut other);
    }
    for family in [1, 2] {
        submit(&mut one, job(family, 12, 18));
    }
    let mut first_hits = Vec::new();
    let mut loads = 0;
    // Without the bound a fault here would hang.
    for _ in 0..100 {
        let outputs = step(&mut one).map(|it| it.2).unwrap_or_default();
        first_hits.extend(outputs.iter().filter(|it| it.index == 0).map(|it| it.cached_tokens));
        loads += load(&mut one).len();
    }
    let stats = one.stats();
    assert!(stats.counters.preemptions > 0 && loads > 2, "{stats:?}, {loads} loads");
    assert_eq!((first_hits, stats.counters.reached_length), (vec![8, 8], 2));
    assert_eq!((stats.used_blocks, one.transfer_counters().loaded_tokens), (0, 16));
}

#[test]
fn a_client_that_leaves_during_a_load_leaves_no_blocks() {
    let ([mut one, mut other], _) = pair(100, TINY);
    submit(&mut one, job(1, 30, 1));
    run(&mut one);
    let id = submit(&mut other, job(1, 30, 1));
    assert_eq!(other.begin_step(), None);
    other.abort(id);
    assert_eq!(other.stats().used_blocks, 8, "they are still written to");
    load(&mut other);
    assert_eq!((other.stats().used_blocks, run(&mut other).len()), (0, 0));
}

#[test]
fn a_store_outlives_its_members_and_tells_what_it_holds() {
    let ([mut one, mut other], store) = pair(2, TINY);
    submit(&mut one, job(1, 8, 1));
    run(&mut one);
    let changes = |engine: &mut Engine| {
        let (changes, lost) = engine.take_changes();
        assert_eq!(lost, 0);
        let in_store = changes.into_iter().filter_map(|it| match it {
            Change::Stored(Stored { medium: Medium::Store, parent, tokens, .. }) => {
                Some((parent.is_none(), tokens[0]))
            }
            Change::Removed { medium: Medium::Store, .. } => Some((false, 0)),
            _ => None,
        });
        in_store.collect::<Vec<_>>()
    };
    assert_eq!(changes(&mut one), [(true, 10_000), (false, 10_004)], "each block after its parent");
    one.restart();
    submit(&mut one, job(1, 8, 1));
    assert_eq!((one.begin_step(), load(&mut one)), (None, vec![(0, 4)]));
    submit(&mut other, job(2, 4, 1));
    run(&mut other);
    assert_eq!(changes(&mut other), [(false, 0), (true, 20_000)]);
    assert_eq!((store.evictions(), store.used_blocks()), (1, 2));
}

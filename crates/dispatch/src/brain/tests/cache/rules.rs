//! The strategies that others published: they get what they need, and it is released.

use super::*;
use maitre_base::EngineLoad;

/// All of them, each with several seeds.
#[track_caller]
fn check_all(script: impl Fn(&mut Harness)) {
    let rules = [Name::DynamoCost, Name::Weighted, Name::StickyUntilSaturated, Name::Preble, Name::Lmetric];
    for strategy in rules {
        for seed in 0..6 {
            script(&mut Harness::cached(4, strategy, seed));
        }
    }
}

fn say(harness: &mut Harness, worker: u32, waiting: u64, kv_usage: f64) {
    let load = EngineLoad { waiting: Some(waiting), kv_usage: Some(kv_usage), ..EngineLoad::default() };
    harness.on(Event::LoadReported { worker: WorkerId(worker), load });
}

#[test]
fn a_prompt_goes_back_to_its_holder() {
    check_all(|harness| {
        let home = harness.serve(1, &text(1, 1_600)).worker.0;
        check_seat(harness.serve(2, &text(1, 2_000)), home, 1_600);
        check_seat(harness.serve(3, &text(1, 2_400)), home, 2_000);
    });
}

#[test]
fn dualmap_uses_the_head_and_then_the_cache() {
    for seed in 0..6 {
        let mut harness = Harness::cached(8, Name::Dualmap, seed);
        let mut ask = |request, tokens: &[u32]| {
            let prompt = harness.prompt(tokens, None);
            let placement = harness.placement(Arrival { head: Some(7), ..of_prompt(request, &prompt) });
            harness.answer(request, None);
            placement
        };
        let home = ask(1, &text(1, 1_600));
        assert_eq!((home.why, home.held), (Why::Home, Some(Tokens(0))));
        let again = ask(2, &text(1, 2_000));
        assert_eq!((again.worker, again.why, again.held), (home.worker, Why::Home, Some(Tokens(1_600))));
    }
}

#[test]
fn weighted_uses_engine_load_while_it_is_fresh() {
    for seed in 0..6 {
        let mut harness = Harness::cached(2, Name::Weighted, seed);
        say(&mut harness, 0, 5, 0.1);
        say(&mut harness, 1, 0, 0.1);
        assert_eq!(harness.ask(1, &text(1, 160)).worker.0, 1);
        // It has one of our requests now, but no queue.
        assert_eq!(harness.ask(2, &text(2, 160)).worker.0, 1);
        say(&mut harness, 0, 0, 0.1);
        say(&mut harness, 1, 0, 0.2);
        assert_eq!(harness.ask(3, &text(3, 160)).worker.0, 0);
        // A stale report does not count: requests are counted instead, one here and two there.
        say(&mut harness, 0, 9, 0.9);
        harness.now = harness.now + Duration::from_secs(4);
        assert_eq!(harness.ask(4, &text(4, 160)).worker.0, 0);
    }
}

/// Two workers hold the prefix, and one of them has a request with it. There 1,600 tokens are in use and 16 are added; at
/// the other none are, and 1,616 are added. That is equal, so the dice decide. If a prefix in use counted twice, or a
/// cached one not at all, it would always be the other.
#[test]
fn dynamo_cost_counts_a_prefix_in_use_once() {
    let (mut stayed, mut moved) = (0, 0);
    for seed in 0..20 {
        let mut harness = Harness::cached(2, Name::DynamoCost, seed);
        (0..2).for_each(|worker| harness.store(worker, &text(1, 1_600), PLAIN));
        let first = harness.ask(1, &text(1, 1_600)).worker;
        harness.begin(1);
        match harness.ask(2, &text(1, 1_616)).worker == first {
            true => stayed += 1,
            false => moved += 1,
        }
    }
    assert!(stayed > 3 && moved > 3, "{stayed} stayed, {moved} moved");
}

#[test]
fn a_requests_blocks_are_released_however_it_ends() {
    let request = RequestId(1);
    let ends = |worker| {
        [
            Event::Finished { request, counted: None, pieces: 1 },
            Event::Declined { request },
            Event::BrokeOff { request },
            Event::Left { request },
            Event::Failed { request, worker, failure: Failure::TimedOut },
        ]
    };
    for end in 0..5 {
        let mut harness = Harness::cached(2, Name::DynamoCost, 0);
        let first = harness.ask(1, &text(1, 1_600)).worker;
        // A second attempt moves them.
        harness.fail_attempt(1, Failure::Refused);
        let in_use = |harness: &Harness, it: u32| {
            harness.brain.parts.placer.in_use.as_ref().unwrap().at(WorkerId(it), None).all
        };
        assert_eq!((in_use(&harness, first.0), in_use(&harness, 1 - first.0)), (Tokens(0), Tokens(1_600)));
        harness.on(ends(WorkerId(1 - first.0))[end]);
        assert_eq!((in_use(&harness, 0), in_use(&harness, 1)), (Tokens(0), Tokens(0)));
    }
}

#[test]
fn blocks_in_use_are_counted_only_if_a_strategy_asks() {
    assert!(Name::ALL.iter().filter(|it| it.needs().in_use).eq([&Name::DynamoCost]));
    assert!(Harness::cached(1, Name::LeastDelay, 0).brain.parts.placer.in_use.is_none());
}

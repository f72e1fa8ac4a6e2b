//! The published rules: that what they go by reaches them, and is given back.

use super::*;
use maitre_base::EngineLoad;

/// All of them, each with several dice.
#[track_caller]
fn check_all(script: impl Fn(&mut Table)) {
    let rules = [Name::DynamoCost, Name::Weighted, Name::StickyUntilSaturated, Name::Preble, Name::Lmetric];
    for strategy in rules {
        for seed in 0..6 {
            script(&mut Table::cached(4, strategy, seed));
        }
    }
}

fn say(table: &mut Table, worker: u32, waiting: u64, kv_usage: f64) {
    let load = EngineLoad { waiting: Some(waiting), kv_usage: Some(kv_usage), ..EngineLoad::default() };
    table.on(Event::LoadReported { worker: WorkerId(worker), load });
}

#[test]
fn a_prompt_goes_back_to_its_holder() {
    check_all(|table| {
        let home = table.serve(1, &text(1, 1_600)).worker.0;
        check_seat(table.serve(2, &text(1, 2_000)), home, 1_600);
        check_seat(table.serve(3, &text(1, 2_400)), home, 2_000);
    });
}

#[test]
fn dualmap_goes_by_the_head_and_then_by_the_cache() {
    for seed in 0..6 {
        let mut table = Table::cached(8, Name::Dualmap, seed);
        let mut ask = |request, tokens: &[u32]| {
            let prompt = table.prompt(tokens, None);
            let placement = table.placement(Arrival { head: Some(7), ..of_prompt(request, &prompt) });
            table.answer(request, None);
            placement
        };
        let home = ask(1, &text(1, 1_600));
        assert_eq!((home.why, home.held), (Why::Home, Some(Tokens(0))));
        let again = ask(2, &text(1, 2_000));
        assert_eq!((again.worker, again.why, again.held), (home.worker, Why::Home, Some(Tokens(1_600))));
    }
}

#[test]
fn weighted_goes_by_what_engines_say_while_it_is_fresh() {
    for seed in 0..6 {
        let mut table = Table::cached(2, Name::Weighted, seed);
        say(&mut table, 0, 5, 0.1);
        say(&mut table, 1, 0, 0.1);
        assert_eq!(table.ask(1, &text(1, 160)).worker.0, 1);
        // It has a request of ours now, but no line.
        assert_eq!(table.ask(2, &text(2, 160)).worker.0, 1);
        say(&mut table, 0, 0, 0.1);
        say(&mut table, 1, 0, 0.2);
        assert_eq!(table.ask(3, &text(3, 160)).worker.0, 0);
        // What is stale is not believed: requests are counted instead, one here and two there.
        say(&mut table, 0, 9, 0.9);
        table.now = table.now + Duration::from_secs(4);
        assert_eq!(table.ask(4, &text(4, 160)).worker.0, 0);
    }
}

/// Two workers hold the prefix, and one of them is being asked for it. There 1,600 tokens are in use and 16
/// come to it; at the other nothing is, and 1,616 come to it. That is the same, so the dice decide: were the
/// prefix counted twice, or what is only cached not at all, it would always be the other.
#[test]
fn dynamo_cost_counts_a_prefix_in_use_once() {
    let (mut stayed, mut moved) = (0, 0);
    for seed in 0..20 {
        let mut table = Table::cached(2, Name::DynamoCost, seed);
        (0..2).for_each(|worker| table.store(worker, &text(1, 1_600), PLAIN));
        let first = table.ask(1, &text(1, 1_600)).worker;
        table.begin(1);
        match table.ask(2, &text(1, 1_616)).worker == first {
            true => stayed += 1,
            false => moved += 1,
        }
    }
    assert!(stayed > 3 && moved > 3, "{stayed} stayed, {moved} moved");
}

#[test]
fn however_a_request_ends_its_blocks_are_in_use_no_more() {
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
        let mut table = Table::cached(2, Name::DynamoCost, 0);
        let first = table.ask(1, &text(1, 1_600)).worker;
        // A second attempt takes them along.
        table.break_down(1, Failure::Refused);
        let in_use = |table: &Table, it: u32| {
            table.brain.parts.placer.in_use.as_ref().unwrap().at(WorkerId(it), None).all
        };
        assert_eq!((in_use(&table, first.0), in_use(&table, 1 - first.0)), (Tokens(0), Tokens(1_600)));
        table.on(ends(WorkerId(1 - first.0))[end]);
        assert_eq!((in_use(&table, 0), in_use(&table, 1)), (Tokens(0), Tokens(0)));
    }
}

#[test]
fn nothing_is_counted_for_those_who_do_not_ask() {
    assert!(Name::ALL.iter().filter(|it| it.needs().in_use).eq([&Name::DynamoCost]));
    assert!(Table::cached(1, Name::LeastDelay, 0).brain.parts.placer.in_use.is_none());
}

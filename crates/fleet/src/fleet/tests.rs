//! Which workers are fit, which models they serve, and the bound on ejection.

use super::*;
use crate::barred::Barred;
use maitre_base::Rng;
use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_oneof, proptest};

mod models;

/// A prompt of which nothing is cached.
const PROMPT: PrefillWork = PrefillWork::whole(Tokens(1_000));

fn ready(count: usize) -> Fleet {
    let mut fleet = Fleet::default();
    for number in 0..count {
        let id = fleet.add(&format!("http://127.0.0.1:{number}"));
        fleet.see(Instant::ZERO, id, Evidence::ProbeAnswered);
    }
    fleet
}

fn cards<'a>(names: &[&'a str]) -> Vec<Card<'a>> {
    names.iter().map(|&name| Card { name, parent: None }).collect()
}

fn candidates(fleet: &Fleet, wanted: Wanted, tried: &[WorkerId]) -> Vec<u32> {
    let mut snapshots = Vec::new();
    fleet.snapshots(Instant::ZERO, wanted, Barred { tried, only: None }, &mut snapshots);
    snapshots.iter().map(|it| it.worker.0).collect()
}

#[test]
fn tried_draining_and_unprobed_workers_are_left_out() {
    let mut fleet = ready(4);
    fleet.add("http://127.0.0.1:9");
    fleet.drain(WorkerId(1), true);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[WorkerId(2)]), [0, 3]);
}

#[test]
fn a_listed_model_goes_to_its_workers_and_an_unlisted_one_to_workers_without_a_list() {
    let mut fleet = ready(3);
    fleet.learn_models(WorkerId(0), &cards(&["llama"]));
    fleet.learn_models(WorkerId(1), &cards(&["qwen", "qwen-sql"]));
    assert_eq!(candidates(&fleet, Wanted::Model(fleet.model("qwen-sql").unwrap()), &[]), [1]);
    assert_eq!(candidates(&fleet, Wanted::Model(fleet.model("llama").unwrap()), &[]), [0]);
    assert_eq!(fleet.model("gpt"), None);
    assert_eq!(candidates(&fleet, Wanted::Unlisted, &[]), [2]);
    fleet.learn_models(WorkerId(0), &cards(&["mistral"]));
    assert_eq!(fleet.model("llama"), None, "nobody lists it any more");
    assert!(!fleet.model_names().any(|it| it == "llama"));
}

#[test]
fn a_suspect_gets_work_only_when_less_than_half_are_fit() {
    let mut fleet = ready(4);
    fleet.see(Instant::ZERO, WorkerId(0), Evidence::Silent);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [1, 2, 3]);
    fleet.see(Instant::ZERO, WorkerId(1), Evidence::Silent);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [2, 3]);
    fleet.see(Instant::ZERO, WorkerId(2), Evidence::Silent);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [0, 1, 2, 3]);
}

#[test]
fn workers_that_refuse_join_only_when_no_other_is_left() {
    let mut fleet = ready(2);
    fleet.see(Instant::ZERO, WorkerId(0), Evidence::Refused);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [1]);
    fleet.see(Instant::ZERO, WorkerId(1), Evidence::Refused);
    assert_eq!(fleet.worker(WorkerId(1)).unwrap().health.state(), HealthState::Suspect { refused: true });
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [1]);
}

#[test]
fn a_returning_worker_gets_one_request_until_it_has_answered() {
    let mut fleet = ready(2);
    fleet.see(Instant::ZERO, WorkerId(0), Evidence::Refused);
    fleet.see(Instant::ZERO, WorkerId(0), Evidence::ProbeAnswered);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [0, 1]);
    fleet.promise(Instant::ZERO, WorkerId(0), Promise::default());
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [1]);
    fleet.see(Instant::ZERO, WorkerId(0), Evidence::Answered);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [0, 1]);
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(1000 * seconds)
}

fn percent_of_share(fleet: &Fleet, now: Instant, worker: u32) -> u32 {
    (100.0 * fleet.snapshot_of(now, WorkerId(worker)).unwrap().share).round() as u32
}

/// The worker fails and returns.
fn restart(fleet: &mut Fleet, now: Instant, worker: WorkerId) {
    for evidence in [Evidence::Refused, Evidence::ProbeAnswered, Evidence::Answered] {
        fleet.see(now, worker, evidence);
    }
}

#[test]
fn a_returned_worker_is_as_good_as_any_until_it_has_its_part_of_the_load() {
    let mut fleet = ready(10);
    restart(&mut fleet, at(0), WorkerId(0));
    for worker in 1..10 {
        (0..20).for_each(|_| fleet.promise(at(0), WorkerId(worker), Promise::default()));
    }
    fleet.settle(at(1), &mut Vec::new());
    let share = |fleet: &Fleet, now| percent_of_share(fleet, now, 0);
    for taken in 0..4 {
        // The mean is 18 requests. Two seconds into the ramp of ten the worker may have a fifth of that, and the mean
        // share is 0.91.
        assert_eq!(share(&fleet, at(2)), 100, "with {taken}");
        fleet.promise(at(2), WorkerId(0), Promise::default());
    }
    assert_eq!((share(&fleet, at(2)), share(&fleet, at(5))), (22, 100));
}

#[test]
fn a_fleet_that_warms_up_as_a_whole_shares_its_load_evenly() {
    let mut fleet = ready(4);
    for worker in 0..4 {
        restart(&mut fleet, at(worker), WorkerId(worker as u32));
        (0..20).for_each(|_| fleet.promise(at(4), WorkerId(worker as u32), Promise::default()));
    }
    fleet.settle(at(4), &mut Vec::new());
    let shares = [0, 1, 2, 3].map(|it| percent_of_share(&fleet, at(4), it));
    assert_eq!(shares, [100, 100, 80, 40], "0.4, 0.3, 0.2 and 0.1 of a mean of 0.25");
}

#[test]
fn a_removed_worker_is_gone_and_a_new_one_gets_a_new_number() {
    let mut fleet = ready(2);
    assert!(fleet.remove(Instant::ZERO, WorkerId(0)));
    assert_eq!(fleet.add("http://127.0.0.1:7"), WorkerId(2));
    fleet.release(WorkerId(0), Promise::default());
    assert_eq!(fleet.see(Instant::ZERO, WorkerId(0), Evidence::Refused), None);
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [1]);
}

#[test]
fn a_vacant_number_is_filled_once_and_nothing_of_the_last_one_is_left() {
    let mut fleet = ready(3);
    let at = Instant::from_millis;
    fleet.learn_models(WorkerId(0), &cards(&["llama"]));
    fleet.promise(
        at(1),
        WorkerId(0),
        Promise { prefill: PrefillWork::whole(Tokens(300)), ..Promise::default() },
    );
    fleet.weigh(WorkerId(0), 5.0);
    assert!(fleet.remove(at(5), WorkerId(2)) && fleet.remove(at(9), WorkerId(0)));
    // Removing twice changes nothing.
    assert!(!fleet.remove(at(20), WorkerId(0)) && !fleet.remove(at(20), WorkerId(7)));
    assert_eq!(fleet.vacant().collect::<Vec<_>>(), [(WorkerId(0), at(9)), (WorkerId(2), at(5))]);
    assert_eq!(fleet.add_at(WorkerId(0), "http://b"), Some(WorkerId(0)));
    assert_eq!(fleet.add_at(WorkerId(0), "http://c"), None, "not vacant");
    assert_eq!(fleet.add_at(WorkerId(9), "http://c"), None, "never existed");
    let worker = fleet.worker(WorkerId(0)).unwrap();
    assert_eq!(
        (worker.id, worker.url.as_str(), worker.key),
        (WorkerId(0), "http://b", crate::worker::key("http://b"))
    );
    assert_eq!((&worker.models, worker.promised, worker.weight), (&Models::Unknown, Backlog::default(), 1.0));
    assert_eq!(worker.health.state(), HealthState::Probing);
    assert_eq!((fleet.numbers(), fleet.vacant().count()), (3, 1));
}

fn evidence() -> impl Strategy<Value = Evidence> {
    prop_oneof![
        Just(Evidence::ProbeAnswered),
        Just(Evidence::Answered),
        Just(Evidence::Refused),
        Just(Evidence::Silent),
        Just(Evidence::Broke),
        Just(Evidence::Failed),
    ]
}

proptest! {
    #[test]
    fn at_most_half_is_ejected_and_a_candidate_is_always_left(
        count in 1usize..9,
        script in prop::collection::vec((any::<u8>(), evidence(), 0u64..2_000), 0..200),
    ) {
        let mut fleet = ready(count);
        let mut now = Instant::ZERO;
        for (worker, evidence, millis) in script {
            now = now + std::time::Duration::from_millis(millis);
            fleet.see(now, WorkerId(u32::from(worker) % count as u32), evidence);
            let ejected = |it: &&Worker| matches!(it.health.state(), HealthState::Ejected { .. });
            prop_assert!(fleet.workers().filter(ejected).count() * 2 <= count);
            prop_assert!(!candidates(&fleet, Wanted::Anything, &[]).is_empty());
        }
    }
}

#[test]
fn aliases_and_adapters_stand_for_the_model_under_them() {
    let mut fleet = ready(1);
    let adapter = Card { name: "llama-sql", parent: Some("llama") };
    fleet.learn_models(WorkerId(0), &[&cards(&["llama", "llama-8b"])[..], &[adapter]].concat());
    let model = |name| fleet.model(name).unwrap();
    let base = model("llama");
    assert_eq!([model("llama-8b"), model("llama-sql"), base].map(|it| fleet.base(it)), [base; 3]);
    assert!(fleet.is_adapter(model("llama-sql")) && !fleet.is_adapter(model("llama-8b")));
    assert_eq!(fleet.base_of(WorkerId(0)), Some(base));
}

#[test]
fn an_adapter_may_follow_its_model_and_a_colon() {
    let mut fleet = ready(2);
    let adapter = |name| Card { name, parent: Some("s3://llama:8b") };
    let both = [&cards(&["s3://llama:8b", "llama"])[..], &[adapter("sql"), adapter("v2:sql")]].concat();
    fleet.learn_models(WorkerId(0), &both);
    fleet.learn_models(WorkerId(1), &cards(&["qwen"]));
    for adapter in ["sql", "v2:sql"] {
        let known = fleet.model(adapter);
        assert!(known.is_some());
        assert_eq!(fleet.model(&format!("llama:{adapter}")), known, "{adapter}");
    }
    assert_eq!(fleet.model("s3://llama:8b:sql"), fleet.model("sql"));
    for name in ["llama:gone", "gone:sql", "qwen:sql", "llama:llama", "sql:llama", ":sql", "llama:", ":"] {
        assert_eq!(fleet.model(name), None, "{name}");
    }
}

#[test]
fn requests_of_others_count_once_two_reports_agree() {
    let mut fleet = ready(1);
    let load = |running| EngineLoad { running: Some(running), ..EngineLoad::default() };
    let requests = |fleet: &Fleet, now| fleet.snapshot_of(now, WorkerId(0)).unwrap().requests;
    fleet.report(Instant::ZERO, WorkerId(0), load(9));
    assert_eq!(requests(&fleet, Instant::ZERO), 0);
    fleet.report(Instant::ZERO, WorkerId(0), load(7));
    assert_eq!(requests(&fleet, Instant::ZERO), 7);
    assert_eq!(requests(&fleet, Instant::from_millis(10_000)), 0, "too long ago");
}

#[test]
fn running_and_queued_requests_take_room() {
    let mut fleet = ready(1);
    let load =
        EngineLoad { kv_usage: Some(0.5), block_size: Some(16), blocks: Some(100), ..EngineLoad::default() };
    fleet.report(Instant::ZERO, WorkerId(0), load);
    let pinned = |fleet: &Fleet, now| {
        let mut snapshots = Vec::new();
        fleet.snapshots(now, Wanted::Anything, Barred::default(), &mut snapshots);
        let KvRoom { capacity, pinned } = snapshots[0].room.unwrap();
        assert_eq!(capacity, Tokens(1_600));
        pinned
    };
    assert_eq!(pinned(&fleet, Instant::ZERO), Tokens(800));
    let promise = Promise {
        prefill: PrefillWork::whole(Tokens(300)),
        decode: Tokens(100),
        context: Tokens(400),
        prefilled: false,
    };
    fleet.promise(Instant::ZERO, WorkerId(0), promise);
    assert_eq!(pinned(&fleet, Instant::ZERO), Tokens(800 + 300 + 100));
    // One of the three waiting requests is ours. The others were preempted, and held what running ones hold now.
    fleet.report(Instant::ZERO, WorkerId(0), EngineLoad { running: Some(4), waiting: Some(3), ..load });
    assert_eq!(pinned(&fleet, Instant::ZERO), Tokens(800 + 400 + 2 * 200));
    // For a silent engine the router knows only its own promises.
    assert_eq!(pinned(&fleet, Instant::from_millis(9_000)), Tokens(400));
}

#[test]
fn an_engines_report_counts_until_it_is_stale() {
    let mut fleet = ready(1);
    let said = |fleet: &Fleet, now| {
        let mut snapshots = Vec::new();
        fleet.snapshots(now, Wanted::Anything, Barred::default(), &mut snapshots);
        (snapshots[0].reported.waiting, snapshots[0].reported.kv_usage)
    };
    assert_eq!(said(&fleet, Instant::ZERO), (None, None));
    let load = EngineLoad { waiting: Some(3), kv_usage: Some(0.5), ..EngineLoad::default() };
    fleet.report(Instant::ZERO, WorkerId(0), load);
    assert_eq!(said(&fleet, Instant::from_millis(3_500)), (Some(3), Some(0.5)));
    assert_eq!(said(&fleet, Instant::from_millis(3_501)), (None, None));
}

#[test]
fn a_model_name_over_the_limit_is_ignored_without_side_effects() {
    let mut fleet = Fleet::default();
    let worker = fleet.add("http://a");
    let names: Vec<String> = (0..MODELS_MAX).map(|number| format!("model-{number}")).collect();
    let cards: Vec<Card<'_>> = names.iter().map(|name| Card { name, parent: None }).collect();
    fleet.learn_models(worker, &cards);
    let late = Card { name: "late", parent: Some("model-0") };
    fleet.learn_models(worker, &[late, Card { name: "model-0", parent: None }]);
    let model = fleet.model("model-0").unwrap();
    assert_eq!((fleet.model("late"), fleet.is_adapter(model), fleet.base(model)), (None, false, model));
}

#[test]
fn the_order_of_aliases_makes_no_difference() {
    let mut fleet = ready(3);
    for (worker, names) in [(0, &["a", "b"][..]), (1, &["b", "a"]), (2, &["b"])] {
        fleet.learn_models(WorkerId(worker), &cards(names));
        let base = fleet.model("a");
        assert_eq!(
            (0..=worker).map(|it| fleet.base_of(WorkerId(it))).collect::<Vec<_>>(),
            vec![base; worker as usize + 1]
        );
    }
}

#[test]
fn absurd_numbers_of_an_engine_are_only_large() {
    let mut fleet = ready(1);
    let load = EngineLoad {
        running: Some(u64::MAX),
        waiting: Some(u64::MAX),
        kv_usage: Some(1.0),
        ..EngineLoad::default()
    };
    let load = EngineLoad { blocks: Some(u64::MAX), block_size: Some(u64::MAX), ..load };
    fleet.report(Instant::ZERO, WorkerId(0), load);
    for _ in 0..3 {
        let promise = Promise { decode: Tokens(u64::MAX / 2), ..Promise::default() };
        fleet.promise(Instant::ZERO, WorkerId(0), promise);
    }
    assert_eq!(candidates(&fleet, Wanted::Anything, &[]), [0]);
}

#[test]
fn what_attention_takes_is_learned_for_all_workers() {
    let mut fleet = ready(2);
    // An 8B model: twice as long after 18,000 tokens.
    let truth =
        |work: PrefillWork| 0.02 + 15e-6 * work.tokens.0 as f64 + 15e-6 / 18_000.0 * work.attended as f64;
    let turn = |held: u64, tokens: u64| PrefillWork::after(Tokens(held), Tokens(tokens));
    for number in 0..600 {
        let work = turn(number * 7_919 % 100_000, 500 + number * 101 % 8_000);
        let took = Duration::from_secs_f64(truth(work));
        fleet.learn_first_token(Instant::from_millis(number), WorkerId(0), work, took);
        fleet.settle(Instant::from_millis(number), &mut Vec::new());
    }
    for worker in [0, 1] {
        let snapshot = fleet.snapshot_of(Instant::from_millis(600), WorkerId(worker)).unwrap();
        for work in [turn(0, 2_000), turn(90_000, 2_000), PrefillWork::whole(Tokens(100_000))] {
            let off = snapshot.prefill.at(work) / truth(work) - 1.0;
            assert!(off.abs() < 0.15, "worker {worker}, {work:?}: {off:+.2}");
        }
    }
}

/// Two GPUs, each with prompts of its own length: after how many tokens a token takes twice as long, seconds per token, and
/// the shortest and longest prompts.
#[track_caller]
fn check_mixed(kinds: [(f64, f64, std::ops::Range<u64>); 2]) {
    let mut fleet = ready(2);
    let mut rng = Rng::new(5);
    let truths = [0, 1].map(|it| PrefillFit::new(0.03, kinds[it].1, 1.0 / kinds[it].0));
    for number in 0..6_000 {
        let at = number % 2;
        let lengths = &kinds[at].2;
        let tokens = lengths.start + rng.below((lengths.end - lengths.start) as usize) as u64;
        let work = PrefillWork::whole(Tokens(tokens));
        let took = Duration::from_secs_f64(truths[at].at(work) * (0.9 + 0.2 * rng.unit()));
        fleet.learn_first_token(Instant::from_millis(number as u64), WorkerId(at as u32), work, took);
        fleet.settle(Instant::from_millis(number as u64), &mut Vec::new());
    }
    let prefill = fleet.model_rates(None).rates().prefill;
    let doubled_after = prefill.slope / prefill.attention;
    let range = kinds[0].0.min(kinds[1].0) * 0.7..kinds[0].0.max(kinds[1].0) * 1.3;
    assert!(range.contains(&doubled_after), "{doubled_after}, not between those of both");
}

#[test]
fn gpus_with_prompts_of_their_own_length_do_not_look_like_attention() {
    check_mixed([(18_000.0, 15e-6, 10_000..40_000), (85_000.0, 100e-6, 500..8_500)]);
    check_mixed([(18_000.0, 15e-6, 500..8_500), (85_000.0, 100e-6, 10_000..40_000)]);
    check_mixed([(18_000.0, 15e-6, 500..40_000), (85_000.0, 100e-6, 500..40_000)]);
}

#[test]
fn a_request_brings_the_seconds_of_its_prefill_to_the_knee() {
    let mut fleet = ready(1);
    let (worker, now) = (WorkerId(0), Instant::ZERO);
    // An 8B model, and turns at the end of long contexts.
    let truth = PrefillFit::new(0.02, 15e-6, 1.0 / 18_000.0);
    for number in 0..600 {
        let work = PrefillWork::after(Tokens(number * 7_919 % 100_000), Tokens(500 + number * 101 % 8_000));
        fleet.learn_first_token(now, worker, work, Duration::from_secs_f64(truth.at(work)));
        let requests = f64::from(1_u32 << (number % 8));
        fleet.learn_knee(worker, requests, 0.0, Duration::from_secs_f64(5e-3 + 1e-4 * requests));
        fleet.learn_length(worker, PrefillWork::after(Tokens(90_000), Tokens(800)), 100);
        fleet.settle(now, &mut Vec::new());
    }
    let prefill = truth.seconds(PrefillWork::after(Tokens(90_000), Tokens(800)));
    let expected = 5e-3 / (1e-4 + prefill / 100.0);
    let found = fleet.model_rates(None).knee().requests;
    assert!((found / expected - 1.0).abs() < 0.25, "{found}, not {expected}");
}

#[test]
fn rates_fade_while_a_worker_is_idle_and_hold_while_it_has_a_request() {
    let mut fleet = ready(2);
    let at = Instant::from_millis;
    for number in 0..100 {
        fleet.learn_first_token(at(number), WorkerId(0), PROMPT, Duration::from_millis(50));
        fleet.learn_first_token(at(number), WorkerId(1), PROMPT, Duration::from_millis(500));
    }
    let floor = |fleet: &Fleet, now| {
        let snapshot = fleet.snapshot_of(now, WorkerId(1)).unwrap();
        (snapshot.prefill.at(PROMPT), snapshot.faded.map(|(prefill, _)| prefill.at(PROMPT)))
    };
    let (own, faded) = floor(&fleet, at(100));
    assert!(own > 0.4 && faded.is_none(), "{own} {faded:?}");
    for number in 0..100 {
        fleet.learn_first_token(at(9_000 + number), WorkerId(0), PROMPT, Duration::from_millis(50));
    }
    let (own, faded) = floor(&fleet, at(9_100));
    assert!(own > 0.4 && faded.unwrap() < 0.1, "{own} {faded:?}");
    let promise = Promise { prefill: PrefillWork::whole(Tokens(1_000)), ..Promise::default() };
    fleet.promise(at(9_100), WorkerId(1), promise);
    assert_eq!(floor(&fleet, at(9_200)).1, None, "a request is about to show its rates");
    fleet.release(WorkerId(1), promise);
    assert!(floor(&fleet, at(9_200)).1.is_some(), "it ended without showing them");
}

#[test]
fn a_worker_that_comes_back_is_priced_like_the_others_until_it_has_answered() {
    let mut fleet = ready(2);
    let at = Instant::from_millis;
    for number in 0..100 {
        fleet.learn_first_token(at(number), WorkerId(0), PROMPT, Duration::from_millis(50));
        fleet.learn_first_token(at(number), WorkerId(1), PROMPT, Duration::from_millis(500));
    }
    let faded = |fleet: &Fleet| fleet.snapshot_of(at(101), WorkerId(1)).unwrap().faded;
    assert_eq!(faded(&fleet), None);
    fleet.see(at(100), WorkerId(1), Evidence::Refused);
    fleet.see(at(101), WorkerId(1), Evidence::ProbeAnswered);
    assert_eq!(faded(&fleet).map(|it| it.0), Some(fleet.model_rates(None).rates().prefill));
    fleet.learn_first_token(at(101), WorkerId(1), PROMPT, Duration::from_millis(500));
    assert!(fleet.snapshot_of(at(101), WorkerId(1)).unwrap().prefill.at(PROMPT) > 0.4);
}

/// A worker that is listed again while requests on it end is a second worker with the same key.
#[test]
fn a_worker_that_returns_before_it_has_left_gets_what_other_routers_promised() {
    let (mut fleet, now, url) = (Fleet::default(), Instant::ZERO, "http://127.0.0.1:1");
    let promised = |fleet: &Fleet, worker| fleet.worker(worker).map(|it| it.promised_by_others.work.requests);
    let old = fleet.add(url);
    let key = fleet.worker(old).unwrap().key;
    fleet.set_promised_by_others(now, key, PromisedWork { requests: 2, ..PromisedWork::default() });
    let new = fleet.add(url);
    assert_eq!((promised(&fleet, old), promised(&fleet, new)), (Some(0), Some(2)));
    fleet.remove(now, old);
    fleet.set_promised_by_others(now, key, PromisedWork::default());
    fleet.remove(now, new);
    let last = fleet.add(url);
    assert_eq!(promised(&fleet, last), Some(0), "nothing is kept of the first one");
}

/// The second one may also leave first.
#[test]
fn a_worker_that_still_drains_gets_what_other_routers_promised_to_its_successor() {
    let (mut fleet, now, url) = (Fleet::default(), Instant::ZERO, "http://127.0.0.1:1");
    let (old, new) = (fleet.add(url), fleet.add(url));
    let key = fleet.worker(old).unwrap().key;
    fleet.set_promised_by_others(now, key, PromisedWork { requests: 2, ..PromisedWork::default() });
    fleet.remove(now, new);
    assert_eq!(fleet.by_key(key).map(|it| it.id), Some(old));
    assert_eq!(fleet.worker(old).unwrap().promised_by_others.work.requests, 2);
    fleet.remove(now, old);
    assert!(fleet.by_key(key).is_none());
    let last = fleet.add(url);
    assert_eq!(fleet.worker(last).unwrap().promised_by_others.work.requests, 2, "kept while it is absent");
}

#[test]
fn a_worker_is_compared_with_the_others_of_its_model() {
    let mut fleet = Fleet::default();
    let models = [("llama", 4, 1.0), ("llama", 6, 2.0), ("llama", 12, 1.0), ("large", 50, 1.0)];
    for (number, (model, requests, weight)) in (0..).zip(models) {
        let worker = fleet.add(&format!("http://127.0.0.1:{number}"));
        fleet.see(Instant::ZERO, worker, Evidence::ProbeAnswered);
        fleet.learn_models(worker, &[Card { name: model, parent: None }]);
        fleet.weigh(worker, weight);
        (0..requests).for_each(|_| fleet.promise(Instant::ZERO, worker, Promise::default()));
    }
    let others = |fleet: &mut Fleet| {
        fleet.settle(Instant::ZERO, &mut Vec::new());
        (0..4)
            .map(|it| fleet.snapshot_of(Instant::ZERO, WorkerId(it)).map(|it| it.requests_elsewhere))
            .collect::<Vec<_>>()
    };
    let none = Some(f64::INFINITY);
    assert_eq!(others(&mut fleet), [Some(6.0), Some(16.0), Some(10.0 / 3.0), none]);
    fleet.drain(WorkerId(2), true);
    assert_eq!(others(&mut fleet), [Some(3.0), Some(8.0), None, none]);
}

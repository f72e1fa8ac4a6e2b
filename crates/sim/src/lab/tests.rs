//! Invariants of a run under any fleet changes and any lack of knowledge.

use std::collections::BTreeSet;
use std::time::Duration;

use maitre_base::{Instant, Rng, WorkerId};
use maitre_policy::Name;
use proptest::prelude::{Strategy as _, any, prop, proptest};

use super::{AnsweredRequest, Decider, Knowledge, LabConfig, PreparedTrace, RunOutcome, Sync, Via, play};
use crate::profile::{H200_8B, Profile};
use crate::report::{ReportRow, Targets};
use crate::trace::{Piece, Request, Trace};

mod chunks;
mod hedges;
mod legs;
mod pulls;
mod queue;
mod store;

const SECONDS: f64 = 12.0;

/// A third of the groups below fit into one cache.
const ENGINE: Profile = Profile { kv_blocks: 1_501, ..H200_8B.slower(4.0) };

/// Prompts of 24 groups with a common prefix each, at random, for twelve seconds.
fn traffic(per_second: f64) -> Trace {
    seeded_traffic(7, per_second)
}

fn seeded_traffic(seed: u64, per_second: f64) -> Trace {
    let mut rng = Rng::new(seed);
    let (mut requests, mut now) = (Vec::new(), 0.0);
    while now < SECONDS {
        now += rng.exponential(1.0 / per_second);
        let number = requests.len() as u64;
        let shared = Piece { text: rng.below(24) as u64, tokens: 2_000 };
        requests.push(Request {
            at: Instant::from_nanos((now * 1e9) as u64),
            prompt: [shared, Piece { text: 1_000 + number, tokens: 200 }].into(),
            answer_tokens: 10 + rng.below(30) as u32,
            answer: 1_000_000 + number,
            session: Some(number % 16),
            ..Request::default()
        });
    }
    Trace { requests }
}

fn fleet(workers: usize) -> LabConfig {
    let mut brain = maitre_dispatch::BrainSettings { seed: 1, ..maitre_dispatch::BrainSettings::default() };
    // These tests cover placement; `queue` covers waiting.
    brain.queue.enabled = false;
    LabConfig::new(vec![ENGINE; workers], brain)
}

fn scripted(workers: usize, script: &str) -> LabConfig {
    LabConfig { script: script.parse().unwrap(), ..fleet(workers) }
}

/// Runs, and checks that every request ended exactly once. (`play` asserts the same for promises.)
#[track_caller]
fn run(config: &LabConfig, trace: &Trace) -> RunOutcome {
    let outcome = play(config, &PreparedTrace::new(trace, 16), &mut ());
    let ended = outcome.answers.len() as u64 + outcome.refused + outcome.failed;
    assert_eq!(ended, trace.requests.len() as u64, "{} refused, {} failed", outcome.refused, outcome.failed);
    let times: BTreeSet<Instant> = outcome.answers.iter().map(|it| it.metrics.at).collect();
    assert_eq!(times.len(), outcome.answers.len(), "one was answered twice");
    outcome
}

/// The same for runs in which no request may be lost.
#[track_caller]
fn run_whole(config: &LabConfig, trace: &Trace) -> RunOutcome {
    let outcome = run(config, trace);
    assert_eq!((outcome.refused, outcome.failed), (0, 0));
    outcome
}

fn row(outcome: &RunOutcome) -> ReportRow {
    outcome.row("it", &Targets::default())
}

fn moment(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

fn arrived(outcome: &RunOutcome, from: f64, until: f64) -> Vec<AnsweredRequest> {
    let within = |it: &&AnsweredRequest| (moment(from)..moment(until)).contains(&it.metrics.at);
    outcome.answers.iter().filter(within).cloned().collect()
}

/// The share of these answers that came from this worker.
fn part(answers: &[AnsweredRequest], worker: u32) -> f64 {
    let there = answers.iter().filter(|it| it.worker == WorkerId(worker)).count();
    there as f64 / answers.len() as f64
}

fn hit_ratio(answers: &[AnsweredRequest]) -> f64 {
    let sum =
        |tokens: fn(&AnsweredRequest) -> u32| answers.iter().map(|it| f64::from(tokens(it))).sum::<f64>();
    sum(|it| it.metrics.cached_tokens) / sum(|it| it.metrics.prompt_tokens)
}

/// The share of cache predictions that came true.
fn true_beliefs(answers: &[AnsweredRequest]) -> f64 {
    let is_true = |it: &&AnsweredRequest| it.believed_tokens == Some(u64::from(it.metrics.cached_tokens));
    answers.iter().filter(is_true).count() as f64 / answers.len() as f64
}

#[test]
fn a_joining_worker_takes_its_share() {
    let config = scripted(2, "4s join h200-8b");
    let outcome = run_whole(&config, &traffic(16.0));
    assert_eq!(part(&arrived(&outcome, 0.0, 4.0), 2), 0.0);
    let after = part(&arrived(&outcome, 5.0, SECONDS), 2);
    assert!(after > 0.4, "it is four times as fast as the two others: {after:.2}");
}

#[test]
fn a_leaving_worker_gets_nothing_new_and_finishes_its_requests() {
    for script in ["4s drain 1", "4s leave 1", "4s leave 1\n5s drain 1\n6s leave 1"] {
        let outcome = run_whole(&scripted(3, script), &traffic(14.0));
        assert_eq!(part(&arrived(&outcome, 4.0, SECONDS), 1), 0.0, "{script}");
        let before = arrived(&outcome, 0.0, 4.0);
        let finished_later = |it: &&AnsweredRequest| {
            it.worker == WorkerId(1) && it.metrics.at + it.metrics.total > moment(4.0)
        };
        assert!(before.iter().any(|it| finished_later(&it)), "{script}: nothing was pending there");
    }
    let outcome = run_whole(&scripted(3, "4s drain 1\n8s resume 1"), &traffic(14.0));
    assert_eq!(part(&arrived(&outcome, 4.0, 8.0), 1), 0.0);
    assert!(part(&arrived(&outcome, 8.0, SECONDS), 1) > 0.2);
}

/// Both runs are identical until the crash, so the undisturbed one shows what was in flight where.
#[test]
fn a_crash_aborts_started_answers_and_moves_the_others() {
    let trace = traffic(14.0);
    let calm = run_whole(&fleet(3), &trace);
    let there: Vec<&AnsweredRequest> = calm.answers.iter().filter(|it| it.worker == WorkerId(0)).collect();
    // Requests at the worker at this instant whose answers have begun, and the others.
    let open_at = |now: Instant| -> (BTreeSet<Instant>, BTreeSet<Instant>) {
        let pending = there.iter().filter(|it| it.metrics.at < now && now < it.metrics.at + it.metrics.total);
        pending.map(|it| &it.metrics).map(|it| (it.at, it.at + it.first_token < now)).fold(
            Default::default(),
            |(mut begun, mut waiting), (at, began)| {
                if began { &mut begun } else { &mut waiting }.insert(at);
                (begun, waiting)
            },
        )
    };
    let moments = there.iter().map(|it| it.metrics.at + it.metrics.first_token / 2);
    let mut busy = moments.filter(|&it| it > moment(5.0)).map(|it| (it, open_at(it)));
    let (crash, (begun, waiting)) = busy.find(|(_, it)| !it.0.is_empty() && !it.1.is_empty()).unwrap();

    let script = format!("{}s crash 0\n9s start 0", crash.as_secs_f64());
    let mut config = scripted(3, &script);
    config.brain.health.slow_start = Duration::from_secs(1);
    let outcome = run(&config, &trace);
    assert_eq!((outcome.failed, outcome.refused), (begun.len() as u64, 0));
    for answer in &outcome.answers {
        assert!(!begun.contains(&answer.metrics.at), "{answer:?} was broken off");
        assert!(
            !waiting.contains(&answer.metrics.at) || answer.worker != WorkerId(0),
            "{answer:?} was there"
        );
    }
    assert_eq!(part(&arrived(&outcome, crash.as_secs_f64(), 9.0), 0), 0.0, "the worker is down");
    assert!(part(&arrived(&outcome, 9.0, SECONDS), 0) > 0.0, "it is back");
}

#[test]
fn a_restarted_worker_has_an_empty_cache_and_the_router_knows() {
    let trace = traffic(14.0);
    let config = LabConfig {
        brain: maitre_dispatch::BrainSettings { strategy: Name::RoundRobin, ..fleet(2).brain },
        ..scripted(2, "6s restart 0")
    };
    let cold = |it: &RunOutcome| {
        let after = arrived(it, 6.0, 7.5);
        let there: Vec<AnsweredRequest> = after.into_iter().filter(|it| it.worker == WorkerId(0)).collect();
        hit_ratio(&there)
    };
    let calm = LabConfig { script: fleet(2).script, ..config.clone() };
    let (before, after) = (cold(&run_whole(&calm, &trace)), cold(&run(&config, &trace)));
    assert!(after < before - 0.1, "{after:.2} after a restart, {before:.2} without one");

    let outcome = run(&scripted(3, "6s restart 0"), &trace);
    let beliefs = true_beliefs(&arrived(&outcome, 6.5, SECONDS));
    assert!(beliefs > 0.9, "{beliefs:.2} of beliefs came true");
}

#[test]
fn a_worker_that_slows_down_gets_less() {
    const SEEDS: u64 = 24;
    let kept = |seed: u64| {
        let trace = seeded_traffic(seed, 18.0);
        let outcome = run_whole(&scripted(3, "4s slow 2 4\n9s slow 2 1"), &trace);
        let [before, after] =
            [(0.0, 4.0), (5.0, 9.0)].map(|(from, until)| part(&arrived(&outcome, from, until), 2));
        after / before
    };
    let mean = (1..=SEEDS).map(kept).sum::<f64>() / SEEDS as f64;
    assert!(mean < 0.8, "keeps {mean:.2} of its share");
}

/// If prompts share nothing, speed alone decides. In the traffic above a cached prefix keeps requests at the slow
/// worker: computing it again costs more than waiting.
#[test]
fn a_worker_four_times_slower_keeps_less_than_half_of_its_share_within_five_seconds() {
    let mut trace = traffic(18.0);
    for (number, request) in (0..).zip(&mut trace.requests) {
        request.prompt = [Piece { text: 1_000 + number, tokens: 1_000 }].into();
    }
    let outcome = run_whole(&scripted(3, "4s slow 2 4"), &trace);
    let shares =
        [(0.0, 4.0), (5.0, 9.0), (9.0, 12.0)].map(|(from, until)| part(&arrived(&outcome, from, until), 2));
    assert!(shares[1..].iter().all(|it| *it < 0.45 * shares[0]), "{shares:?}");
}

#[test]
fn more_knowledge_of_caches_gives_more_hits() {
    let trace = traffic(14.0);
    let [reported, predicted, none] = [Knowledge::Reported, Knowledge::Predicted, Knowledge::None]
        .map(|knowledge| row(&run_whole(&LabConfig { knowledge, ..fleet(3) }, &trace)).hit_ratio);
    assert!(reported >= predicted - 0.01, "{reported} {predicted}");
    assert!(predicted > none + 0.1, "{predicted} {none}");
}

#[test]
fn late_cache_events_are_less_accurate_and_cost_neither_hits_nor_time() {
    let trace = traffic(14.0);
    let with_delay = |event_delay| {
        // So little room that much is evicted before it is reused.
        let engine = Profile { kv_blocks: 1_001, ..ENGINE };
        // A strategy that uses caches before all else, and hardly uses learned rates.
        let brain = maitre_dispatch::BrainSettings { strategy: Name::StickyUntilSaturated, ..fleet(3).brain };
        let outcome =
            run_whole(&LabConfig { event_delay, brain, fleet: vec![engine; 3], ..fleet(3) }, &trace);
        (true_beliefs(&outcome.answers), row(&outcome))
    };
    let (prompt, late) = (with_delay(Duration::ZERO), with_delay(Duration::from_secs(4)));
    assert!(prompt.0 > 0.95, "{:.2} of beliefs came true", prompt.0);
    assert!(late.0 < prompt.0 - 0.03, "{:.2} and {:.2}", late.0, prompt.0);
    let (late, prompt) = (late.1, prompt.1);
    // Promised work stands in for reports that have not arrived yet.
    assert!(late.hit_ratio > prompt.hit_ratio - 0.02, "{} {}", late.hit_ratio, prompt.hit_ratio);
    assert!(late.ttft_mean_s < 1.05 * prompt.ttft_mean_s, "{} {}", late.ttft_mean_s, prompt.ttft_mean_s);
}

/// The default predicts what it placed until the events arrive, and weighs much besides caches.
#[test]
fn late_cache_events_cost_the_default_at_most_a_twentieth_of_hits() {
    let trace = traffic(14.0);
    let hits = |event_delay, knowledge| {
        let engine = Profile { kv_blocks: 1_001, ..ENGINE };
        let config = LabConfig { event_delay, knowledge, fleet: vec![engine; 3], ..fleet(3) };
        row(&run_whole(&config, &trace)).hit_ratio
    };
    let prompt = hits(Duration::ZERO, Knowledge::Reported);
    let predicted = hits(Duration::ZERO, Knowledge::Predicted);
    for delay in [1, 4, 10] {
        let late = hits(Duration::from_secs(delay), Knowledge::Reported);
        assert!(late > prompt.max(predicted) - 0.05, "{delay} s late: {late}, {prompt} and {predicted}");
    }
}

/// Several routers know each other's requests only through engine reports.
#[test]
fn late_scrapes_cost_time_where_routers_know_nothing_else() {
    let trace = traffic(16.0);
    let ttft = |scrape_every, scrape_delay| {
        // A strategy that uses the engines' queue lengths.
        let brain = maitre_dispatch::BrainSettings { strategy: Name::Weighted, ..fleet(3).brain };
        let config = LabConfig { brain, scrape_every, scrape_delay, routers: 4, ..fleet(3) };
        row(&run_whole(&config, &trace)).ttft_mean_s
    };
    let prompt = ttft(Duration::from_millis(20), Duration::ZERO);
    let late = ttft(Duration::from_secs(2), Duration::from_secs(2));
    assert!(late > 1.02 * prompt, "{late} and {prompt}");
}

#[test]
fn four_routers_are_no_better_than_one() {
    let trace = traffic(16.0);
    let ttft = |routers| row(&run_whole(&LabConfig { routers, ..fleet(3) }, &trace)).ttft_mean_s;
    let (one, four) = (ttft(1), ttft(4));
    assert!(four >= one, "{four} and {one}");
}

#[test]
fn routers_that_share_state_hit_as_much_as_one() {
    let trace = traffic(12.0);
    let knowledge = Knowledge::Predicted;
    let played = |routers, sync| {
        let outcome = run_whole(&LabConfig { routers, sync, knowledge, ..fleet(3) }, &trace);
        (row(&outcome), outcome.traffic)
    };
    let (one, _) = played(1, None);
    let (alone, silence) = played(4, None);
    assert!(alone.hit_ratio < 0.8 * one.hit_ratio, "{} and {}", alone.hit_ratio, one.hit_ratio);
    assert_eq!((silence.frames, alone.told_bytes), (0, None));
    for via in [Via::Redis, Via::Mesh] {
        let (shared, traffic) = played(4, Some(Sync { via, delay: Duration::from_millis(50) }));
        assert!(
            shared.hit_ratio > 0.95 * one.hit_ratio,
            "{via:?}: {} and {}",
            shared.hit_ratio,
            one.hit_ratio
        );
        assert!(traffic.frames > 100 && shared.told_bytes > Some(100.0), "{via:?}: {traffic:?}");
    }
}

#[test]
fn bounds_are_bounds_and_reproducible() {
    let trace = traffic(14.0);
    let bound = |decider| {
        let run = || run_whole(&LabConfig { decider, ..fleet(3) }, &trace);
        let seats =
            |it: &RunOutcome| it.answers.iter().map(|it| (it.worker, it.metrics.clone())).collect::<Vec<_>>();
        let outcome = run();
        assert_eq!(seats(&outcome), seats(&run()), "{decider:?}");
        row(&outcome)
    };
    let (oracle, ideal) = (bound(Decider::Oracle), bound(Decider::IdealCache));
    let (mut best, mut best_total) = (f64::MAX, f64::MAX);
    for strategy in Name::ALL {
        let brain = maitre_dispatch::BrainSettings { strategy, ..fleet(3).brain };
        let row = row(&run_whole(&LabConfig { brain, ..fleet(3) }, &trace));
        assert!(row.hit_ratio <= ideal.hit_ratio, "{strategy} hits {}", row.hit_ratio);
        best = best.min(row.ttft_mean_s);
        best_total = best_total.min(row.e2e_mean_s);
    }
    assert!(oracle.hit_ratio <= ideal.hit_ratio, "{} {}", oracle.hit_ratio, ideal.hit_ratio);
    // It minimises the time of whole answers, so a strategy may have a lower TTFT.
    assert!(ideal.e2e_mean_s < best_total, "{} beside {best_total}", ideal.e2e_mean_s);
    assert!(ideal.ttft_mean_s < 1.15 * best, "{} beside {best}", ideal.ttft_mean_s);
    assert!(oracle.ttft_mean_s < 1.15 * best, "{} beside {best}", oracle.ttft_mean_s);
}

/// The brain does not know their placements, so it cannot repeat them.
#[test]
fn a_bound_places_requests_again_after_a_crash() {
    for decider in [Decider::Oracle, Decider::IdealCache] {
        let config = LabConfig { decider, ..scripted(2, "5s crash 1\n8s start 1\n9s crash 0\n9s crash 1") };
        let outcome = run(&config, &traffic(14.0));
        assert!(outcome.failed > 0, "{decider:?}");
        assert!(outcome.refused > 0, "no worker is left");
        assert!(outcome.answers.len() > 70, "{decider:?}: {}", outcome.answers.len());
    }
}

/// A cached prompt is as long for the model as an uncached one.
#[test]
fn a_prompt_that_is_too_long_is_refused_however_much_of_it_is_cached() {
    let mut trace = written(&[(0, 0, 100, 5), (10, 0, 200_000, 5), (20, 0, 200_000, 5)]);
    trace.requests[2].prompt = trace.requests[1].prompt.clone();
    for decider in [Decider::Brain, Decider::Oracle, Decider::IdealCache] {
        let outcome = run(&LabConfig { decider, ..fleet(2) }, &trace);
        assert_eq!(outcome.refused, 2, "{decider:?}");
    }
}

#[test]
fn parts_report_their_lost_requests() {
    let mut trace = written(&[(0, 0, 100, 5), (10, 0, 100, 5), (20, 0, 200_000, 5), (30, 0, 200_000, 5)]);
    let parts = [1, 2, 2, 3];
    trace.requests.iter_mut().zip(parts).for_each(|(it, part)| it.part = part);
    let rows = run(&fleet(2), &trace).parts("it", &Targets::default());
    let told = |it: &ReportRow| (it.part, it.requests, it.refused, it.goodput_ratio);
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
        [(Some(1), 1, 0, 1.0), (Some(2), 1, 1, 0.5), (Some(3), 0, 1, 0.0)]
    );
}

/// An action on one of the three initial workers.
fn line() -> impl prop::strategy::Strategy<Value = String> {
    let actions =
        ["join 2xh200-8b", "leave N", "drain N", "resume N", "slow N 3", "crash N", "start N", "restart N"];
    (0..3_000_u32, prop::sample::select(actions.to_vec()), 0..3_u32).prop_map(|(millis, action, worker)| {
        format!("{millis}ms {}", action.replace('N', &worker.to_string()))
    })
}

fn request() -> impl prop::strategy::Strategy<Value = (u64, u64, u32, u32)> {
    // Time, group, length of the prompt's own part and of the answer. Some never fit.
    (0..3_000_u64, 0..4_u64, prop::sample::select(vec![1_u32, 100, 700, 25_000]), 0..40_u32)
}

fn written(rows: &[(u64, u64, u32, u32)]) -> Trace {
    let mut requests: Vec<Request> = (0..)
        .zip(rows)
        .map(|(number, &(millis, group, own, answer_tokens))| Request {
            // All at different times, by which `run` identifies them.
            at: Instant::from_nanos(millis * 1_000_000 + number),
            prompt: [Piece { text: group, tokens: 600 }, Piece { text: 1_000 + number, tokens: own }].into(),
            answer_tokens,
            answer: 5_000 + number,
            ..Request::default()
        })
        .collect();
    requests.sort_by_key(|it| it.at);
    Trace { requests }
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(64))]

    #[test]
    fn every_request_ends_once_and_no_promise_outlives_it(
        lines in prop::collection::vec(line(), 0..8),
        rows in prop::collection::vec(request(), 1..60),
        knowledge in prop::sample::select(vec![Knowledge::Reported, Knowledge::Predicted, Knowledge::None]),
        decider in prop::sample::select(vec![Decider::Brain, Decider::Brain, Decider::Oracle, Decider::IdealCache]),
        (routers, delay_ms, strategy) in (1..4_usize, 0..400_u64, prop::sample::select(Name::ALL.to_vec())),
        via in prop::sample::select(vec![None, Some(Via::Redis), Some(Via::Mesh)]),
        seed in any::<u64>(),
    ) {
        let delay = Duration::from_millis(delay_ms.saturating_sub(100));
        let brain = maitre_dispatch::BrainSettings { strategy, seed, ..fleet(3).brain };
        let config = LabConfig {
            brain,
            decider,
            knowledge,
            routers,
            sync: via.map(|via| Sync { via, delay }),
            event_delay: delay,
            scrape_delay: delay,
            ..scripted(3, &lines.join("\n"))
        };
        run(&config, &written(&rows));
    }
}

/// Skipping must not lose anything: the second request finds what the first one cached.
#[test]
fn a_month_without_requests_changes_nothing() {
    let mut trace = traffic(14.0);
    trace.requests.truncate(2);
    trace.requests[0].at = Instant::ZERO;
    trace.requests[1].prompt = trace.requests[0].prompt.clone();
    for days in [0, 30] {
        trace.requests[1].at = Instant::from_millis(5_000 + days * 86_400_000);
        let outcome = run_whole(&fleet(3), &trace);
        let cached: Vec<u32> = outcome.answers.iter().map(|it| it.metrics.cached_tokens).collect();
        assert_eq!(cached, [0, 2_192], "after {days} days");
        assert_eq!(true_beliefs(&outcome.answers), 1.0);
    }
}

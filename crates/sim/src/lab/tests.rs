//! What a run must keep to, whatever is done to the fleet and whatever the router is not told.

use std::collections::BTreeSet;
use std::time::Duration;

use maitre_base::{Instant, Rng, WorkerId};
use maitre_policy::Name;
use proptest::prelude::{Strategy as _, any, prop, proptest};

use super::{Answer, Judge, Knowledge, Outcome, PreparedTrace, Settings, Sync, Via, play};
use crate::profile::{H200_8B, Profile};
use crate::report::{Row, Targets};
use crate::trace::{Piece, Request, Trace};

mod line;

const SECONDS: f64 = 12.0;

/// A third of the groups below fit into one cache.
const ENGINE: Profile = Profile { kv_blocks: 1_501, ..H200_8B.slower(4.0) };

/// Prompts of 24 groups that begin alike, by dice, for twelve seconds.
fn traffic(per_second: f64) -> Trace {
    let mut rng = Rng::new(7);
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

fn fleet(workers: usize) -> Settings {
    let mut brain = maitre_dispatch::BrainSettings { seed: 1, ..maitre_dispatch::BrainSettings::default() };
    // These are about where requests go; who waits is in `line`.
    brain.queue.enabled = false;
    Settings::new(vec![ENGINE; workers], brain)
}

fn scripted(workers: usize, script: &str) -> Settings {
    Settings { script: script.parse().unwrap(), ..fleet(workers) }
}

/// Plays, and makes sure that every request ended, and once. (That promises did too is asserted in `play`.)
#[track_caller]
fn run(settings: &Settings, trace: &Trace) -> Outcome {
    let outcome = play(settings, &PreparedTrace::new(trace, 16), &mut ());
    let ended = outcome.answers.len() as u64 + outcome.refused + outcome.failed;
    assert_eq!(ended, trace.requests.len() as u64, "{} refused, {} failed", outcome.refused, outcome.failed);
    let times: BTreeSet<Instant> = outcome.answers.iter().map(|it| it.seen.at).collect();
    assert_eq!(times.len(), outcome.answers.len(), "one was answered twice");
    outcome
}

/// The same where nothing may be lost.
#[track_caller]
fn run_whole(settings: &Settings, trace: &Trace) -> Outcome {
    let outcome = run(settings, trace);
    assert_eq!((outcome.refused, outcome.failed), (0, 0));
    outcome
}

fn row(outcome: &Outcome) -> Row {
    outcome.row("it", &Targets::default())
}

fn moment(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

fn arrived(outcome: &Outcome, from: f64, until: f64) -> Vec<Answer> {
    let within = |it: &&Answer| (moment(from)..moment(until)).contains(&it.seen.at);
    outcome.answers.iter().filter(within).cloned().collect()
}

/// The part of these that went to this worker.
fn part(answers: &[Answer], worker: u32) -> f64 {
    let there = answers.iter().filter(|it| it.worker == WorkerId(worker)).count();
    there as f64 / answers.len() as f64
}

fn hit_ratio(answers: &[Answer]) -> f64 {
    let sum = |tokens: fn(&Answer) -> u32| answers.iter().map(|it| f64::from(tokens(it))).sum::<f64>();
    sum(|it| it.seen.cached_tokens) / sum(|it| it.seen.prompt_tokens)
}

/// The part of beliefs about a cache that came true.
fn true_beliefs(answers: &[Answer]) -> f64 {
    let is_true = |it: &&Answer| it.believed_tokens == Some(u64::from(it.seen.cached_tokens));
    answers.iter().filter(is_true).count() as f64 / answers.len() as f64
}

#[test]
fn a_worker_that_joins_takes_its_part() {
    let settings = scripted(2, "4s join h200-8b");
    let outcome = run_whole(&settings, &traffic(16.0));
    assert_eq!(part(&arrived(&outcome, 0.0, 4.0), 2), 0.0);
    let after = part(&arrived(&outcome, 5.0, SECONDS), 2);
    assert!(after > 0.4, "it is four times as fast as the two others: {after:.2}");
}

#[test]
fn a_worker_on_its_way_out_gets_nothing_new_and_finishes_what_it_has() {
    for script in ["4s drain 1", "4s leave 1", "4s leave 1\n5s drain 1\n6s leave 1"] {
        let outcome = run_whole(&scripted(3, script), &traffic(14.0));
        assert_eq!(part(&arrived(&outcome, 4.0, SECONDS), 1), 0.0, "{script}");
        let before = arrived(&outcome, 0.0, 4.0);
        let finished_later =
            |it: &&Answer| it.worker == WorkerId(1) && it.seen.at + it.seen.total > moment(4.0);
        assert!(before.iter().any(|it| finished_later(&it)), "{script}: nothing was open there");
    }
    let outcome = run_whole(&scripted(3, "4s drain 1\n8s resume 1"), &traffic(14.0));
    assert_eq!(part(&arrived(&outcome, 4.0, 8.0), 1), 0.0);
    assert!(part(&arrived(&outcome, 8.0, SECONDS), 1) > 0.2);
}

/// Until the crash both runs are the same, so the calm one tells what was open where.
#[test]
fn a_crash_breaks_off_what_had_begun_and_moves_what_had_not() {
    let trace = traffic(14.0);
    let calm = run_whole(&fleet(3), &trace);
    let there: Vec<&Answer> = calm.answers.iter().filter(|it| it.worker == WorkerId(0)).collect();
    // Those at the worker at this moment whose answers have begun, and the others.
    let open_at = |now: Instant| -> (BTreeSet<Instant>, BTreeSet<Instant>) {
        let open = there.iter().filter(|it| it.seen.at < now && now < it.seen.at + it.seen.total);
        open.map(|it| &it.seen).map(|it| (it.at, it.at + it.first_token < now)).fold(
            Default::default(),
            |(mut begun, mut waiting), (at, began)| {
                if began { &mut begun } else { &mut waiting }.insert(at);
                (begun, waiting)
            },
        )
    };
    let moments = there.iter().map(|it| it.seen.at + it.seen.first_token / 2);
    let mut busy = moments.filter(|&it| it > moment(5.0)).map(|it| (it, open_at(it)));
    let (crash, (begun, waiting)) = busy.find(|(_, it)| !it.0.is_empty() && !it.1.is_empty()).unwrap();

    let script = format!("{}s crash 0\n9s start 0", crash.as_secs_f64());
    let mut settings = scripted(3, &script);
    settings.brain.health.slow_start = Duration::from_secs(1);
    let outcome = run(&settings, &trace);
    assert_eq!((outcome.failed, outcome.refused), (begun.len() as u64, 0));
    for answer in &outcome.answers {
        assert!(!begun.contains(&answer.seen.at), "{answer:?} was broken off");
        assert!(!waiting.contains(&answer.seen.at) || answer.worker != WorkerId(0), "{answer:?} was there");
    }
    assert_eq!(part(&arrived(&outcome, crash.as_secs_f64(), 9.0), 0), 0.0, "nobody listens there");
    assert!(part(&arrived(&outcome, 9.0, SECONDS), 0) > 0.0, "it is back");
}

#[test]
fn a_restarted_worker_is_cold_and_known_to_be() {
    let trace = traffic(14.0);
    let settings = Settings {
        brain: maitre_dispatch::BrainSettings { strategy: Name::RoundRobin, ..fleet(2).brain },
        ..scripted(2, "6s restart 0")
    };
    let cold = |it: &Outcome| {
        let after = arrived(it, 6.0, 7.5);
        let there: Vec<Answer> = after.into_iter().filter(|it| it.worker == WorkerId(0)).collect();
        hit_ratio(&there)
    };
    let calm = Settings { script: fleet(2).script, ..settings.clone() };
    let (before, after) = (cold(&run_whole(&calm, &trace)), cold(&run(&settings, &trace)));
    assert!(after < before - 0.1, "{after:.2} after a restart, {before:.2} without one");

    let outcome = run(&scripted(3, "6s restart 0"), &trace);
    let beliefs = true_beliefs(&arrived(&outcome, 6.5, SECONDS));
    assert!(beliefs > 0.9, "{beliefs:.2} of beliefs came true");
}

#[test]
fn a_worker_that_slows_down_gets_less() {
    let outcome = run_whole(&scripted(3, "4s slow 2 4\n9s slow 2 1"), &traffic(18.0));
    let shares = [(0.0, 4.0), (5.0, 9.0)].map(|(from, until)| part(&arrived(&outcome, from, until), 2));
    assert!(shares[1] < 0.8 * shares[0], "{shares:?}");
}

#[test]
fn who_knows_more_of_caches_hits_them_more() {
    let trace = traffic(14.0);
    let [reported, predicted, none] = [Knowledge::Reported, Knowledge::Predicted, Knowledge::None]
        .map(|knowledge| row(&run_whole(&Settings { knowledge, ..fleet(3) }, &trace)).hit_ratio);
    assert!(reported >= predicted - 0.01, "{reported} {predicted}");
    assert!(predicted > none + 0.1, "{predicted} {none}");
}

#[test]
fn late_news_of_caches_cost_hits_and_prompt_ones_come_true() {
    let trace = traffic(14.0);
    let with_delay = |event_delay| {
        // So little room that much is evicted before it is asked for again.
        let engine = Profile { kv_blocks: 1_001, ..ENGINE };
        // One that goes where the news say. The default weighs so much else that with late ones it hits no less.
        let brain = maitre_dispatch::BrainSettings { strategy: Name::Preble, ..fleet(3).brain };
        let outcome = run_whole(&Settings { event_delay, brain, fleet: vec![engine; 3], ..fleet(3) }, &trace);
        (true_beliefs(&outcome.answers), row(&outcome))
    };
    let (prompt, late) = (with_delay(Duration::ZERO), with_delay(Duration::from_secs(4)));
    assert!(prompt.0 > 0.95, "{:.2} of beliefs came true", prompt.0);
    assert!(late.0 < prompt.0 - 0.1, "{:.2} and {:.2}", late.0, prompt.0);
    let (late, prompt) = (late.1, prompt.1);
    assert!(late.hit_ratio < prompt.hit_ratio - 0.02, "{} {}", late.hit_ratio, prompt.hit_ratio);
    assert!(late.ttft_mean_s > 1.1 * prompt.ttft_mean_s, "{} {}", late.ttft_mean_s, prompt.ttft_mean_s);
}

/// Several routers know of each other's requests only what engines report.
#[test]
fn late_scrapes_cost_time_where_routers_know_nothing_else() {
    let trace = traffic(16.0);
    let ttft = |scrape_every, scrape_delay| {
        // This one goes by what engines say of their queues.
        let brain = maitre_dispatch::BrainSettings { strategy: Name::Weighted, ..fleet(3).brain };
        let settings = Settings { brain, scrape_every, scrape_delay, routers: 4, ..fleet(3) };
        row(&run_whole(&settings, &trace)).ttft_mean_s
    };
    let prompt = ttft(Duration::from_millis(20), Duration::ZERO);
    let late = ttft(Duration::from_secs(2), Duration::from_secs(2));
    assert!(late > 1.02 * prompt, "{late} and {prompt}");
}

#[test]
fn four_routers_are_no_better_than_one() {
    let trace = traffic(16.0);
    let ttft = |routers| row(&run_whole(&Settings { routers, ..fleet(3) }, &trace)).ttft_mean_s;
    let (one, four) = (ttft(1), ttft(4));
    assert!(four >= one, "{four} and {one}");
}

#[test]
fn routers_that_share_find_what_one_finds() {
    let trace = traffic(12.0);
    let knowledge = Knowledge::Predicted;
    let played = |routers, sync| {
        let outcome = run_whole(&Settings { routers, sync, knowledge, ..fleet(3) }, &trace);
        (row(&outcome), outcome.talk)
    };
    let (one, _) = played(1, None);
    let (alone, silence) = played(4, None);
    assert!(alone.hit_ratio < 0.8 * one.hit_ratio, "{} and {}", alone.hit_ratio, one.hit_ratio);
    assert_eq!((silence.frames, alone.told_bytes), (0, None));
    for via in [Via::Redis, Via::Mesh] {
        let (shared, talk) = played(4, Some(Sync { via, delay: Duration::from_millis(50) }));
        assert!(
            shared.hit_ratio > 0.95 * one.hit_ratio,
            "{via:?}: {} and {}",
            shared.hit_ratio,
            one.hit_ratio
        );
        assert!(talk.frames > 100 && shared.told_bytes > Some(100.0), "{via:?}: {talk:?}");
    }
}

#[test]
fn bounds_are_bounds_and_the_same_twice() {
    let trace = traffic(14.0);
    let bound = |judge| {
        let run = || run_whole(&Settings { judge, ..fleet(3) }, &trace);
        let seats =
            |it: &Outcome| it.answers.iter().map(|it| (it.worker, it.seen.clone())).collect::<Vec<_>>();
        let outcome = run();
        assert_eq!(seats(&outcome), seats(&run()), "{judge:?}");
        row(&outcome)
    };
    let (oracle, ideal) = (bound(Judge::Oracle), bound(Judge::IdealCache));
    let mut best = f64::MAX;
    for strategy in Name::ALL {
        let brain = maitre_dispatch::BrainSettings { strategy, ..fleet(3).brain };
        let row = row(&run_whole(&Settings { brain, ..fleet(3) }, &trace));
        assert!(row.hit_ratio <= ideal.hit_ratio, "{strategy} hits {}", row.hit_ratio);
        best = best.min(row.ttft_mean_s);
    }
    assert!(oracle.hit_ratio <= ideal.hit_ratio, "{} {}", oracle.hit_ratio, ideal.hit_ratio);
    assert!(ideal.ttft_mean_s < best, "{} beside {best}", ideal.ttft_mean_s);
    assert!(oracle.ttft_mean_s < 1.15 * best, "{} beside {best}", oracle.ttft_mean_s);
}

/// The brain knows nothing of what they seated, so it cannot seat it again.
#[test]
fn a_bound_seats_again_what_a_crash_left() {
    for judge in [Judge::Oracle, Judge::IdealCache] {
        let settings = Settings { judge, ..scripted(2, "5s crash 1\n8s start 1\n9s crash 0\n9s crash 1") };
        let outcome = run(&settings, &traffic(14.0));
        assert!(outcome.failed > 0, "{judge:?}");
        assert!(outcome.refused > 0, "nobody is there any more");
        assert!(outcome.answers.len() > 70, "{judge:?}: {}", outcome.answers.len());
    }
}

/// What one cache holds of a prompt makes it no shorter for the model.
#[test]
fn a_prompt_that_is_too_long_is_refused_however_much_of_it_is_cached() {
    let mut trace = written(&[(0, 0, 100, 5), (10, 0, 200_000, 5), (20, 0, 200_000, 5)]);
    trace.requests[2].prompt = trace.requests[1].prompt.clone();
    for judge in [Judge::Brain, Judge::Oracle, Judge::IdealCache] {
        let outcome = run(&Settings { judge, ..fleet(2) }, &trace);
        assert_eq!(outcome.refused, 2, "{judge:?}");
    }
}

#[test]
fn parts_tell_what_they_lost() {
    let mut trace = written(&[(0, 0, 100, 5), (10, 0, 100, 5), (20, 0, 200_000, 5), (30, 0, 200_000, 5)]);
    let parts = [1, 2, 2, 3];
    trace.requests.iter_mut().zip(parts).for_each(|(it, part)| it.part = part);
    let rows = run(&fleet(2), &trace).parts("it", &Targets::default());
    let told = |it: &Row| (it.part, it.requests, it.refused, it.goodput_ratio);
    assert_eq!(
        rows.iter().map(told).collect::<Vec<_>>(),
        [(Some(1), 1, 0, 1.0), (Some(2), 1, 1, 0.5), (Some(3), 0, 1, 0.0)]
    );
}

/// An action at a worker, of those that a fleet of three has from the beginning.
fn line() -> impl prop::strategy::Strategy<Value = String> {
    let acts =
        ["join 2xh200-8b", "leave N", "drain N", "resume N", "slow N 3", "crash N", "start N", "restart N"];
    (0..3_000_u32, prop::sample::select(acts.to_vec()), 0..3_u32)
        .prop_map(|(millis, act, worker)| format!("{millis}ms {}", act.replace('N', &worker.to_string())))
}

fn request() -> impl prop::strategy::Strategy<Value = (u64, u64, u32, u32)> {
    // When, of which group, how long the prompt's own part is, and the answer. Some never fit.
    (0..3_000_u64, 0..4_u64, prop::sample::select(vec![1_u32, 100, 700, 25_000]), 0..40_u32)
}

fn written(rows: &[(u64, u64, u32, u32)]) -> Trace {
    let mut requests: Vec<Request> = (0..)
        .zip(rows)
        .map(|(number, &(millis, group, own, answer_tokens))| Request {
            // No two at one moment, by which `run` tells them apart.
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
        judge in prop::sample::select(vec![Judge::Brain, Judge::Brain, Judge::Oracle, Judge::IdealCache]),
        (routers, delay_ms, strategy) in (1..4_usize, 0..400_u64, prop::sample::select(Name::ALL.to_vec())),
        via in prop::sample::select(vec![None, Some(Via::Redis), Some(Via::Mesh)]),
        seed in any::<u64>(),
    ) {
        let delay = Duration::from_millis(delay_ms.saturating_sub(100));
        let brain = maitre_dispatch::BrainSettings { strategy, seed, ..fleet(3).brain };
        let settings = Settings {
            brain,
            judge,
            knowledge,
            routers,
            sync: via.map(|via| Sync { via, delay }),
            event_delay: delay,
            scrape_delay: delay,
            ..scripted(3, &lines.join("\n"))
        };
        run(&settings, &written(&rows));
    }
}

/// What is skipped must not be missed: the second request finds what the first one left.
#[test]
fn a_month_of_silence_changes_nothing() {
    let mut trace = traffic(14.0);
    trace.requests.truncate(2);
    trace.requests[0].at = Instant::ZERO;
    trace.requests[1].prompt = trace.requests[0].prompt.clone();
    for days in [0, 30] {
        trace.requests[1].at = Instant::from_millis(5_000 + days * 86_400_000);
        let outcome = run_whole(&fleet(3), &trace);
        let cached: Vec<u32> = outcome.answers.iter().map(|it| it.seen.cached_tokens).collect();
        assert_eq!(cached, [0, 2_192], "after {days} days");
        assert_eq!(true_beliefs(&outcome.answers), 1.0);
    }
}

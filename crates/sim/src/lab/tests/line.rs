//! What waiting in line is good for: each time beside the same traffic before the same engines, where nobody waits.

use std::sync::Arc;

use maitre_queue::settings::{Tenant, Terms};
use maitre_queue::{QueueSettings as Queue, wait_queue};

use super::*;

/// When, of which class, how long; the rest is the same for all.
fn asked(seconds: f64, class: &Arc<str>, prompt_tokens: u32) -> Request {
    let at = moment(seconds);
    let prompt = [Piece { text: 1_000 + at.as_nanos(), tokens: prompt_tokens }].into();
    Request {
        at,
        prompt,
        answer_tokens: 20,
        answer: at.as_nanos(),
        class: Some(class.clone()),
        ..Request::default()
    }
}

/// So many a second by dice, until so many seconds.
fn stream(per_second: f64, seconds: f64, asked: impl Fn(f64) -> Request) -> Vec<Request> {
    let (mut rng, mut now, mut requests) = (Rng::new(3), 0.0, Vec::new());
    while now < seconds {
        now += rng.exponential(1.0 / per_second);
        requests.push(asked(now));
    }
    requests
}

fn trace(parts: impl IntoIterator<Item = Vec<Request>>) -> Trace {
    let mut requests: Vec<Request> = parts.into_iter().flatten().collect();
    requests.sort_by_key(|it| it.at);
    Trace { requests }
}

/// Two workers, with a line or without.
fn settings(change: impl FnOnce(&mut Queue)) -> Settings {
    let mut settings = fleet(2);
    settings.brain.queue = Queue::default();
    change(&mut settings.brain.queue);
    settings
}

/// Plays it with the line as changed, and without one. (Not `run`: clients that come again may do so at one moment.)
fn both(trace: &Trace, change: impl FnOnce(&mut Queue)) -> [Outcome; 2] {
    let prepared = PreparedTrace::new(trace, 16);
    [settings(change), settings(|it| it.enabled = false)].map(|it| play(&it, &prepared, &mut ()))
}

fn of_class(outcome: &Outcome, class: &str) -> Row {
    let rows = outcome.classes("it", &Targets::default());
    rows.into_iter().find(|it| it.class.as_deref() == Some(class)).unwrap()
}

fn names() -> [Arc<str>; 2] {
    ["interactive", "batch"].map(Arc::from)
}

#[test]
fn a_burst_of_jobs_hurts_chats_little_in_line_and_much_without() {
    let [chat, job] = names();
    let jobs = (0..40).map(|it| asked(2.0 + f64::from(it) * 1e-3, &job, 8_000)).collect();
    let trace = trace([stream(6.0, 12.0, |it| asked(it, &chat, 500)), jobs]);
    let [with, without] = both(&trace, |_| ());
    assert_eq!((with.refused, with.failed), (0, 0));
    let [with, without] = [&with, &without].map(|it| of_class(it, "interactive").ttft_p90_s);
    assert!(with < 0.25 * without, "{with:.2} s and {without:.2} s");
    assert!(with < 1.0, "{with:.2} s");
}

#[test]
fn in_overload_chats_keep_their_target_and_whoever_comes_again_is_served() {
    let [chat, job] = names();
    let jobs = stream(8.0, 10.0, |it| asked(it, &job, 6_000));
    let trace = trace([stream(4.0, 10.0, |it| asked(it + 1e-6, &chat, 500)), jobs]);
    let prepared = PreparedTrace::new(&trace, 16);
    let bounded = |it: &mut Queue| it.classes[2].requests_max = 8;
    let outcome = play(&settings(bounded), &prepared, &mut ());
    assert!(outcome.refused > 20, "it is no overload: {}", outcome.refused);
    let returning = Settings { returns_max: 100, ..settings(bounded) };
    let outcome = play(&returning, &prepared, &mut ());
    assert_eq!((outcome.refused, outcome.failed), (0, 0));
    assert_eq!(outcome.answers.len(), trace.requests.len());
    assert!(outcome.returns < 4 * trace.requests.len() as u64, "{} came again", outcome.returns);
    let kept = of_class(&outcome, "interactive").goodput_ratio;
    assert!(kept > 0.95, "{kept}");
}

/// The part that the first of two tenants has of what is done while both wait.
#[track_caller]
fn check_share(weight: f64, expected: std::ops::Range<f64>) {
    let [_, job] = names();
    let of = |tenant: u64| {
        (0..60_u32).map(move |it| (it, tenant)).map(|(it, tenant)| Request {
            tenant,
            ..asked(
                f64::from(it) * 1e-3 + tenant as f64 * 1e-4,
                &job,
                if tenant == 1 { 3_000 } else { 1_500 },
            )
        })
    };
    let trace = trace([of(1).collect(), of(2).collect()]);
    let outcome = play(
        &settings(|it| {
            let terms = Terms { weight, ..Terms::default() };
            it.tenants.insert(maitre_base::TenantId(1), Tenant { name: "one".to_owned(), terms });
        }),
        &PreparedTrace::new(&trace, 16),
        &mut (),
    );
    let soon = &outcome.answers[..40];
    let tokens = |tenant: u64| {
        let own = soon.iter().filter(|it| it.seen.label.tenant == tenant);
        own.map(|it| f64::from(it.seen.prompt_tokens + it.seen.answer_tokens)).sum::<f64>()
    };
    let share = tokens(1) / (tokens(1) + tokens(2));
    assert!(expected.contains(&share), "{share:.3} with weight {weight}");
}

#[test]
fn tenants_share_by_weight_whatever_the_size_of_their_prompts() {
    check_share(1.0, 0.42..0.58);
    check_share(3.0, 0.67..0.83);
}

#[test]
fn more_deadlines_are_met_in_line_and_nobody_is_served_late() {
    let [chat, _] = names();
    let patient = |it: f64| (it * 1e6) as u64 % 3;
    let trace = trace([stream(14.0, 10.0, |it| Request {
        deadline: Some(Duration::from_millis([400, 1_500, 4_000][patient(it) as usize])),
        ..asked(it, &chat, 2_500)
    })]);
    let [with, without] = both(&trace, |_| ()).map(|it| row(&it));
    assert_eq!(with.served_late, Some(0));
    assert!(without.served_late > Some(10), "it is no overload: {:?}", without.served_late);
    let [with, without] = [with, without].map(|it| it.deadlines_met_ratio.unwrap());
    assert!(with > without + 0.1, "{with:.2} and {without:.2}");
}

/// Everything at once: classes, tenants, deadlines, recalls, a crash, and clients that come again.
#[test]
fn a_run_in_line_is_the_same_twice() {
    let [chat, job] = names();
    let urgent = |it| Request { deadline: Some(Duration::from_millis(300)), ..asked(it, &chat, 500) };
    let jobs = stream(5.0, 6.0, |it| Request { tenant: (it * 1e6) as u64 % 3, ..asked(it, &job, 6_000) });
    let trace = trace([stream(10.0, 6.0, |it| urgent(it + 1e-6)), jobs]);
    let prepared = PreparedTrace::new(&trace, 16);
    let mut settings = Settings { returns_max: 3, ..settings(|it| it.recall = true) };
    settings.brain.queue.classes[2].requests_max = wait_queue::LOOK as u32;
    settings.script = "3s crash 1\n4s start 1".parse().unwrap();
    let seats = || {
        let outcome = play(&settings, &prepared, &mut ());
        let answers = outcome.answers.iter().map(|it| (it.worker, it.seen.clone())).collect::<Vec<_>>();
        (answers, outcome.refused, outcome.failed, outcome.returns)
    };
    let first = seats();
    assert!(first.3 > 0, "nobody came again");
    assert_eq!(first, seats());
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(48))]

    /// That nobody is lost and no promise outlives its request is asserted in `play`.
    #[test]
    fn whoever_waits_ends_once_whatever_is_done_to_the_fleet(
        acts in prop::collection::vec(super::line(), 0..6),
        rows in prop::collection::vec((request(), 0..3_usize, 0..6_usize), 1..60),
        (returns_max, event_delay_ms, recall) in (0..3_u32, 0..100_u64, any::<bool>()),
    ) {
        let mut trace = written(&rows.iter().map(|it| it.0).collect::<Vec<_>>());
        let deadlines = [None, None, None, Some(100), Some(170), Some(800)];
        for (request, row) in trace.requests.iter_mut().zip(&rows) {
            request.class = Some(["interactive", "standard", "batch"][row.1].into());
            request.deadline = deadlines[row.2].map(Duration::from_millis);
        }
        let settings = Settings {
            returns_max,
            event_delay: Duration::from_millis(event_delay_ms.saturating_sub(50)),
            fleet: fleet(3).fleet,
            script: acts.join("\n").parse().unwrap(),
            ..settings(|it| {
                (it.recall, it.prefill_tokens_max) = (recall, 1_000);
                // Without one, whoever waits for a fleet that never comes back waits for ever, and so do we.
                it.classes[2].deadline = Some(Duration::from_secs(60));
            })
        };
        let outcome = play(&settings, &PreparedTrace::new(&trace, 16), &mut ());
        let ended = outcome.answers.len() as u64 + outcome.refused + outcome.failed;
        assert_eq!(ended, trace.requests.len() as u64);
        assert!(!outcome.answers.iter().any(|it| it.seen.is_late()), "served late");
    }
}

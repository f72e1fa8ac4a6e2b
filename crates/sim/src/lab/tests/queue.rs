//! Benefits of the queue: each test compares a run with the same traffic on the same engines without a queue.

use std::sync::Arc;

use maitre_queue::settings::{Tenant, Terms};
use maitre_queue::{QueueSettings as Queue, wait_queue};

use super::*;

/// Arrival, class and length; the rest is the same for all.
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

/// Random arrivals at this rate until this many seconds.
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

/// Two workers, with a queue or without.
fn config(change: impl FnOnce(&mut Queue)) -> LabConfig {
    let mut config = fleet(2);
    config.brain.queue = Queue::default();
    change(&mut config.brain.queue);
    config
}

/// Runs with the changed queue and without one. (Not `run`: retries may coincide.)
fn both(trace: &Trace, change: impl FnOnce(&mut Queue)) -> [RunOutcome; 2] {
    let prepared = PreparedTrace::new(trace, 16);
    [config(change), config(|it| it.enabled = false)].map(|it| play(&it, &prepared, &mut ()))
}

fn of_class(outcome: &RunOutcome, class: &str) -> ReportRow {
    let rows = outcome.classes("it", &Targets::default());
    rows.into_iter().find(|it| it.class.as_deref() == Some(class)).unwrap()
}

fn names() -> [Arc<str>; 2] {
    ["interactive", "batch"].map(Arc::from)
}

#[test]
fn a_burst_of_jobs_hurts_chats_little_with_a_queue_and_much_without() {
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
fn in_overload_chats_keep_their_target_and_retries_are_served() {
    let [chat, job] = names();
    let jobs = stream(8.0, 10.0, |it| asked(it, &job, 6_000));
    let trace = trace([stream(4.0, 10.0, |it| asked(it + 1e-6, &chat, 500)), jobs]);
    let prepared = PreparedTrace::new(&trace, 16);
    let bounded = |it: &mut Queue| it.classes[2].requests_max = 8;
    let outcome = play(&config(bounded), &prepared, &mut ());
    assert!(outcome.refused > 20, "it is no overload: {}", outcome.refused);
    let returning = LabConfig { retries_max: 100, ..config(bounded) };
    let outcome = play(&returning, &prepared, &mut ());
    assert_eq!((outcome.refused, outcome.failed), (0, 0));
    assert_eq!(outcome.answers.len(), trace.requests.len());
    assert!(outcome.returns < 4 * trace.requests.len() as u64, "{} came again", outcome.returns);
    let kept = of_class(&outcome, "interactive").goodput_ratio;
    assert!(kept > 0.95, "{kept}");
}

/// The first tenant's share of the work done while both wait.
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
        &config(|it| {
            let terms = Terms { weight, ..Terms::default() };
            it.tenants.insert(maitre_base::TenantId(1), Tenant { name: "one".to_owned(), terms });
        }),
        &PreparedTrace::new(&trace, 16),
        &mut (),
    );
    let soon = &outcome.answers[..40];
    let tokens = |tenant: u64| {
        let own = soon.iter().filter(|it| it.metrics.label.tenant == tenant);
        own.map(|it| f64::from(it.metrics.prompt_tokens + it.metrics.answer_tokens)).sum::<f64>()
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
fn a_queue_meets_more_deadlines_and_serves_none_late() {
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

/// Everything at once: classes, tenants, deadlines, recalls, a crash, and retries.
#[test]
fn a_run_with_a_queue_is_reproducible() {
    let [chat, job] = names();
    let urgent = |it| Request { deadline: Some(Duration::from_millis(300)), ..asked(it, &chat, 500) };
    let jobs = stream(5.0, 6.0, |it| Request { tenant: (it * 1e6) as u64 % 3, ..asked(it, &job, 6_000) });
    let trace = trace([stream(10.0, 6.0, |it| urgent(it + 1e-6)), jobs]);
    let prepared = PreparedTrace::new(&trace, 16);
    let mut config = LabConfig { retries_max: 3, ..config(|it| it.recall = true) };
    config.brain.queue.classes[2].requests_max = wait_queue::LOOK as u32;
    config.script = "3s crash 1\n4s start 1".parse().unwrap();
    let seats = || {
        let outcome = play(&config, &prepared, &mut ());
        let answers = outcome.answers.iter().map(|it| (it.worker, it.metrics.clone())).collect::<Vec<_>>();
        (answers, outcome.refused, outcome.failed, outcome.returns)
    };
    let first = seats();
    assert!(first.3 > 0, "no client retried");
    assert_eq!(first, seats());
}

proptest! {
    #![proptest_config(prop::test_runner::Config::with_cases(48))]

    /// `play` asserts that no request is lost and no promise outlives its request.
    #[test]
    fn every_waiting_request_ends_once_under_any_fleet_changes(
        actions in prop::collection::vec(super::line(), 0..6),
        rows in prop::collection::vec((request(), 0..3_usize, 0..6_usize), 1..60),
        (retries_max, event_delay_ms, recall) in (0..3_u32, 0..100_u64, any::<bool>()),
    ) {
        let mut trace = written(&rows.iter().map(|it| it.0).collect::<Vec<_>>());
        let deadlines = [None, None, None, Some(100), Some(170), Some(800)];
        for (request, row) in trace.requests.iter_mut().zip(&rows) {
            request.class = Some(["interactive", "standard", "batch"][row.1].into());
            request.deadline = deadlines[row.2].map(Duration::from_millis);
        }
        let config = LabConfig {
            retries_max,
            event_delay: Duration::from_millis(event_delay_ms.saturating_sub(50)),
            fleet: fleet(3).fleet,
            script: actions.join("\n").parse().unwrap(),
            ..config(|it| {
                (it.recall, it.prefill_tokens_max) = (recall, 1_000);
                // Without one, requests for a fleet that never returns would wait for ever.
                it.classes[2].deadline = Some(Duration::from_secs(60));
            })
        };
        let outcome = play(&config, &PreparedTrace::new(&trace, 16), &mut ());
        let ended = outcome.answers.len() as u64 + outcome.refused + outcome.failed;
        assert_eq!(ended, trace.requests.len() as u64);
        assert!(!outcome.answers.iter().any(|it| it.metrics.is_late()), "served late");
    }
}

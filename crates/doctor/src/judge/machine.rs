//! Metrics, speed, clocks, file descriptors.

use std::time::Duration;

use maitre_dialect::engine::{EngineKind, Need};

use super::{groups, router, workers};
use crate::code::Code;
use crate::facts::{Fleet, Metered, OpenAdmin, Worker};
use crate::report::{Finding, Outcome};

/// A worker is slow if it takes this many times as long as its peers,
const SLOW_TIMES: f64 = 3.0;
/// and at least this much longer: smaller differences are network and scheduler noise.
const SLOW_BY: Duration = Duration::from_millis(50);

/// Maximum clock difference. A `date` header counts whole seconds.
const CLOCK_SECONDS_MAX: f64 = 2.0;

/// File descriptors beside those of requests: probes and events for each worker, and a few of our own.
const PER_WORKER: u64 = 4;
const OWN: u64 = 64;

pub(super) fn metrics(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut read = 0;
    for worker in fleet.present().filter(|it| it.kind != EngineKind::Generic) {
        let what = match &worker.metered {
            Metered::Read(_) => {
                read += 1;
                continue;
            }
            Metered::Missing { path, status } => format!("{path} answers {status}"),
            Metered::Foreign(why) => format!("no load in its metrics: {why}"),
        };
        let start = worker.kind.advice(Need::Metrics);
        outcome.find(Finding::at(&worker.url, Code::MetricsMissing, what, format!("start it {start}")));
    }
    outcome.said = format!("read from {}", workers(read));
    outcome
}

pub(super) fn speed(fleet: &Fleet) -> Outcome {
    let learned = |worker: &Worker| {
        let page = &fleet.admin()?.page;
        let label = [("worker", worker.url.as_str())];
        router::value(page, "maitre_worker_first_token_floor_seconds", &label).map(Duration::from_secs_f64)
    };
    let is_measured = fleet.present().any(|it| it.first_token.is_some());
    let read = |worker: &Worker| if is_measured { worker.first_token } else { learned(worker) };
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    for group in groups(fleet) {
        let times: Vec<(&Worker, Duration)> = group.iter().filter_map(|it| Some((*it, read(it)?))).collect();
        for (worker, time) in &times {
            let others = times.iter().filter(|it| it.0.url != worker.url).map(|it| it.1);
            let Some(usual) = median(others.collect()) else { continue };
            if time.as_secs_f64() > SLOW_TIMES * usual.as_secs_f64() && *time > usual + SLOW_BY {
                outcome.find(slow(worker, *time, usual));
            }
        }
        said.extend(median(times.iter().map(|it| it.1).collect()).map(|it| format!("{} ms", it.as_millis())));
    }
    outcome.said = match said.is_empty() {
        true => "not measured".to_owned(),
        false => format!("a first token takes {}", said.join("; ")),
    };
    outcome
}

fn slow(worker: &Worker, time: Duration, usual: Duration) -> Finding {
    let (time, usual) = (time.as_millis(), usual.as_millis());
    Finding::at(
        &worker.url,
        Code::Slow,
        format!("takes {time} ms to the first token of a tiny prompt, its peers {usual} ms"),
        "check what else runs there: other traffic, a throttled, shared or smaller GPU, a slow network; \
         least-delay learns it and sends less there",
    )
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}

pub(super) fn machine(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut known = 0;
    for worker in fleet.present() {
        let Some(ahead) = worker.clock_ahead else { continue };
        known += 1;
        if ahead.abs() > CLOCK_SECONDS_MAX {
            let side = if ahead > 0.0 { "ahead of" } else { "behind" };
            outcome.find(Finding::at(
                &worker.url,
                Code::ClockOff,
                format!("its clock is {:.0} s {side} this machine's", ahead.abs()),
                "synchronise both clocks with NTP; logs and maitre_events_lag_seconds are off by this much",
            ));
        }
    }
    let descriptors = descriptors(fleet, &mut outcome);
    outcome.findings.extend(fleet.here.open_admin.map(open_admin));
    outcome.said = format!("clocks compared with {}; {descriptors}", workers(known));
    outcome
}

fn open_admin(OpenAdmin { at, with_key }: OpenAdmin) -> Finding {
    let (what, fix) = match with_key {
        true => (
            format!(
                "other machines can reach the admin listener at {at} without TLS: the admin key crosses the network in clear text"
            ),
            "set admin_tls.cert and admin_tls.key, or set admin to a loopback address as in 127.0.0.1:8081",
        ),
        false => (
            format!(
                "the settings open the admin listener to other machines at {at}, without a key and without TLS"
            ),
            "set admin to 127.0.0.1:8081, or put it behind a firewall that admits only operators",
        ),
    };
    Finding::general(Code::AdminOpen, what, fix)
}

/// Whose limit applies: the router's own if it reports one; this process's if there is no router yet.
fn descriptors(fleet: &Fleet, outcome: &mut Outcome) -> String {
    let told = fleet.admin().and_then(|it| router::value(&it.page, "process_max_fds", &[]));
    let (limit, whose) = match (told, &fleet.router, fleet.here.descriptors) {
        (Some(told), _, _) => (told as u64, "the router"),
        (None, None, Some(limit)) => (limit, "a router started from here"),
        _ => return "the limit on file descriptors is unknown".to_owned(),
    };
    let (here, count) = (&fleet.here, fleet.workers.len() as u64);
    // Each connection to a worker belongs to a client's request, or idles after one.
    let lines = here.connections.min(here.idle_per_worker.saturating_mul(here.threads).saturating_mul(count));
    let wanted = here.connections + lines + PER_WORKER * count + OWN;
    if limit < wanted {
        outcome.find(Finding::general(
            Code::Descriptors,
            format!(
                "{whose} may open {limit} files; limits.connections = {} can need {wanted}",
                here.connections
            ),
            format!(
                "start it after `ulimit -n {wanted}`, or with LimitNOFILE={wanted} under systemd; \
                 or set limits.connections lower"
            ),
        ));
    }
    let limit = if limit == u64::MAX { "any number of".to_owned() } else { limit.to_string() };
    format!("{whose} may open {limit} files, and can need {wanted}")
}

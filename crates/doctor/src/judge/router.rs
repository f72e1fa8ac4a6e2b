//! Judges what a running router reports: is it ready, which workers does it trust, what is its hit ratio?

use maitre_dialect::engine::Need;
use maitre_dialect::exposition;

use super::workers;
use crate::code::Code;
use crate::facts::{Admin, Asked, Events, Fleet, Metered, Published, Replay, Stream, Worker};
use crate::report::{Finding, Outcome};

/// Fewer tokens than this give no meaningful ratio.
const TOKENS_MIN: f64 = 100_000.0;
/// A hit ratio below this counts as no hits.
const HITS_MIN: f64 = 0.01;
/// Predictions that hold less often than this are wrong.
const TRUE_MIN: f64 = 0.1;
/// A request that has waited longer than this for its first token shows that the fleet is overloaded.
const WAIT_MAX: f64 = 5.0;
/// A certificate with less time left than this, and than a tenth of its life, should have been renewed.
const CERTIFICATE_MIN: f64 = 2.0 * 86_400.0;
/// With fewer prompts than this, how they were tokenized does not matter.
const PROMPTS_MIN: f64 = 100.0;

pub(super) fn router(fleet: &Fleet) -> Outcome {
    let Some(router) = &fleet.router else {
        return Outcome::said("not checked: give --admin-url and --router");
    };
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    match &router.admin {
        None => {}
        Some(Err(why)) => outcome.find(unreachable(why, "--admin-url")),
        Some(Ok(admin)) => {
            said.push(if admin.is_ready { "ready" } else { "not ready" }.to_owned());
            of_admin(fleet, admin, &mut outcome);
        }
    }
    match &router.front {
        None => {}
        Some(Err(why)) => outcome.find(unreachable(why, "--router")),
        Some(Ok(models)) => {
            let plural = if models.len() == 1 { "" } else { "s" };
            said.push(format!("offers {} model{plural}", models.len()));
            of_front(fleet, models, &mut outcome);
        }
    }
    outcome.said = if said.is_empty() { "does not answer".to_owned() } else { said.join(", ") };
    outcome
}

fn unreachable(why: &str, flag: &str) -> Finding {
    let fix = format!("start `maitre serve`, or fix {flag}");
    Finding::general(Code::RouterUnreachable, why, fix)
}

/// The first sample of this name that has these labels.
pub(super) fn value(page: &[u8], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let fits = |it: &exposition::Sample<'_>| {
        labels.iter().all(|(key, want)| it.label(key).as_deref() == Some(*want))
    };
    exposition::samples(page).find(|it| it.name == name && fits(it)).map(|it| it.value)
}

fn sum(page: &[u8], name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |it: &exposition::Sample<'_>| {
        labels.iter().all(|(key, want)| it.label(key).as_deref() == Some(*want))
    };
    exposition::samples(page).filter(|it| it.name == name && fits(it)).map(|it| it.value).sum()
}

/// Each worker with the value of `label` on its gauge that is 1.
fn holding(page: &[u8], name: &str, label: &str) -> Vec<(String, String)> {
    let samples = exposition::samples(page).filter(|it| it.name == name && it.value == 1.0);
    samples.filter_map(|it| Some((it.label("worker")?.into_owned(), it.label(label)?.into_owned()))).collect()
}

/// A worker's URL without its rank.
fn address(label: &str) -> &str {
    label.split_once('#').map_or(label, |it| it.0)
}

fn of_admin(fleet: &Fleet, admin: &Admin, outcome: &mut Outcome) {
    let page = &admin.page;
    if !admin.is_ready {
        outcome.find(Finding::general(
            Code::RouterNotReady,
            format!("/readyz of {} says: {}", admin.url, admin.said),
            "fix the workers named here; if it is draining, wait for the next process",
        ));
    }
    let states = holding(page, "maitre_worker_state", "state");
    for worker in fleet.present() {
        let own: Vec<&str> =
            states.iter().filter(|it| address(&it.0) == worker.url).map(|it| it.1.as_str()).collect();
        if own.is_empty() && !states.is_empty() {
            outcome.find(Finding::at(
                &worker.url,
                Code::WorkerUnknown,
                format!("the router at {} has no such worker", admin.url),
                "add it to workers and restart the router, or leave it out here",
            ));
        }
        // A worker that fails doctor's request is out for that reason, which is a finding of its own.
        let is_known = matches!(worker.asked, Asked::Failed { .. });
        let out = own.iter().find(|it| matches!(**it, "ejected" | "suspect" | "probing"));
        if let Some(state) = out.filter(|_| !is_known) {
            outcome.find(Finding::at(
                &worker.url,
                Code::WorkerEjected,
                format!("the router has it as {state}, although it answers here"),
                "the router's log and its page say what failed; if it was no connection or a timeout, check the \
                 network between the two",
            ));
        }
        of_worker(worker, page, outcome);
    }
    of_caches(fleet, page, outcome);
    of_prompts(page, outcome);
    of_certificates(admin, outcome);
    of_other_routers(page, outcome);
    of_queue(page, outcome);
}

fn of_certificates(admin: &Admin, outcome: &mut Outcome) {
    let name = "maitre_tls_certificate_expires_timestamp_seconds";
    for sample in exposition::samples(&admin.page).filter(|it| it.name == name) {
        let section = sample.label("section").unwrap_or_default();
        let begins =
            value(&admin.page, "maitre_tls_certificate_begins_timestamp_seconds", &[("section", &section)]);
        let tenth = (sample.value - begins.unwrap_or(0.0)) / 10.0;
        let left = sample.value - admin.read_at;
        if left < CERTIFICATE_MIN.min(tenth) {
            let when = if left < 0.0 {
                "expired".to_owned()
            } else {
                format!("expires in {:.0} hours", left / 3_600.0)
            };
            outcome.find(Finding::general(
                Code::CertificateExpires,
                format!("the router's certificate {section}.cert {when}"),
                "replace the files; the router reads them within two seconds",
            ));
        }
    }
}

fn of_other_routers(page: &[u8], outcome: &mut Outcome) {
    let lost = sum(page, "maitre_cluster_routers", &[("state", "lost")]);
    let is_alone = value(page, "maitre_cluster_connected", &[]) == Some(0.0);
    if lost > 0.0 || is_alone {
        let what = if is_alone {
            "it is connected to no other router".to_owned()
        } else if lost == 1.0 {
            "another router has sent nothing for three seconds".to_owned()
        } else {
            format!("{lost} other routers have sent nothing for three seconds")
        };
        let share = 100.0 * value(page, "maitre_cluster_limit_share", &[]).unwrap_or(1.0);
        outcome.find(Finding::general(
            Code::RoutersLost,
            format!("{what}; it decides without them and admits {share:.0} % of each tenant's limits"),
            "check that Redis or the other routers run and can be reached; its log says what fails",
        ));
    }
}

fn of_queue(page: &[u8], outcome: &mut Outcome) {
    let waiting = sum(page, "maitre_queue_requests", &[]);
    let longest = value(page, "maitre_first_token_longest_wait_seconds", &[]).unwrap_or(0.0);
    if waiting > 0.0 && longest > WAIT_MAX {
        let late = sum(page, "maitre_queue_refusals_total", &[("reason", "deadline")]);
        outcome.find(Finding::general(
            Code::Overloaded,
            format!(
                "{waiting} requests wait in the queue, and the longest wait for a first token is {longest:.0} s; {late} were \
                 refused since it started because they would have been late"
            ),
            "add workers (maitre_desired_workers says how many), or set rpm and tpm for tenants that send too much",
        ));
    }
    let full = sum(page, "maitre_queue_refusals_total", &[("reason", "queue_full")]);
    if full > 0.0 {
        outcome.find(Finding::general(
            Code::QueueFull,
            format!("{full} requests were refused since it started because the queue was full"),
            "add workers (`maitre tune` finds how many), or allow more with ?requests= and ?tokens= of the class",
        ));
    }
}

fn of_worker(worker: &Worker, page: &[u8], outcome: &mut Outcome) {
    let is_drained = |it: &exposition::Sample<'_>| {
        it.name == "maitre_worker_drained"
            && it.value == 1.0
            && it.label("worker").is_some_and(|it| address(&it) == worker.url)
    };
    if exposition::samples(page).any(|it| is_drained(&it)) {
        outcome.find(Finding::at(
            &worker.url,
            Code::WorkerDrained,
            "an operator drained it at this router: it gets no requests",
            format!("`maitre drain {} --resume` sends it requests again", worker.url),
        ));
    }
    let trust = holding(page, "maitre_worker_trust", "trust");
    let own = trust.iter().find(|it| address(&it.0) == worker.url).map(|it| it.1.as_str());
    // If events fail as seen from here, that is the finding.
    let is_well =
        matches!(&worker.events, Events::At(Published { stream: Stream::Open | Stream::Heard { .. }, .. }));
    if let (true, Some(trust @ ("none" | "suspect"))) = (is_well, own) {
        outcome.find(Finding::at(
            &worker.url,
            Code::EventsUntrusted,
            format!("its events can be received here, but the router's trust in them is {trust}"),
            "open its event and replay ports to the router's machine, and check events.enabled, events.endpoint and events.topic there",
        ));
    }
    for (label, _) in trust.iter().filter(|it| it.1 == "cold" && address(&it.0) == worker.url) {
        outcome.find(cold(worker, label, page));
    }
    let label = [("worker", worker.url.as_str())];
    let unreadable = sum(page, "maitre_events_unreadable_total", &label);
    if unreadable > 0.0 {
        outcome.find(Finding::at(
            &worker.url,
            Code::EventsUnreadable,
            format!("the router could not read {unreadable} of its batches"),
            "the engine is newer than this Maitre: update Maitre",
        ));
    }
    let is_stale = value(page, "maitre_worker_report_stale", &label) == Some(1.0);
    if is_stale && matches!(worker.metered, Metered::Read(_)) {
        outcome.find(Finding::at(
            &worker.url,
            Code::MetricsStale,
            "its metrics can be read here, but the router's copy is older than 3.5 s",
            "check whether the router's machine reaches its /metrics in time (probes.timeout)",
        ));
    }
}

/// A worker, or a rank of one, whose events the router has not heard from the beginning.
fn cold(worker: &Worker, label: &str, page: &[u8]) -> Finding {
    let labels = [("worker", label)];
    let number = |name| value(page, name, &labels);
    let replay = match &worker.events {
        Events::At(published) => &published.replay,
        _ => &Replay::Unasked,
    };
    let (why, fix) = match replay {
        Replay::Absent => {
            ("and it offers no replay", format!("start it {}", worker.kind.advice(Need::Replay)))
        }
        Replay::Fails { .. } => ("and its replay does not answer", "open its replay port".to_owned()),
        Replay::Answers | Replay::Unasked => (
            "and its replay does not reach back",
            format!("start it {}", worker.kind.advice(Need::LongReplay)),
        ),
    };
    let blocks = match (number("maitre_worker_cached_blocks"), number("maitre_worker_engine_blocks")) {
        (Some(known), Some(all)) if !label.contains('#') => {
            format!("; it knows {known:.0} of {all:.0} blocks")
        }
        _ => String::new(),
    };
    let unplaced = 100.0 * number("maitre_worker_unplaced_ratio").unwrap_or(0.0);
    Finding::at(
        label,
        Code::EventsCold,
        format!(
            "the router does not know what it stored before its first event, {why}{blocks}. {unplaced:.0} % of what it \
             stored lately builds on that; there the router counts on its own requests alone and sees no evictions"
        ),
        format!(
            "wait: it becomes fresh by itself once that is at most 5 % over a cache full of tokens (131,072 at most), or \
             when the engine's cache is reset. To avoid it, {fix}"
        ),
    )
}

fn of_caches(fleet: &Fleet, page: &[u8], outcome: &mut Outcome) {
    let total = |name: &str| sum(page, name, &[]);
    let (prompt, cached, held) = (
        total("maitre_prompt_tokens_total"),
        total("maitre_cached_tokens_total"),
        total("maitre_expected_cached_tokens_total"),
    );
    let trust = holding(page, "maitre_worker_trust", "trust");
    let is_blind = !trust.is_empty() && trust.iter().all(|it| it.1 == "none");
    if prompt >= TOKENS_MIN && cached < HITS_MIN * prompt && is_blind {
        outcome.find(Finding::general(
            Code::HitsNone,
            format!(
                "{cached:.0} of {prompt:.0} prompt tokens were cached, and no worker's events are received"
            ),
            format!(
                "enable KV events at the {} (docs/engines.md), and use a strategy that uses caches",
                workers(fleet.workers.len())
            ),
        ));
    }
    let believes_too_little = !is_blind && cached >= TOKENS_MIN && held < TRUE_MIN * cached;
    let believes_too_much = held >= TOKENS_MIN && cached < TRUE_MIN * held;
    if believes_too_little || believes_too_much {
        outcome.find(Finding::general(
            Code::BeliefsWrong,
            format!("engines found {cached:.0} prompt tokens cached, the router expected {held:.0}"),
            "check that tokenizers are the engines' own (doctor with the router's settings compares them), \
             and that no other router sends to these workers",
        ));
    }
}

fn of_prompts(page: &[u8], outcome: &mut Outcome) {
    let name = "maitre_prompts_read_total";
    let mut models: Vec<String> = exposition::samples(page)
        .filter(|it| it.name == name)
        .filter_map(|it| it.label("model").map(std::borrow::Cow::into_owned))
        .collect();
    models.sort_unstable();
    models.dedup();
    for model in models {
        let of = |level| sum(page, name, &[("model", &model), ("level", level)]);
        let (words, better) = (of("words"), of("given") + of("exact") + of("engine"));
        let is_reported = holding(page, "maitre_worker_trust", "trust").iter().any(|it| it.1 != "none");
        if is_reported && words >= PROMPTS_MIN && words > better {
            outcome.find(Finding::general(
                Code::PromptsUnread,
                format!("{words} prompts of {model} were read as bytes and {better} as tokens: no events match those"),
                format!("set tokenizers.\"{model}\" to the model's folder; if it is set, its template could not be rendered"),
            ));
        }
    }
}

fn of_front(fleet: &Fleet, offered: &[String], outcome: &mut Outcome) {
    for worker in fleet.present() {
        let models = worker.models();
        let missing = models.iter().find(|it| !offered.contains(&it.id));
        if let Some(model) = missing {
            outcome.find(Finding::at(
                &worker.url,
                Code::RouterModels,
                format!("serves {}, which the router does not offer", model.id),
                "add the worker to the router; if it is there, check whether it is ready there",
            ));
        }
    }
}

//! Gathers facts about a fleet: opens all the sockets and judges nothing.
//!
//! Workers are examined concurrently, a bounded number at once. A missing answer is a fact like any other;
//! nothing here fails.

mod events;
mod handoff;
mod requests;
mod router;
mod tokens;

use std::sync::Arc;

use maitre_base::Role;
use maitre_dialect::engine::{self, EngineKind, ProbeReply};
use maitre_dialect::models;
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsConfigError;
use maitre_net::worker_url::WorkerUrl;
use maitre_proxy::RouterSettings;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::DoctorPlan;
use super::client::{DoctorClient, HttpPage, Question, short};
use super::clock;
use super::facts::{Asked, Events, Fleet, Here, Listed, Metered, OpenAdmin, Reach, Unanswered, Worker};
use tokens::Tokenizers;

/// Workers examined concurrently.
const AT_ONCE: usize = 8;

/// What examining a worker needs.
struct Tools {
    plan: DoctorPlan,
    dialer: Arc<Dialer>,
    tokenizers: Tokenizers,
}

/// Examines everything the plan names. Fails only if the settings' TLS files cannot be used, as the router
/// would.
pub async fn look(plan: &DoctorPlan) -> Result<Fleet, TlsConfigError> {
    let dialer = Arc::new(Dialer::load("worker_tls", &plan.settings.worker_tls)?);
    let router = router::look(plan).await;
    let workers = match plan.settings.workers.is_empty() {
        true => router.as_ref().map(router::workers).unwrap_or_default(),
        false => plan.settings.workers.clone(),
    };
    let (tokenizers, unusable) = Tokenizers::load(&plan.settings.tokenizers);
    let tools = Arc::new(Tools { plan: plan.clone(), dialer, tokenizers });
    let mut looked = side_by_side(workers.iter().cloned(), |worker| look_at(tools.clone(), worker)).await;
    // Last, after the workers have answered all other requests.
    if plan.requests {
        let targets = looked.iter().zip(&workers).map(|(facts, worker)| {
            let asked = matches!(facts.asked, Asked::Answered(_));
            (asked.then(|| requests::model(facts)).flatten(), worker.clone())
        });
        let times = side_by_side(targets, |(model, worker)| time(tools.clone(), model, worker)).await;
        for (facts, time) in looked.iter_mut().zip(times) {
            facts.first_token = time;
        }
    }
    Ok(Fleet { workers: looked, router, here: here(plan, unusable) })
}

/// Runs the same for each item, a few at once; returns results in the order of the items.
async fn side_by_side<T, U, F>(items: impl Iterator<Item = T>, work: impl Fn(T) -> F) -> Vec<U>
where
    U: Send + 'static,
    F: Future<Output = U> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for (number, item) in items.enumerate() {
        let (permits, work) = (permits.clone(), work(item));
        tasks.spawn(async move {
            // The semaphore is never closed.
            let _permit = permits.acquire().await;
            (number, work.await)
        });
    }
    let mut done = tasks.join_all().await;
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|it| it.1).collect()
}

async fn time(tools: Arc<Tools>, model: Option<String>, worker: WorkerUrl) -> Option<std::time::Duration> {
    requests::time(&tools.client(&worker), &model?).await
}

impl Tools {
    fn client(&self, worker: &WorkerUrl) -> DoctorClient {
        DoctorClient {
            address: worker.address.clone(),
            dialer: self.dialer.clone(),
            key: self.plan.key.clone(),
            timeout: self.plan.timeout,
        }
    }
}

async fn look_at(tools: Arc<Tools>, worker: WorkerUrl) -> Worker {
    let (plan, client, url) = (&tools.plan, tools.client(&worker), worker.address.to_string());
    let path = &plan.settings.probes.path;
    let health = match client.ask(Question::get(path)).await {
        Ok(page) => page,
        Err(unanswered) => return Worker::unknown(url, Reach::Not(unanswered)),
    };
    if health.is_router {
        return Worker::unknown(url, Reach::Router);
    }
    let pages = match probe(&client).await {
        Ok(pages) => pages,
        Err(unanswered) => return Worker::unknown(url, Reach::Not(unanswered)),
    };
    let answers: Vec<ProbeReply<'_>> = pages.iter().map(|(path, page)| answer(path, page)).collect();
    let kind = engine::detect(&answers);
    let reach = Reach::Answers { path: path.clone(), status: health.status };
    let (metered, expired_handoffs) = metered(&client, kind).await;
    let mut facts = Worker {
        ranks: worker.options.ranks,
        role: reported_role(kind, &pages).unwrap_or(worker.options.role),
        kind,
        listed: listed(&pages, plan.key.is_some()),
        about: engine::about(kind, &answers),
        metered,
        expired_handoffs,
        clock_ahead: ahead(&health),
        ..Worker::unknown(url, reach)
    };
    if !facts.is_present() {
        return facts;
    }
    let sought = events::seek(&client, &plan.settings, &worker, kind).await;
    let (events, asked) = events::follow(sought, &client, plan, &facts).await;
    (facts.events, facts.asked) = (events, asked);
    facts.handoff = handoff::ask(&client, &facts, plan.requests).await;
    facts.compared = tokens::compare(&client, &facts, &tools.tokenizers).await;
    facts
}

/// The pages that identify an engine's brand. A missing page is an answer; a worker that stops answering is
/// not.
async fn probe(client: &DoctorClient) -> Result<Vec<(&'static str, HttpPage)>, Unanswered> {
    let mut pages: Vec<(&str, HttpPage)> = Vec::new();
    loop {
        let answers: Vec<ProbeReply<'_>> = pages.iter().map(|(path, page)| answer(path, page)).collect();
        let Some(path) = engine::next_probe(&answers) else { return Ok(pages) };
        pages.push((path, client.ask(Question::get(path)).await?));
    }
}

fn answer<'a>(path: &'a str, page: &'a HttpPage) -> ProbeReply<'a> {
    ProbeReply { path, status: page.status, body: &page.body, server: page.server.as_deref() }
}

fn listed(pages: &[(&str, HttpPage)], with_key: bool) -> Listed {
    let Some((_, page)) = pages.iter().find(|it| it.0 == "/v1/models") else {
        return Listed::Models(Vec::new());
    };
    match (page.status, models::parse(&page.body)) {
        (status @ (401 | 403), _) => Listed::Locked { status, with_key },
        (_, Ok(models)) if page.is_success() => Listed::Models(models),
        (status, Ok(_)) => Listed::Unreadable { status, why: "not a success".to_owned() },
        (status, Err(error)) => Listed::Unreadable { status, why: short(&error.to_string()) },
    }
}

/// The role of an engine that reports one.
fn reported_role(kind: EngineKind, pages: &[(&str, HttpPage)]) -> Option<Role> {
    let (_, page) = pages.iter().find(|it| it.0 == engine::SERVER_INFO && it.1.is_success())?;
    let reported = engine::disaggregation(kind, &page.body).ok()??;
    Some(reported.role).filter(|&it| it != Role::Both)
}

/// Its load, and how many handoffs nobody fetched.
async fn metered(client: &DoctorClient, kind: EngineKind) -> (Metered, u64) {
    let mut first = None;
    for &path in kind.metrics_paths() {
        let seen = match client.ask(Question::get(path)).await {
            Ok(page) if page.is_success() => match engine::parse_metrics(kind, None, &page.body) {
                Ok(load) => return (Metered::Read(load), handoff::expired(&page.body)),
                Err(error) => Metered::Foreign(short(&error.to_string())),
            },
            Ok(page) => Metered::Missing { path, status: page.status },
            Err(unanswered) => Metered::Foreign(unanswered.why()),
        };
        // The best place comes first.
        first.get_or_insert(seen);
    }
    (first.unwrap_or(Metered::Read(maitre_base::EngineLoad::default())), 0)
}

/// The minimum by which the worker's clock is ahead: its second may have begun up to a second before.
fn ahead(page: &HttpPage) -> Option<f64> {
    let theirs = clock::of_header(page.date.as_deref()?)? as f64;
    let (sent, received) = (page.between.0.as_secs_f64(), page.between.1.as_secs_f64());
    Some(match () {
        () if theirs > received => theirs - received,
        () if theirs + 1.0 < sent => theirs + 1.0 - sent,
        () => 0.0,
    })
}

fn here(plan: &DoctorPlan, unusable: Vec<(String, String)>) -> Here {
    let RouterSettings { limits, threads, admin, admin_key, admin_tls, .. } = &plan.settings;
    let is_open = admin_tls.cert.is_none() && !admin.ip().to_canonical().is_loopback();
    let cores = std::thread::available_parallelism().map_or(1, |it| it.get());
    Here {
        descriptors: std::fs::read_to_string("/proc/self/limits").ok().and_then(|it| open_files(&it)),
        connections: limits.connections as u64,
        idle_per_worker: limits.idle_per_worker as u64,
        threads: if *threads == 0 { cores } else { *threads } as u64,
        open_admin: is_open.then_some(OpenAdmin { at: *admin, with_key: admin_key.is_some() }),
        unusable,
    }
}

/// The soft limit in Linux's `/proc` limits table.
fn open_files(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|it| it.strip_prefix("Max open files"))?;
    match row.split_ascii_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The outcome of requests and events when neither could be gathered.
fn unasked(events: Events, why: &'static str) -> (Events, Asked) {
    (events, Asked::No(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_open_files_is_the_soft_one() {
        let table = "Limit                     Soft Limit           Hard Limit           Units     \n\
                     Max processes             1                    2                    processes \n\
                     Max open files            1024                 524288               files     \n";
        assert_eq!(open_files(table), Some(1_024));
        assert_eq!(open_files("Max open files            unlimited unlimited files"), Some(u64::MAX));
        assert_eq!(open_files(""), None);
    }
}

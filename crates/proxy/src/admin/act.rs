//! What an operator changes. A request is checked as a whole before anything changes.

use std::sync::Arc;

use bytes::Bytes;
use maitre_base::WorkerId;
use maitre_dialect::route::Route;
use maitre_dispatch::Event;
use maitre_net::address::Address;
use maitre_net::worker_url::{EventSource, WorkerUrl, ZmqEndpoint};
use maitre_policy::Name;
use maitre_views::control::{
    LogLevel, NewWorker, ReloadReport, RemovedWorker, StrategyChange, StrategyView, WorkerWeight,
};
use maitre_views::decision::DecisionDetail;
use maitre_views::text::Text;
use maitre_views::worker::{WorkerList, WorkerView};
use serde::de::DeserializeOwned;
use tracing::info;

use super::{AdminState, decisions, view};
use crate::keys::Caller;
use crate::refuse::{AdminError, Refused, echo};
use crate::request::arrive::Arrived;
use crate::request::describe::describe;
use crate::request::models;
use crate::roster::By;
use crate::state::RouterState;

/// Where a request would go if it arrived now.
pub(super) async fn explain(
    admin: &AdminState,
    query: &str,
    body: &[u8],
) -> Result<DecisionDetail, AdminError> {
    let router = &admin.router;
    let path = match query.split_once('=') {
        None if query.is_empty() => "/v1/chat/completions",
        Some(("path", path)) => &path.replace("%2F", "/").replace("%2f", "/"),
        _ => {
            return Err(AdminError::Bad(
                "unknown parameter; known: path, as in ?path=/v1/completions".to_owned(),
            ));
        }
    };
    let route = Route::of(path)
        .ok_or_else(|| AdminError::Bad(format!("\"{}\" is not an API of this router", echo(path))))?;
    let refused = |it: Refused| AdminError::Bad(it.to_string());
    let arrived =
        Arrived::hypothetical(&router.bodies, router.clock.now(), route, Bytes::copy_from_slice(body))
            .map_err(refused)?;
    let (settings, number) = (router.settings.snapshot(), router.request_ids.next());
    let described = describe(&admin.lane, &settings, number, &Arc::new(arrived)).await.map_err(refused)?;
    let arrival = described.arrival();
    let considered = router.brain.explain(&arrival);
    let known = || models::names(&router.brain, &Caller::Anyone);
    let no = |refusal| AdminError::Conflict(Refused::by_brain(refusal, arrival.model, known).to_string());
    considered.map(|it| decisions::detail(router, &it)).map_err(no)
}

/// Weights that an operator can set.
const WEIGHTS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// The worker in a path.
pub(super) fn worker(router: &RouterState, part: &str) -> Result<WorkerId, AdminError> {
    let id = part.parse().map(WorkerId).map_err(|_| {
        AdminError::Bad(format!("\"{}\" is not a worker's number; /admin/v1/workers lists them", echo(part)))
    })?;
    match router.brain.read(|brain| brain.fleet().worker(id).is_some()) {
        true => Ok(id),
        false => {
            Err(AdminError::Unknown(format!("there is no worker {}; /admin/v1/workers lists them", id.0)))
        }
    }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, AdminError> {
    serde_json::from_slice(body).map_err(|error| AdminError::Bad(format!("the body: {error}")))
}

pub(super) fn add(admin: &AdminState, body: &[u8]) -> Result<WorkerList, AdminError> {
    let NewWorker { url } = read(body)?;
    let worker: WorkerUrl = url.parse().map_err(|error| AdminError::Bad(format!("{error}")))?;
    let address = worker.address.to_string();
    let settings = admin.router.settings.load();
    let is_listed = |it: &String| settings.admin_workers.iter().any(|pattern| is_allowed(pattern, it));
    if let Some(other) = addresses(&worker).find(|it| !is_listed(it)) {
        return Err(AdminError::Forbidden(format!(
            "{other} matches no pattern of `admin_workers`; add one, such as \"http://10.0.0.*\""
        )));
    }
    let Some(ids) = admin.roster.add(By::Operator, &worker) else {
        return Err(AdminError::Conflict(format!("{address} is in the fleet already")));
    };
    info!(worker = address, "worker added by an operator");
    let workers = ids.into_iter().filter_map(|it| view::worker(&admin.router, it).ok());
    Ok(WorkerList { workers: workers.collect() })
}

/// Every address that this worker makes the router or other workers connect to: its own, and those of its events, replays,
/// KV cache and bootstrap server where they are on another host.
fn addresses(worker: &WorkerUrl) -> impl Iterator<Item = String> {
    let options = &worker.options;
    let events = match &options.events {
        EventSource::At(endpoint) => Some(endpoint),
        EventSource::Auto | EventSource::Off => None,
    };
    let own = worker.address.to_string();
    let scheme = own.split_once("://").map_or("http", |it| it.0).to_owned();
    let elsewhere = move |endpoint: &ZmqEndpoint| {
        let host = endpoint.host.as_deref().filter(|it| *it != worker.address.host())?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(format!("{scheme}://{host}:{}", endpoint.port))
    };
    let others = [events, options.replay.as_ref(), options.pull.as_ref(), options.bootstrap.as_ref()];
    let others = others.into_iter().flatten().filter_map(elsewhere);
    std::iter::once(own).chain(others.collect::<Vec<_>>())
}

/// Whether a pattern allows an address: it is the same, or begins as the pattern does before its `*`. A pattern of
/// numbers, such as `10.0.0.*`, allows numbers only: `10.0.0.evil.example` is a name that anyone can register.
fn is_allowed(pattern: &str, address: &str) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    let Some(beginning) = pattern.strip_suffix('*') else {
        return pattern.parse::<Address>().is_ok_and(|it| it.to_string() == address);
    };
    let Some(rest) = address.strip_prefix(beginning) else { return false };
    let host = beginning.split_once("://").map_or("", |it| it.1);
    let is_number = |it: char| it.is_ascii_digit() || it == '.' || it == ':';
    let is_network = !host.is_empty() && host.chars().all(is_number);
    !is_network || rest.chars().all(is_number)
}

pub(super) fn remove(admin: &AdminState, part: &str) -> Result<RemovedWorker, AdminError> {
    let id = worker(&admin.router, part)?;
    match admin.roster.remove(id) {
        Some(address) => {
            info!(worker = address, "worker removed by an operator");
            Ok(RemovedWorker { removed: address.into() })
        }
        None => Err(AdminError::Conflict(format!("worker {} is being removed already", id.0))),
    }
}

/// What an operator wants of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// No new requests.
    Finish,
    /// The same, and its streams go on at other workers, where they can.
    HandOver,
    Resume,
}

impl Drain {
    /// As the query of the route says.
    pub(super) fn read(query: &str) -> Result<Drain, AdminError> {
        match query {
            "" | "hand_over=false" => Ok(Drain::Finish),
            "hand_over=true" => Ok(Drain::HandOver),
            other => Err(AdminError::Bad(format!(
                "query \"{}\" is not known; write hand_over=true or hand_over=false",
                echo(other)
            ))),
        }
    }
}

pub(super) fn drain(admin: &AdminState, part: &str, drain: Drain) -> Result<WorkerView, AdminError> {
    let router = &admin.router;
    let worker = worker(router, part)?;
    let draining = drain != Drain::Resume;
    if !draining && !admin.roster.has(worker) {
        // It would get requests until the moment it is removed.
        return Err(AdminError::Conflict(format!("worker {} is being removed; add it again", worker.0)));
    }
    router.brain.on(Event::WorkerDrained { worker, draining });
    if let Some(link) = router.brain.link(worker) {
        link.hand_over(drain == Drain::HandOver);
    }
    match drain {
        Drain::Resume => info!(worker = url(router, worker), "worker resumed by an operator"),
        Drain::HandOver => {
            info!(
                worker = url(router, worker),
                "worker drained by an operator; streams that can be continued go on at other workers"
            )
        }
        Drain::Finish => info!(worker = url(router, worker), "worker drained by an operator"),
    }
    view::worker(router, worker)
}

/// For the log.
fn url(router: &RouterState, worker: WorkerId) -> String {
    router.brain.link(worker).map_or_else(|| worker.0.to_string(), |it| it.url.clone())
}

pub(super) fn weigh(router: &RouterState, part: &str, body: &[u8]) -> Result<WorkerView, AdminError> {
    let worker = worker(router, part)?;
    let WorkerWeight { weight } = read(body)?;
    if !WEIGHTS.contains(&weight) {
        return Err(AdminError::Bad(format!("`weight` is {weight}; write a number from 0.01 to 100")));
    }
    router.brain.on(Event::WorkerWeighed { worker, weight });
    info!(worker = url(router, worker), weight, "weight set by an operator");
    view::worker(router, worker)
}

pub(super) fn set_strategies(router: &RouterState, body: &[u8]) -> Result<StrategyView, AdminError> {
    let change: StrategyChange = read(body)?;
    let name = |text: &String| text.parse::<Name>().map_err(|error| AdminError::Bad(error.to_string()));
    let mut settings = (**router.settings.load()).clone();
    if let Some(strategy) = &change.strategy {
        settings.brain.strategy = name(strategy)?;
    }
    if let Some(strategies) = &change.strategies {
        let named = strategies.iter().map(|(model, it)| Ok((model.clone(), name(it)?)));
        settings.brain.strategies = named.collect::<Result<_, AdminError>>()?;
    }
    router.reconfigure(settings).map_err(AdminError::Conflict)?;
    info!(strategy = %router.settings.load().brain.strategy, "strategy set by an operator");
    Ok(view::strategies(router))
}

pub(super) async fn reload(admin: &AdminState) -> Result<ReloadReport, AdminError> {
    let reloaded = admin.program.reload().await.map_err(AdminError::Conflict)?;
    let texts = |all: Vec<String>| all.into_iter().map(Text::from).collect();
    Ok(ReloadReport {
        changed: texts(reloaded.changed),
        restart: texts(reloaded.restart),
        added: texts(reloaded.workers.added),
        removed: texts(reloaded.workers.removed),
    })
}

pub(super) fn set_log(admin: &AdminState, body: &[u8]) -> Result<LogLevel, AdminError> {
    let LogLevel { level } = read(body)?;
    admin.program.set_log_level(&level).map_err(AdminError::Bad)?;
    info!(level, "log level set by an operator");
    Ok(LogLevel { level: admin.program.log_level() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stands_for_every_host_it_names() {
        for (url, expected) in [
            ("http://10.0.0.7:8000", "http://10.0.0.7:8000"),
            ("http://10.0.0.7:8000?events=off&replay=5558", "http://10.0.0.7:8000"),
            ("http://10.0.0.7:8000?events=5557&replay=tcp://10.0.0.7:5558", "http://10.0.0.7:8000"),
            (
                "https://A:1?events=tcp://B:5557&replay=tcp://[::1]:1",
                "https://a:1 https://b:5557 https://[::1]:1",
            ),
            ("http://10.0.0.7:8000?pull=tcp://b:5710", "http://10.0.0.7:8000 http://b:5710"),
            (
                "http://10.0.0.7:8000?role=prefill&transfer=mooncake&bootstrap=tcp://b:8998",
                "http://10.0.0.7:8000 http://b:8998",
            ),
            ("http://10.0.0.7:8000?role=prefill&transfer=mooncake&bootstrap=8998", "http://10.0.0.7:8000"),
        ] {
            let worker = url.parse().unwrap();
            assert_eq!(addresses(&worker).collect::<Vec<_>>().join(" "), expected, "{url}");
        }
    }

    #[test]
    fn a_pattern_allows_addresses_that_begin_as_it_does() {
        assert!(is_allowed("http://10.0.0.*", "http://10.0.0.7:8000"));
        assert!(!is_allowed("http://10.0.0.*", "http://10.0.1.7:8000"));
        assert!(!is_allowed("http://10.0.0.*", "http://10.0.0.evil.example:80"));
        assert!(is_allowed("http://vllm-*", "http://vllm-7.internal:8000"));
        assert!(is_allowed("http://a:1", "http://a:1"));
        assert!(is_allowed("http://A:1/", "http://a:1"));
        assert!(is_allowed("http://a", "http://a:80"));
        assert!(is_allowed("http://VLLM-*", "http://vllm-7:8000"));
        assert!(!is_allowed("http://a:1", "http://a:11"));
        assert!(is_allowed("*", "http://anything:1"));
    }
}

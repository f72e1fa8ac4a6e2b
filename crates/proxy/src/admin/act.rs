//! What an operator changes. Everything is checked before anything is done.

use bytes::Bytes;
use maitre_base::WorkerId;
use maitre_dialect::route::Route;
use maitre_dispatch::Event;
use maitre_net::worker_url::WorkerUrl;
use maitre_policy::Name;
use serde_json::{Value, json};
use tracing::info;

use super::{AdminState, decisions, view};
use crate::arrive::Arrived;
use crate::house::RouterState;
use crate::keys::Caller;
use crate::models;
use crate::reading;
use crate::refuse::{Refused, Wrong, echo};
use crate::roster::By;

/// What would be done with a request that came now.
pub(super) async fn explain(desk: &AdminState, query: &str, body: &[u8]) -> Result<Value, Wrong> {
    let house = &desk.house;
    let path = match query.split_once('=') {
        None if query.is_empty() => "/v1/chat/completions",
        Some(("path", path)) => &path.replace("%2F", "/").replace("%2f", "/"),
        _ => return Err(Wrong::Bad("only `path` is known here, as in ?path=/v1/completions".to_owned())),
    };
    let route = Route::of(path).ok_or_else(|| Wrong::Bad(format!("\"{}\" is no API of ours", echo(path))))?;
    let refused = |it: Refused| Wrong::Bad(it.to_string());
    let arrived = Arrived::made(house, route, Bytes::copy_from_slice(body)).map_err(refused)?;
    let (settings, caller) = (house.settings(), Caller::Anyone);
    let parsed = arrived.parse(&settings, &caller).map_err(refused)?;
    let Some(parsed) = parsed else { return Err(Wrong::Bad("there is nothing to read".to_owned())) };
    let reading = reading::read(&desk.lane, Some(route), &parsed).await;
    let read = Some((&parsed, &reading));
    let arrival = arrived.arrival(&settings, &caller, house.next_request(), read).map_err(refused)?;
    let considered = house.consider(&arrival);
    let known = || models::names(house, &caller);
    let no = |refusal| Wrong::Conflict(Refused::by_brain(refusal, arrival.model, known).to_string());
    considered.map(|it| decisions::whole(house, &it)).map_err(no)
}

/// The least and the most that a worker can weigh.
const WEIGHT: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// The worker that a path names.
pub(super) fn worker(house: &RouterState, part: &str) -> Result<WorkerId, Wrong> {
    let id = part.parse().map(WorkerId).map_err(|_| {
        Wrong::Bad(format!(
            "a worker is named by its number, not \"{}\"; /admin/v1/workers lists them",
            echo(part)
        ))
    })?;
    match house.look(|brain| brain.fleet().worker(id).is_some()) {
        true => Ok(id),
        false => Err(Wrong::Unknown(format!("there is no worker {}; /admin/v1/workers lists them", id.0))),
    }
}

fn object(body: &[u8]) -> Result<Value, Wrong> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| Wrong::Bad(format!("the body is no JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Wrong::Bad("the body is no JSON object".to_owned())) }
}

/// Refuses what would be ignored: a slip in a name must not look like success.
fn only(value: &Value, known: &[&str]) -> Result<(), Wrong> {
    let keys = value.as_object().into_iter().flat_map(|it| it.keys());
    match keys.into_iter().find(|it| !known.contains(&it.as_str())) {
        Some(key) => {
            Err(Wrong::Bad(format!("no field is called \"{}\"; known: {}", echo(key), known.join(", "))))
        }
        None => Ok(()),
    }
}

pub(super) fn add(desk: &AdminState, body: &[u8]) -> Result<Value, Wrong> {
    let value = object(body)?;
    only(&value, &["url"])?;
    let url = value["url"]
        .as_str()
        .ok_or_else(|| Wrong::Bad("`url` is missing; write {\"url\": \"http://host:port\"}".to_owned()))?;
    let worker: WorkerUrl = url.parse().map_err(|error| Wrong::Bad(format!("{error}")))?;
    let address = worker.address.to_string();
    let settings = desk.house.settings();
    if !settings.admin_workers.iter().any(|it| is_allowed(it, &address)) {
        return Err(Wrong::Forbidden(format!(
            "{address} matches nothing in `admin_workers`; list there what may be added, such as \"http://10.0.0.*\""
        )));
    }
    let Some(ids) = desk.roster.add(By::Operator, &worker) else {
        return Err(Wrong::Conflict(format!("{address} is in the fleet already")));
    };
    info!(worker = address, "worker added by an operator");
    let workers = ids.into_iter().filter_map(|it| view::worker(&desk.house, it).ok());
    Ok(json!({ "workers": workers.collect::<Vec<_>>() }))
}

/// Whether an address is one of those a pattern stands for: itself, or all that begin as it does up to its `*`. What
/// begins with numbers goes on with numbers: `10.0.0.*` is a network, not a name that somebody else may have.
fn is_allowed(pattern: &str, address: &str) -> bool {
    let Some(beginning) = pattern.strip_suffix('*') else { return pattern.trim_end_matches('/') == address };
    let Some(rest) = address.strip_prefix(beginning) else { return false };
    let host = beginning.split_once("://").map_or("", |it| it.1);
    let is_number = |it: char| it.is_ascii_digit() || it == '.' || it == ':';
    let is_network = !host.is_empty() && host.chars().all(is_number);
    !is_network || rest.chars().all(is_number)
}

pub(super) fn remove(desk: &AdminState, part: &str) -> Result<Value, Wrong> {
    let id = worker(&desk.house, part)?;
    match desk.roster.remove(id) {
        Some(address) => {
            info!(worker = address, "worker removed by an operator");
            Ok(json!({ "removed": address }))
        }
        None => Err(Wrong::Conflict(format!("worker {} is on its way out already", id.0))),
    }
}

pub(super) fn drain(desk: &AdminState, part: &str, draining: bool) -> Result<Value, Wrong> {
    let house = &desk.house;
    let worker = worker(house, part)?;
    if !draining && !desk.roster.has(worker) {
        // It would take requests until the moment it goes.
        return Err(Wrong::Conflict(format!("worker {} is on its way out; take it in anew", worker.0)));
    }
    house.on(Event::WorkerDrained { worker, draining });
    info!(worker = worker.0, draining, "drained or resumed by an operator");
    view::worker(house, worker)
}

pub(super) fn weigh(house: &RouterState, part: &str, body: &[u8]) -> Result<Value, Wrong> {
    let worker = worker(house, part)?;
    let value = object(body)?;
    only(&value, &["weight"])?;
    let weight = value["weight"].as_f64().filter(|it| WEIGHT.contains(it)).ok_or_else(|| {
        Wrong::Bad(format!(
            "`weight` is {}; write a number from 0.01 to 100",
            echo(&value["weight"].to_string())
        ))
    })?;
    house.on(Event::WorkerWeighed { worker, weight });
    info!(worker = worker.0, weight, "weighed by an operator");
    view::worker(house, worker)
}

pub(super) fn set_strategies(house: &RouterState, body: &[u8]) -> Result<Value, Wrong> {
    let value = object(body)?;
    only(&value, &["strategy", "strategies"])?;
    let name = |value: &Value| {
        let text = value.as_str().ok_or_else(|| Wrong::Bad("a strategy is named by a text".to_owned()))?;
        text.parse::<Name>().map_err(|error| Wrong::Bad(error.to_string()))
    };
    let mut settings = (**house.settings()).clone();
    if let Some(strategy) = value.get("strategy") {
        settings.brain.strategy = name(strategy)?;
    }
    if let Some(strategies) = value.get("strategies") {
        let strategies =
            strategies.as_object().ok_or_else(|| Wrong::Bad("`strategies` is no object".to_owned()))?;
        settings.brain.strategies = strategies
            .iter()
            .map(|(model, it)| Ok((model.clone(), name(it)?)))
            .collect::<Result<_, Wrong>>()?;
    }
    house.reconfigure(settings).map_err(Wrong::Conflict)?;
    info!(strategy = %house.settings().brain.strategy, "strategy set by an operator");
    Ok(view::strategies(house))
}

pub(super) async fn reload(desk: &AdminState) -> Result<Value, Wrong> {
    let reloaded = desk.program.reload().await.map_err(Wrong::Conflict)?;
    Ok(json!({
        "changed": reloaded.changed,
        "restart": reloaded.restart,
        "added": reloaded.workers.added,
        "removed": reloaded.workers.removed,
    }))
}

pub(super) fn set_log(desk: &AdminState, body: &[u8]) -> Result<Value, Wrong> {
    let value = object(body)?;
    only(&value, &["level"])?;
    let level = value["level"]
        .as_str()
        .ok_or_else(|| Wrong::Bad("`level` is missing; write {\"level\": \"debug\"}".to_owned()))?;
    desk.program.set_log_level(level).map_err(Wrong::Bad)?;
    info!(level, "log level set by an operator");
    Ok(json!({ "level": desk.program.log_level() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_added_is_told_by_its_beginning() {
        assert!(is_allowed("http://10.0.0.*", "http://10.0.0.7:8000"));
        assert!(!is_allowed("http://10.0.0.*", "http://10.0.1.7:8000"));
        assert!(!is_allowed("http://10.0.0.*", "http://10.0.0.evil.example:80"));
        assert!(is_allowed("http://vllm-*", "http://vllm-7.internal:8000"));
        assert!(is_allowed("http://a:1", "http://a:1"));
        assert!(is_allowed("http://a:1/", "http://a:1"));
        assert!(!is_allowed("http://a:1", "http://a:11"));
        assert!(is_allowed("*", "http://anything:1"));
    }
}

//! Parses EndpointSlices and Pods, as far as they say where workers are.
//!
//! A worker is ready if Kubernetes reports it ready and it is not terminating. `serving`, which stays true
//! for an endpoint that terminates gracefully, is ignored: such an endpoint may finish its requests but
//! should get no new ones. A fault in one object (an invalid annotation, two ports and no name) affects only
//! that object, and is reported.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use maitre_net::address::{Address, Scheme};
use maitre_net::worker_url::{WorkerOptions, WorkerUrl};
use serde::Deserialize;

use crate::source::{KubernetesSource, KubernetesTarget, Port};

/// One object: its name, its version, and the workers it describes.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) places: Vec<ObjectWorker>,
    /// Why it gives fewer workers than expected.
    pub(super) note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectWorker {
    pub(super) worker: WorkerUrl,
    pub(super) readiness: Readiness,
    /// The Pod behind the address. For a Service with two address families the Pod is in two slices.
    pub(super) owner: Option<String>,
    pub(super) is_ipv6: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Readiness {
    Ready,
    Unready,
    /// Terminating, finished, or to be ignored.
    Ending,
}

/// The prefix of our own annotations and labels.
const PREFIX: &str = "maitre.dev/";
/// The port used if there are several and the source names none.
const PORT_NAME: &str = "http";

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(rename = "resourceVersion", default)]
    version: String,
    #[serde(rename = "deletionTimestamp")]
    deleted: Option<serde::de::IgnoredAny>,
    annotations: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Slice {
    metadata: Metadata,
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<NamedPort>>,
}

#[derive(Debug, Deserialize)]
struct SliceEndpoint {
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    #[serde(rename = "targetRef")]
    target: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    uid: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedPort {
    name: Option<String>,
    #[serde(alias = "containerPort")]
    port: Option<u16>,
    protocol: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<PodStatus>,
}

#[derive(Debug, Deserialize)]
struct Spec {
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    ports: Option<Vec<NamedPort>>,
}

#[derive(Debug, Deserialize)]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    ip: Option<String>,
    conditions: Option<Vec<Condition>>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// The options of an object's workers, which override those of the source.
#[derive(Debug)]
struct Overrides {
    port: Option<Port>,
    options: WorkerOptions,
    is_ignored: bool,
}

/// Parses an object of the kind that the source lists. `ports` are those of a pool.
pub(super) fn read(
    cluster: &KubernetesSource,
    ports: &[u16],
    json: &str,
) -> Result<Object, serde_json::Error> {
    Ok(match cluster.kind {
        KubernetesTarget::Service(_) => slice(cluster, serde_json::from_str(json)?),
        KubernetesTarget::Pods(_) | KubernetesTarget::Pool(_) => {
            pod(cluster, ports, serde_json::from_str(json)?)
        }
    })
}

fn slice(cluster: &KubernetesSource, slice: Slice) -> Object {
    let metadata = &slice.metadata;
    // Kubernetes copies the labels of a Service to its slices, but not its annotations, and we may not read
    // Services.
    let said = |key: &str| find(&metadata.annotations, key).or_else(|| find(&metadata.labels, key));
    let ports = slice.ports.unwrap_or_default();
    let endpoints = slice.endpoints.unwrap_or_default();
    let read = overrides(cluster, said).and_then(|overrides| {
        // An empty slice lacks no worker, whatever its ports.
        let port = if endpoints.is_empty() { 0 } else { choose(overrides.port.as_ref(), &ports)? };
        let places = endpoints.iter().filter_map(|it| it.place(port, &overrides));
        places.collect::<Result<Vec<ObjectWorker>, String>>()
    });
    object(slice.metadata, read)
}

fn pod(cluster: &KubernetesSource, pool_ports: &[u16], pod: Pod) -> Object {
    let said = |key: &str| find(&pod.metadata.annotations, key);
    let containers = pod.spec.map(|it| it.containers).unwrap_or_default();
    let ports: Vec<NamedPort> = containers.into_iter().filter_map(|it| it.ports).flatten().collect();
    let status = pod.status.as_ref();
    let address = status.and_then(|it| it.ip.as_deref()).filter(|it| !it.is_empty());
    let read = overrides(cluster, said).and_then(|overrides| {
        let Some(address) = address else { return Ok(Vec::new()) };
        let chosen = match pool_ports {
            [] => vec![choose(overrides.port.as_ref(), &ports)?],
            of_pool => of_pool.to_vec(),
        };
        let phase = status.and_then(|it| it.phase.as_deref()).unwrap_or_default();
        let is_ending = pod.metadata.deleted.is_some() || matches!(phase, "Succeeded" | "Failed");
        let conditions = status.and_then(|it| it.conditions.as_ref());
        let is_ready = conditions.into_iter().flatten().any(|it| it.kind == "Ready" && it.status == "True");
        let readiness = match (is_ending || overrides.is_ignored, is_ready) {
            (true, _) => Readiness::Ending,
            (false, true) => Readiness::Ready,
            (false, false) => Readiness::Unready,
        };
        // Engines count the ports of their ranks up from the first, each by itself.
        let places = (0..).zip(chosen).map(|(rank, port)| {
            let place = place(address, port, &overrides, readiness)?;
            let options = place.worker.options.at_rank(rank);
            Ok(ObjectWorker { worker: WorkerUrl { options, ..place.worker }, ..place })
        });
        places.collect()
    });
    object(pod.metadata, read)
}

fn object(metadata: Metadata, read: Result<Vec<ObjectWorker>, String>) -> Object {
    let Metadata { name, version, .. } = metadata;
    let (places, note) = match read {
        Ok(places) => (places, None),
        Err(why) => (Vec::new(), Some(format!("{name} is left out: {why}"))),
    };
    Object { name, version, places, note }
}

impl SliceEndpoint {
    /// None if it has no address yet. At most one worker per Pod: a second address would be the same worker.
    fn place(&self, port: u16, overrides: &Overrides) -> Option<Result<ObjectWorker, String>> {
        let address = self.addresses.first()?;
        let is_ending = self.conditions.terminating.unwrap_or(false) || overrides.is_ignored;
        let readiness = match (is_ending, self.conditions.ready.unwrap_or(true)) {
            (true, _) => Readiness::Ending,
            (false, true) => Readiness::Ready,
            (false, false) => Readiness::Unready,
        };
        let owner = self.target.as_ref().and_then(|it| it.uid.clone());
        Some(place(address, port, overrides, readiness).map(|it| ObjectWorker { owner, ..it }))
    }
}

fn place(
    address: &str,
    port: u16,
    overrides: &Overrides,
    readiness: Readiness,
) -> Result<ObjectWorker, String> {
    let parsed = Address::new(Scheme::Http, address, port).map_err(|error| error.to_string())?;
    let worker = WorkerUrl { address: parsed, options: overrides.options.clone() };
    let is_ipv6 =
        address.parse::<IpAddr>().is_ok_and(|it| it.is_ipv6()) || address.parse::<Ipv6Addr>().is_ok();
    Ok(ObjectWorker { worker, readiness, owner: None, is_ipv6 })
}

fn find<'a>(values: &'a Option<BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    values.as_ref()?.get(&format!("{PREFIX}{key}")).map(String::as_str)
}

fn overrides<'a>(
    cluster: &KubernetesSource,
    said: impl Fn(&str) -> Option<&'a str>,
) -> Result<Overrides, String> {
    let mut overrides =
        Overrides { port: cluster.port.clone(), options: cluster.options.clone(), is_ignored: false };
    if let Some(port) = said("port") {
        overrides.port = Some(port.parse().map_err(|why| format!("{PREFIX}port: {why}"))?);
    }
    let options = [
        ("events-port", "events"),
        ("replay-port", "replay"),
        ("ranks", "ranks"),
        ("role", "role"),
        ("transfer", "transfer"),
        ("bootstrap-port", "bootstrap"),
        ("engine-id", "engine-id"),
        ("tp", "tp"),
        ("pull-port", "pull"),
        ("store", "store"),
        ("chunks", "chunks"),
    ];
    for (key, option) in options {
        if let Some(value) = said(key) {
            overrides.options.set(option, value).map_err(|why| format!("{PREFIX}{key}: {why}"))?;
        }
    }
    overrides.is_ignored = match said("ignore") {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(format!("{PREFIX}ignore is {other:?}; write \"true\" or \"false\"")),
    };
    Ok(overrides)
}

/// The port of a worker: the one requested, else the one called `http`, else the only one.
fn choose(wanted: Option<&Port>, ports: &[NamedPort]) -> Result<u16, String> {
    let is_tcp = |it: &&NamedPort| it.protocol.as_deref().is_none_or(|it| it == "TCP");
    let offered = || ports.iter().filter(is_tcp).filter_map(|it| Some((it.name.as_deref(), it.port?)));
    let named = |name: &str| offered().find(|it| it.0 == Some(name)).map(|it| it.1);
    let found = match wanted {
        Some(Port::Number(number)) => Some(*number),
        Some(Port::Name(name)) => named(name),
        None => {
            let mut all = offered();
            let only = all.next().filter(|_| all.next().is_none());
            named(PORT_NAME).or(only.map(|it| it.1))
        }
    };
    found.ok_or_else(|| {
        let names: Vec<String> =
            offered().map(|(name, port)| format!("{}:{port}", name.unwrap_or_default())).collect();
        let wanted = wanted.map_or(PORT_NAME.to_owned(), Port::to_string);
        format!("no port is called {wanted}, there are [{}]; say which by port=", names.join(" "))
    })
}

#[cfg(test)]
mod tests;

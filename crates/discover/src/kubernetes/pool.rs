//! An InferencePool of the Gateway API: which Pods it selects, and at which ports they serve.
//!
//! The pool itself seldom changes. So a change of it begins everything anew: the Pods are listed by the new selector, and
//! those that the new list lacks are gone.

use std::collections::BTreeMap;

use maitre_base::Rng;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::ApiError;
use super::api::{ApiClient, shown};
use super::line_buffer::LineBuffer;
use crate::backoff::Backoff;
use crate::escape::escape;
use crate::settings::KubernetesSettings;

/// As many ports as the API allows.
const PORTS_MAX: usize = 8;
/// Chosen: a few dozen labels.
const SELECTOR_BYTES_MAX: usize = 2_048;
const POOL_BYTES_MAX: usize = 1 << 20;

/// What a pool says about its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    /// As the API wants it in a query.
    pub(super) selector: String,
    /// Each is a worker of its own on every Pod, such as a data-parallel rank.
    pub(super) ports: Vec<u16>,
}

/// Where the pools of a namespace are, with a query that selects one.
pub(super) fn path(namespace: &str, name: &str) -> String {
    let selector = escape(&format!("metadata.name={name}"));
    format!(
        "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools?fieldSelector={selector}"
    )
}

#[derive(Deserialize)]
struct PoolList {
    metadata: ListMetadata,
    items: Option<Vec<PoolObject>>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(rename = "resourceVersion")]
    version: String,
}

#[derive(Deserialize)]
struct PoolObject {
    metadata: ObjectMetadata,
    spec: Option<PoolSpec>,
}

#[derive(Deserialize)]
struct ObjectMetadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct PoolSpec {
    selector: Selector,
    #[serde(rename = "targetPorts", default)]
    ports: Vec<TargetPort>,
}

#[derive(Deserialize)]
struct Selector {
    #[serde(rename = "matchLabels", default)]
    labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct TargetPort {
    number: u16,
}

#[derive(Deserialize)]
struct PoolEvent {
    #[serde(rename = "type")]
    kind: String,
    object: PoolObject,
}

impl PoolSpec {
    fn pool(self) -> Result<Pool, String> {
        let labels: Vec<String> =
            self.selector.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let selector = labels.join(",");
        let ports: Vec<u16> = self.ports.iter().map(|it| it.number).filter(|&it| it > 0).collect();
        match () {
            () if selector.is_empty() => Err("its selector is empty: every pod would be a worker".to_owned()),
            () if selector.len() > SELECTOR_BYTES_MAX => Err("its selector is too long".to_owned()),
            () if ports.is_empty() => Err("it has no targetPorts".to_owned()),
            () if ports.len() > PORTS_MAX => Err(format!("it has more than {PORTS_MAX} targetPorts")),
            () => Ok(Pool { selector, ports }),
        }
    }
}

/// The pool of this name, and the version to watch from.
pub(super) async fn find(client: &ApiClient, path: &str, name: &str) -> Result<(Pool, String), ApiError> {
    let failed = |why: String| ApiError::Failed(format!("InferencePool {name}: {why}"));
    let answer = client.get(path).await?;
    let late = |_| failed(format!("not read within {:?}", client.timeout()));
    let bytes = timeout(client.timeout(), answer.read_all(POOL_BYTES_MAX)).await.map_err(late)??;
    let list: PoolList = serde_json::from_slice(&bytes)
        .map_err(|error| failed(format!("not the JSON it should be: {}", shown(&error.to_string()))))?;
    let found = list.items.unwrap_or_default().into_iter().find(|it| it.metadata.name == name);
    let spec = found.and_then(|it| it.spec).ok_or_else(|| failed("there is none".to_owned()))?;
    Ok((spec.pool().map_err(failed)?, list.metadata.version))
}

/// Waits until the pool is no longer as it was found. A watch that ends or fails is begun again; whether anything has
/// changed meanwhile, a new look tells.
pub(super) async fn until_changed(
    client: &ApiClient,
    path: &str,
    name: &str,
    (pool, version): (&Pool, String),
    (settings, rng): (&KubernetesSettings, Rng),
) {
    let mut backoff = Backoff::new(settings.retry_min, settings.retry_max, rng);
    let mut version = version;
    loop {
        if watch(client, path, (pool, &version), settings).await {
            return;
        }
        sleep(backoff.next()).await;
        match find(client, path, name).await {
            Ok((found, _)) if found != *pool => return,
            Ok((_, found)) => {
                version = found;
                backoff.reset();
            }
            // Unreadable, or gone: the workers that are known stay.
            Err(_) => {}
        }
    }
}

/// One watch. Returns whether the pool has changed; if not, the watch has ended.
async fn watch(
    client: &ApiClient,
    path: &str,
    (pool, version): (&Pool, &str),
    settings: &KubernetesSettings,
) -> bool {
    let seconds = settings.watch.as_secs().max(1);
    let query = format!("watch=1&timeoutSeconds={seconds}&resourceVersion={}", escape(version));
    let Ok(mut answer) = client.get(&format!("{path}&{query}")).await else { return false };
    let mut lines = LineBuffer::new(POOL_BYTES_MAX);
    let followed = async {
        while let Ok(Some(piece)) = answer.chunk().await {
            lines.push(&piece);
            while let Ok(Some(line)) = lines.next() {
                match judge(&line, pool) {
                    Judged::Same => {}
                    Judged::Changed => return true,
                    Judged::Unclear => return false,
                }
            }
        }
        false
    };
    // A watch that does not end by itself hangs.
    timeout(settings.watch + client.timeout(), followed).await.unwrap_or(false)
}

enum Judged {
    Same,
    Changed,
    /// Deleted, an error, or nothing we can read.
    Unclear,
}

fn judge(line: &[u8], pool: &Pool) -> Judged {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Judged::Same;
    }
    let Ok(event) = serde_json::from_slice::<PoolEvent>(line) else { return Judged::Unclear };
    match (event.kind.as_str(), event.object.spec.map(PoolSpec::pool)) {
        ("BOOKMARK", _) => Judged::Same,
        ("ADDED" | "MODIFIED", Some(Ok(found))) if found == *pool => Judged::Same,
        ("ADDED" | "MODIFIED", Some(Ok(_))) => Judged::Changed,
        _ => Judged::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: serde_json::Value, expected: Result<(&str, &[u16]), &str>) {
        let read: PoolSpec = serde_json::from_value(spec).unwrap();
        match (read.pool(), expected) {
            (Ok(pool), Ok((selector, ports))) => {
                assert_eq!((pool.selector.as_str(), pool.ports.as_slice()), (selector, ports));
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (actual, expected) => panic!("{actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn a_pool_is_a_selector_and_ports() {
        let labels = serde_json::json!({"matchLabels": {"tier": "gpu", "app": "vllm"}});
        let two = serde_json::json!([{"number": 8000}, {"number": 8001}]);
        check(
            serde_json::json!({"selector": labels, "targetPorts": two}),
            Ok(("app=vllm,tier=gpu", &[8000, 8001])),
        );
        check(serde_json::json!({"selector": labels}), Err("no targetPorts"));
        check(serde_json::json!({"selector": {}, "targetPorts": two}), Err("every pod"));
        let nine: Vec<_> = (0..9).map(|it| serde_json::json!({"number": 8000 + it})).collect();
        check(serde_json::json!({"selector": labels, "targetPorts": nine}), Err("more than 8"));
    }
}

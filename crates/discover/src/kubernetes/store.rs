//! All objects of a source in their latest version, and the workers they describe.

use std::collections::BTreeMap;

use maitre_net::address::Address;
use maitre_net::worker_url::WorkerUrl;

use crate::report::{ReportedWorkers, SourceReport};
use crate::source::KubernetesSource;

use super::ApiError;
use super::api::shown;
use super::objects::{self, Object, ObjectWorker, Readiness};

/// Maximum objects of one source. Finished Pods count, so there are more objects than workers.
const OBJECTS_MAX: usize = 16_384;

#[derive(Debug)]
pub(super) struct Store {
    cluster: KubernetesSource,
    /// Of a pool; none for other sources.
    ports: Vec<u16>,
    objects: BTreeMap<String, Object>,
}

/// The cause of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Listed,
    Changed,
    Deleted,
}

impl Store {
    pub(super) fn new(cluster: KubernetesSource, ports: Vec<u16>) -> Store {
        Store { cluster, ports, objects: BTreeMap::new() }
    }

    /// Inserts or replaces an object; returns its version.
    pub(super) fn put(&mut self, json: &str) -> Result<String, ApiError> {
        let object = self.read(json)?;
        let version = object.version.clone();
        if self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&object.name) {
            return Err(ApiError::Failed(format!("there are more than {OBJECTS_MAX} objects")));
        }
        self.objects.insert(object.name.clone(), object);
        Ok(version)
    }

    /// Removes an object, given in the version that was deleted; returns that version.
    pub(super) fn remove(&mut self, json: &str) -> Result<String, ApiError> {
        let object = self.read(json)?;
        self.objects.remove(&object.name);
        Ok(object.version)
    }

    fn read(&self, json: &str) -> Result<Object, ApiError> {
        let read = objects::read(&self.cluster, &self.ports, json);
        read.map_err(|error| ApiError::Failed(format!("read an object: {}", shown(&error.to_string()))))
    }

    /// The current workers. If there are none at all, not even a terminating one, the list is doubtful unless
    /// a deletion caused it: a mistake in a selector looks the same.
    pub(super) fn answer(&self, cause: ChangeKind) -> SourceReport {
        let places: Vec<&ObjectWorker> = self.objects.values().flat_map(|it| &it.places).collect();
        let note = self.objects.values().find_map(|it| it.note.clone());
        if places.is_empty() && cause != ChangeKind::Deleted {
            let none = || Some("there are no workers".to_owned());
            return SourceReport { workers: ReportedWorkers::List(Vec::new()), note: note.or_else(none) };
        }
        let mut by_address: BTreeMap<&Address, (Readiness, &WorkerUrl)> = BTreeMap::new();
        for place in one_of_each(&places) {
            let entry = by_address.entry(&place.worker.address).or_insert((place.readiness, &place.worker));
            if place.readiness < entry.0 {
                *entry = (place.readiness, &place.worker);
            }
        }
        let of = |readiness| {
            let those = by_address.values().filter(move |it| it.0 == readiness);
            those.map(|it| it.1.clone()).collect::<Vec<WorkerUrl>>()
        };
        SourceReport {
            workers: ReportedWorkers::Census { ready: of(Readiness::Ready), unready: of(Readiness::Unready) },
            note,
        }
    }
}

/// Leaves out the IPv6 address of a worker that also has an IPv4 address.
fn one_of_each<'a>(places: &[&'a ObjectWorker]) -> impl Iterator<Item = &'a ObjectWorker> {
    let with_ipv4: std::collections::BTreeSet<&str> =
        places.iter().filter(|it| !it.is_ipv6).filter_map(|it| it.owner.as_deref()).collect();
    let is_second = move |it: &ObjectWorker| {
        it.is_ipv6 && it.owner.as_deref().is_some_and(|owner| with_ipv4.contains(owner))
    };
    places.iter().copied().filter(move |it| !is_second(it)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(slices: &[serde_json::Value]) -> Store {
        let crate::WorkerSource::Kubernetes(cluster) = "kubernetes:a/vllm".parse().unwrap() else { panic!() };
        let mut store = Store::new(cluster, Vec::new());
        slices.iter().for_each(|it| _ = store.put(&it.to_string()).unwrap());
        store
    }

    /// Endpoints as `(address, owner, conditions)`.
    fn slice(name: &str, endpoints: &[(&str, &str, serde_json::Value)]) -> serde_json::Value {
        let endpoints = endpoints.iter().map(|(address, owner, conditions)| {
            serde_json::json!({"addresses": [address], "conditions": conditions, "targetRef": {"uid": owner}})
        });
        let endpoints: Vec<_> = endpoints.collect();
        serde_json::json!({"metadata": {"name": name}, "endpoints": endpoints, "ports": [{"port": 8000}]})
    }

    #[track_caller]
    fn check(store: &Store, cause: ChangeKind, ready: &[&str], unready: &[&str]) {
        let found = |urls: &[&str]| urls.iter().map(|it| it.parse().unwrap()).collect();
        let expected = ReportedWorkers::Census { ready: found(ready), unready: found(unready) };
        assert_eq!(store.answer(cause).workers, expected);
    }

    #[test]
    fn an_engine_with_two_addresses_is_one_worker() {
        let ready = serde_json::json!({"ready": true});
        let four = slice("four", &[("10.0.0.7", "p", ready.clone())]);
        let six = slice("six", &[("fd00::7", "p", ready.clone()), ("fd00::8", "q", ready)]);
        let store = store(&[six, four]);
        check(&store, ChangeKind::Listed, &["http://10.0.0.7:8000", "http://[fd00::8]:8000"], &[]);
    }

    #[test]
    fn a_worker_in_two_slices_is_ready_if_either_reports_it() {
        let (yes, no) = (serde_json::json!({"ready": true}), serde_json::json!({"ready": false}));
        for slices in [[&yes, &no], [&no, &yes]] {
            let slices = [("a", slices[0]), ("b", slices[1])];
            let store = store(&slices.map(|(name, it)| slice(name, &[("10.0.0.7", "p", it.clone())])));
            check(&store, ChangeKind::Changed, &["http://10.0.0.7:8000"], &[]);
        }
    }

    #[test]
    fn an_empty_list_is_doubtful_unless_a_worker_terminates_or_was_deleted() {
        let nobody = ReportedWorkers::List(Vec::new());
        let empty = store(&[slice("a", &[])]);
        assert_eq!(empty.answer(ChangeKind::Listed).workers, nobody);
        assert_eq!(empty.answer(ChangeKind::Changed).workers, nobody);
        check(&empty, ChangeKind::Deleted, &[], &[]);
        let ending = slice("a", &[("10.0.0.7", "p", serde_json::json!({"terminating": true}))]);
        check(&store(&[ending]), ChangeKind::Changed, &[], &[]);
    }

    #[test]
    fn objects_are_replaced_and_removed_by_name() {
        let ready = serde_json::json!({"ready": true});
        let mut store = store(&[slice("a", &[("10.0.0.7", "p", ready.clone())])]);
        store.put(&slice("a", &[("10.0.0.8", "q", ready)]).to_string()).unwrap();
        check(&store, ChangeKind::Changed, &["http://10.0.0.8:8000"], &[]);
        store.remove(&slice("a", &[]).to_string()).unwrap();
        check(&store, ChangeKind::Deleted, &[], &[]);
    }
}

//! All objects of a source as they last were, and what follows from them.

use std::collections::BTreeMap;

use maitre_net::address::Address;
use maitre_net::worker_url::WorkerUrl;

use crate::source::Cluster;
use crate::tell::{Answer, Heard};

use super::Problem;
use super::api::shown;
use super::objects::{self, Object, Place, Standing};

/// Most objects of one source. Pods that have finished count, so there are more than workers.
const OBJECTS_MAX: usize = 16_384;

#[derive(Debug)]
pub(super) struct Store {
    cluster: Cluster,
    objects: BTreeMap<String, Object>,
}

/// Why the store is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Listed,
    Changed,
    Deleted,
}

impl Store {
    pub(super) fn new(cluster: Cluster) -> Store {
        Store { cluster, objects: BTreeMap::new() }
    }

    /// Takes an object as it now is; returns its version.
    pub(super) fn put(&mut self, json: &str) -> Result<String, Problem> {
        let object = self.read(json)?;
        let version = object.version.clone();
        if self.objects.len() >= OBJECTS_MAX && !self.objects.contains_key(&object.name) {
            return Err(Problem::Failed(format!("there are more than {OBJECTS_MAX} objects")));
        }
        self.objects.insert(object.name.clone(), object);
        Ok(version)
    }

    /// Forgets an object, given as it was when it was deleted; returns the version of that.
    pub(super) fn remove(&mut self, json: &str) -> Result<String, Problem> {
        let object = self.read(json)?;
        self.objects.remove(&object.name);
        Ok(object.version)
    }

    fn read(&self, json: &str) -> Result<Object, Problem> {
        let read = objects::read(&self.cluster, json);
        read.map_err(|error| Problem::Failed(format!("read an object: {}", shown(&error.to_string()))))
    }

    /// Who is there. That there is nobody at all, not even one who ends, is doubted unless somebody was
    /// deleted to make it so: a slip in a selector looks like that.
    pub(super) fn answer(&self, cause: Cause) -> Answer {
        let places: Vec<&Place> = self.objects.values().flat_map(|it| &it.places).collect();
        let note = self.objects.values().find_map(|it| it.note.clone());
        if places.is_empty() && cause != Cause::Deleted {
            let none = || Some("there are no workers".to_owned());
            return Answer { heard: Heard::List(Vec::new()), note: note.or_else(none) };
        }
        let mut standings: BTreeMap<&Address, (Standing, &WorkerUrl)> = BTreeMap::new();
        for place in one_of_each(&places) {
            let entry = standings.entry(&place.worker.address).or_insert((place.standing, &place.worker));
            if place.standing < entry.0 {
                *entry = (place.standing, &place.worker);
            }
        }
        let of = |standing| {
            let those = standings.values().filter(move |it| it.0 == standing);
            those.map(|it| it.1.clone()).collect::<Vec<WorkerUrl>>()
        };
        Answer { heard: Heard::Census { ready: of(Standing::Ready), unready: of(Standing::Unready) }, note }
    }
}

/// Without the second address of those who have two.
fn one_of_each<'a>(places: &[&'a Place]) -> impl Iterator<Item = &'a Place> {
    let with_ipv4: std::collections::BTreeSet<&str> =
        places.iter().filter(|it| !it.is_ipv6).filter_map(|it| it.owner.as_deref()).collect();
    let is_second =
        move |it: &Place| it.is_ipv6 && it.owner.as_deref().is_some_and(|owner| with_ipv4.contains(owner));
    places.iter().copied().filter(move |it| !is_second(it)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(slices: &[serde_json::Value]) -> Store {
        let crate::Source::Kubernetes(cluster) = "kubernetes:a/vllm".parse().unwrap() else { panic!() };
        let mut store = Store::new(cluster);
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
    fn check(store: &Store, cause: Cause, ready: &[&str], unready: &[&str]) {
        let found = |urls: &[&str]| urls.iter().map(|it| it.parse().unwrap()).collect();
        let expected = Heard::Census { ready: found(ready), unready: found(unready) };
        assert_eq!(store.answer(cause).heard, expected);
    }

    #[test]
    fn an_engine_with_two_addresses_is_one_worker() {
        let ready = serde_json::json!({"ready": true});
        let four = slice("four", &[("10.0.0.7", "p", ready.clone())]);
        let six = slice("six", &[("fd00::7", "p", ready.clone()), ("fd00::8", "q", ready)]);
        let store = store(&[six, four]);
        check(&store, Cause::Listed, &["http://10.0.0.7:8000", "http://[fd00::8]:8000"], &[]);
    }

    #[test]
    fn one_that_moves_between_slices_is_ready_if_either_says_so() {
        let (yes, no) = (serde_json::json!({"ready": true}), serde_json::json!({"ready": false}));
        for slices in [[&yes, &no], [&no, &yes]] {
            let slices = [("a", slices[0]), ("b", slices[1])];
            let store = store(&slices.map(|(name, it)| slice(name, &[("10.0.0.7", "p", it.clone())])));
            check(&store, Cause::Changed, &["http://10.0.0.7:8000"], &[]);
        }
    }

    #[test]
    fn nobody_is_doubted_unless_somebody_ends_or_was_deleted() {
        let nobody = Heard::List(Vec::new());
        let empty = store(&[slice("a", &[])]);
        assert_eq!(empty.answer(Cause::Listed).heard, nobody);
        assert_eq!(empty.answer(Cause::Changed).heard, nobody);
        check(&empty, Cause::Deleted, &[], &[]);
        let ending = slice("a", &[("10.0.0.7", "p", serde_json::json!({"terminating": true}))]);
        check(&store(&[ending]), Cause::Changed, &[], &[]);
    }

    #[test]
    fn an_object_is_replaced_by_its_name_and_removed_by_it() {
        let ready = serde_json::json!({"ready": true});
        let mut store = store(&[slice("a", &[("10.0.0.7", "p", ready.clone())])]);
        store.put(&slice("a", &[("10.0.0.8", "q", ready)]).to_string()).unwrap();
        check(&store, Cause::Changed, &["http://10.0.0.8:8000"], &[]);
        store.remove(&slice("a", &[]).to_string()).unwrap();
        check(&store, Cause::Deleted, &[], &[]);
    }
}

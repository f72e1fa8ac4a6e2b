//! Workers by the addresses that gateways know them by.

use std::collections::HashSet;
use std::sync::Arc;

use maitre_base::WorkerId;
use maitre_grpc::ext_proc::Metadata;
use maitre_grpc::structure::{Kind, Struct, Value};

use crate::brain::SharedBrain;
use crate::link::Link;

/// The header and the metadata that name the worker, or the workers to try in turn.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The namespace of that metadata, and of what the gateway reports.
const LB: &str = "envoy.lb";
/// Where the gateway has sent the request in the end.
const SERVED: &str = "x-gateway-destination-endpoint-served";
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// The only workers that may take the request.
const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// The workers to try, best first, each address once.
pub(super) fn destinations(first: &Link, fallbacks: &[Arc<Link>]) -> String {
    let mut endpoints = vec![first.endpoint.as_str()];
    for link in fallbacks {
        if !endpoints.contains(&link.endpoint.as_str()) {
            endpoints.push(&link.endpoint);
        }
    }
    endpoints.join(",")
}

/// The metadata that goes with the header.
pub(super) fn metadata(destinations: &str) -> Struct {
    Struct::of(LB, Kind::Struct(Struct::of(DESTINATION, Kind::Text(destinations.to_owned()))))
}

/// The workers that the gateway allows for a request; none if it allows all.
pub(super) fn allowed(brain: &SharedBrain, metadata: Option<&Metadata>) -> Option<Vec<WorkerId>> {
    let subset = metadata?.filter_metadata.get(SUBSET_NAMESPACE)?.get(SUBSET)?;
    let named = names(subset);
    let is_named = |it: &Link| named.contains(it.endpoint.as_str()) || named.contains(it.address.host());
    Some(brain.links().iter().filter(|it| is_named(it)).map(|it| it.worker).collect())
}

/// A list of texts, or one text with commas.
fn names(kind: &Kind) -> HashSet<&str> {
    let texts: Vec<&str> = match kind {
        Kind::Text(text) => text.split(',').collect(),
        Kind::List(list) => list.values.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    texts.into_iter().map(str::trim).filter(|it| !it.is_empty()).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value.kind.as_ref()? {
        Kind::Text(text) => Some(text),
        _ => None,
    }
}

/// The worker that has served the request, which was placed at `placed`. None if the gateway does not say, or names
/// nobody we know.
pub(super) fn served(brain: &SharedBrain, metadata: Option<&Metadata>, placed: &Link) -> Option<WorkerId> {
    let Some(Kind::Text(endpoint)) = metadata?.filter_metadata.get(LB)?.get(SERVED) else { return None };
    if *endpoint == placed.endpoint {
        return Some(placed.worker);
    }
    let links = brain.links();
    let mut there = links.iter().filter(|it| it.endpoint == *endpoint);
    // The header that names the rank was the same for all.
    let same_rank = there.clone().find(|it| it.rank == placed.rank);
    same_rank.or_else(|| there.next()).map(|it| it.worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_is_a_list_or_a_text_with_commas() {
        let expected = HashSet::from(["10.0.0.1:8000", "10.0.0.2"]);
        assert_eq!(names(&Kind::texts(["10.0.0.1:8000", "10.0.0.2"])), expected);
        assert_eq!(names(&Kind::Text("10.0.0.1:8000, 10.0.0.2,".to_owned())), expected);
        assert!(names(&Kind::Text(String::new())).is_empty());
        assert!(names(&Kind::Number(1.0)).is_empty());
    }
}

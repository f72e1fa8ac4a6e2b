//! Whether this router can take requests, as probes on both listeners learn it.
//!
//! Engines serve `/health` and `/ping` beside their API. Gateways, load balancers and benchmarks ask for these before
//! they send anything, so the router has them beside its API, too. A probe is no request: it needs no key, appears in no
//! metric, and its answer says nothing but whether the router is ready.

use bytes::Bytes;
use http::{Method, Request, Response};
use maitre_fleet::HealthState;

use crate::refuse::{Health, plain};
use crate::state::RouterState;

/// Ready: not draining, synced with the cluster, and at least one worker can take a request.
pub(crate) fn readiness(router: &RouterState) -> Response<Bytes> {
    if router.shutdown.is_draining() {
        return plain(Health::Unwell, "draining\n");
    }
    if router.is_joining() {
        return plain(Health::Unwell, "joining the other routers\n");
    }
    match is_ready(router) {
        true => plain(Health::Well, "ready\n"),
        false => plain(Health::Unwell, "no worker is ready\n"),
    }
}

pub(crate) fn is_ready(router: &RouterState) -> bool {
    let fit = |state| matches!(state, HealthState::Ready | HealthState::Warming { .. });
    router.brain.read(|brain| brain.fleet().workers().any(|it| fit(it.health.state())))
}

/// The answer to a probe on the listener for clients. None if it is no probe, or if the operator forwards this path to
/// workers.
pub(crate) fn probe<B>(router: &RouterState, request: &Request<B>) -> Option<Response<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let is_probe = match path {
        "/health" => is_read(method),
        // AWS SageMaker's probe; vLLM and SGLang answer it to both methods.
        "/ping" => is_read(method) || method == Method::POST,
        _ => false,
    };
    let is_forwarded = || router.settings.load().passthrough.iter().any(|it| it == path);
    (is_probe && !is_forwarded()).then(|| readiness(router))
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

//! The answers to probes of this router, on both listeners.
//!
//! Engines serve `/health` and `/ping` beside their API. Gateways, load balancers and benchmarks ask for these before
//! they send anything, so the router has them beside its API, too. A probe is no request: it needs no key, appears in no
//! metric, and its answer says nothing but whether the router is ready.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};

use crate::headers;
use crate::readiness::Readiness;
use crate::refuse::{Health, plain};
use crate::settings::RouterSettings;
use crate::state::RouterState;

pub(crate) fn readiness(router: &RouterState) -> Response<Bytes> {
    let readiness = router.brain.read(|brain| router.readiness(brain));
    let health = if readiness == Readiness::Ready { Health::Healthy } else { Health::Unhealthy };
    let mut answer = plain(health, format!("{}\n", readiness.name()));
    answer.headers_mut().insert(headers::ROUTER, router.request_ids.router());
    answer
}

/// The answer to a probe on the listener for clients. None if it is no probe, or if the operator forwards this path to
/// workers.
pub(crate) fn probe<B>(
    router: &RouterState,
    settings: &RouterSettings,
    request: &Request<B>,
) -> Option<Response<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let answer = match path {
        "/health" if is_read => readiness,
        // AWS SageMaker's probe; vLLM and SGLang answer it to both methods.
        "/ping" if is_read || method == Method::POST => readiness,
        "/readiness" | "/health_generate" if is_read && settings.compat_paths => readiness,
        "/liveness" if is_read && settings.compat_paths => {
            |_: &RouterState| plain(Health::Healthy, "alive\n")
        }
        "/metrics" if is_read && settings.compat_paths => return metrics(router, request.headers()),
        _ => return None,
    };
    let is_forwarded = settings.passthrough.iter().any(|it| it == path);
    (!is_forwarded).then(|| answer(router))
}

/// Metrics name workers, which is nothing for a tenant. Where clients need keys, a scraper needs a trusted one; for any
/// other this is an unknown path.
fn metrics(router: &RouterState, headers: &HeaderMap) -> Option<Response<Bytes>> {
    match router.settings.load().keys.caller(headers) {
        Ok(caller) if caller.is_trusted() => Some(router.scrape(headers)),
        Ok(_) => None,
        Err(refused) => Some(refused.answer(None)),
    }
}

//! The first stage: whose request it is, and what it asks for. No byte of the body has been read.

use bytes::Bytes;
use http::{Method, Request, Version};
use maitre_base::WorkerId;
use maitre_dialect::route::Route;

use super::guard::RequestGuard;
use super::models;
use crate::headers;
use crate::keys::Caller;
use crate::refuse::{Refused, echo};
use crate::settings::RouterSettings;

/// In the shape of vLLM's.
const VERSION: &str = concat!(r#"{"version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

pub(super) enum Admission {
    /// What the router answers itself, as this caller may see it.
    Own(Bytes),
    Forward(Admitted),
}

/// A request that may go to a worker.
pub(super) struct Admitted {
    pub(super) caller: Caller,
    /// None: a path outside the API that the operator forwards.
    pub(super) route: Option<Route>,
    /// The client asks for the whole decision in a response header, and may.
    pub(super) explain: bool,
    pub(super) carrier: Carrier,
}

/// Who sends the request to its worker.
#[derive(Debug)]
pub(crate) enum Carrier {
    Router,
    /// It asked where to send it. Only these workers may take it; none: all.
    Gateway(Option<Vec<WorkerId>>),
}

/// Refuses a request without a valid key, or for a path that is not served.
pub(super) fn admit<B>(guard: &mut RequestGuard, request: &mut Request<B>) -> Result<Admission, Refused> {
    check_headers(guard.settings.limits.header_bytes, request)?;
    let caller = guard.settings.keys.caller(request.headers());
    // The refusal has the shape of the API that the client meant to use.
    let caller = caller.inspect_err(|_| guard.routed(Route::of(request.uri().path())))?;
    guard.is_trusted = caller.is_trusted();
    guard.begin_trace(request);
    let route = match target(&guard.settings, &caller, request.method(), request.uri().path())? {
        RequestTarget::Models => {
            return Ok(Admission::Own(models::list(&guard.lane.state.brain, &caller)));
        }
        RequestTarget::Model(id) => {
            return models::one(&guard.lane.state.brain, &caller, &id).map(Admission::Own);
        }
        RequestTarget::Version => return Ok(Admission::Own(Bytes::from_static(VERSION.as_bytes()))),
        RequestTarget::Route(route) => Some(route),
        RequestTarget::Forwarded => None,
    };
    guard.routed(route);
    let explain = headers::asks_to_explain(request.headers_mut()) && guard.is_trusted;
    Ok(Admission::Forward(Admitted { caller, route, explain, carrier: Carrier::Router }))
}

/// The same for a request that a gateway carries. Which paths exist is the gateway's affair: a path outside the API goes to
/// a worker, too, unless its caller may not use every model.
pub(super) fn admit_carried<B>(
    guard: &mut RequestGuard,
    request: &mut Request<B>,
    only: Option<Vec<WorkerId>>,
) -> Result<Admitted, Refused> {
    let (method, path) = (request.method(), request.uri().path());
    let route = Route::of(path).filter(|_| method == Method::POST);
    let caller = guard.settings.keys.caller(request.headers());
    let caller = caller.inspect_err(|_| guard.routed(route))?;
    guard.is_trusted = caller.is_trusted();
    if route.is_none() && caller.is_limited() {
        return Err(Refused::UnknownPath { method: echo(method.as_str()), path: echo(path) });
    }
    guard.begin_trace(request);
    guard.routed(route);
    let explain = headers::asks_to_explain(request.headers_mut()) && guard.is_trusted;
    Ok(Admitted { caller, route, explain, carrier: Carrier::Gateway(only) })
}

/// Of HTTP/1.1, hyper has checked it.
fn check_headers<B>(limit: usize, request: &Request<B>) -> Result<(), Refused> {
    if request.version() != Version::HTTP_2 {
        return Ok(());
    }
    // As HTTP/2 counts them: RFC 9113, section 6.5.2.
    let size: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
    if size > limit { Err(Refused::HeadersTooLarge { limit }) } else { Ok(()) }
}

/// What a request asks for, by its method and path.
enum RequestTarget {
    Models,
    /// One model, by its id.
    Model(String),
    Version,
    Route(Route),
    /// A path outside the API that the operator forwards.
    Forwarded,
}

fn target(
    settings: &RouterSettings,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<RequestTarget, Refused> {
    let wrong = |allowed| Refused::WrongMethod { method: echo(method.as_str()), path: echo(path), allowed };
    match (Route::of(path), path) {
        // Of no use to any API. A worker might send back the headers, with the key that it requires.
        _ if *method == Method::TRACE || *method == Method::CONNECT => Err(wrong("GET, POST")),
        (Some(route), _) if method == Method::POST => Ok(RequestTarget::Route(route)),
        (Some(_), _) => Err(wrong("POST")),
        (None, "/v1/models") if method == Method::GET => Ok(RequestTarget::Models),
        (None, "/v1/models") => Err(wrong("GET")),
        (None, "/health" | "/ping" | "/version") if !settings.passthrough.iter().any(|it| it == path) => {
            // Other probes were answered before.
            let is_version = path == "/version" && method == Method::GET;
            if is_version { Ok(RequestTarget::Version) } else { Err(wrong("GET")) }
        }
        (None, _) if let Some(id) = models::id_in(path) => match *method {
            Method::GET => Ok(RequestTarget::Model(id)),
            _ => Err(wrong("GET")),
        },
        // The model in such a request is not checked, so a caller that may not use every model may not send one.
        (None, _) if is_forwarded(&settings.passthrough, path) && !caller.is_limited() => {
            Ok(RequestTarget::Forwarded)
        }
        (None, _) => Err(Refused::UnknownPath { method: echo(method.as_str()), path: echo(path) }),
    }
}

fn is_forwarded(allowed: &[String], path: &str) -> bool {
    allowed.iter().any(|it| match it.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix) && is_plain(path),
        None => it == path,
    })
}

/// Whether every server reads the path alike: it has no `..`, no empty parts and no encoded separators. Servers differ in
/// how they resolve those, so a path that begins as allowed could otherwise lead elsewhere.
fn is_plain(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let odd = |it: &str| matches!(it, "" | "." | "..");
    // Encoded dots, slashes and controls, and an encoded percent sign, which could encode any of these once more.
    let hides = |code: &str| {
        let byte = code.get(..2).and_then(|it| u8::from_str_radix(it, 16).ok());
        byte.is_none_or(|it| matches!(it, b'.' | b'/' | b'\\' | b'%' | b';' | 0x7f) || it < b' ')
    };
    !path.contains(['\\', ';']) && !path.split('/').skip(1).any(odd) && !path.split('%').skip(1).any(hides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_forwards_no_path_that_could_lead_elsewhere() {
        let allowed = ["/exact".to_owned(), "/sim/*".to_owned()];
        for path in
            ["/exact", "/sim/", "/sim/a", "/sim/a/b/", "/sim/a.b", "/sim/...", "/sim/a%20b", "/sim/caf%c3%a9"]
        {
            assert!(is_forwarded(&allowed, path), "{path}");
        }
        for path in [
            "/exact/",
            "/Exact",
            "/sim",
            "/other",
            "*",
            "",
            "/sim/../metrics",
            "/sim/a/..",
            "/sim/./a",
            "/sim/.",
            "/sim/%2e%2e/metrics",
            "/sim/%2E./metrics",
            "/sim/a%2fb",
            "/sim/..%2Fmetrics",
            "/sim//a",
            "/sim//",
            "//sim/a",
            "/sim/a\\b",
            "/sim/%5c..",
            "/sim/%252e%252e/",
            "/sim/a%00",
            "/sim/a%",
            "/sim/a%2",
            "/sim/a%zz",
            "/sim/a%é",
            "/sim/..;/metrics",
            "/sim/%3b",
            "/sim/%0d%0a",
        ] {
            assert!(!is_forwarded(&allowed, path), "{path}");
        }
    }
}

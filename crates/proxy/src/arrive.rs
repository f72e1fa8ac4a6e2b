//! A request at the door: what it asks for, and its body in one piece.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use maitre_base::{Instant, RequestId, hash};
use maitre_dialect::engine;
use maitre_dialect::openai::{self, BadRequest};
use maitre_dialect::route::Route;
use maitre_dispatch::{Arrival, Form, Placement};
use maitre_fleet::estimate::{Decodes, Size};
use maitre_net::upstream::UpstreamRequest;
use tokio::time::timeout;

use crate::headers;
use crate::house::{Held, RouterState};
use crate::keys::Caller;
use crate::link::Link;
use crate::priority::{self, Priority, Rules};
use crate::reading::Reading;
use crate::refuse::{Refused, echo};
use crate::settings::{Session, Settings};
use crate::traces::{Context, TRACEPARENT};
use crate::visit::RequestGuard;

/// A request, whole.
pub(crate) struct Arrived {
    /// None: a path outside the API that the operator lets pass.
    pub(crate) route: Option<Route>,
    pub(crate) at: Instant,
    method: Method,
    target: PathAndQuery,
    headers: HeaderMap,
    body: Bytes,
    /// Known once it has been read, and kept only where engines are told.
    urgency: OnceLock<Urgency>,
    /// Its tenant's, where caches are kept apart: known once it has been parsed.
    salt: OnceLock<String>,
    /// If it is traced, what its workers are told of that.
    pub(crate) trace: Option<Context>,
    _held: Held,
}

/// How many classes go before a request, and how many there are.
#[derive(Clone, Copy)]
struct Urgency {
    place: usize,
    classes: usize,
}

/// What a request is by its method and path.
pub(crate) enum Asked {
    Models,
    Route(Route),
    Passed,
}

pub(crate) fn asked(
    settings: &Settings,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<Asked, Refused> {
    let wrong = |allowed| Refused::WrongMethod { method: echo(method.as_str()), path: echo(path), allowed };
    match (Route::of(path), path) {
        (Some(route), _) if method == Method::POST => Ok(Asked::Route(route)),
        (Some(_), _) => Err(wrong("POST")),
        (None, "/v1/models") if method == Method::GET => Ok(Asked::Models),
        (None, "/v1/models") => Err(wrong("GET")),
        // Nobody reads there which model is asked for, so whoever may not have all of them may not go there.
        (None, _) if passes(&settings.pass, path) && !caller.is_limited() => Ok(Asked::Passed),
        (None, _) => Err(Refused::UnknownPath { method: echo(method.as_str()), path: echo(path) }),
    }
}

fn passes(allowed: &[String], path: &str) -> bool {
    allowed.iter().any(|it| match it.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning) && is_plain(path),
        None => it == path,
    })
}

/// Whether a path means the same to whoever reads it: nothing in it leads back up, and nothing that divides it is
/// hidden. What begins as it should may else end up elsewhere, for workers and proxies before them do not agree
/// on such things.
fn is_plain(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let odd = |it: &str| matches!(it, "" | "." | "..");
    // Of what is encoded, all but dots, slashes, controls, and the sign that could encode any of these once more.
    let hides = |code: &str| {
        let byte = code.get(..2).and_then(|it| u8::from_str_radix(it, 16).ok());
        byte.is_none_or(|it| matches!(it, b'.' | b'/' | b'\\' | b'%' | b';' | 0x7f) || it < b' ')
    };
    !path.contains(['\\', ';']) && !path.split('/').skip(1).any(odd) && !path.split('%').skip(1).any(hides)
}

impl Arrived {
    /// Reads the body, up to the limits.
    pub(crate) async fn read(visit: &RequestGuard, request: Request<Incoming>) -> Result<Arrived, Refused> {
        let (house, route, at) = (&visit.lane.house, visit.route, visit.arrived);
        let (mut parts, body) = request.into_parts();
        if let Some(encoding) = parts.headers.get(CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(Refused::EncodedBody(echo(&String::from_utf8_lossy(encoding.as_bytes()))));
        }
        let patience = house.settings().timeouts.client_body;
        let body = timeout(patience, collect(house, body)).await;
        let (body, held) = body.map_err(|_| Refused::BodyTooSlow(patience))??;
        headers::toward_worker(&mut parts.headers);
        hand_over(visit, &mut parts.headers);
        let target = parts.uri.into_parts().path_and_query;
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let (method, headers) = (parts.method, parts.headers);
        let (urgency, salt) = (OnceLock::new(), OnceLock::new());
        Ok(Arrived { route, at, method, target, headers, body, urgency, salt, trace: None, _held: held })
    }

    /// One that nobody sent: somebody wants to know what would become of it.
    pub(crate) fn made(house: &Arc<RouterState>, route: Route, body: Bytes) -> Result<Arrived, Refused> {
        let held = house.hold(body.len()).ok_or(Refused::TooBusy)?;
        Ok(Arrived {
            route: Some(route),
            at: house.now(),
            method: Method::POST,
            target: PathAndQuery::from_static("/"),
            headers: HeaderMap::new(),
            body,
            urgency: OnceLock::new(),
            salt: OnceLock::new(),
            trace: None,
            _held: held,
        })
    }

    /// What routing must know of the body. Where caches are kept apart its salt is ours already.
    pub(crate) fn parse(
        &self,
        settings: &Settings,
        caller: &Caller,
    ) -> Result<Option<openai::Request<'_>>, Refused> {
        let Some(route) = self.route else { return Ok(None) };
        let mut parsed = openai::parse(route, &self.body).map_err(Refused::BadRequest)?;
        if needs_model(route) && parsed.model.is_none() {
            return Err(Refused::BadRequest(BadRequest::Missing { field: "model" }));
        }
        if let Some(salter) = &settings.salt {
            let tenant =
                priority::known_by(rules(settings, caller), &self.headers, Some(&parsed)).unwrap_or_default();
            let salt = salter.salt(tenant, parsed.cache_salt.as_deref());
            parsed.cache_salt = Some(Cow::Owned(self.salt.get_or_init(|| salt).clone()));
        }
        Ok(Some(parsed))
    }

    /// The request as the brain sees it.
    pub(crate) fn arrival<'a>(
        &self,
        settings: &Settings,
        caller: &Caller,
        request: RequestId,
        read: Option<(&'a openai::Request<'_>, &'a Reading)>,
    ) -> Result<Arrival<'a>, Refused> {
        let rules = rules(settings, caller);
        let priority = priority::priority(rules, self.at, &self.headers, read.map(|(parsed, _)| parsed))?;
        // A number that somebody may not choose must not reach an engine as it is.
        let claims = || read.is_some_and(|(parsed, _)| parsed.priority.is_some());
        if settings.door.forward_priority || !caller.is_trusted() && claims() {
            let (place, classes) = (priority.class.index(), rules.queue.classes.len());
            self.urgency.get_or_init(|| Urgency { place, classes });
        }
        let Some((parsed, reading)) = read else { return Ok(stranger(request, self.body.len(), priority)) };
        let needs = settings.brain.needs();
        let session = needs.session || settings.record.file.is_some();
        let decodes = match self.route.is_some_and(Route::decodes) {
            true => Decodes::Yes,
            false => Decodes::No,
        };
        Ok(Arrival {
            request,
            model: parsed.model.as_deref(),
            size: reading.size,
            answer_max: parsed.max_tokens,
            decodes,
            form: if parsed.stream { Form::Stream } else { Form::Whole },
            session: session.then(|| self.session(&settings.session, parsed)).flatten(),
            head: needs.head.then(|| head(parsed, settings.head_bytes)).flatten(),
            class: priority.class,
            tenant: priority.tenant,
            deadline: priority.deadline,
            prompt: reading.prompt.as_ref(),
        })
    }

    fn session(&self, session: &Session, parsed: &openai::Request<'_>) -> Option<u64> {
        let header = self.headers.get(&session.header).map(HeaderValue::as_bytes);
        let cookie = || headers::cookie(&self.headers, &session.cookie).map(str::as_bytes);
        let body = || parsed.session.as_deref().or(parsed.user.as_deref()).map(str::as_bytes);
        let key = header.or_else(cookie).or_else(body)?;
        Some(hash::bytes(0, key))
    }

    /// The request as this worker gets it: the client's own bytes, but for how urgent it is and for its salt, where the
    /// operator wants that said.
    pub(crate) fn toward(&self, link: &Link, placement: &Placement) -> UpstreamRequest {
        let host = link.address.header();
        let body = self.body_toward(link);
        if link.rank.is_none() && self.trace.is_none() {
            return UpstreamRequest::new(&self.method, &self.target, host, &self.headers, body);
        }
        let mut headers = self.headers.clone();
        if let Some(rank) = link.rank {
            // The placement is at one rank, whatever the client would have asked for.
            headers.insert(headers::RANK, HeaderValue::from(rank));
        }
        if let Some(trace) = &self.trace {
            headers.insert(TRACEPARENT, trace.toward(placement));
        }
        UpstreamRequest::new(&self.method, &self.target, host, &headers, body)
    }

    fn body_toward(&self, link: &Link) -> Bytes {
        let number = || {
            let &Urgency { place, classes } = self.urgency.get()?;
            link.kind()?.priority(self.route?, place, classes)
        };
        let body = match number() {
            Some(number) => changed(&self.body, openai::with_priority(&self.body, number)),
            None => self.body.clone(),
        };
        let salted = || {
            let salt = self.salt.get()?;
            Some((engine::salt_field(link.kind(), self.route?)?, salt))
        };
        match salted() {
            Some((field, salt)) => changed(&body, openai::with_salt(&body, field, salt)),
            None => body,
        }
    }
}

/// A body after what was done to it: without a copy, where that was nothing.
fn changed(body: &Bytes, changed: Cow<'_, [u8]>) -> Bytes {
    match changed {
        Cow::Owned(changed) => Bytes::from(changed),
        Cow::Borrowed(_) => body.clone(),
    }
}

fn rules<'a>(settings: &'a Settings, caller: &'a Caller) -> Rules<'a> {
    Rules { door: &settings.door, queue: &settings.brain.queue, caller }
}

/// Takes from a client's headers what is not for the worker. A key that we asked for was shown to us, and the worker
/// is shown ours; where we ask for none, it is between client and worker.
fn hand_over(visit: &RequestGuard, headers: &mut HeaderMap) {
    if !visit.caller.is_trusted() {
        headers::strip_steering(headers);
    }
    if visit.caller.key().is_some() {
        headers::strip_keys(headers);
        if let Some(key) = &visit.settings.worker_key {
            headers.insert(AUTHORIZATION, key.header().clone());
        }
    }
}

/// The APIs whose every client names a model; the others may leave it to the fleet.
fn needs_model(route: Route) -> bool {
    use Route::{Chat, Completions, Embeddings, Messages, Responses};
    matches!(route, Chat | Completions | Responses | Messages | Embeddings)
}

/// A request nobody has parsed.
fn stranger<'a>(request: RequestId, bytes: usize, priority: Priority) -> Arrival<'a> {
    let size = Size::Bytes(bytes as u64);
    Arrival {
        request,
        model: None,
        size,
        answer_max: None,
        decodes: Decodes::No,
        form: Form::Whole,
        session: None,
        head: None,
        class: priority.class,
        tenant: priority.tenant,
        deadline: priority.deadline,
        prompt: None,
    }
}

fn head(parsed: &openai::Request<'_>, limit: usize) -> Option<u64> {
    let mut hasher = hash::Hasher::new(0);
    let mut any = false;
    // Prompts of different models, adapters and salts share no cache.
    for root in [&parsed.model, &parsed.lora, &parsed.cache_salt] {
        hasher.write(root.as_deref().unwrap_or("").as_bytes());
        hasher.write(&[0xFF]);
    }
    parsed.prompt.head(limit, |bytes| {
        any |= !bytes.is_empty();
        hasher.write(bytes);
    });
    any.then(|| hasher.finish())
}

/// The body in one piece, and the room it takes.
async fn collect(house: &Arc<RouterState>, mut body: Incoming) -> Result<(Bytes, Held), Refused> {
    let limit = house.settings().limits.body_bytes;
    let too_large = Refused::BodyTooLarge { limit };
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large);
    }
    // A body without a length is counted as it grows.
    let mut held = house.hold(hint.lower() as usize).ok_or(Refused::TooBusy)?;
    // Most bodies come in one piece, and stay where hyper read them.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refused::BodyBroken)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(too_large);
        }
        if !held.grow(first.len() + rest.len() + data.len()) {
            return Err(Refused::TooBusy);
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(hint.exact().map_or(0, |it| it as usize).max(first.len() + data.len()));
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    Ok((if rest.is_empty() { first } else { rest.freeze() }, held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_with_different_salts_have_different_heads() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
        let head = |salt: &'static str| {
            let mut parsed = openai::parse(Route::Chat, body).unwrap();
            parsed.cache_salt = Some(Cow::Borrowed(salt));
            head(&parsed, 1_024).unwrap()
        };
        assert_eq!(head("a"), head("a"));
        assert_ne!(head("a"), head("b"));
    }

    #[test]
    fn a_pattern_lets_nothing_through_that_may_lead_elsewhere() {
        let allowed = ["/exact".to_owned(), "/sim/*".to_owned()];
        for path in
            ["/exact", "/sim/", "/sim/a", "/sim/a/b/", "/sim/a.b", "/sim/...", "/sim/a%20b", "/sim/caf%c3%a9"]
        {
            assert!(passes(&allowed, path), "{path}");
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
            assert!(!passes(&allowed, path), "{path}");
        }
    }
}

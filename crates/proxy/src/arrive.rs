//! A request at the door: what it asks for, and its body in one piece.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use maitre_base::{Instant, RequestId, hash};
use maitre_dialect::openai::{self, BadRequest};
use maitre_dialect::route::Route;
use maitre_dispatch::{Arrival, Form};
use maitre_fleet::estimate::{Decodes, Size};
use tokio::time::timeout;

use crate::door::{self, Rules, Standing};
use crate::headers;
use crate::house::{Held, House};
use crate::line::Outgoing;
use crate::link::Link;
use crate::reading::Reading;
use crate::refuse::{Refused, echo};
use crate::settings::{Session, Settings};

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

pub(crate) fn asked(settings: &Settings, method: &Method, path: &str) -> Result<Asked, Refused> {
    let wrong = |allowed| Refused::WrongMethod { method: echo(method.as_str()), path: echo(path), allowed };
    match (Route::of(path), path) {
        (Some(route), _) if method == Method::POST => Ok(Asked::Route(route)),
        (Some(_), _) => Err(wrong("POST")),
        (None, "/v1/models") if method == Method::GET => Ok(Asked::Models),
        (None, "/v1/models") => Err(wrong("GET")),
        (None, _) if passes(&settings.pass, path) => Ok(Asked::Passed),
        (None, _) => Err(Refused::UnknownPath { method: echo(method.as_str()), path: echo(path) }),
    }
}

fn passes(allowed: &[String], path: &str) -> bool {
    allowed.iter().any(|it| match it.strip_suffix('*') {
        Some(beginning) => path.starts_with(beginning),
        None => it == path,
    })
}

impl Arrived {
    /// Reads the body, up to the limits.
    pub(crate) async fn read(
        house: &Arc<House>,
        at: Instant,
        route: Option<Route>,
        request: Request<Incoming>,
    ) -> Result<Arrived, Refused> {
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
        let target = parts.uri.into_parts().path_and_query;
        let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
        let (method, headers, urgency) = (parts.method, parts.headers, OnceLock::new());
        Ok(Arrived { route, at, method, target, headers, body, urgency, _held: held })
    }

    /// One that nobody sent: somebody wants to know what would become of it.
    pub(crate) fn made(house: &Arc<House>, route: Route, body: Bytes) -> Result<Arrived, Refused> {
        let held = house.hold(body.len()).ok_or(Refused::TooBusy)?;
        Ok(Arrived {
            route: Some(route),
            at: house.now(),
            method: Method::POST,
            target: PathAndQuery::from_static("/"),
            headers: HeaderMap::new(),
            body,
            urgency: OnceLock::new(),
            _held: held,
        })
    }

    /// What routing must know of the body.
    pub(crate) fn parse(&self) -> Result<Option<openai::Request<'_>>, Refused> {
        let Some(route) = self.route else { return Ok(None) };
        let parsed = openai::parse(route, &self.body).map_err(Refused::BadRequest)?;
        if needs_model(route) && parsed.model.is_none() {
            return Err(Refused::BadRequest(BadRequest::Missing { field: "model" }));
        }
        Ok(Some(parsed))
    }

    /// The request as the brain sees it.
    pub(crate) fn arrival<'a>(
        &self,
        settings: &Settings,
        request: RequestId,
        read: Option<(&'a openai::Request<'_>, &'a Reading)>,
    ) -> Result<Arrival<'a>, Refused> {
        let rules = Rules { door: &settings.door, queue: &settings.brain.queue };
        let standing = door::standing(rules, self.at, &self.headers, read.map(|(parsed, _)| parsed))?;
        if settings.door.forward_priority {
            let (place, classes) = (standing.class.index(), rules.queue.classes.len());
            self.urgency.get_or_init(|| Urgency { place, classes });
        }
        let Some((parsed, reading)) = read else { return Ok(stranger(request, self.body.len(), standing)) };
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
            class: standing.class,
            tenant: standing.tenant,
            deadline: standing.deadline,
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

    /// The request as this worker gets it: the client's own bytes, but for how urgent it is where the operator wants
    /// that said.
    pub(crate) fn toward(&self, link: &Link) -> Outgoing {
        let host = link.address.header();
        let body = self.body_toward(link);
        let Some(rank) = link.rank else {
            return Outgoing::new(&self.method, &self.target, host, &self.headers, body);
        };
        // The seat is at one rank, whatever the client would have asked for.
        let mut headers = self.headers.clone();
        headers.insert(headers::RANK, HeaderValue::from(rank));
        Outgoing::new(&self.method, &self.target, host, &headers, body)
    }

    fn body_toward(&self, link: &Link) -> Bytes {
        let number = || {
            let &Urgency { place, classes } = self.urgency.get()?;
            link.kind()?.priority(self.route?, place, classes)
        };
        match number().map(|it| openai::with_priority(&self.body, it)) {
            Some(Cow::Owned(changed)) => Bytes::from(changed),
            Some(Cow::Borrowed(_)) | None => self.body.clone(),
        }
    }
}

/// The APIs whose every client names a model; the others may leave it to the fleet.
fn needs_model(route: Route) -> bool {
    use Route::{Chat, Completions, Embeddings, Messages, Responses};
    matches!(route, Chat | Completions | Responses | Messages | Embeddings)
}

/// A request nobody has parsed.
fn stranger<'a>(request: RequestId, bytes: usize, standing: Standing) -> Arrival<'a> {
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
        class: standing.class,
        tenant: standing.tenant,
        deadline: standing.deadline,
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
async fn collect(house: &Arc<House>, mut body: Incoming) -> Result<(Bytes, Held), Refused> {
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

//! The second stage: the whole request is in memory, and its body can be parsed.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use maitre_base::{Instant, RequestId, TenantId, WorkerId, hash};
use maitre_dialect::openai::{self, BadRequest};
use maitre_dialect::route::Route;
use maitre_dispatch::programs::ProgramRule;
use maitre_dispatch::{Arrival, Form};
use maitre_fleet::estimate::{Answers, Size};
use maitre_net::downstream::{BodyProgress, Downstream};
use maitre_net::spare;

use super::admit::{Admitted, Carrier};
use super::guard::RequestGuard;
use super::priority::{self, Priority, Rules};
use super::state_name;
use super::within::within;
use crate::body_memory::{BodyMemory, BodyReservation};
use crate::client::ClientSocket;
use crate::headers;
use crate::keys::Caller;
use crate::refuse::{Refused, echo};
use crate::settings::{RouterSettings, SessionSettings};
use crate::shown::ShownBody;
use crate::tokenize;
use crate::traces::Context;

/// The body of a request that is still to be read.
pub(crate) enum RequestBody<'a> {
    Http1(&'a mut Downstream<ClientSocket>),
    Http2(Incoming),
    /// As a gateway shows it.
    Shown(ShownBody<'a>),
}

/// A request, complete in memory.
pub(crate) struct Arrived {
    admitted: Admitted,
    pub(super) at: Instant,
    pub(super) method: Method,
    pub(super) target: PathAndQuery,
    /// As the worker gets them.
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// If the request is traced, the trace that its workers join.
    pub(super) trace: Option<Context>,
    _memory: BodyReservation,
}

/// The body, parsed as far as routing needs it.
pub(crate) struct ParsedBody<'a> {
    /// With the salt of its tenant, where tenants' caches are kept apart.
    pub(crate) request: openai::Request<'a>,
    /// The same salt, for the worker.
    pub(super) salt: Option<String>,
}

/// How many classes precede a request's, and how many there are: what an engine's own priority is computed from.
#[derive(Clone, Copy)]
pub(crate) struct Urgency {
    pub(super) place: usize,
    pub(super) classes: usize,
    /// The client sent a number of its own that it may not choose.
    pub(super) is_claimed: bool,
}

impl Drop for Arrived {
    fn drop(&mut self) {
        spare::keep_headers(std::mem::take(&mut self.headers));
    }
}

impl Arrived {
    /// Reads the body, up to the limits.
    pub(super) async fn read(
        guard: &mut RequestGuard,
        admitted: Admitted,
        request: Request<RequestBody<'_>>,
    ) -> Result<Arrived, Refused> {
        let (mut parts, body) = request.into_parts();
        if let Some(encoding) = parts.headers.get(CONTENT_ENCODING)
            && encoding != "identity"
        {
            return Err(Refused::EncodedBody(echo(&String::from_utf8_lossy(encoding.as_bytes()))));
        }
        let limit = guard.settings.timeouts.client_body;
        let tenant = checked_tenant(&guard.settings, &admitted.caller, &parts.headers);
        let mut memory = guard.lane.state.bodies.begin(tenant, guard.connection_bodies.clone());
        let body = within(limit, body.collect(&mut memory, guard.settings.limits.body_bytes)).await;
        let body = body.map_err(|_| Refused::BodyTooSlow(limit))??;
        if guard.is_http2() {
            headers::join_cookies(&mut parts.headers);
        }
        headers::toward_worker(&mut parts.headers);
        replace_keys(&guard.settings, &admitted.caller, &mut parts.headers);
        let target = parts.uri.into_parts().path_and_query;
        Ok(Arrived {
            admitted,
            at: guard.arrived,
            method: parts.method,
            target: target.unwrap_or_else(|| PathAndQuery::from_static("/")),
            headers: parts.headers,
            body,
            trace: guard.received(),
            _memory: memory,
        })
    }

    /// A request that no client sent, to explain what the router would do with it.
    pub(crate) fn hypothetical(
        bodies: &Arc<BodyMemory>,
        at: Instant,
        route: Route,
        body: Bytes,
    ) -> Result<Arrived, Refused> {
        let mut memory = bodies.begin(None, Arc::default());
        memory.complete(body.len()).map_err(Refused::TooBusy)?;
        Ok(Arrived {
            admitted: Admitted {
                caller: Caller::Anyone,
                route: Some(route),
                explain: true,
                carrier: Carrier::Router,
            },
            at,
            method: Method::POST,
            target: PathAndQuery::from_static("/"),
            headers: HeaderMap::new(),
            body,
            trace: None,
            _memory: memory,
        })
    }

    /// None: a path outside the API that the operator forwards.
    pub(crate) fn route(&self) -> Option<Route> {
        self.admitted.route
    }

    /// Whether a gateway carries the request: the router neither sends it nor sends it again.
    pub(super) fn is_carried(&self) -> bool {
        matches!(self.admitted.carrier, Carrier::Gateway(_))
    }

    /// The workers that may take it; none: all.
    pub(super) fn only(&self) -> Option<&[WorkerId]> {
        match &self.admitted.carrier {
            Carrier::Gateway(only) => only.as_deref(),
            Carrier::Router => None,
        }
    }

    /// Whether the client asked for the whole decision, and may have it.
    pub(super) fn explain(&self) -> bool {
        self.admitted.explain
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.admitted.caller
    }

    /// Parses the body. None if the path is not one of the API's.
    pub(crate) fn parse(&self, settings: &RouterSettings) -> Result<Option<ParsedBody<'_>>, Refused> {
        let Some(route) = self.route() else { return Ok(None) };
        let mut request = openai::parse(route, &self.body).map_err(Refused::BadRequest)?;
        if needs_model(route) && request.model.is_none() {
            return Err(Refused::BadRequest(BadRequest::Missing { field: "model" }));
        }
        let salt = settings.salt.as_ref().map(|salter| {
            let tenant = priority::tenant_name(self.rules(settings), &self.headers, Some(&request));
            salter.salt(tenant.unwrap_or_default(), request.cache_salt.as_deref())
        });
        if let Some(salt) = &salt {
            request.cache_salt = Some(Cow::Owned(salt.clone()));
        }
        Ok(Some(ParsedBody { request, salt }))
    }

    /// The request as the brain sees it, but for its model and its prompt; and its urgency if engines should know it.
    pub(super) fn facts(
        &self,
        settings: &RouterSettings,
        request: RequestId,
        parsed: Option<&openai::Request<'_>>,
    ) -> Result<(Arrival<'static>, Option<Urgency>), Refused> {
        let rules = self.rules(settings);
        let priority = priority::priority(rules, self.at, &self.headers, parsed)?;
        // A priority that the caller may not choose must not reach an engine unchanged.
        let claims = || parsed.is_some_and(|it| it.priority.is_some());
        let is_claimed = !self.caller().is_trusted() && claims();
        let (place, classes) = (priority.class.index(), rules.queue.classes.len());
        let rewrites = settings.hints.forward_priority || is_claimed;
        let urgency = rewrites.then_some(Urgency { place, classes, is_claimed });
        let Some(parsed) = parsed else {
            return Ok((unparsed(request, self.body.len(), priority), urgency));
        };
        let needs = settings.brain.needs();
        let session = needs.session || settings.record.file.is_some();
        let has_programs = settings.brain.programs.rule != ProgramRule::Off;
        let answers = match self.route().is_some_and(Route::decodes) {
            true => Answers(parsed.answers),
            false => Answers::NONE,
        };
        let arrival = Arrival {
            request,
            model: None,
            size: tokenize::size(parsed),
            answer_max: parsed.max_tokens,
            answers,
            form: if parsed.stream { Form::Stream } else { Form::Whole },
            session: session.then(|| self.session(&settings.session, parsed)).flatten(),
            program: has_programs.then(|| self.program(&settings.session, parsed)).flatten(),
            head: needs.head.then(|| head(parsed, settings.head_bytes)).flatten(),
            class: priority.class,
            tenant: priority.tenant,
            deadline: priority.deadline,
            prompt: None,
            may_split: false,
            state: self.state(parsed),
            only: None,
        };
        Ok((arrival, urgency))
    }

    /// The state of an earlier response that this request continues, if it does.
    pub(super) fn state(&self, parsed: &openai::Request<'_>) -> Option<u64> {
        let is_stateful = self.route() == Some(Route::Responses);
        let response = parsed.previous_response_id.as_deref().map(state_name::of_response);
        response
            .or_else(|| parsed.conversation.as_deref().map(state_name::of_conversation))
            .filter(|_| is_stateful)
    }

    /// The state of its conversation, which its worker holds from now on.
    pub(super) fn conversation(&self) -> Option<u64> {
        let route = self.route().filter(|&it| it == Route::Responses)?;
        let parsed = openai::parse(route, &self.body).ok()?;
        parsed.conversation.as_deref().map(state_name::of_conversation)
    }

    fn rules<'a>(&'a self, settings: &'a RouterSettings) -> Rules<'a> {
        let caller = self.caller();
        Rules { hints: &settings.hints, queue: &settings.brain.queue, caller, is_carried: self.is_carried() }
    }

    /// What connects the calls of an agent. Not the user, who may have many agents.
    fn program(&self, session: &SessionSettings, parsed: &openai::Request<'_>) -> Option<u64> {
        let names = headers::PROGRAMS.into_iter().chain([session.header.clone()]);
        let header = names.filter_map(|it| self.headers.get(it)).map(HeaderValue::as_bytes).next();
        let key = header.or_else(|| parsed.session.as_deref().map(str::as_bytes))?;
        Some(hash::bytes(0, key))
    }

    fn session(&self, session: &SessionSettings, parsed: &openai::Request<'_>) -> Option<u64> {
        let header = self.headers.get(&session.header).map(HeaderValue::as_bytes);
        let cookie = || headers::cookie(&self.headers, &session.cookie).map(str::as_bytes);
        let body = || parsed.session.as_deref().or(parsed.user.as_deref()).map(str::as_bytes);
        let key = header.or_else(cookie).or_else(body)?;
        Some(hash::bytes(0, key))
    }
}

/// Removes headers that are not for the worker. Where the router checks keys, the client's key is replaced by the one
/// for workers; elsewhere a key is between client and worker.
fn replace_keys(settings: &RouterSettings, caller: &Caller, headers: &mut HeaderMap) {
    if !caller.may_steer() {
        headers::strip_steering(headers);
    }
    if !caller.is_trusted() {
        headers::strip_priority(headers);
    }
    if caller.key().is_some() {
        headers::strip_keys(headers);
        if let Some(key) = &settings.worker_key {
            headers.insert(AUTHORIZATION, key.header().clone());
        }
    }
}

/// The APIs that require a model; with the others the fleet may choose one.
fn needs_model(route: Route) -> bool {
    use Route::{Chat, Completions, CountTokens, Embeddings, Messages, Responses};
    matches!(route, Chat | Completions | Responses | Messages | CountTokens | Embeddings)
}

/// A request whose body was not parsed.
fn unparsed(request: RequestId, bytes: usize, priority: Priority) -> Arrival<'static> {
    let size = Size::Bytes(bytes as u64);
    Arrival {
        request,
        model: None,
        size,
        answer_max: None,
        answers: Answers::NONE,
        form: Form::Whole,
        session: None,
        program: None,
        head: None,
        class: priority.class,
        tenant: priority.tenant,
        deadline: priority.deadline,
        prompt: None,
        may_split: false,
        state: None,
        only: None,
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

/// The tenant whose bodies are counted together: one whose key was checked. Others can name any tenant.
fn checked_tenant(settings: &RouterSettings, caller: &Caller, headers: &HeaderMap) -> Option<TenantId> {
    caller.key()?;
    let rules = Rules { hints: &settings.hints, queue: &settings.brain.queue, caller, is_carried: false };
    priority::tenant_name(rules, headers, None).map(maitre_queue::settings::tenant)
}

impl RequestBody<'_> {
    /// The body in one piece. Its bytes are counted in `memory` as they arrive, whatever length was announced.
    async fn collect(self, memory: &mut BodyReservation, limit: usize) -> Result<Bytes, Refused> {
        match self {
            RequestBody::Http1(client) => collect_http1(client, memory, limit).await,
            RequestBody::Http2(body) => collect_frames(body, memory, limit).await,
            RequestBody::Shown(body) => collect_frames(body, memory, limit).await,
        }
    }
}

async fn collect_http1(
    client: &mut Downstream<ClientSocket>,
    memory: &mut BodyReservation,
    limit: usize,
) -> Result<Bytes, Refused> {
    let too_large = Refused::BodyTooLarge { limit };
    if client.bytes_announced().is_some_and(|it| it > limit as u64) {
        return Err(too_large);
    }
    loop {
        match client.receive_body().await.map_err(|_| Refused::BodyBroken)? {
            BodyProgress::Complete(body) if body.len() > limit => return Err(too_large),
            BodyProgress::Complete(body) => {
                memory.complete(body.len()).map_err(Refused::TooBusy)?;
                return Ok(body);
            }
            BodyProgress::Partial(bytes) if bytes > limit => return Err(too_large),
            BodyProgress::Partial(bytes) => memory.receive(bytes).map_err(Refused::TooBusy)?,
        }
    }
}

async fn collect_frames(
    mut body: impl Body<Data = Bytes> + Unpin,
    memory: &mut BodyReservation,
    limit: usize,
) -> Result<Bytes, Refused> {
    let too_large = Refused::BodyTooLarge { limit };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large);
    }
    // Most bodies arrive in one frame, and stay in the buffer that hyper read them into.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refused::BodyBroken)?.into_data() else { continue };
        let bytes = first.len() + rest.len() + data.len();
        if bytes > limit {
            return Err(too_large);
        }
        if !body.is_end_stream() {
            memory.receive(bytes).map_err(Refused::TooBusy)?;
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            // Room for what is still to come, as far as it is announced: growing would copy it again. But no more than
            // eight times what has come, since an announcement costs a client nothing.
            let announced = bytes + usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX - bytes);
            rest.reserve(announced.min(8 * bytes).min(limit));
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    memory.complete(first.len() + rest.len()).map_err(Refused::TooBusy)?;
    Ok(if rest.is_empty() { first } else { rest.freeze() })
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
}

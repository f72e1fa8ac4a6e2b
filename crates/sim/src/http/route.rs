//! Requests in, answers out: which path does what.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Answer, Length, Words, escape};
use super::ask::{self, Ask, Delivery, Shape};
use super::body::{Body, Cut, Limit, Stream, Then};
use super::driver::Ticket;
use super::error::Refusal;
use super::fault::{Fault, Injection};
use super::oddity::Oddity;
use super::pooling;
use super::{Open, Shared, metrics};
use crate::clock;
use crate::engine::{self, Job};
use crate::events::disturbance::Disturbance;
use crate::kv::{Names, Root};
use crate::text;

/// The largest body we read. Chosen: the default of the router in front, so that it is never ours that
/// decides.
const BODY_BYTES_MAX: usize = 16 << 20;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
/// Prometheus' text format, as vLLM announces it.
const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

/// What goes back, short of faults.
enum Reply {
    Whole { content_type: &'static str, content: Bytes },
    Stream(Box<Stream>),
    Empty,
}

impl Reply {
    fn json(value: &Value) -> Reply {
        Reply::text(value.to_string())
    }

    fn text(json: String) -> Reply {
        Reply::Whole { content_type: JSON, content: json.into() }
    }
}

/// Serves one request. An error cuts the connection without an answer.
pub(super) async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let date = shared.settings.oddities.find(|it| match it {
        Oddity::Date(date) => Some(HeaderValue::from_static(date)),
        _ => None,
    });
    let mut response = answer(shared, request).await?;
    if let Some(date) = date {
        response.headers_mut().insert(DATE, date);
    }
    Ok(response)
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let open = shared.requests.enter();
    let (parts, incoming) = request.into_parts();
    let path = parts.uri.path();
    let collected = Limited::new(incoming, BODY_BYTES_MAX).collect().await;
    let Ok(body) = collected.map(|it| it.to_bytes()) else {
        let refusal = Refusal::plain(StatusCode::PAYLOAD_TOO_LARGE);
        return Ok(respond(Err(refusal), None, open));
    };
    if let Some(command) = path.strip_prefix("/sim/") {
        return Ok(respond(command_sim(&shared, command, &parts.method, &body), None, open));
    }
    if !body.is_empty() {
        shared.record(path, &parts.headers, &body);
    }
    let limit = match shared.faults.take_request(parts.method == Method::POST) {
        None | Some(Fault::RefuseConnections | Fault::Slow { .. }) => None,
        Some(Fault::CloseBeforeHeaders) => return Err(Cut),
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Status { status }) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Ok(respond(Err(Refusal::plain(status)), None, open));
        }
        Some(Fault::CloseAfterHeaders) => Some(Limit { frames: 0, then: Then::FlushAndClose }),
        Some(Fault::CloseAfterChunks { chunks }) => Some(Limit { frames: chunks, then: Then::FlushAndClose }),
        Some(Fault::StallAfterChunks { chunks }) => Some(Limit { frames: chunks, then: Then::Stall }),
    };
    let request_id = parts.headers.get("x-request-id");
    let reply = match parts.method {
        _ if !may_enter(&shared, path, parts.headers.get(AUTHORIZATION)) => {
            Err(Refusal::plain(StatusCode::UNAUTHORIZED))
        }
        Method::GET => get(&shared, path),
        Method::POST => post(&shared, Posted { path, request_id, body: &body }).await,
        _ => Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
    };
    Ok(respond(reply, limit, open))
}

/// As vLLM does it: a key guards what lies below `/v1`, and nothing else.
fn may_enter(shared: &Shared, path: &str, key: Option<&HeaderValue>) -> bool {
    let wanted = shared.settings.oddities.find(|it| match it {
        Oddity::WantsKey(key) => Some(*key),
        _ => None,
    });
    let given = key.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
    !path.starts_with("/v1") || wanted.is_none_or(|wanted| given == Some(wanted))
}

struct Posted<'a> {
    path: &'a str,
    request_id: Option<&'a HeaderValue>,
    body: &'a [u8],
}

const GET_PATHS: &[&str] = &["/health", "/ping", "/version", "/v1/models", "/metrics", "/kv_event_sources"];

fn get(shared: &Shared, path: &str) -> Result<Reply, Refusal> {
    match path {
        "/health" | "/ping" => Ok(Reply::Empty),
        "/version" => Ok(Reply::json(&json!({"version": version(shared)}))),
        "/v1/models" => Ok(Reply::json(&models(shared))),
        "/metrics" if shared.settings.oddities.any(|it| matches!(it, Oddity::NoMetrics)) => {
            Err(Refusal::plain(StatusCode::NOT_FOUND))
        }
        "/metrics" => Ok(Reply::Whole { content_type: METRICS, content: metrics::render(shared).into() }),
        "/kv_event_sources" => Ok(Reply::json(&event_sources(shared))),
        _ if POST_PATHS.contains(&path) => Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(Refusal::plain(StatusCode::NOT_FOUND)),
    }
}

const POST_PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/generate",
    "/v1/embeddings",
    "/rerank",
    "/v1/rerank",
    "/score",
    "/v1/score",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/reset_prefix_cache",
];

async fn post(shared: &Shared, posted: Posted<'_>) -> Result<Reply, Refusal> {
    match posted.path {
        "/v1/chat/completions" => generate(shared, Shape::Chat, posted).await,
        "/v1/completions" => generate(shared, Shape::Completion, posted).await,
        "/v1/responses" => generate(shared, Shape::Responses, posted).await,
        "/v1/messages" => generate(shared, Shape::Messages, posted).await,
        "/generate" => generate(shared, Shape::Generate, posted).await,
        "/v1/embeddings" => pooling::embed(shared, posted.body).await.map(Reply::text),
        "/rerank" | "/v1/rerank" => pooling::rerank(shared, posted.body).await.map(Reply::text),
        "/score" | "/v1/score" => pooling::score(shared, posted.body).await.map(Reply::text),
        "/classify" => pooling::classify(shared, posted.body).await.map(Reply::text),
        "/tokenize" => tokenize(shared, posted.body),
        "/detokenize" => detokenize(posted.body),
        "/reset_prefix_cache" => Ok(Reply::json(&json!({"success": shared.driver.clear_cache()}))),
        "/v1/messages/count_tokens" => {
            Ok(Reply::json(&json!({"input_tokens": ask::parse_prompt(posted.body)?.len()})))
        }
        "/ping" => Ok(Reply::Empty),
        path if GET_PATHS.contains(&path) => Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(Refusal::plain(StatusCode::NOT_FOUND)),
    }
}

async fn generate(shared: &Shared, shape: Shape, posted: Posted<'_>) -> Result<Reply, Refusal> {
    let arrived = shared.driver.now();
    let ask = Ask::parse(shape, posted.body)?;
    if ask.delivery != Delivery::Whole && shape == Shape::Generate {
        return Err(Refusal::bad_request("stream: not simulated on this route"));
    }
    let model = shared.model(ask.model.as_deref())?;
    let root = shared.root(model, &shared.salt(&ask)?);
    let seed = text::seed(model, &ask.prompt);
    let words = Words::new(ask.call.as_ref(), seed);
    let profile = &shared.settings.engine.profile;
    let length = Length::of(&ask, &words, profile.context_tokens_max)?;
    let answer = Answer {
        shape,
        id: shared.answer_id(posted.request_id),
        model: escape(model),
        created: clock::unix_seconds(),
        prompt_tokens: ask.prompt.len() as u32,
        tokens: length.tokens,
        finish: length.finish,
        words,
        delivery: ask.delivery,
        tells_cached: shared.settings.oddities.tells_cached_tokens(),
    };
    let job = Job { root, prompt: ask.prompt, seed, answer_tokens: length.tokens, finish: length.finish };
    shared.driver.pay_overhead(arrived, profile.overhead).await;
    let ticket = shared.driver.submit(arrived, job)?;
    match ask.delivery {
        Delivery::Stream { .. } => Ok(Reply::Stream(Box::new(Stream::new(ticket, answer)))),
        Delivery::Whole => {
            let seen = ticket.finished().await;
            Ok(Reply::text(answer.whole(seen)))
        }
    }
}

impl Shared {
    /// The model or adapter of this name; without a name, the model.
    pub(super) fn model(&self, name: Option<&str>) -> Result<&str, Refusal> {
        let Some(name) = name else { return Ok(&self.settings.model) };
        let names = std::iter::once(&self.settings.model).chain(&self.settings.adapters);
        let known = names.into_iter().find(|it| *it == name);
        known.map(String::as_str).ok_or_else(|| Refusal::unknown_model(name))
    }

    /// The salt a request is cached under. An engine that caches no prefixes never meets the same one twice.
    fn salt(&self, ask: &Ask) -> Result<String, Refusal> {
        let odd = |is: fn(&Oddity) -> bool| self.settings.oddities.any(is);
        if !self.settings.oddities.caches_prefixes() {
            let number = self.requests.total.load(std::sync::atomic::Ordering::Relaxed);
            return Ok(number.to_string());
        }
        if !ask.salt.is_empty() && odd(|it| matches!(it, Oddity::RefusesSalts)) {
            return Err(Refusal::bad_request("cache_salt: extra fields are not permitted"));
        }
        Ok(if odd(|it| matches!(it, Oddity::IgnoresSalts)) { String::new() } else { ask.salt.clone() })
    }

    /// Where the cache of this model or adapter begins.
    fn root(&self, name: &str, salt: &str) -> Root {
        let model = &self.settings.model;
        Root::new(Names { model, adapter: (name != model).then_some(name), salt })
    }

    /// Hands in a job that is only prefilled. It costs one token of answer, which nobody sees.
    pub(super) fn submit_prefill(&self, model: &str, prompt: Vec<u32>) -> Result<Ticket, Refusal> {
        let job = Job {
            root: self.root(model, ""),
            seed: text::seed(model, &prompt),
            prompt,
            answer_tokens: 1,
            finish: engine::Finish::Stop,
        };
        Ok(self.driver.submit(self.driver.now(), job)?)
    }

    fn answer_id(&self, request_id: Option<&HeaderValue>) -> String {
        match request_id.and_then(|it| it.to_str().ok()) {
            Some(id) => escape(id),
            None => {
                let number = self.requests.total.load(std::sync::atomic::Ordering::Relaxed);
                format!("{:016x}", maitre_base::hash::pair(u64::from(self.addr.port()), number))
            }
        }
    }
}

/// Not a version of vLLM's, unless told so: a router that asks should see whom it talks to.
fn version(shared: &Shared) -> &'static str {
    let told = shared.settings.oddities.find(|it| match it {
        Oddity::Version(version) => Some(*version),
        _ => None,
    });
    told.unwrap_or(concat!("maitre-sim-", env!("CARGO_PKG_VERSION")))
}

fn models(shared: &Shared) -> Value {
    let settings = &shared.settings;
    if settings.oddities.any(|it| matches!(it, Oddity::NoModels)) {
        return json!({"object": "list", "data": []});
    }
    let card = |id: &str, parent: Option<&str>| {
        json!({
            "id": id,
            "object": "model",
            "created": clock::unix_seconds(),
            "owned_by": "vllm",
            "root": id,
            "parent": parent,
            "max_model_len": settings.engine.profile.context_tokens_max,
        })
    };
    let mut cards = vec![card(&settings.model, None)];
    cards.extend(settings.adapters.iter().map(|it| card(it, Some(&settings.model))));
    json!({"object": "list", "data": cards})
}

fn tokenize(shared: &Shared, body: &[u8]) -> Result<Reply, Refusal> {
    let odd = shared.settings.oddities.find(|it| match it {
        Oddity::Tokenizes(tokenize) => Some(tokenize(body)),
        _ => None,
    });
    let tokens = match odd {
        Some(tokens) => tokens.ok_or_else(|| Refusal::bad_request("messages: cannot be tokenized"))?,
        None => ask::parse_prompt(body)?,
    };
    Ok(Reply::json(&json!({
        "count": tokens.len(),
        "max_model_len": shared.settings.engine.profile.context_tokens_max,
        "tokens": tokens,
        "token_strs": null,
    })))
}

fn detokenize(body: &[u8]) -> Result<Reply, Refusal> {
    #[derive(Deserialize)]
    struct Fields {
        tokens: Vec<u32>,
    }
    let fields: Fields = serde_json::from_slice(body)?;
    Ok(Reply::json(&json!({"prompt": text::decode(&fields.tokens)})))
}

/// By data-parallel rank, of which there is one, as vLLM answers. Empty when nothing is published.
fn event_sources(shared: &Shared) -> Value {
    let Some(publisher) = &shared.publisher else { return json!({}) };
    let mut source = publisher.source();
    let told = shared.settings.oddities.find(|it| match it {
        Oddity::EventsToldAt(endpoint) => Some(*endpoint),
        _ => None,
    });
    if let Some(endpoint) = told {
        source["endpoint"] = endpoint.into();
    }
    json!({"0": source})
}

fn command_sim(shared: &Shared, command: &str, method: &Method, body: &[u8]) -> Result<Reply, Refusal> {
    match command {
        "fault" => set_fault(shared, method, body),
        "events" => disturb(shared, method, body),
        "restart" if *method == Method::POST => {
            shared.restart();
            Ok(Reply::Empty)
        }
        "restart" => Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(Refusal::plain(StatusCode::NOT_FOUND)),
    }
}

fn disturb(shared: &Shared, method: &Method, body: &[u8]) -> Result<Reply, Refusal> {
    let Some(publisher) = &shared.publisher else {
        return Err(Refusal::bad_request("this engine publishes no events"));
    };
    match *method {
        Method::POST => publisher.disturb(serde_json::from_slice::<Disturbance>(body)?),
        Method::DELETE => publisher.clear_disturbances(),
        _ => return Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
    }
    Ok(Reply::Empty)
}

fn set_fault(shared: &Shared, method: &Method, body: &[u8]) -> Result<Reply, Refusal> {
    match *method {
        Method::POST => shared.faults.inject(serde_json::from_slice::<Injection>(body)?),
        Method::DELETE => shared.faults.clear(),
        _ => return Err(Refusal::plain(StatusCode::METHOD_NOT_ALLOWED)),
    }
    Ok(Reply::Empty)
}

fn respond(reply: Result<Reply, Refusal>, limit: Option<Limit>, open: Open) -> Response<Body> {
    let (status, content_type, body) = match reply {
        Ok(Reply::Whole { content_type, content }) => {
            (StatusCode::OK, Some(content_type), Body::whole(content, limit, open))
        }
        Ok(Reply::Stream(stream)) => (StatusCode::OK, Some(EVENTS), Body::stream(stream, limit, open)),
        Ok(Reply::Empty) => (StatusCode::OK, None, Body::whole(Bytes::new(), limit, open)),
        Err(refusal) => (refusal.status, Some(JSON), Body::whole(refusal.to_json(), limit, open)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

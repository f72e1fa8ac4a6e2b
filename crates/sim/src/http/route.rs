//! Routes: which path does what.

use std::sync::Arc;

use http::header::{AUTHORIZATION, DATE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api_format::ApiFormat;
use super::body::{AfterLimit, Body, BodyLimit, BodyPart, ConnectionCut};
use super::error::ApiError;
use super::fault::{Fault, Injection};
use super::generate::{PostedRequest, generate};
use super::misconfiguration::Misconfiguration;
use super::reply::{RouteReply, respond};
use super::{HostState, metrics, pooling, request};
use crate::clock;
use crate::events::disturbance::Disturbance;
use crate::text;

/// Maximum body. Chosen: the default of the router, so that the router's limit applies first.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Prometheus' text format, as vLLM announces it.
const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

/// Serves one request. An error closes the connection without a response.
pub(super) async fn serve(
    state: Arc<HostState>,
    request: Request<Incoming>,
) -> Result<Response<Body>, ConnectionCut> {
    let date = state.config.misconfigurations.find(|it| match it {
        Misconfiguration::Date(date) => Some(HeaderValue::from_static(date)),
        _ => None,
    });
    let mut response = answer(state, request).await?;
    if let Some(date) = date {
        response.headers_mut().insert(DATE, date);
    }
    Ok(response)
}

async fn answer(state: Arc<HostState>, request: Request<Incoming>) -> Result<Response<Body>, ConnectionCut> {
    let open = state.requests.enter();
    let (parts, incoming) = request.into_parts();
    let path = parts.uri.path();
    let collected = Limited::new(incoming, BODY_BYTES_MAX).collect().await;
    let Ok(body) = collected.map(|it| it.to_bytes()) else {
        let refusal = ApiError::plain(StatusCode::PAYLOAD_TOO_LARGE);
        return Ok(respond(Err(refusal), None, open));
    };
    if let Some(command) = path.strip_prefix("/sim/") {
        return Ok(respond(run_command(&state, command, &parts.method, &body), None, open));
    }
    if !body.is_empty() {
        state.record(path, &parts.headers, &body);
    }
    let limit = match state.faults.take_request(parts.method == Method::POST) {
        None
        | Some(
            Fault::RefuseConnections | Fault::Slow { .. } | Fault::SlowLink { .. } | Fault::SilentSideChannel,
        ) => None,
        Some(Fault::CloseBeforeHeaders) => return Err(ConnectionCut),
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Status { status }) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Ok(respond(Err(ApiError::plain(status)), None, open));
        }
        Some(Fault::CloseAfterHeaders) => {
            Some(BodyLimit { left: BodyPart::Frames(0), then: AfterLimit::FlushAndClose })
        }
        Some(Fault::CloseAfterChunks { chunks }) => {
            Some(BodyLimit { left: BodyPart::Frames(chunks), then: AfterLimit::FlushAndClose })
        }
        Some(Fault::CloseAfterBytes { bytes }) => {
            Some(BodyLimit { left: BodyPart::Bytes(bytes), then: AfterLimit::FlushAndClose })
        }
        Some(Fault::StallAfterChunks { chunks }) => {
            Some(BodyLimit { left: BodyPart::Frames(chunks), then: AfterLimit::Stall })
        }
    };
    let request_id = parts.headers.get("x-request-id");
    let reply = match parts.method {
        _ if !is_authorized(&state, path, parts.headers.get(AUTHORIZATION)) => {
            Err(ApiError::plain(StatusCode::UNAUTHORIZED))
        }
        Method::GET => {
            if let Some(delay) = state.config.brand.health_delay().filter(|_| path == "/health") {
                tokio::time::sleep(delay).await;
            }
            get(&state, path)
        }
        Method::POST => post(&state, PostedRequest { path, request_id, body: &body }).await,
        _ => Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
    };
    Ok(respond(reply, limit, open))
}

/// As in vLLM: a key protects paths below `/v1` and nothing else.
fn is_authorized(state: &HostState, path: &str, key: Option<&HeaderValue>) -> bool {
    let wanted = state.config.misconfigurations.find(|it| match it {
        Misconfiguration::RequiresKey(key) => Some(*key),
        _ => None,
    });
    let given = key.and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
    !path.starts_with("/v1") || wanted.is_none_or(|wanted| given == Some(wanted))
}

const GET_PATHS: &[&str] = &["/health", "/ping", "/version", "/v1/models", "/metrics", "/kv_event_sources"];

fn get(state: &HostState, path: &str) -> Result<RouteReply, ApiError> {
    match path {
        "/health" | "/ping" => Ok(RouteReply::Empty),
        "/server_info" => {
            let info = state.server_info().ok_or_else(|| ApiError::plain(StatusCode::NOT_FOUND))?;
            Ok(RouteReply::json(&info))
        }
        "/version" => Ok(RouteReply::json(&json!({"version": version(state)}))),
        "/v1/models" => Ok(RouteReply::json(&models(state))),
        "/metrics" if state.config.misconfigurations.any(|it| matches!(it, Misconfiguration::NoMetrics)) => {
            Err(ApiError::plain(StatusCode::NOT_FOUND))
        }
        "/metrics" => Ok(RouteReply::Whole { content_type: METRICS, content: metrics::render(state).into() }),
        "/kv_event_sources" => Ok(RouteReply::json(&event_sources(state))),
        _ if POST_PATHS.contains(&path) => Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(ApiError::plain(StatusCode::NOT_FOUND)),
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

async fn post(state: &HostState, posted: PostedRequest<'_>) -> Result<RouteReply, ApiError> {
    match posted.path {
        "/v1/chat/completions" => generate(state, ApiFormat::Chat, posted).await,
        "/v1/completions" => generate(state, ApiFormat::Completion, posted).await,
        "/v1/responses" => generate(state, ApiFormat::Responses, posted).await,
        "/v1/messages" => generate(state, ApiFormat::Messages, posted).await,
        "/generate" => generate(state, ApiFormat::Generate, posted).await,
        "/v1/embeddings" => pooling::embed(state, posted.body).await.map(RouteReply::text),
        "/rerank" | "/v1/rerank" => pooling::rerank(state, posted.body).await.map(RouteReply::text),
        "/score" | "/v1/score" => pooling::score(state, posted.body).await.map(RouteReply::text),
        "/classify" => pooling::classify(state, posted.body).await.map(RouteReply::text),
        "/tokenize" => tokenize(state, posted.body),
        "/detokenize" => detokenize(posted.body),
        "/reset_prefix_cache" => Ok(RouteReply::json(&json!({"success": state.driver.clear_cache()}))),
        "/v1/messages/count_tokens" => {
            Ok(RouteReply::json(&json!({"input_tokens": request::parse_prompt(posted.body)?.len()})))
        }
        "/ping" => Ok(RouteReply::Empty),
        path if GET_PATHS.contains(&path) => Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(ApiError::plain(StatusCode::NOT_FOUND)),
    }
}

/// Not one of vLLM's versions, unless configured: a router should see that it talks to a simulation.
fn version(state: &HostState) -> &'static str {
    let told = state.config.misconfigurations.find(|it| match it {
        Misconfiguration::Version(version) => Some(*version),
        _ => None,
    });
    told.unwrap_or(concat!("maitre-sim-", env!("CARGO_PKG_VERSION")))
}

fn models(state: &HostState) -> Value {
    let config = &state.config;
    if config.misconfigurations.any(|it| matches!(it, Misconfiguration::NoModels)) {
        return json!({"object": "list", "data": []});
    }
    let card = |id: &str, parent: Option<&str>| {
        json!({
            "id": id,
            "object": "model",
            "created": clock::unix_seconds(),
            "owned_by": config.brand.owner(),
            "root": id,
            "parent": parent,
            "max_model_len": config.engine.profile.context_tokens_max,
        })
    };
    let mut cards = vec![card(&config.model, None)];
    cards.extend(config.adapters.iter().map(|it| card(it, Some(&config.model))));
    json!({"object": "list", "data": cards})
}

fn tokenize(state: &HostState, body: &[u8]) -> Result<RouteReply, ApiError> {
    let odd = state.config.misconfigurations.find(|it| match it {
        Misconfiguration::Tokenizes(tokenize) => Some(tokenize(body)),
        _ => None,
    });
    let tokens = match odd {
        Some(tokens) => tokens.ok_or_else(|| ApiError::bad_request("messages: cannot be tokenized"))?,
        None => request::parse_prompt(body)?,
    };
    Ok(RouteReply::json(&json!({
        "count": tokens.len(),
        "max_model_len": state.config.engine.profile.context_tokens_max,
        "tokens": tokens,
        "token_strs": null,
    })))
}

fn detokenize(body: &[u8]) -> Result<RouteReply, ApiError> {
    #[derive(Deserialize)]
    struct DetokenizeFields {
        tokens: Vec<u32>,
    }
    let fields: DetokenizeFields = serde_json::from_slice(body)?;
    Ok(RouteReply::json(&json!({"prompt": text::decode(&fields.tokens)})))
}

/// By data-parallel rank, of which there is one, as in vLLM. Empty if the engine publishes nothing.
fn event_sources(state: &HostState) -> Value {
    let Some(publisher) = &state.publisher else { return json!({}) };
    let mut source = publisher.source();
    let told = state.config.misconfigurations.find(|it| match it {
        Misconfiguration::EventsReportedAt(endpoint) => Some(*endpoint),
        _ => None,
    });
    if let Some(endpoint) = told {
        source["endpoint"] = endpoint.into();
    }
    json!({publisher.rank().to_string(): source})
}

fn run_command(
    state: &HostState,
    command: &str,
    method: &Method,
    body: &[u8],
) -> Result<RouteReply, ApiError> {
    match command {
        "fault" => set_fault(state, method, body),
        "events" => disturb(state, method, body),
        "restart" if *method == Method::POST => {
            state.restart();
            Ok(RouteReply::Empty)
        }
        "restart" => Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
        _ => Err(ApiError::plain(StatusCode::NOT_FOUND)),
    }
}

fn disturb(state: &HostState, method: &Method, body: &[u8]) -> Result<RouteReply, ApiError> {
    let Some(publisher) = &state.publisher else {
        return Err(ApiError::bad_request("this engine publishes no events"));
    };
    match *method {
        Method::POST => publisher.disturb(serde_json::from_slice::<Disturbance>(body)?),
        Method::DELETE => publisher.clear_disturbances(),
        _ => return Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
    }
    Ok(RouteReply::Empty)
}

fn set_fault(state: &HostState, method: &Method, body: &[u8]) -> Result<RouteReply, ApiError> {
    match *method {
        Method::POST => state.faults.inject(serde_json::from_slice::<Injection>(body)?),
        Method::DELETE => state.faults.clear(),
        _ => return Err(ApiError::plain(StatusCode::METHOD_NOT_ALLOWED)),
    }
    Ok(RouteReply::Empty)
}

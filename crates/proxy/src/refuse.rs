//! The only module that knows HTTP status codes: our own error responses, and the meaning of a worker's.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};
use maitre_dialect::failure::{self, FailureKind};
use maitre_dialect::openai::BadRequest;
use maitre_dialect::route::Route;
use maitre_dispatch::{Failure, Refusal};
use maitre_net::downstream::{BadHead, LINES_MAX};
use maitre_queue::RateLimit;
use maitre_views::error::{ErrorBody, ErrorDetail};

use crate::outcome::RequestOutcome;

/// Why the router refuses a request. The status shows whose fault it is: 4xx the client's, 502 and 504 a worker's, 503
/// the fleet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "{method} {path} is not served here; POST to /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens, /v1/embeddings, /v1/rerank, /v1/score, /v1/classify, /tokenize, /detokenize or /generate, or GET /v1/models, /v1/models/ID, /health, /ping or /version"
    )]
    UnknownPath { method: String, path: String },
    #[error("missing API key; send it as `authorization: Bearer KEY`, or as `x-api-key`")]
    NoKey,
    #[error("invalid API key")]
    WrongKey,
    #[error("{path} accepts {allowed}, not {method}")]
    WrongMethod { method: String, path: String, allowed: &'static str },
    #[error("{0}")]
    BadRequest(BadRequest),
    #[error("the header {header} is {value:?}; write {accepted}")]
    BadHeader { header: &'static str, value: String, accepted: String },
    #[error("the request's headers are larger than {limit} bytes (limits.headers)")]
    HeadersTooLarge { limit: usize },
    #[error("the request body is larger than {limit} bytes (limits.body)")]
    BodyTooLarge { limit: usize },
    #[error("the request body did not arrive within {0:?}")]
    BodyTooSlow(Duration),
    #[error("the request body is incomplete")]
    BodyBroken,
    #[error("the request body is encoded as \"{0}\"; send plain JSON")]
    EncodedBody(String),
    #[error("`model` is missing; this fleet serves: {known}")]
    ModelRequired { known: String },
    #[error("the model `{model}` is not served here; this fleet serves: {known}")]
    UnknownModel { model: String, known: String },
    #[error("no worker of this model has {path}: its engine does not serve this API")]
    NoWorkerHasPath { path: String },
    #[error("no worker is ready to take this request; try again shortly")]
    NoWorker,
    #[error(
        "the worker that holds the earlier response or conversation has left; send the whole input instead of `previous_response_id` or `conversation`"
    )]
    StateLost,
    #[error("the queue of this class is full; try again in {} s", seconds(*.retry_after))]
    QueueFull { retry_after: Duration },
    #[error("rate limit reached: {}; try again in {} s", per_minute(*.limit), seconds(*.retry_after))]
    RateLimited { retry_after: Duration, limit: RateLimit },
    #[error("the request's deadline cannot be met; try again in {} s", seconds(*.retry_after))]
    Deadline { retry_after: Duration },
    #[error("{}; try again shortly", too_busy(*.0))]
    TooBusy(BodyLimit),
    #[error("{}", failed(*.0))]
    Failed(Failure),
}

/// The limit on request bodies that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLimit {
    /// `limits.bodies`, or the half of it that bodies under way share.
    All,
    /// `limits.bodies_per_tenant`.
    Tenant,
    /// `limits.bodies_per_connection`.
    Connection,
}

impl Refused {
    /// Stable: clients, dashboards and tests match on it. Listed in docs/errors.md.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refused::UnknownPath { .. } => "unknown_path",
            Refused::NoKey => "unauthorized",
            Refused::WrongKey => "invalid_api_key",
            Refused::WrongMethod { .. } => "wrong_method",
            Refused::BadRequest(bad) => bad.code(),
            Refused::BadHeader { .. } => "bad_header",
            Refused::HeadersTooLarge { .. } => "headers_too_large",
            Refused::BodyTooLarge { .. } => "body_too_large",
            Refused::BodyTooSlow(_) => "body_too_slow",
            Refused::BodyBroken => "body_broken",
            Refused::EncodedBody(_) => "encoded_body",
            Refused::ModelRequired { .. } => "model_required",
            Refused::UnknownModel { .. } => "model_not_found",
            Refused::NoWorkerHasPath { .. } => "path_not_at_workers",
            Refused::NoWorker => "no_worker",
            Refused::StateLost => "state_lost",
            Refused::QueueFull { .. } => "queue_full",
            Refused::RateLimited { .. } => "rate_limit_exceeded",
            Refused::Deadline { .. } => "deadline",
            Refused::TooBusy(_) => "too_busy",
            Refused::Failed(Failure::NoSocket) => "no_socket",
            Refused::Failed(Failure::TimedOut) => "timed_out",
            Refused::Failed(_) => "worker_failed",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            // Not 501, after which client libraries try again.
            Refused::UnknownPath { .. }
            | Refused::UnknownModel { .. }
            | Refused::NoWorkerHasPath { .. }
            | Refused::StateLost => StatusCode::NOT_FOUND,
            Refused::NoKey | Refused::WrongKey => StatusCode::UNAUTHORIZED,
            Refused::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Refused::BadRequest(_)
            | Refused::BadHeader { .. }
            | Refused::ModelRequired { .. }
            | Refused::BodyBroken => StatusCode::BAD_REQUEST,
            Refused::HeadersTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refused::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refused::BodyTooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Refused::EncodedBody(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Refused::NoWorker | Refused::TooBusy(_) | Refused::Failed(Failure::NoSocket) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Refused::QueueFull { .. } | Refused::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Refused::Deadline { .. } | Refused::Failed(Failure::TimedOut) => StatusCode::GATEWAY_TIMEOUT,
            Refused::Failed(_) => StatusCode::BAD_GATEWAY,
        }
    }

    fn kind(&self) -> FailureKind {
        match self.status() {
            // OpenAI and Anthropic agree on it. A full queue is not the client's own limit.
            _ if matches!(self, Refused::RateLimited { .. }) => FailureKind::RateLimited,
            StatusCode::UNAUTHORIZED => FailureKind::Unauthorized,
            StatusCode::NOT_FOUND => FailureKind::NotFound,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => FailureKind::Overloaded,
            status if status.is_client_error() => FailureKind::Invalid,
            _ => FailureKind::Server,
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Refused::BadRequest(bad) => bad.param(),
            Refused::ModelRequired { .. } | Refused::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// How long the client should wait before a retry, where that helps.
    fn retry_after(&self) -> Option<HeaderValue> {
        match self {
            // A client that has waited for a whole timeout should not retry at once.
            Refused::Failed(Failure::TimedOut) => None,
            Refused::QueueFull { retry_after }
            | Refused::RateLimited { retry_after, .. }
            | Refused::Deadline { retry_after } => Some(HeaderValue::from(seconds(*retry_after))),
            Refused::NoWorker | Refused::TooBusy(_) | Refused::Failed(_) => {
                Some(HeaderValue::from_static("1"))
            }
            _ => None,
        }
    }

    pub(crate) fn answer(&self, route: Option<Route>) -> Response<Bytes> {
        let (code, message, param) = (self.code(), self.to_string().into(), self.param());
        let failure = failure::Failure { kind: self.kind(), code, message, param };
        // For an unknown path, the shape that most clients can read.
        let body = failure::body(route.unwrap_or(Route::Chat), &failure);
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Refused::WrongMethod { allowed, .. } = self {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        if self.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds);
        }
        response
    }
}

/// Most characters of a client's own text in an error message.
const ECHO_MAX: usize = 128;

/// A client's own text, truncated: a name may be as long as a body.
pub(crate) fn echo(text: &str) -> String {
    text.chars().take(ECHO_MAX).collect()
}

impl Refused {
    /// `known` lists the models that are served. Called only where the message needs it: most refusals under overload do
    /// not.
    pub(crate) fn by_brain(refusal: Refusal, model: Option<&str>, known: impl FnOnce() -> String) -> Refused {
        match refusal {
            Refusal::UnknownModel => {
                Refused::UnknownModel { model: echo(model.unwrap_or("")), known: known() }
            }
            Refusal::ModelRequired => Refused::ModelRequired { known: known() },
            Refusal::NoWorker => Refused::NoWorker,
            Refusal::StateLost => Refused::StateLost,
            Refusal::QueueFull { retry_after } => Refused::QueueFull { retry_after },
            Refusal::RateLimited { retry_after, limit } => Refused::RateLimited { retry_after, limit },
            Refusal::Deadline { retry_after } => Refused::Deadline { retry_after },
            Refusal::Failed { last, .. } => Refused::Failed(last),
        }
    }
}

fn per_minute(limit: RateLimit) -> String {
    let (count, what) = match limit {
        RateLimit::Requests(count) => (u64::from(count), "request"),
        RateLimit::Tokens(count) => (count, "token"),
    };
    format!("{count} {what}{} per minute", if count == 1 { "" } else { "s" })
}

/// As in `Retry-After`: whole seconds, at least one.
fn seconds(span: Duration) -> u64 {
    span.as_millis().div_ceil(1_000).clamp(1, u128::from(u32::MAX)) as u64
}

fn too_busy(limit: BodyLimit) -> &'static str {
    match limit {
        BodyLimit::All => "the router holds too many large requests",
        BodyLimit::Tenant => "the requests in flight of this tenant are too large together",
        BodyLimit::Connection => "this connection is sending too many large requests at once",
    }
}

fn failed(failure: Failure) -> &'static str {
    match failure {
        Failure::Refused => "no worker could be reached: connection refused",
        Failure::Unreachable => "no worker could be reached: connection timed out",
        Failure::Handshake => "no worker could be reached: TLS failed",
        Failure::Broke => "the connection to the worker broke before its response began",
        Failure::Abandoned => "the worker became unhealthy before its response began",
        Failure::Silenced => {
            "the worker stopped responding while it had this request, which is not tried at another worker"
        }
        Failure::NoSocket => "the router has no socket left to connect to a worker",
        Failure::Failed => "the worker failed before its response began",
        Failure::Handoff => "the worker could not fetch the KV cache that another has prefilled",
        Failure::Busy => "the worker is full",
        Failure::TimedOut => "the worker's response did not begin in time",
        Failure::Late => "the worker's response did not begin before the request's deadline",
    }
}

/// The answer to what cannot be read as a request.
pub(crate) fn bad_head(bad: BadHead) -> Response<Bytes> {
    let (status, code) = match bad {
        BadHead::NotHttp(_) => (StatusCode::BAD_REQUEST, "bad_head"),
        BadHead::TargetTooLong => (StatusCode::URI_TOO_LONG, "uri_too_long"),
        BadHead::TooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
    };
    let message = match bad {
        BadHead::NotHttp(why) => format!("the request line or a header is not valid HTTP/1.1: {why}"),
        BadHead::TargetTooLong => "the request's path is too long".to_owned(),
        BadHead::TooLarge => {
            format!("the request's headers have too many bytes (limits.headers) or lines ({LINES_MAX})")
        }
    };
    let failure = failure::Failure { kind: FailureKind::Invalid, code, message: message.into(), param: None };
    let mut response = Response::new(Bytes::from(failure::body(Route::Chat, &failure)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A trace collector's verdict on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collected {
    Taken,
    /// Retry; after this long, if the collector says so.
    Later(Option<Duration>),
    Never,
}

/// The OTLP specification names the statuses to retry.
pub(crate) fn collected(status: StatusCode, headers: &HeaderMap) -> Collected {
    let wait = || headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Duration::from_secs);
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Collected::Later(wait()),
        status if status.is_success() => Collected::Taken,
        _ => Collected::Never,
    }
}

/// The failure that a worker's response status stands for, if any.
pub(crate) fn judge(status: StatusCode) -> Option<Failure> {
    match status.as_u16() {
        // Full, not broken: another worker may have capacity. Some engines use 529 for overload.
        429 | 503 | 529 => Some(Failure::Busy),
        500..=599 => Some(Failure::Failed),
        _ => None,
    }
}

/// How a complete response with this status counts.
pub(crate) fn outcome(status: StatusCode) -> RequestOutcome {
    match status.as_u16() {
        400..=499 => RequestOutcome::Declined("4xx"),
        500..=599 => RequestOutcome::Declined("5xx"),
        _ => RequestOutcome::Answered,
    }
}

/// Whether a response with this status says that the request itself is wrong. A full or failed worker does not say so.
pub(crate) fn is_clients_fault(status: StatusCode) -> bool {
    status.is_client_error() && judge(status).is_none()
}

/// Whether an engine refuses this prompt rather than every one: 404 and 405 say that it lacks the path, 401 and 403 that the
/// router lacks a key, 429 that it is busy.
pub(crate) fn refuses_prompt(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether a response with this status says that the worker does not have the path at all.
pub(crate) fn lacks_path(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
}

/// Whether a health probe with this status succeeded. A worker without such a path (404), or one that wants a key (401),
/// is healthy.
pub(crate) fn is_fit(status: StatusCode) -> bool {
    !status.is_server_error()
}

/// Why the admin API refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("the admin key is missing or wrong; send it as `Authorization: Bearer <key>`")]
    Key,
    #[error("unknown path; /admin/v1/openapi.json lists all paths")]
    Path,
    #[error("this path accepts {0}")]
    Method(String),
    /// The named object does not exist.
    #[error("{0}")]
    Unknown(String),
    #[error("{0}")]
    Bad(String),
    /// Valid, but not allowed by the settings.
    #[error("{0}")]
    Forbidden(String),
    /// Not possible in the present state.
    #[error("{0}")]
    Conflict(String),
}

impl AdminError {
    /// Stable, like those of `Refused`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            AdminError::Key => "unauthorized",
            AdminError::Path => "unknown_path",
            AdminError::Method(_) => "wrong_method",
            AdminError::Unknown(_) => "not_found",
            AdminError::Bad(_) => "bad_request",
            AdminError::Forbidden(_) => "forbidden",
            AdminError::Conflict(_) => "conflict",
        }
    }

    pub(crate) fn answer(&self) -> Response<Bytes> {
        let error = ErrorDetail { code: self.code().to_owned(), message: self.to_string() };
        let body = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = match self {
            AdminError::Key => StatusCode::UNAUTHORIZED,
            AdminError::Path | AdminError::Unknown(_) => StatusCode::NOT_FOUND,
            AdminError::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            AdminError::Bad(_) => StatusCode::BAD_REQUEST,
            AdminError::Forbidden(_) => StatusCode::FORBIDDEN,
            AdminError::Conflict(_) => StatusCode::CONFLICT,
        };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            AdminError::Key => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            AdminError::Method(methods) => {
                // Names of methods only, so this cannot fail.
                drop(HeaderValue::from_str(methods).map(|it| headers.insert(ALLOW, it)));
            }
            _ => {}
        }
        response
    }
}

/// A JSON response of the admin API, which must not be cached: it is secret, and outdated in a second.
pub(crate) fn done(is_new: bool, json: Bytes) -> Response<Bytes> {
    let mut response = Response::new(json);
    if is_new {
        *response.status_mut() = StatusCode::CREATED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// An empty response.
pub(crate) fn no_content() -> Response<Bytes> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A plain-text response of the admin listener.
pub(crate) fn plain(health: Health, text: impl Into<Bytes>) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    *response.status_mut() = match health {
        Health::Healthy => StatusCode::OK,
        Health::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
        Health::Unknown => StatusCode::NOT_FOUND,
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Health {
    Healthy,
    Unhealthy,
    Unknown,
}

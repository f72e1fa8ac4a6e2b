//! The operator's listener: is it alive, is it ready, what does it count; the page; and the API behind the page.
//!
//! Probes, scrapers and the page's own files need no key: none of them tells of anybody's requests. All else is under
//! `/admin/` and needs the admin key, whatever is asked for, before anything is looked at.

mod act;
mod cluster;
pub(crate) mod decisions;
mod live;
mod openapi;
mod route;
mod view;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maitre_fleet::State;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::client::{Client, Pulse};
use crate::house::RouterState;
use crate::keys;
use crate::lane::Lane;
use crate::page;
use crate::program::Program;
use crate::refuse::{Health, Wrong, done, plain};
use crate::roster::Roster;
use crate::secret::Secret;
use crate::server::ACCEPT_PAUSE;
use crate::settings::Timeouts;
use crate::tls::{self, Listener};
use live::Live;
use route::{Action, Found};

/// Operators, scrapers, probes and open pages at once; further ones wait in the kernel.
const CONNECTIONS_MAX: usize = 128;

/// Open pages among them: however many there are, probes find a place.
const STREAMS_MAX: usize = 32;

/// How long an operator's request may take to arrive.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// How long somebody may take nothing of an answer. Whoever does holds one of the few places, and needs no key for it:
/// without a limit a hundred of them would keep the probes out, and those decide whether we are left alive.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// OpenMetrics, as prometheus-client writes it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Nothing from anywhere else, nothing inline: the page shows what clients have sent.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// What the listener needs to answer.
pub(crate) struct AdminState {
    pub(crate) house: Arc<RouterState>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) program: Arc<dyn Program>,
    /// For what must be read as a request is.
    pub(crate) lane: Lane,
    /// Places for those who follow along.
    pub(crate) streams: Arc<Semaphore>,
}

impl AdminState {
    pub(crate) fn new(roster: Arc<Roster>, program: Arc<dyn Program>, lane: Lane) -> AdminState {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        AdminState { house: lane.house.clone(), roster, program, lane, streams }
    }
}

pub(crate) async fn listen(desk: Arc<AdminState>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) => drop(connections.spawn(connection(desk.clone(), stream))),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(desk: Arc<AdminState>, stream: TcpStream) {
    let Some(stream) = tls::accept(&desk.house, Listener::Admin, stream).await else { return };
    let service = service_fn(|request: Request<Incoming>| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(answer(&desk, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(READ_PATIENCE);
    let timeouts = desk.house.settings().timeouts;
    let stalled = timeouts.client_stalled.min(WRITE_PATIENCE);
    let pulse = Arc::new(Pulse::new(Timeouts { client_stalled: stalled, ..timeouts }));
    // Slow heads and idle connections are hyper's business here, so to the watchdog it is never idle.
    let _busy = pulse.busy();
    let io = TokioIo::new(Client::new(stream, pulse.clone()));
    tokio::select! {
        // Errors here are the scraper's own; it will come again.
        _ = builder.serve_connection(io, service) => {}
        () = pulse.watch() => {}
    }
}

/// The body of an answer: whole, or as it happens.
pub(crate) enum Out {
    Whole(Bytes),
    Live(Box<Live>),
}

impl Body for Out {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Out::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Out::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Out::Live(live) => live.poll(cx).map(|it| it.map(|event| Ok(Frame::data(event)))),
        }
    }
}

async fn answer(desk: &AdminState, request: Request<Incoming>) -> Response<Out> {
    let path = request.uri().path();
    if path.starts_with("/admin/") || path == "/admin" {
        return match api(desk, request).await {
            Ok(response) => response,
            Err(wrong) => wrong.answer().map(Out::Whole),
        };
    }
    open(&desk.house, request.method(), path).map(Out::Whole)
}

/// What anybody who can reach us may see.
fn open(house: &RouterState, method: &Method, path: &str) -> Response<Bytes> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Wrong::Method("GET".to_owned()).answer();
    }
    match path {
        "/healthz" => plain(Health::Well, "alive\n"),
        "/readyz" => readiness(house),
        "/metrics" => typed(house.metrics_page(), METRICS_TYPE),
        _ => match page::find(path) {
            Some(file) => page_file(file),
            None => plain(Health::Unknown, "try /, /healthz, /readyz, /metrics or /admin/v1/openapi.json\n"),
        },
    }
}

fn typed(text: impl Into<Bytes>, media: &'static str) -> Response<Bytes> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

fn page_file(file: &'static page::File) -> Response<Bytes> {
    let mut response = typed(Bytes::from_static(file.bytes), file.content_type);
    let headers = response.headers_mut();
    headers.insert("content-security-policy", HeaderValue::from_static(PAGE_POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    // Another version of the router may answer here tomorrow.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Ready: not leaving, not about to hear what other routers know, and at least one worker could take a request now.
fn readiness(house: &RouterState) -> Response<Bytes> {
    if house.leaving.is_cancelled() {
        return plain(Health::Unwell, "draining\n");
    }
    if house.is_joining() {
        return plain(Health::Unwell, "joining the other routers\n");
    }
    match is_ready(house) {
        true => plain(Health::Well, "ready\n"),
        false => plain(Health::Unwell, "no worker is ready\n"),
    }
}

pub(crate) fn is_ready(house: &RouterState) -> bool {
    let fit = |state| matches!(state, State::Ready | State::Warming { .. });
    house.look(|brain| brain.fleet().workers().any(|it| fit(it.health.state())))
}

async fn api(desk: &AdminState, request: Request<Incoming>) -> Result<Response<Out>, Wrong> {
    let presented = Secret::of(keys::presented(request.headers()).unwrap_or(b""));
    if !is_operator(&desk.house, &presented) {
        return Err(Wrong::Key);
    }
    let (parts, body) = request.into_parts();
    let (row, part) = match route::find(&parts.method, parts.uri.path()) {
        Found::Row(row, part) => (row, part),
        Found::Methods(methods) => return Err(Wrong::Method(methods.join(", "))),
        Found::Nothing => return Err(Wrong::Path),
    };
    if row.action == Action::Live {
        let full = |_| Wrong::Conflict(format!("{STREAMS_MAX} streams are open already; close one"));
        let place = desk.streams.clone().try_acquire_owned().map_err(full)?;
        return Ok(live::begin(&desk.house, presented, place));
    }
    let body = match row.takes {
        Some(_) => read(&desk.house, body).await?,
        None => Bytes::new(),
    };
    let asked = Asked { action: row.action, part, query: parts.uri.query().unwrap_or(""), body: &body };
    let told = asked.answer(desk).await?;
    Ok(done(row.action == Action::AddWorker, &told).map(Out::Whole))
}

/// One thing that was asked, by somebody who may.
struct Asked<'a> {
    action: Action,
    /// What stands in the braces of its path.
    part: &'a str,
    query: &'a str,
    body: &'a [u8],
}

impl Asked<'_> {
    async fn answer(&self, desk: &AdminState) -> Result<Value, Wrong> {
        let house = &desk.house;
        match self.action {
            Action::Overview => Ok(view::overview(house)),
            Action::History => Ok(view::history(house)),
            // Answered before, as a stream.
            Action::Live => Ok(Value::Null),
            Action::Decisions => decisions::list(house, self.query),
            Action::Decision => decisions::one(house, self.part),
            Action::Explain => act::explain(desk, self.query, self.body).await,
            Action::Workers => Ok(view::workers(house)),
            Action::Worker => act::worker(house, self.part).and_then(|it| view::worker(house, it)),
            Action::AddWorker => act::add(desk, self.body),
            Action::RemoveWorker => act::remove(desk, self.part),
            Action::Drain => act::drain(desk, self.part, true),
            Action::Resume => act::drain(desk, self.part, false),
            Action::Weigh => act::weigh(house, self.part, self.body),
            Action::Strategies => Ok(view::strategies(house)),
            Action::SetStrategies => act::set_strategies(house, self.body),
            Action::Config => Ok(serde_json::json!({ "toml": desk.program.config() })),
            Action::Reload => act::reload(desk).await,
            Action::Index => Ok(view::index(house)),
            Action::Cluster => Ok(cluster::view(house)),
            Action::Log => Ok(serde_json::json!({ "level": desk.program.log_level() })),
            Action::SetLog => act::set_log(desk, self.body),
            Action::OpenApi => Ok(openapi::document()),
        }
    }
}

/// Whether this is the admin key, as of now. Where none is set nobody has it.
fn is_operator(house: &RouterState, presented: &Secret) -> bool {
    house.settings().admin_key.is_some_and(|it| it.is(presented))
}

async fn read(house: &RouterState, body: Incoming) -> Result<Bytes, Wrong> {
    let limit = house.settings().limits.body_bytes;
    let read = timeout(READ_PATIENCE, Limited::new(body, limit).collect()).await;
    let too_slow = |_| Wrong::Bad(format!("the body did not arrive within {READ_PATIENCE:?}"));
    let broken = |_| Wrong::Bad(format!("the body broke off, or has more than {limit} bytes"));
    Ok(read.map_err(too_slow)?.map_err(broken)?.to_bytes())
}

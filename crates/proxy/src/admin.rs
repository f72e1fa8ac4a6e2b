//! The admin listener: probes, metrics, the page, and the API behind the page.
//!
//! Probes, metrics, the external scaler and the page's own files need no key: they contain nothing of any request. Everything
//! else is under `/admin/`; its key is checked before the route is looked up.

mod act;
mod cluster;
mod connections;
pub(crate) mod decisions;
mod live;
pub(crate) mod openapi;
mod programs;
mod route;
mod scaler;
mod view;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use maitre_net::connect::is_out_of_descriptors;
use maitre_net::downstream::{BodyProgress, Downstream};
use maitre_views::control::{ConfigText, LogLevel};
use maitre_views::schema::{JsonShape, View};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::client::{ClientSocket, Pulse};
use crate::descriptors::SpareDescriptors;
use crate::keys;
use crate::lane::Lane;
use crate::page;
use crate::probes::readiness;
use crate::program::Program;
use crate::refuse::{AdminError, Health, bad_head, done, plain};
use crate::roster::Roster;
use crate::secret::Secret;
use crate::server::{ACCEPT_PAUSE, is_http2};
use crate::settings::Timeouts;
use crate::state::RouterState;
use crate::tls::Listener;
use connections::{Connections, OperatorMark};
use live::Live;
use route::{Action, Route, RouteMatch};

/// Event streams among the connections, so that open pages leave room for other operators.
const STREAMS_MAX: usize = 32;

/// How long a request may take to arrive.
const READ_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client may read nothing of its response.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a gRPC connection may be silent. It answers a ping every half minute.
const GRPC_IDLE: Duration = Duration::from_secs(300);

/// No other origins and nothing inline: the page shows names that clients have sent.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// What the listener reads and changes.
pub(crate) struct AdminState {
    pub(crate) router: Arc<RouterState>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) program: Arc<dyn Program>,
    /// Reads the body of `explain` as that of a request.
    pub(crate) lane: Arc<Lane>,
    /// Permits for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Streams of the external scaler that were ever opened.
    watches: AtomicU64,
}

impl AdminState {
    pub(crate) fn new(roster: Arc<Roster>, program: Arc<dyn Program>, lane: Arc<Lane>) -> AdminState {
        let streams = Arc::new(Semaphore::new(STREAMS_MAX));
        let watches = AtomicU64::new(0);
        AdminState { router: lane.state.clone(), roster, program, lane, streams, watches }
    }
}

pub(crate) async fn listen(admin: Arc<AdminState>, listener: TcpListener) {
    let mut connections = Connections::default();
    let mut spare = SpareDescriptors::default();
    spare.fill();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.serve(|by_operator| connection(admin.clone(), stream, by_operator));
                }
                // Clients and workers have all descriptors: accept this one with one of ours.
                Err(error) if is_out_of_descriptors(&error) && spare.release() => {}
                Err(_) => {
                    connections.close_one();
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            () = connections.ended() => spare.fill(),
        }
    }
}

async fn connection(admin: Arc<AdminState>, stream: TcpStream, by_operator: OperatorMark) {
    let RouterState { tls, settings, metrics, .. } = &*admin.router;
    let limit = settings.load().timeouts.client_header;
    let Some(stream) = tls.accept(Listener::Admin, stream, limit, metrics).await else { return };
    let Ok(Some(is_http2)) = timeout(READ_PATIENCE, is_http2(&stream)).await else { return };
    let timeouts = settings.load().timeouts;
    let pulse = Arc::new(Pulse::new(Timeouts {
        client_header: READ_PATIENCE,
        client_idle: if is_http2 { GRPC_IDLE } else { READ_PATIENCE },
        client_stalled: timeouts.client_stalled.min(WRITE_PATIENCE),
        ..timeouts
    }));
    if is_http2 {
        pulse.is_http2();
    }
    let socket = ClientSocket::new(stream, pulse.clone());
    let serving = async {
        match is_http2 {
            true => scaler::serve(&admin, socket, &pulse).await,
            false => serve_http1(&admin, socket, &pulse, &by_operator).await,
        }
    };
    tokio::select! {
        () = serving => {}
        () = pulse.watch(|| false) => {}
    }
}

/// Answers one request after the other, until the client leaves.
async fn serve_http1(
    admin: &AdminState,
    socket: ClientSocket,
    pulse: &Arc<Pulse>,
    by_operator: &OperatorMark,
) {
    let mut client = Downstream::new(socket, admin.router.settings.load().limits.header_bytes);
    loop {
        let head = poll_fn(|cx| client.poll_head(cx)).await;
        let _busy = pulse.busy();
        let response = match head {
            Ok(Some(request)) => answer(admin, by_operator, request.map(|()| &mut client)).await,
            Ok(None) => return,
            Err(bad) => bad_head(bad).map(AdminBody::Whole),
        };
        match client.respond(response, false).await {
            Ok(true) => {}
            Ok(false) => break,
            // The client is gone; it will connect again.
            Err(_) => return,
        }
    }
    client.close().await;
}

/// The body of a response.
pub(crate) enum AdminBody {
    Whole(Bytes),
    Live(Box<Live>),
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            AdminBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            AdminBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            AdminBody::Live(live) => live.poll(cx).map(|it| it.map(|event| Ok(Frame::data(event)))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            AdminBody::Live(_) => SizeHint::new(),
        }
    }
}

async fn answer(
    admin: &AdminState,
    by_operator: &OperatorMark,
    request: Request<&mut Downstream<ClientSocket>>,
) -> Response<AdminBody> {
    let path = request.uri().path();
    if path.starts_with("/admin/") || path == "/admin" {
        return match api(admin, by_operator, request).await {
            Ok(response) => response,
            Err(wrong) => wrong.answer().map(AdminBody::Whole),
        };
    }
    public(&admin.router, &request).map(AdminBody::Whole)
}

/// What needs no key.
fn public<B>(router: &RouterState, request: &Request<B>) -> Response<Bytes> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return AdminError::Method("GET".to_owned()).answer();
    }
    match request.uri().path() {
        "/healthz" => plain(Health::Healthy, "alive\n"),
        "/readyz" => readiness(router),
        "/metrics" => router.scrape(request.headers()),
        path => match page::find(path) {
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

fn page_file(file: &'static page::PageFile) -> Response<Bytes> {
    let mut response = typed(Bytes::from_static(file.bytes), file.content_type);
    let headers = response.headers_mut();
    headers.insert("content-security-policy", HeaderValue::from_static(PAGE_POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    // The router may be upgraded while a browser has the page cached.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn api(
    admin: &AdminState,
    by_operator: &OperatorMark,
    request: Request<&mut Downstream<ClientSocket>>,
) -> Result<Response<AdminBody>, AdminError> {
    let presented = Secret::of(keys::presented(request.headers()).unwrap_or(b""));
    if !is_operator(&admin.router, &presented) {
        return Err(AdminError::Key);
    }
    by_operator.set();
    let (parts, body) = request.into_parts();
    let (route, part) = match route::find(&parts.method, parts.uri.path()) {
        RouteMatch::Route(route, part) => (route, part),
        RouteMatch::Methods(methods) => return Err(AdminError::Method(methods.join(", "))),
        RouteMatch::Nothing => return Err(AdminError::Path),
    };
    if route.action == Action::Live {
        let full = |_| AdminError::Conflict(format!("{STREAMS_MAX} streams are open already; close one"));
        let permit = admin.streams.clone().try_acquire_owned().map_err(full)?;
        return Ok(live::begin(&admin.router, presented, permit));
    }
    let body = match route.takes {
        Some(_) => read(&admin.router, body).await?,
        None => Bytes::new(),
    };
    let call = Call { route, part, query: parts.uri.query().unwrap_or(""), body: &body };
    let json = call.answer(admin).await?;
    Ok(done(route.action == Action::AddWorker, json).map(AdminBody::Whole))
}

/// A call of the API by an operator.
struct Call<'a> {
    route: &'static Route,
    /// The part of the path in the route's braces.
    part: &'a str,
    query: &'a str,
    body: &'a [u8],
}

impl Call<'_> {
    async fn answer(&self, admin: &AdminState) -> Result<Bytes, AdminError> {
        let router = &admin.router;
        Ok(match self.route.action {
            Action::Overview => self.json(&view::overview(router)),
            Action::History => self.json(&view::history(router)),
            // Answered before, as a stream.
            Action::Live => Bytes::new(),
            Action::Decisions => self.json(&decisions::list(router, self.query)?),
            Action::Decision => self.json(&decisions::one(router, self.part)?),
            Action::Explain => self.json(&act::explain(admin, self.query, self.body).await?),
            Action::Workers => self.json(&view::workers(router)),
            Action::Worker => self.json(&view::worker(router, act::worker(router, self.part)?)?),
            Action::AddWorker => self.json(&act::add(admin, self.body)?),
            Action::RemoveWorker => self.json(&act::remove(admin, self.part)?),
            Action::Drain => self.json(&act::drain(admin, self.part, act::Drain::read(self.query)?)?),
            Action::Resume => self.json(&act::drain(admin, self.part, act::Drain::Resume)?),
            Action::Weigh => self.json(&act::weigh(router, self.part, self.body)?),
            Action::Strategies => self.json(&view::strategies(router)),
            Action::SetStrategies => self.json(&act::set_strategies(router, self.body)?),
            Action::Config => self.json(&ConfigText { toml: admin.program.config() }),
            Action::Reload => self.json(&act::reload(admin).await?),
            Action::Index => self.json(&view::index(router)),
            Action::Scaling => self.json(&view::scaling(router)),
            Action::Cluster => self.json(&cluster::view(router)),
            Action::Log => self.json(&LogLevel { level: admin.program.log_level() }),
            Action::SetLog => self.json(&act::set_log(admin, self.body)?),
            Action::OpenApi => Bytes::from(openapi::document().to_string()),
        })
    }

    fn json<T: View + Serialize>(&self, view: &T) -> Bytes {
        let name = |it: &JsonShape| it.object().map(|it| it.name);
        debug_assert_eq!(name(self.route.gives), name(T::SHAPE), "the view of {}", self.route.path);
        // Views always serialize: their map keys are texts.
        Bytes::from(serde_json::to_vec(view).unwrap_or_default())
    }
}

/// Whether this is the admin key now. Where none is set, no key is valid.
fn is_operator(router: &RouterState, presented: &Secret) -> bool {
    router.settings.load().admin_key.is_some_and(|it| it.is(presented))
}

async fn read(router: &RouterState, client: &mut Downstream<ClientSocket>) -> Result<Bytes, AdminError> {
    let limit = router.settings.load().limits.body_bytes;
    let broken = || AdminError::Bad(format!("the body was cut off, or has more than {limit} bytes"));
    let reading = async {
        loop {
            match client.receive_body().await.map_err(|_| broken())? {
                BodyProgress::Complete(body) if body.len() <= limit => return Ok(body),
                BodyProgress::Partial(bytes) if bytes <= limit => {}
                BodyProgress::Complete(_) | BodyProgress::Partial(_) => return Err(broken()),
            }
        }
    };
    let too_slow = |_| AdminError::Bad(format!("the body did not arrive within {READ_PATIENCE:?}"));
    timeout(READ_PATIENCE, reading).await.map_err(too_slow)?
}

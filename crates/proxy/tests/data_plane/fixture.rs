//! A router, engines behind it and a client in front, all on loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::Host;
use maitre_sim::profile::Profile;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

pub(crate) const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Nothing in these tests may take longer.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Fixture {
    pub(crate) router: Router,
    pub(crate) engines: Vec<Host>,
}

pub(crate) fn engine_settings() -> maitre_sim::http::HostConfig {
    maitre_sim::http::HostConfig::new(Profile::named("instant").unwrap())
}

pub(crate) fn settings() -> RouterSettings {
    let mut settings =
        RouterSettings { listen: ANYWHERE, admin: ANYWHERE, threads: 1, ..RouterSettings::default() };
    settings.brain.strategy = Name::RoundRobin;
    settings
}

/// A router in front of this many engines, all ready.
pub(crate) async fn fixture(count: usize) -> Fixture {
    fixture_with(count, engine_settings(), settings()).await
}

pub(crate) async fn fixture_with(
    count: usize,
    engine: maitre_sim::http::HostConfig,
    mut settings: RouterSettings,
) -> Fixture {
    let mut engines = Vec::new();
    for _ in 0..count {
        engines.push(Host::bind(ANYWHERE, engine.clone()).await.unwrap());
    }
    settings.workers = engines.iter().map(|it| format!("http://{}", it.addr()).parse().unwrap()).collect();
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines }
}

/// Fails the test instead of hanging.
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(TEST_TIMEOUT, future).await {
            Ok(output) => output,
            Err(_) => panic!("nothing happened for {TEST_TIMEOUT:?} at {caller}"),
        }
    }
}

/// A response, read to its end; its body is incomplete if the connection broke.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) broke: bool,
}

impl TestResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |it| it.to_str().unwrap())
    }
}

/// A keep-alive connection to the router.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr) -> Client {
        Client::over(within(TcpStream::connect(addr)).await.unwrap()).await
    }

    pub(crate) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Client {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Client { sender, _driver: driver }
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        within(self.sender.ready()).await?;
        within(self.sender.send_request(request)).await
    }

    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<TestResponse> {
        let (head, body) = self.send(request).await?.into_parts();
        let (body, broke) = within(read(body)).await;
        Ok(TestResponse { status: head.status, headers: head.headers, body, broke })
    }

    pub(crate) async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> TestResponse {
        self.ask(post(path, body)).await.unwrap()
    }
}

pub(crate) async fn read(mut body: Incoming) -> (Bytes, bool) {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => whole.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
            Err(_) => return (whole.into(), true),
        }
    }
    (whole.into(), false)
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::builder().method(Method::POST).uri(path).header("host", "maitre");
    request.header("content-type", "application/json").body(Full::new(body.into())).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(path).header("host", "maitre").body(Full::default()).unwrap()
}

/// A chat of this many tokens.
pub(crate) fn chat(tokens: u32, stream: bool) -> String {
    format!(
        r#"{{"model":"maitre-sim","messages":[{{"role":"user","content":"a table for two"}}],"max_tokens":{tokens},"stream":{stream}}}"#
    )
}

/// The value of a metric, by its exact name and labels.
pub(crate) fn metric(page: &str, line: &str) -> f64 {
    let found = page.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {line} in:\n{page}")).parse().unwrap()
}

/// Waits until the metric has this value, and checks that it does not exceed it. An absent metric counts as zero.
#[track_caller]
pub(crate) fn until_counted(router: &Router, line: &str, count: f64) -> impl Future<Output = ()> {
    let counted = move || {
        let page = router.metrics();
        let found = page.lines().find_map(|it| it.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or(0.0)
    };
    let all = within(async move {
        while counted() < count {
            tokio::task::yield_now().await;
        }
        counted()
    });
    async move { assert_eq!(all.await, count) }
}

impl Fixture {
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.router.listen()).await
    }

    /// Whether no request is in flight, by every count.
    pub(crate) fn nothing_is_open(&self) -> bool {
        self.router.look(|brain| {
            let idle = |it: &maitre_fleet::Worker| it.promised == maitre_fleet::backlog::Backlog::default();
            brain.open() == 0 && brain.fleet().workers().all(idle)
        })
    }

    pub(crate) async fn until_nothing_is_open(&self) {
        within(self.router.until(|brain| brain.open() == 0)).await;
        assert!(self.nothing_is_open(), "promises without requests:\n{}", self.router.metrics());
        // The brain learns of it a moment before the request's own guard ends.
        within(async {
            while metric(&self.router.metrics(), "maitre_requests_in_flight") > 0.0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

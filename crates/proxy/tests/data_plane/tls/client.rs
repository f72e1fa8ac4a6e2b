//! TLS to workers: simulated engines behind a small TLS proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use maitre_fleet::HealthState;
use maitre_net::tls::TlsClientSettings;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::Host;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{Authority, Folder, HERE, Papers, Until};
use crate::fixture::{
    ANYWHERE, Client, chat, engine_settings, fixture_with, metric, post, settings, until_counted, within,
};
use crate::traces::{Collector, Mood};

/// A TLS proxy for an engine.
struct Front {
    addr: SocketAddr,
    shaken: Arc<AtomicU32>,
    refused: Arc<AtomicU32>,
    /// The certificate it presents; a change ends all connections.
    config: watch::Sender<Arc<ServerConfig>>,
    _tasks: JoinSet<()>,
}

fn server_config(papers: &Papers, clients: Option<&Authority>) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(clients.roots()), provider).build().unwrap(),
        ),
    };
    let (chain, key) = papers.der();
    Arc::new(builder.with_single_cert(chain, key).unwrap())
}

impl Front {
    async fn new(engine: SocketAddr, config: Arc<ServerConfig>) -> Front {
        let listener = TcpListener::bind(ANYWHERE).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (shaken, refused) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (config, configs) = watch::channel(config);
        let mut tasks = JoinSet::new();
        let counts = (shaken.clone(), refused.clone());
        tasks.spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (mut configs, (shaken, refused)) = (configs.clone(), counts.clone());
                let config = configs.borrow_and_update().clone();
                served.spawn(async move {
                    let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else {
                        refused.fetch_add(1, Ordering::Relaxed);
                        return;
                    };
                    shaken.fetch_add(1, Ordering::Relaxed);
                    let Ok(mut engine) = TcpStream::connect(engine).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut stream, &mut engine) => {}
                        _ = configs.changed() => {}
                    }
                });
            }
        });
        Front { addr, shaken, refused, config, _tasks: tasks }
    }
}

struct Kitchen {
    engine: Host,
    front: Front,
}

/// An engine behind a proxy with this certificate.
async fn kitchen(config: Arc<ServerConfig>) -> Kitchen {
    let engine = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let front = Front::new(engine.addr(), config).await;
    Kitchen { engine, front }
}

async fn router(workers: &[String], worker_tls: TlsClientSettings) -> Router {
    let workers = workers.iter().map(|it| it.parse().unwrap()).collect();
    Router::start(RouterSettings { workers, worker_tls, ..settings() }).await.unwrap()
}

fn trusting(folder: &Folder, authority: &Authority) -> TlsClientSettings {
    TlsClientSettings { ca: folder.write("ca.pem", &authority.pem), ..TlsClientSettings::default() }
}

#[tokio::test]
async fn an_engine_behind_tls_is_a_worker_like_any_other() {
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let kitchen = kitchen(server_config(&authority.sign(HERE, Until::Later), None)).await;
    let url = format!("https://{}", kitchen.front.addr);
    let router = router(std::slice::from_ref(&url), trusting(&folder, &authority)).await;
    within(router.until_all_ready()).await;
    let mut client = Client::connect(router.listen()).await;
    for number in 0..100 {
        let answer = client.post("/v1/chat/completions", chat(20, number % 2 == 0)).await;
        assert!(answer.status == 200 && !answer.broke, "{answer:?}");
        assert_eq!(answer.header("x-maitre-worker"), url);
        assert!(number % 2 == 1 || answer.text().ends_with("data: [DONE]\n\n"));
    }
    // A body longer than one TLS record.
    let padding = format!("{{\"padding\":\"{}\",", "x".repeat(2 << 20));
    let body = chat(2, false).replacen('{', &padding, 1);
    assert_eq!(client.post("/v1/chat/completions", body).await.status, 200);
    let shaken = kitchen.front.shaken.load(Ordering::Relaxed);
    assert!(shaken <= 4, "connections are kept: {shaken} handshakes");
    let report = |it: &maitre_fleet::Worker| it.report.is_some();
    within(router.until(|brain| brain.fleet().workers().all(report))).await;
    drop(kitchen.engine);
}

#[tokio::test]
async fn a_worker_that_asks_for_it_gets_our_certificate() {
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let papers = authority.sign("router", Until::Later);
    let kitchen = kitchen(server_config(&authority.sign(HERE, Until::Later), Some(&authority))).await;
    let url = format!("https://{}", kitchen.front.addr);
    let mut tls = trusting(&folder, &authority);
    let stranger = router(std::slice::from_ref(&url), tls.clone()).await;
    tls.cert = folder.write("cert.pem", &papers.cert);
    tls.key = folder.write("key.pem", &papers.key);
    let known = router(std::slice::from_ref(&url), tls).await;
    within(known.until_all_ready()).await;
    let answer = Client::connect(known.listen()).await.post("/v1/chat/completions", chat(2, false)).await;
    assert_eq!(answer.status, 200);
    let twice = async || {
        while kitchen.front.refused.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
    };
    within(twice()).await;
    let state = |router: &Router| router.look(|it| it.fleet().workers().next().unwrap().health.state());
    assert_ne!(state(&stranger), HealthState::Ready);
    let answer = Client::connect(stranger.listen()).await.post("/v1/chat/completions", chat(2, false)).await;
    assert_ne!(answer.status, 200);
}

#[tokio::test]
async fn a_worker_with_an_untrusted_certificate_gets_no_requests() {
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let good = server_config(&authority.sign(HERE, Until::Later), None);
    let kitchen = kitchen(good.clone()).await;
    let plain = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let urls = [format!("https://{}", kitchen.front.addr), format!("http://{}", plain.addr())];
    let router = router(&urls, trusting(&folder, &authority)).await;
    within(router.until_all_ready()).await;
    let mut client = Client::connect(router.listen()).await;
    let state = |brain: &maitre_dispatch::Brain| brain.fleet().workers().next().unwrap().health.state();
    let expired = authority.sign(HERE, Until::LongAgo);
    let foreign = Authority::new("workers").sign(HERE, Until::Later);
    let elsewhere = authority.sign("elsewhere", Until::Later);
    for papers in [expired, foreign, elsewhere] {
        kitchen.front.config.send_replace(server_config(&papers, None));
        let mut until_out = async || {
            while !router.look(|it| state(it).is_out()) {
                let answer = client.post("/v1/chat/completions", chat(3, true)).await;
                assert!(answer.status == 200 && !answer.broke, "{answer:?}");
            }
        };
        within(until_out()).await;
        kitchen.front.config.send_replace(good.clone());
        within(router.until(|it| matches!(state(it), HealthState::Ready | HealthState::Warming { .. })))
            .await;
    }
}

#[tokio::test]
async fn a_request_goes_to_another_worker_when_the_handshake_fails() {
    // No probe comes before the requests: these notice the failure.
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let kitchen = kitchen(server_config(&authority.sign(HERE, Until::Later), None)).await;
    let plain = Host::bind(ANYWHERE, engine_settings()).await.unwrap();
    let urls = [format!("https://{}", kitchen.front.addr), format!("http://{}", plain.addr())];
    let workers = urls.iter().map(|it| it.parse().unwrap()).collect();
    let mut settings = RouterSettings { workers, worker_tls: trusting(&folder, &authority), ..settings() };
    settings.probes.interval = std::time::Duration::from_secs(3_600);
    settings.timeouts.worker_idle = std::time::Duration::ZERO;
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    kitchen.front.config.send_replace(server_config(&authority.sign("elsewhere", Until::Later), None));
    let mut client = Client::connect(router.listen()).await;
    for _ in 0..4 {
        let answer = client.post("/v1/chat/completions", chat(3, false)).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-maitre-worker")), (200, urls[1].as_str()));
    }
    assert!(metric(&router.metrics(), r#"maitre_attempts_failed_total{failure="handshake"}"#) >= 1.0);
}

#[tokio::test]
async fn a_new_ca_is_trusted_without_a_restart() {
    let (folder, old, new) = (Folder::new(), Authority::new("old"), Authority::new("new"));
    let kitchen = kitchen(server_config(&new.sign(HERE, Until::Later), None)).await;
    let router = router(&[format!("https://{}", kitchen.front.addr)], trusting(&folder, &old)).await;
    let refused = async || {
        while kitchen.front.refused.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    within(refused()).await;
    folder.write("ca.pem", &new.pem);
    within(router.until_all_ready()).await;
    until_counted(&router, r#"maitre_tls_files_changed_total{result="taken"}"#, 1.0).await;
}

#[tokio::test]
async fn the_server_name_can_be_set_and_verification_can_be_off() {
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let kitchen = kitchen(server_config(&authority.sign("vllm.internal", Until::Later), None)).await;
    let url = format!("https://{}", kitchen.front.addr);
    let named =
        TlsClientSettings { server_name: "vllm.internal".to_owned(), ..trusting(&folder, &authority) };
    let careless = TlsClientSettings { verify: false, ..TlsClientSettings::default() };
    for tls in [named, careless] {
        let router = router(std::slice::from_ref(&url), tls).await;
        within(router.until_all_ready()).await;
        let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(2, true)).await;
        assert_eq!(answer.status, 200);
    }
    let odd = TlsClientSettings { server_name: "not a name".to_owned(), ..TlsClientSettings::default() };
    let error =
        Router::start(RouterSettings { worker_tls: odd, ..settings() }).await.err().unwrap().to_string();
    assert!(error.starts_with("worker_tls.server_name: \"not a name\" is not a host name"), "{error}");
}

#[tokio::test]
async fn a_trace_collector_is_verified_by_a_ca_of_its_own() {
    let (folder, authority) = (Folder::new(), Authority::new("collectors"));
    let mut collector = Collector::new(Mood::Takes).await;
    let front = Front::new(collector.addr, server_config(&authority.sign(HERE, Until::Later), None)).await;
    let mut settings = collector.settings();
    settings.traces.endpoint = Some(format!("https://{}", front.addr).parse().unwrap());
    let stranger = fixture_with(1, engine_settings(), settings.clone()).await;
    settings.traces.ca = folder.write("ca.pem", &authority.pem);
    let known = fixture_with(1, engine_settings(), settings).await;
    for fixture in [&stranger, &known] {
        let answer = fixture.client().await.post("/v1/chat/completions", chat(2, false)).await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!(collector.spans("receive", 1).await.len(), 3);
    let failed = || metric(&stranger.router.metrics(), "maitre_trace_exports_failed_total");
    within(async {
        while failed() == 0.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(metric(&stranger.router.metrics(), "maitre_trace_spans_exported_total"), 0.0);
}

/// A worker that answers probes, and sends half of a response to a POST that ends with the connection.
async fn cut_short(config: Arc<ServerConfig>, in_good_order: bool) -> SocketAddr {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let config = config.clone();
            served.spawn(async move {
                let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
                let mut seen = vec![0; 64 << 10];
                while let Ok(count @ 1..) = stream.read(&mut seen).await {
                    if seen[..count].starts_with(b"GET") {
                        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                        drop(stream.write_all(answer).await);
                        continue;
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"half\":";
                    drop(stream.write_all(answer).await);
                    drop(stream.flush().await);
                    if in_good_order {
                        drop(stream.shutdown().await);
                    }
                    return;
                }
            });
        }
    });
    tasks.detach_all();
    addr
}

#[tokio::test]
async fn a_response_without_a_tls_close_is_incomplete() {
    let (folder, authority) = (Folder::new(), Authority::new("workers"));
    let config = server_config(&authority.sign(HERE, Until::Later), None);
    for in_good_order in [true, false] {
        let addr = cut_short(config.clone(), in_good_order).await;
        let workers = vec![format!("https://{addr}").parse().unwrap()];
        let mut settings =
            RouterSettings { workers, worker_tls: trusting(&folder, &authority), ..settings() };
        settings.probes.path = "/v1/models".to_owned();
        let router = Router::start(settings).await.unwrap();
        let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
        within(router.until(|brain| brain.fleet().workers().all(ready))).await;
        let mut client = Client::connect(router.listen()).await;
        let answer = client.ask(post("/v1/chat/completions", chat(2, false))).await;
        // The connection may also break before the head is sent.
        let whole = answer.is_ok_and(|it| !it.broke && it.body == "{\"half\":");
        assert_eq!(whole, in_good_order);
        let outcome = if in_good_order { "answered" } else { "broke" };
        let line = format!(r#"maitre_requests_total{{route="chat",outcome="{outcome}",code=""}}"#);
        assert_eq!(metric(&router.metrics(), &line), 1.0);
    }
}

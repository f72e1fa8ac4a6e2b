//! TLS on the listeners for clients and operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_base::Rng;
use maitre_net::tls::{ClientAuth, TlsServerSettings};
use maitre_proxy::{Router, RouterSettings};
use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{Authority, Folder, HERE, Papers, Until, client_config, connect, is_served};
use crate::bytes::scripted;
use crate::fixture::{
    Client, Fixture, chat, engine_settings, fixture_with, get, settings, until_counted, within,
};

const FAILED: &str = r#"maitre_tls_handshakes_failed_total{listener="clients"}"#;

fn with_tls(folder: &Folder, papers: &Papers) -> TlsServerSettings {
    TlsServerSettings {
        cert: folder.write("cert.pem", &papers.cert),
        key: folder.write("key.pem", &papers.key),
        ..TlsServerSettings::default()
    }
}

/// A router that serves TLS and an engine behind it.
async fn fixture_over(
    folder: &Folder,
    authority: &Authority,
    change: impl FnOnce(&mut RouterSettings),
) -> Fixture {
    let mut settings = settings();
    settings.tls = with_tls(folder, &authority.sign(HERE, Until::Later));
    change(&mut settings);
    fixture_with(1, engine_settings(), settings).await
}

#[tokio::test]
async fn a_reload_applies_its_certificates_at_once_or_not_at_all() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let fixture = fixture_with(1, engine_settings(), settings()).await;
    let workers = vec![format!("http://{}", fixture.engines[0].addr()).parse().unwrap()];
    let mut wanted =
        RouterSettings { workers, tls: with_tls(&folder, &authority.sign(HERE, Until::Later)), ..settings() };
    let good = wanted.tls.cert.replace("not-there.pem".into());
    wanted.brain.strategy = maitre_policy::Name::Random;
    let said = fixture.router.reload(wanted.clone()).unwrap_err();
    assert!(said.contains("tls.cert") && said.contains("not-there.pem"), "{said}");
    let unchanged = |brain: &maitre_dispatch::Brain| brain.settings().strategy == settings().brain.strategy;
    assert!(fixture.router.look(unchanged));
    wanted.tls.cert = good;
    fixture.router.reload(wanted).unwrap();
    // The very next connection.
    let config = client_config(&authority, None, &["http/1.1"]);
    let mut client = Client::over(connect(fixture.router.listen(), &config).await.unwrap()).await;
    assert_eq!(client.post("/v1/chat/completions", chat(2, false)).await.status, 200);
}

#[tokio::test]
async fn clients_use_http1_or_http2_by_alpn() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let fixture = fixture_over(&folder, &authority, |_| {}).await;
    for protocols in [&["http/1.1"][..], &[]] {
        let stream =
            connect(fixture.router.listen(), &client_config(&authority, None, protocols)).await.unwrap();
        let mut client = Client::over(stream).await;
        for number in 0..6 {
            let answer = client.post("/v1/chat/completions", chat(5, number % 2 == 0)).await;
            assert!(answer.status == 200 && !answer.broke, "{answer:?}");
        }
    }
    let config = client_config(&authority, None, &["h2", "http/1.1"]);
    let stream = connect(fixture.router.listen(), &config).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let mut answers = JoinSet::new();
    for number in 0..30 {
        let mut sender = sender.clone();
        answers.spawn(async move {
            let request = Request::post("https://maitre/v1/chat/completions");
            let request = request.body(Full::new(Bytes::from(chat(8, number % 2 == 0)))).unwrap();
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            (head.status.as_u16(), body.collect().await.unwrap().to_bytes().len())
        });
    }
    for (status, length) in within(answers.join_all()).await {
        assert!(status == 200 && length > 100, "{status} {length}");
    }
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_stream_arrives_byte_for_byte() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let mut rng = Rng::new(5);
    let mut text = String::new();
    for number in 0..400 {
        let filler = "\u{e9}x".repeat(rng.below(600));
        text.push_str(&format!("data: {{\"n\":{number},\"t\":\"{filler}\"}}\n\n"));
    }
    text.push_str("data: [DONE]\n\n");
    let whole = text.into_bytes();
    // Cut anywhere, also within a character, and into chunks larger than a TLS record.
    let mut pieces = Vec::new();
    let mut rest = &whole[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(1 + rng.below(40_000)));
        pieces.push(piece.to_vec());
        rest = after;
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let addr = scripted(head, pieces).await;
    let mut settings = settings();
    settings.probes.path = "/v1/models".to_owned();
    settings.workers = vec![format!("http://{addr}").parse().unwrap()];
    settings.tls = with_tls(&folder, &authority.sign(HERE, Until::Later));
    let router = Router::start(settings).await.unwrap();
    let known = |it: &maitre_fleet::Worker| it.health.state() == maitre_fleet::HealthState::Ready;
    within(router.until(|brain| brain.fleet().workers().all(known))).await;
    let config = client_config(&authority, None, &["http/1.1"]);
    let mut client = Client::over(connect(router.listen(), &config).await.unwrap()).await;
    for _ in 0..3 {
        let answer = client.post("/v1/chat/completions", chat(5, true)).await;
        assert!(answer.body == whole, "{} bytes of {}", answer.body.len(), whole.len());
    }
}

#[tokio::test]
async fn a_client_certificate_is_required_and_must_be_valid() {
    let (folder, authority, clients) = (Folder::new(), Authority::new("one"), Authority::new("clients"));
    let mut served = Vec::new();
    for auth in [ClientAuth::Required, ClientAuth::Optional] {
        let fixture = fixture_over(&folder, &authority, |settings| {
            settings.tls.client_ca = folder.write("clients.pem", &clients.pem);
            settings.tls.client_auth = auth;
        })
        .await;
        let right = clients.sign("a client", Until::Later);
        let expired = clients.sign("a client", Until::LongAgo);
        let foreign = Authority::new("clients").sign("a client", Until::Later);
        for papers in [Some(&right), None, Some(&expired), Some(&foreign)] {
            let config = client_config(&authority, papers, &["http/1.1"]);
            served.push(is_served(fixture.router.listen(), &config).await);
        }
        let refused = if auth == ClientAuth::Required { 3.0 } else { 2.0 };
        until_counted(&fixture.router, FAILED, refused).await;
    }
    assert_eq!(served, [true, false, false, false, true, true, false, false]);
}

#[tokio::test]
async fn a_rejected_client_gets_the_reason() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let fixture = fixture_over(&folder, &authority, |it| {
        it.tls.client_ca = folder.write("clients.pem", &authority.pem);
    })
    .await;
    let mut stream =
        connect(fixture.router.listen(), &client_config(&authority, None, &["http/1.1"])).await.unwrap();
    // Sent before the router can have rejected it.
    let _ = stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: m\r\n\r\n").await;
    let error = within(stream.read_to_end(&mut Vec::new())).await.unwrap_err();
    let said = error.get_ref().and_then(|it| it.downcast_ref::<rustls::Error>());
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
    assert_eq!(said, Some(&alert), "{error}");
}

#[tokio::test]
async fn plain_http_on_a_tls_port_gets_an_error_and_affects_no_other_client() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let fixture = fixture_over(&folder, &authority, |_| {}).await;
    let config = client_config(&authority, None, &["http/1.1"]);
    let mut other = Client::over(connect(fixture.router.listen(), &config).await.unwrap()).await;
    let answer = Client::connect(fixture.router.listen()).await.ask(get("/v1/models")).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (400, &"tls_required".into()));
    let mut stranger = TcpStream::connect(fixture.router.listen()).await.unwrap();
    stranger.write_all(b"\x00\x01\x02\x03\x04 neither").await.unwrap();
    let mut heard = Vec::new();
    // Closed or reset: either way it has ended.
    drop(within(stranger.read_to_end(&mut heard)).await);
    assert!(!heard.starts_with(b"HTTP"));
    assert_eq!(other.post("/v1/chat/completions", chat(3, false)).await.status, 200);
    until_counted(&fixture.router, FAILED, 2.0).await;
}

#[tokio::test]
async fn a_slow_handshake_is_cut_off() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let patience = Duration::from_millis(200);
    let fixture = fixture_over(&folder, &authority, |it| it.timeouts.client_header = patience).await;
    for beginning in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let mut slow = TcpStream::connect(fixture.router.listen()).await.unwrap();
        slow.write_all(beginning).await.unwrap();
        let mut heard = Vec::new();
        drop(within(slow.read_to_end(&mut heard)).await);
        assert!(heard.is_empty(), "{heard:?}");
    }
    until_counted(&fixture.router, FAILED, 3.0).await;
    assert!(is_served(fixture.router.listen(), &client_config(&authority, None, &[])).await);
}

#[tokio::test]
async fn the_admin_listener_has_its_own_certificate() {
    let (folder, authority, operators) = (Folder::new(), Authority::new("one"), Authority::new("operators"));
    let mut settings = settings();
    settings.admin_tls = with_tls(&folder, &authority.sign(HERE, Until::Later));
    settings.admin_tls.client_ca = folder.write("operators.pem", &operators.pem);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    assert_eq!(fixture.client().await.post("/v1/chat/completions", chat(2, false)).await.status, 200);
    let papers = operators.sign("an operator", Until::Later);
    let config = client_config(&authority, Some(&papers), &["h2", "http/1.1"]);
    let stream = connect(fixture.router.admin(), &config).await.unwrap();
    assert_eq!(Client::over(stream).await.ask(get("/readyz")).await.unwrap().text(), "ready\n");
    assert!(!is_served(fixture.router.admin(), &client_config(&authority, None, &[])).await);
    let line = r#"maitre_tls_handshakes_failed_total{listener="admin"}"#;
    until_counted(&fixture.router, line, 1.0).await;
}

#[tokio::test]
async fn unusable_certificates_are_an_error_at_the_start() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let (one, other) = (authority.sign(HERE, Until::Later), authority.sign(HERE, Until::Later));
    let good = with_tls(&folder, &one);
    let nonsense = folder.write("nonsense.pem", "no certificate");
    let rows = [
        (
            TlsServerSettings { key: folder.write("other.pem", &other.key), ..good.clone() },
            "tls.key: is not the key of",
        ),
        (TlsServerSettings { cert: nonsense.clone(), ..good.clone() }, "nonsense.pem: holds no certificate"),
        (TlsServerSettings { key: nonsense, ..good.clone() }, "nonsense.pem: holds no private key"),
        (TlsServerSettings { cert: Some(folder.0.join("absent")), ..good.clone() }, "tls.cert: "),
        (TlsServerSettings { cert: None, ..good }, "tls.cert: is missing"),
    ];
    for (tls, expected) in rows {
        let error =
            Router::start(RouterSettings { tls, ..settings() }).await.err().expect(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Sends requests on new connections and on a kept one until stopped. Returns how many, and the errors.
async fn load(
    addr: std::net::SocketAddr,
    config: Arc<ClientConfig>,
    stop: Arc<AtomicBool>,
) -> (u32, Vec<String>) {
    let mut kept = Client::over(connect(addr, &config).await.unwrap()).await;
    let (mut asked, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        asked += 2;
        match connect(addr, &config).await {
            Ok(stream) => {
                let answer = Client::over(stream).await.post("/v1/chat/completions", chat(3, true)).await;
                if answer.status != 200 || answer.broke {
                    failed.push(format!("{answer:?}"));
                }
            }
            Err(error) => failed.push(error.to_string()),
        }
        let answer = kept.post("/v1/chat/completions", chat(3, false)).await;
        if answer.status != 200 || answer.broke {
            failed.push(format!("kept: {answer:?}"));
        }
    }
    (asked, failed)
}

#[tokio::test]
async fn a_certificate_is_replaced_under_load_and_a_bad_one_is_rejected() {
    let (folder, authority) = (Folder::new(), Authority::new("one"));
    let fixture = fixture_over(&folder, &authority, |_| {}).await;
    let (addr, config) = (fixture.router.listen(), client_config(&authority, None, &["http/1.1"]));
    let shown = async || {
        let stream = connect(addr, &config).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let until_shown = async |papers: &Papers| {
        let wanted = papers.der().0[0].clone();
        while shown().await != wanted {
            tokio::task::yield_now().await;
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        clients.spawn(load(addr, config.clone(), stop.clone()));
    }
    let second = authority.sign(HERE, Until::Later);
    // The certificate first: for a moment it does not match the key.
    folder.write("cert.pem", &second.cert);
    folder.write("key.pem", &second.key);
    within(until_shown(&second)).await;
    let refused = r#"maitre_tls_files_changed_total{result="refused"} "#;
    let count = || {
        let page = fixture.router.metrics();
        page.lines().find_map(|it| it.strip_prefix(refused)?.parse::<u32>().ok()).unwrap_or(0)
    };
    // The router may have read the files between the two writes: that is one more.
    let before = count();
    folder.write("cert.pem", "no certificate");
    let looked = async || {
        while count() == before {
            assert!(shown().await == second.der().0[0]);
        }
    };
    within(looked()).await;
    assert!(shown().await == second.der().0[0], "the last good one stays");
    let third = authority.sign(HERE, Until::Later);
    folder.write("key.pem", &third.key);
    folder.write("cert.pem", &third.cert);
    within(until_shown(&third)).await;
    stop.store(true, Ordering::Relaxed);
    let ends = within(clients.join_all()).await;
    let failed: Vec<&String> = ends.iter().flat_map(|it| &it.1).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(ends.iter().all(|it| it.0 > 10));
}

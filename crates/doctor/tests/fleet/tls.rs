//! Engines and routers behind TLS, with certificates generated for each test, each with one fault.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use maitre_doctor::code::Code;
use maitre_doctor::look;
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsClientSettings;
use maitre_proxy::{Router, RouterSettings};
use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{ANYWHERE, Ward, engine, url};

type Papers = CertifiedKey<KeyPair>;

/// A self-signed certificate, which is enough for a client that names it as an authority.
fn papers(name: &str, year_of_end: i32) -> Papers {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_after = date_time_ymd(year_of_end, 1, 1);
    let signing_key = KeyPair::generate().unwrap();
    CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
}

fn good() -> Papers {
    papers("127.0.0.1", 4096)
}

/// The certificate and its key, as files of this test.
fn files(test: &str, papers: &Papers) -> (PathBuf, PathBuf) {
    let path = |end: &str| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{test}.{end}"));
    std::fs::write(path("crt"), papers.cert.pem()).unwrap();
    std::fs::write(path("key"), papers.signing_key.serialize_pem()).unwrap();
    (path("crt"), path("key"))
}

/// Terminates TLS for an engine, and requires client certificates if given an authority.
async fn front(engine: SocketAddr, papers: &Papers, clients: Option<&Papers>) -> (SocketAddr, JoinSet<()>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.cert.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let key = PrivateKeyDer::try_from(papers.signing_key.serialize_der()).unwrap();
    let config = Arc::new(builder.with_single_cert(vec![papers.cert.der().clone()], key).unwrap());
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let config = config.clone();
            served.spawn(async move {
                let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
                let mut engine = TcpStream::connect(engine).await.unwrap();
                // Both sides notice however it ends.
                let _ = copy_bidirectional(&mut stream, &mut engine).await;
            });
        }
    });
    (addr, tasks)
}

/// Three engines; the second is behind TLS with this certificate and key.
struct Fronted {
    ward: Ward,
    addr: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Fronted {
    async fn new(papers: &Papers, clients: Option<&Papers>) -> Fronted {
        let mut ward = Ward::with(engine()).await;
        let (addr, tasks) = front(ward.hosts[1].addr(), papers, clients).await;
        ward.plan.settings.workers[1] = format!("https://{addr}").parse().unwrap();
        Fronted { ward, addr, _tasks: tasks }
    }

    fn tls(&mut self) -> &mut TlsClientSettings {
        &mut self.ward.plan.settings.worker_tls
    }
}

#[tokio::test]
async fn a_worker_behind_tls_is_checked_like_any_other() {
    let papers = good();
    let mut fronted = Fronted::new(&papers, None).await;
    fronted.tls().ca = Some(files("good", &papers).0);
    fronted.ward.check_well().await;
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority() {
    let (papers, others) = (good(), good());
    let mut fronted = Fronted::new(&papers, None).await;
    let words = ("is not signed by anyone we trust", "worker_tls.ca");
    fronted.ward.check(Code::Unreachable, words.0, words.1).await;
    fronted.tls().ca = Some(files("others", &others).0);
    fronted.ward.check(Code::Unreachable, words.0, words.1).await;
    // A client that accepts any certificate accepts this one.
    fronted.tls().verify = false;
    fronted.ward.check_well().await;
}

#[tokio::test]
async fn a_certificate_for_another_name() {
    let papers = papers("vllm.internal", 4096);
    let mut fronted = Fronted::new(&papers, None).await;
    fronted.tls().ca = Some(files("misnamed", &papers).0);
    fronted.ward.check(Code::Unreachable, "not for 127.0.0.1, but for", "worker_tls.server_name").await;
    fronted.tls().server_name = "vllm.internal".to_owned();
    fronted.ward.check_well().await;
}

#[tokio::test]
async fn a_certificate_that_has_expired() {
    let papers = papers("127.0.0.1", 2001);
    let mut fronted = Fronted::new(&papers, None).await;
    fronted.tls().ca = Some(files("expired", &papers).0);
    fronted.ward.check(Code::Unreachable, "has expired", "renew").await;
}

#[tokio::test]
async fn a_worker_that_requires_a_client_certificate() {
    let (papers, ours) = (good(), papers("maitre", 4096));
    let mut fronted = Fronted::new(&papers, Some(&ours)).await;
    fronted.tls().ca = Some(files("wanting", &papers).0);
    // Its alert may be lost when it closes the connection; the fix is the same.
    fronted.ward.check(Code::Unreachable, "", "worker_tls.cert and worker_tls.key").await;
    let (cert, key) = files("ours", &ours);
    (fronted.tls().cert, fronted.tls().key) = (Some(cert), Some(key));
    fronted.ward.check_well().await;
}

#[tokio::test]
async fn the_wrong_scheme_either_way() {
    let mut fronted = Fronted::new(&good(), None).await;
    fronted.ward.plan.settings.workers[1] = url(fronted.addr).parse().unwrap();
    fronted.ward.check(Code::Unreachable, "uses TLS", "write https:// in its URL").await;
    let plain = format!("https://{}", fronted.ward.hosts[1].addr());
    fronted.ward.plan.settings.workers[1] = plain.parse().unwrap();
    fronted.ward.check(Code::Unreachable, "it does not speak TLS", "write http:// in its URL").await;
}

#[tokio::test]
async fn unusable_tls_files_are_an_error_not_a_finding() {
    let mut ward = Ward::of([engine()]).await;
    ward.plan.settings.worker_tls.ca = Some("absent.pem".into());
    let error = look(&ward.plan).await.unwrap_err().to_string();
    assert!(error.starts_with("worker_tls.ca: absent.pem: "), "{error}");
}

#[tokio::test]
async fn a_router_behind_tls() {
    let papers = good();
    let (cert, key) = files("router", &papers);
    let mut ward = Ward::of([engine()]).await;
    let mut settings = RouterSettings { listen: ANYWHERE, admin: ANYWHERE, ..ward.plan.settings.clone() };
    for tls in [&mut settings.tls, &mut settings.admin_tls] {
        (tls.cert, tls.key) = (Some(cert.clone()), Some(key.clone()));
    }
    let router = Router::start(settings).await.unwrap();
    super::until_well(&router, &ward).await;
    let dialer = |ca: Option<PathBuf>| {
        let settings = TlsClientSettings { ca, ..TlsClientSettings::default() };
        Arc::new(Dialer::load("tls", &settings).unwrap())
    };
    let address = |scheme: &str, addr: SocketAddr| Some(format!("{scheme}://{addr}").parse().unwrap());
    ward.plan.router = address("https", router.listen());
    ward.plan.admin = address("https", router.admin());
    ward.plan.dialer = dialer(Some(cert));
    ward.check_well().await;
    ward.plan.router = None;
    ward.plan.dialer = dialer(None);
    ward.check_at(None, Code::RouterUnreachable, "name its authority with --ca", "--admin-url").await;
    ward.plan.admin = address("http", router.admin());
    ward.check_at(None, Code::RouterUnreachable, "speaks TLS; write https://", "--admin-url").await;
}

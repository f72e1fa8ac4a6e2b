//! TLS to clients and workers, with certificates made for each test.

mod client;
mod server;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fixture::{Client, get, within};

/// The host of everything in these tests.
const HERE: &str = "127.0.0.1";

/// A CA.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
struct Papers {
    cert: String,
    key: String,
}

#[derive(Clone, Copy)]
enum Until {
    Later,
    LongAgo,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, name: &str, until: Until) -> Papers {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if let Until::LongAgo = until {
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Papers { cert: cert.pem(), key: key.serialize_pem() }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        roots
    }
}

impl Papers {
    fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let cert = CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap();
        (vec![cert], PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap())
    }
}

/// Files for one test, deleted when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("maitre-tls-{}-{number}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Writes a file and renames it into place, as programs that renew certificates do.
    fn write(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.0.join(name);
        fs::write(self.0.join("new"), text).unwrap();
        fs::rename(self.0.join("new"), &path).unwrap();
        Some(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// A client that trusts the CA, presents this certificate and offers these protocols.
fn client_config(authority: &Authority, papers: Option<&Papers>, protocols: &[&str]) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(authority.roots());
    let mut config = match papers {
        None => builder.with_no_client_auth(),
        Some(papers) => {
            let (chain, key) = papers.der();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
    Arc::new(config)
}

async fn connect(addr: SocketAddr, config: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = within(TcpStream::connect(addr)).await?;
    let name = ServerName::try_from(HERE).unwrap();
    within(TlsConnector::from(config.clone()).connect(name, stream)).await
}

/// Whether a request of this client is answered. With TLS 1.3 only then a client learns that it was rejected.
async fn is_served(addr: SocketAddr, config: &Arc<ClientConfig>) -> bool {
    match connect(addr, config).await {
        Ok(stream) => {
            Client::over(stream).await.ask(get("/v1/models")).await.is_ok_and(|it| it.status == 200)
        }
        Err(_) => false,
    }
}

//! TLS toward workers: whom we believe, and who we say we are.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};
use tracing::warn;

use super::files::{BadTls, Files};
use super::no_tls::NoTls;
use super::{Tried, provider};
use crate::address::Address;
use crate::metrics::Metrics;
use crate::settings::WorkerTls;
use crate::stream::Stream;

pub(crate) struct Outward {
    section: &'static str,
    made: ArcSwap<Made>,
    tried: Tried,
}

struct Made {
    config: Arc<ClientConfig>,
    /// What every worker's certificate must be for; none: its own host.
    server_name: Option<ServerName<'static>>,
}

impl Outward {
    pub(crate) fn load(section: &'static str, settings: &WorkerTls) -> Result<Outward, BadTls> {
        let files = read(section, settings);
        let made = ArcSwap::from_pointee(make(section, settings, &files)?);
        Ok(Outward { section, made, tried: Tried::new(&files) })
    }

    pub(super) fn refresh(&self, settings: &WorkerTls, metrics: &Metrics) {
        let files = read(self.section, settings);
        let make = |files: &Files| make(self.section, settings, files);
        if let Some(made) = self.tried.again(&files, metrics, self.section, make) {
            self.made.store(Arc::new(made));
        }
    }

    /// Shakes hands with whoever listens at the address; if it comes to nothing, says why.
    pub(crate) async fn shake(&self, address: &Address, stream: TcpStream) -> Result<Stream, NoTls> {
        let made = self.made.load_full();
        let name = match &made.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(address.host().to_owned()).map_err(|_| {
                NoTls::Failed(format!("{:?} is no name that a certificate could be for", address.host()))
            })?,
        };
        let shaken = TlsConnector::from(made.config.clone()).connect(name, stream).await;
        let stream = shaken.map_err(|error| NoTls::handshake(&error))?;
        Ok(Stream::Tls(Box::new(TlsStream::Client(stream))))
    }

    /// Which settings it goes by.
    pub(crate) fn section(&self) -> &'static str {
        self.section
    }
}

fn read(section: &str, settings: &WorkerTls) -> Files {
    let key = |name: &str| format!("{section}.{name}");
    let WorkerTls { ca, cert, key: private, verify: _, server_name: _ } = settings;
    Files::read(
        settings,
        [(key("ca"), ca.as_ref()), (key("cert"), cert.as_ref()), (key("key"), private.as_ref())],
    )
}

fn make(section: &str, settings: &WorkerTls, files: &Files) -> Result<Made, BadTls> {
    let key = |name: &str| format!("{section}.{name}");
    let bad = |name: &str, error: &dyn std::error::Error| BadTls::new(key(name), error.to_string());
    // Of the operator's own authorities only, where there are any: a fleet that has its own has no use for anyone who
    // could talk a public one into a certificate for its names.
    let roots = match files.authorities(&key("ca"))? {
        Some(roots) => roots,
        None => RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("ca", &error))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| bad("ca", &error))?;
    let builder = match settings.verify {
        true => builder.with_webpki_verifier(verifier),
        false => {
            warn!("worker_tls.verify = false: whoever answers at a worker's address is believed to be it");
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(verifier)))
        }
    };
    let mut config = match files.pair(&key("cert"), &key("key"))? {
        None => builder.with_no_client_auth(),
        Some((chain, private)) => {
            builder.with_client_auth_cert(chain, private).map_err(|error| bad("cert", &error))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let server_name = match settings.server_name.as_str() {
        "" => None,
        name => Some(ServerName::try_from(name.to_owned()).map_err(|_| {
            BadTls::new(
                key("server_name"),
                format!("{name:?} is no host name; write it as in \"vllm.internal\""),
            )
        })?),
    };
    Ok(Made { config: Arc::new(config), server_name })
}

/// Believes every certificate, though not that whoever shows it has its key: that is still proven.
#[derive(Debug)]
struct Anybody(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rcgen::{CertificateParams, CertifiedKey, KeyPair, date_time_ymd};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// One who vouches for itself, which is enough for who names it as an authority.
    fn papers(name: &str, year_of_end: i32) -> CertifiedKey<KeyPair> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year_of_end, 1, 1);
        let signing_key = KeyPair::generate().unwrap();
        CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
    }

    fn trusting(certificate: &CertificateDer<'static>) -> Outward {
        let outward = Outward::load("worker_tls", &WorkerTls::default()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        outward.made.store(Arc::new(Made { config, server_name: None }));
        outward
    }

    /// What is said of a worker that shows these papers, or none and speaks plain HTTP.
    async fn words(outward: &Outward, papers: Option<&CertifiedKey<KeyPair>>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address: Address = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let stream = TcpStream::connect((address.host(), address.port())).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        let serve = async {
            let Some(papers) = papers else {
                let _ = served.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                return;
            };
            let key = PrivateKeyDer::try_from(papers.signing_key.serialize_der()).unwrap();
            let builder = ServerConfig::builder_with_provider(provider());
            let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            let config = builder.with_single_cert(vec![papers.cert.der().clone()], key).unwrap();
            let _ = TlsAcceptor::from(Arc::new(config)).accept(served).await;
        };
        let (shaken, ()) = tokio::join!(outward.shake(&address, stream), serve);
        shaken.err().map_or(String::new(), |it| it.told(outward.section()))
    }

    #[tokio::test]
    async fn a_handshake_that_failed_is_told_in_words() {
        let (good, late, other) =
            (papers("127.0.0.1", 4096), papers("127.0.0.1", 2001), papers("elsewhere", 4096));
        assert_eq!(words(&trusting(good.cert.der()), Some(&good)).await, "");
        let rows = [
            (trusting(late.cert.der()), Some(&late), "its certificate has expired"),
            (trusting(other.cert.der()), Some(&other), "is not for 127.0.0.1, but for"),
            (trusting(other.cert.der()), Some(&good), "is not signed by anyone we trust; name its authority"),
            (
                Outward::load("worker_tls", &WorkerTls::default()).unwrap(),
                Some(&good),
                "is not signed by anyone we trust",
            ),
            (trusting(good.cert.der()), None, "it does not speak TLS; write http://"),
        ];
        for (outward, papers, expected) in rows {
            let words = words(&outward, papers).await;
            assert!(words.contains(expected), "{words}");
        }
    }
}

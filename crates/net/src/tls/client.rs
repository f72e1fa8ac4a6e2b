//! TLS as a client, to workers and other servers: which authorities we trust and which certificate we present.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};
use tracing::warn;

use super::failure::TlsFailure;
use super::files::{PemFiles, TlsConfigError};
use super::{LoadedFiles, TlsClientSettings, TlsReload, Validity, provider};
use crate::address::Address;
use crate::stream::ByteStream;

pub struct TlsClient {
    section: &'static str,
    current: ArcSwap<ClientSetup>,
    loaded: LoadedFiles,
}

struct ClientSetup {
    config: Arc<ClientConfig>,
    /// The name that every certificate must be for. None: the host of the address.
    server_name: Option<ServerName<'static>>,
}

impl TlsClient {
    /// `section` is what errors and advice call these settings.
    pub fn load(section: &'static str, settings: &TlsClientSettings) -> Result<TlsClient, TlsConfigError> {
        let files = read(section, settings);
        let current = ArcSwap::from_pointee(set_up(section, settings, &files)?);
        Ok(TlsClient { section, current, loaded: LoadedFiles::new(section, &files) })
    }

    /// Reads the files again and applies them if they changed. Blocks on the disk.
    pub fn reload(&self, settings: &TlsClientSettings) -> TlsReload {
        let files = read(self.section, settings);
        let make = |files: &PemFiles| set_up(self.section, settings, files);
        self.loaded.reload(self.section, &files, make, |made| self.current.store(Arc::new(made)))
    }

    /// Of the certificate that it presents; None without one.
    pub fn validity(&self) -> Option<Validity> {
        self.loaded.validity()
    }

    /// Performs the handshake on a connection to the address.
    pub async fn handshake(&self, address: &Address, stream: TcpStream) -> Result<ByteStream, TlsFailure> {
        let current = self.current.load_full();
        let name = match &current.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(address.host().to_owned()).map_err(|_| {
                TlsFailure::Other(format!("no certificate can be for the name {:?}", address.host()))
            })?,
        };
        let connected = TlsConnector::from(current.config.clone()).connect(name, stream).await;
        let stream = connected.map_err(|error| TlsFailure::of_handshake(&error))?;
        Ok(ByteStream::Tls(Box::new(TlsStream::Client(stream))))
    }

    /// The name of its settings.
    pub fn section(&self) -> &'static str {
        self.section
    }
}

fn read(section: &str, settings: &TlsClientSettings) -> PemFiles {
    let key = |name: &str| format!("{section}.{name}");
    let TlsClientSettings { ca, cert, key: private, verify: _, server_name: _ } = settings;
    PemFiles::read(
        settings,
        [(key("ca"), ca.as_ref()), (key("cert"), cert.as_ref()), (key("key"), private.as_ref())],
    )
}

fn set_up(
    section: &str,
    settings: &TlsClientSettings,
    files: &PemFiles,
) -> Result<ClientSetup, TlsConfigError> {
    let key = |name: &str| format!("{section}.{name}");
    let bad = |name: &str, error: &dyn std::error::Error| TlsConfigError::new(key(name), error.to_string());
    // If the operator names authorities, only those: a private fleet must not trust a public authority that was tricked
    // into issuing a certificate for its names.
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
            warn!("{section}.verify = false: certificates of servers are not verified");
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(verifier)))
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
            TlsConfigError::new(
                key("server_name"),
                format!("{name:?} is not a host name; write it as in \"vllm.internal\""),
            )
        })?),
    };
    Ok(ClientSetup { config: Arc::new(config), server_name })
}

/// Accepts every certificate. The server must still prove that it has the private key.
#[derive(Debug)]
struct AnyCertificate(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyCertificate {
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
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, KeyPair, date_time_ymd};
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::upstream::{Upstream, UpstreamRequest};

    /// A self-signed certificate, valid for a client that trusts it as an authority.
    fn self_signed(name: &str, year_of_end: i32) -> CertifiedKey<KeyPair> {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year_of_end, 1, 1);
        let signing_key = KeyPair::generate().unwrap();
        CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
    }

    fn trusting(certificate: &CertificateDer<'static>) -> TlsClient {
        let client = TlsClient::load("worker_tls", &TlsClientSettings::default()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        client.current.store(Arc::new(ClientSetup { config, server_name: None }));
        client
    }

    fn acceptor(certificate: &CertifiedKey<KeyPair>) -> TlsAcceptor {
        let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = builder.with_single_cert(vec![certificate.cert.der().clone()], key).unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// The advice about a worker with this certificate; without one it speaks plain HTTP.
    async fn advice(client: &TlsClient, certificate: Option<&CertifiedKey<KeyPair>>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address: Address = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let stream = TcpStream::connect((address.host(), address.port())).await.unwrap();
        let (mut served, _) = listener.accept().await.unwrap();
        let serve = async {
            let Some(certificate) = certificate else {
                let _ = served.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                return;
            };
            let _ = acceptor(certificate).accept(served).await;
        };
        let (connected, ()) = tokio::join!(client.handshake(&address, stream), serve);
        connected.err().map_or(String::new(), |it| it.advice(client.section()))
    }

    #[tokio::test]
    async fn a_failed_handshake_says_why_and_what_to_change() {
        let (good, late, other) =
            (self_signed("127.0.0.1", 4096), self_signed("127.0.0.1", 2001), self_signed("elsewhere", 4096));
        let authority = {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let signing_key = KeyPair::generate().unwrap();
            CertifiedKey { cert: params.self_signed(&signing_key).unwrap(), signing_key }
        };
        assert_eq!(advice(&trusting(good.cert.der()), Some(&good)).await, "");
        let rows = [
            (trusting(late.cert.der()), Some(&late), "its certificate has expired"),
            (trusting(other.cert.der()), Some(&other), "is not for 127.0.0.1, but for"),
            (trusting(other.cert.der()), Some(&good), "is not signed by anyone we trust; name its authority"),
            (
                TlsClient::load("worker_tls", &TlsClientSettings::default()).unwrap(),
                Some(&good),
                "is not signed by anyone we trust",
            ),
            (trusting(good.cert.der()), None, "it does not speak TLS; write http://"),
            (
                trusting(authority.cert.der()),
                Some(&authority),
                "accepted: it is an authority's own (CA:TRUE)",
            ),
        ];
        for (client, certificate, expected) in rows {
            let advice = advice(&client, certificate).await;
            assert!(advice.contains(expected), "{advice}");
        }
    }

    /// Processes that die, and many servers, close without the farewell of TLS. That is an end like any other.
    #[tokio::test]
    async fn a_connection_that_ends_without_a_farewell_has_brought_no_response() {
        let certificate = self_signed("127.0.0.1", 4096);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address: Address = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serve = async {
            let (served, _) = listener.accept().await.unwrap();
            let mut served = acceptor(&certificate).accept(served).await.unwrap();
            assert!(served.read(&mut [0; 1_000]).await.unwrap() > 0);
        };
        let ask = async {
            let client = trusting(certificate.cert.der());
            let mut upstream = Upstream::open(&address, &client, Duration::from_secs(60)).await.unwrap();
            upstream.send(UpstreamRequest::get("/", address.header(), None)).await.unwrap_err()
        };
        let (error, ()) = tokio::join!(ask, serve);
        assert!(error.may_be_unread(), "{error}");
    }
}

//! TLS as a server: the handshake with a client, within a time limit, on the thread that will serve it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsStream};

use super::files::{PemFiles, TlsConfigError};
use super::{ClientAuth, LoadedFiles, TlsReload, TlsServerSettings, Validity, provider};
use crate::stream::ByteStream;

pub struct TlsServer {
    section: &'static str,
    /// ALPN, best first.
    protocols: &'static [&'static [u8]],
    /// None: the listener speaks plain HTTP.
    config: ArcSwapOption<ServerConfig>,
    loaded: LoadedFiles,
}

/// Why a connection was not accepted, with the connection where it is still open: see [`AcceptError::close`].
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct AcceptError {
    reason: Reason,
    stream: Option<TcpStream>,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the client sent HTTP without TLS")]
    PlainHttp,
    #[error("no handshake within {0:?}")]
    TimedOut(Duration),
}

impl TlsServer {
    /// `section` is what errors call these settings; `protocols` are offered by ALPN, best first.
    pub fn load(
        section: &'static str,
        protocols: &'static [&'static [u8]],
        settings: &TlsServerSettings,
    ) -> Result<TlsServer, TlsConfigError> {
        let files = read(section, settings);
        let config = ArcSwapOption::new(config(section, protocols, settings, &files)?);
        Ok(TlsServer { section, protocols, config, loaded: LoadedFiles::new(section, &files) })
    }

    /// Reads the files again and applies them if they changed. Blocks on the disk.
    pub fn reload(&self, settings: &TlsServerSettings) -> TlsReload {
        let files = read(self.section, settings);
        let make = |files: &PemFiles| config(self.section, self.protocols, settings, files);
        self.loaded.reload(self.section, &files, make, |config| self.config.store(config))
    }

    /// Of the certificate that it presents; None without one.
    pub fn validity(&self) -> Option<Validity> {
        self.loaded.validity()
    }

    /// Takes a connection as it is, or performs the handshake if there is a certificate.
    pub async fn accept(&self, stream: TcpStream, limit: Duration) -> Result<ByteStream, AcceptError> {
        let Some(config) = self.config.load_full() else { return Ok(ByteStream::Plain(stream)) };
        match timeout(limit, handshake(config, stream)).await {
            Ok(accepted) => accepted,
            Err(_) => Err(AcceptError { reason: Reason::TimedOut(limit), stream: None }),
        }
    }
}

async fn handshake(config: Arc<ServerConfig>, stream: TcpStream) -> Result<ByteStream, AcceptError> {
    let failed = |reason, stream| AcceptError { reason, stream: Some(stream) };
    let mut first = [0];
    match stream.peek(&mut first).await {
        // No TLS record begins with a letter, and every HTTP method does.
        Ok(1) if first[0].is_ascii_alphabetic() => return Err(failed(Reason::PlainHttp, stream)),
        Ok(_) => {}
        Err(error) => return Err(failed(error.into(), stream)),
    }
    match TlsAcceptor::from(config).accept(stream).into_fallible().await {
        Ok(stream) => Ok(ByteStream::Tls(Box::new(TlsStream::Server(stream)))),
        Err((error, stream)) => Err(failed(error.into(), stream)),
    }
}

/// How long a rejected client may take to read why, and how much of its request is read meanwhile. A socket that is
/// closed over unread bytes discards what it sent last, and a client without a certificate has sent its request by then.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
const CLOSE_BYTES_MAX: u64 = 64 << 10;

/// The response to HTTP on a TLS port, byte for byte: the request has not been parsed.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    connection: close\r\n\r\n{\"error\":{\"message\":\"this port speaks TLS; write https:// in the URL\",\
    \"type\":\"invalid_request_error\",\"param\":null,\"code\":\"tls_required\"}}";

impl AcceptError {
    /// Closes the connection so that the client can read why. A client that is too slow for that is cut off.
    pub async fn close(self) {
        if let Some(stream) = self.stream {
            let _ = timeout(CLOSE_TIME_MAX, close(stream, &self.reason)).await;
        }
    }
}

async fn close(mut stream: TcpStream, reason: &Reason) -> io::Result<()> {
    if let Reason::PlainHttp = reason {
        stream.write_all(PLAIN_HTTP).await?;
    }
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(CLOSE_BYTES_MAX), &mut tokio::io::sink()).await?;
    Ok(())
}

fn read(section: &str, settings: &TlsServerSettings) -> PemFiles {
    let key = |name: &str| format!("{section}.{name}");
    let TlsServerSettings { cert, key: private, client_ca, client_auth: _ } = settings;
    let named = [
        (key("cert"), cert.as_ref()),
        (key("key"), private.as_ref()),
        (key("client_ca"), client_ca.as_ref()),
    ];
    PemFiles::read(settings, named)
}

fn config(
    section: &str,
    protocols: &[&[u8]],
    settings: &TlsServerSettings,
    files: &PemFiles,
) -> Result<Option<Arc<ServerConfig>>, TlsConfigError> {
    let key = |name: &str| format!("{section}.{name}");
    let authorities = files.authorities(&key("client_ca"))?;
    let Some((chain, private)) = files.pair(&key("cert"), &key("key"))? else {
        return match authorities {
            None => Ok(None),
            Some(_) => Err(TlsConfigError::new(
                key("client_ca"),
                "client certificates need TLS; name a cert and a key too",
            )),
        };
    };
    let bad = |name: &str, error: &dyn std::error::Error| TlsConfigError::new(key(name), error.to_string());
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("cert", &error))?;
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = match settings.client_auth {
                ClientAuth::Required => verifier,
                ClientAuth::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| bad("client_ca", &error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, private).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsConfigError::new(key("key"), format!("is not the key of the certificate in {}", key("cert")))
        }
        error => bad("cert", &error),
    })?;
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    Ok(Some(Arc::new(config)))
}

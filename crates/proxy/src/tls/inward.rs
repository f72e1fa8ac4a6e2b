//! TLS on a listener: the handshake with whoever connects, within a deadline, on the thread that will serve them.

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
use tracing::debug;

use super::files::{BadTls, Files};
use super::{Tried, provider};
use crate::house::RouterState;
use crate::metrics::Metrics;
use crate::refuse::PLAIN_HTTP;
use crate::settings::{self, ClientAuth};
use crate::stream::Stream;

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Clients,
    Admin,
}

impl Listener {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Listener::Clients => "clients",
            Listener::Admin => "admin",
        }
    }

    const fn section(self) -> &'static str {
        match self {
            Listener::Clients => "tls",
            Listener::Admin => "admin_tls",
        }
    }

    /// What it speaks, best first.
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Listener::Clients => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Listener::Admin => vec![b"http/1.1".to_vec()],
        }
    }
}

pub(crate) struct Inward {
    listener: Listener,
    /// None: it speaks plainly.
    config: ArcSwapOption<ServerConfig>,
    tried: Tried,
}

/// Why nobody came in.
#[derive(Debug, thiserror::Error)]
enum Unshaken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it spoke HTTP without TLS")]
    Plain,
    #[error("no handshake within {0:?}")]
    TimedOut(Duration),
}

impl Inward {
    pub(super) fn load(listener: Listener, settings: &settings::Tls) -> Result<Inward, BadTls> {
        let files = read(listener, settings);
        let config = ArcSwapOption::new(config(listener, settings, &files)?);
        Ok(Inward { listener, config, tried: Tried::new(&files) })
    }

    pub(super) fn refresh(&self, settings: &settings::Tls, metrics: &Metrics) {
        let files = read(self.listener, settings);
        let make = |files: &Files| config(self.listener, settings, files);
        if let Some(config) = self.tried.again(&files, metrics, self.listener.section(), make) {
            self.config.store(config);
        }
    }
}

/// Takes a connection in: as it is, or after a handshake where there is a certificate. None: it came to nothing, and
/// has been counted.
pub(crate) async fn receive(house: &RouterState, inward: &Inward, stream: TcpStream) -> Option<Stream> {
    let Some(config) = inward.config.load_full() else { return Some(Stream::Plain(stream)) };
    let patience = house.settings().timeouts.client_head;
    let (error, stream) = match timeout(patience, shake(config, stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err((error, stream))) => (error, Some(stream)),
        Err(_) => (Unshaken::TimedOut(patience), None),
    };
    let listener = inward.listener.name();
    debug!(listener, %error, "no TLS handshake");
    house.metrics.unshaken(listener);
    if let Some(stream) = stream {
        // Only a courtesy: who does not take it in time goes without.
        let _ = timeout(COURTESY, part(stream, &error)).await;
    }
    None
}

/// On failure the connection is returned, for a last word.
async fn shake(config: Arc<ServerConfig>, stream: TcpStream) -> Result<Stream, (Unshaken, TcpStream)> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        // No record of TLS begins with a letter, and every method of HTTP does.
        Ok(1) if first[0].is_ascii_alphabetic() => return Err((Unshaken::Plain, stream)),
        Ok(_) => {}
        Err(error) => return Err((error.into(), stream)),
    }
    match TlsAcceptor::from(config).accept(stream).into_fallible().await {
        Ok(stream) => Ok(Stream::Tls(Box::new(TlsStream::Server(stream)))),
        Err((error, stream)) => Err((error.into(), stream)),
    }
}

/// How long a client has to read why it is not let in, and how much of it is read meanwhile: a socket that is closed over
/// unread bytes takes its last words back, and who shows no certificate has sent its request by then.
const COURTESY: Duration = Duration::from_secs(1);
const COURTESY_BYTES_MAX: u64 = 64 << 10;

async fn part(mut stream: TcpStream, why: &Unshaken) -> io::Result<()> {
    if let Unshaken::Plain = why {
        stream.write_all(PLAIN_HTTP).await?;
    }
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(COURTESY_BYTES_MAX), &mut tokio::io::sink()).await?;
    Ok(())
}

fn read(listener: Listener, settings: &settings::Tls) -> Files {
    let key = |name: &str| format!("{}.{name}", listener.section());
    let settings::Tls { cert, key: private, client_ca, client_auth: _ } = settings;
    let named = [
        (key("cert"), cert.as_ref()),
        (key("key"), private.as_ref()),
        (key("client_ca"), client_ca.as_ref()),
    ];
    Files::read(settings, named)
}

fn config(
    listener: Listener,
    settings: &settings::Tls,
    files: &Files,
) -> Result<Option<Arc<ServerConfig>>, BadTls> {
    let key = |name: &str| format!("{}.{name}", listener.section());
    let authorities = files.authorities(&key("client_ca"))?;
    let Some((chain, private)) = files.pair(&key("cert"), &key("key"))? else {
        return match authorities {
            None => Ok(None),
            Some(_) => {
                Err(BadTls::new(key("client_ca"), "client certificates need TLS; name a cert and a key, too"))
            }
        };
    };
    let bad = |name: &str, error: &dyn std::error::Error| BadTls::new(key(name), error.to_string());
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
            BadTls::new(key("key"), format!("is not the key of the certificate in {}", key("cert")))
        }
        error => bad("cert", &error),
    })?;
    config.alpn_protocols = listener.protocols();
    Ok(Some(Arc::new(config)))
}

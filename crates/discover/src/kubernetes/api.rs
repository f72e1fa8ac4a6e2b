//! The API server, as far as it is HTTP: one connection for each request.
//!
//! A list and a watch a minute need no pool, and a new connection takes up a renewed token, a new certificate
//! and another address of the server without any code for it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Problem;
use super::account::Account;
use crate::settings::Kubernetes;

/// Where the API is: `https://host:port`, or `http://` on this machine alone, for tests and `kubectl proxy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// An IPv6 address without its brackets.
    host: String,
    port: u16,
    security: Security,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    Tls,
    /// Neither encrypted nor signed; no token is sent.
    Plain,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" {reason}; write \"https://host:port\"")]
pub struct BadApi {
    text: String,
    reason: &'static str,
}

/// Of an answer that is an error: enough for its message.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Of an error's message, as it is shown.
const MESSAGE_CHARS_MAX: usize = 300;

impl FromStr for Api {
    type Err = BadApi;

    fn from_str(text: &str) -> Result<Api, BadApi> {
        let bad = |reason| BadApi { text: text.to_owned(), reason };
        let uri: http::Uri = text.parse().map_err(|_| bad("is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
        if authority.as_str().contains('@') || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad("has more than a host and a port"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (security, port) = match uri.scheme_str() {
            Some("https") => (Security::Tls, 443),
            Some("http") if is_this_machine(&host) => (Security::Plain, 80),
            Some("http") => return Err(bad("would send everything in the clear")),
            _ => return Err(bad("has no scheme")),
        };
        Ok(Api { host, port: authority.port_u16().unwrap_or(port), security })
    }
}

fn is_this_machine(host: &str) -> bool {
    host.parse().is_ok_and(|it: IpAddr| it.is_loopback())
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.security == Security::Tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl Api {
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The cluster we run in.
    #[expect(
        clippy::disallowed_methods,
        reason = "the cluster says there where its API is, and nowhere else"
    )]
    fn of_this_cluster() -> Result<Api, Problem> {
        Api::told(|name| std::env::var(name).ok())
    }

    fn told(variable: impl Fn(&str) -> Option<String>) -> Result<Api, Problem> {
        let failed = |why: &str| {
            Problem::Failed(format!("find the Kubernetes API: {why}; outside a cluster, set where it is"))
        };
        let host = variable("KUBERNETES_SERVICE_HOST").filter(|it| !it.is_empty());
        let host = host.ok_or_else(|| failed("KUBERNETES_SERVICE_HOST is not set"))?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let port = port.parse().map_err(|_| failed("KUBERNETES_SERVICE_PORT is not a port"))?;
        Ok(Api { host, port, security: Security::Tls })
    }
}

pub(super) struct Client {
    api: Api,
    account: Account,
    timeout: Duration,
}

/// An answer that has begun. The connection ends with it.
pub(super) struct Answer {
    body: Incoming,
    _connection: JoinSet<()>,
}

impl Client {
    pub(super) fn new(settings: &Kubernetes, account: Account) -> Result<Client, Problem> {
        let api = settings.api.clone().map_or_else(Api::of_this_cluster, Ok)?;
        Ok(Client { api, account, timeout: settings.timeout })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Asks, and waits until a good answer begins.
    pub(super) async fn get(&self, path: &str) -> Result<Answer, Problem> {
        let question = path.split('?').next().unwrap_or_default();
        let failed = |why: String| Problem::Failed(format!("get {}{question}: {why}", self.api));
        match timeout(self.timeout, self.answer(path)).await {
            Err(_) => Err(failed(format!("no answer within {:?}", self.timeout))),
            Ok(Err(Problem::Failed(why))) => Err(failed(why)),
            Ok(answer) => answer,
        }
    }

    async fn answer(&self, path: &str) -> Result<Answer, Problem> {
        let failed = |error: &dyn fmt::Display| Problem::Failed(format!("{error}"));
        let stream = TcpStream::connect((self.api.host.as_str(), self.api.port)).await;
        let stream = stream.map_err(|error| failed(&error))?;
        let mut request = Request::get(path)
            .header(header::HOST, self.api.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("maitre/", env!("CARGO_PKG_VERSION")));
        let (sender, connection) = match self.api.security {
            Security::Plain => shake_hands(stream).await?,
            Security::Tls => {
                request = request.header(header::AUTHORIZATION, self.account.authorization().await?);
                let name = ServerName::try_from(self.api.host.clone()).map_err(|error| failed(&error))?;
                let stream = self.tls().await?.connect(name, stream).await;
                shake_hands(stream.map_err(|error| failed(&error))?).await?
            }
        };
        let request = request.body(Empty::new()).map_err(|error| failed(&error))?;
        let mut sender = sender;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let answer = Answer { body: response.into_body(), _connection: connection };
        match status {
            StatusCode::OK => Ok(answer),
            StatusCode::GONE => Err(Problem::Gone),
            status => Err(Problem::Failed(format!("{status}{}", answer.message().await))),
        }
    }

    async fn tls(&self) -> Result<TlsConnector, Problem> {
        let failed =
            |error: &dyn fmt::Display| Problem::Failed(format!("the certificates in ca.crt: {error}"));
        let pem = self.account.authorities().await?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| failed(&error))?;
            roots.add(certificate).map_err(|error| failed(&error))?;
        }
        if roots.is_empty() {
            return Err(failed(&"there are none"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

async fn shake_hands<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: T,
) -> Result<(http1::SendRequest<Empty<Bytes>>, JoinSet<()>), Problem> {
    let made = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| Problem::Failed(error.to_string()))?;
    let mut driver = JoinSet::new();
    // What goes wrong with the connection, the one who reads the answer sees too.
    driver.spawn(async { _ = connection.await });
    Ok((sender, driver))
}

impl Answer {
    /// The next piece of the body; none at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Problem::Failed(format!("the answer broke off: {error}"))),
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// The whole body.
    pub(super) async fn whole(mut self, bytes_max: usize) -> Result<Vec<u8>, Problem> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            if bytes.len() + piece.len() > bytes_max {
                return Err(Problem::Failed(format!("the answer has more than {bytes_max} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// What an answer that is an error says, if it says it as the API does.
    async fn message(self) -> String {
        #[derive(Deserialize)]
        struct Status {
            message: String,
        }
        let bytes = self.whole(ERROR_BYTES_MAX).await.unwrap_or_default();
        match serde_json::from_slice::<Status>(&bytes) {
            Ok(status) => format!(": {}", shown(&status.message)),
            Err(_) => String::new(),
        }
    }
}

/// Somebody else's text, cut and in one line.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).map(|it| if it.is_control() { ' ' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Api>(), expected) {
            (Ok(api), Ok(shown)) => assert_eq!(api.to_string(), shown),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn the_clear_is_for_this_machine() {
        check("https://10.0.0.1:6443", Ok("https://10.0.0.1:6443"));
        check("https://kubernetes.default.svc", Ok("https://kubernetes.default.svc:443"));
        check("https://[fd00::1]:6443/", Ok("https://[fd00::1]:6443"));
        check("http://127.0.0.1:8001", Ok("http://127.0.0.1:8001"));
        check("http://[::1]:8001", Ok("http://[::1]:8001"));
        check("http://10.0.0.1:8001", Err("in the clear"));
        check("http://localhost:8001", Err("in the clear"));
        check("10.0.0.1:6443", Err("has no scheme"));
        check("https://a/b", Err("more than a host and a port"));
        check("https://me@a", Err("more than a host and a port"));
        check("", Err("is not a URL"));
    }

    #[test]
    fn a_cluster_says_where_its_api_is() {
        let told = |host: Option<&str>, port: Option<&str>| {
            let answer = |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => host.map(str::to_owned),
                "KUBERNETES_SERVICE_PORT" => port.map(str::to_owned),
                name => panic!("{name} was asked for"),
            };
            Api::told(answer).map(|it| it.to_string()).map_err(|it| it.to_string())
        };
        assert_eq!(told(Some("10.96.0.1"), Some("6443")).as_deref(), Ok("https://10.96.0.1:6443"));
        assert_eq!(told(Some("fd00::1"), None).as_deref(), Ok("https://[fd00::1]:443"));
        assert!(told(None, Some("443")).is_err_and(|it| it.contains("KUBERNETES_SERVICE_HOST is not set")));
        assert!(told(Some("a"), Some("tcp://a:1")).is_err_and(|it| it.contains("is not a port")));
    }

    #[test]
    fn the_texts_of_others_are_cut_to_one_line() {
        assert_eq!(shown("a\nb"), "a b");
        assert_eq!(shown(&"x".repeat(1_000)).len(), MESSAGE_CHARS_MAX);
    }
}

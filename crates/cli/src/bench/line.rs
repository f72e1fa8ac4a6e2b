//! Connections to the endpoint, kept open between requests. HTTP/1.1, by TLS if the address says so.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use maitre_base::Instant;
use maitre_console::dial;
use maitre_net::address::Address;
use maitre_net::connect::ConnectError;
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsFailure;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::trouble::{Kind, Trouble};

/// How long a connection may have been idle and still be used. Uvicorn, and with it vLLM, closes one after
/// five seconds; a request that meets the closing is lost for no fault of the endpoint.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// One connection; it ends with this value, and what is open on it is cut off.
pub(crate) struct Line {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

/// An endpoint and the idle connections to it, the latest last. There are never more of them than requests
/// were open at once.
pub(crate) struct Lines {
    address: Address,
    key: Option<HeaderValue>,
    dialer: Arc<Dialer>,
    idle: Mutex<Vec<(Line, Instant)>>,
}

impl Lines {
    pub(crate) fn new(address: Address, key: Option<HeaderValue>, dialer: Arc<Dialer>) -> Lines {
        Lines { address, key, dialer, idle: Mutex::default() }
    }

    pub(crate) fn get(&self, path: &str) -> request::Builder {
        self.head(Request::get(path))
    }

    pub(crate) fn post(&self, path: &str) -> request::Builder {
        self.head(Request::post(path)).header(CONTENT_TYPE, "application/json")
    }

    fn head(&self, builder: request::Builder) -> request::Builder {
        let builder = builder.header(HOST, self.address.header());
        match &self.key {
            Some(key) => builder.header(AUTHORIZATION, key),
            None => builder,
        }
    }

    /// Sends on an idle connection if there is one. A request that could not be sent on it, because the other
    /// side had hung up, is sent on a new one.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        now: Instant,
    ) -> Result<(Response<Incoming>, Line), Trouble> {
        while let Some(mut line) = self.idle_line(now) {
            if line.sender.ready().await.is_err() {
                continue;
            }
            match line.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, line)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(broke_off(&error.into_error())),
                },
            }
        }
        let mut line = self.open().await?;
        let response = line.sender.send_request(request).await.map_err(|it| broke_off(&it))?;
        Ok((response, line))
    }

    /// Takes back a connection whose answer was read to the end.
    pub(super) fn put(&self, line: Line, now: Instant) {
        self.idle.lock().push((line, now));
    }

    fn idle_line(&self, now: Instant) -> Option<Line> {
        let mut idle = self.idle.lock();
        let (line, since) = idle.pop()?;
        if now.since(since) <= IDLE_MAX {
            return Some(line);
        }
        // All others are older still.
        idle.clear();
        None
    }

    async fn open(&self) -> Result<Line, Trouble> {
        let stream = self.dialer.dial(&self.address).await.map_err(|error| match error {
            ConnectError::Handshake { why, .. } => Trouble::new(Kind::Handshake, dial::told(&why)),
            error => Trouble::new(Kind::Connect, format!("connect to {}: {error}", self.address)),
        })?;
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(|it| Trouble::new(Kind::Connect, it.to_string()))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Line { sender, _driver: driver })
    }
}

/// What hyper says, and what lies under it. With TLS 1.3 that may be a no to who we are, which comes only after the
/// handshake.
pub(super) fn broke_off(error: &hyper::Error) -> Trouble {
    if let Some(why) = TlsFailure::in_sources(error) {
        return Trouble::new(Kind::Handshake, dial::told(&why));
    }
    let cause = std::error::Error::source(error).map(|it| format!(": {it}")).unwrap_or_default();
    Trouble::new(Kind::BrokeOff, format!("{error}{cause}"))
}

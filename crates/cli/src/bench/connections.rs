//! Connections to the endpoint, kept open between requests.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use maitre_base::Instant;
use maitre_console::dial;
use maitre_net::address::Address;
use maitre_net::client::{HttpClient, HttpError, HttpRequest, HttpResponse};
use maitre_net::dial::Dialer;
use maitre_net::upstream::{Upstream, UpstreamError};
use parking_lot::Mutex;

use super::trouble::{Kind, Trouble};

/// Maximum idle time of a connection that is reused. Uvicorn, and with it vLLM, closes a connection after
/// five seconds; a request that meets the close would be lost through no fault of the endpoint.
const IDLE_MAX: Duration = Duration::from_secs(3);

/// An endpoint and the idle connections to it, the most recently used last. There are never more than
/// requests were in flight at once.
pub(super) struct Connections {
    client: HttpClient,
    idle: Mutex<Vec<(Upstream, Instant)>>,
}

impl Connections {
    pub(super) fn new(address: Address, key: Option<HeaderValue>, dialer: Arc<Dialer>) -> Connections {
        Connections { client: HttpClient::new(address, dialer, key), idle: Mutex::default() }
    }

    /// Sends on an idle connection that the endpoint has not closed, or on a new one.
    pub(super) async fn send(&self, request: HttpRequest<'_>, now: Instant) -> Result<HttpResponse, Trouble> {
        let sent = match self.take_idle(now) {
            Some(upstream) => self.client.send_on(upstream, request).await,
            None => self.client.send(request).await,
        };
        sent.map_err(|error| self.trouble(&error))
    }

    /// Keeps the connection of a response that was read to its end.
    pub(super) fn keep(&self, response: HttpResponse, now: Instant) {
        self.idle.lock().extend(response.into_idle().map(|it| (it, now)));
    }

    fn take_idle(&self, now: Instant) -> Option<Upstream> {
        let mut idle = self.idle.lock();
        while let Some((mut upstream, since)) = idle.pop() {
            if now.since(since) > IDLE_MAX {
                // All others are older still.
                idle.clear();
            } else if upstream.is_reusable() {
                return Some(upstream);
            }
        }
        None
    }

    fn trouble(&self, error: &HttpError) -> Trouble {
        match (error.tls_failure(), error) {
            (Some(why), _) => Trouble::new(Kind::Handshake, dial::advice(&why)),
            (None, HttpError::Connect(error)) => Trouble::new(Kind::Connect, error.to_string()),
            (None, error) => Trouble::new(Kind::BrokeOff, error.to_string()),
        }
    }
}

/// The connection failed while the body was read.
pub(super) fn broke_off(error: &UpstreamError) -> Trouble {
    match error.tls_failure() {
        Some(why) => Trouble::new(Kind::Handshake, dial::advice(&why)),
        None => Trouble::new(Kind::BrokeOff, error.to_string()),
    }
}

//! A client for a router's admin API. Every request has a timeout and every response a size limit.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use maitre_console::dial;
use maitre_net::client::{HttpClient, HttpError, HttpRequest, HttpResponse};
use maitre_views::error::ErrorBody;
use maitre_views::text::clean;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::sse::{EventReader, SseEvent};
use super::target::Target;
use super::trouble::{MESSAGE_CHARS_MAX, Trouble};
use crate::key;

/// For a whole response, or the head of a stream. Chosen: a live router answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum silence of a stream. It has an event each second.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Chosen: the overview of a far larger fleet than any known.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(crate) struct Client {
    http: HttpClient,
    /// The address as the user wrote it.
    pub(crate) url: String,
    has_key: bool,
}

impl Client {
    pub(crate) fn new(target: &Target) -> Client {
        let http = HttpClient::new(target.address.clone(), target.dialer.clone(), target.key.clone());
        Client { http, url: target.address.to_string(), has_key: target.key.is_some() }
    }

    /// One object of the API.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Trouble> {
        let body = self.ask(HttpRequest::get(path)).await?;
        self.read(&body)
    }

    /// Sends a body, which may be empty, for one object of the API.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: Bytes) -> Result<T, Trouble> {
        let body = self.ask(HttpRequest::post(path, body)).await?;
        self.read(&body)
    }

    /// The event stream, from now on.
    pub(crate) async fn live(&self) -> Result<Live, Trouble> {
        let asked = timeout(PATIENCE, async {
            let mut response = self.send(HttpRequest::get("/admin/v1/live")).await?;
            match response.status() {
                StatusCode::OK => Ok(Live { response, reader: EventReader::default() }),
                status => Err(self.told(status, &self.whole(&mut response).await?)),
            }
        });
        asked.await.unwrap_or_else(|_| Err(self.silent(PATIENCE)))
    }

    /// The next event of the stream; an error when the stream ends.
    pub(crate) async fn next(&self, live: &mut Live) -> Result<Vec<SseEvent>, Trouble> {
        let lost = |what: &str| Trouble::Lost(format!("{}: {what}", self.url));
        let chunk = match timeout(SILENCE_MAX, live.response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => return Err(lost("the router ended the stream")),
            Ok(Err(error)) => return Err(lost(&format!("the stream broke off: {error}"))),
            Err(_) => return Err(self.silent(SILENCE_MAX)),
        };
        live.reader.feed(&chunk).map_err(|it| Trouble::strange(&self.url, &it.to_string()))
    }

    /// An object of the API, as it arrived.
    pub(crate) fn read<T: DeserializeOwned>(&self, json: &[u8]) -> Result<T, Trouble> {
        serde_json::from_slice(json).map_err(|it| Trouble::strange(&self.url, &it.to_string()))
    }

    async fn ask(&self, request: HttpRequest<'_>) -> Result<Bytes, Trouble> {
        let asked = timeout(PATIENCE, async {
            let mut response = self.send(request).await?;
            let status = response.status();
            let body = self.whole(&mut response).await?;
            if status.is_success() { Ok(body) } else { Err(self.told(status, &body)) }
        });
        asked.await.unwrap_or_else(|_| Err(self.silent(PATIENCE)))
    }

    /// On a new connection each time: requests are few.
    async fn send(&self, request: HttpRequest<'_>) -> Result<HttpResponse, Trouble> {
        let sent = self.http.send(request).await;
        sent.map_err(|error| match (error.tls_failure(), &error) {
            (Some(why), _) => Trouble::Lost(format!("{}: {}", self.url, dial::advice(&why))),
            (None, HttpError::Path(_)) => Trouble::refused(&error.to_string()),
            (None, HttpError::Connect(error)) => Trouble::Lost(format!(
                "connect to {}: {error}; does maitre run there, and is this its admin address? --url says where to look",
                self.url
            )),
            (None, error) => Trouble::Lost(format!("{}: {error}", self.url)),
        })
    }

    async fn whole(&self, response: &mut HttpResponse) -> Result<Bytes, Trouble> {
        let read = response.read_all(ANSWER_BYTES_MAX).await;
        read.map_err(|it| Trouble::Lost(format!("{}: the response broke off: {it}", self.url)))
    }

    fn told(&self, status: StatusCode, body: &[u8]) -> Trouble {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return Trouble::strange(&self.url, &format!("status {status}"));
        };
        match (status, error.code.as_str()) {
            (_, "tls_required") => {
                Trouble::Lost(format!("{}: {}", self.url, clean(&error.message, MESSAGE_CHARS_MAX)))
            }
            (StatusCode::UNAUTHORIZED, "unauthorized") if !self.has_key => {
                Trouble::NoKey { url: self.url.clone() }
            }
            (StatusCode::UNAUTHORIZED, "unauthorized") => {
                let command = key::admin_command(self.http.address().port());
                Trouble::Key { url: self.url.clone(), command }
            }
            // Another listener, or an older router that does not have this path.
            (StatusCode::UNAUTHORIZED, _) | (_, "unknown_path" | "wrong_method") => {
                Trouble::strange(&self.url, &format!("{status}: {}", error.message))
            }
            (status, _) if status.is_server_error() => {
                Trouble::Lost(format!("{}: {status}: {}", self.url, clean(&error.message, MESSAGE_CHARS_MAX)))
            }
            _ => Trouble::refused(&error.message),
        }
    }

    fn silent(&self, patience: Duration) -> Trouble {
        Trouble::Lost(format!("{}: silent for {} s", self.url, patience.as_secs()))
    }
}

/// An open stream; dropping it closes its connection.
pub(crate) struct Live {
    response: HttpResponse,
    reader: EventReader,
}

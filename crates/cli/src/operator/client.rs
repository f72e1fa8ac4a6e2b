//! Asks a router's admin API. Every question has a time limit and every answer a limit of size.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use maitre_base::Instant;
use maitre_views::error::ErrorBody;
use maitre_views::text::clean;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::sse::{EventReader, SseEvent};
use super::target::Target;
use super::trouble::{MESSAGE_CHARS_MAX, Trouble};
use crate::bench::line::{Line, Lines};
use crate::bench::trouble::Kind;

/// For a whole answer, or the head of a stream. Chosen: a router that is alive answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a stream may be silent. It has an event each second.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Chosen: the overview of a fleet far larger than any.
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub(crate) struct Client {
    lines: Lines,
    /// As people know it.
    pub(crate) url: String,
}

impl Client {
    pub(crate) fn new(target: &Target) -> Client {
        let lines = Lines::new(target.address.clone(), Some(target.key.clone()), target.dialer.clone());
        Client { lines, url: target.address.to_string() }
    }

    /// One object of the API.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Trouble> {
        let body = self.ask(self.lines.get(path).body(Full::default())).await?;
        self.read(&body)
    }

    /// Sends a body, which may be empty, for one object of the API.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: Bytes) -> Result<T, Trouble> {
        let body = self.ask(self.lines.post(path).body(Full::new(body))).await?;
        self.read(&body)
    }

    /// The event stream, from now on.
    pub(crate) async fn live(&self) -> Result<Live, Trouble> {
        let request = self.lines.get("/admin/v1/live").body(Full::default());
        let asked = timeout(PATIENCE, async {
            let (response, line) = self.send(request).await?;
            match response.status() {
                StatusCode::OK => {
                    Ok(Live { body: response.into_body(), reader: EventReader::default(), _line: line })
                }
                status => Err(self.told(status, &self.whole(response.into_body()).await?)),
            }
        });
        asked.await.unwrap_or_else(|_| Err(self.silent(PATIENCE)))
    }

    /// What came next on the stream, which ends with an error.
    pub(crate) async fn next(&self, live: &mut Live) -> Result<Vec<SseEvent>, Trouble> {
        let lost = |what: &str| Trouble::Lost(format!("{}: {what}", self.url));
        let frame = match timeout(SILENCE_MAX, live.body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(lost(&format!("the stream broke off: {error}"))),
            Ok(None) => return Err(lost("the router ended the stream")),
            Err(_) => return Err(self.silent(SILENCE_MAX)),
        };
        let Some(piece) = frame.data_ref() else { return Ok(Vec::new()) };
        live.reader.feed(piece).map_err(|it| Trouble::strange(&self.url, &it.to_string()))
    }

    /// An object of the API, as somebody wrote it.
    pub(crate) fn read<T: DeserializeOwned>(&self, json: &[u8]) -> Result<T, Trouble> {
        serde_json::from_slice(json).map_err(|it| Trouble::strange(&self.url, &it.to_string()))
    }

    async fn ask(&self, request: http::Result<Request<Full<Bytes>>>) -> Result<Bytes, Trouble> {
        let asked = timeout(PATIENCE, async {
            let (response, _line) = self.send(request).await?;
            let status = response.status();
            let body = self.whole(response.into_body()).await?;
            if status.is_success() { Ok(body) } else { Err(self.told(status, &body)) }
        });
        asked.await.unwrap_or_else(|_| Err(self.silent(PATIENCE)))
    }

    /// The only way to a router: a new connection each time, for questions are few.
    async fn send(
        &self,
        request: http::Result<Request<Full<Bytes>>>,
    ) -> Result<(http::Response<Incoming>, Line), Trouble> {
        let request = request.map_err(|it| Trouble::refused(&format!("that cannot be asked: {it}")))?;
        self.lines.send(request, Instant::ZERO).await.map_err(|trouble| match trouble.kind {
            Kind::Connect => Trouble::Lost(format!(
                "{}; does maitre run there, and is this its admin address? --url says where to look",
                trouble.what
            )),
            _ => Trouble::Lost(format!("{}: {}", self.url, trouble.what)),
        })
    }

    async fn whole(&self, body: Incoming) -> Result<Bytes, Trouble> {
        let read = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let read = read.map_err(|it| Trouble::Lost(format!("{}: the answer broke off: {it}", self.url)))?;
        Ok(read.to_bytes())
    }

    fn told(&self, status: StatusCode, body: &[u8]) -> Trouble {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return Trouble::strange(&self.url, &format!("status {status}"));
        };
        match (status, error.code.as_str()) {
            (_, "tls_required") => {
                Trouble::Lost(format!("{}: {}", self.url, clean(&error.message, MESSAGE_CHARS_MAX)))
            }
            (StatusCode::UNAUTHORIZED, "unauthorized") => Trouble::Key { url: self.url.clone() },
            // Another listener, or a router that does not know this path yet.
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

/// An open stream; its connection ends with it.
pub(crate) struct Live {
    body: Incoming,
    reader: EventReader,
    _line: Line,
}

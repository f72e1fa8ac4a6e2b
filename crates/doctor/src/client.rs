//! HTTP/1.1 requests, each on a connection of its own.
//!
//! The doctor sends a few dozen requests and must know exactly how each one failed; reused connections would
//! save little and hide that. A plain request to a TLS port gets no sensible answer, so that case is
//! detected.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{DATE, SERVER};
use http::{HeaderName, HeaderValue};
use maitre_console::dial;
use maitre_dialect::engine::ROUTER;
use maitre_net::address::Address;
use maitre_net::client::{HttpClient, HttpError, HttpRequest, HttpResponse};
use maitre_net::connect::ConnectError;
use maitre_net::dial::Dialer;
use maitre_net::upstream::UpstreamError;
use tokio::time::timeout;

use super::clock;
use super::facts::Unanswered;

/// Largest page that is read: metrics of a large model are tens of kilobytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Maximum characters of an error text that are repeated.
const WHY_BYTES_MAX: usize = 200;

#[derive(Clone, Debug)]
pub(super) struct DoctorClient {
    pub(super) address: Address,
    pub(super) dialer: Arc<Dialer>,
    pub(super) key: Option<HeaderValue>,
    pub(super) timeout: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct HttpPage {
    pub(super) status: u16,
    pub(super) server: Option<String>,
    pub(super) date: Option<String>,
    /// Whether a Maitre router answered.
    pub(super) is_router: bool,
    pub(super) body: Bytes,
    /// When the request was sent and when the response head arrived, since 1970.
    pub(super) between: (Duration, Duration),
}

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    path: &'a str,
    /// None: a GET.
    body: Option<String>,
    /// The data-parallel rank it is for.
    rank: Option<u32>,
}

impl<'a> Question<'a> {
    pub(super) fn get(path: &'a str) -> Question<'a> {
        Question { path, body: None, rank: None }
    }

    pub(super) fn post(path: &'a str, body: String, rank: Option<u32>) -> Question<'a> {
        Question { path, body: Some(body), rank }
    }
}

impl HttpPage {
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Unanswered {
    pub(super) fn why(self) -> String {
        match self {
            Unanswered::Unresolved(why) => format!("its name does not resolve: {why}"),
            Unanswered::Refused(why) | Unanswered::Broke(why) => why,
            Unanswered::TimedOut(after) => format!("no answer within {after:?}"),
            Unanswered::NoTls(why) => dial::advice(&why),
            Unanswered::SpeaksTls => "it speaks TLS; write https:// in its URL".to_owned(),
        }
    }
}

impl DoctorClient {
    /// Sends the request and reads the whole response.
    pub(super) async fn ask(&self, question: Question<'_>) -> Result<HttpPage, Unanswered> {
        let is_plain_page = !self.address.is_tls() && question.body.is_none();
        let asked = self.ask_once(question).await;
        // How TLS servers react to plain HTTP: a response with this status, bytes that are not HTTP, or
        // silence.
        let is_odd =
            asked.as_ref().map_or_else(|it| matches!(it, Unanswered::Broke(_)), |it| it.status == 400);
        match is_plain_page && is_odd && self.finds_tls().await {
            true => Err(Unanswered::SpeaksTls),
            false => asked,
        }
    }

    async fn finds_tls(&self) -> bool {
        timeout(self.timeout, self.dialer.finds_tls(&self.address)).await.unwrap_or(false)
    }

    async fn ask_once(&self, question: Question<'_>) -> Result<HttpPage, Unanswered> {
        self.within(async {
            let (mut response, between) = self.send(question).await?;
            let text = |name| response.headers().get(name).and_then(|it| it.to_str().ok()).map(str::to_owned);
            let (status, server, date) = (response.status().as_u16(), text(SERVER), text(DATE));
            let is_router = response.headers().contains_key(ROUTER);
            let body = response.read_all(PAGE_BYTES_MAX).await?;
            Ok(HttpPage { status, server, date, is_router, body, between })
        })
        .await
    }

    /// The time from the request, on an open connection, to the first chunk of a good response; none if the
    /// response is not good. The rest is left unread.
    pub(super) async fn time_first_piece(
        &self,
        question: Question<'_>,
    ) -> Result<Option<Duration>, Unanswered> {
        self.within(async {
            let begun = clock::now();
            let (mut response, _) = self.send(question).await?;
            let is_good = response.status().is_success();
            let first = response.chunk().await?;
            Ok(first.filter(|_| is_good).map(|_| begun.elapsed()))
        })
        .await
    }

    async fn within<T>(&self, answer: impl Future<Output = Result<T, Unanswered>>) -> Result<T, Unanswered> {
        timeout(self.timeout, answer).await.unwrap_or(Err(Unanswered::TimedOut(self.timeout)))
    }

    async fn send(&self, question: Question<'_>) -> Result<(HttpResponse, (Duration, Duration)), Unanswered> {
        let http = HttpClient::new(self.address.clone(), self.dialer.clone(), self.key.clone());
        let mut request = match question.body {
            None => HttpRequest::get(question.path),
            Some(body) => HttpRequest::post(question.path, Bytes::from(body)),
        };
        if let Some(rank) = question.rank {
            let name = HeaderName::from_static("x-data-parallel-rank");
            request = request.header(name, HeaderValue::from(rank));
        }
        let upstream = http.open().await?;
        let sent = clock::since_1970();
        let response = http.send_on(upstream, request).await?;
        Ok((response, (sent, clock::since_1970())))
    }
}

impl From<ConnectError> for Unanswered {
    fn from(error: ConnectError) -> Unanswered {
        match error {
            ConnectError::Unresolved(error) => Unanswered::Unresolved(error.to_string()),
            ConnectError::Handshake { why, .. } => Unanswered::NoTls(why),
            error => Unanswered::Refused(format!("connect: {error}")),
        }
    }
}

impl From<HttpError> for Unanswered {
    fn from(error: HttpError) -> Unanswered {
        match error {
            HttpError::Connect(error) => error.into(),
            HttpError::Exchange(error) => error.into(),
            HttpError::Path(_) => Unanswered::Broke(short(&error.to_string())),
        }
    }
}

impl From<UpstreamError> for Unanswered {
    fn from(error: UpstreamError) -> Unanswered {
        match error.tls_failure() {
            Some(why) => Unanswered::NoTls(why),
            None => Unanswered::Broke(short(&error.to_string())),
        }
    }
}

/// The text cut to one line, without control characters that would disturb a terminal.
pub(super) fn short(text: &str) -> String {
    let mut end = text.len().min(WHY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

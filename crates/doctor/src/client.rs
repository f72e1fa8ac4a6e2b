//! Questions over HTTP/1.1, each on a connection of its own.
//!
//! The doctor asks a few dozen questions and needs to know exactly how each one failed; reused connections would save
//! little and hide that. A plain request to a TLS port gets no sensible answer, so that case is detected.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HOST, SERVER};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use maitre_console::dial;
use maitre_net::address::Address;
use maitre_net::connect::ConnectError;
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsFailure;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::clock;
use super::facts::Unanswered;

/// Largest page that is read: metrics of a large model are tens of kilobytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// As much of an error's text as is repeated.
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
    pub(super) body: Bytes,
    /// When the question left and when the answer's head was here, since 1970.
    pub(super) between: (Duration, Duration),
}

/// A question.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    method: Method,
    path: &'a str,
    body: String,
    /// Of which data-parallel rank it is asked.
    rank: Option<u32>,
}

impl<'a> Question<'a> {
    pub(super) fn get(path: &'a str) -> Question<'a> {
        Question { method: Method::GET, path, body: String::new(), rank: None }
    }

    pub(super) fn post(path: &'a str, body: String, rank: Option<u32>) -> Question<'a> {
        Question { method: Method::POST, path, body, rank }
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
            Unanswered::NoTls(why) => dial::told(&why),
            Unanswered::SpeaksTls => "it speaks TLS; write https:// in its URL".to_owned(),
        }
    }
}

impl DoctorClient {
    /// Asks and reads the whole answer.
    pub(super) async fn ask(&self, question: Question<'_>) -> Result<HttpPage, Unanswered> {
        let is_plain_page = !self.address.is_tls() && question.method == Method::GET;
        let asked = self.ask_once(question).await;
        // What servers of TLS make of plain HTTP: an answer of this status, bytes that are none, or silence.
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
            let (response, between, _driver) = self.send(question).await?;
            let text = |name| response.headers().get(name).and_then(|it| it.to_str().ok()).map(str::to_owned);
            let (status, server, date) = (response.status().as_u16(), text(SERVER), text(DATE));
            let read = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
            let body = read.map_err(|it| Unanswered::Broke(short(&it.to_string())))?.to_bytes();
            Ok(HttpPage { status, server, date, body, between })
        })
        .await
    }

    /// How long it takes from the question, on an open connection, to the first piece of a good answer; none if the
    /// answer is not good. The rest is left unread.
    pub(super) async fn time_first_piece(
        &self,
        question: Question<'_>,
    ) -> Result<Option<Duration>, Unanswered> {
        self.within(async {
            let begun = clock::now();
            let (response, _, _driver) = self.send(question).await?;
            let is_good = response.status().is_success();
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|it| broke(&it))?;
                if frame.data_ref().is_some_and(|it| !it.is_empty()) {
                    return Ok(is_good.then(|| begun.elapsed()));
                }
            }
            Ok(None)
        })
        .await
    }

    async fn within<T>(&self, answer: impl Future<Output = Result<T, Unanswered>>) -> Result<T, Unanswered> {
        timeout(self.timeout, answer).await.unwrap_or(Err(Unanswered::TimedOut(self.timeout)))
    }

    async fn send(
        &self,
        question: Question<'_>,
    ) -> Result<(Response<Incoming>, (Duration, Duration), JoinSet<()>), Unanswered> {
        let stream = self.dialer.dial(&self.address).await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|it| broke(&it))?;
        // Dropped with the answer, and with it the connection.
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        let request = self.request(question)?;
        let sent = clock::since_1970();
        let response = sender.send_request(request).await.map_err(|it| broke(&it))?;
        Ok((response, (sent, clock::since_1970()), driver))
    }

    fn request(&self, question: Question<'_>) -> Result<Request<Full<Bytes>>, Unanswered> {
        let host = self.address.header();
        let mut request = Request::builder().method(question.method).uri(question.path).header(HOST, host);
        if !question.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(rank) = question.rank {
            request = request.header("x-data-parallel-rank", rank);
        }
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        request.body(Full::from(question.body)).map_err(|it| Unanswered::Broke(it.to_string()))
    }
}

impl From<ConnectError> for Unanswered {
    fn from(undialled: ConnectError) -> Unanswered {
        match undialled {
            ConnectError::Unresolved(error) => Unanswered::Unresolved(error.to_string()),
            error @ (ConnectError::Refused(_) | ConnectError::NoSocket(_) | ConnectError::TimedOut(_)) => {
                Unanswered::Refused(format!("connect: {error}"))
            }
            ConnectError::Handshake { why, .. } => Unanswered::NoTls(why),
        }
    }
}

/// What hyper says, and what lies under it. With TLS 1.3 that may be a no to who we are, which comes only after the
/// handshake.
fn broke(error: &hyper::Error) -> Unanswered {
    if let Some(why) = TlsFailure::in_sources(error) {
        return Unanswered::NoTls(why);
    }
    let cause = std::error::Error::source(error).map(|it| format!(": {it}")).unwrap_or_default();
    Unanswered::Broke(short(&format!("{error}{cause}")))
}

/// As much of a text as fits a line, without what would disturb a terminal.
pub(super) fn short(text: &str) -> String {
    let mut end = text.len().min(WHY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}

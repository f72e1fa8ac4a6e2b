//! An HTTP client that fails instead of hanging.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Timeout of everything in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fails the test instead of hanging.
#[track_caller]
pub(crate) fn within<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("nothing happened for {PATIENCE:?} at {caller}"),
        }
    }
}

/// A keep-alive connection.
pub(crate) struct Client {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer whose head has arrived.
pub(crate) struct Begun {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Incoming,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        let stream = within(TcpStream::connect(address)).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Client { sender, _driver: driver }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        let request = Request::get(path).header("host", "maitre").body(Full::default()).unwrap();
        self.begin(request).await.rest().await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.begin(post(path, body)).await.rest().await
    }

    pub(crate) async fn begin(&mut self, request: Request<Full<Bytes>>) -> Begun {
        within(self.sender.ready()).await.unwrap();
        let (head, body) = within(self.sender.send_request(request)).await.unwrap().into_parts();
        Begun { status: head.status, headers: head.headers, body }
    }
}

impl Begun {
    /// The next piece of the body; none at its end.
    pub(crate) async fn piece(&mut self) -> Option<Bytes> {
        let frame = within(self.body.frame()).await?;
        Some(frame.unwrap().into_data().unwrap_or_default())
    }

    pub(crate) async fn rest(mut self) -> Answer {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await {
            body.extend_from_slice(&piece);
        }
        Answer { status: self.status, headers: self.headers, body: body.into() }
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The worker that answered.
    pub(crate) fn worker(&self) -> &str {
        self.headers.get("x-maitre-worker").map_or("", |it| it.to_str().unwrap())
    }
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request = Request::post(path).header("host", "maitre").header("content-type", "application/json");
    request.body(Full::new(body.to_string().into())).unwrap()
}

/// A chat with this many answer tokens, not streamed.
pub(crate) fn chat(tokens: u32) -> Value {
    serde_json::json!({
        "model": "maitre-sim",
        "messages": [{"role": "user", "content": "a table for two"}],
        "max_tokens": tokens,
        "ignore_eos": true,
    })
}

/// The same as a stream.
pub(crate) fn chat_stream(tokens: u32) -> Value {
    let mut body = chat(tokens);
    body["stream"] = true.into();
    body
}

pub(crate) const CHAT: &str = "/v1/chat/completions";

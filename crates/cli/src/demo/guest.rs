//! One session of the demo's traffic over HTTP: asks, listens, thinks, asks again.
//!
//! Where there are several routers, each request goes to the next one, whoever had the one before: what a load balancer
//! that knows nothing of sessions would do, and the hardest for routers that do not talk to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use maitre_console::clock::Stopwatch;
use maitre_sim::workload::{Session, Turn};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::demo::tally::DemoAnswer;

/// Where routers take requests, at least one, and whose turn it is.
#[derive(Debug)]
pub(crate) struct Turns {
    addresses: Vec<SocketAddr>,
    next: AtomicUsize,
}

impl Turns {
    pub(crate) fn new(addresses: Vec<SocketAddr>) -> Turns {
        debug_assert!(!addresses.is_empty(), "a demo has a router");
        Turns { addresses, next: AtomicUsize::new(0) }
    }

    /// The place of the router that takes the next request.
    fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.addresses.len()
    }
}

/// Sends a session's turns until it has had enough or `open` says that the doors are closed; `tell` hears
/// of every answer and every failure.
pub(crate) async fn visit(
    turns: Arc<Turns>,
    mut session: Session,
    open: impl Fn() -> bool,
    tell: impl Fn(anyhow::Result<DemoAnswer>),
) {
    let mut turn = session.first();
    let mut lines: Vec<Option<Line>> = turns.addresses.iter().map(|_| None).collect();
    while open() {
        let place = turns.next();
        let connected = match lines[place].take() {
            Some(line) => Ok(line),
            None => Line::open(turns.addresses[place]).await,
        };
        let answer = match connected {
            Ok(mut kept) => {
                let answer = kept.ask(session.id, &turn).await;
                lines[place] = Some(kept);
                answer
            }
            Err(error) => Err(error),
        };
        let text = match answer {
            Ok((seen, text)) => {
                tell(Ok(seen));
                text
            }
            Err(error) => return tell(Err(error)),
        };
        let Some(next) = session.after(&text) else { return };
        tokio::time::sleep(next.think).await;
        turn = next;
    }
}

/// A client's connection to the router.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Line {
    async fn open(router: SocketAddr) -> anyhow::Result<Line> {
        let stream = TcpStream::connect(router).await.context("connect")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Line { sender, _driver: driver })
    }

    /// One turn: what was seen of it, and the text of the answer.
    async fn ask(&mut self, session: u64, turn: &Turn) -> anyhow::Result<(DemoAnswer, String)> {
        let request = Request::post("/v1/chat/completions")
            .header("host", "maitre")
            .header("content-type", "application/json")
            .header("x-session-id", session)
            .body(Full::new(Bytes::from(turn.body.clone())))?;
        self.sender.ready().await?;
        let watch = Stopwatch::start();
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        if !status.is_success() {
            let body = response.into_body().collect().await?.to_bytes();
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        listen(response, &watch).await
    }
}

async fn listen(response: Response<Incoming>, watch: &Stopwatch) -> anyhow::Result<(DemoAnswer, String)> {
    let worker = response.headers().get("x-maitre-worker").and_then(|it| it.to_str().ok());
    let mut seen = DemoAnswer { worker: worker.unwrap_or("?").to_owned(), ..DemoAnswer::default() };
    let (mut text, mut rest, mut done) = (String::new(), Vec::new(), false);
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if seen.first_token == Duration::ZERO {
            seen.first_token = watch.elapsed();
        }
        rest.extend_from_slice(&data);
        while let Some(end) = rest.windows(2).position(|it| it == b"\n\n") {
            let event: Vec<u8> = rest.drain(..end + 2).collect();
            let Some(data) = event.strip_prefix(b"data: ") else { continue };
            if data.starts_with(b"[DONE]") {
                done = true;
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(data).context("an event of the stream")?;
            if let Some(error) = chunk.error {
                bail!("the stream broke off: {error}");
            }
            text.extend(chunk.choices.into_iter().filter_map(|it| it.delta.content));
            if let Some(usage) = chunk.usage {
                seen.prompt_tokens = usage.prompt_tokens;
                seen.answer_tokens = usage.completion_tokens;
                seen.cached_tokens = usage.prompt_tokens_details.and_then(|it| it.cached_tokens).unwrap_or(0);
            }
        }
    }
    if !done {
        bail!("the stream ended without [DONE]");
    }
    Ok((seen, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_to_the_routers_in_turn() {
        let turns =
            |count: u16| Turns::new((1..=count).map(|it| SocketAddr::from(([127, 0, 0, 1], it))).collect());
        let (three, one) = (turns(3), turns(1));
        let turns = |turns: &Turns| (0..5).map(|_| turns.next()).collect::<Vec<_>>();
        assert_eq!((turns(&three), turns(&one)), (vec![0, 1, 2, 0, 1], vec![0; 5]));
    }
}

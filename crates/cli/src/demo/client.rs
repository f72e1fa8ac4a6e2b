//! One session of the demo's traffic over HTTP: sends a prompt, reads the answer, pauses, sends the next.
//!
//! With several routers, each request goes to the next one in turn. A load balancer without sticky sessions
//! does the same, and it is the hardest case for routers that do not share state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use maitre_console::clock::Stopwatch;
use maitre_net::client::{HttpClient, HttpRequest, HttpResponse};
use maitre_net::upstream::Upstream;
use maitre_sim::workload::{Session, Turn};
use serde::Deserialize;

use crate::demo::tally::DemoAnswer;

/// The addresses of the routers, at least one, and the index of the next.
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

    /// The index of the router for the next request.
    fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.addresses.len()
    }
}

/// Sends a session's turns until it ends or `open` returns false; calls `tell` with every answer and every
/// failure.
pub(crate) async fn run_session(
    turns: Arc<Turns>,
    mut session: Session,
    open: impl Fn() -> bool,
    tell: impl Fn(anyhow::Result<DemoAnswer>),
) {
    let mut turn = session.first();
    let mut routers: Vec<RouterClient> = turns.addresses.iter().map(|&it| RouterClient::new(it)).collect();
    while open() {
        let text = match routers[turns.next()].ask(session.id, &turn).await {
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

/// A client of one router, and its connection between requests.
struct RouterClient {
    http: HttpClient,
    idle: Option<Upstream>,
}

/// Largest error body that is read.
const ERROR_BYTES_MAX: usize = 1 << 20;

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

impl RouterClient {
    fn new(router: SocketAddr) -> RouterClient {
        RouterClient { http: HttpClient::new(router.into(), Arc::default(), None), idle: None }
    }

    /// One turn: the measurements, and the text of the answer.
    async fn ask(&mut self, session: u64, turn: &Turn) -> anyhow::Result<(DemoAnswer, String)> {
        let request = HttpRequest::post("/v1/chat/completions", Bytes::from(turn.body.clone()))
            .header(HeaderName::from_static("x-session-id"), HeaderValue::from(session));
        let upstream = match self.idle.take().and_then(reusable) {
            Some(upstream) => upstream,
            None => self.http.open().await.context("connect")?,
        };
        let watch = Stopwatch::start();
        let mut response = self.http.send_on(upstream, request).await?;
        let status = response.status();
        if !status.is_success() {
            let body = response.read_all(ERROR_BYTES_MAX).await?;
            bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        let answer = listen(&mut response, &watch).await?;
        self.idle = response.into_idle();
        Ok(answer)
    }
}

/// The connection, unless the router closed it while it was idle.
fn reusable(mut upstream: Upstream) -> Option<Upstream> {
    upstream.is_reusable().then_some(upstream)
}

async fn listen(response: &mut HttpResponse, watch: &Stopwatch) -> anyhow::Result<(DemoAnswer, String)> {
    let worker = response.headers().get("x-maitre-worker").and_then(|it| it.to_str().ok());
    let mut seen = DemoAnswer { worker: worker.unwrap_or("?").to_owned(), ..DemoAnswer::default() };
    let (mut text, mut rest, mut done) = (String::new(), Vec::new(), false);
    while let Some(data) = response.chunk().await? {
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

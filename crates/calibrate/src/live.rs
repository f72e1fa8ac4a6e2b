//! A live engine over HTTP: what it says of itself, and rounds of completions with prompts of token ids.
//!
//! Prompts are token ids, so that their length is exact and no tokenizer is needed. Each request has a connection of its
//! own that is opened before it is due: connecting is not part of the first token's time.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use bytes::Bytes;
use http::HeaderValue;
use http::header::USER_AGENT;
use maitre_console::dial;
use maitre_dialect::engine::{self, ProbeReply};
use maitre_dialect::models::{self, Model};
use maitre_net::client::{HttpClient, HttpError, HttpRequest};
use maitre_net::upstream::Upstream;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::AnswerReader;
use crate::clock::ProbeClock;
use crate::facts::EngineFacts;
use crate::probe::{ProbeAnswer, ProbeRequest, ProbeRound, ProbeTarget};

const COMPLETIONS: &str = "/v1/completions";
const MODELS: &str = "/v1/models";
const AGENT: &str = concat!("maitre-calibrate/", env!("CARGO_PKG_VERSION"));

/// Largest page that is read: metrics of a large model are tens of kilobytes.
const PAGE_BYTES_MAX: usize = 4 << 20;
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// As much of an error's text as is repeated.
const WHY_CHARS_MAX: usize = 300;

/// The least time that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Prompt tokens that the engine may count more than were sent: one that begins every sequence.
const EXTRA_TOKENS: u32 = 1;

#[derive(Clone)]
pub(crate) struct LiveEngine {
    client: HttpClient,
    clock: ProbeClock,
    pub(crate) model: String,
    timeout: Duration,
}

#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    prompt: Vec<u32>,
    max_tokens: u32,
    min_tokens: u32,
    ignore_eos: bool,
    temperature: u32,
    stream: bool,
    stream_options: CountOptions,
}

#[derive(Serialize)]
struct CountOptions {
    include_usage: bool,
    /// In every event: engines under load put several tokens into one.
    continuous_usage_stats: bool,
}

impl LiveEngine {
    /// Asks the engine what it is. Without a name, the first of its models that is no adapter is probed.
    pub(crate) async fn meet(
        client: HttpClient,
        name: Option<&str>,
        time: Duration,
    ) -> anyhow::Result<(LiveEngine, EngineFacts)> {
        refuse_router(&client).await?;
        let mut pages = Vec::new();
        for path in engine::PROBES {
            // Most engines lack most of these; only the models are needed.
            match page(&client, path).await {
                Ok(page) => pages.push((path, page)),
                Err(error) if path == MODELS => return Err(error),
                Err(_) => {}
            }
        }
        let replies: Vec<ProbeReply<'_>> = pages
            .iter()
            .map(|(path, (status, body))| ProbeReply { path, status: *status, body, server: None })
            .collect();
        let body = replies.iter().find(|it| it.path == MODELS).map_or(&b""[..], |it| it.body);
        let model =
            choose(models::parse(body).with_context(|| format!("{}{MODELS}", client.address()))?, name)?;
        let facts = EngineFacts::read(&model, &replies);
        let timeout = time.max(ANSWER_TIMEOUT);
        Ok((LiveEngine { client, clock: ProbeClock::start(), model: model.id, timeout }, facts))
    }

    fn body(&self, request: &ProbeRequest) -> anyhow::Result<Bytes> {
        let body = Completion {
            model: &self.model,
            prompt: request.prompt(),
            max_tokens: request.answer_tokens,
            min_tokens: request.answer_tokens,
            ignore_eos: true,
            temperature: 0,
            stream: true,
            stream_options: CountOptions { include_usage: true, continuous_usage_stats: true },
        };
        Ok(serde_json::to_vec(&body)?.into())
    }

    async fn send(self, sending: Sending) -> anyhow::Result<(usize, ProbeAnswer)> {
        let Sending { index, at, begun, prompt_tokens, body, upstream } = sending;
        begun.until(at).await;
        let sent = begun.elapsed();
        let answer = timeout(self.timeout, self.exchange(upstream, body, begun)).await;
        let reader = answer.map_err(|_| anyhow!("no answer within {:?}", self.timeout))??;
        let counts = reader.counts;
        if let Some(counted) = counts.map(|it| it.prompt_tokens) {
            let expected = prompt_tokens..=prompt_tokens + EXTRA_TOKENS;
            ensure!(
                expected.contains(&counted),
                "the engine counted {counted} tokens in a prompt of {prompt_tokens} token ids; it must take ids as they are"
            );
        }
        ensure!(!reader.tokens.is_empty(), "an answer without a token");
        let cached_tokens = counts.and_then(|it| it.cached_tokens());
        Ok((index, ProbeAnswer { sent, tokens: reader.tokens, cached_tokens }))
    }

    async fn exchange(
        &self,
        upstream: Upstream,
        body: Bytes,
        begun: ProbeClock,
    ) -> anyhow::Result<AnswerReader> {
        let request =
            HttpRequest::post(COMPLETIONS, body).header(USER_AGENT, HeaderValue::from_static(AGENT));
        let mut response = self.client.send_on(upstream, request).await.map_err(|it| trouble(&it))?;
        if !response.status().is_success() {
            let text = response.read_all(PAGE_BYTES_MAX).await.unwrap_or_default();
            let why: String = String::from_utf8_lossy(&text).chars().take(WHY_CHARS_MAX).collect();
            bail!("{COMPLETIONS} answered {}: {}", response.status(), why.escape_debug());
        }
        let mut reader = AnswerReader::default();
        while let Some(chunk) = response.chunk().await? {
            reader.feed(&chunk, begun.elapsed()).map_err(|it| anyhow!(it))?;
        }
        Ok(reader)
    }
}

/// A request with its connection, ready to leave.
struct Sending {
    index: usize,
    at: Duration,
    begun: ProbeClock,
    prompt_tokens: u32,
    body: Bytes,
    upstream: Upstream,
}

impl ProbeTarget for LiveEngine {
    async fn run(&mut self, round: &ProbeRound) -> anyhow::Result<Vec<ProbeAnswer>> {
        let failed = |it: anyhow::Error| it.context(format!("probe {}", self.client.address()));
        let mut ready = Vec::new();
        for request in &round.requests {
            let upstream = self.client.open().await.map_err(|it| failed(trouble(&it.into())))?;
            ready.push((request, self.body(request)?, upstream));
        }
        let begun = ProbeClock::start();
        let mut open = JoinSet::new();
        for (index, (request, body, upstream)) in ready.into_iter().enumerate() {
            let (at, prompt_tokens) = (request.at, request.prompt_tokens());
            open.spawn(self.clone().send(Sending { index, at, begun, prompt_tokens, body, upstream }));
        }
        let mut answers = vec![ProbeAnswer::default(); round.requests.len()];
        while let Some(answered) = open.join_next().await {
            let (index, answer) = answered?.map_err(failed)?;
            answers[index] = answer;
        }
        Ok(answers)
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }
}

fn choose(cards: Vec<Model>, name: Option<&str>) -> anyhow::Result<Model> {
    let names: Vec<String> = cards.iter().map(|it| it.id.clone()).collect();
    let mut cards = cards.into_iter();
    match name {
        Some(name) => cards.find(|it| it.id == name).with_context(|| {
            format!("--model {name}: the engine does not serve it; it serves {}", names.join(", "))
        }),
        None => cards.find(|it| it.parent.is_none()).context("the engine serves no model"),
    }
}

/// The numbers of a router would be those of several engines and of its queue.
async fn refuse_router(client: &HttpClient) -> anyhow::Result<()> {
    let request = HttpRequest::get(engine::HEALTH).header(USER_AGENT, HeaderValue::from_static(AGENT));
    let answered = timeout(PAGE_TIMEOUT, client.send(request)).await;
    // What does not answer is reported by the questions that matter.
    let is_router = answered.is_ok_and(|it| it.is_ok_and(|it| it.headers().contains_key(engine::ROUTER)));
    ensure!(!is_router, "{} is a Maitre router; --url takes the address of one engine", client.address());
    Ok(())
}

async fn page(client: &HttpClient, path: &str) -> anyhow::Result<(u16, Bytes)> {
    let ask = async {
        let request = HttpRequest::get(path).header(USER_AGENT, HeaderValue::from_static(AGENT));
        let mut response = client.send(request).await.map_err(|it| trouble(&it))?;
        let status = response.status();
        let body = response.read_all(PAGE_BYTES_MAX).await?;
        ensure!(status.is_success(), "answered {status}");
        Ok((status.as_u16(), body))
    };
    let answered = timeout(PAGE_TIMEOUT, ask).await;
    let answered = answered.unwrap_or_else(|_| Err(anyhow!("no answer within {PAGE_TIMEOUT:?}")));
    answered.with_context(|| format!("ask {}{path}", client.address()))
}

fn trouble(error: &HttpError) -> anyhow::Error {
    match error.tls_failure() {
        Some(why) => anyhow!(dial::advice(&why)),
        None => anyhow!("{error}"),
    }
}

#[cfg(test)]
mod tests;

//! Sends a few tiny requests: the same prompt twice, once more under a salt, and three streams of one token.
//!
//! The prompt is new each time, made of number words and a nonce. So the first request is a miss, and no
//! client's text is sent anywhere.

use std::fmt::Write as _;
use std::time::Duration;

use maitre_base::hash;
use maitre_dialect::route::Route;
use maitre_dialect::usage::{Finder, Usage};
use serde_json::{Value, json};

use crate::client::{DoctorClient, HttpPage, Question, short};
use crate::clock;
use crate::facts::{Answered, Asked, Salted, Unanswered, Worker};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// How many times longer a response may take than a page.
const ANSWER_TIMES: u32 = 6;

/// Words of a prompt, each at least one token: three of the engine's blocks, but at most this.
const WORDS_MIN: u64 = 48;
const WORDS_MAX: u64 = 4_096;
/// Used if an engine does not report its block size: three of the largest common blocks.
const WORDS_USUAL: u64 = 384;

/// Streams that are timed. The fastest counts, because a busy moment is not a fault.
const STREAMS: usize = 3;

const NUMBERS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// The model to request.
pub(super) fn model(worker: &Worker) -> Option<String> {
    worker.models().first().map(|it| it.id.clone())
}

/// The requests to one worker.
pub(super) struct Asker {
    client: DoctorClient,
    model: String,
    /// The rank that all of them use: two ranks share no cache.
    rank: Option<u32>,
    prompt: String,
    path: &'static str,
}

impl Asker {
    pub(super) fn new(client: &DoctorClient, worker: &Worker, model: String) -> Asker {
        let client = patient(client);
        let room = worker.models().first().and_then(|it| it.max_model_len).map_or(u64::MAX, |it| it / 4);
        let words =
            worker.block_tokens().map_or(WORDS_USUAL, |it| 3 * it).clamp(WORDS_MIN, WORDS_MAX).min(room);
        let rank = (worker.ranks > 1).then_some(0);
        Asker { client, model, rank, prompt: prompt(&worker.url, words), path: CHAT }
    }

    /// Sends the prompt for the first time. Returns its usage, or why it failed.
    pub(super) async fn first(&mut self) -> Result<Usage, String> {
        let mut page = self.send(None).await;
        let is_declined =
            |it: &HttpPage| (400..500).contains(&it.status) && !matches!(it.status, 401 | 403 | 429);
        if page.as_ref().is_ok_and(is_declined) {
            // A model without a chat template.
            self.path = COMPLETIONS;
            page = self.send(None).await;
        }
        usage(page)
    }

    /// Sends the prompt again, and then under a salt if the engine supports salts.
    pub(super) async fn rest(&mut self, first: Usage, worker: &Worker) -> Asked {
        let page = self.send(None).await;
        let second = match usage(page) {
            Ok(usage) => usage,
            Err(why) => return self.failed(why),
        };
        let salted = match worker.kind.salts() {
            true => self.salted().await,
            false => Salted::Unasked,
        };
        Asked::Answered(Answered { first, second, salted })
    }

    async fn salted(&self) -> Salted {
        let salt = format!("maitre-doctor-{:016x}", nonce(&self.prompt));
        match self.send(Some(&salt)).await {
            Ok(page) if page.is_success() => Salted::Answered(read(&page)),
            Ok(page) if (400..500).contains(&page.status) => Salted::Refused { status: page.status },
            _ => Salted::Unasked,
        }
    }

    async fn send(&self, salt: Option<&str>) -> Result<HttpPage, Unanswered> {
        let mut body = body(self.path, &self.model, &self.prompt);
        if let Some(salt) = salt {
            body["cache_salt"] = salt.into();
        }
        self.client.ask(Question::post(self.path, body.to_string(), self.rank)).await
    }

    pub(super) fn failed(&self, why: String) -> Asked {
        Asked::Failed { path: self.path, why }
    }
}

fn usage(page: Result<HttpPage, Unanswered>) -> Result<Usage, String> {
    match page {
        Ok(page) if page.is_success() => Ok(read(&page)),
        Ok(page) => Err(format!("status {}{}", page.status, message(&page.body))),
        Err(unanswered) => Err(unanswered.why()),
    }
}

/// Time to the first chunk of a streamed answer, the minimum of a few; none if unknown.
pub(super) async fn time(client: &DoctorClient, model: &str) -> Option<Duration> {
    let client = patient(client);
    let mut least: Option<Duration> = None;
    for _ in 0..STREAMS {
        let mut body = body(CHAT, model, "Say one word.");
        body["stream"] = true.into();
        let time = client.time_first_piece(Question::post(CHAT, body.to_string(), None)).await.ok()??;
        least = Some(least.map_or(time, |it| it.min(time)));
    }
    least
}

/// A client that waits for a response.
pub(super) fn patient(client: &DoctorClient) -> DoctorClient {
    DoctorClient { timeout: client.timeout * ANSWER_TIMES, ..client.clone() }
}

pub(super) fn body(path: &str, model: &str, prompt: &str) -> Value {
    match path {
        CHAT => json!({
            "model": model, "max_tokens": 1, "temperature": 0,
            "messages": [{"role": "user", "content": prompt}],
        }),
        _ => json!({"model": model, "max_tokens": 1, "temperature": 0, "prompt": prompt}),
    }
}

fn read(page: &HttpPage) -> Usage {
    let mut finder = Finder::new(Route::Chat);
    finder.feed(&page.body);
    finder.finish().unwrap_or_default()
}

/// The message in an error body. It may repeat what we sent, and nothing else.
fn message(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = value["error"]["message"].as_str().or(value["message"].as_str());
    text.map(|it| format!(": {}", short(it))).unwrap_or_default()
}

/// A random number.
fn nonce(seed: &str) -> u64 {
    let nanoseconds = clock::since_1970().as_nanos() as u64;
    hash::pair(hash::bytes(0, seed.as_bytes()), nanoseconds)
}

/// A new prompt that differs from its first words on.
fn prompt(url: &str, words: u64) -> String {
    let nonce = nonce(url);
    let mut prompt = format!("{nonce:016x} begins this list of numbers:");
    for index in 0..words {
        // Words drawn from the nonce, so that no two blocks are equal.
        let number = hash::pair(nonce, index) as usize % NUMBERS.len();
        let _ = write!(prompt, " {}", NUMBERS[number]);
    }
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_the_requested_words_and_is_always_new() {
        let [one, other] = [prompt("http://a", 50), prompt("http://b", 50)];
        assert_ne!(one.split(' ').next(), other.split(' ').next());
        assert_eq!(one.split(' ').count(), 50 + 6);
    }

    #[test]
    fn an_error_repeats_the_engines_message_on_one_line() {
        assert_eq!(message(br#"{"error":{"message":"no\nsuch model"}}"#), ": no such model");
        assert_eq!(message(br#"{"object":"error","message":"too long"}"#), ": too long");
        assert_eq!(message(b"<html>"), "");
        assert!(message(format!(r#"{{"message":"{}"}}"#, "x".repeat(9_999)).as_bytes()).len() < 300);
    }
}

//! Makes the tokens from which a stream goes on end with a whole character.
//!
//! An event of several tokens has the text of whole characters, and the ids of all tokens. If its worker fails then, the last ids
//! may be half a character that the client does not have. After a prompt that ends so, vLLM 0.32 begins its answer with the
//! text of the whole prompt, and SGLang loses the character. So the worker that is to go on is asked first what the last tokens
//! are, and generates those again that are no whole character.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::uri::PathAndQuery;
use maitre_dialect::continuation::ContinuableStream;
use maitre_dialect::engine::{DETOKENIZE, EngineKind, ends_within_character, text_question};
use maitre_dispatch::Failure;
use maitre_net::upstream::UpstreamRequest;
use tokio::time::timeout;

use super::super::arrive::Arrived;
use crate::link::Link;
use crate::upstreams::Upstreams;

/// A character has four bytes at most, and a token one at least.
const HALF_TOKENS_MAX: usize = 3;

/// For all questions together. Chosen: engines take a millisecond, and the client already waits.
const LIMIT: Duration = Duration::from_secs(1);

/// Largest answer: the text of a few tokens.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Takes the tokens back that are half a character, if the worker can tell. Fails if they are and cannot be taken back.
pub(super) async fn end_at_character(
    upstreams: &Upstreams,
    arrived: &Arrived,
    (link, kind): (&Arc<Link>, EngineKind),
    stream: &mut ContinuableStream,
) -> Result<(), Failure> {
    let Some(ids) = stream.doubtful_end(kind) else { return Ok(()) };
    let asked = timeout(LIMIT, half_tokens(upstreams, arrived, link, &ids));
    match asked.await.ok().flatten() {
        // The worker is healthy, and no worker can go on from there.
        Some(tokens) if !stream.take_back(tokens) => Err(Failure::Busy),
        _ => Ok(()),
    }
}

/// How many of the last tokens are half a character. None: nobody knows.
async fn half_tokens(
    upstreams: &Upstreams,
    arrived: &Arrived,
    link: &Arc<Link>,
    ids: &[&str],
) -> Option<usize> {
    for tokens in 0..=HALF_TOKENS_MAX.min(ids.len() - 1) {
        let question = text_question(&ids[..ids.len() - tokens]);
        if !ends_within_character(&ask(upstreams, arrived, link, question).await?)? {
            return Some(tokens);
        }
    }
    // The character for what cannot be decoded is one that the model has written.
    None
}

/// Asks with the client's headers, which may have the key that the worker wants.
async fn ask(upstreams: &Upstreams, arrived: &Arrived, link: &Link, question: String) -> Option<Bytes> {
    let question = Bytes::from(question);
    let (target, host) = (PathAndQuery::from_static(DETOKENIZE), link.address.header());
    let request = || UpstreamRequest::new(&Method::POST, &target, host, &arrived.headers, question.clone());
    let (status, answer) = upstreams.ask(link, request, ANSWER_BYTES_MAX).await?;
    status.is_success().then_some(answer)
}

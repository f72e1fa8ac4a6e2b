//! Questions about retrieved documents with skewed popularity.
//!
//! Prompts that hold the same documents in another order share only the system prompt: an engine caches beginnings.
//! So reuse falls quickly with `per_prompt`, unless engines reuse documents at any position.

use super::dice::{Dice, Popularity, Shared, instant, prompt};
use super::key::{Stage, ValueType, Values, key};
use super::{PlanError, Size, Workload};
use crate::trace::{Piece, Request};

/// Draws for a document that the prompt does not contain yet. A steep Zipf could draw for ever.
const DRAWS_MAX: u32 = 64;

/// A prompt is searched for each document it gets, so not too many.
const PER_PROMPT: ValueType = ValueType::Whole { least: 1, most: 100 };

pub(super) const RAG: Workload = Workload {
    name: "rag",
    about: "Questions about retrieved documents, with skewed popularity.",
    keys: &[
        key("documents", "500", ValueType::COUNT, "number of documents"),
        key("document", "6000", ValueType::TOKENS, "tokens of each"),
        key("zipf", "1", ValueType::EXPONENT, "skew of their popularity"),
        key("per_prompt", "2", PER_PROMPT, "documents in a prompt"),
        key(
            "shuffled",
            "0",
            ValueType::Whole { least: 0, most: 1 },
            "1: in random order; 0: as drawn, so that popular ones tend to be first",
        ),
        key("system", "500", ValueType::TOKENS_OR_NONE, "tokens that all prompts share"),
        key("question", "100", ValueType::TOKENS, "tokens of the question"),
        key("out", "200", ValueType::ANSWER, "tokens of an answer"),
        key("qps", "10", ValueType::RATE, "requests per second"),
        key("seconds", "300", ValueType::SECONDS, "duration in seconds"),
    ],
    size,
    requests,
};

fn size(values: &Values) -> Result<Size, PlanError> {
    let (documents, per_prompt) = (values.whole("documents"), values.whole("per_prompt"));
    if per_prompt > documents {
        return Err(PlanError::Documents { per_prompt, documents });
    }
    let requests_mean = values.real("qps") * values.real("seconds");
    let found_tokens = values.real("document") * values.real("per_prompt");
    Ok(Size {
        requests_mean,
        pieces_mean: requests_mean * (2.0 + values.real("per_prompt")),
        prompt_tokens_max: values.real("system") + found_tokens + values.real("question"),
        seconds: values.real("seconds"),
    })
}

fn requests(values: &Values, dice: &mut Dice) -> Vec<Request> {
    let popularity = Popularity::new(values.whole("documents"), values.real("zipf"));
    let system = Piece { text: dice.shared(Shared::Opening, 0), tokens: values.whole("system") };
    let stage = Stage { qps: values.real("qps"), seconds: values.real("seconds") };
    let mut requests = Vec::new();
    for at in dice.arrivals(0.0, stage) {
        let mut pieces = vec![system];
        let mut documents = retrieve(&popularity, values.whole("per_prompt"), dice);
        if values.whole("shuffled") == 1 {
            shuffle(&mut documents, dice);
        }
        for number in documents {
            let text = dice.shared(Shared::Document, u64::from(number));
            pieces.push(Piece { text, tokens: values.whole("document") });
        }
        pieces.push(Piece { text: dice.own(), tokens: values.whole("question") });
        requests.push(Request {
            at: instant(at),
            prompt: prompt(&pieces),
            answer_tokens: values.whole("out"),
            answer: dice.own(),
            ..Request::default()
        });
    }
    requests
}

/// Every order is as likely as any other.
fn shuffle(documents: &mut [u32], dice: &mut Dice) {
    for last in (1..documents.len()).rev() {
        documents.swap(last, dice.below(last as u32 + 1) as usize);
    }
}

/// Documents by popularity, none of them twice, in the order they were drawn.
fn retrieve(popularity: &Popularity, count: u32, dice: &mut Dice) -> Vec<u32> {
    let mut found = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let drawn = (0..DRAWS_MAX).map(|_| popularity.draw(dice)).find(|it| !found.contains(it));
        // Otherwise take the most popular remaining document, the likeliest draw. A prompt holds at most all, so one is
        // left.
        let next = drawn.or_else(|| (0..count).find(|it| !found.contains(it)));
        found.extend(next);
    }
    found
}

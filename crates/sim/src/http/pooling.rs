//! Embeddings, reranking, scores and classification: numbers derived from hashes, after a real prefill.
//!
//! The numbers mean nothing, but equal texts give equal numbers, and each text goes through the engine as a prompt:
//! it costs as much as a real one and is cached.

use maitre_base::hash;
use serde::Deserialize;
use serde_json::{Value, json};

use super::HostState;
use super::error::ApiError;
use super::request;
use crate::clock;
use crate::text;

/// Numbers in an embedding, unless asked otherwise.
const DIMENSIONS: usize = 16;

/// The longest embedding one can ask for. Chosen: beyond any real model's.
const DIMENSIONS_MAX: usize = 16_384;

#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

impl Inputs {
    fn into_prompts(self) -> Vec<Vec<u32>> {
        match self {
            Inputs::Text(text) => vec![request::tokens(&text)],
            Inputs::Tokens(tokens) => vec![tokens],
            Inputs::Texts(texts) => texts.iter().map(|it| request::tokens(it)).collect(),
            Inputs::TokenLists(lists) => lists,
        }
    }
}

pub(super) async fn embed(state: &HostState, body: &[u8]) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct EmbedFields {
        model: Option<String>,
        input: Inputs,
        dimensions: Option<usize>,
        encoding_format: Option<String>,
    }
    let fields: EmbedFields = serde_json::from_slice(body)?;
    let dimensions = fields.dimensions.unwrap_or(DIMENSIONS);
    if dimensions == 0 || dimensions > DIMENSIONS_MAX {
        return Err(ApiError::bad_request(format!("dimensions must be between 1 and {DIMENSIONS_MAX}")));
    }
    let as_base64 = fields.encoding_format.as_deref() == Some("base64");
    let pooled = pool(state, fields.model.as_deref(), fields.input.into_prompts()).await?;
    let data = pooled.seeds.iter().enumerate().map(|(index, &seed)| {
        let vector = vector(seed, dimensions);
        let embedding = match as_base64 {
            true => json!(base64(&vector.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>())),
            false => json!(vector),
        };
        json!({"index": index, "object": "embedding", "embedding": embedding})
    });
    Ok(pooled.to_json("embd", json!({"object": "list", "data": data.collect::<Vec<_>>()})))
}

pub(super) async fn rerank(state: &HostState, body: &[u8]) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct RerankFields {
        model: Option<String>,
        query: String,
        documents: Vec<String>,
        top_n: Option<usize>,
    }
    let fields: RerankFields = serde_json::from_slice(body)?;
    let prompts = fields.documents.iter().map(|it| pair_prompt(&fields.query, it)).collect();
    let pooled = pool(state, fields.model.as_deref(), prompts).await?;
    let mut order: Vec<usize> = (0..pooled.seeds.len()).collect();
    order.sort_by(|&a, &b| unit(pooled.seeds[b]).total_cmp(&unit(pooled.seeds[a])));
    order.truncate(fields.top_n.filter(|&it| it > 0).unwrap_or(usize::MAX));
    let results = order.into_iter().map(|index| {
        json!({
            "index": index,
            "document": {"text": fields.documents[index]},
            "relevance_score": unit(pooled.seeds[index]),
        })
    });
    let results: Vec<Value> = results.collect();
    Ok(pooled.to_json("rerank", json!({"results": results})))
}

pub(super) async fn score(state: &HostState, body: &[u8]) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    #[derive(Deserialize)]
    struct ScoreFields {
        model: Option<String>,
        text_1: String,
        text_2: Texts,
    }
    let fields: ScoreFields = serde_json::from_slice(body)?;
    let seconds = match fields.text_2 {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    let prompts = seconds.iter().map(|it| pair_prompt(&fields.text_1, it)).collect();
    let pooled = pool(state, fields.model.as_deref(), prompts).await?;
    let data = pooled.seeds.iter().enumerate();
    let data = data.map(|(index, &seed)| json!({"index": index, "object": "score", "score": unit(seed)}));
    let data: Vec<Value> = data.collect();
    Ok(pooled.to_json("score", json!({"object": "list", "data": data})))
}

pub(super) async fn classify(state: &HostState, body: &[u8]) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct ClassifyFields {
        model: Option<String>,
        input: Inputs,
    }
    let fields: ClassifyFields = serde_json::from_slice(body)?;
    let pooled = pool(state, fields.model.as_deref(), fields.input.into_prompts()).await?;
    let data = pooled.seeds.iter().enumerate().map(|(index, &seed)| {
        let first = unit(seed);
        let label = if first >= 0.5 { "LABEL_0" } else { "LABEL_1" };
        json!({"index": index, "label": label, "probs": [first, 1.0 - first], "num_classes": 2})
    });
    let data: Vec<Value> = data.collect();
    Ok(pooled.to_json("classify", json!({"object": "list", "data": data})))
}

/// Prompts that went through the engine.
struct Pooled {
    model: String,
    id: u64,
    /// One for each prompt.
    seeds: Vec<u64>,
    prompt_tokens: usize,
}

/// Prefills every prompt. All are submitted before the first is awaited, so they share steps.
async fn pool(state: &HostState, model: Option<&str>, prompts: Vec<Vec<u32>>) -> Result<Pooled, ApiError> {
    let model = state.model(model)?;
    let seeds: Vec<u64> = prompts.iter().map(|it| text::seed(model, it)).collect();
    let prompt_tokens = prompts.iter().map(Vec::len).sum();
    let tickets: Result<Vec<_>, ApiError> =
        prompts.into_iter().map(|it| state.submit_prefill(model, it)).collect();
    for ticket in tickets? {
        ticket.finished().await;
    }
    let id = seeds.iter().fold(0, |id, &seed| hash::pair(id, seed));
    Ok(Pooled { model: model.to_owned(), id, seeds, prompt_tokens })
}

impl Pooled {
    /// Adds the common fields to a body.
    fn to_json(&self, prefix: &str, mut body: Value) -> String {
        body["id"] = json!(format!("{prefix}-{:016x}", self.id));
        body["created"] = json!(clock::unix_seconds());
        body["model"] = json!(self.model);
        body["usage"] = json!({
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": null,
        });
        body.to_string()
    }
}

fn pair_prompt(first: &str, second: &str) -> Vec<u32> {
    let mut prompt = text::Prompt::default();
    prompt.text(first);
    prompt.text(second);
    prompt.into_tokens()
}

/// A number in `[0, 1)`.
fn unit(seed: u64) -> f64 {
    maitre_base::Rng::new(seed).unit()
}

/// A vector of length one.
fn vector(seed: u64, dimensions: usize) -> Vec<f32> {
    let mut rng = maitre_base::Rng::new(seed);
    let raw: Vec<f64> = (0..dimensions).map(|_| rng.unit() - 0.5).collect();
    let length = raw.iter().map(|it| it * it).sum::<f64>().sqrt();
    raw.iter().map(|it| (it / length) as f32).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            match digit <= chunk.len() {
                true => text.push(char::from(DIGITS[(bits >> (18 - 6 * digit) & 63) as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        for (text, expected) in
            [("", ""), ("M", "TQ=="), ("Ma", "TWE="), ("Man", "TWFu"), ("\u{3ff}", "z78=")]
        {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn embeddings_have_length_one_and_differ() {
        let first = vector(1, 16);
        assert!((first.iter().map(|it| it * it).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_ne!(first, vector(2, 16));
    }
}

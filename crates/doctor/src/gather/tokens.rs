//! Tokenizes a few fixed chats with our tokenizer and with the engine's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use maitre_dialect::engine::{TOKENIZE, answer};
use maitre_tokens::chat::Chat;
use maitre_tokens::date::Date;
use maitre_tokens::model::Model;
use maitre_tokens::options::ModelOptions;
use serde_json::{Value, json};

use crate::client::{DoctorClient, Question};
use crate::clock;
use crate::facts::{Compared, Comparison, Worker};

/// Neutral chats that exercise different parts of a template: a question, a system prompt, an answered turn.
const CHATS: [&str; 3] = [
    r#"[{"role":"user","content":"What is the time?"}]"#,
    r#"[{"role":"system","content":"Answer briefly."},{"role":"user","content":"Name a colour, a city and a number: é, 東京, 42."}]"#,
    r#"[{"role":"user","content":"Count to three."},{"role":"assistant","content":"One, two, three."},{"role":"user","content":"And back?"}]"#,
];

/// The tokenizers that the settings name and that could be loaded.
pub(super) struct Tokenizers(BTreeMap<String, Model>);

impl Tokenizers {
    /// Those that could not be loaded, and why.
    pub(super) fn load(folders: &BTreeMap<String, PathBuf>) -> (Tokenizers, Vec<(String, String)>) {
        let (mut models, mut unusable) = (BTreeMap::new(), Vec::new());
        for (name, folder) in folders {
            match Model::load(folder, ModelOptions::default()) {
                Ok(model) => drop(models.insert(name.clone(), model)),
                Err(error) => unusable.push((name.clone(), error.to_string())),
            }
        }
        (Tokenizers(models), unusable)
    }
}

/// Compares our tokens of the chats with the worker's, for each of its models that has a tokenizer here. Only
/// for engines with a tokenize endpoint.
pub(super) async fn compare(
    client: &DoctorClient,
    worker: &Worker,
    tokenizers: &Tokenizers,
) -> Vec<Compared> {
    let mut compared = Vec::new();
    if !worker.kind.tokenizes_chats() {
        return compared;
    }
    for served in worker.models() {
        let Some(model) = tokenizers.0.get(&served.id) else { continue };
        for messages in CHATS {
            // A template that rejects a system prompt rejects it here and there.
            let outcome = match (ours(model, messages), theirs(client, &served.id, messages).await) {
                (Err(_), Err(why)) => Comparison::Unanswered(why),
                (Err(why), Ok(_)) => Comparison::Unrendered(why),
                (Ok(_), Err(why)) => Comparison::Unanswered(why),
                (Ok(ours), Ok(theirs)) => difference(&ours, &theirs),
            };
            compared.push(Compared { model: served.id.clone(), outcome });
        }
    }
    compared
}

fn ours(model: &Model, messages: &str) -> Result<Vec<u32>, String> {
    let today = Date::of_unix_seconds(clock::since_1970().as_secs() as i64);
    model.chat(&Chat::new(messages, today)).map(|it| it.tokens).map_err(|it| it.to_string())
}

async fn theirs(client: &DoctorClient, model: &str, messages: &str) -> Result<Vec<u32>, String> {
    let messages: Value = serde_json::from_str(messages).unwrap_or_default();
    let body = json!({"model": model, "messages": messages}).to_string();
    let page = client.ask(Question::post(TOKENIZE, body, None)).await.map_err(|it| it.why())?;
    let tokens = answer(&page.body).filter(|_| page.is_success());
    tokens.ok_or_else(|| format!("{TOKENIZE} answers {}", page.status))
}

fn difference(ours: &[u32], theirs: &[u32]) -> Comparison {
    let at = ours.iter().zip(theirs).take_while(|(one, other)| one == other).count();
    match at == ours.len() && at == theirs.len() {
        true => Comparison::Same { tokens: at },
        false => Comparison::Differ { ours: ours.len(), theirs: theirs.len(), at },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_position_is_found() {
        assert_eq!(difference(&[1, 2], &[1, 2]), Comparison::Same { tokens: 2 });
        assert_eq!(difference(&[1, 2, 3], &[1, 3, 3]), Comparison::Differ { ours: 3, theirs: 3, at: 1 });
        assert_eq!(difference(&[1], &[1, 2]), Comparison::Differ { ours: 1, theirs: 2, at: 1 });
        assert_eq!(difference(&[], &[2]), Comparison::Differ { ours: 0, theirs: 1, at: 0 });
    }

    #[test]
    fn every_fixed_chat_is_json() {
        for chat in CHATS {
            assert!(serde_json::from_str::<Value>(chat).unwrap().is_array(), "{chat}");
        }
    }
}

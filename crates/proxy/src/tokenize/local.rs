//! Models whose tokenizer and template are loaded: their prompts are tokenized here, exactly.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use maitre_dialect::openai::{self, Part};
use maitre_tokens::chat::{Chat, Ending};
use maitre_tokens::date::Date;
use maitre_tokens::folder::LoadError;
use maitre_tokens::model::Model;
use maitre_tokens::options::ModelOptions;
use tracing::debug;

use super::TokenIds;
use super::in_flight::TextLimit;
use crate::clock::Clock;

/// Longer text that is not cached is tokenized on another thread: at a few megabytes a second it would delay every
/// request of this thread by more than a few milliseconds.
const INLINE_BYTES_MAX: usize = 16 << 10;

#[derive(Default)]
pub(crate) struct LocalTokenizers {
    models: BTreeMap<String, Arc<Model>>,
}

#[derive(Debug, thiserror::Error)]
#[error("load the tokenizer of {model}: {error}")]
pub struct NotLoaded {
    model: String,
    /// Part of the message, so not also its source: it would be printed twice.
    error: LoadError,
}

impl LocalTokenizers {
    /// Reads every folder. One that cannot be read is an error: the router does not fall back to another level.
    pub(crate) fn load(folders: &BTreeMap<String, PathBuf>) -> Result<LocalTokenizers, NotLoaded> {
        let models = folders.iter().map(|(name, folder)| Ok((name.clone(), Arc::new(load(name, folder)?))));
        Ok(LocalTokenizers { models: models.collect::<Result<_, NotLoaded>>()? })
    }

    /// What is wrong with each folder that cannot be used.
    pub(crate) fn errors(folders: &BTreeMap<String, PathBuf>) -> impl Iterator<Item = NotLoaded> {
        folders.iter().filter_map(|(name, folder)| load(name, folder).err())
    }

    pub(crate) fn get(&self, model: &str) -> Option<&Arc<Model>> {
        self.models.get(model)
    }
}

fn load(model: &str, folder: &Path) -> Result<Model, NotLoaded> {
    let loaded = Model::load(folder, ModelOptions::default());
    loaded.map_err(|error| NotLoaded { model: model.to_owned(), error })
}

/// The prompt's token ids; None if it cannot be rendered, or if too much is being tokenized.
pub(super) async fn tokenize(
    clock: Clock,
    model: &Arc<Model>,
    parsed: &openai::Request<'_>,
    limit: TextLimit<'_>,
) -> Option<TokenIds> {
    if parsed.template.is_own {
        return None;
    }
    let ids = match parsed.prompt.raw(Part::Messages) {
        Some(messages) => chat(clock, model, parsed, messages, limit).await,
        None => text(model, parsed, limit).await,
    }?;
    let exact = ids.media.unwrap_or(ids.tokens.len());
    Some(TokenIds { tokens: ids.tokens, exact })
}

async fn chat(
    clock: Clock,
    model: &Arc<Model>,
    parsed: &openai::Request<'_>,
    messages: &str,
    limit: TextLimit<'_>,
) -> Option<maitre_tokens::chat::Ids> {
    let template = &parsed.template;
    let ending = match (template.continue_final_message, template.add_generation_prompt) {
        (Some(true), _) => Ending::Continue,
        (_, Some(false)) => Ending::Nothing,
        _ => Ending::Answer,
    };
    let chat = Chat {
        tools: parsed.prompt.raw(Part::Tools),
        documents: parsed.prompt.raw(Part::Documents),
        arguments: template.kwargs,
        reasoning_effort: template.reasoning_effort,
        ending,
        ..Chat::new(messages, Date::of_unix_seconds(clock.unix_seconds()))
    };
    let prompt = model.render(&chat).map_err(|error| debug!(%error, "cannot render a chat")).ok()?;
    let fresh = model.fresh_bytes(&prompt);
    if fresh <= INLINE_BYTES_MAX {
        return model.encode(&prompt).ok();
    }
    let reservation = limit.reserve(fresh)?;
    let model = model.clone();
    let encode = move || {
        let ids = model.encode(&prompt).ok();
        drop(reservation);
        ids
    };
    tokio::task::spawn_blocking(encode).await.ok()?
}

async fn text(
    model: &Arc<Model>,
    parsed: &openai::Request<'_>,
    limit: TextLimit<'_>,
) -> Option<maitre_tokens::chat::Ids> {
    // A list of prompts is several requests inside the engine.
    let text: String = serde_json::from_str(parsed.prompt.raw(Part::Prompt)?).ok()?;
    if parsed.template.add_special_tokens == Some(false) {
        return None;
    }
    if text.len() <= INLINE_BYTES_MAX {
        return model.text(&text).ok();
    }
    let reservation = limit.reserve(text.len())?;
    let model = model.clone();
    let encode = move || {
        let ids = model.text(&text).ok();
        drop(reservation);
        ids
    };
    tokio::task::spawn_blocking(encode).await.ok()?
}

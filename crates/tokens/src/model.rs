//! A model's way from prompts to ids: loaded once from its folder, then shared by all lanes.

use std::path::Path;

use thiserror::Error;

use crate::chat::{Chat, Ids, Prompt};
use crate::conversation::{self, BadChat};
use crate::encoder::Encoder;
pub use crate::encoder::{EncodeError, Reading, Stats};
use crate::folder::Folder;
pub use crate::folder::LoadError;
use crate::template::{Failure, Template};
pub use crate::template::{Format, Limits};

/// What the operator may say about a model beyond its folder; the defaults are vLLM's.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The most memory remembered pieces may take.
    pub cache_bytes: CacheBytes,
    /// The text of a template to use instead of the folder's (vLLM's `--chat-template`).
    pub template: Option<String>,
    /// How the template wants the content of messages; `None` finds out as vLLM does.
    pub format: Option<Format>,
    /// Variables for the template where a request does not say, a JSON object (vLLM's
    /// `--default-chat-template-kwargs`).
    pub arguments: Option<String>,
    pub limits: Limits,
    pub reading: Reading,
}

/// A budget in bytes. By default 64 MiB: about ten million tokens of conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBytes(pub usize);

impl Default for CacheBytes {
    fn default() -> CacheBytes {
        CacheBytes(64 << 20)
    }
}

/// Why a chat has no prompt. All but `Encode` are the client's to mend, and the engine would refuse it too.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RenderError {
    #[error(transparent)]
    BadChat(#[from] BadChat),
    #[error(transparent)]
    Template(#[from] Failure),
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

pub struct Model {
    encoder: Encoder,
    template: Template,
}

impl Model {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and the chat templates in `folder`.
    ///
    /// A folder without a template loads: its chats are refused, its texts are tokenized.
    pub fn load(folder: &Path, settings: Settings) -> Result<Model, LoadError> {
        let mut files = Folder::read(folder)?;
        if let Some(text) = &settings.template {
            files.templates = [("default".to_owned(), text.clone())].into();
        }
        let encoder = Encoder::load(folder, &files, &settings)?;
        let template = Template::new(folder, &files, &settings)?;
        Ok(Model { encoder, template })
    }

    /// The ids the engine will prefill for a chat. Blocks its thread: see `fresh_bytes`.
    pub fn chat(&self, chat: &Chat<'_>) -> Result<Ids, RenderError> {
        Ok(self.encode(&self.render(chat)?)?)
    }

    /// The ids of a prompt that is text already, with the tokens put around one.
    pub fn text(&self, text: &str) -> Result<Ids, EncodeError> {
        Ok(Ids { tokens: self.encoder.encode_with_ends(text)?, media: None })
    }

    /// The first half of `chat`: the template alone. Measured with Qwen3's and Llama 3.1's: 50 µs for nineteen
    /// messages of 3 KB in all, 320 µs for 480 KB.
    pub fn render(&self, chat: &Chat<'_>) -> Result<Prompt, RenderError> {
        let picked = self.template.pick(chat)?;
        let conversation = conversation::read(chat, picked.shape())?;
        let text = picked.render(chat, &conversation.messages)?;
        let Some(marked) = conversation.marked else { return Ok(Prompt { text, media: None }) };
        // The same chat with a mark where its first image or sound goes: up to where the two differ, the
        // prompt is text that does not depend on it.
        let other = picked.render(chat, &marked)?;
        let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        // A text that does not show its image has it put there by the engine, at the very place.
        let sure = if picked.shape().format == Format::Parts { same } else { same.saturating_sub(1) };
        let media = Some(self.encoder.last_cut(&text, sure));
        Ok(Prompt { text, media })
    }

    /// How many bytes of a prompt `encode` would have to tokenize, at most, as opposed to remember.
    ///
    /// Fresh text goes at about 2 MB a second (200 ms for 400 KB) and its lane does nothing else meanwhile;
    /// this is how it knows to send a long text elsewhere. Costs 20 µs for 50 KB, as remembering does.
    pub fn fresh_bytes(&self, prompt: &Prompt) -> usize {
        self.encoder.fresh_bytes(&prompt.text)
    }

    /// The second half of `chat`.
    pub fn encode(&self, prompt: &Prompt) -> Result<Ids, EncodeError> {
        let Some(media) = prompt.media else {
            return Ok(Ids { tokens: self.encoder.encode(&prompt.text)?, media: None });
        };
        let (sure, rest) = prompt.text.split_at(media);
        let mut tokens = self.encoder.encode(sure)?;
        let media = Some(tokens.len());
        tokens.extend(self.encoder.encode(rest)?);
        Ok(Ids { tokens, media })
    }

    pub fn stats(&self) -> Stats {
        self.encoder.stats()
    }
}

//! A model's way from prompts to ids: loaded once from its folder, then shared by all lanes.

use std::path::Path;

use crate::chat::{Chat, Ids, RenderedChat};
use crate::conversation;
use crate::encoder::{EncodeError, Encoder, EncoderStats};
use crate::folder::{LoadError, ModelFolder};
use crate::options::{ContentFormat, ModelOptions};
use crate::template::{RenderError, Template};

pub struct Model {
    encoder: Encoder,
    template: Template,
}

impl Model {
    /// Reads `tokenizer.json`, `tokenizer_config.json` and the chat templates in `folder`.
    ///
    /// A folder without a template loads: its chats are refused, its texts are tokenized.
    pub fn load(folder: &Path, options: ModelOptions) -> Result<Model, LoadError> {
        let mut files = ModelFolder::read(folder)?;
        if let Some(text) = &options.template {
            files.templates = [("default".to_owned(), text.clone())].into();
        }
        let encoder = Encoder::load(folder, &files, &options)?;
        let template = Template::new(folder, &files, &options)?;
        Ok(Model { encoder, template })
    }

    /// The ids the engine will prefill for a chat. Blocks its thread: see `fresh_bytes`.
    pub fn chat(&self, chat: &Chat<'_>) -> Result<Ids, RenderError> {
        Ok(self.encode(&self.render(chat)?)?)
    }

    /// The ids of a text prompt, with the tokens that the tokenizer adds around it.
    pub fn text(&self, text: &str) -> Result<Ids, EncodeError> {
        Ok(Ids { tokens: self.encoder.encode_with_ends(text)?, media: None })
    }

    /// The first half of `chat`: the template alone. Measured with Qwen3's and Llama 3.1's: 50 µs for nineteen
    /// messages of 3 KB in all, 320 µs for 480 KB.
    pub fn render(&self, chat: &Chat<'_>) -> Result<RenderedChat, RenderError> {
        let picked = self.template.pick(chat)?;
        let conversation = conversation::read(chat, picked.shape())?;
        let text = picked.render(chat, &conversation.messages)?;
        let Some(marked) = conversation.marked else { return Ok(RenderedChat { text, media: None }) };
        // The same chat with a mark in place of its first image or sound. Up to where the two differ, the prompt is
        // text that does not depend on it.
        let other = picked.render(chat, &marked)?;
        let same = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        // If the text does not show the image, the engine inserts it at exactly this place.
        let sure = if picked.shape().format == ContentFormat::Parts { same } else { same.saturating_sub(1) };
        let media = Some(self.encoder.last_cut(&text, sure));
        Ok(RenderedChat { text, media })
    }

    /// The most bytes of a prompt that `encode` would have to tokenize; the rest is cached.
    ///
    /// New text takes 200 ms for 400 KB (2 MB a second), and its lane does nothing else meanwhile: the lane uses this
    /// to send a long text to another thread. Costs 20 µs for 50 KB, as much as a cache look-up.
    pub fn fresh_bytes(&self, prompt: &RenderedChat) -> usize {
        self.encoder.fresh_bytes(&prompt.text)
    }

    /// The second half of `chat`.
    pub fn encode(&self, prompt: &RenderedChat) -> Result<Ids, EncodeError> {
        let Some(media) = prompt.media else {
            return Ok(Ids { tokens: self.encoder.encode(&prompt.text)?, media: None });
        };
        let (sure, rest) = prompt.text.split_at(media);
        let mut tokens = self.encoder.encode(sure)?;
        let media = Some(tokens.len());
        tokens.extend(self.encoder.encode(rest)?);
        Ok(Ids { tokens, media })
    }

    pub fn stats(&self) -> EncoderStats {
        self.encoder.stats()
    }
}

//! What an operator may set for a model. The defaults are vLLM's.

/// Settings of a model beyond its folder.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Memory limit for cached pieces.
    pub cache_bytes: CacheBytes,
    /// The text of a template to use instead of the folder's (vLLM's `--chat-template`).
    pub template: Option<String>,
    /// The form in which the template takes the content of messages; `None` detects it as vLLM does.
    pub format: Option<ContentFormat>,
    /// Template variables for requests that do not set them, a JSON object (vLLM's
    /// `--default-chat-template-kwargs`).
    pub arguments: Option<String>,
    pub limits: RenderLimits,
    pub setup: TokenizerSetup,
}

/// A limit in bytes. By default 64 MiB: about ten million tokens of conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBytes(pub usize);

impl Default for CacheBytes {
    fn default() -> CacheBytes {
        CacheBytes(64 << 20)
    }
}

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one text (vLLM's `string`).
    Text,
    /// As a list of parts, even if the client sent a text (vLLM's `openai`).
    Parts,
}

/// Limits of one rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderLimits {
    /// Steps of the template. A message takes some dozens; ten million take about 200 ms.
    pub fuel: u64,
    /// Length of the rendered text.
    pub text_bytes: usize,
    /// All text that the template builds on the way, in total. A message passes through about five operations.
    pub built_bytes: usize,
}

impl Default for RenderLimits {
    fn default() -> RenderLimits {
        RenderLimits { fuel: 10_000_000, text_bytes: 32 << 20, built_bytes: 256 << 20 }
    }
}

/// How the tokenizer is constructed from a model's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenizerSetup {
    /// As transformers 5 and current vLLM do: a Llama's class decides how its words begin.
    #[default]
    AsTransformers5,
    /// As `tokenizer.json` says, for engines on transformers 4 or without transformers.
    AsWritten,
}

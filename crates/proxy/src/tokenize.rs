//! Turns a prompt into tokens, as exactly as possible, and into the prefix hashes of its blocks.
//!
//! There are four ways, and each prompt gets the best available one. The client may have sent token ids. The model's own
//! tokenizer and template may be loaded (`local`). An engine that serves the model may tokenize the prompt (`engine`), if
//! there are KV events to match and it responds fast enough. Else the text is split into words of four bytes: no KV event
//! matches those, but prompts that this router placed before do, and that is most of the knowledge there is.
//!
//! A prompt of more than `limits.tokenize` is split into words, and so is one that would exceed what may be tokenized at
//! the same time (`in_flight`).
//!
//! A prompt is tokenized only if its strategy looks at caches, or if there is a record. Tokenizing never refuses a
//! request: if a prompt cannot be rendered here it is split into words, and the engine judges it.

mod engine;
mod in_flight;
mod local;

use std::sync::Arc;

use maitre_dialect::openai;
use maitre_dialect::route::Route;
use maitre_dispatch::{BLOCK_WORDS, PromptChain, PromptReader, ReadPlan};
use maitre_fleet::estimate::Size;
use maitre_index::chunks::{self, TextChunks};
use maitre_index::prefix::{self, PrefixHash, Root, TEXT_BLOCK_BYTES, Unit};

pub(crate) use engine::EngineTokenizers;
use in_flight::TextLimit;
pub(crate) use in_flight::WorkInFlight;
pub(crate) use local::{LocalTokenizers, NotLoaded};

use crate::brain::SharedBrain;
use crate::metrics::Metrics;
use crate::record::RecordedPrompt;
use crate::settings::SharedSettings;
use crate::upstreams::Upstreams;

/// How a prompt was tokenized. Best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// The client sent token ids.
    Given,
    /// By the model's own tokenizer and template.
    Exact,
    /// By an engine that serves the model.
    Engine,
    /// As words of four bytes.
    Words,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Level::Given => "given",
            Level::Exact => "exact",
            Level::Engine => "engine",
            Level::Words => "words",
        }
    }
}

pub(crate) struct TokenizedPrompt {
    /// None if the strategy does not look at caches.
    pub(crate) prompt: Option<PromptChain>,
    pub(crate) size: Size,
    /// None if there is no record.
    pub(crate) recorded: Option<RecordedPrompt>,
}

impl TokenizedPrompt {
    /// A prompt of which only the size is known.
    pub(crate) fn unread(parsed: &openai::Request<'_>) -> TokenizedPrompt {
        TokenizedPrompt { prompt: None, size: size(parsed), recorded: None }
    }
}

/// Token ids, and how many of them are exact: those after an image depend on the engine.
struct TokenIds {
    tokens: Vec<u32>,
    exact: usize,
}

/// Blocks of one prompt that are hashed at most: a million tokens in blocks of 16. Later blocks are neither looked up nor
/// remembered.
const BLOCKS_MAX: usize = 65_536;

/// What the prefix hashes of a prompt start from, and the size of its blocks.
struct HashPlan {
    /// Empty if no worker lists it: KV events of such workers start from the empty model, too.
    model: Arc<str>,
    adapter: Option<String>,
    salt: Option<String>,
    block: u32,
    /// Whether there are KV events to match.
    reported: bool,
    /// Whether any worker reuses chunks.
    chunks: bool,
}

impl HashPlan {
    fn new(plan: ReadPlan, parsed: &openai::Request<'_>) -> HashPlan {
        // In vLLM an adapter is the model, in SGLang a field beside it.
        let adapter = plan.adapter.as_deref().or(parsed.lora.as_deref());
        HashPlan {
            adapter: adapter.map(str::to_owned),
            salt: parsed.cache_salt.as_deref().map(str::to_owned),
            model: plan.model.unwrap_or_default(),
            block: plan.block,
            reported: plan.reported,
            chunks: plan.chunks,
        }
    }

    fn root(&self, unit: Unit) -> Root {
        Root::new(unit, &self.model, self.adapter.as_deref(), self.salt.as_deref())
    }

    fn hash_ids(&self, ids: &TokenIds) -> PromptChain {
        let mut chain = Vec::new();
        let block = self.block as usize;
        let exact = ids.exact.min(BLOCKS_MAX * block);
        let (root, tokens) = (self.root(Unit::Tokens), &ids.tokens[..exact]);
        prefix::chain(root, tokens, block, &mut chain);
        PromptChain {
            unit: Unit::Tokens,
            units: ids.tokens.len() as u64,
            block: self.block,
            chain: chain.into(),
            chunks: self.chunks.then(|| chunks::cut(root, tokens).into()),
        }
    }

    fn hash_text(&self, prompt: &openai::Prompt<'_>) -> PromptChain {
        let root = self.root(Unit::Words);
        let mut text = TextHasher::new(root);
        let mut chunks = self.chunks.then(|| TextChunks::new(root));
        prompt.text(|bytes| {
            text.feed(bytes);
            if let Some(chunks) = &mut chunks {
                chunks.feed(bytes);
            }
        });
        let (units, chain) = (text.bytes / 4, text.chain);
        let chunks = chunks.map(|it| it.end().into());
        PromptChain { unit: Unit::Words, units, block: BLOCK_WORDS, chain: chain.into(), chunks }
    }
}

/// Token ids; or the remembered hashes of an engine's token ids.
enum Tokens {
    Ids(TokenIds),
    Prompt(PromptChain),
}

/// Tokenizes prompts for all threads.
pub(crate) struct Tokenizer {
    pub(crate) brain: Arc<SharedBrain>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) local: LocalTokenizers,
    pub(crate) engines: EngineTokenizers,
    pub(crate) is_recording: bool,
    pub(crate) settings: Arc<SharedSettings>,
    pub(crate) work: WorkInFlight,
}

impl Tokenizer {
    /// `upstreams` are the calling thread's connections, for prompts that an engine tokenizes.
    pub(crate) async fn tokenize(
        &self,
        upstreams: &Upstreams,
        route: Option<Route>,
        parsed: &openai::Request<'_>,
    ) -> TokenizedPrompt {
        let plan = self.brain.plan(parsed.model.as_deref());
        let Some(plan) = plan.filter(|_| route.is_some_and(Route::decodes)) else {
            return TokenizedPrompt::unread(parsed);
        };
        let reader = plan.reader;
        let plan = HashPlan::new(plan, parsed);
        let (level, prompt) = match self.tokens(upstreams, route, parsed, &plan).await {
            Some((level, Tokens::Ids(ids))) => (level, plan.hash_ids(&ids)),
            Some((level, Tokens::Prompt(prompt))) => (level, prompt),
            None => (Level::Words, plan.hash_text(&parsed.prompt)),
        };
        let recorded =
            self.is_recording.then(|| RecordedPrompt { model: plan.model.clone(), prompt: prompt.clone() });
        if reader == PromptReader::Record {
            return TokenizedPrompt { prompt: None, size: size(parsed), recorded };
        }
        // Models that no worker lists are the client's own text, and would be unbounded labels.
        let model = if plan.model.is_empty() { "other" } else { &plan.model };
        self.metrics.caches.tokenized(model, level.name());
        let size = match (prompt.unit, reader) {
            (Unit::Tokens, PromptReader::Strategy) => Size::Tokens(prompt.units),
            // What was tokenized for a shadow must not influence the strategy in charge.
            _ => size(parsed),
        };
        TokenizedPrompt { prompt: Some(prompt), size, recorded }
    }

    async fn tokens(
        &self,
        upstreams: &Upstreams,
        route: Option<Route>,
        parsed: &openai::Request<'_>,
        plan: &HashPlan,
    ) -> Option<(Level, Tokens)> {
        if let Some(tokens) = parsed.prompt.ids() {
            let exact = tokens.len();
            return Some((Level::Given, Tokens::Ids(TokenIds { tokens, exact })));
        }
        if !matches!(route, Some(Route::Chat | Route::Completions)) {
            return None;
        }
        let limits = self.settings.load().limits;
        if parsed.prompt.bytes() > limits.tokenize_bytes {
            return None;
        }
        let named = || parsed.model.as_deref().and_then(|it| self.local.get(it));
        if let Some(model) = self.local.get(&plan.model).or_else(named) {
            // A prompt that this model's template refuses, its engine refuses too: no need to ask it.
            let limit = limits.tokenizing_bytes;
            let text = TextLimit { all: &self.work.text, limit };
            let ids = local::tokenize(self.brain.clock, model, parsed, text).await?;
            return Some((Level::Exact, Tokens::Ids(ids)));
        }
        // Words do as well as tokens to recognise prompts that this router placed.
        if !plan.reported {
            return None;
        }
        let prompt = self.engines.tokenize(&self.brain, upstreams, parsed, plan).await?;
        Some((Level::Engine, Tokens::Prompt(prompt)))
    }
}

/// The size of a prompt that is not tokenized.
pub(crate) fn size(parsed: &openai::Request<'_>) -> Size {
    match parsed.prompt.token_ids() {
        Some(count) => Size::Tokens(count as u64),
        None => Size::Bytes(parsed.prompt.bytes() as u64),
    }
}

/// Hashes text block by block as it comes.
struct TextHasher {
    prefix: PrefixHash,
    /// The beginning of a block whose end has not come yet.
    begun: Vec<u8>,
    bytes: u64,
    chain: Vec<PrefixHash>,
}

impl TextHasher {
    fn new(root: Root) -> TextHasher {
        TextHasher { prefix: root.start(), begun: Vec::new(), bytes: 0, chain: Vec::new() }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if !self.begun.is_empty() {
            let missing = TEXT_BLOCK_BYTES - self.begun.len();
            let (piece, rest) = bytes.split_at(missing.min(bytes.len()));
            self.begun.extend_from_slice(piece);
            bytes = rest;
            if let Ok(block) = self.begun.as_slice().try_into() {
                self.end_block(&block);
                self.begun.clear();
            }
        }
        let (blocks, rest) = bytes.as_chunks();
        blocks.iter().for_each(|it| self.end_block(it));
        self.begun.extend_from_slice(rest);
    }

    fn end_block(&mut self, block: &[u8; TEXT_BLOCK_BYTES]) {
        if self.chain.len() < BLOCKS_MAX {
            self.prefix = self.prefix.then_text(block);
            self.chain.push(self.prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain_of(text: &[u8], piece: usize) -> Vec<PrefixHash> {
        let mut hasher = TextHasher::new(Root::new(Unit::Words, "m", None, None));
        text.chunks(piece).for_each(|it| hasher.feed(it));
        assert_eq!(hasher.bytes, text.len() as u64);
        hasher.chain
    }

    #[test]
    fn the_hashes_of_a_text_do_not_depend_on_how_it_is_split() {
        let text = "The quick brown fox jumps over the lazy dog. ".repeat(30);
        let root = Root::new(Unit::Words, "m", None, None);
        let blocks = text.as_bytes().as_chunks().0.iter();
        let chain: Vec<_> = blocks
            .scan(root.start(), |prefix, block| {
                *prefix = prefix.then_text(block);
                Some(*prefix)
            })
            .collect();
        assert_eq!(chain.len(), 5);
        for piece in [1, 3, 64, 255, 256, 257, 511, 1_000, text.len()] {
            assert_eq!(chain_of(text.as_bytes(), piece), chain, "in pieces of {piece}");
        }
        assert!(chain_of(format!("{text} and more of it").as_bytes(), 7).starts_with(&chain));
    }
}

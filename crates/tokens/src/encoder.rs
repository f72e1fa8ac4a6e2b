//! From text to ids: the tokenizer, set up as the engine sets it up, with a cache of pieces.
//!
//! The ids are always those of the whole text. Pieces are tokenized separately only where `cut` says that it makes no
//! difference and a trial at load time confirmed it. If the trial fails, texts are tokenized and cached as a whole.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{AddedToken, Tokenizer};

use crate::cache::PieceCache;
use crate::cut::Cutter;
use crate::folder::{LoadError, ModelFolder};
use crate::options::{ModelOptions, TokenizerSetup};

/// The tokenizer rejected a text. Only tokenizers without an unknown token do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tokenize {bytes} bytes: {why}")]
pub struct EncodeError {
    bytes: usize,
    why: String,
}

pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    /// `None` if pieces are not exact; then texts are tokenized whole.
    cutter: Option<Cutter>,
    ends: SurroundingTokens,
    cache: PieceCache,
    stats: ByteCounters,
}

/// Tokens that the tokenizer adds around a text that is not a chat.
enum SurroundingTokens {
    Fixed {
        before: Vec<u32>,
        after: Vec<u32>,
    },
    /// Depends on the text: such texts are tokenized whole, each time.
    Unknown,
}

/// How much was tokenized and how much was remembered, in bytes of text, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderStats {
    pub fresh_bytes: u64,
    pub cached_bytes: u64,
}

#[derive(Default)]
struct ByteCounters {
    fresh_bytes: AtomicU64,
    cached_bytes: AtomicU64,
}

impl Encoder {
    pub(crate) fn load(
        path: &Path,
        folder: &ModelFolder,
        options: &ModelOptions,
    ) -> Result<Encoder, LoadError> {
        let failed = |why: String| LoadError::Tokenizer { path: path.join("tokenizer.json"), why };
        let tokenizer = set_up(folder, options.setup).map_err(|it| failed(it.to_string()))?;
        let added: Vec<AddedToken> = tokenizer.get_added_tokens_decoder().into_values().collect();
        let cutter = Cutter::new(added.iter()).map_err(|it| failed(it.to_string()))?;
        let exact = !folder.config.split_special_tokens && trial(&tokenizer, &cutter, &added);
        let ends = SurroundingTokens::of(&tokenizer);
        Ok(Encoder {
            tokenizer,
            cutter: exact.then_some(cutter),
            ends,
            cache: PieceCache::new(options.cache_bytes.0),
            stats: ByteCounters::default(),
        })
    }

    /// The ids of `text`. Recognises special tokens in it and adds none.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        self.append(text, &mut ids)?;
        Ok(ids)
    }

    /// The same, with the tokens that the tokenizer adds around a text (usually one at its beginning).
    pub(crate) fn encode_with_ends(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        let SurroundingTokens::Fixed { before, after } = &self.ends else {
            self.stats.fresh_bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
            return encode(&self.tokenizer, text, true);
        };
        let mut ids = before.clone();
        ids.reserve(text.len() / 4);
        self.append(text, &mut ids)?;
        ids.extend_from_slice(after);
        Ok(ids)
    }

    /// How many bytes of `text` would have to be tokenized now. A new piece that occurs twice counts twice.
    pub(crate) fn fresh_bytes(&self, text: &str) -> usize {
        match &self.cutter {
            Some(cutter) => cutter.pieces(text).filter(|it| !self.cache.holds(it)).map(str::len).sum(),
            None if self.cache.holds(text) => 0,
            None => text.len(),
        }
    }

    /// The last offset at or before `end` up to which the text's ids do not depend on what follows.
    pub(crate) fn last_cut(&self, text: &str, end: usize) -> usize {
        let Some(cutter) = &self.cutter else { return 0 };
        cutter.cuts(text).take_while(|it| *it <= end).last().unwrap_or(0)
    }

    pub(crate) fn stats(&self) -> EncoderStats {
        EncoderStats {
            fresh_bytes: self.stats.fresh_bytes.load(Ordering::Relaxed),
            cached_bytes: self.stats.cached_bytes.load(Ordering::Relaxed),
        }
    }

    fn append(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        match &self.cutter {
            Some(cutter) => cutter.pieces(text).try_for_each(|piece| self.append_piece(piece, ids)),
            None => self.append_piece(text, ids),
        }
    }

    fn append_piece(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        let bytes = piece.len() as u64;
        if let Some(known) = self.cache.get(piece) {
            self.stats.cached_bytes.fetch_add(bytes, Ordering::Relaxed);
            ids.extend_from_slice(&known);
            return Ok(());
        }
        self.stats.fresh_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fresh: Arc<[u32]> = encode(&self.tokenizer, piece, false)?.into();
        ids.extend_from_slice(&fresh);
        self.cache.put(piece, &fresh);
        Ok(())
    }
}

impl SurroundingTokens {
    fn of(tokenizer: &Tokenizer) -> SurroundingTokens {
        SurroundingTokens::find(tokenizer).unwrap_or(SurroundingTokens::Unknown)
    }

    fn find(tokenizer: &Tokenizer) -> Option<SurroundingTokens> {
        let bare = |text| encode(tokenizer, text, false).ok();
        let full = |text| encode(tokenizer, text, true).ok();
        let (inner, outer) = (bare("Hello")?, full("Hello")?);
        let at = outer.windows(inner.len().max(1)).position(|it| it == inner)?;
        let (before, after) = (outer[..at].to_vec(), outer[at + inner.len()..].to_vec());
        let holds = |text| Some([&before[..], &bare(text)?[..], &after[..]].concat() == full(text)?);
        let texts = ["", " ", "a", "\n", "two words", "日本", "<s>", " <unk> "];
        let all = texts.into_iter().all(|it| holds(it) == Some(true));
        all.then_some(SurroundingTokens::Fixed { before, after })
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, EncodeError> {
    let failed = |why: tokenizers::Error| EncodeError { bytes: text.len(), why: why.to_string() };
    Ok(tokenizer.encode_fast(text, add_special_tokens).map_err(failed)?.get_ids().to_vec())
}

/// The tokenizer as transformers sets it up: no truncation, no padding, and every token that the configuration names
/// recognised.
fn set_up(folder: &ModelFolder, setup: TokenizerSetup) -> tokenizers::Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_bytes(&folder.tokenizer)?;
    tokenizer.with_truncation(None)?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(folder.config.split_special_tokens);
    if setup == TokenizerSetup::AsTransformers5 && rebuilt_as_llama(folder) {
        tokenizer.with_normalizer(None::<NormalizerWrapper>)?;
        tokenizer.with_pre_tokenizer(Some(llama_words(folder)));
    }
    let known = tokenizer.get_added_tokens_decoder();
    let mut known: Vec<String> = known.into_values().map(|it| it.content).collect();
    let listed = &folder.config.added_tokens_decoder;
    let mut by_id: Vec<(u32, &AddedToken)> =
        listed.iter().filter_map(|(id, it)| Some((id.parse().ok()?, it))).collect();
    by_id.sort_by_key(|it| it.0);
    let listed = by_id.into_iter().map(|(_, it)| it.clone());
    let named = folder.names.iter().map(|it| AddedToken::from(it.content.as_str(), true));
    for token in listed.chain(named) {
        if !token.content.is_empty() && !known.contains(&token.content) {
            known.push(token.content.clone());
            tokenizer.add_tokens([token])?;
        }
    }
    Ok(tokenizer)
}

/// Whether transformers 5 rebuilds this tokenizer: from a Llama's `tokenizer.json` it takes only the vocabulary, and
/// its own class decides how words begin.
fn rebuilt_as_llama(folder: &ModelFolder) -> bool {
    let class = folder.config.tokenizer_class.as_deref();
    let model = folder.model_type.as_deref();
    matches!(class, Some("LlamaTokenizer" | "LlamaTokenizerFast")) && matches!(model, None | Some("llama"))
}

fn llama_words(folder: &ModelFolder) -> PreTokenizerWrapper {
    let scheme = match (folder.config.add_prefix_space, folder.config.legacy) {
        (Some(false), _) => PrependScheme::Never,
        (_, Some(true)) => PrependScheme::Always,
        _ => PrependScheme::First,
    };
    PreTokenizerWrapper::Metaspace(Metaspace::new('▁', scheme, false))
}

/// Whether pieces give the ids of the whole text, on texts designed to expose tokenizers for which they do not.
fn trial(tokenizer: &Tokenizer, cutter: &Cutter, added: &[AddedToken]) -> bool {
    /// A few suffice if models carry a thousand placeholders; each costs a millisecond.
    const TOKENS: usize = 8;
    const AROUND: [&str; 9] =
        ["", " ", "a", " a", "a ", "\n", "\n\nWord one two", "é 日本 🙂", " leading and trailing "];
    let mut plain: Vec<&str> = Cutter::plain(added.iter()).collect();
    plain.sort_unstable();
    let other = plain.first().copied().unwrap_or_default();
    let tokens = plain.iter().step_by(plain.len().div_ceil(TOKENS).max(1));
    tokens.flat_map(|token| (0..AROUND.len()).map(move |at| (token, at))).all(|(token, at)| {
        [1, 3, 5].into_iter().all(|step| {
            let (before, after) = (AROUND[at], AROUND[(at + step) % AROUND.len()]);
            let text = format!("{before}{token}{after}{other}{before}{token}{token}{after}");
            same_in_pieces(tokenizer, cutter, &text)
        })
    })
}

fn same_in_pieces(tokenizer: &Tokenizer, cutter: &Cutter, text: &str) -> bool {
    let Ok(whole) = encode(tokenizer, text, false) else { return false };
    let pieces: Result<Vec<Vec<u32>>, _> =
        cutter.pieces(text).map(|it| encode(tokenizer, it, false)).collect();
    pieces.is_ok_and(|it| it.concat() == whole)
}

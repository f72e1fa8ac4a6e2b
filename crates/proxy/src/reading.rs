//! Reads a prompt: which tokens it is, as well as anybody here can tell, and the prefixes they make.
//!
//! Four ways, the best there is for each prompt. The client may have sent token ids. The model's own
//! tokenizer and template may be known (`exact`). An engine that serves the model may be asked what it
//! would make of the prompt (`ask`), if there are events to match and it answers fast enough. Else the text
//! itself is cut into words of four bytes: no engine's events will match those, but what we routed ourselves
//! does, and that is most of what there is to know.
//!
//! A prompt is read only if its strategy goes by caches, or if there is a record to be kept. Reading never
//! refuses a request: what cannot be rendered here is the engine's to judge, and goes as words.

mod ask;
mod exact;

use std::sync::Arc;

use maitre_dialect::openai;
use maitre_dialect::route::Route;
use maitre_dispatch::{PromptChain, PromptReader, ReadPlan};
use maitre_fleet::estimate::Size;
use maitre_index::prefix::{self, PrefixHash, Root, Unit};

pub(crate) use ask::Asks;
pub(crate) use exact::{NotLoaded, Tokenizers};

use crate::lane::Lane;
use crate::record::Noted;

/// How a prompt was read. Best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The client sent token ids.
    Given,
    /// By the model's own tokenizer and template.
    Exact,
    /// By an engine that serves the model.
    Engine,
    /// As bytes.
    Words,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Level::Given => "given",
            Level::Exact => "exact",
            Level::Engine => "engine",
            Level::Words => "words",
        }
    }
}

/// A prompt, read.
pub(crate) struct Reading {
    /// None where nobody goes by caches.
    pub(crate) prompt: Option<PromptChain>,
    pub(crate) size: Size,
    /// None where no record is kept.
    pub(crate) noted: Option<Noted>,
}

/// Token ids, and how many of them are sure: what follows an image depends on the engine.
pub(crate) struct Ids {
    pub(crate) tokens: Vec<u32>,
    pub(crate) sure: usize,
}

/// Most blocks of one prompt that are named: a million tokens in blocks of 16. Beyond it nothing is looked
/// up, and nothing remembered.
const BLOCKS_MAX: usize = 65_536;

/// What a prompt is rooted in, and how it is cut.
pub(crate) struct Cut {
    /// Empty if no worker lists it: what such workers report is rooted in nothing, too.
    model: Arc<str>,
    adapter: Option<String>,
    salt: Option<String>,
    block: u32,
    /// Whether events are there to be matched.
    reported: bool,
}

impl Cut {
    fn new(plan: ReadPlan, parsed: &openai::Request<'_>) -> Cut {
        // vLLM names adapters by model, SGLang beside it.
        let adapter = plan.adapter.as_deref().or(parsed.lora.as_deref());
        Cut {
            adapter: adapter.map(str::to_owned),
            salt: parsed.cache_salt.as_deref().map(str::to_owned),
            model: plan.model.unwrap_or_default(),
            block: plan.block,
            reported: plan.reported,
        }
    }

    fn root(&self, unit: Unit) -> Root {
        Root::new(unit, &self.model, self.adapter.as_deref(), self.salt.as_deref())
    }

    fn of_ids(&self, ids: &Ids) -> PromptChain {
        let mut chain = Vec::new();
        let block = self.block as usize;
        let sure = ids.sure.min(BLOCKS_MAX * block);
        prefix::chain(self.root(Unit::Tokens), &ids.tokens[..sure], block, &mut chain);
        PromptChain {
            unit: Unit::Tokens,
            units: ids.tokens.len() as u64,
            block: self.block,
            chain: chain.into(),
        }
    }

    fn of_text(&self, prompt: &openai::Prompt<'_>) -> PromptChain {
        let mut words = Words::new(self.root(Unit::Words), self.block);
        prompt.text(|bytes| words.feed(bytes));
        let (units, chain) = (words.bytes / 4, words.chain);
        PromptChain { unit: Unit::Words, units, block: self.block, chain: chain.into() }
    }
}

pub(crate) async fn read(lane: &Lane, route: Option<Route>, parsed: &openai::Request<'_>) -> Reading {
    let house = &lane.house;
    let plan = house.look(|brain| brain.plan(parsed.model.as_deref()));
    let Some(plan) = plan.filter(|_| route.is_some_and(Route::decodes)) else {
        return Reading { prompt: None, size: size(parsed), noted: None };
    };
    let reader = plan.reader;
    let cut = Cut::new(plan, parsed);
    let (level, ids) = match ids(lane, route, parsed, &cut).await {
        Some((level, ids)) => (level, Some(ids)),
        None => (Level::Words, None),
    };
    let prompt = match ids {
        Some(Named::Ids(ids)) => cut.of_ids(&ids),
        Some(Named::Prompt(prompt)) => prompt,
        None => cut.of_text(&parsed.prompt),
    };
    let noted = house.recorder.as_ref().map(|_| Noted { model: cut.model.clone(), prompt: prompt.clone() });
    if reader == PromptReader::Record {
        return Reading { prompt: None, size: size(parsed), noted };
    }
    // Names that nobody lists are the client's own, and there is no end of them.
    house.metrics.caches.read(if cut.model.is_empty() { "other" } else { &cut.model }, level);
    let size = match (prompt.unit, reader) {
        (Unit::Tokens, PromptReader::Strategy) => Size::Tokens(prompt.units),
        // What a shadow has read is not for the strategy in charge.
        _ => size(parsed),
    };
    Reading { prompt: Some(prompt), size, noted }
}

/// Ids, or what an engine's were turned into when it was last asked.
enum Named {
    Ids(Ids),
    Prompt(PromptChain),
}

async fn ids(
    lane: &Lane,
    route: Option<Route>,
    parsed: &openai::Request<'_>,
    cut: &Cut,
) -> Option<(Level, Named)> {
    if let Some(tokens) = parsed.prompt.ids() {
        let sure = tokens.len();
        return Some((Level::Given, Named::Ids(Ids { tokens, sure })));
    }
    if !matches!(route, Some(Route::Chat | Route::Completions)) {
        return None;
    }
    let house = &lane.house;
    let named = || parsed.model.as_deref().and_then(|it| house.tokenizers.get(it));
    if let Some(model) = house.tokenizers.get(&cut.model).or_else(named) {
        // What this model's template refuses, its engine will refuse: no need to ask.
        return Some((Level::Exact, Named::Ids(exact::ids(house, model, parsed).await?)));
    }
    // Bytes do as well as tokens to recognise what we routed ourselves.
    if !cut.reported {
        return None;
    }
    Some((Level::Engine, Named::Prompt(ask::prompt(lane, parsed, cut).await?)))
}

fn size(parsed: &openai::Request<'_>) -> Size {
    match parsed.prompt.token_ids() {
        Some(count) => Size::Tokens(count as u64),
        None => Size::Bytes(parsed.prompt.bytes() as u64),
    }
}

/// Bytes as words of four, named block by block as they come.
struct Words {
    prefix: PrefixHash,
    /// The words of a block, and how many bytes of them are here.
    block: Vec<u32>,
    filled: usize,
    bytes: u64,
    chain: Vec<PrefixHash>,
}

impl Words {
    fn new(root: Root, block: u32) -> Words {
        let block = vec![0; block.max(1) as usize];
        Words { prefix: root.start(), block, filled: 0, bytes: 0, chain: Vec::new() }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        while let Some((&byte, rest)) = bytes.split_first() {
            let (words, _) = bytes.as_chunks::<4>();
            let room = self.block.len() - self.filled / 4;
            match self.filled.is_multiple_of(4) && !words.is_empty() {
                true => {
                    let taken = words.len().min(room);
                    let place = &mut self.block[self.filled / 4..][..taken];
                    place.iter_mut().zip(words).for_each(|(word, &it)| *word = u32::from_le_bytes(it));
                    self.filled += 4 * taken;
                    bytes = &bytes[4 * taken..];
                }
                false => {
                    let shift = 8 * (self.filled % 4);
                    let word = &mut self.block[self.filled / 4];
                    // The first byte of a word clears what the last block left there.
                    *word = if shift == 0 { u32::from(byte) } else { *word | u32::from(byte) << shift };
                    self.filled += 1;
                    bytes = rest;
                }
            }
            if self.filled == 4 * self.block.len() {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        self.filled = 0;
        if self.chain.len() < BLOCKS_MAX {
            self.prefix = self.prefix.then_all(&self.block);
            self.chain.push(self.prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str, piece: usize) -> Vec<PrefixHash> {
        let mut words = Words::new(Root::new(Unit::Words, "m", None, None), 2);
        text.as_bytes().chunks(piece).for_each(|it| words.feed(it));
        assert_eq!(words.bytes, text.len() as u64);
        words.chain
    }

    #[test]
    fn words_are_the_chain_of_their_bytes_however_they_are_cut() {
        let text = "The quick brown fox jumps over the lazy dog";
        let ids: Vec<u32> =
            text.as_bytes().chunks_exact(4).map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect();
        let mut chain = Vec::new();
        prefix::chain(Root::new(Unit::Words, "m", None, None), &ids, 2, &mut chain);
        for piece in 1..text.len() {
            assert_eq!(words(text, piece), chain, "in pieces of {piece}");
        }
        assert!(words(&format!("{text} and more of it"), 7).starts_with(&chain));
    }
}

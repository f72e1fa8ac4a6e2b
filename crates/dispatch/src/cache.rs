//! What each worker holds of a prompt, in tokens, and what responses teach about it.
//!
//! The index counts blocks, and workers may cut the same prompt into blocks of different sizes. A prompt comes in as one
//! chain at the greatest common divisor of those sizes; a worker with blocks n times as large uses every n-th link of it.
//! Where only bytes are known, all workers have blocks of `BLOCK_WORDS` words of four bytes, and the cached part of the words
//! counts as the same part of the prompt's estimated tokens.
//!
//! For workers whose engines reuse KV at any position, a prompt is also known by its chunks. What the prefix does not cover
//! and chunks do counts as held, at the engine's discount.

mod held;
pub mod index;
mod known;
mod prediction;
pub mod stores;

use std::sync::Arc;

use maitre_base::{ChunkReuse, Instant, StoredBlocks, Tier, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::{KvOrigin, Way};
use maitre_index::feed::Trust;
use maitre_index::prefix::{TEXT_BLOCK_BYTES, Unit};
use maitre_index::{CacheSource, Holding, Index, IndexSettings, Numbers, PrefixHash, PromptChunk};

pub(crate) use held::Held;
pub use index::{CacheIndex, Found};
use index::{Urgency, Write};
use known::Known;
pub(crate) use known::WorkerCaches;
pub(crate) use prediction::Prediction;
use prediction::PromptEvent;
use stores::StoreId;

/// Block size of an engine that has not reported one, and the smallest that we count in.
pub const BLOCK_TOKENS: u32 = 16;

/// Words in a block of a prompt that was read as words. Engines' own blocks do not matter there: nothing they report
/// concerns words. So what is found of a prompt is exact to 64 tokens, and the index has a quarter of the entries that the
/// smallest blocks would give it.
pub const BLOCK_WORDS: u32 = (TEXT_BLOCK_BYTES / 4) as u32;

/// A prompt as a chain of prefix hashes, one per block.
#[derive(Clone, Debug)]
pub struct PromptChain {
    pub unit: Unit,
    /// How many tokens or words it has, the tail that fills no block included.
    pub units: u64,
    /// Units in a block of the chain.
    pub block: u32,
    pub chain: Arc<[PrefixHash]>,
    /// The same prompt by content, where any worker reuses chunks.
    pub chunks: Option<Arc<[PromptChunk]>>,
}

/// How much of a prompt, which has so many tokens, do these workers hold?
#[derive(Clone, Copy)]
pub(crate) struct CacheQuery<'a> {
    pub(crate) prompt: &'a PromptChain,
    pub(crate) tokens: Tokens,
    pub(crate) snapshots: &'a [WorkerSnapshot],
}

#[derive(Debug)]
pub struct Cache {
    index: Arc<CacheIndex>,
    known: WorkerCaches,
    /// How many of them report their caches.
    reporting: usize,
    /// How many of them reuse chunks.
    reusing: usize,
    /// What the last look-up found.
    found: Box<Found>,
    has_stores: bool,
}

impl Cache {
    pub(crate) fn new(settings: IndexSettings) -> Cache {
        let index = Arc::new(CacheIndex::new(settings));
        Cache {
            index,
            known: WorkerCaches::default(),
            reporting: 0,
            reusing: 0,
            found: Box::default(),
            has_stores: false,
        }
    }

    pub(crate) fn index(&self) -> &Arc<CacheIndex> {
        &self.index
    }

    /// Exchanges the last look-up for one that the next request is to use.
    pub(crate) fn swap_found(&mut self, found: &mut Box<Found>) {
        std::mem::swap(&mut self.found, found);
    }

    /// The next look-up is a new one.
    pub(crate) fn forget_found(&mut self) {
        self.found.forget();
    }

    /// Memory of all indexes.
    pub fn bytes(&self) -> usize {
        self.index.read(|it| it.tokens.bytes() + it.words.bytes() + it.chunks.bytes())
    }

    pub fn trust(&self, worker: WorkerId) -> Trust {
        self.known.trust(worker)
    }

    pub(crate) fn anyone_reports(&self) -> bool {
        self.reporting > 0
    }

    /// Tokens in a block of this worker.
    pub fn block(&self, worker: WorkerId) -> u32 {
        self.known.get(worker).map_or(BLOCK_TOKENS, |it| it.cache.block())
    }

    pub fn numbers(&self, worker: WorkerId) -> Option<Numbers> {
        self.index.read(|it| it.numbers(worker))
    }

    pub(crate) fn known(&self) -> &WorkerCaches {
        &self.known
    }

    pub(crate) fn join(&mut self, worker: WorkerId) {
        // The id may be reused.
        self.known.set(worker, Known::new(self.index.indexes().join(worker)));
        self.count_reusing();
    }

    /// The worker's engine reuses KV at any position.
    pub(crate) fn reuse_chunks(&mut self, worker: WorkerId, reuse: ChunkReuse) {
        let Some(known) = self.known.get_mut(worker) else { return };
        known.reuse = Some(reuse);
        self.index.indexes().chunks.join(worker);
        self.count_reusing();
    }

    pub(crate) fn anyone_reuses_chunks(&self) -> bool {
        self.reusing > 0
    }

    fn count_reusing(&mut self) {
        self.reusing = self.known.iter().filter(|it| it.reuse.is_some()).count();
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        self.trust_changed(worker, Trust::None);
        self.set_store(worker, None);
        if let Some(known) = self.known.get_mut(worker) {
            known.reuse = None;
        }
        self.count_reusing();
        self.index.indexes().leave(worker);
    }

    /// Applies what the worker reports about the size of its cache.
    pub(crate) fn size(&mut self, worker: WorkerId, block: Option<u64>, capacity: Option<Tokens>) {
        let mut indexes = self.index.indexes();
        // KV events know better: the block size of the group that is indexed.
        let seen = indexes.tokens.block_tokens(worker);
        let reported = block.and_then(|it| u32::try_from(it).ok()).filter(|&it| it > 0);
        let block = seen.or(reported.map(grain)).unwrap_or_else(|| self.block(worker));
        indexes.set_block(worker, block);
        if let Some(capacity) = capacity {
            let blocks = |size: u32| u32::try_from(capacity.0 / u64::from(size)).unwrap_or(u32::MAX);
            indexes.tokens.set_capacity(worker, blocks(block));
            indexes.words.set_capacity(worker, blocks(BLOCK_WORDS));
            indexes.chunks.set_capacity(worker, capacity.0);
        }
        indexes.count(worker);
    }

    // KV events.

    pub(crate) fn stored(&mut self, worker: WorkerId, model: &str, blocks: &StoredBlocks<'_>) {
        let mut indexes = self.index.indexes();
        if blocks.tier == Tier::Shared {
            return indexes.stores.stored(worker, model, blocks);
        }
        indexes.tokens.store(worker, model, blocks);
        if let Some(block) = indexes.tokens.block_tokens(worker) {
            indexes.set_block(worker, block);
        }
        indexes.count(worker);
    }

    pub(crate) fn removed(&mut self, worker: WorkerId, names: &[u64], tier: Tier) {
        let mut indexes = self.index.indexes();
        if tier == Tier::Shared {
            return indexes.stores.removed(worker, names);
        }
        indexes.tokens.remove(worker, names, tier);
        indexes.count(worker);
    }

    pub(crate) fn trust_changed(&mut self, worker: WorkerId, trust: Trust) {
        if let Some(known) = self.known.get_mut(worker) {
            known.trust = trust;
        }
        self.reporting = self.known.iter().filter(|it| it.trust != Trust::None).count();
        let source = match trust {
            Trust::Fresh => CacheSource::Reported,
            Trust::None | Trust::Cold | Trust::Suspect => CacheSource::Predicted,
        };
        let mut indexes = self.index.indexes();
        indexes.tokens.set_source(worker, source);
        indexes.stores.set_source(worker, source);
    }

    /// The worker's cache is empty, or nothing is known of it any more.
    pub(crate) fn clear(&mut self, worker: WorkerId) {
        let mut indexes = self.index.indexes();
        indexes.tokens.clear(worker);
        indexes.clear_sent(worker);
        indexes.count(worker);
    }

    /// A gap in the worker's KV events cannot be filled.
    pub(crate) fn reports_lost(&mut self, worker: WorkerId) {
        let mut indexes = self.index.indexes();
        indexes.tokens.doubt_reported(worker);
        indexes.stores.reports_lost(worker);
        indexes.count(worker);
    }

    /// Connections to the worker are refused: its process is gone, and the next one starts with an empty cache.
    ///
    /// A worker that still publishes KV events is only unhealthy, and would not report again what it holds. Its feed clears
    /// what it has published.
    pub(crate) fn refused(&mut self, worker: WorkerId) {
        let mut indexes = self.index.indexes();
        match self.trust(worker) {
            Trust::None => indexes.tokens.clear(worker),
            Trust::Suspect => indexes.tokens.clear_predicted(worker),
            Trust::Cold | Trust::Fresh => return,
        }
        indexes.clear_sent(worker);
        indexes.count(worker);
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        let mut indexes = self.index.indexes();
        indexes.tokens.tick(now);
        indexes.stores.tick(now);
        indexes.count_all();
    }

    // Requests.

    /// Whether the last look-up is about this prompt, and was not used yet.
    pub(crate) fn take_found(&mut self, prompt: &PromptChain) -> bool {
        self.found.take(prompt)
    }

    /// Fills `held`, one for each of the snapshots.
    pub(crate) fn look_up(&mut self, question: CacheQuery<'_>, held: &mut Vec<Held>) {
        if !self.found.take(question.prompt) {
            self.index.find(question.prompt, &mut self.found, Index::look_up);
            self.found.forget();
        }
        self.show(question, held);
    }

    /// The same without refreshing what is found.
    pub(crate) fn peek(&mut self, question: CacheQuery<'_>, held: &mut Vec<Held>) {
        self.index.find(question.prompt, &mut self.found, Index::peek);
        self.found.forget();
        self.show(question, held);
    }

    /// What the last look-up found at these workers. It must have been for the same prompt.
    pub(crate) fn show(&self, question: CacheQuery<'_>, held: &mut Vec<Held>) {
        self.known.show(question, &self.found, held);
    }

    /// The worker shares this store, or none.
    pub(crate) fn set_store(&mut self, worker: WorkerId, store: Option<StoreId>) {
        if let Some(known) = self.known.get_mut(worker) {
            known.store = store;
            self.index.indexes().stores.set(worker, store);
        }
        self.has_stores = self.known.iter().any(|it| it.store.is_some());
    }

    /// How KV cache comes to this worker from its store.
    pub(crate) fn way_from_store(&self, worker: WorkerId) -> Way {
        let store = self.known.get(worker).and_then(|it| it.store);
        Way { from: KvOrigin::Store(store.map_or(u32::MAX, |it| it.0)), to: worker }
    }

    pub(crate) fn has_stores(&self) -> bool {
        self.has_stores
    }

    /// What the store of this worker holds of the prompt of the last look-up.
    pub(crate) fn in_store(&self, worker: WorkerId, prompt: &PromptChain, prompt_tokens: Tokens) -> Tokens {
        let Some(known) = self.known.get(worker) else { return Tokens::ZERO };
        let Some(store) = known.store else { return Tokens::ZERO };
        let size = self.found.cache(worker).block_in(prompt.unit);
        let holding = Holding { blocks: self.found.in_store(store, size), lower: 0 };
        in_tokens(prompt, prompt_tokens, size, holding).tokens
    }

    /// Whether what this worker's engine stored before we followed its events no longer matters.
    pub fn is_complete(&self, worker: WorkerId) -> bool {
        self.index.read(|it| it.tokens.is_complete(worker))
    }

    /// The worker has computed the prompt: places blocks that its engine reported without a known position.
    pub(crate) fn adopt(&mut self, worker: WorkerId, prompt: &PromptChain) {
        if self.known.get(worker).is_some_and(|it| it.cache.has_parked()) {
            self.defer(worker, prompt, PromptEvent::Adopted);
        }
    }

    /// The prompt was sent there.
    pub(crate) fn placed(&mut self, now: Instant, worker: WorkerId, prompt: &PromptChain) -> Prediction {
        let prediction = Prediction::default();
        self.defer(worker, prompt, PromptEvent::Placed(now, prediction.clone()));
        prediction
    }

    /// How much of the prompt the worker holds without what only this prediction says.
    pub(crate) fn held_without(
        &mut self,
        worker: WorkerId,
        prediction: &Prediction,
        prompt: &PromptChain,
        prompt_tokens: Tokens,
    ) -> Tokens {
        let mut indexes = self.index.indexes();
        let predicted = prediction.written();
        let held = predicted.and_then(|it| indexes.held_without(worker, prompt, it));
        let Some((blocks, size)) = held else { return Tokens::ZERO };
        in_tokens(prompt, prompt_tokens, size, Holding { blocks, lower: 0 }).tokens
    }

    pub(crate) fn prefilled(
        &mut self,
        now: Instant,
        worker: WorkerId,
        prompt: &PromptChain,
        prediction: &Prediction,
    ) {
        let known = self.known.get(worker);
        let changes_look_ups =
            prompt.chunks.is_some() || known.is_some_and(|it| it.store.is_some() || it.cache.has_parked());
        let urgency = if changes_look_ups { Urgency::ChangesLookUps } else { Urgency::CanWait };
        let event = PromptEvent::Prefilled(now, prediction.clone());
        self.index.defer(Write { worker, prompt: prompt.clone(), event }, urgency);
    }

    /// The attempt ended before its prefill was done.
    pub(crate) fn failed(&mut self, worker: WorkerId, prompt: &PromptChain, prediction: &Prediction) {
        self.defer(worker, prompt, PromptEvent::Failed(prediction.clone()));
    }

    /// The engine counted this part of the prompt as cached. Where KV events are fresh, this adds nothing.
    pub(crate) fn counted(
        &mut self,
        worker: WorkerId,
        prompt: &PromptChain,
        prediction: &Prediction,
        part: f64,
    ) {
        let shares = self.known.get(worker).is_some_and(|it| it.store.is_some());
        if prompt.unit == Unit::Words || self.trust(worker) != Trust::Fresh || shares {
            self.defer(worker, prompt, PromptEvent::Counted(prediction.clone(), part));
        }
    }

    fn defer(&mut self, worker: WorkerId, prompt: &PromptChain, event: PromptEvent) {
        self.index.defer(Write { worker, prompt: prompt.clone(), event }, Urgency::ChangesLookUps);
    }
}

/// Blocks smaller than our smallest are counted together.
fn grain(block: u32) -> u32 {
    match block {
        0 => BLOCK_TOKENS,
        small if small < BLOCK_TOKENS && BLOCK_TOKENS.is_multiple_of(small) => BLOCK_TOKENS,
        other => other,
    }
}

fn in_tokens(prompt: &PromptChain, prompt_tokens: Tokens, size: u32, holding: Holding) -> Held {
    if prompt.unit == Unit::Words {
        // No engine reports words, so none are known to be in slower memory.
        return Held { tokens: of_words(prompt, prompt_tokens, holding.blocks), ..Held::default() };
    }
    // Engines compute at least one token, and whole blocks: a fully cached prompt loses its last block.
    let most = u32::try_from(prompt.units.saturating_sub(1) / u64::from(size)).unwrap_or(u32::MAX);
    let blocks = holding.blocks.min(most);
    let below = holding.lower.min(most - blocks);
    let tokens = |blocks: u32| Tokens(u64::from(blocks) * u64::from(size));
    Held { tokens: tokens(blocks), below: tokens(below), ..Held::default() }
}

/// The tokens in this many leading blocks of the prompt's own size.
pub(crate) fn blocks_in_tokens(prompt: &PromptChain, prompt_tokens: Tokens, blocks: u32) -> Tokens {
    in_tokens(prompt, prompt_tokens, prompt.block, Holding { blocks, lower: 0 }).tokens
}

/// How many whole leading blocks of the prompt's own size have so many tokens.
pub(crate) fn tokens_in_blocks(prompt: &PromptChain, prompt_tokens: Tokens, tokens: Tokens) -> usize {
    let units = match prompt.unit {
        Unit::Tokens => tokens.0,
        Unit::Words => (tokens.0 as f64 / prompt_tokens.0.max(1) as f64 * prompt.units as f64) as u64,
    };
    (units / u64::from(prompt.block.max(1))) as usize
}

/// The part of the prompt's estimated tokens that these leading blocks of its words are believed to be.
fn of_words(prompt: &PromptChain, prompt_tokens: Tokens, blocks: u32) -> Tokens {
    if blocks == 0 {
        return Tokens::ZERO;
    }
    let held = u64::from(blocks) * u64::from(BLOCK_WORDS);
    let words = match held + u64::from(BLOCK_WORDS) > prompt.units {
        // All that can be known of the prompt is held: most likely it was sent before. An engine computes its last block.
        true => prompt.units.saturating_sub(1) / u64::from(BLOCK_TOKENS) * u64::from(BLOCK_TOKENS),
        // What two texts share ends anywhere in the block after it, on average in the middle.
        false => held + u64::from(BLOCK_WORDS / 2),
    };
    Tokens((words as f64 / prompt.units.max(1) as f64 * prompt_tokens.0 as f64) as u64)
}

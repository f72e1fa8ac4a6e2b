//! What each worker holds of a prompt, in tokens, and what responses teach about it.
//!
//! The index counts blocks, and workers may cut the same prompt into blocks of different sizes. A prompt comes in as one
//! chain at the greatest common divisor of those sizes; a worker with blocks n times as large uses every n-th link of it.
//! Where only bytes are known, all workers have blocks of `BLOCK_WORDS` words of four bytes, and the cached part of the words
//! counts as the same part of the prompt's estimated tokens.

use std::sync::Arc;

use maitre_base::{Instant, StoredBlocks, Tier, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_index::feed::Trust;
use maitre_index::prefix::{TEXT_BLOCK_BYTES, Unit};
use maitre_index::{
    CacheSource, Chain, Holding, Holdings, Index, IndexSettings, Numbers, PredictedBlocks, PrefixHash,
};

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
}

/// What one worker holds of the prompt at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub tokens: Tokens,
    /// The tokens after those that are held in slower memory.
    pub below: Tokens,
}

/// How much of a prompt, which has so many tokens, do these workers hold?
#[derive(Clone, Copy)]
pub(crate) struct CacheQuery<'a> {
    pub(crate) prompt: &'a PromptChain,
    pub(crate) tokens: Tokens,
    pub(crate) snapshots: &'a [WorkerSnapshot],
}

#[derive(Clone, Copy, Debug)]
struct WorkerCache {
    /// Tokens in one of its blocks.
    block: u32,
    trust: Trust,
    /// Tokens it holds in all, as of the last event about it.
    holds: Tokens,
}

impl WorkerCache {
    /// A worker that has reported nothing yet.
    const NOTHING: WorkerCache = WorkerCache { block: BLOCK_TOKENS, trust: Trust::None, holds: Tokens::ZERO };
}

#[derive(Debug)]
pub struct Cache {
    index: Index,
    /// Prompts that were read as words. KV events never concern them, so fresh events must not remove them.
    words: Index,
    /// By worker id.
    known: Vec<WorkerCache>,
    /// How many of them report their caches.
    reporting: usize,
    // Scratch.
    holdings: Holdings,
    links: Vec<PrefixHash>,
    sizes: Vec<u32>,
}

impl Cache {
    pub(crate) fn new(settings: IndexSettings) -> Cache {
        // Where prompts are read as tokens at all, most of them are.
        let words = IndexSettings { budget_bytes: settings.budget_bytes / 4, seed: !settings.seed };
        let tokens = IndexSettings { budget_bytes: settings.budget_bytes - words.budget_bytes, ..settings };
        Cache {
            index: Index::new(tokens),
            words: Index::new(words),
            known: Vec::new(),
            reporting: 0,
            holdings: Holdings::new(),
            links: Vec::new(),
            sizes: Vec::new(),
        }
    }

    /// Memory of both indexes.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.words.bytes()
    }

    pub fn trust(&self, worker: WorkerId) -> Trust {
        self.known.get(worker.index()).map_or(Trust::None, |it| it.trust)
    }

    pub(crate) fn anyone_reports(&self) -> bool {
        self.reporting > 0
    }

    /// Tokens in a block of this worker.
    pub fn block(&self, worker: WorkerId) -> u32 {
        self.known.get(worker.index()).map_or(BLOCK_TOKENS, |it| it.block)
    }

    /// Units in a block, where this worker's prompts are counted in them.
    fn block_in(&self, unit: Unit, worker: WorkerId) -> u32 {
        match unit {
            Unit::Tokens => self.block(worker),
            Unit::Words => BLOCK_WORDS,
        }
    }

    pub fn numbers(&self, worker: WorkerId) -> Option<Numbers> {
        let (tokens, words) = (self.index.numbers(worker)?, self.words.numbers(worker)?);
        let block = u64::from(self.block(worker));
        let in_its_blocks = |words: u32| (u64::from(words) * u64::from(BLOCK_WORDS) / block) as u32;
        Some(Numbers {
            predicted_blocks: tokens.predicted_blocks + in_its_blocks(words.predicted_blocks),
            near_blocks: tokens.near_blocks + in_its_blocks(words.near_blocks),
            dropped: tokens.dropped + words.dropped,
            evicted: tokens.evicted + words.evicted,
            ..tokens
        })
    }

    /// How much it holds in all: what it reports and what we sent it. A block counts from the moment that a request for it is
    /// sent, so the count does not depend on when the report of it comes.
    ///
    /// Every decision reads it for every worker, so it is cached when it changes: asking the index each time was a tenth
    /// of a decision among a thousand workers. What the index drops of other workers for want of room shows at the next
    /// tick.
    pub(crate) fn holds(&self, worker: WorkerId) -> Tokens {
        self.known.get(worker.index()).map_or(Tokens::ZERO, |it| it.holds)
    }

    fn count(&mut self, worker: WorkerId) {
        let numbers = self.numbers(worker);
        if let Some(known) = self.known.get_mut(worker.index()) {
            known.holds = Tokens(numbers.map_or(0, |it| u64::from(it.near_blocks) * u64::from(known.block)));
        }
    }

    pub(crate) fn join(&mut self, worker: WorkerId) {
        let places = self.known.len().max(worker.index() + 1);
        self.known.resize(places, WorkerCache::NOTHING);
        // The id may be reused.
        self.known[worker.index()] = WorkerCache::NOTHING;
        self.index.join(worker);
        self.words.join(worker);
    }

    pub(crate) fn leave(&mut self, worker: WorkerId) {
        self.trust_changed(worker, Trust::None);
        self.index.leave(worker);
        self.words.leave(worker);
    }

    /// Applies what the worker reports about the size of its cache.
    pub(crate) fn size(&mut self, worker: WorkerId, block: Option<u64>, capacity: Option<Tokens>) {
        // KV events know better: the block size of the group that is indexed.
        let seen = self.index.block_tokens(worker);
        let reported = block.and_then(|it| u32::try_from(it).ok()).filter(|&it| it > 0);
        let block = seen.or(reported.map(grain)).unwrap_or_else(|| self.block(worker));
        if let Some(known) = self.known.get_mut(worker.index()) {
            known.block = block;
        }
        if let Some(capacity) = capacity {
            let blocks = |size: u32| u32::try_from(capacity.0 / u64::from(size)).unwrap_or(u32::MAX);
            self.index.set_capacity(worker, blocks(block));
            self.words.set_capacity(worker, blocks(BLOCK_WORDS));
        }
        self.count(worker);
    }

    // KV events.

    pub(crate) fn stored(&mut self, worker: WorkerId, model: &str, blocks: &StoredBlocks<'_>) {
        self.index.store(worker, model, blocks);
        if let (Some(block), Some(known)) =
            (self.index.block_tokens(worker), self.known.get_mut(worker.index()))
        {
            known.block = block;
        }
        self.count(worker);
    }

    pub(crate) fn removed(&mut self, worker: WorkerId, names: &[u64], tier: Tier) {
        self.index.remove(worker, names, tier);
        self.count(worker);
    }

    pub(crate) fn trust_changed(&mut self, worker: WorkerId, trust: Trust) {
        if let Some(known) = self.known.get_mut(worker.index()) {
            known.trust = trust;
        }
        self.reporting = self.known.iter().filter(|it| it.trust != Trust::None).count();
        self.index.set_source(
            worker,
            match trust {
                Trust::Fresh => CacheSource::Reported,
                Trust::None | Trust::Cold | Trust::Suspect => CacheSource::Predicted,
            },
        );
    }

    /// The worker's cache is empty, or nothing is known of it any more.
    pub(crate) fn clear(&mut self, worker: WorkerId) {
        self.index.clear(worker);
        self.words.clear(worker);
        self.count(worker);
    }

    /// A gap in the worker's KV events cannot be filled.
    pub(crate) fn reports_lost(&mut self, worker: WorkerId) {
        self.index.doubt_reported(worker);
        self.count(worker);
    }

    /// Connections to the worker are refused: its process is gone, and the next one starts with an empty cache.
    ///
    /// A worker that still publishes KV events is only unhealthy, and would not report again what it holds. Its feed clears
    /// what it has published.
    pub(crate) fn refused(&mut self, worker: WorkerId) {
        match self.trust(worker) {
            Trust::None => self.index.clear(worker),
            Trust::Suspect => self.index.clear_predicted(worker),
            Trust::Cold | Trust::Fresh => return,
        }
        self.words.clear(worker);
        self.count(worker);
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        self.index.tick(now);
        (0..self.known.len()).for_each(|it| self.count(WorkerId(it as u32)));
    }

    // Requests.

    /// Fills `held`, one for each of the snapshots.
    pub(crate) fn look_up(&mut self, question: CacheQuery<'_>, held: &mut Vec<Held>) {
        self.find(question, held, Index::look_up);
    }

    /// The same without refreshing what is found.
    pub(crate) fn peek(&mut self, question: CacheQuery<'_>, held: &mut Vec<Held>) {
        self.find(question, held, Index::peek);
    }

    fn find(
        &mut self,
        question: CacheQuery<'_>,
        held: &mut Vec<Held>,
        look: fn(&mut Index, Chain<'_>, &mut Holdings),
    ) {
        let CacheQuery { prompt, tokens: prompt_tokens, snapshots } = question;
        held.clear();
        held.resize(snapshots.len(), Held::default());
        self.sizes.clear();
        for snapshot in snapshots {
            let size = self.block_in(prompt.unit, snapshot.worker);
            if !self.sizes.contains(&size) {
                self.sizes.push(size);
            }
        }
        for place in 0..self.sizes.len() {
            let size = self.sizes[place];
            let Some(chain) = chain(prompt, size, &mut self.links) else { continue };
            look(of(prompt.unit, &mut self.index, &mut self.words), chain, &mut self.holdings);
            for (snapshot, held) in snapshots.iter().zip(held.iter_mut()) {
                let worker = snapshot.worker;
                if self.block_in(prompt.unit, worker) == size {
                    *held = in_tokens(prompt, prompt_tokens, size, self.holdings.of(worker));
                }
            }
        }
    }

    /// Whether what this worker's engine stored before we followed its events no longer matters.
    pub fn is_complete(&self, worker: WorkerId) -> bool {
        self.index.is_complete(worker)
    }

    /// The worker has computed the prompt: places blocks that its engine reported without a known position.
    pub(crate) fn adopt(&mut self, worker: WorkerId, prompt: &PromptChain) {
        let size = self.block(worker);
        if prompt.unit == Unit::Tokens
            && let Some(chain) = chain(prompt, size, &mut self.links)
        {
            self.index.adopt(worker, chain);
            self.count(worker);
        }
    }

    /// The prompt was sent there.
    pub(crate) fn placed(
        &mut self,
        now: Instant,
        worker: WorkerId,
        prompt: &PromptChain,
    ) -> Option<PredictedBlocks> {
        let size = self.block_in(prompt.unit, worker);
        let chain = chain(prompt, size, &mut self.links)?;
        let predicted_blocks = of(prompt.unit, &mut self.index, &mut self.words).predict(now, worker, chain);
        self.count(worker);
        Some(predicted_blocks)
    }

    /// How much of the prompt the worker holds without what only this prediction says.
    pub(crate) fn held_without(
        &mut self,
        worker: WorkerId,
        predicted_blocks: PredictedBlocks,
        prompt: &PromptChain,
        prompt_tokens: Tokens,
    ) -> Tokens {
        let size = self.block_in(prompt.unit, worker);
        let Some(chain) = chain(prompt, size, &mut self.links) else { return Tokens::ZERO };
        let index = of(prompt.unit, &mut self.index, &mut self.words);
        let blocks = index.held_without(worker, chain, predicted_blocks);
        in_tokens(prompt, prompt_tokens, size, Holding { blocks, lower: 0 }).tokens
    }

    pub(crate) fn prefilled(
        &mut self,
        now: Instant,
        worker: WorkerId,
        prompt: &PromptChain,
        predicted_blocks: PredictedBlocks,
    ) {
        let size = self.block_in(prompt.unit, worker);
        if let Some(chain) = chain(prompt, size, &mut self.links) {
            of(prompt.unit, &mut self.index, &mut self.words).prefilled(now, worker, chain, predicted_blocks);
        }
        self.adopt(worker, prompt);
    }

    /// The attempt ended before its prefill was done.
    pub(crate) fn failed(
        &mut self,
        worker: WorkerId,
        prompt: &PromptChain,
        predicted_blocks: PredictedBlocks,
    ) {
        let size = self.block_in(prompt.unit, worker);
        if let Some(chain) = chain(prompt, size, &mut self.links) {
            of(prompt.unit, &mut self.index, &mut self.words).forget(worker, chain, predicted_blocks);
            self.count(worker);
        }
    }

    /// The engine counted this part of the prompt as cached. Where KV events are fresh, this adds nothing.
    pub(crate) fn counted(
        &mut self,
        worker: WorkerId,
        prompt: &PromptChain,
        predicted_blocks: PredictedBlocks,
        part: f64,
    ) {
        let size = self.block_in(prompt.unit, worker);
        let found = (part * prompt.units as f64 / f64::from(size)).round() as u32;
        let found = match prompt.unit {
            // Code has twice the tokens of prose in as many bytes, so a part of the tokens is only roughly the same
            // part of the words. Without this, a cached half that was prose passed for a miss, and a miss removes
            // everything older.
            Unit::Words if (predicted_blocks.from / 2..=predicted_blocks.from * 2).contains(&found) => {
                predicted_blocks.from
            }
            Unit::Words | Unit::Tokens => found,
        };
        if let Some(chain) = chain(prompt, size, &mut self.links) {
            of(prompt.unit, &mut self.index, &mut self.words).correct(worker, chain, predicted_blocks, found);
            self.count(worker);
        }
    }
}

/// The index for prompts in this unit.
fn of<'a>(unit: Unit, tokens: &'a mut Index, words: &'a mut Index) -> &'a mut Index {
    match unit {
        Unit::Tokens => tokens,
        Unit::Words => words,
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

/// The prompt in blocks of `size`; none if its own blocks do not divide that.
fn chain<'a>(prompt: &'a PromptChain, size: u32, scratch: &'a mut Vec<PrefixHash>) -> Option<Chain<'a>> {
    if size == prompt.block {
        return Some(Chain { block_tokens: size, prefixes: &prompt.chain });
    }
    if prompt.block == 0 || !size.is_multiple_of(prompt.block) {
        return None;
    }
    let step = (size / prompt.block) as usize;
    scratch.clear();
    scratch.extend(prompt.chain.iter().skip(step - 1).step_by(step));
    Some(Chain { block_tokens: size, prefixes: scratch })
}

fn in_tokens(prompt: &PromptChain, prompt_tokens: Tokens, size: u32, holding: Holding) -> Held {
    if prompt.unit == Unit::Words {
        // No engine reports words, so none are known to be in slower memory.
        return Held { tokens: of_words(prompt, prompt_tokens, holding.blocks), below: Tokens::ZERO };
    }
    // Engines compute at least one token, and whole blocks: a fully cached prompt loses its last block.
    let most = u32::try_from(prompt.units.saturating_sub(1) / u64::from(size)).unwrap_or(u32::MAX);
    let blocks = holding.blocks.min(most);
    let below = holding.lower.min(most - blocks);
    let tokens = |blocks: u32| Tokens(u64::from(blocks) * u64::from(size));
    Held { tokens: tokens(blocks), below: tokens(below) }
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

//! The index behind a lock of its own, so that threads look prompts up at the same time, and none of them while it holds the
//! lock that decides.
//!
//! What follows from a decision is written later: `defer` queues a write, in the order of the decisions, and `write` does
//! what is queued. A look-up may miss what is being written at the same moment, as if the two requests had arrived the
//! other way round.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use maitre_base::spin::{spin, spin_with};
use maitre_base::{Tokens, WorkerId};
use maitre_index::prefix::Unit;
use maitre_index::{
    Chain, ChunkHoldings, Holding, Holdings, Index, IndexSettings, Numbers, PredictedBlocks, PrefixHash,
    ReusedUnits, Trace,
};
use parking_lot::{Mutex, RwLock, RwLockUpgradableReadGuard, RwLockWriteGuard};

use super::prediction::{PromptEvent, found_blocks};
use super::stores::{StoreId, Stores};
use super::{BLOCK_TOKENS, BLOCK_WORDS, PromptChain};

/// Chunks get a budget of their own, smaller by this: a chunk is three blocks long.
const CHUNKS_PART: usize = 8;

/// The index of one brain.
#[derive(Debug)]
pub struct CacheIndex {
    indexes: RwLock<Indexes>,
    /// Not yet done, the oldest first.
    deferred: Mutex<Vec<Write>>,
    /// Whether anything is deferred. Threads ask that after every event, and a lock each time would be one more cache line
    /// that they take from each other.
    is_deferred: AtomicBool,
    /// Whether any of it changes what look-ups find.
    is_urgent: AtomicBool,
    /// Whether a thread is doing what is deferred.
    is_writing: AtomicBool,
    /// That thread's scratch.
    writing: Mutex<Writing>,
}

#[derive(Debug, Default)]
struct Writing {
    writes: Vec<Write>,
    trace: Trace,
}

/// What the lock protects.
#[derive(Debug)]
pub(super) struct Indexes {
    pub(super) tokens: Index,
    /// Prompts that were read as words. KV events never concern them, so fresh events must not remove them.
    pub(super) words: Index,
    pub(super) stores: Stores,
    /// Only of workers whose engines reuse chunks.
    pub(super) chunks: ChunkHoldings,
    /// By worker id.
    workers: Vec<Option<Arc<WorkerCache>>>,
    /// The block sizes that occur, each once.
    sizes: Vec<u32>,
    /// Scratch.
    links: Vec<PrefixHash>,
}

/// What decisions read of a worker's cache without the lock.
#[derive(Debug)]
pub(super) struct WorkerCache {
    /// Tokens in one of its blocks.
    block: AtomicU32,
    /// Tokens it holds in all, as of the last write about it.
    holds: AtomicU64,
    /// Whether its engine has reported blocks without a known position.
    has_parked: AtomicBool,
}

impl Default for WorkerCache {
    fn default() -> WorkerCache {
        WorkerCache {
            block: AtomicU32::new(BLOCK_TOKENS),
            holds: AtomicU64::new(0),
            has_parked: AtomicBool::new(false),
        }
    }
}

impl WorkerCache {
    pub(super) fn block(&self) -> u32 {
        self.block.load(Relaxed)
    }

    pub(super) fn holds(&self) -> Tokens {
        Tokens(self.holds.load(Relaxed))
    }

    pub(super) fn has_parked(&self) -> bool {
        self.has_parked.load(Relaxed)
    }

    /// Units in a block, where this worker's prompts are counted in them.
    pub(super) fn block_in(&self, unit: Unit) -> u32 {
        block_in(self.block(), unit)
    }

    fn now(&self) -> CacheThen {
        CacheThen { block: self.block(), holds: self.holds() }
    }
}

/// Something that a decision or a response says about a prompt at a worker.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) worker: WorkerId,
    pub(super) prompt: PromptChain,
    pub(super) event: PromptEvent,
}

/// How soon a write has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Before the next look-up.
    ChangesLookUps,
    /// Before the next write.
    CanWait,
}

/// What each worker holds of one prompt, in blocks.
#[derive(Debug, Default)]
pub struct Found {
    /// The prompt; none once the result was used.
    chain: Option<Arc<[PrefixHash]>>,
    /// By block size. Only the first `count` are of this look-up; the others keep their memory.
    by_size: Vec<(u32, Holdings)>,
    /// The same for stores, by their ids; empty while there are none.
    stores: Vec<(u32, Holdings)>,
    count: usize,
    /// Each worker's cache at that moment, by worker id. A choice that is prepared and one that is made later read the same
    /// here, whatever is written to the index between them.
    caches: Vec<CacheThen>,
    /// What workers reuse after their prefix.
    pub(super) reused: ReusedUnits,
    links: Vec<PrefixHash>,
}

/// A worker's cache at the moment of a look-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheThen {
    /// Tokens in a block.
    block: u32,
    /// Tokens it holds in all.
    pub(super) holds: Tokens,
}

impl CacheThen {
    const UNKNOWN: CacheThen = CacheThen { block: BLOCK_TOKENS, holds: Tokens::ZERO };

    /// Units in a block, where this worker's prompts are counted in them.
    pub(super) fn block_in(self, unit: Unit) -> u32 {
        block_in(self.block, unit)
    }
}

fn block_in(block_tokens: u32, unit: Unit) -> u32 {
    match unit {
        Unit::Tokens => block_tokens,
        Unit::Words => BLOCK_WORDS,
    }
}

impl Found {
    /// Whether this is about the prompt. A result is used once: after it, everything may have changed.
    pub(super) fn take(&mut self, prompt: &PromptChain) -> bool {
        self.chain.take().is_some_and(|it| Arc::ptr_eq(&it, &prompt.chain))
    }

    /// The next look-up is a new one.
    pub(super) fn forget(&mut self) {
        self.chain = None;
    }

    /// The worker's cache at that moment. A worker that came later holds nothing.
    pub(super) fn cache(&self, worker: WorkerId) -> CacheThen {
        self.caches.get(worker.index()).copied().unwrap_or(CacheThen::UNKNOWN)
    }

    /// How many leading blocks a store holds.
    pub(super) fn in_store(&self, store: StoreId, size: u32) -> u32 {
        let found = self.stores.iter().take(self.count).find(|it| it.0 == size);
        found.map_or(0, |it| it.1.of(store.place()).blocks)
    }

    pub(super) fn of(&self, worker: WorkerId, size: u32) -> Holding {
        let found = self.by_size[..self.count].iter().find(|it| it.0 == size);
        found.map_or(Holding::default(), |it| it.1.of(worker))
    }
}

impl CacheIndex {
    pub(super) fn new(settings: IndexSettings) -> CacheIndex {
        // Where prompts are read as tokens at all, most of them are.
        let words = IndexSettings { budget_bytes: settings.budget_bytes / 4, seed: !settings.seed };
        let tokens = IndexSettings { budget_bytes: settings.budget_bytes - words.budget_bytes, ..settings };
        let indexes = Indexes {
            tokens: Index::new(tokens),
            words: Index::new(words),
            stores: Stores::new(settings),
            chunks: ChunkHoldings::new(settings.budget_bytes / CHUNKS_PART),
            workers: Vec::new(),
            sizes: Vec::new(),
            links: Vec::new(),
        };
        CacheIndex {
            indexes: RwLock::new(indexes),
            deferred: Mutex::default(),
            is_deferred: AtomicBool::new(false),
            is_urgent: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            writing: Mutex::default(),
        }
    }

    /// Finds what workers hold of the prompt, for `Brain::decide`.
    pub fn look_up(&self, prompt: &PromptChain, found: &mut Found) {
        let indexes = spin(|| self.indexes.try_read()).unwrap_or_else(|| self.indexes.read());
        indexes.find(prompt, found, Index::look_up);
    }

    /// The same, unless another thread is writing.
    pub(crate) fn try_look_up(&self, prompt: &PromptChain, found: &mut Found) -> bool {
        let indexes = self.indexes.try_read();
        indexes.map(|it| it.find(prompt, found, Index::look_up)).is_some()
    }

    /// Does what decisions have left to be written, unless another thread is writing: that one goes on until nothing is left.
    /// What changes no look-up waits for the next write that does, or for the next tick: two threads that share an index spend
    /// more time on each write than on what it changes.
    pub fn write(&self) {
        // What is deferred after the last look at it here finds the mark gone, and is written by its own thread. Hence the
        // strict order: of two threads, one must see what the other has stored.
        while self.is_urgent.load(SeqCst) && !self.is_writing.swap(true, SeqCst) {
            self.write_beside_look_ups();
            self.is_writing.store(false, SeqCst);
        }
    }

    /// Look-ups wait only while something changes: what a write has to find first, it finds beside them. For a cold prompt
    /// that is most of it.
    fn write_beside_look_ups(&self) {
        let Writing { writes, trace } = &mut *self.writing.lock();
        let shared = spin(|| self.indexes.try_upgradable_read());
        let mut shared = shared.unwrap_or_else(|| self.indexes.upgradable_read());
        self.take_deferred(writes);
        for write in writes.drain(..) {
            shared.trace(&write, trace);
            // Left to the lock, the writer went to sleep for a look-up of a microsecond, which then had to wake it.
            let upgraded = spin_with(shared, RwLockUpgradableReadGuard::try_upgrade);
            let mut indexes = upgraded.unwrap_or_else(RwLockUpgradableReadGuard::upgrade);
            indexes.apply(&write, trace);
            shared = RwLockWriteGuard::downgrade_to_upgradable(indexes);
        }
    }

    /// Does what is deferred, and then reads.
    pub(super) fn find(
        &self,
        prompt: &PromptChain,
        found: &mut Found,
        look: fn(&Index, Chain<'_>, &mut Holdings),
    ) {
        if self.is_deferred.load(SeqCst) {
            drop(self.indexes());
        }
        self.indexes.read().find(prompt, found, look);
    }

    pub(super) fn defer(&self, write: Write, urgency: Urgency) {
        let mut deferred = self.deferred.lock();
        deferred.push(write);
        self.is_deferred.store(true, SeqCst);
        if urgency == Urgency::ChangesLookUps {
            self.is_urgent.store(true, SeqCst);
        }
    }

    /// Swaps what is deferred with an empty list, whose memory is used again.
    fn take_deferred(&self, writes: &mut Vec<Write>) {
        let mut deferred = self.deferred.lock();
        std::mem::swap(writes, &mut *deferred);
        self.is_deferred.store(false, SeqCst);
        self.is_urgent.store(false, SeqCst);
    }

    /// The indexes, with everything written that was deferred.
    pub(super) fn indexes(&self) -> RwLockWriteGuard<'_, Indexes> {
        let mut indexes = spin(|| self.indexes.try_write()).unwrap_or_else(|| self.indexes.write());
        if self.is_deferred.load(SeqCst) {
            let mut writes = Vec::new();
            self.take_deferred(&mut writes);
            writes.drain(..).for_each(|it| indexes.apply(&it, &mut Trace::default()));
        }
        indexes
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Indexes) -> T) -> T {
        read(&self.indexes.read())
    }
}

impl Indexes {
    pub(super) fn join(&mut self, worker: WorkerId) -> Arc<WorkerCache> {
        let places = self.workers.len().max(worker.index() + 1);
        self.workers.resize(places, None);
        let cache: Arc<WorkerCache> = Arc::default();
        self.workers[worker.index()] = Some(cache.clone());
        self.stores.set(worker, None);
        self.tokens.join(worker);
        self.words.join(worker);
        self.chunks.leave(worker);
        self.count_sizes();
        cache
    }

    pub(super) fn leave(&mut self, worker: WorkerId) {
        self.tokens.leave(worker);
        self.words.leave(worker);
        self.stores.set(worker, None);
        self.chunks.leave(worker);
        if let Some(place) = self.workers.get_mut(worker.index()) {
            *place = None;
        }
        self.count_sizes();
    }

    /// The worker's cache is empty. Forgets what no engine reports.
    pub(super) fn clear_sent(&mut self, worker: WorkerId) {
        self.words.clear(worker);
        self.chunks.clear(worker);
    }

    fn worker(&self, worker: WorkerId) -> Option<&WorkerCache> {
        self.workers.get(worker.index())?.as_deref()
    }

    pub(super) fn set_block(&mut self, worker: WorkerId, block: u32) {
        if let Some(cache) = self.worker(worker).filter(|it| it.block() != block) {
            cache.block.store(block, Relaxed);
            self.count_sizes();
        }
    }

    fn count_sizes(&mut self) {
        self.sizes.clear();
        self.sizes.extend(self.workers.iter().flatten().map(|it| it.block()));
        self.sizes.sort_unstable();
        self.sizes.dedup();
    }

    pub(super) fn numbers(&self, worker: WorkerId) -> Option<Numbers> {
        let (tokens, words) = (self.tokens.numbers(worker)?, self.words.numbers(worker)?);
        let block = u64::from(self.worker(worker)?.block());
        let in_its_blocks = |words: u32| (u64::from(words) * u64::from(BLOCK_WORDS) / block) as u32;
        Some(Numbers {
            predicted_blocks: tokens.predicted_blocks + in_its_blocks(words.predicted_blocks),
            near_blocks: tokens.near_blocks + in_its_blocks(words.near_blocks),
            dropped: tokens.dropped + words.dropped,
            evicted: tokens.evicted + words.evicted,
            ..tokens
        })
    }

    /// Updates how much the worker holds in all. Every decision reads that for every worker; asking the index each time was
    /// a tenth of a decision among a thousand workers. What the index drops of other workers for want of room shows at the
    /// next tick.
    pub(super) fn count(&self, worker: WorkerId) {
        let numbers = self.numbers(worker);
        if let Some(cache) = self.worker(worker) {
            let tokens = numbers.map_or(0, |it| u64::from(it.near_blocks) * u64::from(cache.block()));
            cache.holds.store(tokens, Relaxed);
            cache.has_parked.store(numbers.is_some_and(|it| it.parked_blocks > 0), Relaxed);
        }
    }

    pub(super) fn count_all(&self) {
        (0..self.workers.len()).for_each(|it| self.count(WorkerId(it as u32)));
    }

    fn find(&self, prompt: &PromptChain, found: &mut Found, look: fn(&Index, Chain<'_>, &mut Holdings)) {
        let (index, sizes) = match prompt.unit {
            Unit::Tokens => (&self.tokens, self.sizes.as_slice()),
            Unit::Words => (&self.words, [BLOCK_WORDS].as_slice()),
        };
        found.chain = Some(prompt.chain.clone());
        found.by_size.resize_with(found.by_size.len().max(sizes.len()), Default::default);
        found.count = 0;
        found.caches.clear();
        let then = |it: &Option<Arc<WorkerCache>>| it.as_ref().map_or(CacheThen::UNKNOWN, |it| it.now());
        found.caches.extend(self.workers.iter().map(then));
        for &size in sizes {
            let Some(chain) = chain(prompt, size, &mut found.links) else { continue };
            let (of, holdings) = &mut found.by_size[found.count];
            *of = size;
            look(index, chain, holdings);
            if let Some(stores) = self.stores.index(prompt.unit) {
                found.stores.resize_with(found.stores.len().max(found.count + 1), Default::default);
                let (of, holdings) = &mut found.stores[found.count];
                *of = size;
                look(stores, chain, holdings);
            }
            found.count += 1;
        }
        if self.stores.index(prompt.unit).is_none() {
            found.stores.clear();
        }
        self.find_chunks(prompt, found);
    }

    /// What workers could reuse of the prompt after the prefix that was found.
    fn find_chunks(&self, prompt: &PromptChain, found: &mut Found) {
        let mut reused = std::mem::take(&mut found.reused);
        reused.clear();
        if let Some(chunks) = &prompt.chunks {
            self.chunks.reused(chunks, |it| self.prefix_end(prompt, found, it), &mut reused);
        }
        found.reused = reused;
    }

    /// Units of the prompt that the worker holds as a prefix, in memory of any kind.
    fn prefix_end(&self, prompt: &PromptChain, found: &Found, worker: WorkerId) -> u64 {
        let size = self.worker(worker).map_or(BLOCK_TOKENS, |it| it.block_in(prompt.unit));
        let Holding { blocks, lower } = found.of(worker, size);
        u64::from(blocks + lower) * u64::from(size)
    }

    /// How many blocks of the prompt, of what size, the worker holds without what only this prediction says.
    pub(super) fn held_without(
        &mut self,
        worker: WorkerId,
        prompt: &PromptChain,
        prediction: PredictedBlocks,
    ) -> Option<(u32, u32)> {
        let size = self.worker(worker)?.block_in(prompt.unit);
        let chain = chain(prompt, size, &mut self.links)?;
        let index = of(prompt.unit, &mut self.tokens, &mut self.words);
        Some((index.held_without(worker, chain, prediction), size))
    }

    /// Finds the runs along the prompt of a write that needs them.
    fn trace(&self, write: &Write, trace: &mut Trace) {
        let Write { worker, prompt, event } = write;
        let size = self.worker(*worker).map(|it| it.block_in(prompt.unit));
        let is_needed = matches!(event, PromptEvent::Placed(..) | PromptEvent::Prefilled(..));
        // Where the worker's blocks are larger, the chain is made anew for the write.
        if is_needed && size == Some(prompt.block) {
            let index = if prompt.unit == Unit::Tokens { &self.tokens } else { &self.words };
            index.trace(Chain { block_tokens: prompt.block, prefixes: &prompt.chain }, trace);
        }
    }

    fn apply(&mut self, write: &Write, trace: &mut Trace) {
        let Write { worker, prompt, event } = write;
        let Some(size) = self.worker(*worker).map(|it| it.block_in(prompt.unit)) else { return };
        if let (PromptEvent::Prefilled(..), Some(chunks)) = (event, &prompt.chunks) {
            self.chunks.hold(*worker, chunks);
        }
        let Some(chain) = chain(prompt, size, &mut self.links) else { return };
        let index = of(prompt.unit, &mut self.tokens, &mut self.words);
        match event {
            PromptEvent::Placed(now, prediction) => {
                prediction.set_written(index.predict_along(*now, *worker, chain, trace));
            }
            PromptEvent::Prefilled(now, prediction) => {
                if let Some(predicted) = prediction.written() {
                    index.prefilled_along(*now, *worker, (chain, trace), predicted);
                }
            }
            PromptEvent::Failed(prediction) => {
                if let Some(predicted) = prediction.written() {
                    index.forget(*worker, chain, predicted);
                }
            }
            // What came from a store counts as cached too, so it tells nothing of the worker's own cache.
            PromptEvent::Counted(..) if self.stores.of(*worker).is_some() => {}
            PromptEvent::Counted(prediction, part) => {
                if let Some(predicted) = prediction.written() {
                    let found = found_blocks(prompt, size, predicted, *part);
                    // More than the prefix may be chunks, which say nothing about the prefix.
                    let found = if self.chunks.has(*worker) { found.min(predicted.from) } else { found };
                    index.correct(*worker, chain, predicted, found);
                }
            }
            PromptEvent::Adopted => {}
        }
        self.stores.apply((*worker, prompt), chain, event, size);
        // The engine has computed the prompt: places blocks that it reported without a known position.
        if matches!(event, PromptEvent::Prefilled(..) | PromptEvent::Adopted) && prompt.unit == Unit::Tokens {
            self.tokens.adopt(*worker, chain);
        }
        self.count(*worker);
    }
}

/// The index for prompts in this unit.
fn of<'a>(unit: Unit, tokens: &'a mut Index, words: &'a mut Index) -> &'a mut Index {
    match unit {
        Unit::Tokens => tokens,
        Unit::Words => words,
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

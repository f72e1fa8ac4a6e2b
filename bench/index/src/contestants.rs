//! Each index behind the same few calls: apply a batch of reports until all of it is visible, and look a prompt up.

use crate::work::{BLOCK_TOKENS, Change, Workload, tokens};
use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash, RouterEvent, compute_block_hash_for_seq,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, PositionalIndexer};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, compute_content_hash};
use maitre_base::{StoredBlocks, Tier, WorkerId};
use maitre_index::prefix::{self, Unit};
use maitre_index::{Chain, Holdings, Index, IndexSettings, PrefixHash, Root};
use std::hint::black_box;

/// A store as it arrives on the wire: names and tokens.
pub struct Store<'a> {
    pub worker: usize,
    pub parent: Option<u64>,
    /// The position of the first block, counted from the beginning of its prompt.
    pub position: usize,
    pub names: &'a [u64],
    pub tokens: Vec<u32>,
}

impl<'a> Store<'a> {
    pub fn new(work: &'a Workload, change: Change) -> Store<'a> {
        let session = &work.sessions[change.session];
        let mut all = Vec::with_capacity((change.to - change.from) * BLOCK_TOKENS);
        for &block in &session.blocks[change.from..change.to] {
            tokens(block, &mut all);
        }
        Store {
            worker: session.worker,
            position: change.from,
            parent: change.from.checked_sub(1).map(|it| session.names[it]),
            names: &session.names[change.from..change.to],
            tokens: all,
        }
    }
}

/// A removal as it arrives on the wire.
pub struct Removal {
    pub worker: usize,
    pub names: Vec<u64>,
}

impl Removal {
    pub fn new(work: &Workload, change: Change) -> Removal {
        let session = &work.sessions[change.session];
        let names = session.names[change.from..change.to].iter().rev().copied().collect();
        Removal { worker: session.worker, names }
    }
}

/// A prompt, hashed for each contestant.
pub struct Prompt {
    ours: Vec<PrefixHash>,
    chain: Vec<ContentHash>,
    dynamo: Vec<LocalBlockHash>,
}

impl Prompt {
    pub fn new(blocks: &[u64]) -> Prompt {
        let mut all = Vec::new();
        blocks.iter().for_each(|&it| tokens(it, &mut all));
        let mut ours = Vec::new();
        prefix::chain(root(), &all, BLOCK_TOKENS, &mut ours);
        Prompt {
            ours,
            chain: all.chunks_exact(BLOCK_TOKENS).map(compute_content_hash).collect(),
            dynamo: compute_block_hash_for_seq(&all, BLOCK_TOKENS as u32, BlockHashOptions::default()),
        }
    }
}

fn root() -> Root {
    Root::new(Unit::Tokens, "m", None, None)
}

pub trait Contestant {
    /// Applies a batch. All of it is visible afterwards.
    fn store(&mut self, batch: &[Store<'_>]);
    fn remove(&mut self, batch: &[Removal]);
    /// Reads the hashes of a prompt, which brings them into the CPU's cache, where a router that has just computed
    /// them has them.
    fn read(&self, prompt: &Prompt);
    /// What a router would get: how many leading blocks each worker holds. Kept until the next look-up.
    fn look_up(&mut self, prompt: &Prompt);
    /// How many blocks the last look-up found at a worker.
    fn held(&self, worker: usize) -> u32;
}

pub const NAMES: [&str; 4] = ["maitre", "kv-index chain", "dynamo compressed", "dynamo positional"];

pub fn contestant(name: &str, workers: usize) -> Box<dyn Contestant> {
    match name {
        "maitre" => Box::new(Ours::new(workers)),
        "kv-index chain" => Box::new(ChainContestant::new(workers)),
        "dynamo compressed" => Box::new(Dynamo::new(ConcurrentRadixTreeCompressed::new())),
        _ => Box::new(Dynamo::new(PositionalIndexer::new(32))),
    }
}

struct Ours {
    index: Index,
    out: Holdings,
}

impl Ours {
    fn new(workers: usize) -> Ours {
        let mut index = Index::new(IndexSettings { budget_bytes: 4 << 30, seed: 1 });
        (0..workers).for_each(|it| index.join(WorkerId(it as u32)));
        Ours { index, out: Holdings::new() }
    }
}

impl Contestant for Ours {
    fn store(&mut self, batch: &[Store<'_>]) {
        for store in batch {
            let stored = StoredBlocks {
                parent: store.parent,
                ..StoredBlocks::plain(store.names, &store.tokens, BLOCK_TOKENS as u32)
            };
            let applied = self.index.store(WorkerId(store.worker as u32), "m", &stored);
            assert_eq!(applied.stored as usize, store.names.len());
        }
    }

    fn remove(&mut self, batch: &[Removal]) {
        for removal in batch {
            self.index.remove(WorkerId(removal.worker as u32), &removal.names, Tier::Gpu);
        }
    }

    fn read(&self, prompt: &Prompt) {
        black_box(prompt.ours.iter().fold(0, |sum, it| sum ^ it.0));
    }

    fn look_up(&mut self, prompt: &Prompt) {
        let chain = Chain { block_tokens: BLOCK_TOKENS as u32, prefixes: &prompt.ours };
        self.index.look_up(chain, &mut self.out);
    }

    fn held(&self, worker: usize) -> u32 {
        self.out.of(WorkerId(worker as u32)).blocks
    }
}

struct ChainContestant {
    index: ChainIndex,
    workers: Vec<(u32, ChainBlockMap)>,
    out: Vec<u32>,
    blocks: Vec<StoredBlock>,
}

impl ChainContestant {
    fn new(workers: usize) -> ChainContestant {
        let index = ChainIndex::with_max_workers(workers.max(64));
        let workers: Vec<(u32, ChainBlockMap)> = (0..workers)
            .map(|it| {
                let id =
                    index.intern_worker(&format!("http://w{it}")).unwrap_or_else(|error| panic!("{error}"));
                (id, ChainBlockMap::new())
            })
            .collect();
        let slots = workers.iter().map(|it| it.0).max().unwrap_or(0) as usize + 1;
        ChainContestant { index, workers, out: vec![0; slots], blocks: Vec::new() }
    }
}

impl Contestant for ChainContestant {
    fn store(&mut self, batch: &[Store<'_>]) {
        for store in batch {
            let contents = store.tokens.chunks_exact(BLOCK_TOKENS).map(compute_content_hash);
            self.blocks.clear();
            self.blocks.extend(
                store
                    .names
                    .iter()
                    .zip(contents)
                    .map(|(&name, content_hash)| StoredBlock { seq_hash: SequenceHash(name), content_hash }),
            );
            let (id, map) = &mut self.workers[store.worker];
            let applied = self.index.apply_stored(*id, &self.blocks, store.parent.map(SequenceHash), map);
            applied.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn remove(&mut self, batch: &[Removal]) {
        for removal in batch {
            let names: Vec<SequenceHash> = removal.names.iter().map(|&it| SequenceHash(it)).collect();
            let (id, map) = &mut self.workers[removal.worker];
            self.index.apply_removed(*id, &names, map);
        }
    }

    fn read(&self, prompt: &Prompt) {
        black_box(prompt.chain.iter().fold(0, |sum, it| sum ^ it.0));
    }

    fn look_up(&mut self, prompt: &Prompt) {
        self.out.fill(0);
        let out = &mut self.out;
        // Its fastest way: it makes no map.
        self.index.score_into(
            &prompt.chain,
            |it| it.0,
            false,
            |worker, blocks| out[worker as usize] = blocks,
        );
    }

    fn held(&self, worker: usize) -> u32 {
        self.out[self.workers[worker].0 as usize]
    }
}

struct Dynamo<T: SyncIndexer> {
    indexer: ThreadPoolIndexer<T>,
    runtime: tokio::runtime::Runtime,
    out: dynamo_kv_router::protocols::OverlapScores,
    next_event: u64,
}

impl<T: SyncIndexer> Dynamo<T> {
    fn new(backend: T) -> Dynamo<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Dynamo {
            indexer: ThreadPoolIndexer::new(backend, 1, BLOCK_TOKENS as u32),
            runtime: runtime.unwrap_or_else(|error| panic!("{error}")),
            out: Default::default(),
            next_event: 0,
        }
    }

    fn apply(&mut self, events: impl Iterator<Item = (usize, KvCacheEventData)>) {
        let (indexer, next) = (&self.indexer, &mut self.next_event);
        self.runtime.block_on(async {
            for (worker, data) in events {
                let event = KvCacheEvent { event_id: *next, data, dp_rank: 0 };
                *next += 1;
                indexer.apply_event(RouterEvent::new(worker as u64, event)).await;
            }
            indexer.flush_and_wait().await.unwrap_or_else(|error| panic!("{error}"));
        });
    }
}

impl<T: SyncIndexer> Contestant for Dynamo<T> {
    fn store(&mut self, batch: &[Store<'_>]) {
        let events = batch.iter().map(|store| {
            let options = BlockHashOptions::default();
            let contents = compute_block_hash_for_seq(&store.tokens, BLOCK_TOKENS as u32, options);
            let blocks =
                store.names.iter().zip(contents).map(|(&name, tokens_hash)| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(name),
                    tokens_hash,
                    mm_extra_info: None,
                });
            let data = KvCacheStoreData {
                parent_hash: store.parent.map(ExternalSequenceBlockHash),
                start_position: Some(store.position as u32),
                blocks: blocks.collect(),
            };
            (store.worker, KvCacheEventData::Stored(data))
        });
        self.apply(events);
    }

    fn remove(&mut self, batch: &[Removal]) {
        let events = batch.iter().map(|removal| {
            let block_hashes = removal.names.iter().map(|&it| ExternalSequenceBlockHash(it)).collect();
            (removal.worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
        });
        self.apply(events);
    }

    fn read(&self, prompt: &Prompt) {
        black_box(prompt.dynamo.iter().fold(0, |sum, it| sum ^ it.0));
    }

    fn look_up(&mut self, prompt: &Prompt) {
        self.out = self.indexer.backend().find_matches(&prompt.dynamo, false);
    }

    fn held(&self, worker: usize) -> u32 {
        let worker = dynamo_kv_router::protocols::WorkerWithDpRank::from_worker_id(worker as u64);
        self.out.scores.get(&worker).copied().unwrap_or(0)
    }
}

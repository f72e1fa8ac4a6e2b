//! Stores that several workers share: host memory behind them, a disk, a cache service. What one of them has computed the
//! others can load.
//!
//! A store is predicted as the cache of a worker without KV events is: what its members compute is in it, and the counts of
//! cached tokens in their answers tell how much it keeps. Unlike a prediction for a worker, one for a store is made when the
//! prompt is computed: until then nobody can load it.
//!
//! Engines may also report what they write to a store and what it evicts. Those events count beside the predictions. Once all
//! members report, and none has gaps, a prediction that nobody confirms is dropped, as for a worker. A store keeps one copy of a
//! block, however many members have written it.

use maitre_base::{Instant, StoredBlocks, Tier, WorkerId};
use maitre_index::prefix::Unit;
use maitre_index::{CacheSource, Chain, Index, IndexSettings};

use super::PromptChain;
use super::prediction::{PromptEvent, found_blocks};

/// Identifies a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u32);

impl StoreId {
    /// The index knows holders by worker ids.
    pub(super) fn place(self) -> WorkerId {
        WorkerId(self.0)
    }
}

/// Nobody reports how large a store is: its size is learned from what its members miss. Up to this.
const CAPACITY_BLOCKS: u32 = 1 << 28;

/// What all stores hold. Costs nothing while there are none.
#[derive(Debug)]
pub(super) struct Stores {
    settings: IndexSettings,
    indexes: Option<Box<StoreIndexes>>,
    /// By worker id.
    members: Vec<Member>,
}

/// One worker.
#[derive(Clone, Copy, Debug, Default)]
struct Member {
    store: Option<StoreId>,
    /// What is known of its KV events.
    source: CacheSource,
    /// Whether it has reported blocks of the store.
    reports: bool,
}

#[derive(Debug)]
struct StoreIndexes {
    tokens: Index,
    words: Index,
    /// Stores that have joined the indexes.
    known: Vec<StoreId>,
}

impl Stores {
    pub(super) fn new(settings: IndexSettings) -> Stores {
        // As much as for the workers' own words.
        let settings = IndexSettings { budget_bytes: settings.budget_bytes / 4, ..settings };
        Stores { settings, indexes: None, members: Vec::new() }
    }

    /// The store that this worker shares.
    pub(super) fn of(&self, worker: WorkerId) -> Option<StoreId> {
        self.members.get(worker.index())?.store
    }

    pub(super) fn set(&mut self, worker: WorkerId, store: Option<StoreId>) {
        if self.of(worker) == store {
            return;
        }
        let member = self.member(worker);
        let before = member.store;
        (member.store, member.reports) = (store, false);
        if let Some(store) = store {
            self.join(store);
            self.find_source(store);
        }
        let Some(left) = before else { return };
        // A store without members may be another one when it comes back.
        match self.members.iter().any(|it| it.store == Some(left)) {
            true => self.find_source(left),
            false => self.leave(left),
        }
    }

    fn member(&mut self, worker: WorkerId) -> &mut Member {
        let workers = self.members.len().max(worker.index() + 1);
        self.members.resize(workers, Member::default());
        &mut self.members[worker.index()]
    }

    // KV events.

    /// A member has written these blocks.
    pub(super) fn stored(&mut self, worker: WorkerId, model: &str, blocks: &StoredBlocks<'_>) {
        let Some(store) = self.reported_by(worker) else { return };
        // Without tokens they are only known to be there, which the first event about them has said.
        if let (Some(indexes), false) = (&mut self.indexes, blocks.tokens.is_empty()) {
            indexes.tokens.remove(store.place(), blocks.names, Tier::Gpu);
            indexes.tokens.store(store.place(), model, &StoredBlocks { tier: Tier::Gpu, ..*blocks });
        }
    }

    /// The store has lost these blocks.
    pub(super) fn removed(&mut self, worker: WorkerId, names: &[u64]) {
        let Some(store) = self.reported_by(worker) else { return };
        if let Some(indexes) = &mut self.indexes {
            indexes.tokens.remove(store.place(), names, Tier::Gpu);
        }
    }

    fn reported_by(&mut self, worker: WorkerId) -> Option<StoreId> {
        let store = self.of(worker)?;
        if !std::mem::replace(&mut self.member(worker).reports, true) {
            self.find_source(store);
        }
        Some(store)
    }

    /// The trust in a worker's KV events has changed.
    pub(super) fn set_source(&mut self, worker: WorkerId, source: CacheSource) {
        self.member(worker).source = source;
        if let Some(store) = self.of(worker) {
            self.find_source(store);
        }
    }

    /// Events of a member are missing: some of them may have been removals.
    pub(super) fn reports_lost(&mut self, worker: WorkerId) {
        if let (Some(store), Some(indexes)) = (self.of(worker), &mut self.indexes) {
            indexes.tokens.doubt_reported(store.place());
        }
    }

    /// Predictions that reports should have confirmed are dropped.
    pub(super) fn tick(&mut self, now: Instant) {
        if let Some(indexes) = &mut self.indexes {
            indexes.tokens.tick(now);
        }
    }

    fn find_source(&mut self, store: StoreId) {
        let is_complete = |it: &Member| it.reports && it.source == CacheSource::Reported;
        let are_complete = self.members.iter().filter(|it| it.store == Some(store)).all(is_complete);
        let source = if are_complete { CacheSource::Reported } else { CacheSource::Predicted };
        if let Some(indexes) = &mut self.indexes {
            indexes.tokens.set_source(store.place(), source);
        }
    }

    fn join(&mut self, store: StoreId) {
        let settings = self.settings;
        let indexes = self.indexes.get_or_insert_with(|| {
            let words = IndexSettings { budget_bytes: settings.budget_bytes / 4, seed: !settings.seed };
            let tokens =
                IndexSettings { budget_bytes: settings.budget_bytes - words.budget_bytes, ..settings };
            let (tokens, words) = (Index::new(tokens), Index::new(words));
            Box::new(StoreIndexes { tokens, words, known: Vec::new() })
        });
        if !indexes.known.contains(&store) {
            indexes.known.push(store);
            for index in [&mut indexes.tokens, &mut indexes.words] {
                index.join(store.place());
                index.set_capacity(store.place(), CAPACITY_BLOCKS);
            }
        }
    }

    fn leave(&mut self, store: StoreId) {
        let Some(indexes) = &mut self.indexes else { return };
        indexes.tokens.leave(store.place());
        indexes.words.leave(store.place());
        indexes.known.retain(|it| *it != store);
        if indexes.known.is_empty() {
            self.indexes = None;
        }
    }

    /// What stores hold of prompts in this unit; none while there are no stores.
    pub(super) fn index(&self, unit: Unit) -> Option<&Index> {
        self.indexes.as_ref().map(|it| match unit {
            Unit::Tokens => &it.tokens,
            Unit::Words => &it.words,
        })
    }

    /// Something was said about a prompt at a worker, whose blocks have that size.
    pub(super) fn apply(
        &mut self,
        (worker, prompt): (WorkerId, &PromptChain),
        chain: Chain<'_>,
        event: &PromptEvent,
        size: u32,
    ) {
        let (Some(store), Some(indexes)) = (self.of(worker), &mut self.indexes) else { return };
        let index = match prompt.unit {
            Unit::Tokens => &mut indexes.tokens,
            Unit::Words => &mut indexes.words,
        };
        match event {
            PromptEvent::Prefilled(now, prediction) => {
                let predicted = index.predict(*now, store.place(), chain);
                index.prefilled(*now, store.place(), chain, predicted);
                prediction.set_in_store(predicted);
            }
            PromptEvent::Counted(prediction, part) => {
                if let Some(predicted) = prediction.in_store() {
                    let found = found_blocks(prompt, size, predicted, *part);
                    index.correct(store.place(), chain, predicted, found);
                }
            }
            PromptEvent::Placed(..) | PromptEvent::Failed(..) | PromptEvent::Adopted => {}
        }
    }
}

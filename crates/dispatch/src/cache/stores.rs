//! Stores that several workers share: host memory behind them, a disk, a cache service. What one of them has computed the
//! others can load.
//!
//! A store is predicted as the cache of a worker without KV events is: what its members compute is in it, and the counts of
//! cached tokens in their answers tell how much it keeps. Unlike a prediction for a worker, one for a store is made when the
//! prompt is computed: until then nobody can load it.

use maitre_base::WorkerId;
use maitre_index::prefix::Unit;
use maitre_index::{Chain, Index, IndexSettings};

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
    of: Vec<Option<StoreId>>,
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
        Stores { settings, indexes: None, of: Vec::new() }
    }

    /// The store that this worker shares.
    pub(super) fn of(&self, worker: WorkerId) -> Option<StoreId> {
        self.of.get(worker.index()).copied().flatten()
    }

    pub(super) fn set(&mut self, worker: WorkerId, store: Option<StoreId>) {
        if self.of(worker) == store {
            return;
        }
        let workers = self.of.len().max(worker.index() + 1);
        self.of.resize(workers, None);
        let before = std::mem::replace(&mut self.of[worker.index()], store);
        if let Some(store) = store {
            self.join(store);
        }
        // A store without members may be another one when it comes back.
        if let Some(left) = before.filter(|it| !self.of.contains(&Some(*it))) {
            self.leave(left);
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

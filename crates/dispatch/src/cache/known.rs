//! What is known of each worker's cache besides its blocks. Threads share the list: it changes only with workers, their
//! trust and their settings, and then it is copied.

use std::sync::Arc;

use maitre_base::{ChunkReuse, Tokens, WorkerId};
use maitre_index::feed::Trust;

use super::index::{Found, WorkerCache};
use super::stores::StoreId;
use super::{CacheQuery, Held, in_tokens};

/// One worker.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) trust: Trust,
    /// How its engine reuses KV at any position; none if it reuses prefixes only.
    pub(super) reuse: Option<ChunkReuse>,
    pub(super) cache: Arc<WorkerCache>,
    /// The store that it shares with others.
    pub(super) store: Option<StoreId>,
}

impl Known {
    pub(super) fn new(cache: Arc<WorkerCache>) -> Known {
        Known { trust: Trust::None, reuse: None, cache, store: None }
    }
}

/// All workers, by their ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerCaches {
    list: Arc<Vec<Known>>,
}

impl WorkerCaches {
    /// Whether this is the same list. Lists that were copied differ.
    pub(crate) fn is(&self, other: &WorkerCaches) -> bool {
        Arc::ptr_eq(&self.list, &other.list)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.list.iter()
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<&Known> {
        self.list.get(worker.index())
    }

    pub(super) fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Known> {
        Arc::make_mut(&mut self.list).get_mut(worker.index())
    }

    pub(super) fn set(&mut self, worker: WorkerId, known: Known) {
        let list = Arc::make_mut(&mut self.list);
        let places = list.len().max(worker.index() + 1);
        list.resize_with(places, || Known::new(Arc::default()));
        list[worker.index()] = known;
    }

    pub(crate) fn trust(&self, worker: WorkerId) -> Trust {
        self.get(worker).map_or(Trust::None, |it| it.trust)
    }

    /// How much it holds in all now: what it reports and what we sent it. A block counts from the moment that a request for it is
    /// sent, so the count does not depend on when the report of it comes.
    pub(crate) fn holds(&self, worker: WorkerId) -> Tokens {
        self.get(worker).map_or(Tokens::ZERO, |it| it.cache.holds())
    }

    /// Fills `held` with what was found at these workers. It must have been found for the same prompt.
    pub(crate) fn show(&self, question: CacheQuery<'_>, found: &Found, held: &mut Vec<Held>) {
        let CacheQuery { prompt, tokens: prompt_tokens, snapshots } = question;
        held.clear();
        held.extend(snapshots.iter().map(|snapshot| {
            let cache = found.cache(snapshot.worker);
            let size = cache.block_in(prompt.unit);
            let held = in_tokens(prompt, prompt_tokens, size, found.of(snapshot.worker, size));
            let held = Held { holds: Some(cache.holds), ..held };
            match self.get(snapshot.worker).and_then(|it| it.reuse) {
                None => held,
                Some(reuse) => {
                    let units = found.reused.of(snapshot.worker);
                    held.with_chunks(prompt, prompt_tokens, (units, reuse))
                }
            }
        }));
    }
}

//! The engine and a store that it shares: it loads the blocks it lacks, and writes those it has prefilled.

use super::Engine;
use crate::kv::{Change, Full, Medium};
use crate::store::{SharedStore, StoreChange};

impl Engine {
    /// Makes the engine a member of a store.
    pub fn join_store(&mut self, store: SharedStore) {
        self.store = Some(store);
    }

    /// How many tokens of a waiting prompt the store has, if it has more than the cache.
    pub(super) fn stored_tokens(&mut self, slot: u32) -> Option<u32> {
        let store = self.store.as_ref()?;
        let sequence = &self.sequences[slot as usize];
        let block_tokens = self.profile.block_tokens as usize;
        // The last token of the prompt is computed in any case.
        let loadable = (sequence.job.prompt_tokens - 1) / block_tokens;
        let missing = sequence.hashes.get(sequence.blocks.len()..loadable)?;
        let found = store.find(missing);
        (found > 0).then(|| ((sequence.blocks.len() + found) * block_tokens) as u32)
    }

    /// Writes the whole blocks of a prompt that has just been prefilled.
    pub(super) fn write_to_store(&mut self, slot: u32) {
        let Some(store) = &self.store else { return };
        let sequence = &self.sequences[slot as usize];
        let block_tokens = self.profile.block_tokens as usize;
        let names = &sequence.hashes[..sequence.job.prompt_tokens / block_tokens];
        let (mut written, pool) = (Vec::new(), &mut self.pool);
        store.write(names, |change| match change {
            StoreChange::Evicted { name } => {
                pool.push_change(|| Change::Removed { hash: name, medium: Medium::Store });
            }
            StoreChange::Written { index } => written.push(index),
        });
        // Each block comes after its parent.
        for index in written.into_iter().rev() {
            let parent = index.checked_sub(1).map(|before| names[before]);
            let tokens = &sequence.tokens[index * block_tokens..(index + 1) * block_tokens];
            let full = Full { hash: names[index], parent, tokens, root: &sequence.job.root };
            self.pool.push_change(|| Change::Stored(full.stored(Medium::Store)));
        }
    }
}

//! What an engine holds and still has to do, for rules with full knowledge and for tests.

use std::collections::BTreeMap;

use maitre_index::prefix::PrefixHash;

use super::sequence::{Sequence, SequenceState};
use super::{Engine, RemainingWork};
use crate::kv::{self, Root};

impl Engine {
    /// All jobs except those whose KV is on its way, running ones first, each group in its order. Looks up every
    /// waiting job, which is too slow for the normal path.
    pub fn remaining(&self) -> impl Iterator<Item = RemainingWork> {
        let hits = |it: &Sequence| it.hashes.iter().take_while(|&&it| self.pool.find(it).is_some()).count();
        self.running.iter().chain(&self.received).chain(&self.waiting).map(move |&slot| {
            let sequence = &self.sequences[slot as usize];
            let is_waiting = sequence.state == SequenceState::Waiting;
            let found = if is_waiting { hits(sequence) * self.profile.block_tokens as usize } else { 0 };
            sequence.rest(found)
        })
    }

    /// Every cached block by its name, with the number of copies.
    pub fn resident(&self) -> BTreeMap<u64, u32> {
        self.pool.resident()
    }

    /// How many leading blocks of these tokens are cached. A job hits at most that many, and never its whole prompt.
    pub fn holds(&self, tokens: &[u32], root: &Root) -> usize {
        let names = kv::names(root, tokens, self.profile.block_tokens as usize);
        names.take_while(|&it| self.pool.find(it).is_some()).count()
    }

    /// The same for blocks whose names are known.
    pub fn holds_named(&self, names: &[PrefixHash]) -> u32 {
        names.iter().take_while(|it| self.pool.find(it.0.max(1)).is_some()).count() as u32
    }
}

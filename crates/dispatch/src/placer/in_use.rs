//! The KV blocks that the prompts of pending requests use at each worker; shared blocks count once.
//!
//! The index knows what a cache holds, in use or not. A promise knows what a request adds, but not whose prefix it
//! shares. Only a count of readers per block says how much memory the pending requests pin together. It costs a look-up
//! per block when a prompt is placed and another when it ends, 6,250 each for 100,000 tokens. So it is kept only while a
//! strategy asks for it.
//!
//! Left out: responses, prompts that are not known block by block, and the tail that fills no block. It is bounded by the
//! pending requests, each of which holds its own chain anyway.

use maitre_base::hash::NumberMap;
use maitre_base::{Tokens, WorkerId};

use crate::cache::PromptChain;

/// What is in use at one worker, and how much of that is a prefix of one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) all: Tokens,
    pub(crate) of_prompt: Tokens,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    requests: u32,
    /// The block size of the first prompt that used it, so that what is removed is what was added.
    units: u32,
}

#[derive(Clone, Debug, Default)]
struct WorkerBlocks {
    blocks: NumberMap<Block>,
    units: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct InUse {
    /// By worker id; grows when a prompt is first placed there.
    workers: Vec<WorkerBlocks>,
}

impl InUse {
    /// Where tokens are not known, a word of four bytes counts as one token.
    pub(crate) fn at(&self, worker: WorkerId, prompt: Option<&PromptChain>) -> Used {
        let Some(worker) = self.workers.get(worker.index()) else { return Used::default() };
        // A request that uses a block uses all before it, so the blocks in use are a prefix of the chain.
        let blocks =
            prompt.map_or(0, |it| it.chain.partition_point(|name| worker.blocks.contains_key(&name.0)));
        let units = prompt.map_or(0, |it| u64::from(it.block));
        Used { all: Tokens(worker.units), of_prompt: Tokens(blocks as u64 * units) }
    }

    /// Whether nothing is in use there.
    pub(crate) fn is_clear(&self, worker: WorkerId) -> bool {
        self.workers.get(worker.index()).is_none_or(|it| it.blocks.is_empty() && it.units == 0)
    }

    pub(crate) fn begin(&mut self, worker: WorkerId, prompt: &PromptChain) {
        if self.workers.len() <= worker.index() {
            self.workers.resize_with(worker.index() + 1, WorkerBlocks::default);
        }
        let worker = &mut self.workers[worker.index()];
        for name in prompt.chain.iter() {
            let block = worker.blocks.entry(name.0).or_insert(Block { requests: 0, units: prompt.block });
            if block.requests == 0 {
                worker.units += u64::from(block.units);
            }
            block.requests += 1;
        }
    }

    /// Ends what `begin` began there, with the same prompt.
    pub(crate) fn end(&mut self, worker: WorkerId, prompt: &PromptChain) {
        let Some(worker) = self.workers.get_mut(worker.index()) else { return };
        for name in prompt.chain.iter() {
            let Some(block) = worker.blocks.get_mut(&name.0) else {
                debug_assert!(false, "ended a prompt that never began");
                continue;
            };
            block.requests -= 1;
            if block.requests == 0 {
                worker.units -= u64::from(block.units);
                worker.blocks.remove(&name.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    const WORKER: WorkerId = WorkerId(3);

    /// A prompt of blocks of 16 tokens with these names.
    fn prompt(names: &[u64]) -> PromptChain {
        let chain = names.iter().map(|&it| PrefixHash(it)).collect();
        PromptChain { unit: Unit::Tokens, units: names.len() as u64 * 16, block: 16, chain, chunks: None }
    }

    #[track_caller]
    fn check(in_use: &InUse, names: &[u64], expected: (u64, u64)) {
        let Used { all, of_prompt } = in_use.at(WORKER, Some(&prompt(names)));
        assert_eq!((all.0, of_prompt.0), expected);
    }

    #[test]
    fn a_shared_block_counts_once_until_its_last_reader_ends() {
        let mut in_use = InUse::default();
        let (one, two) = (prompt(&[1, 2, 3]), prompt(&[1, 2, 4, 5]));
        check(&in_use, &[1, 2], (0, 0));
        in_use.begin(WORKER, &one);
        in_use.begin(WORKER, &two);
        check(&in_use, &[1, 2, 4, 9], (80, 48));
        check(&in_use, &[9], (80, 0));
        in_use.end(WORKER, &one);
        check(&in_use, &[1, 2, 3], (64, 32));
        in_use.end(WORKER, &two);
        check(&in_use, &[1, 2, 3], (0, 0));
        assert!(in_use.workers[WORKER.index()].blocks.is_empty());
    }

    #[test]
    fn workers_are_counted_apart_and_an_unread_prompt_uses_nothing() {
        let mut in_use = InUse::default();
        in_use.begin(WORKER, &prompt(&[1]));
        assert_eq!(in_use.at(WorkerId(0), Some(&prompt(&[1]))), Used::default());
        assert_eq!(in_use.at(WORKER, None), Used { all: Tokens(16), of_prompt: Tokens::ZERO });
    }

    #[test]
    fn a_prompt_with_another_block_size_removes_what_was_added() {
        let mut in_use = InUse::default();
        let (fine, coarse) = (prompt(&[1]), PromptChain { block: 32, ..prompt(&[1]) });
        in_use.begin(WORKER, &fine);
        in_use.begin(WORKER, &coarse);
        in_use.end(WORKER, &fine);
        in_use.end(WORKER, &coarse);
        check(&in_use, &[1], (0, 0));
    }
}

//! Which worker was last sent each prefix, whether or not its cache still has it.
//!
//! The index drops a predicted prompt once the worker's cache should have evicted it. Where that size is wrong or
//! unknown, it drops what the cache still has, and the next turn goes elsewhere. A rule that follows old placements
//! anyway loses nothing by it if its only alternative is a worker without the prefix. sglang-router's is such a rule: it
//! remembers the text that it sent.
//!
//! One worker per prefix is enough: a prefix that several workers have is in use, and the index knows them all. It is
//! kept only while a strategy asks for it. Left out: prefixes shorter than 64 tokens, requests that got no first token,
//! and workers whose KV events are fresh, because the index knows better there.

use maitre_base::WorkerId;
use maitre_base::recent::Recent;

use crate::cache::{BLOCK_WORDS, PromptChain};

/// Prefixes that are remembered: 134 million tokens, the default of sglang-router for eight workers. At least the last
/// half of them stays. Takes up to 71 MB.
const PREFIXES_MAX: usize = 1 << 21;

/// The longest known prefix of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastSent {
    pub(crate) worker: WorkerId,
    /// Its blocks, of the prompt's own size.
    pub(crate) blocks: u32,
}

/// A worker from one loss of its cache to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WorkerLife {
    worker: WorkerId,
    life: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// By prefix hash.
    prefixes: Recent<WorkerLife>,
    /// By worker id: how often it has lost its cache. A refused connection says so every second, so nothing is searched
    /// for then.
    lives: Vec<u32>,
}

impl Default for Sent {
    fn default() -> Sent {
        Sent { prefixes: Recent::new(PREFIXES_MAX), lives: Vec::new() }
    }
}

impl Sent {
    /// Where the longest known prefix of this prompt was sent last; none if that worker has lost its cache since.
    pub(crate) fn find(&self, prompt: &PromptChain) -> Option<LastSent> {
        let step = step(prompt);
        // A prefix is at least as recent as the prompts that continue it, so those that are known come first.
        let steps = prompt.chain.len() / step;
        let (mut known, mut unknown) = (0, steps + 1);
        let mut last = None;
        while known + 1 < unknown {
            let middle = usize::midpoint(known, unknown);
            match self.prefixes.peek(prompt.chain[middle * step - 1].0) {
                Some(it) => (known, last) = (middle, Some(it)),
                None => unknown = middle,
            }
        }
        let WorkerLife { worker, .. } = last.filter(|it| it.life == self.life(it.worker))?;
        Some(LastSent { worker, blocks: (known * step) as u32 })
    }

    pub(crate) fn record(&mut self, worker: WorkerId, prompt: &PromptChain) {
        let (step, sent) = (step(prompt), WorkerLife { worker, life: self.life(worker) });
        // The head last: it must not be forgotten before what follows it.
        for links in prompt.chain.chunks_exact(step).rev() {
            self.prefixes.put(links[step - 1].0, sent);
        }
    }

    /// The worker has lost its cache, or has left and another may get its id.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if self.lives.len() <= worker.index() {
            self.lives.resize(worker.index() + 1, 0);
        }
        self.lives[worker.index()] += 1;
    }

    fn life(&self, worker: WorkerId) -> u32 {
        self.lives.get(worker.index()).copied().unwrap_or(0)
    }
}

/// Links of the chain in each remembered prefix: 64 tokens or words.
fn step(prompt: &PromptChain) -> usize {
    (BLOCK_WORDS / prompt.block.max(1)).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    /// A prompt of blocks with these names.
    fn prompt(block: u32, names: impl IntoIterator<Item = u64>) -> PromptChain {
        let chain: std::sync::Arc<[PrefixHash]> = names.into_iter().map(PrefixHash).collect();
        PromptChain {
            unit: Unit::Tokens,
            units: chain.len() as u64 * u64::from(block),
            block,
            chain,
            chunks: None,
        }
    }

    #[track_caller]
    fn check(sent: &Sent, prompt: &PromptChain, expected: Option<(u32, u32)>) {
        let found = sent.find(prompt).map(|it| (it.worker.0, it.blocks));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_longest_prefix_names_the_worker_that_had_it_last() {
        let mut sent = Sent::default();
        check(&sent, &prompt(64, 0..9), None);
        sent.record(WorkerId(1), &prompt(64, 0..9));
        sent.record(WorkerId(2), &prompt(64, (0..3).chain(20..25)));
        check(&sent, &prompt(64, 0..12), Some((1, 9)));
        check(&sent, &prompt(64, (0..5).chain(30..40)), Some((1, 5)));
        check(&sent, &prompt(64, (0..3).chain(30..40)), Some((2, 3)));
        check(&sent, &prompt(64, (0..3).chain(20..40)), Some((2, 8)));
        check(&sent, &prompt(64, 40..50), None);
        check(&sent, &prompt(64, []), None);
    }

    #[test]
    fn small_blocks_are_remembered_four_at_a_time() {
        let mut sent = Sent::default();
        sent.record(WorkerId(1), &prompt(16, 0..10));
        assert_eq!(sent.prefixes.len(), 2);
        check(&sent, &prompt(16, 0..30), Some((1, 8)));
        check(&sent, &prompt(16, (0..7).chain(40..50)), Some((1, 4)));
        check(&sent, &prompt(16, 0..3), None);
    }

    #[test]
    fn a_lost_cache_is_forgotten_until_the_worker_is_sent_more() {
        let mut sent = Sent::default();
        sent.record(WorkerId(1), &prompt(64, 0..9));
        sent.record(WorkerId(2), &prompt(64, 20..29));
        sent.forget(WorkerId(1));
        check(&sent, &prompt(64, 0..9), None);
        check(&sent, &prompt(64, 20..29), Some((2, 9)));
        sent.record(WorkerId(1), &prompt(64, 0..4));
        check(&sent, &prompt(64, (0..4).chain(40..50)), Some((1, 4)));
    }

    #[test]
    fn a_prompt_in_use_outlives_newer_ones_from_its_head_on() {
        let mut sent = Sent { prefixes: Recent::new(64), ..Sent::default() };
        for other in 1..100 {
            sent.record(WorkerId(0), &prompt(64, 0..9));
            sent.record(WorkerId(1), &prompt(64, other * 100..other * 100 + 20));
            check(&sent, &prompt(64, 0..9), Some((0, 9)));
            assert!(sent.prefixes.len() <= 64);
        }
        for other in 100..103 {
            sent.record(WorkerId(1), &prompt(64, other * 100..other * 100 + 20));
        }
        check(&sent, &prompt(64, 0..9), None);
    }
}

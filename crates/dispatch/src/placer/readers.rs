//! How many requests in flight share a prefix, wherever they are.
//!
//! A copy of a popular prefix serves more requests than the one that pulls it. Each prompt counts at every 1,024th of its
//! tokens or words: 24 map updates for a prefix of 24,000. Kept only where workers fetch KV. It is bounded by the pending
//! requests, each of which holds its own chain anyway.

use maitre_base::RequestId;
use maitre_base::hash::NumberMap;

use crate::cache::PromptChain;

/// Tokens or words from one count to the next. Chosen: prefixes that are worth a pull are longer.
const STEP: u32 = 1_024;

#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixReaders {
    requests: NumberMap<PromptChain>,
    /// Requests by prefix hash.
    counts: NumberMap<u32>,
}

impl PrefixReaders {
    pub(crate) fn begin(&mut self, request: RequestId, prompt: &PromptChain) {
        self.end(request);
        for prefix in prefixes(prompt) {
            *self.counts.entry(prefix).or_insert(0) += 1;
        }
        self.requests.insert(request.0, prompt.clone());
    }

    /// Ends what was begun for this request, if anything was.
    pub(crate) fn end(&mut self, request: RequestId) {
        let Some(prompt) = self.requests.remove(&request.0) else { return };
        for prefix in prefixes(&prompt) {
            let Some(count) = self.counts.get_mut(&prefix) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&prefix);
            }
        }
    }

    /// Requests whose prompts have about so many leading blocks in common with this one.
    pub(crate) fn of(&self, prompt: &PromptChain, blocks: usize) -> u32 {
        let last = prompt.chain.len().min(blocks) / step(prompt) * step(prompt);
        let prefix = last.checked_sub(1).and_then(|it| prompt.chain.get(it));
        prefix.and_then(|it| self.counts.get(&it.0)).copied().unwrap_or(0)
    }
}

fn prefixes(prompt: &PromptChain) -> impl Iterator<Item = u64> {
    prompt.chain.iter().skip(step(prompt) - 1).step_by(step(prompt)).map(|it| it.0)
}

fn step(prompt: &PromptChain) -> usize {
    (STEP / prompt.block.max(1)).max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    /// A prompt of blocks of 512 tokens with these names.
    fn prompt(names: &[u64]) -> PromptChain {
        let chain = names.iter().map(|&it| PrefixHash(it)).collect();
        PromptChain { unit: Unit::Tokens, units: names.len() as u64 * 512, block: 512, chain, chunks: None }
    }

    #[test]
    fn requests_count_for_the_prefix_that_they_share_until_they_end() {
        let mut readers = PrefixReaders::default();
        let asked = prompt(&[1, 2, 3, 4, 5]);
        readers.begin(RequestId(1), &prompt(&[1, 2, 3, 4]));
        readers.begin(RequestId(2), &prompt(&[1, 2, 7, 8]));
        let of = |readers: &PrefixReaders| [1, 2, 3, 4, 5, 99].map(|it| readers.of(&asked, it));
        assert_eq!(of(&readers), [0, 2, 2, 1, 1, 1]);
        readers.begin(RequestId(1), &prompt(&[1, 2, 3, 4]));
        assert_eq!(of(&readers), [0, 2, 2, 1, 1, 1], "placed anew");
        readers.end(RequestId(1));
        readers.end(RequestId(9));
        assert_eq!(of(&readers), [0, 1, 1, 0, 0, 0]);
        readers.end(RequestId(2));
        assert!(readers.counts.is_empty() && readers.requests.is_empty());
    }
}

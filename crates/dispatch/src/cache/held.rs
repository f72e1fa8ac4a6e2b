//! What one worker holds of the prompt at hand: a prefix, and for engines that reuse KV at any position also chunks.

use maitre_base::{ChunkReuse, Tokens};
use maitre_index::prefix::Unit;
use maitre_policy::ReusedChunks;

use super::PromptChain;

/// Fewer reused tokens count as none: LMCache's `blend_min_tokens`. They may be a phrase that many prompts share.
const REUSED_MIN: Tokens = Tokens(256);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// What need not be computed: the prefix, and what chunks save.
    pub(crate) tokens: Tokens,
    /// The tokens after the prefix that are held in slower memory.
    pub(crate) below: Tokens,
    pub(crate) chunks: ReusedChunks,
    /// How much the worker held in all when the prompt was looked up; none if it was not.
    pub(crate) holds: Option<Tokens>,
}

impl Held {
    /// What the engine will report as cached: it counts reused chunks whole.
    pub(crate) fn cached(self) -> Tokens {
        self.prefix() + self.chunks.tokens
    }

    pub(crate) fn prefix(self) -> Tokens {
        self.tokens - self.chunks.saved
    }

    /// No more of the prefix is there.
    pub(crate) fn limit_prefix(&mut self, most: Tokens) {
        self.tokens = self.prefix().min(most) + self.chunks.saved;
    }

    /// The engine reuses so many units of the prompt after the prefix.
    pub(super) fn with_chunks(
        self,
        prompt: &PromptChain,
        prompt_tokens: Tokens,
        (units, reuse): (u64, ChunkReuse),
    ) -> Held {
        let tokens = match prompt.unit {
            Unit::Tokens => units,
            Unit::Words => (units as f64 / prompt.units.max(1) as f64 * prompt_tokens.0 as f64) as u64,
        };
        // The last token is computed in any case.
        let most = prompt_tokens - Tokens(1) - self.tokens - self.below;
        let tokens = Tokens(tokens).min(most);
        if tokens < REUSED_MIN {
            return self;
        }
        let chunks = ReusedChunks { tokens, saved: reuse.saved(tokens) };
        Held { tokens: self.tokens + chunks.saved, chunks, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prefix of so many tokens, chunks of so many units, and what counts as held and as cached.
    #[track_caller]
    fn check(unit: Unit, (prefix, units): (u64, u64), expected: (u64, u64)) {
        let prompt = PromptChain { unit, units: 2_000, block: 16, chain: [].into(), chunks: None };
        let reuse = "0.25".parse().unwrap();
        let held = Held { tokens: Tokens(prefix), ..Held::default() };
        let held = held.with_chunks(&prompt, Tokens(1_000), (units, reuse));
        assert_eq!((held.tokens.0, held.cached().0), expected);
        assert_eq!(held.prefix().0, prefix);
    }

    #[test]
    fn chunks_count_at_the_engines_discount() {
        check(Unit::Tokens, (100, 400), (400, 500));
        check(Unit::Tokens, (0, 255), (0, 0));
        // Never the whole prompt.
        check(Unit::Tokens, (199, 5_000), (799, 999));
        check(Unit::Tokens, (999, 400), (999, 999));
        // A word is half a token here.
        check(Unit::Words, (100, 800), (400, 500));
    }

    #[test]
    fn a_shorter_prefix_leaves_the_chunks() {
        let chunks = ReusedChunks { tokens: Tokens(400), saved: Tokens(300) };
        let mut held = Held { tokens: Tokens(500), chunks, ..Held::default() };
        held.limit_prefix(Tokens(50));
        assert_eq!((held.tokens, held.cached()), (Tokens(350), Tokens(450)));
        held.limit_prefix(Tokens(100));
        assert_eq!(held.tokens, Tokens(350));
    }
}

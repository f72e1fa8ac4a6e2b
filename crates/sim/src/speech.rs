//! Answers as a function of the preceding token ids, as greedy decoding gives them.
//!
//! If a prompt ends with the beginning of an engine's own answer, the engine answers with the rest of it. A router
//! that continues a broken stream on another engine relies on that. One id too many, too few or out of place gives
//! other text.

use std::ops::RangeInclusive;

use maitre_base::hash;

use crate::text::{TOKEN_BYTES, answer_piece};

/// Answer lengths without a limit. Chosen: a line to a page.
const NATURAL_TOKENS: RangeInclusive<u64> = 16..=256;

/// From token to token of an answer. Odd, and far from every seed of another answer.
const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// An answer. The prompt may contain its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speech {
    /// The seed of its first token.
    seed: u64,
    /// How many of its tokens are in the prompt.
    said: u32,
}

impl Speech {
    /// An answer from its beginning.
    pub(crate) const fn new(seed: u64) -> Speech {
        Speech { seed, said: 0 }
    }

    /// The answer after these tokens: the rest of one that they end with, or a new one.
    pub(crate) fn after(model: &str, tokens: &[u32]) -> Speech {
        let from = tokens.len() - tokens.iter().rev().take_while(|&&it| is_piece(it)).count();
        let mut seed = seed(model, &tokens[..from]);
        // The longest answer wins: a run that it is part of has begun with it, too.
        for start in from..tokens.len() {
            let said = &tokens[start..];
            if said.iter().zip(0..).all(|(&it, index)| it == token(seed, index)) {
                return Speech { seed, said: said.len() as u32 };
            }
            seed = next(seed, tokens[start]);
        }
        Speech::new(seed)
    }

    /// How many tokens follow, unless a limit comes first.
    pub(crate) fn tokens_left(&self, at_least: u64) -> u64 {
        let span = NATURAL_TOKENS.end() - NATURAL_TOKENS.start() + 1;
        let natural = NATURAL_TOKENS.start() + self.seed % span;
        natural.saturating_sub(u64::from(self.said)).max(at_least).max(1)
    }

    /// The seed of the tokens that follow: `token` of it and their number.
    pub(crate) fn seed_now(&self) -> u64 {
        at(self.seed, self.said)
    }

    pub(crate) fn piece(&self, index: u32) -> [u8; TOKEN_BYTES] {
        piece(self.seed_now(), index)
    }

    pub(crate) fn text(&self, tokens: u32) -> String {
        (0..tokens).flat_map(|index| self.piece(index)).map(char::from).collect()
    }

    /// Another answer of the same length.
    pub(crate) fn with_seed(&self, seed: u64) -> Speech {
        Speech { seed, said: self.said }
    }
}

/// The token of this number in an answer.
pub(crate) fn token(seed: u64, index: u32) -> u32 {
    u32::from_le_bytes(piece(seed, index))
}

fn piece(seed: u64, index: u32) -> [u8; TOKEN_BYTES] {
    answer_piece(at(seed, index), 0)
}

/// Makes the rest of an answer an answer of its own.
fn at(seed: u64, index: u32) -> u64 {
    seed.wrapping_add(STRIDE.wrapping_mul(u64::from(index)))
}

fn seed(model: &str, tokens: &[u32]) -> u64 {
    tokens.iter().fold(hash::bytes(0, model.as_bytes()), |seed, &it| next(seed, it))
}

fn next(seed: u64, token: u32) -> u64 {
    hash::pair(seed, u64::from(token))
}

/// Whether a token could be part of an answer.
fn is_piece(token: u32) -> bool {
    let is_vowel = |it: u8| b"aeio".contains(&it);
    let is_consonant = |it: u8| it.is_ascii_lowercase() && !is_vowel(it);
    let [first, second, third, last] = token.to_le_bytes();
    is_consonant(first) && is_vowel(second) && is_consonant(third) && (is_vowel(last) || last == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn answer(model: &str, prompt: &[u32], tokens: u32) -> Vec<u32> {
        let seed = Speech::after(model, prompt).seed_now();
        (0..tokens).map(|index| token(seed, index)).collect()
    }

    proptest! {
        #[test]
        fn an_answer_goes_on_wherever_it_is_cut(
            prompt in prop::collection::vec(any::<u32>(), 0..8),
            text in "[a-z ]{0,12}",
            tokens in 1u32..40,
            cut in any::<prop::sample::Index>(),
        ) {
            let text = text.as_bytes().as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it));
            let prompt: Vec<u32> = prompt.into_iter().chain(text).collect();
            let whole = answer("m", &prompt, tokens);
            let (said, rest) = whole.split_at(cut.index(tokens as usize));
            let continued = [&prompt[..], said].concat();
            prop_assert_eq!(answer("m", &continued, rest.len() as u32), rest);
            let natural = |prompt: &[u32]| Speech::after("m", prompt).tokens_left(0);
            if natural(&prompt) > said.len() as u64 {
                prop_assert_eq!(natural(&continued) + said.len() as u64, natural(&prompt));
            }
        }
    }

    #[test]
    fn a_wrong_id_changes_the_rest() {
        let prompt = [1, 2, 3];
        let whole = answer("m", &prompt, 12);
        let after = |said: &[u32]| answer("m", &[&prompt[..], said].concat(), 12 - said.len() as u32);
        assert_eq!(after(&whole[..6]), whole[6..]);
        let mut twice = whole[..6].to_vec();
        twice.push(whole[5]);
        for wrong in [&twice, &whole[1..6].to_vec(), &whole[..5].iter().rev().copied().collect()] {
            assert!(!whole.windows(3).any(|it| after(wrong).starts_with(it)), "{wrong:?}");
        }
        assert_ne!(answer("other", &[&prompt[..], &whole[..6]].concat(), 6), whole[6..]);
    }
}

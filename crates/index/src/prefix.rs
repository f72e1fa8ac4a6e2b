//! Prefix hashes: one number that identifies a run of tokens and everything before it.
//!
//! The hash takes two tokens per step, so the hash of a prefix does not depend on how it is cut into blocks of even
//! length. An engine with blocks of 128 and one with pages of 1 give the same prefix the same hash, and a prompt is
//! hashed once for all of them. It takes two because each step waits for the previous one: with one token per step
//! hashing was a third of the cost of a stored block. A block of odd length ends with a step for a single token, so
//! its hashes differ. The chain starts at a root, which separates caches with equal tokens: model, adapter, salt, and
//! whether the units are tokens at all.
//!
//! Engines name their blocks by hashes of their own, which depend on seeds and versions we cannot know. Those
//! names are opaque here: the index hashes stored blocks again from their tokens.

use maitre_base::hash;

/// Identifies a prefix. Every router computes the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixHash(pub u64);

/// Bytes of text in a block, if a prompt is read as words.
pub const TEXT_BLOCK_BYTES: usize = 256;

/// What distinguishes the lanes of `then_text`.
const LANES: [u64; 4] = [0, 0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];

/// Where a chain begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root(u64);

/// What a prompt is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Token ids, as the engine sees them.
    Tokens,
    /// Four-byte words of the prompt's text, if the tokens are unknown.
    Words,
}

impl Root {
    pub fn new(unit: Unit, model: &str, adapter: Option<&str>, salt: Option<&str>) -> Root {
        let mut hasher = hash::Hasher::new(match unit {
            Unit::Tokens => 1,
            Unit::Words => 3,
        });
        // A missing adapter differs from an empty name, and the lengths keep adjacent names apart.
        for name in [Some(model), adapter, salt] {
            hasher.write(&name.map_or(u64::MAX, |it| it.len() as u64).to_le_bytes());
            hasher.write(name.unwrap_or_default().as_bytes());
        }
        Root(hasher.finish())
    }

    /// The empty prefix.
    pub fn start(self) -> PrefixHash {
        PrefixHash(self.0)
    }
}

impl PrefixHash {
    #[inline]
    fn then_word(self, word: u64) -> PrefixHash {
        Steps::from(self).then(word).end()
    }

    /// The prefix one token longer; differs from the prefix with any pair.
    #[inline]
    fn then_lone(self, token: u32) -> PrefixHash {
        self.with(u64::from(token) | 1 << 32)
    }

    /// The prefix one block longer.
    #[inline]
    pub fn then_all(self, tokens: &[u32]) -> PrefixHash {
        let (pairs, lone) = tokens.as_chunks::<2>();
        let prefix = pairs.iter().fold(Steps::from(self), |steps, &pair| steps.then(word_of(pair))).end();
        lone.iter().fold(prefix, |prefix, &token| prefix.then_lone(token))
    }

    /// The prefix one block of text longer. It takes sixteen bytes per step in four lanes side by side, because each
    /// step of a lane waits for the step before it.
    #[inline]
    pub fn then_text(self, block: &[u8; TEXT_BLOCK_BYTES]) -> PrefixHash {
        let mut lanes = LANES.map(|it| PrefixHash(self.0.wrapping_add(it)));
        let (words, _) = block.as_chunks::<8>();
        for row in words.as_chunks::<8>().0 {
            let word = |at: usize| u64::from_le_bytes(row[at]);
            lanes[0] = lanes[0].then_two_words(word(0), word(1));
            lanes[1] = lanes[1].then_two_words(word(2), word(3));
            lanes[2] = lanes[2].then_two_words(word(4), word(5));
            lanes[3] = lanes[3].then_two_words(word(6), word(7));
        }
        lanes.into_iter().fold(self, |prefix, lane| prefix.then_word(lane.0))
    }

    #[inline]
    fn then_two_words(self, first: u64, second: u64) -> PrefixHash {
        // The constant has bytes that no text has, so that no text makes a factor zero.
        let product = u128::from(self.0 ^ first) * u128::from(second ^ 0x9FB2_FF65_1EFF_DF25);
        PrefixHash(((product as u64) ^ ((product >> 64) as u64)).rotate_left(23) ^ first)
    }

    /// The same prefix with content that its tokens do not show, such as an image.
    pub fn with(self, extra: u64) -> PrefixHash {
        PrefixHash(hash::pair(self.0, extra))
    }
}

/// A prefix that grows word by word. Each word takes a folded multiply and enters twice, so that no state, zero
/// included, cancels it. It enters the second time together with the next word: each step waits for the step before
/// it, and this removes one operation from that wait.
#[derive(Clone, Copy)]
struct Steps {
    state: u64,
    last: u64,
}

impl From<PrefixHash> for Steps {
    #[inline]
    fn from(prefix: PrefixHash) -> Steps {
        Steps { state: prefix.0, last: 0 }
    }
}

impl Steps {
    #[inline]
    fn then(self, word: u64) -> Steps {
        let product = u128::from(self.state ^ (self.last ^ word)) * 0x9FB2_1C65_1E98_DF25;
        Steps { state: ((product as u64) ^ ((product >> 64) as u64)).rotate_left(23), last: word }
    }

    #[inline]
    fn end(self) -> PrefixHash {
        PrefixHash(self.state ^ self.last)
    }
}

#[inline]
fn word_of([first, second]: [u32; 2]) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// A prefix that grows token by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    prefix: PrefixHash,
    /// The first half of a pair.
    pending: Option<u32>,
}

impl From<PrefixHash> for Running {
    #[inline]
    fn from(prefix: PrefixHash) -> Running {
        Running { prefix, pending: None }
    }
}

impl Running {
    #[inline]
    pub fn push(&mut self, token: u32) {
        match self.pending.take() {
            None => self.pending = Some(token),
            Some(first) => self.prefix = self.prefix.then_word(word_of([first, token])),
        }
    }

    /// The prefix after the last tokens of a block.
    #[inline]
    pub(crate) fn end(mut self, mut tokens: &[u32]) -> PrefixHash {
        if let (Some(_), [second, rest @ ..]) = (self.pending, tokens) {
            self.push(*second);
            tokens = rest;
        }
        match self.pending {
            None => self.prefix.then_all(tokens),
            Some(_) => self.prefix(),
        }
    }

    /// Equals `then_all` of everything pushed since this value began. To continue after an odd number of
    /// tokens as from the end of a block, start again with this prefix.
    #[inline]
    pub fn prefix(self) -> PrefixHash {
        match self.pending {
            None => self.prefix,
            Some(token) => self.prefix.then_lone(token),
        }
    }
}

/// Fills `chain` with the prefix at the end of each full block; tokens after the last full block are left
/// out.
pub fn chain(root: Root, tokens: &[u32], block_tokens: usize, chain: &mut Vec<PrefixHash>) {
    let blocks = tokens.chunks_exact(block_tokens.max(1));
    chain.clear();
    chain.reserve(blocks.len());
    let mut prefix = root.start();
    for block in blocks {
        prefix = prefix.then_all(block);
        chain.push(prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    fn root() -> Root {
        Root::new(Unit::Tokens, "m", None, None)
    }

    #[test]
    fn roots_differ_in_every_part() {
        let roots = [
            root(),
            Root::new(Unit::Words, "m", None, None),
            Root::new(Unit::Tokens, "n", None, None),
            Root::new(Unit::Tokens, "m", Some(""), None),
            Root::new(Unit::Tokens, "m", None, Some("")),
            Root::new(Unit::Tokens, "m", Some("a"), None),
            Root::new(Unit::Tokens, "m", None, Some("a")),
            Root::new(Unit::Tokens, "", Some("m"), None),
        ];
        let distinct: std::collections::BTreeSet<Root> = roots.into_iter().collect();
        assert_eq!(distinct.len(), roots.len());
    }

    #[test]
    fn the_hash_function_never_changes() {
        // Routers of different versions must agree: this value is a contract.
        assert_eq!(root().start().then_all(&[1, 2, 3]), PrefixHash(14_423_388_840_887_481_033));
        assert_eq!(root().start().then_text(&[7; TEXT_BLOCK_BYTES]), PrefixHash(13_755_781_847_836_565_236));
    }

    #[test]
    fn tokens_after_the_last_full_block_are_left_out() {
        let mut blocks = Vec::new();
        for length in 0..40 {
            chain(root(), &vec![7; length], 16, &mut blocks);
            assert_eq!(blocks.len(), length / 16, "{length} tokens");
        }
    }

    proptest! {
        #[test]
        fn small_blocks_contain_the_hashes_of_large_ones(tokens in prop::collection::vec(0u32..200_000, 0..300)) {
            let (mut small, mut large) = (Vec::new(), Vec::new());
            chain(root(), &tokens, 4, &mut small);
            chain(root(), &tokens, 12, &mut large);
            let every_third: Vec<PrefixHash> = small.iter().skip(2).step_by(3).copied().collect();
            prop_assert_eq!(large, every_third);
        }

        #[test]
        fn pushing_tokens_one_by_one_gives_the_same_hash(tokens in prop::collection::vec(0u32..200_000, 0..40)) {
            let mut running = Running::from(root().start());
            for (at, &token) in tokens.iter().enumerate() {
                running.push(token);
                prop_assert_eq!(running.prefix(), root().start().then_all(&tokens[..=at]));
            }
        }
    }

    #[test]
    fn every_byte_of_a_text_matters() {
        let mut seen = std::collections::HashSet::new();
        assert!(seen.insert(root().start().then_text(&[0; TEXT_BLOCK_BYTES])));
        for place in 0..TEXT_BLOCK_BYTES {
            for byte in [1, 0x80, 0xFF] {
                let mut text = [0; TEXT_BLOCK_BYTES];
                text[place] = byte;
                assert!(seen.insert(root().start().then_text(&text)), "{byte} at {place}");
            }
        }
        // Two lanes with each other's words.
        let mut swapped = [0; TEXT_BLOCK_BYTES];
        (swapped[0], swapped[8]) = (1, 2);
        let one = root().start().then_text(&swapped);
        (swapped[0], swapped[8]) = (2, 1);
        assert_ne!(one, root().start().then_text(&swapped));
    }

    #[test]
    fn neighbours_do_not_collide() {
        let mut seen = std::collections::HashSet::new();
        for first in 0..300 {
            for second in 0..300 {
                assert!(seen.insert(root().start().then_all(&[first, second])), "{first}, {second}");
            }
            assert!(seen.insert(root().start().then_all(&[first])), "{first}");
        }
        assert!(seen.insert(root().start().with(0)));
    }
}

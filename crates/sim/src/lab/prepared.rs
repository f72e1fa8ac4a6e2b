//! The requests of a run, with everything precomputed that all strategies share.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::hash;
use maitre_dispatch::PromptChain;
use maitre_index::chunks;
use maitre_index::prefix::{self, PrefixHash, Root, Unit};

use crate::profile::Profile;
use crate::sessions::closed_loop::SessionPlans;
use crate::sessions::{SessionTrace, alone};
use crate::trace::{Request, Trace};

/// The model of all requests.
pub(super) const MODEL: &str = "maitre-sim";

/// Tokens that identify a prompt's head: a kilobyte of text, as in the router.
const HEAD_TOKENS: usize = 256;

/// Maximum block of a replay: coarse enough to be fast, fine enough for prompts that matter.
const BLOCK_TOKENS_MAX: u32 = 128;
/// vLLM's.
const BLOCK_TOKENS_MIN: u32 = 16;

/// Requests in order of arrival, cut into blocks.
#[derive(Debug)]
pub struct PreparedTrace<'a> {
    pub(super) requests: &'a [Request],
    pub(super) block_tokens: u32,
    /// The prefix hash at the end of each full block, one list per request.
    pub(super) chains: Vec<Arc<[PrefixHash]>>,
    pub(super) heads: Vec<u64>,
    /// When requests come, if they belong to sessions.
    pub(super) sessions: Option<SessionPlans<'a>>,
    /// For each session, how long it takes in an empty fleet.
    pub(super) alone: Vec<Duration>,
}

impl<'a> PreparedTrace<'a> {
    pub fn new(trace: &'a Trace, block_tokens: u32) -> PreparedTrace<'a> {
        let block_tokens = block_tokens.max(1);
        let (mut tokens, mut chain) = (Vec::new(), Vec::new());
        let (mut chains, mut heads) = (Vec::new(), Vec::new());
        // A conversation's prompt begins like the previous one: only the rest is hashed.
        let (mut last_tokens, size) = (Vec::new(), block_tokens as usize);
        for request in &trace.requests {
            write_tokens(request, &mut tokens);
            let same = tokens.iter().zip(&last_tokens).take_while(|it| it.0 == it.1).count();
            chain.truncate(same / size);
            let mut hash = chain.last().copied().unwrap_or_else(|| root().start());
            for block in tokens[chain.len() * size..].chunks_exact(size) {
                hash = hash.then_all(block);
                chain.push(hash);
            }
            chains.push(chain.as_slice().into());
            let head = &tokens[..tokens.len().min(HEAD_TOKENS)];
            heads.push(PrefixHash(0).then_all(head).0);
            std::mem::swap(&mut tokens, &mut last_tokens);
        }
        PreparedTrace {
            requests: &trace.requests,
            block_tokens,
            chains,
            heads,
            sessions: None,
            alone: Vec::new(),
        }
    }

    /// The calls of sessions. How long each would take alone is computed for this engine.
    pub fn of_sessions(trace: &'a SessionTrace, block_tokens: u32, engine: &Profile) -> PreparedTrace<'a> {
        let prepared = PreparedTrace::new(&trace.trace, block_tokens);
        let alone = alone::durations(trace, &prepared.chains, &Profile { block_tokens, ..*engine });
        let sessions = Some(SessionPlans { calls: &trace.calls, sessions: &trace.sessions });
        PreparedTrace { sessions, alone, ..prepared }
    }

    /// For each session, how long it takes in an empty fleet.
    pub fn alone(&self) -> &[Duration] {
        &self.alone
    }

    /// The same prompts at the times of another trace.
    pub fn at_times_of<'b>(&self, trace: &'b Trace) -> PreparedTrace<'b> {
        debug_assert_eq!(trace.requests.len(), self.requests.len(), "the same requests");
        let (chains, heads) = (self.chains.clone(), self.heads.clone());
        let block_tokens = self.block_tokens;
        PreparedTrace {
            requests: &trace.requests,
            block_tokens,
            chains,
            heads,
            sessions: None,
            alone: Vec::new(),
        }
    }

    /// A prompt as the router names it.
    pub(super) fn prompt(&self, number: usize, has_chunks: bool) -> PromptChain {
        let chunks = has_chunks.then(|| {
            let mut tokens = Vec::new();
            write_tokens(&self.requests[number], &mut tokens);
            chunks::cut(root(), &tokens).into()
        });
        PromptChain {
            unit: Unit::Tokens,
            units: self.requests[number].prompt_tokens(),
            block: self.block_tokens,
            chain: self.chains[number].clone(),
            chunks,
        }
    }

    /// Where the texts of a prompt end: engines that reuse them receive them with separators.
    pub(super) fn segment_ends(&self, number: usize) -> Vec<u32> {
        let ends = self.requests[number].prompt.iter().scan(0, |end, it| {
            *end += it.tokens;
            Some(*end)
        });
        ends.collect()
    }

    pub fn requests(&self) -> &'a [Request] {
        self.requests
    }

    /// For each request, the leading tokens that one unlimited cache would hold.
    pub(super) fn ideal_tokens(&self) -> Vec<u32> {
        let mut known: HashSet<PrefixHash> = HashSet::new();
        let (mut tokens, mut chain) = (Vec::new(), Vec::new());
        let mut given = Vec::with_capacity(self.requests.len());
        for (request, names) in self.requests.iter().zip(&self.chains) {
            let held = names.iter().take_while(|it| known.contains(it)).count();
            given.push(held as u32 * self.block_tokens);
            write_tokens(request, &mut tokens);
            tokens.extend((0..request.answer_tokens).map(|index| token(request.answer, index)));
            prefix::chain(root(), &tokens, self.block_tokens as usize, &mut chain);
            known.extend(&chain);
        }
        given
    }
}

/// The block size for replaying a trace: as coarse as its texts allow.
pub fn block_tokens(trace: &Trace) -> u32 {
    let inner = trace.requests.iter().flat_map(|it| it.prompt.split_last().map_or(&[][..], |it| it.1));
    let lengths = inner.fold(BLOCK_TOKENS_MAX, |all, it| all | it.tokens);
    (1 << lengths.trailing_zeros()).clamp(BLOCK_TOKENS_MIN, BLOCK_TOKENS_MAX)
}

/// The root of all chains.
pub(super) fn root() -> Root {
    Root::new(Unit::Tokens, MODEL, None, None)
}

/// Token `index` of a text, for prompts and answers. Consecutive numbers work as well as syllables and are ten times
/// as fast to write. Two texts that coincide somewhere still differ in their prefix.
pub(super) fn token(text: u64, index: u32) -> u32 {
    (hash::mix(text) as u32).wrapping_add(index)
}

pub(super) fn write_tokens(request: &Request, tokens: &mut Vec<u32>) {
    tokens.clear();
    for piece in &request.prompt {
        let first = token(piece.text, 0);
        tokens.extend((0..piece.tokens).map(|index| first.wrapping_add(index)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(text: &str) -> Trace {
        Trace::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn blocks_are_as_coarse_as_the_texts() {
        let rows = |length: u32| {
            trace(&format!(r#"{{"timestamp":0,"output_length":1,"prompt":[[1,{length}],[2,7]]}}"#))
        };
        for (length, expected) in [(512, 128), (64, 64), (6_000, 16), (96, 32), (7, 16)] {
            assert_eq!(block_tokens(&rows(length)), expected, "{length}");
        }
    }

    #[test]
    fn a_cache_without_limits_holds_prompts_and_answers() {
        let trace = trace(concat!(
            r#"{"timestamp":0,"output_length":32,"prompt":[[1,64]],"answer":9}"#,
            "\n",
            r#"{"timestamp":1,"output_length":1,"prompt":[[1,64],[9,32],[3,20]],"answer":10}"#,
            "\n",
            r#"{"timestamp":2,"output_length":1,"prompt":[[1,40],[4,64]]}"#,
        ));
        assert_eq!(PreparedTrace::new(&trace, 16).ideal_tokens(), [0, 96, 32]);
    }
}

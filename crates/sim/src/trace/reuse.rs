//! The hit ratio of one unlimited cache: an upper bound for every strategy.

use maitre_base::hash::{self, NumberMap};

use super::{Piece, Request, Trace};

impl Trace {
    /// The share of prompt tokens that an engine would find in its cache if it served all requests one after another
    /// and evicted nothing. Counted in tokens, while real caches keep whole blocks.
    pub fn reuse(&self) -> f64 {
        let mut seen = PrefixTree::default();
        let (mut found, mut all) = (0, 0);
        for request in &self.requests {
            found += seen.visit(request);
            all += request.prompt_tokens();
        }
        found as f64 / all.max(1) as f64
    }
}

/// All prompts and answers so far, as a prefix tree.
#[derive(Default)]
struct PrefixTree {
    /// By prefix and text: how many tokens of the text occurred there.
    tokens: NumberMap<u32>,
}

impl PrefixTree {
    /// Adds a request. Returns how many tokens of its prompt were known.
    fn visit(&mut self, request: &Request) -> u64 {
        let (mut found, mut before) = (0, 0);
        for piece in &request.prompt {
            found += u64::from(self.add(before, *piece));
            before = after(before, *piece);
        }
        self.add(before, Piece { text: request.answer, tokens: request.answer_tokens });
        found
    }

    fn add(&mut self, before: u64, piece: Piece) -> u32 {
        let longest = self.tokens.entry(hash::pair(before, piece.text)).or_default();
        let found = piece.tokens.min(*longest);
        *longest = piece.tokens.max(*longest);
        found
    }
}

/// Identifies a prefix. Another length of the last text makes another prefix.
fn after(before: u64, piece: Piece) -> u64 {
    hash::pair(hash::pair(before, piece.text), u64::from(piece.tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each prompt is a list of `(text, tokens)`, and its answer is ten tokens of the text after it.
    #[track_caller]
    fn check(prompts: &[(&[(u64, u32)], u64)], expected: f64) {
        let lines = prompts.iter().enumerate().map(|(at, (prompt, answer))| {
            format!(r#"{{"timestamp":{at},"output_length":10,"prompt":{prompt:?},"answer":{answer}}}"#)
        });
        let text = lines.collect::<Vec<_>>().join("\n").replace('(', "[").replace(')', "]");
        let actual = Trace::read(text.as_bytes()).unwrap().reuse();
        assert!((actual - expected).abs() < 1e-9, "{prompts:?}: {actual}, expected {expected}");
    }

    #[test]
    fn beginnings_are_found_and_nothing_else() {
        check(&[(&[(1, 100)], 90)], 0.0);
        check(&[(&[(1, 100)], 90), (&[(1, 100)], 91)], 0.5);
        check(&[(&[(1, 50), (2, 50)], 90), (&[(2, 50), (1, 50)], 91)], 0.0);
        check(&[(&[(1, 50), (2, 50)], 90), (&[(1, 50), (3, 50)], 91)], 0.25);
    }

    #[test]
    fn a_text_is_found_as_far_as_it_was_seen() {
        check(&[(&[(1, 40)], 90), (&[(1, 60)], 91)], 0.4);
        check(&[(&[(1, 60)], 90), (&[(1, 40)], 91)], 0.4);
        check(&[(&[(1, 60), (2, 20)], 90), (&[(1, 40), (2, 20)], 91)], 40.0 / 140.0);
    }

    #[test]
    fn an_answer_is_found_by_the_next_turn() {
        check(&[(&[(1, 30)], 2), (&[(1, 30), (2, 10), (3, 30)], 4)], 0.4);
    }

    #[test]
    fn the_conversation_trace_has_the_reuse_it_is_known_for() {
        let packed = include_bytes!("../../../../traces/conversation.jsonl.gz");
        let mut trace = Trace::read(&packed[..]).unwrap();
        let by_tokens = trace.reuse();
        for piece in trace.requests.iter_mut().flat_map(|it| &mut it.prompt) {
            piece.tokens = 1;
        }
        let by_blocks = trace.reuse();
        assert!((by_blocks - 0.366).abs() < 0.001, "{by_blocks}");
        assert!((by_tokens - by_blocks).abs() < 0.02, "{by_tokens}, {by_blocks} by blocks");
    }
}

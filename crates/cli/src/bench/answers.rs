//! Keeps answers for the prompts that continue from them.
//!
//! A trace names an answer without its text. The next turn must contain the endpoint's own text, or its cache
//! holds a conversation that no client continues. An answer is kept only while a later prompt needs it, and
//! within a byte budget.

use std::collections::{HashMap, HashSet};

use maitre_sim::trace::{Piece, Request};

/// Maximum bytes of all texts. Chosen: a hundred thousand answers of five hundred tokens.
const BYTES_MAX: usize = 256 << 20;

#[derive(Debug)]
pub(super) struct Answers {
    named: HashMap<u64, Named>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Named {
    /// How many pieces of unsent prompts refer to it.
    uses: u32,
    arrived: Option<Arrived>,
}

#[derive(Debug)]
struct Arrived {
    text: Box<str>,
    /// Its length in the trace.
    tokens: u32,
}

/// Where the text of a prompt's piece comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Not an answer: the trace's own text.
    Trace,
    Answer(String),
    /// An answer that has not arrived, failed, or was too large to keep.
    Missing,
}

impl Answers {
    pub(super) fn of(requests: &[Request]) -> Answers {
        Answers::within(requests, BYTES_MAX)
    }

    fn within(requests: &[Request], bytes_max: usize) -> Answers {
        let mut answers = HashSet::new();
        let mut named: HashMap<u64, Named> = HashMap::new();
        for request in requests {
            for piece in request.prompt.iter().filter(|it| answers.contains(&it.text)) {
                named.entry(piece.text).or_default().uses += 1;
            }
            answers.insert(request.answer);
        }
        Answers { named, bytes: 0, bytes_max }
    }

    /// Whether a prompt that refers to this answer is still to come.
    pub(super) fn wants(&self, answer: u64) -> bool {
        self.named.contains_key(&answer)
    }

    /// Keeps an answer that is still needed, if there is room.
    pub(super) fn keep(&mut self, answer: u64, text: String, tokens: u32) {
        let Some(named) = self.named.get_mut(&answer) else { return };
        let before = named.arrived.as_ref().map_or(0, |it| it.text.len());
        let bytes = self.bytes - before + text.len();
        if bytes <= self.bytes_max {
            self.bytes = bytes;
            named.arrived = Some(Arrived { text: text.into(), tokens });
        }
    }

    /// The text of a piece that is sent now, in the order of the trace.
    pub(super) fn take(&mut self, piece: Piece) -> Source {
        let Some(named) = self.named.get_mut(&piece.text) else { return Source::Trace };
        let source = match &named.arrived {
            Some(arrived) => Source::Answer(arrived.beginning(piece.tokens).to_owned()),
            None => Source::Missing,
        };
        named.uses -= 1;
        if named.uses == 0
            && let Some(gone) = self.named.remove(&piece.text)
        {
            self.bytes -= gone.arrived.map_or(0, |it| it.text.len());
        }
        source
    }
}

impl Arrived {
    /// The same fraction of the text as `tokens` is of the whole. For the simulated tokenizer that is exactly
    /// this many tokens; for others, about.
    fn beginning(&self, tokens: u32) -> &str {
        if tokens >= self.tokens {
            return &self.text;
        }
        let bytes = self.text.len() as u64 * u64::from(tokens) / u64::from(self.tokens);
        &self.text[..self.text.floor_char_boundary(bytes as usize)]
    }
}

#[cfg(test)]
mod tests {
    use maitre_base::Instant;

    use super::*;

    /// Each request has an answer and a prompt made of these texts, ten tokens each.
    fn requests(rows: &[(u64, &[u64])]) -> Vec<Request> {
        let request = |&(answer, texts): &(u64, &[u64])| Request {
            at: Instant::ZERO,
            prompt: texts.iter().map(|&text| Piece { text, tokens: 10 }).collect(),
            answer_tokens: 10,
            answer,
            ..Request::default()
        };
        rows.iter().map(request).collect()
    }

    fn piece(text: u64) -> Piece {
        Piece { text, tokens: 10 }
    }

    #[test]
    fn an_answer_is_kept_until_the_last_prompt_that_needs_it() {
        let mut answers = Answers::of(&requests(&[(7, &[1]), (8, &[1, 7]), (9, &[1, 7, 2])]));
        assert!(answers.wants(7) && !answers.wants(8) && !answers.wants(1));
        assert_eq!(answers.take(piece(1)), Source::Trace);
        assert_eq!(answers.take(piece(7)), Source::Missing, "it has not arrived");
        answers.keep(7, "words".to_owned(), 10);
        answers.keep(8, "unused".to_owned(), 10);
        assert_eq!(answers.bytes, 5);
        assert_eq!(answers.take(piece(7)), Source::Answer("words".to_owned()));
        assert_eq!((answers.bytes, answers.wants(7)), (0, false));
    }

    #[test]
    fn a_prompt_before_the_answer_does_not_continue_from_it() {
        assert!(!Answers::of(&requests(&[(8, &[7]), (7, &[1])])).wants(7));
    }

    #[test]
    fn beyond_the_budget_nothing_is_kept() {
        let rows = requests(&[(7, &[1]), (8, &[1]), (9, &[7, 8])]);
        let mut answers = Answers::within(&rows, 8);
        answers.keep(7, "12345678".to_owned(), 10);
        answers.keep(8, "1".to_owned(), 10);
        // The same answer again replaces the first.
        answers.keep(7, "1234567".to_owned(), 10);
        assert_eq!(answers.take(piece(7)), Source::Answer("1234567".to_owned()));
        assert_eq!(answers.take(piece(8)), Source::Missing);
    }

    #[test]
    fn a_partial_answer_is_cut_between_characters() {
        let arrived = Arrived { text: "abcdéfgh".into(), tokens: 3 };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|it| arrived.beginning(it)),
            ["", "abc", "abcdé", "abcdéfgh", "abcdéfgh"]
        );
    }
}

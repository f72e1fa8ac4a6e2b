//! Where a text may be cut so that its pieces tokenize to the same ids as the whole.
//!
//! Before anything else, a tokenizer finds its added tokens in the raw text (leftmost, longest). Then it normalizes,
//! splits and merges only the text between two of them. So a cut just before an added token loses nothing. Each piece
//! starts with that token, and the search continues from there as it did in the whole text. The text after it is
//! still not "the first word of the text", which some tokenizers treat differently. That is why we cut before the
//! token and not after it.
//!
//! Not every added token is a safe place to cut. A token that matches only as a whole word, or swallows the spaces
//! around it, depends on its neighbours. A token that is matched after normalizing is not found here at all. We cut
//! at the plain tokens. If tokens of the dependent kinds exist, we cut only at plain tokens whose edges act like the
//! end of the text. `Encoder` tests all this on the loaded tokenizer, and does not cut if the test fails.

use aho_corasick::{AhoCorasick, BuildError, MatchKind};
use tokenizers::AddedToken;

pub(crate) struct Cutter {
    /// All tokens that the tokenizer looks for in the raw text, because any of them may hide another.
    matcher: AhoCorasick,
    /// By pattern: whether we may cut before it.
    plain: Vec<bool>,
}

impl Cutter {
    pub(crate) fn new<'t>(added: impl Iterator<Item = &'t AddedToken>) -> Result<Cutter, BuildError> {
        let tokens: Vec<&AddedToken> = added.filter(|it| !it.normalized && !it.content.is_empty()).collect();
        let neighbours_matter = tokens.iter().any(|it| looks_around(it));
        let plain =
            |it: &&AddedToken| !looks_around(it) && (!neighbours_matter || has_hard_edges(&it.content));
        Ok(Cutter {
            matcher: AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .build(tokens.iter().map(|it| it.content.as_bytes()))?,
            plain: tokens.iter().map(plain).collect(),
        })
    }

    /// Where pieces start, in order, without the first. Never zero.
    pub(crate) fn cuts<'s>(&'s self, text: &'s str) -> impl Iterator<Item = usize> + 's {
        self.matcher
            .find_iter(text)
            .filter(|it| self.plain[it.pattern().as_usize()] && it.start() > 0)
            .map(|it| it.start())
    }

    /// The pieces of `text`, in order: together they are the text, and none is empty.
    pub(crate) fn pieces<'s>(&'s self, text: &'s str) -> impl Iterator<Item = &'s str> + 's {
        let mut start = 0;
        self.cuts(text)
            .chain(std::iter::once(text.len()))
            .map(move |end| &text[std::mem::replace(&mut start, end)..end])
            .filter(|it| !it.is_empty())
    }

    /// The tokens at which we cut, as material for the trial.
    pub(crate) fn plain<'t>(added: impl Iterator<Item = &'t AddedToken>) -> impl Iterator<Item = &'t str> {
        added.filter(|it| !it.normalized && !looks_around(it)).map(|it| it.content.as_str())
    }
}

fn looks_around(token: &AddedToken) -> bool {
    token.single_word || token.lstrip || token.rstrip
}

/// Neither end can be part of a word or be swallowed as a space.
fn has_hard_edges(content: &str) -> bool {
    let hard = |it: char| !it.is_alphanumeric() && it != '_' && !it.is_whitespace();
    content.chars().next().is_some_and(hard) && content.chars().next_back().is_some_and(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tokens: &[AddedToken], text: &str, expected: &[&str]) {
        let cutter = Cutter::new(tokens.iter()).expect("the test's own tokens");
        assert_eq!(cutter.pieces(text).collect::<Vec<_>>(), expected, "text: {text:?}");
    }

    fn special(content: &str) -> AddedToken {
        AddedToken::from(content, true)
    }

    #[test]
    fn pieces_start_with_the_token_they_were_cut_at() {
        let tokens = [special("<s>"), special("</s>")];
        check(&tokens, "a<s>b</s><s>c", &["a", "<s>b", "</s>", "<s>c"]);
        check(&tokens, "<s>", &["<s>"]);
        check(&tokens, "", &[]);
        check(&tokens, "no token", &["no token"]);
    }

    #[test]
    fn the_longest_token_wins_and_hides_the_shorter() {
        check(&[special("<s>"), special("<s>x")], "a<s>xb<s>y", &["a", "<s>xb", "<s>y"]);
        check(&[special("ab>"), special("<ab")], "<ab>", &["<ab>"]);
    }

    #[test]
    fn tokens_that_depend_on_neighbours_are_not_cut_points() {
        let mask = special("<mask>").lstrip(true);
        check(&[special("<s>"), mask.clone()], "a <mask> b<s>", &["a <mask> b", "<s>"]);
        check(&[special("end"), mask.clone()], "a end b", &["a end b"]);
        check(&[special("\n\n"), mask], "a\n\nb", &["a\n\nb"]);
        check(&[special("end")], "a end b", &["a ", "end b"]);
    }

    #[test]
    fn tokens_matched_after_normalizing_are_not_found() {
        check(&[AddedToken::from("<x>", false)], "a<x>b", &["a<x>b"]);
    }
}

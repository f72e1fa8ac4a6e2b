//! Stop strings, matched in the router.
//!
//! An engine does not see a stop string that lies across a break, and holds text back that may begin one. So the engine of
//! a covered stream gets none, its text and its token ids agree, and the router does what vLLM does: it holds back one
//! character less than the longest string has, and ends the stream at a match.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::json::{Raw, Shape};

/// Most stop strings of a request, and the longest of them in bytes. Chosen: four times what OpenAI takes, and a paragraph.
const STRINGS_MAX: usize = 16;
const STRING_BYTES_MAX: usize = 1 << 10;

/// The stop strings of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StopStrings {
    strings: Vec<String>,
    /// The client wants to see the string that ends the answer.
    includes: bool,
    /// Characters of the longest, less one.
    held_chars: usize,
}

/// Why a request's stop strings are not matched here.
pub(super) struct NotMatched;

impl StopStrings {
    /// Reads `stop`: a string or a list of strings.
    pub(super) fn read(stop: Raw<'_>, includes: bool) -> Result<Option<Arc<StopStrings>>, NotMatched> {
        let mut strings = Vec::new();
        match stop.shape() {
            Shape::Null => {}
            Shape::String => strings.extend(stop.string().map(|it| it.into_owned())),
            Shape::Array => {
                let walked = stop.records(
                    |(): &mut (), _, _| {},
                    |element, ()| match element.string() {
                        Some(it) if strings.len() < STRINGS_MAX => {
                            strings.push(it.into_owned());
                            ControlFlow::Continue(())
                        }
                        _ => ControlFlow::Break(()),
                    },
                );
                if walked.is_break() {
                    return Err(NotMatched);
                }
            }
            _ => return Err(NotMatched),
        }
        // An empty string is the engine's to refuse.
        if strings.iter().any(|it| it.is_empty() || it.len() > STRING_BYTES_MAX) {
            return Err(NotMatched);
        }
        let Some(longest) = strings.iter().map(|it| it.chars().count()).max() else { return Ok(None) };
        Ok(Some(Arc::new(StopStrings { strings, includes, held_chars: longest - 1 })))
    }
}

/// The end of an answer's text, in which a stop string may begin.
#[derive(Clone, Debug)]
pub(super) struct StopMatcher {
    stop: Arc<StopStrings>,
    /// The last characters, some of them delivered.
    text: String,
    delivered: usize,
}

/// What the client gets of a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) text: String,
    /// The stop string that ends the answer.
    pub(super) stop: Option<String>,
}

/// How a piece of text comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// One token at most: then all strings that it completes are found at once, and the first of the list counts, as in
    /// vLLM. Of several tokens the first to complete a string does.
    pub(super) is_one_token: bool,
    pub(super) is_last: bool,
}

impl StopMatcher {
    pub(super) fn new(stop: Arc<StopStrings>) -> StopMatcher {
        StopMatcher { stop, text: String::new(), delivered: 0 }
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.text.len()
    }

    /// Takes the next piece of the answer.
    pub(super) fn feed(&mut self, piece: &str, how: Piece) -> Passed {
        self.text.push_str(piece);
        if let Some((stop, end)) = self.find(how) {
            let text = self.text[self.delivered..end].to_owned();
            self.text.clear();
            self.delivered = 0;
            return Passed { text, stop: Some(stop) };
        }
        let held = if how.is_last || self.stop.includes { 0 } else { self.stop.held_chars };
        let end = chars_before_end(&self.text, held).max(self.delivered);
        let passed = self.text[self.delivered..end].to_owned();
        let kept = chars_before_end(&self.text, self.stop.held_chars);
        self.text.drain(..kept);
        self.delivered = end - kept;
        Passed { text: passed, stop: None }
    }

    /// What was held back, at the end of an answer without a match.
    pub(super) fn rest(&mut self) -> String {
        let rest = self.text.split_off(self.delivered);
        self.text.clear();
        self.delivered = 0;
        rest
    }

    /// The string that ends the answer, and where its text ends then.
    fn find(&self, how: Piece) -> Option<(String, usize)> {
        let StopStrings { strings, includes, .. } = &*self.stop;
        let found = strings.iter().filter_map(|it| Some((it, self.text.find(it.as_str())?)));
        let (stop, at) = match how.is_one_token {
            true => found.into_iter().next()?,
            false => found.min_by_key(|(it, at)| at + it.len())?,
        };
        Some((stop.clone(), if *includes { at + stop.len() } else { at }))
    }
}

/// Where the last characters of a text begin.
fn chars_before_end(text: &str, chars: usize) -> usize {
    match chars {
        0 => text.len(),
        _ => text.char_indices().rev().nth(chars - 1).map_or(0, |(at, _)| at),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::Cursor;

    fn matcher(stop: &str, includes: bool) -> StopMatcher {
        let raw = Cursor::new(stop).value().unwrap();
        let Ok(Some(stop)) = StopStrings::read(raw, includes) else { panic!("{stop}") };
        StopMatcher::new(stop)
    }

    #[track_caller]
    fn check((stop, includes): (&str, bool), pieces: &[&str], expected: (&str, Option<&str>)) {
        let mut matcher = matcher(stop, includes);
        let mut text = String::new();
        for (index, piece) in pieces.iter().enumerate() {
            let how = Piece { is_one_token: true, is_last: index + 1 == pieces.len() };
            let passed = matcher.feed(piece, how);
            text += &passed.text;
            if passed.stop.is_some() {
                assert_eq!((text.as_str(), passed.stop.as_deref()), expected);
                return;
            }
        }
        assert_eq!((text.as_str(), None), expected);
    }

    #[test]
    fn an_answer_ends_before_its_stop_string_wherever_that_is_cut() {
        check((r#""END""#, false), &["to the E", "N", "D of it"], ("to the ", Some("END")));
        check((r#""END""#, true), &["to the E", "N", "D of it"], ("to the END", Some("END")));
        check((r#"["\n\n","é漢"]"#, false), &["a\n", "b\né", "漢", "c"], ("a\nb\n", Some("é漢")));
        check((r#""END""#, false), &["to the E", "N", "Z"], ("to the ENZ", None));
        check((r#"["x"]"#, false), &["ax"], ("a", Some("x")));
        check((r#"["bc","ab"]"#, false), &["abc"], ("a", Some("bc")));
    }

    #[test]
    fn of_several_tokens_the_first_string_to_be_complete_counts() {
        let passed =
            matcher(r#"["bc","ab"]"#, false).feed("abc", Piece { is_one_token: false, is_last: false });
        assert_eq!(passed, Passed { text: String::new(), stop: Some("ab".to_owned()) });
    }

    #[test]
    fn strings_that_are_not_matched_here() {
        for stop in ["1", r#"["a",1]"#, r#"[""]"#, r#""""#] {
            assert!(StopStrings::read(Cursor::new(stop).value().unwrap(), false).is_err(), "{stop}");
        }
        let many = format!("[{}]", vec!["\"a\""; STRINGS_MAX + 1].join(","));
        assert!(StopStrings::read(Cursor::new(&many).value().unwrap(), false).is_err());
        assert!(matches!(StopStrings::read(Cursor::new("[]").value().unwrap(), false), Ok(None)));
    }

    proptest! {
        /// The whole text, searched at once, is the oracle.
        #[test]
        fn pieces_do_not_matter(
            text in "[ab漢]{0,24}",
            stop in "[ab漢]{1,3}",
            cuts in prop::collection::vec(1usize..4, 1..8),
            includes in any::<bool>(),
        ) {
            let quoted = format!("\"{stop}\"");
            let mut matcher = matcher(&quoted, includes);
            let characters: Vec<char> = text.chars().collect();
            let (mut given, mut at, mut stopped) = (String::new(), 0, None);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(characters.len());
                let piece: String = characters[at..end].iter().collect();
                at = end;
                let passed = matcher.feed(&piece, Piece { is_one_token: false, is_last: at == characters.len() });
                given += &passed.text;
                stopped = passed.stop;
                if stopped.is_some() || at == characters.len() {
                    break;
                }
            }
            match text.find(&stop) {
                None => prop_assert_eq!((given, stopped), (text, None)),
                Some(found) => {
                    let end = if includes { found + stop.len() } else { found };
                    prop_assert_eq!((given.as_str(), stopped), (&text[..end], Some(stop)));
                }
            }
        }
    }
}

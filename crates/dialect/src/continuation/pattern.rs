//! The form of a stream's ordinary events, by which most of them are compared instead of parsed.
//!
//! From one event to the next only the text and its token ids change; the rest, some 250 bytes, is the same. So the last
//! event that was parsed is kept, and one that equals it everywhere else needs no second parse: it is a text without
//! escapes and a list of ids in the same places. Anything else is parsed. Parsing each one took twice the rest of a
//! chunk's work in the router (`scripts/count-instructions --chunks`).

use std::ops::Range;

use crate::continuation::chunk::StreamChunk;
use crate::continuation::id_list::is_id;
use crate::json::{Raw, Shape};

/// Longer events are parsed. Chosen: several times an ordinary one.
const PATTERN_BYTES_MAX: usize = 2 << 10;

#[derive(Clone, Debug, Default)]
pub(super) struct EventPattern {
    /// The event that was parsed last, if it was an ordinary one; else empty.
    event: Vec<u8>,
    /// Where its text is, without the quotes, and its ids, without the brackets.
    text: Range<usize>,
    ids: Range<usize>,
}

/// An event of the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrdinaryEvent {
    /// Where its ids are, without the brackets.
    pub(super) ids: Range<usize>,
    pub(super) tokens: u64,
}

impl EventPattern {
    pub(super) fn kept_bytes(&self) -> usize {
        self.event.len()
    }

    pub(super) fn clear(&mut self) {
        self.event.clear();
    }

    /// Keeps the form of an event that was parsed, if it is one of text that goes on.
    pub(super) fn learn(&mut self, event: &str, chunk: &StreamChunk<'_>) {
        self.event.clear();
        let (Some(text), Some(ids)) = (chunk.text, chunk.ids) else { return };
        let is_ordinary = chunk.choices == 1
            && chunk.has_text
            && !chunk.is_finished
            && text.shape() == Shape::String
            && !ids.is_empty()
            && chunk.prompt_ids.is_none()
            && chunk.usage.is_none()
            && chunk.obstacle.is_none();
        let inside = |it: Raw<'_>| {
            let start = it.text.as_ptr().addr() - event.as_ptr().addr() + 1;
            start..start + it.text.len() - 2
        };
        let (text, ids) = (inside(text), inside(ids));
        if is_ordinary && text.end < ids.start && event.len() <= PATTERN_BYTES_MAX {
            self.event.extend_from_slice(event.as_bytes());
            (self.text, self.ids) = (text, ids);
        }
    }

    /// Reads an event of the same form; none if it must be parsed.
    pub(super) fn read(&self, event: &[u8]) -> Option<OrdinaryEvent> {
        if self.event.is_empty() {
            return None;
        }
        let rest = event.strip_prefix(&self.event[..self.text.start])?;
        let length = rest.iter().position(|it| matches!(it, b'"' | b'\\' | 0..0x20)).filter(|&it| it > 0)?;
        let (text, rest) = rest.split_at(length);
        let rest = rest.strip_prefix(&self.event[self.text.end..self.ids.start])?;
        if !(text.is_ascii() || simdutf8::basic::from_utf8(text).is_ok()) {
            return None;
        }
        let start = event.len() - rest.len();
        let (ids, after) = rest.split_at(rest.iter().position(|it| *it == b']')?);
        let mut tokens = 0;
        for id in ids.split(|it| *it == b',') {
            if !is_id(id) {
                return None;
            }
            tokens += 1;
        }
        (after == &self.event[self.ids.end..])
            .then_some(OrdinaryEvent { ids: start..start + ids.len(), tokens })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::continuation::chunk::{self, StreamEvent};

    fn event(text: &str, ids: &str) -> String {
        format!(
            "data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null,\"token_ids\":[{ids}]}}]}}\n\n"
        )
    }

    fn learned(event: &str) -> EventPattern {
        let mut chunk = StreamChunk::default();
        assert!(matches!(chunk::read(event, &mut chunk), StreamEvent::Chunk));
        let mut pattern = EventPattern::default();
        pattern.learn(event, &chunk);
        pattern
    }

    /// The parser is the oracle: what the pattern takes, it reads as the same text and the same ids.
    #[track_caller]
    fn check(pattern: &EventPattern, bytes: &[u8]) -> Option<u64> {
        let OrdinaryEvent { ids, tokens } = pattern.read(bytes)?;
        let text = std::str::from_utf8(bytes).expect("valid UTF-8");
        let mut chunk = StreamChunk::default();
        assert!(matches!(chunk::read(text, &mut chunk), StreamEvent::Chunk), "{text}");
        assert!(
            chunk.has_text && !chunk.is_finished && chunk.obstacle.is_none() && chunk.choices == 1,
            "{text}"
        );
        assert!(chunk.prompt_ids.is_none() && chunk.usage.is_none(), "{text}");
        assert_eq!(chunk.ids.map(|it| it.text), Some(&text[ids.start - 1..=ids.end]));
        assert_eq!(chunk.ids.and_then(crate::continuation::id_list::count_of), Some(tokens));
        Some(tokens)
    }

    #[test]
    fn an_event_with_another_text_and_other_ids_is_of_the_same_form() {
        let pattern = learned(&event("Hello", "17"));
        assert_eq!(check(&pattern, event(" é漢😀", "1,22,333").as_bytes()), Some(3));
        assert_eq!(check(&pattern, event("x", "0").as_bytes()), Some(1));
    }

    #[test]
    fn what_might_mean_anything_else_is_parsed() {
        let pattern = learned(&event("Hello", "17"));
        for (text, ids) in [
            ("", "1"),
            ("\\n", "1"),
            ("a\nb", "1"),
            ("a", ""),
            ("a", "1,,2"),
            ("a", "1,"),
            ("a", "01"),
            ("a", "-1"),
            ("a", "1.0"),
            ("a", "99999999999999999999"),
            ("a", "[1]"),
            ("a\"},\"finish_reason\":\"stop\",\"x\":{\"y\":\"", "1"),
        ] {
            assert_eq!(pattern.read(event(text, ids).as_bytes()), None, "{text} {ids}");
        }
        assert_eq!(pattern.read(event("a", "1").replace("null", "\"stop\"").as_bytes()), None);
        assert_eq!(pattern.read(event("a", "1").replacen('a', "b", 2).as_bytes()), None);
        assert_eq!(EventPattern::default().read(event("a", "1").as_bytes()), None);
    }

    #[test]
    fn an_event_that_is_not_ordinary_gives_no_form() {
        for odd in [
            event("", "17"),
            event("a", ""),
            event("a", "17").replace("null", "\"stop\""),
            event("a", "17").replace("\"id\"", "\"prompt_token_ids\":[1],\"id\""),
            event("a", "17").replace("\"id\"", "\"usage\":{},\"id\""),
            event(&"a".repeat(PATTERN_BYTES_MAX), "17"),
        ] {
            assert_eq!(learned(&odd).kept_bytes(), 0, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn what_the_pattern_takes_the_parser_reads_alike(
            text in "[a-c\"\\\\\u{1}é漢]{0,6}",
            ids in "[0-9,\\[\\] -]{0,12}",
            (at, byte) in (0usize..140, any::<u8>()),
            is_changed in any::<bool>(),
        ) {
            let pattern = learned(&event("Hello", "17"));
            let mut bytes = event(&text, &ids).into_bytes();
            if is_changed && let Some(it) = bytes.get_mut(at) {
                *it = byte;
            }
            check(&pattern, &bytes);
        }
    }
}

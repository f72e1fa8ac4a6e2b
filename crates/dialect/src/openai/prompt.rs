//! What the engine will prefill, as slices of the body.
//!
//! Nothing is joined or rendered: that is the tokenizer's work, when there is one. Without a tokenizer, the
//! size in bytes stands for tokens and the head of the text for the prefix.

use std::ops::ControlFlow;

use memchr::memchr_iter;

use crate::json::ids::leading_ids;
use crate::json::{Raw, Shape};
use crate::openai::head::{self, Extent};
use crate::openai::part::Part;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt<'a> {
    parts: [Option<Raw<'a>>; Part::ALL.len()],
}

impl<'a> Prompt<'a> {
    /// The JSON text of one part, as the client wrote it.
    pub fn raw(&self, part: Part) -> Option<&'a str> {
        self.part(part).map(|it| it.text)
    }

    /// Approximate bytes of prompt text, including JSON syntax but not encoded images and sounds (an image
    /// costs the engine hundreds of tokens, not one per four bytes of its encoding).
    pub fn bytes(&self) -> usize {
        self.parts.iter().flatten().map(|it| it.text.len() - it.media_bytes).sum()
    }

    /// The number of tokens, where the client sent token ids instead of text; the sum for a batch.
    pub fn token_ids(&self) -> Option<usize> {
        [Part::TokenIds, Part::Prompt, Part::Input].into_iter().find_map(|it| count_ids(self.part(it)?))
    }

    /// Passes up to `limit` bytes of the head of the prompt to `sink`, and reads no further than necessary.
    ///
    /// The bytes do not depend on whitespace, the key order of a message, character escapes, or whether a
    /// message's content is a string or a list of one text. They follow the prompt: a conversation that grows
    /// by a turn keeps its head.
    pub fn head(&self, limit: usize, sink: impl FnMut(&[u8])) {
        head::feed(self.parts(), Extent::Head(limit), sink);
    }

    /// Passes the whole prompt to `sink` in the same way, including answers: a conversation that grows by a
    /// turn starts with everything it passed before.
    pub fn text(&self, sink: impl FnMut(&[u8])) {
        head::feed(self.parts(), Extent::Whole, sink);
    }

    fn parts(&self) -> impl Iterator<Item = (Part, Raw<'a>)> {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.part(part)?)))
    }

    /// Token ids, where the client sent one prompt of them.
    pub fn ids(&self) -> Option<Vec<u32>> {
        let raw = [Part::TokenIds, Part::Prompt, Part::Input].into_iter().find_map(|it| self.part(it))?;
        leading_ids(raw.text.as_bytes()).filter(|it| !it.is_empty())
    }

    pub(crate) fn part(&self, part: Part) -> Option<Raw<'a>> {
        self.parts[part as usize]
    }

    pub(crate) fn slot(&mut self, part: Part) -> &mut Option<Raw<'a>> {
        &mut self.parts[part as usize]
    }
}

fn count_ids(raw: Raw<'_>) -> Option<usize> {
    if raw.shape() != Shape::Array {
        return None;
    }
    let mut inside = raw.text.bytes().skip_while(|it| matches!(it, b'[' | b' ' | b'\n' | b'\r' | b'\t'));
    if !inside.next()?.is_ascii_digit() {
        return None;
    }
    // An array of ids, or of arrays of ids, has one comma fewer than ids. An array that mixes ids and text is
    // counted wrong, and the engine refuses it.
    Some(memchr_iter(b',', raw.text.as_bytes()).count() + 1)
}
/// The number of texts, or of lists of token ids, in a list of them.
pub(crate) fn batch(prompt: Raw<'_>) -> Option<usize> {
    let inside = prompt.text.strip_prefix('[')?.trim_ascii_start();
    if !inside.starts_with(['"', '[']) {
        return None;
    }
    let mut count = 0;
    let _all = prompt.records(
        |(), _, _| {},
        |_, ()| {
            count += 1;
            ControlFlow::Continue(())
        },
    );
    Some(count)
}

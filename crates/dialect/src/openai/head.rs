//! A prompt, or its head, as bytes to hash: equal for equal prompts, however their JSON was written.
//!
//! This is not what the engine's template renders, and need not be: two prompts that share a head here share
//! a prefix there, closely enough to place them together. Each role and text is preceded by one separator
//! byte. Values without text (tools, calls, images) are added as JSON without whitespace, with keys in the
//! order sent, because templates print them in that order too.

use std::borrow::Cow;
use std::ops::ControlFlow;

use maitre_base::hash;

use crate::json::{Raw, Shape, decode_into};
use crate::openai::part::Part;

/// Separators from the ASCII control characters. A text may contain them as well; the hash of a head is a
/// hint, not a proof.
const PART: &[u8] = &[0x1d];
const TURN: &[u8] = &[0x1e];
const FIELD: &[u8] = &[0x1f];

/// How much of the prompt to include.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Up to the first answer, and at most this many bytes.
    Head(usize),
    Whole,
}

pub(crate) fn feed<'a>(
    parts: impl Iterator<Item = (Part, Raw<'a>)>,
    extent: Extent,
    sink: impl FnMut(&[u8]),
) {
    let left = match extent {
        Extent::Head(limit) => limit,
        Extent::Whole => usize::MAX,
    };
    let mut tap = Tap { left, extent, sink };
    for (part, raw) in parts {
        if give_part(&mut tap, part, raw).is_break() {
            return;
        }
    }
}

/// The sink, and how many bytes it still accepts. Breaks once it is full.
struct Tap<F> {
    left: usize,
    extent: Extent,
    sink: F,
}

impl<F: FnMut(&[u8])> Tap<F> {
    fn give(&mut self, bytes: &[u8]) -> ControlFlow<()> {
        let taken = bytes.len().min(self.left);
        if taken > 0 {
            (self.sink)(&bytes[..taken]);
        }
        self.left -= taken;
        if self.left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn give_text(&mut self, quoted: &str) -> ControlFlow<()> {
        decode_into(quoted, |piece| self.give(piece.as_bytes()))
    }

    /// JSON without whitespace and with its strings decoded.
    fn give_compact(&mut self, text: &str) -> ControlFlow<()> {
        let mut rest = text;
        loop {
            let (outside, quoted_on) = rest.split_once('"').unwrap_or((rest, ""));
            for run in outside.split_ascii_whitespace() {
                self.give(run.as_bytes())?;
            }
            if quoted_on.is_empty() {
                return ControlFlow::Continue(());
            }
            let end = quoted_end(quoted_on);
            self.give(b"\"")?;
            self.give_text(&quoted_on[..end])?;
            self.give(b"\"")?;
            rest = &quoted_on[end + 1..];
        }
    }
}

/// Where the string that contains the start of `text` ends. The text was checked, so it does end.
fn quoted_end(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'"', b'\\', &text.as_bytes()[from..]) {
        if text.as_bytes()[from + at] == b'"' {
            return from + at;
        }
        from += at + 2;
    }
    debug_assert!(false, "a checked string has a closing quote");
    text.len() - 1
}

fn give_part<F: FnMut(&[u8])>(tap: &mut Tap<F>, part: Part, raw: Raw<'_>) -> ControlFlow<()> {
    tap.give(PART)?;
    match part {
        Part::Tools => tap.give_compact(raw.text),
        _ => give_turns(tap, raw),
    }
}

/// A text, or a list of turns or texts.
fn give_turns<F: FnMut(&[u8])>(tap: &mut Tap<F>, raw: Raw<'_>) -> ControlFlow<()> {
    match raw.shape() {
        Shape::Array => raw.records(Turn::gather, |raw, turn| give_turn(tap, raw, turn)),
        _ => give_value(tap, raw),
    }
}

/// The parts of a message that a template may print.
#[derive(Default)]
struct Turn<'a> {
    role: Option<Raw<'a>>,
    content: Option<Raw<'a>>,
    /// Of a block that stands in place of a message.
    text: Option<Raw<'a>>,
    /// In this order, whatever the client's: reasoning, calls, the call answered, the name.
    extras: [Option<Raw<'a>>; 4],
}

impl<'a> Turn<'a> {
    fn gather(&mut self, key: Cow<'a, str>, value: Raw<'a>) {
        let slot = match &*key {
            "role" => &mut self.role,
            "content" => &mut self.content,
            "text" => &mut self.text,
            "reasoning_content" | "reasoning" => &mut self.extras[0],
            "tool_calls" => &mut self.extras[1],
            "tool_call_id" => &mut self.extras[2],
            "name" => &mut self.extras[3],
            _ => return,
        };
        *slot = Some(value);
    }
}

fn give_turn<F: FnMut(&[u8])>(tap: &mut Tap<F>, raw: Raw<'_>, turn: Turn<'_>) -> ControlFlow<()> {
    // The head ends where the first answer begins. Otherwise a conversation shorter than the limit would get
    // another head, and another worker, with every turn.
    let ends_at_answers = tap.extent != Extent::Whole;
    if ends_at_answers && turn.role.is_some_and(|it| it.text == "\"assistant\"") {
        return ControlFlow::Break(());
    }
    tap.give(TURN)?;
    let Some(role) = turn.role else {
        return give_block(tap, raw, turn.text);
    };
    give_value(tap, role)?;
    tap.give(FIELD)?;
    if let Some(content) = turn.content {
        give_content(tap, content)?;
    }
    for extra in turn.extras.into_iter().flatten() {
        tap.give(FIELD)?;
        give_value(tap, extra)?;
    }
    ControlFlow::Continue(())
}

/// A message's content: a string, or a list of blocks. A list with one text equals that text.
fn give_content<F: FnMut(&[u8])>(tap: &mut Tap<F>, raw: Raw<'_>) -> ControlFlow<()> {
    let mut first = true;
    match raw.shape() {
        Shape::Array => {
            let gather = |text: &mut Option<_>, key: Cow<'_, str>, value| {
                if key == "text" {
                    *text = Some(value);
                }
            };
            raw.records(gather, |block, text| {
                if !std::mem::take(&mut first) {
                    tap.give(FIELD)?;
                }
                give_block(tap, block, text)
            })
        }
        _ => give_value(tap, raw),
    }
}

/// One block of content: its text if it has one, otherwise the whole block.
fn give_block<F: FnMut(&[u8])>(tap: &mut Tap<F>, raw: Raw<'_>, text: Option<Raw<'_>>) -> ControlFlow<()> {
    match text.filter(|it| it.shape() == Shape::String) {
        Some(text) => give_value(tap, text),
        // An image takes the same number of tokens however large its encoding; only its identity matters.
        None if raw.text.len() > BLOCK_BYTES_MAX => {
            tap.give(&hash::bytes(0, raw.text.as_bytes()).to_le_bytes())
        }
        None => give_value(tap, raw),
    }
}

/// The longest block without text that is included verbatim.
const BLOCK_BYTES_MAX: usize = 1_024;

fn give_value<F: FnMut(&[u8])>(tap: &mut Tap<F>, raw: Raw<'_>) -> ControlFlow<()> {
    match (raw.shape(), raw.quoted()) {
        (_, Some(text)) if raw.is_plain() => tap.give(text.as_bytes()),
        (Shape::Null, _) => ControlFlow::Continue(()),
        (_, Some(text)) => tap.give_text(text),
        _ => tap.give_compact(raw.text),
    }
}

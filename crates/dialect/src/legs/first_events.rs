//! Whether a decode worker's stream has begun in earnest.
//!
//! A decode worker whose transfer fails has sent its headers and an event that only announces the answer (vLLM: the role),
//! and then an error. Until content comes, another worker can serve the request and the client need not know. So the
//! router holds back the first events until one of them commits to an answer.
//!
//! An event of a shape that is not known here counts as content: nothing is held for longer than it is understood.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::ControlFlow;

use memchr::memchr;

use crate::json::{Cursor, Raw, Shape};
use crate::route::Route;
use crate::sse;
use crate::usage;

/// The most that is held back. Chosen: vLLM puts the token ids of the prompt into the first event if the client asks for
/// them, and this holds those of a hundred thousand tokens.
pub const HELD_BYTES_MAX: usize = 1 << 20;

/// What the beginning of a stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStart {
    /// Nothing of the answer yet: hold it back.
    Announced,
    /// Content, the final usage, the end, or too much to hold: pass everything on.
    Content,
    /// The worker reported an error before any content: another worker can still serve the request.
    Failed,
}

/// Reads the events that are held back.
#[derive(Clone, Debug)]
pub struct FirstEvents {
    route: Route,
    /// Where the first event begins that is not read.
    read: usize,
    /// Up to where no end of that event was found.
    searched: usize,
}

impl FirstEvents {
    pub const fn new(route: Route) -> FirstEvents {
        FirstEvents { route, read: 0, searched: 0 }
    }

    /// Takes everything that is held, from the first byte of the stream. Call it again when more has arrived, as long as
    /// it returns `Announced`.
    pub fn read(&mut self, held: &[u8]) -> StreamStart {
        let line_end = |from: usize| held.get(from..).and_then(|it| memchr(b'\n', it)).map(|it| from + it);
        while let Some(line_end) = line_end(self.searched) {
            let (lines, rest) = held.split_at(line_end + 1);
            let blank = match rest {
                [b'\n', ..] => 1,
                [b'\r', b'\n', ..] => 2,
                // Its second line end may still come.
                [] | [b'\r'] => break,
                _ => 0,
            };
            self.searched = line_end + 1 + blank;
            if blank > 0 {
                let event = &lines[self.read..];
                self.read = self.searched;
                match judge(self.route, event) {
                    StreamStart::Announced => {}
                    decided => return decided,
                }
            }
        }
        if held.len() > HELD_BYTES_MAX { StreamStart::Content } else { StreamStart::Announced }
    }
}

fn judge(route: Route, event: &[u8]) -> StreamStart {
    let lines = || event.split(|&byte| byte == b'\n').map(|it| it.strip_suffix(b"\r").unwrap_or(it));
    let mut data = lines().filter_map(|it| sse::field(it, b"data:"));
    let Some(first) = data.next() else { return StreamStart::Announced };
    let kind = lines().find_map(|it| sse::field(it, b"event:")).unwrap_or_default();
    match data.next() {
        None => judge_data(route, kind, first).unwrap_or(StreamStart::Content),
        Some(_) => StreamStart::Content,
    }
}

/// The members of an event's data that decide.
#[derive(Default)]
struct EventFields<'a> {
    kind: Option<Cow<'a, str>>,
    /// OpenAI's two ways to report an error.
    object: Option<Raw<'a>>,
    error: Option<Raw<'a>>,
    choices: Option<Raw<'a>>,
    usage: Option<Raw<'a>>,
    /// What an event of Anthropic's or of the responses API begins.
    begun: Option<Raw<'a>>,
    /// SGLang's own API.
    text: Option<Raw<'a>>,
    output_ids: Option<Raw<'a>>,
    meta_info: Option<Raw<'a>>,
}

/// None if the data is not JSON, or `[DONE]`.
fn judge_data(route: Route, kind: &[u8], data: &[u8]) -> Option<StreamStart> {
    let mut fields = EventFields::default();
    Cursor::new(std::str::from_utf8(data).ok()?).members(|key, value| fields.take(&key, value)).ok()?;
    let kind = fields.kind.as_deref().or(std::str::from_utf8(kind).ok()).unwrap_or_default();
    let is_failure = fields.error.is_some_and(|it| !it.is_empty())
        || fields.object.is_some_and(|it| it.text == "\"error\"")
        || matches!(kind, "error" | "response.failed");
    let is_failure = is_failure || fields.is_aborted();
    let is_announcement = match route {
        Route::Messages | Route::Responses => fields.announces(kind),
        Route::Generate => fields.is_empty_generation(),
        _ => fields.is_empty_chunk(),
    };
    Some(match () {
        () if is_failure => StreamStart::Failed,
        () if is_announcement => StreamStart::Announced,
        () => StreamStart::Content,
    })
}

impl<'a> EventFields<'a> {
    fn take(&mut self, key: &str, value: Raw<'a>) {
        let slot = match key {
            "type" => {
                self.kind = value.string();
                return;
            }
            "object" => &mut self.object,
            "error" => &mut self.error,
            "choices" => &mut self.choices,
            "usage" => &mut self.usage,
            "content_block" | "item" | "part" => &mut self.begun,
            "text" => &mut self.text,
            "output_ids" => &mut self.output_ids,
            "meta_info" => &mut self.meta_info,
            _ => return,
        };
        *slot = Some(value);
    }

    fn announces(&self, kind: &str) -> bool {
        match kind {
            "ping" | "message_start" | "response.created" | "response.queued" | "response.in_progress" => {
                true
            }
            "content_block_start"
            | "response.output_item.added"
            | "response.content_part.added"
            | "response.reasoning_part.added" => self.begun.is_some_and(begins_text),
            _ => false,
        }
    }

    /// No choice has anything in it. Usage may come with every chunk; with a chunk of its own it is the end.
    fn is_empty_chunk(&self) -> bool {
        let Some(choices) = self.choices.filter(|it| it.shape() == Shape::Array && !it.is_empty()) else {
            return false;
        };
        let generated = self.usage.and_then(usage::of_object).and_then(|it| it.completion_tokens);
        let mut is_empty = generated.unwrap_or(0) == 0;
        let _all = choices.records(
            |has_content: &mut bool, key, value| *has_content |= is_content(&key, value),
            |choice, has_content| {
                is_empty &= choice.shape() == Shape::Object && !has_content;
                ControlFlow::Continue(())
            },
        );
        is_empty
    }

    /// Whether the engine gives the answer up, because it shuts down or an operator aborts it.
    fn is_aborted(&self) -> bool {
        let mut is_aborted = false;
        if let Some(choices) = self.choices {
            let _all = choices.records(
                |is_one: &mut bool, key, value| {
                    *is_one |= key == "finish_reason" && value.text == "\"abort\""
                },
                |_, is_one| {
                    is_aborted |= is_one;
                    ControlFlow::Continue(())
                },
            );
        }
        if let Some(info) = self.meta_info {
            info.members(|key, value| {
                if key == "finish_reason" {
                    value.members(|key, value| is_aborted |= key == "type" && value.text == "\"abort\"");
                }
            });
        }
        is_aborted
    }

    fn is_empty_generation(&self) -> bool {
        let mut is_finished = false;
        if let Some(info) = self.meta_info {
            info.members(|key, value| is_finished |= key == "finish_reason" && !value.is_empty());
        }
        let is_empty = |it: Option<Raw<'_>>| it.is_none_or(Raw::is_empty);
        self.text.or(self.output_ids).is_some()
            && is_empty(self.text)
            && is_empty(self.output_ids)
            && !is_finished
    }
}

/// Whether a member of a choice is part of the answer.
fn is_content(key: &str, value: Raw<'_>) -> bool {
    match key {
        "text" | "finish_reason" | "token_ids" => !value.is_empty(),
        "delta" => {
            let mut has_content = false;
            value.members(|key, value| has_content |= key != "role" && !value.is_empty());
            has_content
        }
        _ => false,
    }
}

/// Whether a block, item or part is text of which nothing is there yet. A tool call has a name from the beginning.
fn begins_text(begun: Raw<'_>) -> bool {
    let (mut is_text, mut has_text) = (false, false);
    begun.members(|key, value| match &*key {
        "type" => {
            let kind = value.quoted().unwrap_or_default();
            is_text = matches!(
                kind,
                "text" | "thinking" | "message" | "reasoning" | "output_text" | "reasoning_text"
            );
        }
        "text" | "thinking" | "content" | "summary" => has_text |= !value.is_empty(),
        _ => {}
    });
    is_text && !has_text
}

//! One event of a stream, as far as a continuation needs it.

use std::ops::ControlFlow;

use memchr::memchr;

use crate::continuation::obstacle::Obstacle;
use crate::json::{Cursor, Raw, Shape};
use crate::sse;

/// The kinds of events, of chat and completions alike.
pub(super) enum StreamEvent {
    /// No data: a comment, or nothing at all.
    Comment,
    Done,
    Chunk,
    /// The engine reports that it has failed.
    Failed,
    /// Anything else, such as an error that is the client's.
    Unknown,
}

/// The members of a chunk that matter, as slices of the event.
#[derive(Default)]
pub(super) struct StreamChunk<'a> {
    pub(super) id: Option<Raw<'a>>,
    pub(super) created: Option<Raw<'a>>,
    pub(super) model: Option<Raw<'a>>,
    /// Arrays only, wherever the engine puts them: vLLM beside the choices of a chat, else in the choice.
    pub(super) prompt_ids: Option<Raw<'a>>,
    pub(super) ids: Option<Raw<'a>>,
    pub(super) role: Option<Raw<'a>>,
    /// The value that holds the text, empty or not.
    pub(super) text: Option<Raw<'a>>,
    pub(super) has_text: bool,
    /// What the engine has separated from the text, if there is any of it.
    pub(super) reasoning: Option<Raw<'a>>,
    pub(super) is_finished: bool,
    /// Null or not; and which string or token has ended the answer, in vLLM's or SGLang's field.
    pub(super) finish_reason: Option<Raw<'a>>,
    pub(super) stop_reason: Option<Raw<'a>>,
    pub(super) choices: u32,
    /// What is in the choice besides text.
    pub(super) obstacle: Option<Obstacle>,
    pub(super) usage: Option<Raw<'a>>,
}

#[derive(Default)]
struct TopFields<'a> {
    choices: Option<Raw<'a>>,
    error: Option<Raw<'a>>,
}

#[derive(Default)]
struct Choice<'a> {
    text: Option<Raw<'a>>,
    delta: Option<Raw<'a>>,
    ids: Option<Raw<'a>>,
    prompt_ids: Option<Raw<'a>>,
    finish_reason: Option<Raw<'a>>,
    stop_reason: Option<Raw<'a>>,
}

/// Where the event ends that contains `from`, with its blank line.
pub(super) fn event_end(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(feed) = memchr(b'\n', text.get(at..)?) {
        at += feed + 1;
        match &text[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// Reads one event, with or without the blank line that ends it. Fills the chunk, if it is one.
pub(super) fn read<'a>(event: &'a str, chunk: &mut StreamChunk<'a>) -> StreamEvent {
    let mut payload = None;
    for line in event.as_bytes().split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match sse::field(line, b"data:") {
            Some(data) if payload.is_none() => payload = Some(data),
            None if line.is_empty() || line.starts_with(b":") => {}
            _ => return StreamEvent::Unknown,
        }
    }
    let Some(payload) = payload else { return StreamEvent::Comment };
    if payload == b"[DONE]" {
        return StreamEvent::Done;
    }
    // A slice of the event again, which was valid UTF-8.
    let start = payload.as_ptr().addr() - event.as_ptr().addr();
    read_json(&event[start..start + payload.len()], chunk).unwrap_or(StreamEvent::Unknown)
}

fn read_json<'a>(payload: &'a str, chunk: &mut StreamChunk<'a>) -> Option<StreamEvent> {
    let mut top = TopFields::default();
    let mut cursor = Cursor::new(payload);
    cursor.members(|key, value| chunk.take(&mut top, &key, value)).ok()?;
    cursor.end().ok()?;
    if let Some(error) = top.error.filter(|it| it.shape() != Shape::Null) {
        return Some(if is_engines_fault(error) { StreamEvent::Failed } else { StreamEvent::Unknown });
    }
    let choices = top.choices.filter(|it| it.shape() == Shape::Array)?;
    let _all = choices.records(
        |choice: &mut Choice<'_>, key, value| choice.take(&key, value),
        |_, choice| {
            chunk.add(&choice);
            ControlFlow::Continue(())
        },
    );
    Some(StreamEvent::Chunk)
}

impl<'a> StreamChunk<'a> {
    fn take(&mut self, top: &mut TopFields<'a>, key: &str, value: Raw<'a>) {
        let slot = match key {
            "id" => &mut self.id,
            "created" => &mut self.created,
            "model" => &mut self.model,
            "usage" if value.shape() == Shape::Object => &mut self.usage,
            "prompt_token_ids" if value.shape() == Shape::Array => &mut self.prompt_ids,
            "choices" => &mut top.choices,
            "error" => &mut top.error,
            _ => return,
        };
        *slot = Some(value);
    }

    fn add(&mut self, choice: &Choice<'a>) {
        self.choices += 1;
        self.ids = self.ids.or(choice.ids);
        self.prompt_ids = self.prompt_ids.or(choice.prompt_ids);
        self.text = self.text.or(choice.text);
        self.has_text |= choice.text.is_some_and(|it| !it.is_empty());
        self.finish_reason = self.finish_reason.or(choice.finish_reason);
        self.stop_reason = self.stop_reason.or(choice.stop_reason);
        self.is_finished |= choice.finish_reason.is_some_and(|it| it.shape() != Shape::Null);
        if let Some(delta) = choice.delta {
            delta.members(|key, value| match &*key {
                "role" => self.role = Some(value),
                "content" => {
                    self.text = Some(value);
                    self.has_text |= !value.is_empty();
                }
                "reasoning" | "reasoning_content" if !value.is_empty() => {
                    self.reasoning = Some(value);
                    self.obstacle = Some(Obstacle::Reasoning);
                }
                _ if !value.is_empty() => self.obstacle = Some(Obstacle::Tools),
                _ => {}
            });
        }
    }

    /// Whether the engine has given the answer up, because it shuts down or an operator aborts it.
    pub(super) fn is_aborted(&self) -> bool {
        self.finish_reason.is_some_and(|it| it.text == "\"abort\"")
    }

    /// Whether it only announces the answer: the role, and nothing else.
    pub(super) fn is_announcement(&self) -> bool {
        self.choices > 0 && !self.has_text && !self.is_finished && self.ids.is_none_or(Raw::is_empty)
    }
}

impl<'a> Choice<'a> {
    fn take(&mut self, key: &str, value: Raw<'a>) {
        let slot = match key {
            "text" => &mut self.text,
            "delta" => &mut self.delta,
            "token_ids" if value.shape() == Shape::Array => &mut self.ids,
            "prompt_token_ids" if value.shape() == Shape::Array => &mut self.prompt_ids,
            "finish_reason" => &mut self.finish_reason,
            "stop_reason" | "matched_stop" => &mut self.stop_reason,
            _ => return,
        };
        *slot = Some(value);
    }
}

/// An error is the client's if its code says so; any other is a reason to ask another worker.
fn is_engines_fault(error: Raw<'_>) -> bool {
    let mut code = None;
    error.members(|key, value| {
        if key == "code" {
            code = value.text.parse::<u16>().ok();
        }
    });
    code.is_none_or(|it| !(400..500).contains(&it))
}

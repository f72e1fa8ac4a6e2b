//! The events of a chat as those of `/v1/messages`, as vLLM's own server turns them (0.32, byte for byte).
//!
//! Takes whole events only, and only such as the client of a chat would get.

use crate::continuation::chunk::{self, StreamChunk, StreamEvent, event_end};
use crate::failure::{self, Failure};
use crate::json::Raw;
use crate::route::Route;

/// What of a message is written.
#[derive(Clone, Debug, Default)]
pub(super) struct MessagesWriter {
    has_begun: bool,
    /// The block that is open.
    block: Option<BlockKind>,
    /// Blocks that are closed.
    blocks: u32,
    /// Why the message ends, as JSON: the reason and the string.
    stop: Option<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
}

impl MessagesWriter {
    /// Writes what these events of a chat are.
    pub(super) fn write(&mut self, events: &str, out: &mut String) {
        let mut rest = events;
        while let Some(end) = event_end(rest.as_bytes(), 0) {
            let (event, after) = rest.split_at(end);
            rest = after;
            let mut chunk = StreamChunk::default();
            match chunk::read(event, &mut chunk) {
                StreamEvent::Comment => *out += event,
                StreamEvent::Done => {
                    self.close_block(out);
                    *out += "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
                }
                StreamEvent::Chunk => self.write_chunk(&chunk, out),
                StreamEvent::Failed | StreamEvent::Unknown => {
                    let failure = Failure::server("worker_failed", "the worker failed while it answered");
                    *out += &failure::event(Route::Messages, &failure);
                }
            }
        }
    }

    fn write_chunk(&mut self, chunk: &StreamChunk<'_>, out: &mut String) {
        if !self.has_begun {
            self.has_begun = true;
            let text = |it: Option<Raw<'_>>| it.map_or("null", |it| it.text).to_owned();
            let (id, model, usage) = (text(chunk.id), text(chunk.model), usage(chunk.usage));
            *out += &format!(
                "event: message_start\ndata: {{\"type\":\"message_start\",\"message\":{{\"id\":{id},\"type\":\"message\",\
                 \"role\":\"assistant\",\"content\":[],\"model\":{model},\"stop_reason\":null,\"stop_sequence\":null,\
                 \"usage\":{usage}}}}}\n\n"
            );
        }
        if chunk.choices == 0 {
            return self.write_end(chunk, out);
        }
        if let Some(reason) = chunk.finish_reason.and_then(Raw::quoted) {
            self.stop = Some(stop(reason, chunk.stop_reason));
        }
        if let Some(thought) = chunk.reasoning {
            self.write_delta(BlockKind::Thinking, thought, out);
        }
        if let Some(text) = chunk.text.filter(|it| !it.is_empty()) {
            self.write_delta(BlockKind::Text, text, out);
        }
    }

    fn write_delta(&mut self, kind: BlockKind, text: Raw<'_>, out: &mut String) {
        if self.block != Some(kind) {
            self.close_block(out);
            self.block = Some(kind);
            let name = kind.name();
            *out += &format!(
                "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"content_block\":{{\"type\":\"{name}\",\
                 \"{name}\":\"\"}},\"index\":{}}}\n\n",
                self.blocks
            );
        }
        let name = kind.name();
        self.write_block_delta(&format!(r#"{{"type":"{name}_delta","{name}":{}}}"#, text.text), out);
    }

    fn write_block_delta(&self, delta: &str, out: &mut String) {
        *out += &format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"delta\":{delta},\"index\":{}}}\n\n",
            self.blocks
        );
    }

    fn close_block(&mut self, out: &mut String) {
        let Some(kind) = self.block.take() else { return };
        if kind == BlockKind::Thinking {
            // Clients want one. vLLM makes it of random digits, and reads none.
            self.write_block_delta(r#"{"type":"signature_delta","signature":"maitre"}"#, out);
        }
        let index = self.blocks;
        self.blocks += 1;
        *out += &format!(
            "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
        );
    }

    /// The event with the usage: the message is complete.
    fn write_end(&mut self, chunk: &StreamChunk<'_>, out: &mut String) {
        self.close_block(out);
        let (reason, string) = self.stop.clone().unwrap_or(("\"end_turn\"", "null".to_owned()));
        *out += &format!(
            "event: message_delta\ndata: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":{reason},\
             \"stop_sequence\":{string}}},\"usage\":{}}}\n\n",
            usage(chunk.usage)
        );
    }
}

impl BlockKind {
    const fn name(self) -> &'static str {
        match self {
            BlockKind::Text => "text",
            BlockKind::Thinking => "thinking",
        }
    }
}

/// Why the message ends, as JSON. A token that ended it is a number, and no stop sequence.
fn stop(finish_reason: &str, stop_reason: Option<Raw<'_>>) -> (&'static str, String) {
    let none = || "null".to_owned();
    match (finish_reason, stop_reason.filter(|it| it.quoted().is_some())) {
        ("length", _) => ("\"max_tokens\"", none()),
        ("stop", Some(string)) => ("\"stop_sequence\"", string.text.to_owned()),
        ("stop", None) => ("\"end_turn\"", none()),
        _ => ("null", none()),
    }
}

/// Anthropic counts the tokens that were cached, and those that are cached now, apart from the others.
fn usage(usage: Option<Raw<'_>>) -> String {
    let (mut prompt, mut answer, mut cached, mut created) = (0, 0, None, None);
    let count = |it: Raw<'_>| it.text.parse::<u64>().ok();
    if let Some(usage) = usage {
        usage.members(|key, value| match &*key {
            "prompt_tokens" => prompt = count(value).unwrap_or(0),
            "completion_tokens" => answer = count(value).unwrap_or(0),
            "prompt_tokens_details" => value.members(|key, value| match &*key {
                "cached_tokens" => cached = count(value),
                "created_cache_tokens" => created = count(value),
                _ => {}
            }),
            _ => {}
        });
    }
    // After a break the delivered tokens are of the prompt to the worker, and may be among these.
    let created = created.map(|it| it.min(prompt.saturating_sub(cached.unwrap_or(0))));
    let input = prompt.saturating_sub(cached.unwrap_or(0) + created.unwrap_or(0));
    let named = |name, it: Option<u64>| it.map(|it| format!(",\"{name}\":{it}")).unwrap_or_default();
    let (created, cached) =
        (named("cache_creation_input_tokens", created), named("cache_read_input_tokens", cached));
    format!(r#"{{"input_tokens":{input},"output_tokens":{answer}{created}{cached}}}"#)
}

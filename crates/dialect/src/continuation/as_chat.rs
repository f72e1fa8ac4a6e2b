//! A request to `/v1/messages` as the chat that vLLM makes of it.
//!
//! The streams of `/v1/messages` have no token ids, and vLLM has no field that adds them. But its own server turns every such
//! request into a chat, and the chat's events into messages (0.32, read and compared byte for byte). The router does the same
//! where a stream is to outlive its worker: the worker gets a chat, which can be continued, and `as_messages` turns its
//! events back.
//!
//! Only what all versions of vLLM translate alike is translated: text. Tools, images, thinking, system messages between
//! others and fields that are not known here go to the worker as they are, and are not continued.

use std::ops::ControlFlow;

use crate::continuation::obstacle::Obstacle;
use crate::json::{Cursor, Raw, Shape};
use crate::openai::text;

/// A block of Claude Code's that vLLM leaves out, depending on its version.
const BILLING: &str = "x-anthropic-billing-header";

/// The members that a chat is made of.
#[derive(Default)]
struct MessagesFields<'a> {
    obstacle: Option<Obstacle>,
    system: Option<Raw<'a>>,
    messages: Option<Raw<'a>>,
    max_tokens: Option<Raw<'a>>,
    stop: Option<Raw<'a>>,
    /// Those that a chat has as well.
    same: Vec<(&'static str, Raw<'a>)>,
}

#[derive(Default)]
struct Message<'a> {
    role: Option<Raw<'a>>,
    content: Option<Raw<'a>>,
}

#[derive(Default)]
struct Block<'a> {
    kind: Option<Raw<'a>>,
    text: Option<Raw<'a>>,
}

/// The body of the chat, for a stream; or why the request stays what it is.
pub fn as_chat(body: &[u8]) -> Result<Vec<u8>, Obstacle> {
    let body = text(body).map_err(|_| Obstacle::Engine)?;
    let mut fields = MessagesFields::default();
    let mut cursor = Cursor::new(body);
    cursor.members(|key, value| fields.take(&key, value)).map_err(|_| Obstacle::Engine)?;
    match fields.obstacle {
        Some(obstacle) => Err(obstacle),
        None => fields.chat(body.len()),
    }
}

impl<'a> MessagesFields<'a> {
    fn take(&mut self, key: &str, value: Raw<'a>) {
        let is_given = !value.is_empty();
        let obstacle = match key {
            // The stream is what this is for, and vLLM does not read who asks.
            "stream" | "metadata" => None,
            "system" => {
                self.system = Some(value);
                None
            }
            "messages" => {
                self.messages = Some(value);
                None
            }
            "max_tokens" => {
                self.max_tokens = Some(value);
                None
            }
            "stop_sequences" => {
                self.stop = Some(value);
                (is_given && value.shape() != Shape::Array).then_some(Obstacle::Engine)
            }
            // A chat may do without.
            "model" if !is_given || value.shape() != Shape::String => Some(Obstacle::Engine),
            "model" => self.keep("model", value),
            "temperature" => self.keep("temperature", value),
            "top_p" => self.keep("top_p", value),
            "top_k" => self.keep("top_k", value),
            "cache_salt" => self.keep("cache_salt", value),
            "chat_template_kwargs" => self.keep("chat_template_kwargs", value),
            // The router's own, when a worker is to pull KV cache. A client's is refused as steering.
            "kv_transfer_params" => self.keep("kv_transfer_params", value),
            "tools" | "tool_choice" => is_given.then_some(Obstacle::Tools),
            "thinking" => is_given.then_some(Obstacle::Reasoning),
            "output_config" => is_given.then_some(Obstacle::Guided),
            _ => is_given.then_some(Obstacle::Engine),
        };
        self.obstacle = self.obstacle.or(obstacle);
    }

    /// Of a field that comes twice the last one counts, as everywhere.
    fn keep(&mut self, key: &'static str, value: Raw<'a>) -> Option<Obstacle> {
        self.same.retain(|it| it.0 != key);
        self.same.push((key, value));
        None
    }

    fn chat(&self, length: usize) -> Result<Vec<u8>, Obstacle> {
        if !self.same.iter().any(|it| it.0 == "model") {
            return Err(Obstacle::Engine);
        }
        let limit = self.max_tokens.filter(|it| it.text.parse::<u64>().is_ok()).ok_or(Obstacle::Engine)?;
        let mut chat = String::with_capacity(length + 256);
        chat.push('{');
        for (key, value) in &self.same {
            chat += &format!("\"{key}\":{},", value.text);
        }
        let limit = limit.text;
        chat += &format!(r#""max_tokens":{limit},"max_completion_tokens":{limit},"#);
        if let Some(stop) = self.stop {
            chat += &format!("\"stop\":{},", stop.text);
        }
        chat += r#""stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":["#;
        let before = chat.len();
        if let Some(system) = self.system {
            write_system(system, &mut chat)?;
        }
        let messages = self.messages.filter(|it| it.shape() == Shape::Array).ok_or(Obstacle::Engine)?;
        let mut obstacle = None;
        let _stopped = messages.records(
            |message: &mut Message<'_>, key, value| match &*key {
                "role" => message.role = Some(value),
                "content" => message.content = Some(value),
                _ => {}
            },
            |_, message| match message.write(&mut chat) {
                Ok(()) => ControlFlow::Continue(()),
                Err(it) => {
                    obstacle = Some(it);
                    ControlFlow::Break(())
                }
            },
        );
        if let Some(obstacle) = obstacle {
            return Err(obstacle);
        }
        if chat.len() > before {
            // The comma after the last message.
            chat.pop();
        }
        chat += "]}";
        Ok(chat.into_bytes())
    }
}

impl Message<'_> {
    /// With a comma after it.
    fn write(&self, chat: &mut String) -> Result<(), Obstacle> {
        let role = self.role.map(|it| it.text).filter(|it| matches!(*it, "\"user\"" | "\"assistant\""));
        let (role, content) = role.zip(self.content).ok_or(Obstacle::Engine)?;
        *chat += &format!("{{\"role\":{role},\"content\":");
        match content.shape() {
            Shape::String => *chat += content.text,
            Shape::Array => match &*texts(content)? {
                [] => return Err(Obstacle::Engine),
                [text] => *chat += text.text,
                several => {
                    let part = |it: &Raw<'_>| format!(r#"{{"type":"text","text":{}}}"#, it.text);
                    let parts: Vec<String> = several.iter().map(part).collect();
                    *chat += &format!("[{}]", parts.join(","));
                }
            },
            _ => return Err(Obstacle::Engine),
        }
        *chat += "},";
        Ok(())
    }
}

/// The system prompt as the first message, with a comma after it. Its blocks are joined without anything between them.
fn write_system(system: Raw<'_>, chat: &mut String) -> Result<(), Obstacle> {
    if system.is_empty() {
        return Ok(());
    }
    let parts = match system.shape() {
        Shape::String => vec![system],
        Shape::Array => texts(system)?,
        _ => return Err(Obstacle::Engine),
    };
    let joined: String = parts.iter().filter_map(|it| it.quoted()).collect();
    if parts.iter().any(|it| it.quoted().is_some_and(|it| it.starts_with(BILLING))) {
        return Err(Obstacle::Engine);
    }
    if !joined.is_empty() {
        *chat += &format!("{{\"role\":\"system\",\"content\":\"{joined}\"}},");
    }
    Ok(())
}

/// The texts of blocks, without empty ones, which vLLM leaves out.
fn texts(blocks: Raw<'_>) -> Result<Vec<Raw<'_>>, Obstacle> {
    let (mut texts, mut obstacle) = (Vec::new(), None);
    let _stopped = blocks.records(
        |block: &mut Block<'_>, key, value| match &*key {
            "type" => block.kind = Some(value),
            "text" => block.text = Some(value),
            _ => {}
        },
        |_, block| {
            obstacle = match block.kind.and_then(Raw::quoted) {
                Some("text")
                    if block.text.is_none_or(|it| matches!(it.shape(), Shape::String | Shape::Null)) =>
                {
                    None
                }
                Some("image" | "document") => Some(Obstacle::Media),
                Some("thinking" | "redacted_thinking") => Some(Obstacle::Reasoning),
                Some("tool_use" | "tool_result" | "tool_reference") => Some(Obstacle::Tools),
                _ => Some(Obstacle::Engine),
            };
            if let Some(text) = block.text.filter(|it| it.shape() == Shape::String && !it.is_empty()) {
                texts.push(text);
            }
            if obstacle.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    match obstacle {
        Some(obstacle) => Err(obstacle),
        None => Ok(texts),
    }
}

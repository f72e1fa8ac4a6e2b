//! Turns a client's messages into what vLLM passes to a chat template.
//!
//! vLLM does not pass a request on unchanged. It keeps the fields it knows, in its own order. It makes content a text
//! or a list of parts, whichever the template iterates over. It parses the arguments of tool calls. It turns
//! developer messages into system messages if the template knows no developer role. A template can print any of this,
//! so this module repeats all of it, after vLLM 0.32 (`renderers/chat_utils.py` and the request types). It also
//! rejects what vLLM rejects, because then there is no prompt.

mod content;
mod tool;

use minijinja::Value;
use minijinja::value::ValueKind;
use thiserror::Error;

use crate::chat::Chat;
use crate::conversation::content::Content;
use crate::options::ContentFormat;

/// The form in which a template expects messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageShape {
    pub(crate) format: ContentFormat,
    pub(crate) knows_developer: bool,
}

/// The messages a template gets.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    /// The same messages with a mark instead of the first image or sound, if there is one.
    pub(crate) marked: Option<Vec<Value>>,
}

/// A chat that vLLM would reject, or that nests deeper than we follow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadChat {
    #[error("{part}: not JSON: {why}")]
    NotJson { part: &'static str, why: String },
    #[error("{part}: expected {expected}")]
    Shape { part: &'static str, expected: &'static str },
    #[error("messages[{at}]: {why}")]
    Message { at: usize, why: &'static str },
    #[error("tools[{at}]: {why}")]
    Tool { at: usize, why: &'static str },
    #[error("{part}: {why}")]
    Unknowable { part: &'static str, why: &'static str },
}

/// One message: the fields of vLLM's own message type.
struct ChatMessage {
    role: String,
    content: Content,
    /// Everything after role and content, in the order vLLM adds it.
    rest: Vec<(&'static str, Value)>,
}

pub(crate) fn read(chat: &Chat<'_>, shape: MessageShape) -> Result<Conversation, BadChat> {
    let mut messages = Vec::new();
    messages.extend(system(chat)?);
    let listed = list("messages", chat.messages)?;
    for (at, message) in listed.iter().enumerate() {
        messages.push(read_message(message, shape.format).map_err(|why| BadChat::Message { at, why })?);
    }
    if messages.is_empty() {
        return Err(BadChat::Shape { part: "messages", expected: "at least one message" });
    }
    if !shape.knows_developer && messages.iter().any(|it| it.role == "developer") {
        messages = developers_to_system(messages);
    }
    let first_media = messages.iter().position(|it| it.content.has_media());
    let marked =
        first_media.map(|first| messages.iter().enumerate().map(|(at, it)| it.value(at == first)).collect());
    Ok(Conversation { messages: messages.iter().map(|it| it.value(false)).collect(), marked })
}

/// The tools that a template gets, if any, in vLLM's own shape and order.
pub(crate) fn tools(chat: &Chat<'_>) -> Result<Option<Value>, BadChat> {
    let Some(text) = chat.tools else { return Ok(None) };
    let tools = json("tools", text)?;
    if tools.is_none() {
        return Ok(None);
    }
    let tools = items(&tools).ok_or(BadChat::Shape { part: "tools", expected: "an array of tools" })?;
    let read =
        tools.iter().enumerate().map(|(at, it)| tool::read(it).map_err(|why| BadChat::Tool { at, why }));
    Ok(Some(read.collect::<Result<Vec<Value>, _>>()?.into()))
}

/// The documents that a template gets, if any.
pub(crate) fn documents(chat: &Chat<'_>) -> Result<Option<Value>, BadChat> {
    let Some(text) = chat.documents else { return Ok(None) };
    let documents = json("documents", text)?;
    if documents.is_none() {
        return Ok(None);
    }
    let all_maps = |it: Vec<Value>| it.iter().all(|it| it.kind() == ValueKind::Map);
    match items(&documents).is_some_and(all_maps) {
        true => Ok(Some(documents)),
        false => Err(BadChat::Shape { part: "documents", expected: "an array of objects" }),
    }
}

/// The members of a JSON object; `null` has none.
pub(crate) fn object(part: &'static str, text: &str) -> Result<Vec<(String, Value)>, BadChat> {
    let value = json(part, text)?;
    let wrong = || BadChat::Shape { part, expected: "an object" };
    match value.kind() {
        ValueKind::None => Ok(Vec::new()),
        ValueKind::Map => Ok(pairs(&value).collect()),
        _ => Err(wrong()),
    }
}

pub(crate) fn json(part: &'static str, text: &str) -> Result<Value, BadChat> {
    crate::json::read(text).map_err(|error| BadChat::NotJson { part, why: error.to_string() })
}

fn list(part: &'static str, text: &str) -> Result<Vec<Value>, BadChat> {
    items(&json(part, text)?).ok_or(BadChat::Shape { part, expected: "an array" })
}

/// The items of an array.
fn items(value: &Value) -> Option<Vec<Value>> {
    match value.kind() {
        ValueKind::Seq => value.try_iter().ok().map(Iterator::collect),
        _ => None,
    }
}

/// The members of an object, in order. Keys of JSON objects are strings.
fn pairs(map: &Value) -> impl Iterator<Item = (String, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    let map = map.clone();
    keys.map(move |key| (key.as_str().unwrap_or_default().to_owned(), map.get_item(&key).unwrap_or_default()))
}

/// A member that is present and not `null`.
fn member(map: &Value, key: &str) -> Option<Value> {
    map.get_attr(key).ok().filter(|it| !it.is_undefined() && !it.is_none())
}

fn system(chat: &Chat<'_>) -> Result<Option<ChatMessage>, BadChat> {
    let Some(text) = chat.system else { return Ok(None) };
    let value = json("system", text)?;
    let wrong = BadChat::Shape { part: "system", expected: "a string or an array of text parts" };
    let text = match value.kind() {
        ValueKind::None => return Ok(None),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Seq => content::system_text(&items(&value).unwrap_or_default()).ok_or(wrong)?,
        _ => return Err(wrong),
    };
    let message = ChatMessage { role: "system".to_owned(), content: Content::Text(text), rest: Vec::new() };
    Ok(Some(message).filter(|it| !it.content.is_empty()))
}

fn read_message(message: &Value, format: ContentFormat) -> Result<ChatMessage, &'static str> {
    if message.kind() != ValueKind::Map {
        return Err("not an object");
    }
    let role =
        member(message, "role").and_then(|it| it.as_str().map(str::to_owned)).ok_or("role is no text")?;
    let mut content = content::read(message, &role, format)?;
    let mut rest = Vec::new();
    match role.as_str() {
        "assistant" => {
            rest.extend(tool::calls(message)?.map(|it| ("tool_calls", it)));
            let reasoning = member(message, "reasoning").or_else(|| member(message, "reasoning_content"));
            if let Some(reasoning) = reasoning {
                rest.push(("reasoning", reasoning.clone()));
                rest.push(("reasoning_content", reasoning));
            }
        }
        "tool" => {
            content.flatten();
            rest.extend(
                message
                    .get_attr("tool_call_id")
                    .ok()
                    .filter(|it| !it.is_undefined())
                    .map(|it| ("tool_call_id", it)),
            );
        }
        _ => {}
    }
    for key in ["name", "task"] {
        rest.extend(member(message, key).filter(|it| it.kind() == ValueKind::String).map(|it| (key, it)));
    }
    if role == "developer" {
        rest.push(("tools", member(message, "tools").unwrap_or(Value::from(()))));
    }
    Ok(ChatMessage { role, content, rest })
}

/// What vLLM does for templates without a developer role: developer messages become system messages, and all system
/// messages become one, at the front.
fn developers_to_system(mut messages: Vec<ChatMessage>) -> Vec<ChatMessage> {
    for message in messages.iter_mut().filter(|it| it.role == "developer") {
        "system".clone_into(&mut message.role);
        message.rest.retain(|it| it.0 != "tools");
    }
    let scattered = messages.iter().skip(1).any(|it| it.role == "system");
    if !scattered {
        return messages;
    }
    let (system, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(|it| it.role == "system");
    let texts: Vec<String> = system.iter().map(|it| it.content.text()).filter(|it| !it.is_empty()).collect();
    let content = Content::Text(texts.join("\n\n"));
    let merged = ChatMessage { role: "system".to_owned(), content, rest: Vec::new() };
    std::iter::once(merged).chain(others).collect()
}

impl ChatMessage {
    fn value(&self, marked: bool) -> Value {
        let content = if marked { self.content.marked() } else { self.content.value() };
        let fields = [("role", Value::from(self.role.as_str())), ("content", content)];
        Value::from_pairs(fields.into_iter().chain(self.rest.iter().cloned()))
    }
}

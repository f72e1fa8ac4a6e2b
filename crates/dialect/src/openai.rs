//! What routing must know of a request body, read in one pass and borrowed from it.
//!
//! `openai` names the API family: chat, completions and responses, and the similar APIs of Anthropic and
//! SGLang, which differ mostly in field names. The body goes to the worker unchanged, except for two fields
//! that an operator may request (`priority.rs`, `salt.rs`) and for what moves a KV cache (`legs`). This module is strict about the fields we act on
//! (`model`, `stream`, `max_tokens`, `priority`, the prompt), each of which may appear once. It ignores hints of an
//! unexpected type (a batch of `lora_path`s, a numeric `user`) and every other field but those that steer
//! engines: of these it names the first, and the caller decides whether the client may send it.
//!
//! UTF-8 is checked once for the whole body, so every returned slice is a `&str` at no cost. Where it is not ASCII, simdutf8
//! does it, because the standard library takes 70 µs for 64 KB of Chinese, as long as all the rest.

mod fields;
mod head;
mod part;
mod priority;
mod prompt;
mod refusal;
mod salt;
mod steering;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::json::edit::{MemberEdit, edit};
use crate::json::{Cursor, Fault, Shape, place, wide};
use crate::openai::fields::BodyFields;
pub use crate::openai::part::Part;
pub use crate::openai::priority::with_priority;
pub use crate::openai::prompt::Prompt;
pub(crate) use crate::openai::prompt::batch;
pub use crate::openai::refusal::BadRequest;
pub use crate::openai::salt::with_salt;
use crate::route::Route;

/// A request as the router sees it. Hints that are absent, `null` or unreadable are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// `stream_options.include_usage`: the worker will report usage at the end of the stream.
    pub include_usage: bool,
    /// Maximum tokens of the answer, under any of its field names. A negative number, which llama.cpp reads
    /// as "no limit", is `None`.
    pub max_tokens: Option<u64>,
    /// How many answers are asked for: `n` or `best_of` of each prompt.
    pub answers: u32,
    /// `user`, else Anthropic's `metadata.user_id`.
    pub user: Option<Cow<'a, str>>,
    /// What connects the turns of a conversation: `session_id`, else `prompt_cache_key`, else `conversation`.
    pub session: Option<Cow<'a, str>>,
    /// The conversation that this request is part of, where the engine keeps it.
    pub conversation: Option<Cow<'a, str>>,
    /// The answer that this request continues. Only the worker that gave it knows it.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// `lora_path`, else `lora_name`. vLLM's adapters are named by `model` instead.
    pub lora: Option<Cow<'a, str>>,
    /// Adapters as JSON where they are not one string: a list with one for each prompt of a batch, or llama.cpp's
    /// `lora`.
    pub loras: Option<&'a str>,
    /// `cache_salt`, SGLang's `extra_key`, or both joined: prompts with different salts share no cache.
    pub cache_salt: Option<Cow<'a, str>>,
    pub priority: Option<Priority<'a>>,
    /// OpenAI's field for priority.
    pub service_tier: Option<Cow<'a, str>>,
    pub template: Template<'a>,
    /// A field that steers the engine past the router (`steering.rs`), if there is one.
    pub steering: Option<&'static str>,
    pub prompt: Prompt<'a>,
}

/// The priority of a request, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Priority<'a> {
    /// vLLM serves lower first and SGLang higher first.
    Number(i64),
    /// No engine accepts a word; routers do.
    Word(Cow<'a, str>),
}

/// How the client wants its messages rendered, in vLLM's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Template<'a> {
    /// The client sent a template of its own.
    pub is_own: bool,
    /// `chat_template_kwargs`, as JSON.
    pub kwargs: Option<&'a str>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub add_special_tokens: Option<bool>,
    /// `reasoning_effort`, as JSON.
    pub reasoning_effort: Option<&'a str>,
    /// `tool_choice`, as JSON.
    pub tool_choice: Option<&'a str>,
}

/// Reads the body of a request.
pub fn parse(route: Route, body: &[u8]) -> Result<Request<'_>, BadRequest> {
    let text = text(body)?;
    // Filled where it is: it has a kilobyte, and was moved three times.
    let mut fields = BodyFields::default();
    match scan(text, &mut fields).map_err(|fault| not_json(text, fault))? {
        None => fields.read(route),
        Some(shape) => Err(BadRequest::NotObject { found: shape.name() }),
    }
}

/// The body with members changed; all else stays byte for byte.
pub(crate) fn edited(body: &[u8], changes: &[MemberEdit<'_>]) -> Result<Vec<u8>, BadRequest> {
    let text = text(body)?;
    edit(text, changes).map(String::into_bytes).map_err(|fault| not_json(text, fault))
}

pub(crate) fn text(body: &[u8]) -> Result<&str, BadRequest> {
    let checked = || simdutf8::compat::from_utf8(body);
    wide::ascii(body)
        .map_or_else(checked, Ok)
        .map_err(|error| BadRequest::NotUtf8 { offset: error.valid_up_to() })
}

/// Reads the raw fields of the body. Returns the type of a body that is not an object.
fn scan<'a>(text: &'a str, fields: &mut BodyFields<'a>) -> Result<Option<Shape>, Fault> {
    let mut cursor = Cursor::new(text);
    if cursor.peek() != Some(b'{') {
        let shape = cursor.value()?.shape();
        cursor.end()?;
        return Ok(Some(shape));
    }
    cursor.members(|key, value| fields.take(&key, value))?;
    cursor.end()?;
    Ok(None)
}

pub(crate) fn not_json(text: &str, fault: Fault) -> BadRequest {
    match fault {
        Fault::TooDeep { offset } => BadRequest::TooDeep { offset },
        Fault::Expected { what, offset } => {
            let (line, column) = place(text, offset);
            BadRequest::NotJson { expected: what, offset, line, column }
        }
    }
}

//! What routing must know of a request body, read in one pass and borrowed from it.
//!
//! The name is the family's: chat, completions and responses, and their cousins from Anthropic and
//! SGLang, which differ in field names more than in kind. The body itself goes to the worker untouched
//! (but for two fields, where an operator asks for it: `priority.rs`, `salt.rs`); this only looks. So it is strict about what we act on (`model`, `stream`, `max_tokens`, the prompt),
//! deaf to hints of an unknown type (a batch of `lora_path`s, a numeric `user`), and blind to the rest:
//! a field an engine may accept is never the reason for a refusal here.
//!
//! UTF-8 is checked once for the whole body, and from then on every slice we hand out is a `&str` for
//! free. By simdutf8: the standard library takes 70 µs for 64 KB of Chinese, as long as all the rest.

mod fields;
mod head;
mod part;
mod priority;
mod prompt;
mod refusal;
mod salt;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::json::{Cursor, Fault, Shape, place};
use crate::openai::fields::BodyFields;
pub use crate::openai::part::Part;
pub use crate::openai::priority::with_priority;
pub use crate::openai::prompt::Prompt;
pub use crate::openai::refusal::BadRequest;
pub use crate::openai::salt::with_salt;
use crate::route::Route;

/// A request as the router sees it. Absent, `null` and unreadable hints are all `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// `stream_options.include_usage`: the worker will report usage at the end of the stream.
    pub include_usage: bool,
    /// The most tokens the answer may have, under any of the names it goes by. A negative number, which
    /// llama.cpp reads as "no limit", is `None`.
    pub max_tokens: Option<u64>,
    /// `user`, else Anthropic's `metadata.user_id`.
    pub user: Option<Cow<'a, str>>,
    /// What ties turns together: `session_id`, else `prompt_cache_key`, else `conversation`.
    pub session: Option<Cow<'a, str>>,
    /// The answer this one continues. Only the worker that gave it knows it.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// `lora_path`, else `lora_name`. vLLM's adapters are named by `model` instead.
    pub lora: Option<Cow<'a, str>>,
    /// The same as JSON where it is no text: a list, with one for each prompt of a batch.
    pub loras: Option<&'a str>,
    /// `cache_salt`, SGLang's `extra_key`, or both joined: prompts with different salts share no cache.
    pub cache_salt: Option<Cow<'a, str>>,
    pub priority: Option<Priority<'a>>,
    /// OpenAI's word for how urgent it is.
    pub service_tier: Option<Cow<'a, str>>,
    pub template: Template<'a>,
    pub prompt: Prompt<'a>,
}

/// How urgent a request is, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Priority<'a> {
    /// vLLM serves lower first and SGLang higher first.
    Number(i64),
    /// No engine takes one; routers do.
    Word(Cow<'a, str>),
}

/// What a client may say about how its messages are rendered, in vLLM's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Template<'a> {
    /// It brought a template of its own.
    pub is_own: bool,
    /// `chat_template_kwargs`, as JSON.
    pub kwargs: Option<&'a str>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub add_special_tokens: Option<bool>,
    /// `reasoning_effort`, as JSON.
    pub reasoning_effort: Option<&'a str>,
}

/// Reads the body of a request. Where a key is repeated the last one counts, as in Python.
pub fn parse(route: Route, body: &[u8]) -> Result<Request<'_>, BadRequest> {
    let text = simdutf8::compat::from_utf8(body)
        .map_err(|error| BadRequest::NotUtf8 { offset: error.valid_up_to() })?;
    let fields = scan(text).map_err(|fault| not_json(text, fault))?;
    match fields {
        Ok(fields) => fields.read(route),
        Err(shape) => Err(BadRequest::NotObject { found: shape.name() }),
    }
}

/// The raw fields of the body, or what the body is instead of an object.
fn scan(text: &str) -> Result<Result<BodyFields<'_>, Shape>, Fault> {
    let mut cursor = Cursor::new(text);
    if cursor.peek() != Some(b'{') {
        let shape = cursor.value()?.shape();
        cursor.end()?;
        return Ok(Err(shape));
    }
    let mut fields = BodyFields::default();
    cursor.members(|key, value| fields.take(&key, value))?;
    cursor.end()?;
    Ok(Ok(fields))
}

fn not_json(text: &str, fault: Fault) -> BadRequest {
    match fault {
        Fault::TooDeep { offset } => BadRequest::TooDeep { offset },
        Fault::Expected { what, offset } => {
            let (line, column) = place(text, offset);
            BadRequest::NotJson { expected: what, offset, line, column }
        }
    }
}

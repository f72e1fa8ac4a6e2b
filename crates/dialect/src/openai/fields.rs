//! The raw fields of a body, and their interpretation once all of them are known.
//!
//! Two steps, because a key may be repeated and only its last value counts. An earlier value of a wrong type
//! must not refuse a request that the engine would accept.

use std::borrow::Cow;

use crate::json::{Raw, Shape};
use crate::openai::part::Part;
use crate::openai::prompt::Prompt;
use crate::openai::refusal::BadRequest;
use crate::openai::{Priority, Request, Template};
use crate::route::Route;

#[derive(Default)]
pub(crate) struct BodyFields<'a> {
    model: Option<Raw<'a>>,
    stream: Option<Raw<'a>>,
    stream_options: Option<Raw<'a>>,
    max_tokens: Option<Raw<'a>>,
    max_completion_tokens: Option<Raw<'a>>,
    max_output_tokens: Option<Raw<'a>>,
    sampling_params: Option<Raw<'a>>,
    user: Option<Raw<'a>>,
    metadata: Option<Raw<'a>>,
    session_id: Option<Raw<'a>>,
    prompt_cache_key: Option<Raw<'a>>,
    conversation: Option<Raw<'a>>,
    previous_response_id: Option<Raw<'a>>,
    lora_path: Option<Raw<'a>>,
    lora_name: Option<Raw<'a>>,
    cache_salt: Option<Raw<'a>>,
    extra_key: Option<Raw<'a>>,
    priority: Option<Raw<'a>>,
    service_tier: Option<Raw<'a>>,
    chat_template: Option<Raw<'a>>,
    chat_template_kwargs: Option<Raw<'a>>,
    add_generation_prompt: Option<Raw<'a>>,
    continue_final_message: Option<Raw<'a>>,
    add_special_tokens: Option<Raw<'a>>,
    reasoning_effort: Option<Raw<'a>>,
    prompt: Prompt<'a>,
}

impl<'a> BodyFields<'a> {
    pub(crate) fn take(&mut self, key: &str, value: Raw<'a>) {
        // Clients write `null` for "not given"; it also overrides an earlier value.
        let value = (value.shape() != Shape::Null).then_some(value);
        let slot = match key {
            "model" => &mut self.model,
            "stream" => &mut self.stream,
            "stream_options" => &mut self.stream_options,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "max_output_tokens" => &mut self.max_output_tokens,
            "sampling_params" => &mut self.sampling_params,
            "user" => &mut self.user,
            "metadata" => &mut self.metadata,
            "session_id" => &mut self.session_id,
            "prompt_cache_key" => &mut self.prompt_cache_key,
            "conversation" => &mut self.conversation,
            "previous_response_id" => &mut self.previous_response_id,
            "lora_path" => &mut self.lora_path,
            "lora_name" => &mut self.lora_name,
            "cache_salt" => &mut self.cache_salt,
            "extra_key" => &mut self.extra_key,
            "priority" => &mut self.priority,
            "service_tier" => &mut self.service_tier,
            "chat_template" => &mut self.chat_template,
            "chat_template_kwargs" => &mut self.chat_template_kwargs,
            "add_generation_prompt" => &mut self.add_generation_prompt,
            "continue_final_message" => &mut self.continue_final_message,
            "add_special_tokens" => &mut self.add_special_tokens,
            "reasoning_effort" => &mut self.reasoning_effort,
            _ => match Part::of(key) {
                Some(part) => self.prompt.slot(part),
                None => return,
            },
        };
        *slot = value;
    }

    pub(crate) fn read(self, route: Route) -> Result<Request<'a>, BadRequest> {
        check_prompt(route, &self.prompt)?;
        Ok(Request {
            model: self.model.map(|it| string("model", it)).transpose()?,
            stream: self.stream.map(|it| boolean("stream", it)).transpose()?.unwrap_or(false),
            include_usage: member(self.stream_options, "include_usage").is_some_and(|it| it.text == "true"),
            max_tokens: self.max_tokens()?,
            user: hint(self.user).or_else(|| hint(member(self.metadata, "user_id"))),
            session: hint(self.session_id)
                .or_else(|| hint(self.prompt_cache_key))
                .or_else(|| hint(self.conversation))
                .or_else(|| hint(member(self.conversation, "id"))),
            previous_response_id: hint(self.previous_response_id),
            lora: hint(self.lora_path).or_else(|| hint(self.lora_name)),
            loras: odd(self.lora_path).or_else(|| odd(self.lora_name)),
            cache_salt: salt(hint(self.cache_salt), hint(self.extra_key)),
            priority: self.priority.and_then(priority),
            service_tier: hint(self.service_tier),
            template: Template {
                is_own: self.chat_template.is_some(),
                kwargs: self.chat_template_kwargs.map(|it| it.text),
                add_generation_prompt: switch(self.add_generation_prompt),
                continue_final_message: switch(self.continue_final_message),
                add_special_tokens: switch(self.add_special_tokens),
                reasoning_effort: self.reasoning_effort.map(|it| it.text),
            },
            prompt: self.prompt,
        })
    }

    fn max_tokens(&self) -> Result<Option<u64>, BadRequest> {
        let candidates = [
            // vLLM also prefers the newer name.
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
            ("max_output_tokens", self.max_output_tokens),
            ("sampling_params.max_new_tokens", member(self.sampling_params, "max_new_tokens")),
        ];
        for (field, raw) in candidates {
            if let Some(raw) = raw {
                return count(field, raw);
            }
        }
        Ok(None)
    }
}

/// A boolean hint; any other type counts as absent.
fn switch(raw: Option<Raw<'_>>) -> Option<bool> {
    match raw?.text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Checks that the field this route prefills is present, in a form that an engine could accept.
fn check_prompt(route: Route, prompt: &Prompt<'_>) -> Result<(), BadRequest> {
    let needed: &[Part] = match route {
        Route::Chat | Route::Messages => &[Part::Messages],
        Route::Completions => &[Part::Prompt, Part::Embeds],
        Route::Responses => &[Part::Input, Part::Prompt],
        Route::Embeddings => &[Part::Input, Part::Messages],
        Route::Generate => &[Part::Text, Part::TokenIds, Part::Embeds],
        // These have several forms per engine; the engine gives a better error.
        Route::Rerank | Route::Score | Route::Classify | Route::Tokenize | Route::Detokenize => &[],
    };
    if let Some(first) = needed.first()
        && needed.iter().all(|&part| prompt.part(part).is_none())
    {
        return Err(BadRequest::Missing { field: first.name() });
    }
    if let Some(messages) = prompt.part(Part::Messages) {
        check_messages(messages)?;
    }
    let text = match route {
        Route::Completions => Part::Prompt,
        Route::Responses | Route::Embeddings => Part::Input,
        _ => return Ok(()),
    };
    match prompt.part(text).map(Raw::shape) {
        None | Some(Shape::String | Shape::Array) => Ok(()),
        Some(found) => Err(wrong_type(text.name(), "a string or an array", found)),
    }
}

fn check_messages(messages: Raw<'_>) -> Result<(), BadRequest> {
    let field = Part::Messages.name();
    match messages.shape() {
        Shape::Array if is_empty_array(messages) => Err(BadRequest::Empty { field }),
        Shape::Array => Ok(()),
        found => Err(wrong_type(field, "an array", found)),
    }
}

fn is_empty_array(raw: Raw<'_>) -> bool {
    raw.text.get(1..).is_some_and(|rest| rest.trim_start().starts_with(']'))
}

fn string<'a>(field: &'static str, raw: Raw<'a>) -> Result<Cow<'a, str>, BadRequest> {
    raw.string().ok_or_else(|| wrong_type(field, "a string", raw.shape()))
}

fn boolean(field: &'static str, raw: Raw<'_>) -> Result<bool, BadRequest> {
    match raw.text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(wrong_type(field, "a boolean", raw.shape())),
    }
}

fn count(field: &'static str, raw: Raw<'_>) -> Result<Option<u64>, BadRequest> {
    match raw.shape() {
        Shape::Number => Ok(integer(raw).and_then(|it| u64::try_from(it).ok())),
        found => Err(wrong_type(field, "an integer", found)),
    }
}

/// A number as an integer: `16.0` is 16, and a value out of range is clamped.
fn integer(raw: Raw<'_>) -> Option<i64> {
    if let Ok(integer) = raw.text.parse() {
        return Some(integer);
    }
    let number: f64 = raw.text.parse().ok()?;
    (!number.is_nan()).then_some(number as i64)
}

fn priority(raw: Raw<'_>) -> Option<Priority<'_>> {
    match raw.string() {
        Some(word) => Some(Priority::Word(word)),
        None => integer(raw).map(Priority::Number),
    }
}

/// An optional string; any other type is ignored.
fn hint(raw: Option<Raw<'_>>) -> Option<Cow<'_, str>> {
    raw?.string()
}

/// If a request has both, SGLang joins them.
fn salt<'a>(salt: Option<Cow<'a, str>>, extra: Option<Cow<'a, str>>) -> Option<Cow<'a, str>> {
    match (salt, extra) {
        (Some(salt), Some(extra)) => Some(Cow::Owned(format!("{salt}{extra}"))),
        (salt, extra) => salt.or(extra),
    }
}

/// The value, if it is present but not a string.
fn odd(raw: Option<Raw<'_>>) -> Option<&str> {
    raw.filter(|it| it.shape() != Shape::String).map(|it| it.text)
}

fn member<'a>(object: Option<Raw<'a>>, name: &str) -> Option<Raw<'a>> {
    let mut found = None;
    object?.members(|key, value| {
        if key == name {
            found = (value.shape() != Shape::Null).then_some(value);
        }
    });
    found
}

fn wrong_type(field: &'static str, expected: &'static str, found: Shape) -> BadRequest {
    BadRequest::WrongType { field, expected, found: found.name() }
}

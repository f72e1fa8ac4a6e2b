//! The raw fields of a body, and their interpretation once all of them are known.
//!
//! A field that the router acts on may appear once. Parsers differ in which of several values counts (Python
//! takes the last, others the first, some refuse), so the engine could act on a value that the router has not
//! seen: another model than the key allows, another priority. For the same reason `priority` must have a
//! type that every engine reads alike.

use std::borrow::Cow;

use crate::json::{Raw, Shape};
use crate::openai::part::{self, Part};
use crate::openai::prompt::{Prompt, batch};
use crate::openai::refusal::BadRequest;
use crate::openai::steering;
use crate::openai::{Priority, Request, Template};
use crate::route::Route;

/// As many answers as one prompt can ask for: vLLM's own limit of `n` (`VLLM_MAX_N_SEQUENCES`). The engine refuses a larger
/// number, and that must not look like work until then. A request may have several prompts, each with so many answers.
const ANSWERS_MAX: u32 = 16_384;

/// A field that the router reads, besides the prompt.
#[derive(Clone, Copy)]
enum BodyField {
    Model,
    Stream,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    Number,
    BestOf,
    SamplingParams,
    User,
    Metadata,
    SessionId,
    PromptCacheKey,
    Conversation,
    PreviousResponseId,
    LoraPath,
    LoraName,
    Lora,
    CacheSalt,
    ExtraKey,
    Priority,
    ServiceTier,
    ChatTemplate,
    ChatTemplateKwargs,
    AddGenerationPrompt,
    ContinueFinalMessage,
    AddSpecialTokens,
    ReasoningEffort,
    ToolChoice,
}

const FIELDS: [(&str, BodyField); 29] = [
    ("model", BodyField::Model),
    ("stream", BodyField::Stream),
    ("stream_options", BodyField::StreamOptions),
    ("max_tokens", BodyField::MaxTokens),
    ("max_completion_tokens", BodyField::MaxCompletionTokens),
    ("max_output_tokens", BodyField::MaxOutputTokens),
    ("n", BodyField::Number),
    ("best_of", BodyField::BestOf),
    ("sampling_params", BodyField::SamplingParams),
    ("user", BodyField::User),
    ("metadata", BodyField::Metadata),
    ("session_id", BodyField::SessionId),
    ("prompt_cache_key", BodyField::PromptCacheKey),
    ("conversation", BodyField::Conversation),
    ("previous_response_id", BodyField::PreviousResponseId),
    ("lora_path", BodyField::LoraPath),
    ("lora_name", BodyField::LoraName),
    ("lora", BodyField::Lora),
    ("cache_salt", BodyField::CacheSalt),
    ("extra_key", BodyField::ExtraKey),
    ("priority", BodyField::Priority),
    ("service_tier", BodyField::ServiceTier),
    ("chat_template", BodyField::ChatTemplate),
    ("chat_template_kwargs", BodyField::ChatTemplateKwargs),
    ("add_generation_prompt", BodyField::AddGenerationPrompt),
    ("continue_final_message", BodyField::ContinueFinalMessage),
    ("add_special_tokens", BodyField::AddSpecialTokens),
    ("reasoning_effort", BodyField::ReasoningEffort),
    ("tool_choice", BodyField::ToolChoice),
];

#[derive(Default)]
pub(crate) struct BodyFields<'a> {
    values: [Option<Raw<'a>>; FIELDS.len()],
    prompt: Prompt<'a>,
    /// A bit for each name that was there: first those of `FIELDS`, then those of the prompt.
    seen: u64,
    /// The first name that was there twice.
    repeated: Option<&'static str>,
    /// The first field that steers engines and has a value.
    steering: Option<&'static str>,
}

impl<'a> BodyFields<'a> {
    pub(crate) fn take(&mut self, key: &str, value: Raw<'a>) {
        // Clients write `null` for "not given".
        let value = (value.shape() != Shape::Null).then_some(value);
        if let Some(at) = FIELDS.iter().position(|it| it.0 == key) {
            self.see(at, FIELDS[at].0);
            self.values[FIELDS[at].1 as usize] = value;
        } else if let Some(at) = part::NAMES.iter().position(|it| it.0 == key) {
            self.see(FIELDS.len() + at, part::NAMES[at].0);
            *self.prompt.slot(part::NAMES[at].1) = value;
        } else if value.is_some() {
            self.steering = self.steering.or_else(|| steering::named(key));
        }
    }

    fn see(&mut self, bit: usize, name: &'static str) {
        const { assert!(FIELDS.len() + part::NAMES.len() <= u64::BITS as usize) };
        if self.seen >> bit & 1 == 1 {
            self.repeated.get_or_insert(name);
        }
        self.seen |= 1 << bit;
    }

    fn value(&self, field: BodyField) -> Option<Raw<'a>> {
        self.values[field as usize]
    }

    fn hint(&self, field: BodyField) -> Option<Cow<'a, str>> {
        hint(self.value(field))
    }

    pub(crate) fn read(&self, route: Route) -> Result<Request<'a>, BadRequest> {
        if let Some(field) = self.repeated {
            return Err(BadRequest::Repeated { field });
        }
        check_prompt(route, &self.prompt)?;
        let ids = self.prompt.part(Part::TokenIds).filter(|_| steering::replaces_messages(route));
        Ok(Request {
            model: self.value(BodyField::Model).map(|it| string("model", it)).transpose()?,
            stream: self
                .value(BodyField::Stream)
                .map(|it| boolean("stream", it))
                .transpose()?
                .unwrap_or(false),
            include_usage: member(self.value(BodyField::StreamOptions), "include_usage")
                .is_some_and(|it| it.text == "true"),
            max_tokens: self.max_tokens()?,
            answers: self.answers(route),
            user: self
                .hint(BodyField::User)
                .or_else(|| hint(member(self.value(BodyField::Metadata), "user_id"))),
            session: self.session(),
            conversation: self.conversation(),
            previous_response_id: self.hint(BodyField::PreviousResponseId),
            lora: self.lora()?,
            loras: self.loras(),
            cache_salt: salt(self.hint(BodyField::CacheSalt), self.hint(BodyField::ExtraKey)),
            priority: self.value(BodyField::Priority).map(priority).transpose()?,
            service_tier: self.hint(BodyField::ServiceTier),
            template: self.template(),
            steering: self.steering.or(ids.map(|_| Part::TokenIds.name())),
            prompt: self.prompt.clone(),
        })
    }

    fn session(&self) -> Option<Cow<'a, str>> {
        self.hint(BodyField::SessionId)
            .or_else(|| self.hint(BodyField::PromptCacheKey))
            .or_else(|| self.conversation())
    }

    fn conversation(&self) -> Option<Cow<'a, str>> {
        let conversation = self.value(BodyField::Conversation);
        hint(conversation).or_else(|| hint(member(conversation, "id")))
    }

    /// The adapter. Two of them are refused: engines differ in which field they read.
    fn lora(&self) -> Result<Option<Cow<'a, str>>, BadRequest> {
        match (self.value(BodyField::LoraPath), self.value(BodyField::LoraName)) {
            (Some(_), Some(_)) => Err(BadRequest::Conflicting { field: "lora_name", other: "lora_path" }),
            (path, name) => Ok(hint(path.or(name))),
        }
    }

    fn loras(&self) -> Option<&'a str> {
        // llama.cpp's `lora` is a list of adapters and their scales.
        odd(self.value(BodyField::LoraPath))
            .or_else(|| odd(self.value(BodyField::LoraName)))
            .or_else(|| self.value(BodyField::Lora).map(|it| it.text))
    }

    fn template(&self) -> Template<'a> {
        Template {
            is_own: self.value(BodyField::ChatTemplate).is_some(),
            kwargs: self.value(BodyField::ChatTemplateKwargs).map(|it| it.text),
            add_generation_prompt: switch(self.value(BodyField::AddGenerationPrompt)),
            continue_final_message: switch(self.value(BodyField::ContinueFinalMessage)),
            add_special_tokens: switch(self.value(BodyField::AddSpecialTokens)),
            reasoning_effort: self.value(BodyField::ReasoningEffort).map(|it| it.text),
            tool_choice: self.value(BodyField::ToolChoice).map(|it| it.text),
        }
    }

    /// At least one: what is no number, engines refuse.
    fn answers(&self, route: Route) -> u32 {
        let of = |field| self.value(field);
        let counts =
            [of(BodyField::Number), of(BodyField::BestOf), member(of(BodyField::SamplingParams), "n")];
        let each = counts.into_iter().flatten().filter_map(integer).max().unwrap_or(1);
        let each = u32::try_from(each.max(1)).unwrap_or(u32::MAX).min(ANSWERS_MAX);
        let lists = match route {
            Route::Completions | Route::Generate => [Part::Prompt, Part::Text, Part::TokenIds],
            _ => return each,
        };
        let prompts = lists.into_iter().find_map(|it| batch(self.prompt.part(it)?)).unwrap_or(1);
        let prompts = u32::try_from(prompts).unwrap_or(u32::MAX).max(1);
        prompts.saturating_mul(each)
    }

    fn max_tokens(&self) -> Result<Option<u64>, BadRequest> {
        let candidates = [
            // vLLM also prefers the newer name.
            ("max_completion_tokens", self.value(BodyField::MaxCompletionTokens)),
            ("max_tokens", self.value(BodyField::MaxTokens)),
            ("max_output_tokens", self.value(BodyField::MaxOutputTokens)),
            (
                "sampling_params.max_new_tokens",
                member(self.value(BodyField::SamplingParams), "max_new_tokens"),
            ),
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
        Route::Chat | Route::Messages | Route::CountTokens => &[Part::Messages],
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

/// An integer of 64 bits, or the name of a class. Engines differ in what they make of anything else: Python's
/// libraries read `true` and `"1"` as one, and cut or refuse a fraction.
fn priority(raw: Raw<'_>) -> Result<Priority<'_>, BadRequest> {
    let wrong = |found| BadRequest::WrongType { field: "priority", expected: PRIORITY, found };
    match (raw.shape(), raw.string()) {
        (Shape::Number, _) => whole(raw).map(Priority::Number).ok_or(wrong("a fraction or beyond 64 bits")),
        (_, Some(word)) if is_numeric(&word) => Err(wrong("a number in quotes")),
        (_, Some(word)) => Ok(Priority::Word(word)),
        (found, None) => Err(wrong(found.name())),
    }
}

const PRIORITY: &str = "an integer or the name of a class";

/// The number, if it is an integer; `2.0` is.
fn whole(raw: Raw<'_>) -> Option<i64> {
    // Every integer below this is exact as a float.
    const EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    raw.text.parse().ok().or_else(|| {
        let number: f64 = raw.text.parse().ok()?;
        (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
    })
}

/// Whether a lenient parser could read the text as a number.
fn is_numeric(word: &str) -> bool {
    let word = word.trim().trim_start_matches(['+', '-', '.', '_']);
    word.is_empty() || word.starts_with(|it: char| it.is_numeric()) || word.parse::<f64>().is_ok()
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

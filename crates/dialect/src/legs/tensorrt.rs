//! TensorRT-LLM: the context leg, then the generation leg.
//!
//! The engine ends a context leg after the first token by itself, so token limits stay. Its answer carries the token ids of the
//! prompt and an opaque state. The generation leg repeats both, and nothing is computed or tokenized twice. An answer
//! that ends for another reason than its length is complete: there is no generation leg.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

use crate::json::edit::{edit_checked, remove, replace, set};
use crate::json::{Cursor, Raw, Shape};
use crate::legs::IN_ONE_PIECE;
use crate::legs::bad_answer::BadAnswer;
use crate::openai::{BadRequest, edited};
use crate::route::Route;

const DISAGGREGATED_PARAMS: &str = "disaggregated_params";
const PROMPT_TOKEN_IDS: &str = "prompt_token_ids";

/// An id for both legs, from a random number. Below 2^40 engines number requests themselves.
pub const fn request_id(random: u64) -> u64 {
    random >> 2 | 1 << 62
}

pub(super) fn prefill(request_id: u64, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
    let params = fmt::from_fn(|out| {
        write!(out, r#"{{"request_type":"context_only","disagg_request_id":{request_id}}}"#)
    });
    let [stream, stream_options] = IN_ONE_PIECE;
    edited(body, &[set(DISAGGREGATED_PARAMS, &params), stream, stream_options])
}

/// What a context worker's answer gives to the generation worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context<'a> {
    params: Raw<'a>,
    token_ids: Option<Raw<'a>>,
    usage: Option<Raw<'a>>,
}

/// The answer of a context worker that is the client's: no generation leg follows. It is passed on without what only
/// routers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complete<'a> {
    answer: &'a str,
    choice: Raw<'a>,
}

/// An answer, and those of its members that matter here.
#[derive(Default)]
pub(super) struct ContextFields<'a> {
    pub(super) answer: &'a str,
    pub(super) choices: Option<Raw<'a>>,
    pub(super) token_ids: Option<Raw<'a>>,
    pub(super) usage: Option<Raw<'a>>,
}

#[derive(Default)]
struct ChoiceFields<'a> {
    finish_reason: Option<Raw<'a>>,
    params: Option<Raw<'a>>,
}

pub(super) fn handoff<'a>(fields: ContextFields<'a>) -> Result<Result<Context<'a>, Complete<'a>>, BadAnswer> {
    let ContextFields { answer, choices, token_ids, usage } = fields;
    let (choice, ChoiceFields { finish_reason, params }) = only_choice(choices)?;
    let goes_on = finish_reason
        .is_none_or(|it| it.shape() == Shape::Null || matches!(it.text, "\"length\"" | "\"not_finished\""));
    if !goes_on {
        return Ok(Err(Complete { answer, choice }));
    }
    let params = params.filter(|it| it.shape() != Shape::Null);
    let params = params.ok_or(BadAnswer::Missing { field: "choices[0].disaggregated_params" })?;
    check_params(params)?;
    let token_ids = token_ids.filter(|it| it.shape() != Shape::Null);
    if let Some(found) = token_ids.map(Raw::shape).filter(|it| *it != Shape::Array) {
        let (field, found) = (PROMPT_TOKEN_IDS, found.name());
        return Err(BadAnswer::WrongType { field, expected: "an array", found });
    }
    Ok(Ok(Context { params, token_ids, usage }))
}

fn only_choice<'a>(choices: Option<Raw<'a>>) -> Result<(Raw<'a>, ChoiceFields<'a>), BadAnswer> {
    let choices = choices.ok_or(BadAnswer::Missing { field: "choices" })?;
    if choices.shape() != Shape::Array {
        let found = choices.shape().name();
        return Err(BadAnswer::WrongType { field: "choices", expected: "an array", found });
    }
    let (mut count, mut only) = (0, None);
    let gather = |fields: &mut ChoiceFields<'a>, key: Cow<'a, str>, value| match &*key {
        "finish_reason" => fields.finish_reason = Some(value),
        DISAGGREGATED_PARAMS => fields.params = Some(value),
        _ => {}
    };
    let _all = choices.records(gather, |raw, fields| {
        count += 1;
        only = Some((raw, fields)).filter(|_| raw.shape() == Shape::Object);
        ControlFlow::Continue(())
    });
    only.filter(|_| count == 1).ok_or(BadAnswer::Choices { count })
}

/// Both ids must be there: without them the generation worker waits for a transfer that nobody makes.
fn check_params(params: Raw<'_>) -> Result<(), BadAnswer> {
    if params.shape() != Shape::Object {
        let (field, found) = ("choices[0].disaggregated_params", params.shape().name());
        return Err(BadAnswer::WrongType { field, expected: "an object", found });
    }
    let mut missing = ["ctx_request_id", "disagg_request_id"].map(Some);
    params.members(|key, value| {
        if value.shape() != Shape::Null {
            missing.iter_mut().filter(|it| **it == Some(&*key)).for_each(|it| *it = None);
        }
    });
    match missing.into_iter().flatten().next() {
        Some(field) => Err(BadAnswer::Missing { field }),
        None => Ok(()),
    }
}

impl Context<'_> {
    /// The client's body for the generation worker.
    pub(super) fn decode(&self, route: Route, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        let usage = self.usage.map_or("null", |it| it.text);
        // Releases that can take over the usage of the context leg have the field in their answer; others refuse it.
        let changes = [set("request_type", &r#""generation_only""#), replace("ctx_usage", &usage)];
        let params = edit_checked(self.params.text, &changes);
        let ids_field = if route == Route::Completions { "prompt" } else { PROMPT_TOKEN_IDS };
        let ids = self.token_ids.map_or("null", |it| it.text);
        let changes = [set(DISAGGREGATED_PARAMS, &params), set(ids_field, &ids)];
        edited(body, &changes[..1 + usize::from(self.token_ids.is_some())])
    }
}

impl Complete<'_> {
    /// The answer in one piece.
    pub fn body(&self) -> String {
        let choice = edit_checked(self.choice.text, &[remove(DISAGGREGATED_PARAMS)]);
        let choices = fmt::from_fn(|out| write!(out, "[{choice}]"));
        edit_checked(self.answer, &[set("choices", &choices), remove(PROMPT_TOKEN_IDS)])
    }

    /// The answer as a stream: one chunk with all of it, the usage if the client asked for it, and the end.
    pub fn events(&self, route: Route, include_usage: bool) -> String {
        let mut delta = "{}";
        self.choice.members(|key, value| {
            if key == "message" {
                delta = value.text;
            }
        });
        let is_chat = route == Route::Chat;
        let object = if is_chat { r#""chat.completion.chunk""# } else { r#""text_completion""# };
        let choice = [remove(DISAGGREGATED_PARAMS), remove("message"), set("delta", &delta)];
        let choice = edit_checked(self.choice.text, &choice[..if is_chat { 3 } else { 1 }]);
        let choices = fmt::from_fn(|out| write!(out, "[{choice}]"));
        let [ids, object] = [remove(PROMPT_TOKEN_IDS), set("object", &object)];
        let mut events =
            event(&edit_checked(self.answer, &[ids, object, set("choices", &choices), remove("usage")]));
        if include_usage {
            events += &event(&edit_checked(self.answer, &[ids, object, set("choices", &"[]")]));
        }
        events + "data: [DONE]\n\n"
    }
}

/// Whether the client of a stream asked for its token counts.
pub fn wants_usage(body: &[u8]) -> bool {
    let mut wants = false;
    if let Ok(text) = std::str::from_utf8(body) {
        // A body that is no object asks for nothing.
        let _ = Cursor::new(text).members(|key, value| {
            if key == "stream_options" {
                value.members(|key, value| wants |= key == "include_usage" && value.text == "true");
            }
        });
    }
    wants
}

/// An event is one line. Strings contain no line ends, so that those of the text are whitespace.
fn event(data: &str) -> String {
    format!("data: {}\n\n", data.replace(['\r', '\n'], " "))
}

//! What a prefill worker answered: the handoff to the decode worker, and how much of the prompt was cached.
//!
//! The decode worker counts transferred tokens as cached. The true hit is in the prefill worker's usage.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use maitre_base::HandoffStyle;

use crate::json::Cursor;
use crate::legs::bad_answer::{ANSWER_BYTES_MAX, BadAnswer};
use crate::legs::tensorrt::{Complete, Context, ContextFields};
use crate::legs::{KV_TRANSFER_PARAMS, nixl, tensorrt, with_params};
use crate::openai::BadRequest;
use crate::route::Route;
use crate::usage::{self, Usage};

/// The JSON answer of a prefill worker whose status was 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    handoff: Handoff<'a>,
    usage: Option<Usage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handoff<'a> {
    /// The style has none, or the worker has nothing to hand over: the decode worker prefills what it lacks.
    Nothing,
    Params(&'a str),
    Context(Context<'a>),
    Complete(Complete<'a>),
}

impl<'a> Answer<'a> {
    /// Reads an answer of a style whose prefill leg is not a stream: all but SGLang's.
    pub fn read(style: HandoffStyle, body: &'a [u8]) -> Result<Answer<'a>, BadAnswer> {
        if body.len() > ANSWER_BYTES_MAX {
            return Err(BadAnswer::TooLarge { bytes: body.len() });
        }
        let text = simdutf8::compat::from_utf8(body)
            .map_err(|error| BadAnswer::NotUtf8 { offset: error.valid_up_to() })?;
        let mut params = None;
        let mut fields = ContextFields { answer: text, ..ContextFields::default() };
        let mut cursor = Cursor::new(text);
        cursor.members(|key, value| match &*key {
            KV_TRANSFER_PARAMS => params = Some(value),
            "choices" => fields.choices = Some(value),
            "prompt_token_ids" => fields.token_ids = Some(value),
            "usage" => fields.usage = Some(value),
            _ => {}
        })?;
        cursor.end()?;
        let usage = fields.usage.and_then(usage::of_object);
        let handoff = match style {
            HandoffStyle::NixlPull => nixl::handoff(params)?.map_or(Handoff::Nothing, Handoff::Params),
            HandoffStyle::TensorRt => match tensorrt::handoff(fields)? {
                Ok(context) => Handoff::Context(context),
                Err(complete) => Handoff::Complete(complete),
            },
            HandoffStyle::NixlPush | HandoffStyle::Mooncake | HandoffStyle::Sglang | HandoffStyle::Store => {
                Handoff::Nothing
            }
        };
        Ok(Answer { handoff, usage })
    }

    /// The prefill worker's own counts: its `cached_tokens` are the true hit.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Whether the prefill worker now holds blocks until the decode worker fetches them or the lease ends.
    pub fn hands_over(&self) -> bool {
        matches!(self.handoff, Handoff::Params(_) | Handoff::Context(_))
    }

    /// The client's answer, if this is it and no decode leg follows.
    pub fn complete(&self) -> Option<Complete<'a>> {
        match self.handoff {
            Handoff::Complete(complete) => Some(complete),
            _ => None,
        }
    }

    /// The decode worker's body: the client's own with what this answer hands over.
    pub fn decode<'b>(&self, route: Route, body: &'b [u8]) -> Result<Cow<'b, [u8]>, BadRequest> {
        match &self.handoff {
            Handoff::Nothing | Handoff::Complete(_) => Ok(Cow::Borrowed(body)),
            Handoff::Params(params) => with_params(body, params).map(Cow::Owned),
            Handoff::Context(context) => context.decode(route, body).map(Cow::Owned),
        }
    }
}

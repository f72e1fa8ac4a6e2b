//! Requests that one worker must serve alone.
//!
//! What the forward pass over the prompt yields (its log probabilities, its echo) exists only on the prefill worker. And
//! engines hand over one prompt for one answer: of a batch vLLM's answer names the blocks of the first prompt, and several
//! answers would read blocks that the first reader has released.
//!
//! vLLM 0.22 cuts a prompt that is to fit so that the longest answer has room behind it. The prefill leg asks for one token, so
//! that its prompt is cut elsewhere, and its blocks are those of other tokens.
//!
//! Parameters serve one request, once. vLLM calls tools of its own for `/v1/responses`, and sends itself the same parameters
//! again with what they answer.
//!
//! vLLM parses a tool call that the client demands, and the one token of a prefill worker is not a whole call: 0.32 refuses such
//! a message with status 400, earlier releases such a chat with 400 or 500.

use std::ops::ControlFlow;

use maitre_base::HandoffStyle;

use crate::json::{Cursor, Raw, Shape};
use crate::openai::{BadRequest, batch, not_json, text};
use crate::route::Route;

/// The field because of which a request cannot be served in two legs, if there is one. A pull from a peer
/// (`legs::peer`) has no such limits.
pub fn obstacle(style: HandoffStyle, route: Route, body: &[u8]) -> Result<Option<&'static str>, BadRequest> {
    let text = text(body)?;
    let mut found = None;
    let mut cursor = Cursor::new(text);
    let walked =
        cursor.members(|key, value| found = found.or_else(|| obstacle_at((style, route), &key, value)));
    walked.and_then(|()| cursor.end()).map_err(|fault| not_json(text, fault))?;
    Ok(found)
}

fn obstacle_at((style, route): (HandoffStyle, Route), key: &str, value: Raw<'_>) -> Option<&'static str> {
    let moves_blocks = style != HandoffStyle::Store;
    let (name, stands) = match key {
        "prompt_logprobs" => ("prompt_logprobs", value.shape() != Shape::Null),
        "echo" => ("echo", value.text == "true"),
        "logprob_start_len" => ("logprob_start_len", value.shape() != Shape::Null && value.text != "-1"),
        // Known to the worker that gave the answer, and started to be fetched there later.
        "previous_response_id" => ("previous_response_id", value.shape() != Shape::Null),
        "background" => ("background", value.text == "true"),
        "n" => ("n", moves_blocks && is_several(value)),
        "best_of" => ("best_of", moves_blocks && is_several(value)),
        "use_beam_search" => ("use_beam_search", moves_blocks && value.text == "true"),
        "sampling_params" if route == Route::Generate => ("sampling_params.n", has_several(value)),
        // Engines transfer by token ids.
        "prompt_embeds" => ("prompt_embeds", moves_blocks && !value.is_empty()),
        "input_embeds" => ("input_embeds", moves_blocks && !value.is_empty()),
        "prompt" => ("prompt", moves_blocks && style != HandoffStyle::Sglang && batch(value).is_some()),
        // The engine demands more tokens than the thinking may take, unless it sees a prefill leg by its parameters.
        "thinking" => ("thinking", !moves_blocks && route == Route::Messages && is_enabled(value)),
        "truncate_prompt_tokens" => {
            ("truncate_prompt_tokens", moves_blocks && is_vllm(style) && value.text.starts_with('-'))
        }
        "truncation" => ("truncation", moves_blocks && is_vllm(style) && value.text == "\"auto\""),
        "tools" => ("tools", moves_blocks && route == Route::Responses && calls_tools_itself(value)),
        "tool_choice" => ("tool_choice", is_vllm(style) && demands_call(route, value)),
        _ => return None,
    };
    stands.then_some(name)
}

const fn is_vllm(style: HandoffStyle) -> bool {
    !matches!(style, HandoffStyle::Sglang | HandoffStyle::TensorRt)
}

/// Whether some tool is the engine's own. vLLM 0.32 calls it and asks itself again, with the parameters that have served once.
fn calls_tools_itself(tools: Raw<'_>) -> bool {
    let walked = tools.records(
        |is_clients: &mut bool, key, value| {
            if key == "type" {
                *is_clients = matches!(value.text, "\"function\"" | "\"custom\"");
            }
        },
        |_, is_clients| match is_clients {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        },
    );
    walked.is_break()
}

/// Whether the answer must be a call of any tool, or of a certain one.
fn demands_call(route: Route, choice: Raw<'_>) -> bool {
    if route != Route::Messages {
        return choice.text == "\"required\"" || choice.shape() == Shape::Object;
    }
    let mut demands = false;
    choice.members(|key, value| demands |= key == "type" && matches!(value.text, "\"any\"" | "\"tool\""));
    demands
}

fn is_several(value: Raw<'_>) -> bool {
    !matches!(value.text, "null" | "0" | "1")
}

fn has_several(sampling_params: Raw<'_>) -> bool {
    let mut found = false;
    sampling_params.members(|key, value| found |= key == "n" && is_several(value));
    // One set of parameters for each prompt of a batch.
    found || sampling_params.shape() == Shape::Array
}

fn is_enabled(thinking: Raw<'_>) -> bool {
    let mut found = false;
    thinking.members(|key, value| found |= key == "type" && value.text == "\"enabled\"");
    found
}

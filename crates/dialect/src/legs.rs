//! The two requests of a prompt that one worker prefills and another decodes, and of a prompt whose KV cache a worker
//! pulls from a peer.
//!
//! The client sends one body. The prefill worker gets it with an answer of one token, the decode worker gets it as it
//! came, and both get the parameters by which their engines find each other. Everything else stays byte for byte.
//!
//! Styles differ in who names whom. Where the prefill worker's answer carries the parameters, the legs run in turn
//! (`Answer`); where the router names both ends, they run at the same time. `Transfer` holds what the router knows
//! before either leg.
//!
//! A field of these that the client sent is replaced. Only trusted keys get that far: from others the router refuses
//! such fields (`openai/steering.rs`), because they address memory on other machines.

mod answer;
mod bad_answer;
mod first_events;
pub mod mooncake;
pub mod nixl;
mod obstacle;
pub mod peer;
pub mod sglang;
mod style;
pub mod tensorrt;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt::Display;

use maitre_base::HandoffStyle;

pub use crate::legs::answer::Answer;
pub use crate::legs::bad_answer::{ANSWER_BYTES_MAX, BadAnswer};
pub use crate::legs::first_events::{FirstEvents, HELD_BYTES_MAX, StreamStart};
pub use crate::legs::obstacle::obstacle;
pub use crate::legs::style::{handoff, is_concurrent, serves, usual_style};

use crate::json::edit::{MemberEdit, remove, replace, set};
use crate::openai::{BadRequest, edited};
use crate::route::Route;

/// vLLM's field for everything about a transfer.
const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

/// A style with what the router must know before it sends the legs of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer<'a> {
    NixlPull,
    NixlPush(nixl::SideChannel<'a>),
    Mooncake(mooncake::Pairing<'a>),
    Sglang(sglang::Bootstrap<'a>),
    /// An id that no other request of the fleet has: see `tensorrt::request_id`.
    TensorRt {
        request_id: u64,
    },
    Store,
}

impl Transfer<'_> {
    pub const fn style(&self) -> HandoffStyle {
        match self {
            Transfer::NixlPull => HandoffStyle::NixlPull,
            Transfer::NixlPush(_) => HandoffStyle::NixlPush,
            Transfer::Mooncake(_) => HandoffStyle::Mooncake,
            Transfer::Sglang(_) => HandoffStyle::Sglang,
            Transfer::TensorRt { .. } => HandoffStyle::TensorRt,
            Transfer::Store => HandoffStyle::Store,
        }
    }

    /// The prefill worker's body, made of the client's. `serves` says for which routes.
    pub fn prefill(&self, route: Route, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        match self {
            Transfer::NixlPull | Transfer::NixlPush(_) => one_token(route, body, Some(&nixl::PREFILL_PARAMS)),
            Transfer::Mooncake(pairing) => one_token(route, body, Some(&pairing.prefill_params())),
            Transfer::Sglang(bootstrap) => bootstrap.prefill(route, body),
            Transfer::TensorRt { request_id } => tensorrt::prefill(*request_id, body),
            Transfer::Store => one_token(route, body, None),
        }
    }

    /// The decode worker's body as far as it does not depend on the prefill worker's answer: for styles whose legs run
    /// in turn the client's own, which the decode worker also gets when the prefill worker failed.
    pub fn decode<'b>(&self, route: Route, body: &'b [u8]) -> Result<Cow<'b, [u8]>, BadRequest> {
        match self {
            Transfer::NixlPull | Transfer::TensorRt { .. } | Transfer::Store => Ok(Cow::Borrowed(body)),
            Transfer::NixlPush(channel) => with_params(body, &channel.decode_params()).map(Cow::Owned),
            Transfer::Mooncake(pairing) => with_params(body, &pairing.decode_params()).map(Cow::Owned),
            Transfer::Sglang(bootstrap) => bootstrap.decode(route, body).map(Cow::Owned),
        }
    }
}

/// The client's body with vLLM's parameters.
fn with_params(body: &[u8], params: &dyn Display) -> Result<Vec<u8>, BadRequest> {
    edited(body, &[set(KV_TRANSFER_PARAMS, params)])
}

/// The client's body, asking for one token in one piece. An engine refuses a request for more tokens than it may
/// generate, so that minima are removed.
fn one_token(route: Route, body: &[u8], params: Option<&dyn Display>) -> Result<Vec<u8>, BadRequest> {
    let limit = if route == Route::Responses { "max_output_tokens" } else { "max_tokens" };
    let [stream, stream_options] = IN_ONE_PIECE;
    let changes = [
        set(KV_TRANSFER_PARAMS, params.unwrap_or(&"null")),
        stream,
        stream_options,
        set(limit, &1),
        // vLLM prefers it.
        replace("max_completion_tokens", &1),
        remove("min_tokens"),
        remove("min_completion_tokens"),
    ];
    edited(body, &changes[usize::from(params.is_none())..])
}

/// What makes an answer one JSON object.
const IN_ONE_PIECE: [MemberEdit<'static>; 2] = [set("stream", &"false"), remove("stream_options")];

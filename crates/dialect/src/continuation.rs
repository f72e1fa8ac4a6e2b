//! Streams that outlive their worker: another worker goes on where the first one stopped.
//!
//! The router asks the engine for the token ids of a stream and keeps them. If the worker fails in the middle, another
//! one gets the ids of the prompt and of what was delivered as its prompt, and its stream is passed on as the rest of the
//! first one: same id, time and model, no second role, usage in one sum. Greedy answers go on token for token (measured
//! with vLLM 0.32); sampled ones go on with a new sample, because engines do not tell the state of their dice.
//!
//! The ids are the way because text is not: tokenized again it gives other tokens than were generated. `StreamTerms` says which
//! requests can be continued; `ContinuableStream` follows the stream.
//!
//! Streams of `/v1/messages` carry no ids. vLLM makes them from chats, so the router asks for the chat and converts its events
//! itself (`as_chat`, `as_messages`).
//!
//! Left out: `/v1/responses`, whose streams carry no ids in any engine.

mod as_chat;
mod as_messages;
mod chunk;
mod id_list;
mod obstacle;
mod pattern;
mod splice;
mod stop;
mod stream;
mod terms;
#[cfg(test)]
mod tests;
mod transcript;

pub use crate::continuation::as_chat::as_chat;
pub use crate::continuation::obstacle::Obstacle;
pub use crate::continuation::stream::{Break, ContinuableStream, Flow};
pub use crate::continuation::terms::{StreamTerms, with_ids};

use crate::engine::EngineKind;
use crate::route::Route;

/// Whether engines of this kind put token ids into the streams of a route, or of the chat that they make of it, and take them
/// as a prompt there.
pub const fn serves(kind: EngineKind, route: Route) -> bool {
    match kind {
        EngineKind::Vllm => matches!(route, Route::Chat | Route::Completions | Route::Messages),
        EngineKind::Sglang => matches!(route, Route::Chat | Route::Completions),
        _ => false,
    }
}

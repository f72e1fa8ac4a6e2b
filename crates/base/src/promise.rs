//! Promised work: requests that routers have sent to a worker and that have not finished, in tokens.

use crate::tokens::Tokens;

/// What one request will cost a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Prompt tokens to compute; zero once the first token is out.
    pub prefill: Tokens,
    pub decode: Tokens,
    /// What the request adds to the KV cache by its end: the computed part of the prompt, and the answer. The
    /// rest of the prompt is cached already, and shared.
    pub context: Tokens,
    /// Whether the first token is out.
    pub prefilled: bool,
}

/// The sum of promises to one worker: by one router, or by several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromisedWork {
    pub requests: u32,
    /// Requests whose first token is not out yet.
    pub prefilling: u32,
    pub prefill: Tokens,
    pub decode: Tokens,
    pub context: Tokens,
}

impl PromisedWork {
    /// The sum of both. Saturates.
    #[must_use]
    pub fn plus(&self, other: &PromisedWork) -> PromisedWork {
        PromisedWork {
            requests: self.requests.saturating_add(other.requests),
            prefilling: self.prefilling.saturating_add(other.prefilling),
            prefill: self.prefill + other.prefill,
            decode: self.decode + other.decode,
            context: self.context + other.context,
        }
    }
}

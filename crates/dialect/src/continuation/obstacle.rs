//! Why a stream cannot be continued.

use std::fmt;

/// What a continuation would get wrong, or cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// The API, or the engine, has no token ids in its streams.
    Engine,
    /// Several answers, or a batch of prompts.
    Several,
    /// The grammar of guided decoding starts anew with each request.
    Guided,
    /// Log probabilities are counted from the beginning of an answer.
    Logprobs,
    /// What the prompt itself yields: its echo, its log probabilities, its hidden states.
    Prompt,
    /// Penalties count the tokens of the answer, and would take those delivered for the prompt.
    Penalties,
    /// Stop strings that the router does not match: expressions, very long ones, or with a least number of tokens.
    StopStrings,
    /// The state of the engine's tool parser.
    Tools,
    /// The state of the engine's reasoning parser.
    Reasoning,
    /// Images, sound and embeddings are no token ids.
    Media,
    /// The client's own parameters for the engine's KV cache or its prompt.
    Steering,
    /// More token ids than are kept of one stream.
    TooLong,
    /// The token ids of all streams together have reached their limit.
    NoMemory,
    /// The stream came without token ids, or in a form that is not known here.
    NoIds,
    /// A worker did not go on from the ids that it got.
    Refused,
}

impl Obstacle {
    pub const ALL: [Obstacle; 15] = [
        Obstacle::Engine,
        Obstacle::Several,
        Obstacle::Guided,
        Obstacle::Logprobs,
        Obstacle::Prompt,
        Obstacle::Penalties,
        Obstacle::StopStrings,
        Obstacle::Tools,
        Obstacle::Reasoning,
        Obstacle::Media,
        Obstacle::Steering,
        Obstacle::TooLong,
        Obstacle::NoMemory,
        Obstacle::NoIds,
        Obstacle::Refused,
    ];

    /// The metric label, and the value of a response header.
    pub const fn name(self) -> &'static str {
        match self {
            Obstacle::Engine => "engine",
            Obstacle::Several => "several",
            Obstacle::Guided => "guided",
            Obstacle::Logprobs => "logprobs",
            Obstacle::Prompt => "prompt",
            Obstacle::Penalties => "penalties",
            Obstacle::StopStrings => "stop-strings",
            Obstacle::Tools => "tools",
            Obstacle::Reasoning => "reasoning",
            Obstacle::Media => "media",
            Obstacle::Steering => "steering",
            Obstacle::TooLong => "too-long",
            Obstacle::NoMemory => "no-memory",
            Obstacle::NoIds => "no-ids",
            Obstacle::Refused => "refused",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

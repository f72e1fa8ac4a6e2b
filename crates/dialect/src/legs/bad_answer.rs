//! Why the answer of a prefill worker cannot be used.

use crate::json::Fault;

/// Largest answer that is read. Chosen: it holds the token ids of a prompt of two million tokens.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// What is wrong with an answer. No message repeats its text: answers contain prompts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    #[error("read the prefill worker's answer: {bytes} bytes, of at most {ANSWER_BYTES_MAX}")]
    TooLarge { bytes: usize },
    #[error("read the prefill worker's answer: not valid UTF-8 at byte {offset}")]
    NotUtf8 { offset: usize },
    #[error("read the prefill worker's answer: not a JSON object: expected {expected} at byte {offset}")]
    NotJson { expected: &'static str, offset: usize },
    #[error("read the prefill worker's answer: nested too deep at byte {offset}")]
    TooDeep { offset: usize },
    #[error("read the prefill worker's answer: `{field}` must be {expected}, not {found}")]
    WrongType { field: &'static str, expected: &'static str, found: &'static str },
    #[error("read the prefill worker's answer: `{field}` is missing or null")]
    Missing { field: &'static str },
    #[error("read the prefill worker's answer: `choices` must hold one object, and holds {count} values")]
    Choices { count: usize },
}

impl From<Fault> for BadAnswer {
    fn from(fault: Fault) -> BadAnswer {
        match fault {
            Fault::Expected { what, offset } => BadAnswer::NotJson { expected: what, offset },
            Fault::TooDeep { offset } => BadAnswer::TooDeep { offset },
        }
    }
}

//! Why a body is refused before any worker sees it.
//!
//! Each message says what is wrong, where, and what would be right, because the client's developer has
//! nothing else to read. No message repeats the client's own text: bodies contain prompts.

use crate::json::MAX_DEPTH;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("the request body is not valid UTF-8 at byte {offset}")]
    NotUtf8 { offset: usize },
    #[error(
        "the request body is not valid JSON: expected {expected} at line {line} column {column} (byte {offset})"
    )]
    NotJson { expected: &'static str, offset: usize, line: usize, column: usize },
    #[error("the request body is nested more than {MAX_DEPTH} levels deep at byte {offset}")]
    TooDeep { offset: usize },
    #[error("the request body must be a JSON object, not {found}")]
    NotObject { found: &'static str },
    #[error("`{field}` is missing")]
    Missing { field: &'static str },
    #[error("`{field}` must not be empty")]
    Empty { field: &'static str },
    #[error("`{field}` must be {expected}, not {found}")]
    WrongType { field: &'static str, expected: &'static str, found: &'static str },
    /// Engines differ in which of the values counts.
    #[error("`{field}` is there more than once; send it once")]
    Repeated { field: &'static str },
    #[error("`{field}` and `{other}` exclude each other; send one of them")]
    Conflicting { field: &'static str, other: &'static str },
    /// Refused, not removed: a client that sends it expects an answer made with it, and a body is forwarded
    /// as it came or not at all.
    #[error("`{field}` controls the engine itself and is accepted from trusted keys only; leave it out")]
    Steering { field: &'static str },
}

impl BadRequest {
    /// Stable: clients and dashboards match on it.
    pub const fn code(&self) -> &'static str {
        match self {
            BadRequest::NotUtf8 { .. } => "invalid_utf8",
            BadRequest::NotJson { .. } => "invalid_json",
            BadRequest::TooDeep { .. } => "nested_too_deep",
            BadRequest::NotObject { .. } => "not_an_object",
            BadRequest::Missing { .. } => "missing_field",
            BadRequest::Empty { .. } => "empty_field",
            BadRequest::WrongType { .. } => "wrong_type",
            BadRequest::Repeated { .. } => "repeated_field",
            BadRequest::Conflicting { .. } => "conflicting_fields",
            BadRequest::Steering { .. } => "engine_field",
        }
    }

    /// The field at fault, if there is one.
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            BadRequest::Missing { field }
            | BadRequest::Empty { field }
            | BadRequest::WrongType { field, .. }
            | BadRequest::Repeated { field }
            | BadRequest::Conflicting { field, .. }
            | BadRequest::Steering { field } => Some(field),
            _ => None,
        }
    }
}

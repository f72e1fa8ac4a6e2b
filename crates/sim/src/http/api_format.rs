//! The five generating APIs.

/// The API format of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiFormat {
    Chat,
    Completion,
    Responses,
    Messages,
    Generate,
}

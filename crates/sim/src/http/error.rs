//! Refusals as vLLM words them: one JSON object, one status.

use http::StatusCode;
use serde_json::json;

use crate::engine::Reject;

/// A request we do not serve, and whose mistake that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
}

impl Refusal {
    pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
        let status = StatusCode::BAD_REQUEST;
        Refusal { status, message: message.into(), kind: "BadRequestError", param: None }
    }

    pub(super) fn unknown_model(name: &str) -> Refusal {
        Refusal {
            status: StatusCode::NOT_FOUND,
            message: format!("The model `{name}` does not exist."),
            kind: "NotFoundError",
            param: Some("model"),
        }
    }

    /// A status and nothing more to say about it.
    pub(super) fn plain(status: StatusCode) -> Refusal {
        let kind = status.canonical_reason().unwrap_or("Error");
        Refusal { status, message: kind.to_owned(), kind, param: None }
    }

    pub(super) fn to_json(&self) -> String {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }})
        .to_string()
    }
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Refusal {
        Refusal::bad_request(reject.to_string())
    }
}

impl From<serde_json::Error> for Refusal {
    fn from(error: serde_json::Error) -> Refusal {
        Refusal::bad_request(format!("the body is not the JSON we expect: {error}"))
    }
}

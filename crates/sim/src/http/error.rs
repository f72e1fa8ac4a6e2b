//! Errors in vLLM's format: one JSON object, one status.

use http::StatusCode;
use serde_json::json;

use crate::engine::Reject;

/// A request that the engine does not serve, with status and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
}

impl ApiError {
    pub(super) fn bad_request(message: impl Into<String>) -> ApiError {
        let status = StatusCode::BAD_REQUEST;
        ApiError { status, message: message.into(), kind: "BadRequestError", param: None }
    }

    pub(super) fn unknown_model(name: &str) -> ApiError {
        ApiError {
            status: StatusCode::NOT_FOUND,
            message: format!("The model `{name}` does not exist."),
            kind: "NotFoundError",
            param: Some("model"),
        }
    }

    /// A request that ended inside the engine.
    pub(super) fn internal() -> ApiError {
        ApiError::of_engine("Internal server error")
    }

    /// The engine is dead.
    pub(super) fn engine_dead() -> ApiError {
        ApiError::of_engine("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    }

    fn of_engine(message: &str) -> ApiError {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: message.to_owned(),
            kind: "InternalServerError",
            param: None,
        }
    }

    /// A status without further details.
    pub(super) fn plain(status: StatusCode) -> ApiError {
        let kind = status.canonical_reason().unwrap_or("Error");
        ApiError { status, message: kind.to_owned(), kind, param: None }
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

impl ApiError {
    /// The event of a stream that fails after its head, with vLLM's spaces.
    pub(super) fn to_event(&self) -> String {
        format!(
            "data: {{\"error\": {{\"message\": {}, \"type\": \"{}\", \"param\": null, \"code\": {}}}}}\n\n",
            json!(self.message),
            self.kind,
            self.status.as_u16()
        )
    }
}

impl From<Reject> for ApiError {
    fn from(reject: Reject) -> ApiError {
        ApiError::bad_request(reject.to_string())
    }
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> ApiError {
        ApiError::bad_request(format!("the body is not the JSON we expect: {error}"))
    }
}

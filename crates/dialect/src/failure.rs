//! Formats an error for the client, in the shape of its API.
//!
//! Before a stream has begun the error is a whole body; after that it is an event. The caller sets the HTTP
//! status.

use std::borrow::Cow;

use crate::openai::BadRequest;
use crate::route::Route;

/// What went wrong, as the client's code sees it. The message is for people, the code for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    pub kind: FailureKind,
    pub code: &'a str,
    pub message: Cow<'a, str>,
    /// The field of the request at fault, if it is one.
    pub param: Option<&'a str>,
}

/// Who must act, with the names that the two API families use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The client must change the request.
    Invalid,
    Unauthorized,
    NotFound,
    /// The client must slow down.
    RateLimited,
    /// The fleet is full; a later retry may succeed.
    Overloaded,
    /// A worker or the router failed.
    Server,
}

impl<'a> Failure<'a> {
    /// A failure of a worker or of the router.
    pub fn server(code: &'a str, message: impl Into<Cow<'a, str>>) -> Failure<'a> {
        Failure { kind: FailureKind::Server, code, message: message.into(), param: None }
    }
}

impl From<&BadRequest> for Failure<'static> {
    fn from(refusal: &BadRequest) -> Failure<'static> {
        Failure {
            kind: FailureKind::Invalid,
            code: refusal.code(),
            message: refusal.to_string().into(),
            param: refusal.param(),
        }
    }
}

impl FailureKind {
    const fn openai(self) -> &'static str {
        match self {
            FailureKind::Invalid => "invalid_request_error",
            FailureKind::Unauthorized => "authentication_error",
            FailureKind::NotFound => "not_found_error",
            FailureKind::RateLimited => "rate_limit_error",
            FailureKind::Overloaded => "overloaded_error",
            FailureKind::Server => "server_error",
        }
    }

    const fn anthropic(self) -> &'static str {
        match self {
            FailureKind::Server => "api_error",
            // The other kinds have the same names in both.
            _ => self.openai(),
        }
    }
}

/// The whole JSON body of an error response.
pub fn body(route: Route, failure: &Failure<'_>) -> String {
    let message = quote(&failure.message);
    match route {
        Route::Messages | Route::CountTokens => {
            let kind = failure.kind.anthropic();
            format!(r#"{{"type":"error","error":{{"type":"{kind}","message":{message}}}}}"#)
        }
        _ => {
            let kind = failure.kind.openai();
            let param = failure.param.map_or_else(|| "null".to_owned(), quote);
            let code = quote(failure.code);
            format!(r#"{{"error":{{"message":{message},"type":"{kind}","param":{param},"code":{code}}}}}"#)
        }
    }
}

/// The event that ends a stream whose worker failed. See `sse::Tracker::failure_event` for where it may go.
pub fn event(route: Route, failure: &Failure<'_>) -> String {
    match route {
        Route::Messages | Route::CountTokens => format!("event: error\ndata: {}\n\n", body(route, failure)),
        Route::Responses => {
            let (code, message) = (quote(failure.code), quote(&failure.message));
            // The real sequence number is unknown here. Clients use it only to order events that they can
            // still use.
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"code\":{code},\"message\":{message},\"param\":null,\"sequence_number\":0}}\n\n"
            )
        }
        _ => format!("data: {}\n\n", body(route, failure)),
    }
}

/// A JSON string. It contains no line feed, so that it stays within one line of an event.
fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARD: &str = "line\nquote\" back\\slash é \u{1}";

    #[track_caller]
    fn check(actual: &str, expected: &str) {
        assert_eq!(actual, expected);
    }

    #[test]
    fn a_body_has_the_shape_of_its_api() {
        let failure = Failure::server("worker_failed", "gone");
        check(
            &body(Route::Chat, &failure),
            r#"{"error":{"message":"gone","type":"server_error","param":null,"code":"worker_failed"}}"#,
        );
        check(
            &body(Route::Messages, &failure),
            r#"{"type":"error","error":{"type":"api_error","message":"gone"}}"#,
        );
    }

    #[test]
    fn a_refusal_names_its_field_and_its_code() {
        let refusal = BadRequest::Missing { field: "messages" };
        check(
            &body(Route::Chat, &Failure::from(&refusal)),
            r#"{"error":{"message":"`messages` is missing","type":"invalid_request_error","param":"messages","code":"missing_field"}}"#,
        );
    }

    #[test]
    fn an_event_has_the_shape_of_its_api() {
        let failure = Failure::server("worker_failed", "gone");
        check(
            &event(Route::Completions, &failure),
            "data: {\"error\":{\"message\":\"gone\",\"type\":\"server_error\",\"param\":null,\"code\":\"worker_failed\"}}\n\n",
        );
        check(
            &event(Route::Messages, &failure),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"gone\"}}\n\n",
        );
        check(
            &event(Route::Responses, &failure),
            "event: error\ndata: {\"type\":\"error\",\"code\":\"worker_failed\",\"message\":\"gone\",\"param\":null,\"sequence_number\":0}\n\n",
        );
    }

    #[test]
    fn any_message_survives_as_json_on_one_line() {
        for route in Route::ALL {
            let text = event(route, &Failure::server("c", HARD));
            let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let value: serde_json::Value = serde_json::from_str(data).unwrap();
            let message = value.pointer("/error/message").or_else(|| value.pointer("/message"));
            assert_eq!(message.and_then(|it| it.as_str()), Some(HARD), "{route:?}: {text}");
        }
    }
}

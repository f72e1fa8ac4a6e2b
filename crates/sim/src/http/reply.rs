//! A response, and its form over HTTP.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use serde_json::Value;

use super::OpenGuard;
use super::body::{Body, BodyLimit, EventStream};
use super::error::ApiError;

const JSON: &str = "application/json";
pub(super) const EVENTS: &str = "text/event-stream; charset=utf-8";

/// A response before faults are applied.
pub(super) enum RouteReply {
    Whole { content_type: &'static str, content: Bytes },
    EventStream(Box<EventStream>),
    Empty,
}

impl RouteReply {
    pub(super) fn json(value: &Value) -> RouteReply {
        RouteReply::text(value.to_string())
    }

    pub(super) fn text(json: String) -> RouteReply {
        RouteReply::Whole { content_type: JSON, content: json.into() }
    }
}

pub(super) fn respond(
    reply: Result<RouteReply, ApiError>,
    limit: Option<BodyLimit>,
    open: OpenGuard,
) -> Response<Body> {
    let (status, content_type, body) = match reply {
        Ok(RouteReply::Whole { content_type, content }) => {
            (StatusCode::OK, Some(content_type), Body::whole(content, limit, open))
        }
        Ok(RouteReply::EventStream(stream)) => {
            (StatusCode::OK, Some(EVENTS), Body::stream(stream, limit, open))
        }
        Ok(RouteReply::Empty) => (StatusCode::OK, None, Body::whole(Bytes::new(), limit, open)),
        Err(refusal) => (refusal.status, Some(JSON), Body::whole(refusal.to_json(), limit, open)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(content_type) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

//! Traces as OTLP: JSON over HTTP, by the OpenTelemetry protocol 1.x. Attributes have the names of its semantic
//! conventions where there are any; our own begin with `maitre.`.

use std::time::Duration;

use bytes::Bytes;
use maitre_base::Instant;
use maitre_dialect::route::Route;
use serde_json::{Value, json};

use super::FinishedTrace;
use super::context::Which;
use super::trace::{Interval, RECALLED, TracedAttempt};
use crate::outcome::RequestOutcome;

/// Converts from our clock to wall time.
#[derive(Clone, Copy)]
pub(super) struct Wall {
    /// The same moment by both clocks.
    pub(super) now: Instant,
    pub(super) unix: Duration,
}

impl Wall {
    /// Nanoseconds since 1970, as text: they do not fit a JSON number.
    fn nanos(self, at: Instant) -> String {
        self.unix.saturating_sub(self.now.since(at)).as_nanos().to_string()
    }
}

/// The body of one request to the collector.
pub(super) fn body(service: &str, wall: Wall, traces: &[FinishedTrace]) -> Bytes {
    let spans: Vec<Value> = traces.iter().flat_map(|it| spans(wall, it)).collect();
    let version = env!("CARGO_PKG_VERSION");
    let resource = [text("service.name", service), text("service.version", version)];
    let scope = json!({"name": "maitre", "version": version});
    let all = json!({
        "resourceSpans": [{
            "resource": {"attributes": resource},
            "scopeSpans": [{"scope": scope, "spans": spans}],
        }],
    });
    Bytes::from(all.to_string())
}

const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

fn spans(wall: Wall, finished: &FinishedTrace) -> Vec<Value> {
    let (trace, ending) = (&finished.trace, &finished.ending);
    let context = &trace.context;
    let root = context.span(Which::Receive);
    let until = |interval: Interval| (interval.from, interval.to.unwrap_or(ending.ended));
    let span = |name: &'static str, which, parent: Option<u64>, time: (Instant, Instant)| {
        let mut span = json!({
            "traceId": format!("{:032x}", context.trace),
            "spanId": format!("{:016x}", context.span(which)),
            "name": name,
            "kind": INTERNAL,
            "startTimeUnixNano": wall.nanos(time.0),
            "endTimeUnixNano": wall.nanos(time.1),
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        if let Some(state) = &trace.state {
            span["traceState"] = json!(state);
        }
        span
    };
    let mut receive = span("receive", Which::Receive, trace.parent, (ending.arrived, ending.ended));
    receive["kind"] = json!(SERVER);
    receive["attributes"] = json!(received(finished));
    if let Some(what) = fault(finished) {
        receive["status"] = json!({"code": 2, "message": what});
    }
    let mut spans = vec![receive];
    spans.extend(trace.decide.map(|it| span("decide", Which::Decide, Some(root), until(it))));
    for (number, interval) in trace.queue.iter().enumerate() {
        spans.push(span("queue", Which::Queue(number), Some(root), until(*interval)));
    }
    for (number, attempt) in trace.attempts.iter().enumerate() {
        let which = Which::Upstream(&attempt.placement);
        let mut upstream = span("upstream", which, Some(root), until(attempt.interval));
        upstream["kind"] = json!(CLIENT);
        let is_last = number + 1 == trace.attempts.len();
        upstream["attributes"] = json!(upstream_attributes(finished, attempt, is_last));
        if let Some(error) =
            attempt.error.filter(|it| *it != RECALLED).or_else(|| fault(finished).filter(|_| is_last))
        {
            upstream["status"] = json!({"code": 2, "message": error});
        }
        if let Some((first, _)) = ending.chunks.filter(|_| is_last && attempt.error.is_none()) {
            upstream["events"] = json!([{"timeUnixNano": wall.nanos(first), "name": "first_token"}]);
        }
        spans.push(upstream);
    }
    if let Some((first, last, attempt)) = finished.stream() {
        let parent = context.span(Which::Upstream(&attempt.placement));
        spans.push(span("stream", Which::Stream, Some(parent), (first, last)));
    }
    spans
}

/// The server-side fault, if there was one.
fn fault(finished: &FinishedTrace) -> Option<&'static str> {
    let is_server_error = finished.trace.status.is_some_and(|it| it.is_server_error());
    match finished.ending.outcome {
        outcome @ (RequestOutcome::Broke | RequestOutcome::Stalled | RequestOutcome::Overdue) => {
            Some(outcome.name())
        }
        RequestOutcome::Refused(code) | RequestOutcome::Declined(code) if is_server_error => Some(code),
        _ => None,
    }
}

fn received(finished: &FinishedTrace) -> Vec<Value> {
    let (trace, ending) = (&finished.trace, &finished.ending);
    let placement = trace.attempts.last();
    let mut all = vec![
        text("http.request.method", trace.method.as_str()),
        text("maitre.request_id", ending.id.to_str().unwrap_or("-")),
        text("maitre.outcome", ending.outcome.name()),
        number("maitre.queue_ms", ending.waited.as_millis() as u64),
    ];
    all.extend(trace.path.as_deref().map(|it| text("url.path", it)));
    all.extend(trace.status.map(|it| number("http.response.status_code", u64::from(it.as_u16()))));
    all.extend(ending.route.map(|it| text("gen_ai.operation.name", operation(it))));
    // A model that no worker serves is the client's own text.
    all.extend(
        trace.model.as_deref().filter(|_| placement.is_some()).map(|it| text("gen_ai.request.model", it)),
    );
    all.extend(ending.class.as_deref().map(|it| text("maitre.class", it)));
    all.extend(placement.into_iter().flat_map(chosen));
    let usage = ending.usage.unwrap_or_default();
    let counts = [
        ("gen_ai.usage.input_tokens", usage.prompt_tokens),
        ("gen_ai.usage.output_tokens", usage.completion_tokens),
        ("maitre.cached_tokens", usage.cached_tokens),
    ];
    all.extend(counts.into_iter().filter_map(|(key, count)| Some(number(key, count?))));
    all.extend(error(finished).map(|it| text("error.type", &it)));
    all
}

/// The error to match on: our code, the worker's status, or how the response ended.
fn error(finished: &FinishedTrace) -> Option<String> {
    match finished.ending.outcome {
        RequestOutcome::Answered => None,
        RequestOutcome::Refused(code) => Some(code.to_owned()),
        RequestOutcome::Declined(code) => {
            Some(finished.trace.status.map_or(code.to_owned(), |it| it.as_u16().to_string()))
        }
        outcome => Some(outcome.name().to_owned()),
    }
}

fn upstream_attributes(finished: &FinishedTrace, attempt: &TracedAttempt, is_last: bool) -> Vec<Value> {
    let address = &attempt.link.address;
    let mut all = vec![
        text("http.request.method", finished.trace.method.as_str()),
        text("server.address", address.host()),
        number("server.port", u64::from(address.port())),
    ];
    all.extend(chosen(attempt));
    all.extend(attempt.error.filter(|it| *it != RECALLED).map(|it| text("error.type", it)));
    if is_last && attempt.error.is_none() {
        let status = finished.trace.status;
        all.extend(status.map(|it| number("http.response.status_code", u64::from(it.as_u16()))));
    }
    all
}

/// The worker that was picked, and why.
fn chosen(attempt: &TracedAttempt) -> impl Iterator<Item = Value> {
    let placement = &attempt.placement;
    let certain = [
        text("maitre.worker", &attempt.link.url),
        text("maitre.why", placement.why.name()),
        number("maitre.attempt", u64::from(placement.attempt)),
    ];
    certain.into_iter().chain(placement.held.map(|it| number("maitre.held_tokens", it.0)))
}

/// The semantic conventions for generative AI define three; our own names for the rest.
fn operation(route: Route) -> &'static str {
    match route {
        Route::Chat | Route::Messages | Route::Responses => "chat",
        Route::Completions | Route::Generate => "text_completion",
        route => route.name(),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// OTLP writes 64-bit integers as text.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

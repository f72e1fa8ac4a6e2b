//! OpenTelemetry spans of each request. Off unless a collector is set.
//!
//! Every request keeps its own timestamps anyway. A sampled one keeps a little more (`trace`), and when it ends puts it
//! all into a bounded queue. One task on the main thread turns the queue into OTLP (`otlp`) and posts it (`export`).
//! When the collector cannot keep up, traces are dropped and counted; no request ever waits.
//!
//! Spans hold names, numbers and reasons. Of the client's own text they hold the request id, the trace state, and the
//! model, if it is one we serve.

mod context;
mod export;
mod otlp;
mod trace;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Uri};
use maitre_base::{RequestId, hash};
use maitre_dialect::route::Route;
use tokio::sync::{mpsc, oneshot};

use crate::metrics::TraceCounts;
use crate::settings::RouterSettings;
pub(crate) use context::Context;
use context::Parent;
pub(crate) use export::Exporter;
pub(crate) use trace::{FinishedTrace, Trace, TraceEnding};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Traces that wait for export at most. Chosen: one second of eight thousand sampled requests a second.
const TRACES_MAX: usize = 8_192;

/// Keeps trace ids apart from request ids, which are made from the same nonce.
const TAG: u64 = 0x7472_6163_6573;

/// Takes the traces of ended requests.
pub(crate) struct Traces {
    finished: mpsc::Sender<FinishedTrace>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counts: TraceCounts,
}

impl Traces {
    /// None if no collector is set. The caller runs the exporter.
    pub(crate) fn new(settings: &RouterSettings, counts: TraceCounts) -> Option<(Traces, Exporter)> {
        let (finished, queue) = mpsc::channel(TRACES_MAX);
        let (flushes, flush_requests) = mpsc::channel(1);
        let exporter = Exporter::new(&settings.traces, queue, flush_requests, counts.clone())?;
        Some((Traces { finished, flushes, counts }, exporter))
    }

    /// Begins the trace of a request if it is sampled: as `traceparent` says, else at random. In either case the headers
    /// for the worker are set accordingly.
    pub(crate) fn begin<B>(&self, sampling: Sampling, request: &mut Request<B>) -> Option<Box<Trace>> {
        let own = Context::new(hash::pair(sampling.instance_nonce ^ TAG, sampling.request.0));
        let (method, path) = (request.method().clone(), known_path(request.uri()));
        let headers = request.headers_mut();
        let (context, parent) = match Parent::of(headers) {
            Some(parent) if parent.sampled => (own.within(&parent), Some(parent.span)),
            // The caller decided against it; its header goes on unchanged.
            Some(_) => return None,
            None => {
                headers.remove(TRACESTATE);
                if !own.falls_within(sampling.ratio) {
                    headers.insert(TRACEPARENT, own.unsampled());
                    return None;
                }
                (own, None)
            }
        };
        // Each attempt gets a header of its own.
        headers.remove(TRACEPARENT);
        let state = trace_state(headers);
        Some(Box::new(Trace::new(context, parent, state, (method, path))))
    }

    pub(crate) fn take(&self, finished: FinishedTrace) {
        let spans = finished.spans() as u64;
        if self.finished.try_send(finished).is_err() {
            self.counts.dropped.inc_by(spans);
        }
    }

    /// Waits until all traces taken so far were sent or dropped.
    pub(crate) async fn flush(&self) {
        let (finished, done) = oneshot::channel();
        if self.flushes.send(finished).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// Decides whether a request without a `traceparent` is sampled, and the ids of its trace.
#[derive(Clone, Copy)]
pub(crate) struct Sampling {
    pub(crate) instance_nonce: u64,
    pub(crate) request: RequestId,
    /// The fraction of requests that are sampled.
    pub(crate) ratio: f64,
}

/// The path, if it is one of the API's: other paths may contain anything.
fn known_path(uri: &Uri) -> Option<String> {
    let path = uri.path();
    (Route::of(path).is_some() || path == "/v1/models").then(|| path.to_owned())
}

/// The longest trace state we export: the length that every participant must pass on (W3C Trace Context, section
/// 3.3.1.5).
const STATE_BYTES_MAX: usize = 512;

fn trace_state(headers: &HeaderMap) -> Option<String> {
    let all: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|it| it.to_str().ok()).collect();
    Some(all.join(",")).filter(|it| !it.is_empty() && it.len() <= STATE_BYTES_MAX)
}

/// The text is made here and is ASCII, so this cannot fail.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

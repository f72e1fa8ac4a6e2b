//! What became of each request, told to a collector as OpenTelemetry spans. Off unless a collector is named.
//!
//! A visit knows all its times anyway. If it is sampled it keeps a little more (`trace`), and when it ends leaves all of
//! it in a bounded queue; one task on the main thread turns what gathered there into OTLP (`otlp`) and posts it
//! (`export`). When the collector cannot keep up, records are dropped and counted, and no request ever waits.
//!
//! Spans hold names, numbers and reasons. Of what a client said they hold its request's id, its state of the trace, and
//! the model, if it is one we serve.

mod collector;
mod context;
mod export;
mod otlp;
mod trace;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Request, Uri};
use maitre_base::{RequestId, hash};
use maitre_dialect::route::Route;
use tokio::sync::{mpsc, oneshot};

use crate::metrics::Metrics;
use crate::settings::Settings;
pub use collector::{BadCollector, Collector};
pub(crate) use context::Context;
use context::Parent;
pub(crate) use export::Exporter;
pub(crate) use trace::{Ending, Record, Trace};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Records that wait at the most. Chosen: a second's worth at eight thousand sampled requests a second.
const RECORDS_MAX: usize = 8_192;

/// Keeps these ids apart from those of requests, which come from the same salt.
const TAG: u64 = 0x7472_6163_6573;

/// Where the visits leave their records.
pub(crate) struct Traces {
    records: mpsc::Sender<Record>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
}

impl Traces {
    /// None if no collector is named. The exporter is for the caller to run.
    pub(crate) fn new(settings: &Settings) -> Option<(Traces, Exporter)> {
        let (records, queue) = mpsc::channel(RECORDS_MAX);
        let (flushes, asked) = mpsc::channel(1);
        let exporter = Exporter::new(&settings.traces, queue, asked)?;
        Some((Traces { records, flushes }, exporter))
    }

    /// Begins the trace of a request if it is sampled: as its caller decided, or by the dice if the caller says nothing.
    /// What the worker is told is put right in either case.
    pub(crate) fn begin<B>(&self, dice: Dice, request: &mut Request<B>) -> Option<Box<Trace>> {
        let own = Context::new(hash::pair(dice.salt ^ TAG, dice.request.0));
        let (method, path) = (request.method().clone(), known_path(request.uri()));
        let headers = request.headers_mut();
        let (context, parent) = match Parent::of(headers) {
            Some(parent) if parent.sampled => (own.within(&parent), Some(parent.span)),
            // Not for us, and passed on as it came.
            Some(_) => return None,
            None => {
                headers.remove(TRACESTATE);
                if !own.falls_within(dice.sample) {
                    headers.insert(TRACEPARENT, own.unsampled());
                    return None;
                }
                (own, None)
            }
        };
        // Each attempt has one of its own.
        headers.remove(TRACEPARENT);
        let state = trace_state(headers);
        Some(Box::new(Trace::new(context, parent, state, (method, path))))
    }

    pub(crate) fn take(&self, record: Record, metrics: &Metrics) {
        let spans = record.spans() as u64;
        if self.records.try_send(record).is_err() {
            metrics.traced.dropped.inc_by(spans);
        }
    }

    /// Ends when all records taken so far were sent, or given up.
    pub(crate) async fn flush(&self) {
        let (told, done) = oneshot::channel();
        if self.flushes.send(told).await.is_ok() {
            let _ = done.await;
        }
    }
}

/// What decides whether a request that nobody else traces is sampled, and what it is called.
#[derive(Clone, Copy)]
pub(crate) struct Dice {
    pub(crate) salt: u64,
    pub(crate) request: RequestId,
    /// The part of requests that are.
    pub(crate) sample: f64,
}

/// The path, if it is one of ours: others may hold anything.
fn known_path(uri: &Uri) -> Option<String> {
    let path = uri.path();
    (Route::of(path).is_some() || path == "/v1/models").then(|| path.to_owned())
}

/// The longest state we repeat to a collector: as long as all must pass on (W3C Trace Context, section 3.3.1.5).
const STATE_BYTES_MAX: usize = 512;

fn trace_state(headers: &HeaderMap) -> Option<String> {
    let all: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|it| it.to_str().ok()).collect();
    Some(all.join(",")).filter(|it| !it.is_empty() && it.len() <= STATE_BYTES_MAX)
}

/// Headers are ASCII, and so is what we put there.
fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

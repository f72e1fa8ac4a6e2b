//! The task that sends traces to the collector: gathers them, posts them, retries where that may help, and gives up in
//! time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use maitre_net::connect::ConnectError;
use maitre_net::tls::TlsClient;
use maitre_net::upstream::{Upstream, UpstreamError, UpstreamRequest};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::FinishedTrace;
use super::otlp::{self, Wall};
use crate::clock::Clock;
use crate::collector::Collector;
use crate::metrics::TraceCounts;
use crate::refuse::{Collected, collected};
use crate::settings;

/// How long traces gather. A single trace wakes nothing.
const GATHER: Duration = Duration::from_secs(1);
/// Traces in one request: about half a megabyte of JSON.
const BATCH_MAX: usize = 256;
/// For one request to the collector, from connecting to the end of its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often one batch is sent at most. With the pauses that takes ten seconds, in which the queue can fill.
const TRIES_MAX: u32 = 4;
/// Before the second try; doubles for each later one.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, whatever the collector's `Retry-After`.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Collectors respond with a few bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Exporter {
    queue: mpsc::Receiver<FinishedTrace>,
    flush_requests: mpsc::Receiver<oneshot::Sender<()>>,
    counts: TraceCounts,
    collector: Collector,
    path: PathAndQuery,
    headers: HeaderMap,
    service: String,
    upstream: Option<Upstream>,
    /// Notified when everything is sent. While set, nothing is retried.
    flushing: Option<oneshot::Sender<()>>,
    /// The last request failed, and that has been logged.
    is_failing: bool,
}

#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("connect: {0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Broken(#[from] UpstreamError),
    #[error("no response within {REQUEST_TIMEOUT:?}")]
    TimedOut,
    #[error("the collector is busy")]
    Later(Option<Duration>),
    #[error("the collector responded {0}")]
    Never(http::StatusCode),
}

impl Exporter {
    pub(super) fn new(
        settings: &settings::TraceSettings,
        queue: mpsc::Receiver<FinishedTrace>,
        flush_requests: mpsc::Receiver<oneshot::Sender<()>>,
        counts: TraceCounts,
    ) -> Option<Exporter> {
        let collector = settings.endpoint.clone()?;
        let mut headers: HeaderMap = settings.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Collectors require a name.
        let service = Some(settings.service.clone()).filter(|it| !it.is_empty());
        Some(Exporter {
            queue,
            flush_requests,
            counts,
            path: collector.path(),
            collector,
            headers,
            service: service.unwrap_or_else(|| "maitre".to_owned()),
            upstream: None,
            flushing: None,
            is_failing: false,
        })
    }

    /// Until aborted.
    pub(crate) async fn run(mut self, clock: Clock, tls: Arc<TlsClient>) {
        loop {
            self.rest(GATHER).await;
            loop {
                let batch: Vec<FinishedTrace> =
                    std::iter::from_fn(|| self.queue.try_recv().ok()).take(BATCH_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                let wall = Wall { now: clock.now(), unix: clock.unix() };
                self.deliver(&tls, wall, &batch).await;
            }
            if let Some(flushed) = self.flushing.take() {
                let _ = flushed.send(());
            }
        }
    }

    /// A pause, unless a flush is requested.
    async fn rest(&mut self, pause: Duration) {
        if self.flushing.is_some() {
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            request = self.flush_requests.recv() => self.flushing = request,
        }
    }

    async fn deliver(&mut self, tls: &TlsClient, wall: Wall, batch: &[FinishedTrace]) {
        let spans: usize = batch.iter().map(FinishedTrace::spans).sum();
        let body = otlp::body(&self.service, wall, batch);
        let mut pause = PAUSE;
        for attempt in 1..=TRIES_MAX {
            let posted = timeout(REQUEST_TIMEOUT, self.post(tls, body.clone())).await;
            let unsent = match posted.unwrap_or(Err(Unsent::TimedOut)) {
                Ok(()) => {
                    self.counts.exported.inc_by(spans as u64);
                    self.succeeded();
                    return;
                }
                Err(unsent) => unsent,
            };
            self.counts.failed.inc();
            self.failed(&unsent);
            let retry_after = match unsent {
                Unsent::Never(_) => break,
                Unsent::Later(retry_after) => retry_after,
                _ => None,
            };
            if attempt < TRIES_MAX && self.flushing.is_none() {
                self.rest(retry_after.unwrap_or(pause).min(PAUSE_MAX)).await;
                pause *= 2;
            } else {
                break;
            }
        }
        self.counts.dropped.inc_by(spans as u64);
    }

    async fn post(&mut self, tls: &TlsClient, body: Bytes) -> Result<(), Unsent> {
        if let Some(upstream) = self.upstream.take()
            && let Ok(posted) = self.post_on(upstream, body.clone()).await
        {
            return posted;
        }
        // The collector may have closed the kept connection: only a new one is conclusive.
        let opened = Upstream::open(&self.collector.address, tls, REQUEST_TIMEOUT).await?;
        self.post_on(opened, body).await?
    }

    /// The collector's verdict; or the error that broke the connection.
    async fn post_on(
        &mut self,
        mut upstream: Upstream,
        body: Bytes,
    ) -> Result<Result<(), Unsent>, UpstreamError> {
        let host = self.collector.address.header();
        let head =
            upstream.send(UpstreamRequest::new(&Method::POST, &self.path, host, &self.headers, body)).await?;
        upstream.read_all(RESPONSE_BYTES_MAX).await?;
        if upstream.is_reusable() {
            self.upstream = Some(upstream);
        }
        Ok(match collected(head.status, &head.headers) {
            Collected::Taken => Ok(()),
            Collected::Later(wait) => Err(Unsent::Later(wait)),
            Collected::Never => Err(Unsent::Never(head.status)),
        })
    }

    /// Logged at the first failure, and again when it is over.
    fn failed(&mut self, error: &Unsent) {
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!(collector = %self.collector, %error, "cannot deliver traces; requests are not affected");
        }
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            info!(collector = %self.collector, "traces are delivered again");
        }
    }
}

//! The task that takes records to the collector: gathers, posts, tries again where that may help, gives up in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use maitre_net::connect::ConnectError;
use maitre_net::upstream::{Upstream, UpstreamError, UpstreamRequest};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::otlp::{self, Wall};
use super::{Collector, Record};
use crate::house::RouterState;
use crate::refuse::{Collected, collected};
use crate::settings;

/// How long records gather. Nobody is woken by one.
const GATHER: Duration = Duration::from_secs(1);
/// Most records in one request: about half a megabyte of JSON.
const BATCH_MAX: usize = 256;
/// For one request to the collector, from connecting to the end of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often one batch is sent at the most. With its pauses that is ten seconds, in which the queue can fill.
const TRIES_MAX: u32 = 4;
/// Before the second try; each later one is twice as long.
const PAUSE: Duration = Duration::from_secs(1);
/// However long the collector asks us to wait.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Collectors answer with a few bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Exporter {
    queue: mpsc::Receiver<Record>,
    asked: mpsc::Receiver<oneshot::Sender<()>>,
    collector: Collector,
    path: PathAndQuery,
    headers: HeaderMap,
    service: String,
    line: Option<Upstream>,
    /// Who waits for all to be sent; from then on nothing is tried twice.
    flushing: Option<oneshot::Sender<()>>,
    /// The trouble was told, and lasts.
    is_troubled: bool,
}

#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("connect: {0}")]
    Unopened(#[from] ConnectError),
    #[error("{0}")]
    Broken(#[from] UpstreamError),
    #[error("no answer within {PATIENCE:?}")]
    TimedOut,
    #[error("it is busy")]
    Later(Option<Duration>),
    #[error("it answered {0}")]
    Never(http::StatusCode),
}

impl Exporter {
    pub(super) fn new(
        settings: &settings::Traces,
        queue: mpsc::Receiver<Record>,
        asked: mpsc::Receiver<oneshot::Sender<()>>,
    ) -> Option<Exporter> {
        let collector = settings.endpoint.clone()?;
        let mut headers: HeaderMap = settings.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Collectors want some name.
        let service = Some(settings.service.clone()).filter(|it| !it.is_empty());
        let (path, service) = (collector.path(), service.unwrap_or_else(|| "maitre".to_owned()));
        let (line, flushing) = (None, None);
        Some(Exporter { queue, asked, collector, path, headers, service, line, flushing, is_troubled: false })
    }

    /// Until aborted.
    pub(crate) async fn run(mut self, house: Arc<RouterState>) {
        loop {
            self.rest(GATHER).await;
            loop {
                let batch: Vec<Record> =
                    std::iter::from_fn(|| self.queue.try_recv().ok()).take(BATCH_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                self.deliver(&house, &batch).await;
            }
            if let Some(told) = self.flushing.take() {
                let _ = told.send(());
            }
        }
    }

    /// A pause, unless somebody waits for us.
    async fn rest(&mut self, pause: Duration) {
        if self.flushing.is_some() {
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            asked = self.asked.recv() => self.flushing = asked,
        }
    }

    async fn deliver(&mut self, house: &RouterState, batch: &[Record]) {
        let spans: usize = batch.iter().map(Record::spans).sum();
        let wall = Wall { now: house.now(), unix: house.clock.unix() };
        let body = otlp::body(&self.service, wall, batch);
        let counts = &house.metrics.traced;
        let mut pause = PAUSE;
        for attempt in 1..=TRIES_MAX {
            let posted = timeout(PATIENCE, self.post(house, body.clone())).await;
            let unsent = match posted.unwrap_or(Err(Unsent::TimedOut)) {
                Ok(()) => {
                    counts.exported.inc_by(spans as u64);
                    self.is_well();
                    return;
                }
                Err(unsent) => unsent,
            };
            counts.failed.inc();
            self.is_unwell(&unsent);
            let asked_for = match unsent {
                Unsent::Never(_) => break,
                Unsent::Later(asked_for) => asked_for,
                _ => None,
            };
            if attempt < TRIES_MAX && self.flushing.is_none() {
                self.rest(asked_for.unwrap_or(pause).min(PAUSE_MAX)).await;
                pause *= 2;
            } else {
                break;
            }
        }
        counts.dropped.inc_by(spans as u64);
    }

    async fn post(&mut self, house: &RouterState, body: Bytes) -> Result<(), Unsent> {
        if let Some(line) = self.line.take()
            && let Ok(posted) = self.post_on(line, body.clone()).await
        {
            return posted;
        }
        // The kept connection may have been closed from the other end; a new one tells.
        let opened = Upstream::open(&self.collector.address, &house.tls.collector, PATIENCE).await?;
        self.post_on(opened, body).await?
    }

    /// What the collector made of it; or that the connection broke.
    async fn post_on(
        &mut self,
        mut line: Upstream,
        body: Bytes,
    ) -> Result<Result<(), Unsent>, UpstreamError> {
        let host = self.collector.address.header();
        let head =
            line.send(UpstreamRequest::new(&Method::POST, &self.path, host, &self.headers, body)).await?;
        line.read_all(ANSWER_BYTES_MAX).await?;
        if line.is_reusable() {
            self.line = Some(line);
        }
        Ok(match collected(head.status, &head.headers) {
            Collected::Taken => Ok(()),
            Collected::Later(wait) => Err(Unsent::Later(wait)),
            Collected::Never => Err(Unsent::Never(head.status)),
        })
    }

    /// Told once, and once more when it is over.
    fn is_unwell(&mut self, error: &Unsent) {
        if !std::mem::replace(&mut self.is_troubled, true) {
            warn!(collector = %self.collector, %error, "traces cannot be delivered; requests are served all the same");
        }
    }

    fn is_well(&mut self) {
        if std::mem::take(&mut self.is_troubled) {
            info!(collector = %self.collector, "traces are delivered again");
        }
    }
}

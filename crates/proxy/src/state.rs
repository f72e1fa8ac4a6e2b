//! All shared parts of a running router. Only the modules at the top (`router`, `server`, `request`, `admin`) see it;
//! every other part gets the handles it needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, VARY};
use maitre_dispatch::Brain;
use parking_lot::Mutex;

use crate::body_memory::BodyMemory;
use crate::brain::{Notifications, SharedBrain};
use crate::clock::Clock;
use crate::metrics::{Metrics, MetricsFormat};
use crate::peering::ClusterHandle;
use crate::readiness::Readiness;
use crate::recent::Recent;
use crate::record::{NotRecorded, Recorder};
use crate::request_ids::RequestIds;
use crate::roster::DiscoveryStatus;
use crate::settings::{RouterSettings, SharedSettings};
use crate::shutdown::Shutdown;
use crate::tls::Tls;
use crate::token_memory::TokenMemory;
use crate::tokenize::{EngineTokenizers, LocalTokenizers, Tokenizer, WorkInFlight};
use crate::traces::Traces;

pub(crate) struct RouterState {
    pub(crate) settings: Arc<SharedSettings>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) brain: Arc<SharedBrain>,
    pub(crate) recent: Arc<Recent>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) bodies: Arc<BodyMemory>,
    /// Of streams that can be continued.
    pub(crate) token_ids: Arc<TokenMemory>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) tls: Arc<Tls>,
    /// None: nothing is traced.
    pub(crate) traces: Option<Traces>,
    /// None: nothing is recorded.
    pub(crate) recorder: Option<Recorder>,
    /// None: this router is alone.
    pub(crate) cluster: Option<Arc<ClusterHandle>>,
    /// Where workers are discovered, and with what success.
    pub(crate) sources: Mutex<Vec<DiscoveryStatus>>,
    pub(crate) shutdown: Shutdown,
}

/// What is made before the state, because it can fail or starts a task.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tokenizers: LocalTokenizers,
    pub(crate) tls: Tls,
    pub(crate) traces: Option<Traces>,
}

impl RouterState {
    pub(crate) fn new(mut settings: RouterSettings, parts: Parts) -> Result<RouterState, NotRecorded> {
        let Parts { clock, metrics, tokenizers, tls, traces } = parts;
        let recorder = Recorder::start(&settings, clock, metrics.record.clone())?;
        let is_recording = recorder.is_some();
        let cluster = settings.cluster.as_ref().map(|it| Arc::new(ClusterHandle::new(it, clock.unix_ms())));
        settings.brain.reads_all |= is_recording;
        settings.brain.shares = cluster.is_some();
        let notify = Notifications {
            outbox: cluster.as_ref().map(|it| it.outbox.clone()),
            recalls: metrics.queue.recalls.clone(),
        };
        let brain = Arc::new(SharedBrain::new(clock, settings.brain.clone(), notify));
        let request_ids = Arc::new(RequestIds::default());
        let settings = Arc::new(SharedSettings::new(settings));
        Ok(RouterState {
            tokenizer: Tokenizer {
                brain: brain.clone(),
                metrics: metrics.clone(),
                local: tokenizers,
                engines: EngineTokenizers::new(request_ids.instance_nonce),
                is_recording,
                settings: settings.clone(),
                work: WorkInFlight::default(),
            },
            bodies: Arc::new(BodyMemory::new(settings.clone())),
            token_ids: Arc::default(),
            settings,
            clock,
            metrics,
            brain,
            recent: Arc::default(),
            request_ids,
            tls: Arc::new(tls),
            traces,
            recorder,
            cluster,
            sources: Mutex::default(),
            shutdown: Shutdown::default(),
        })
    }

    /// Applies other settings; or changes nothing, and returns why.
    pub(crate) fn reconfigure(&self, mut settings: RouterSettings) -> Result<(), String> {
        settings.brain.reads_all |= self.recorder.is_some();
        settings.brain.shares = self.cluster.is_some();
        let brain = settings.brain.clone();
        self.brain.reconfigure(brain, || self.settings.replace(settings))
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics_page(&self) -> String {
        self.metrics.process.refresh();
        self.metrics.page(|metrics| {
            let lanes = &self.recent.lanes;
            metrics.set_lanes(&lanes.sums(), &lanes.waits(self.clock.now()));
            self.brain.read(|brain| {
                let failures =
                    |it| self.brain.link(it).map_or(0, |it| it.tally.failures.load(Ordering::Relaxed));
                metrics.set_brain(self.clock.now(), brain, failures);
                let readiness = self.readiness(brain);
                let states = Readiness::ALL.map(|it| (it.label(), it == readiness));
                metrics.set_own(&states, &self.tls.certificates());
                if let Some(cluster) = &self.cluster {
                    metrics.set_cluster(&cluster.sample(brain.limit_share()));
                }
            });
        })
    }

    /// The metrics, in the format that the scraper prefers.
    pub(crate) fn scrape(&self, headers: &HeaderMap) -> Response<Bytes> {
        let format = MetricsFormat::of(headers);
        let mut response = Response::new(Bytes::from(format.write(self.metrics_page())));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        response
    }

    /// Whether this router still waits for the snapshots of other routers.
    pub(crate) fn is_joining(&self) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.is_joining())
    }

    pub(crate) fn readiness(&self, brain: &Brain) -> Readiness {
        if self.shutdown.is_draining() {
            Readiness::Draining
        } else if self.is_joining() {
            Readiness::Joining
        } else if brain.fleet().is_answering() || brain.awaits_requests() {
            Readiness::Ready
        } else {
            Readiness::NoWorker
        }
    }
}

//! One worker as the sockets see it: its address, when it last sent anything, what it reports about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use http::HeaderValue;
use maitre_base::{ChunkReuse, Handoff, HandoffStyle, Instant, Role, WorkerId};
use maitre_dialect::engine::{Disaggregation, EngineKind};
use maitre_dialect::legs;
use maitre_dialect::models::CardList;
use maitre_dialect::route::Route;
use maitre_net::address::Address;
use maitre_net::tls::TlsFailure;
use maitre_net::upstream::UpstreamError;
use maitre_net::worker_url::{EventSource, WorkerUrl, ZmqEndpoint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(crate) struct Link {
    pub(crate) worker: WorkerId,
    /// Unique for ever, unlike the worker's number, which is reused.
    pub(crate) serial: u64,
    /// The worker's key in the brain. Tells whether a decision that names the number was about this worker.
    pub(crate) key: u64,
    pub(crate) address: Address,
    /// Host and port, as gateways name workers.
    pub(crate) endpoint: String,
    /// The data-parallel rank, if each rank of the engine is a worker of its own.
    pub(crate) rank: Option<u32>,
    /// As configured.
    role: Role,
    transfer: Option<HandoffStyle>,
    pub(crate) bootstrap: Option<ZmqEndpoint>,
    pub(crate) engine_id: Option<String>,
    pub(crate) tensor_parallel: u32,
    /// Where others pull its KV cache; none if they cannot.
    pub(crate) pull: Option<(String, u16)>,
    /// The store of KV cache that it shares with others.
    pub(crate) store: Option<String>,
    pub(crate) chunks: Option<ChunkReuse>,
    pub(crate) events: EventSource,
    pub(crate) replay: Option<ZmqEndpoint>,
    /// The name in logs and metrics.
    pub(crate) url: String,
    /// The same as a response header.
    pub(crate) name: HeaderValue,
    /// Asks the watcher for a probe now.
    pub(crate) probe: Notify,
    /// How often the worker became unhealthy.
    outs: AtomicU32,
    /// Requests that wait here for their first byte: now, and when the worker last became unhealthy.
    waiting: AtomicU32,
    waiting_then: AtomicU32,
    /// Wakes requests that wait here for their first byte: the worker is unhealthy, or one of them is recalled.
    interrupts: Notify,
    pub(crate) gone: CancellationToken,
    heard: AtomicU64,
    pub(crate) tally: Tally,
    /// Why the last probe or attempt failed, for the log.
    failure: Mutex<Option<String>>,
    /// A TLS failure has been logged, and nothing was received since.
    tls_failed: AtomicBool,
    /// Bits by route: whether it has sent token ids with its streams, and whether it refused to.
    token_ids: AtomicU32,
    /// A stream of it had reasoning, which its engine separates from the text.
    has_reasoned: AtomicBool,
    /// Cancelled while its streams are to go on elsewhere.
    hands_over: Mutex<CancellationToken>,
    about: Mutex<About>,
}

/// What the worker reports about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) kind: Option<EngineKind>,
    /// As it was before the worker failed, until it is known again.
    pub(crate) last_kind: Option<EngineKind>,
    /// Its `/v1/models`, its cards verbatim.
    pub(crate) models: Option<Arc<CardList>>,
    /// Its part in requests that two workers share, from engines that report it.
    pub(crate) disaggregation: Option<Disaggregation>,
    /// What its engine calls itself, from a bootstrap server. Another one after each restart.
    pub(crate) reported_engine_id: Option<String>,
}

/// Counts of what was sent to the worker.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) placed: AtomicU64,
    /// Attempts that failed, and responses that broke off.
    pub(crate) failures: AtomicU64,
    /// Of responses that report cached tokens.
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
}

/// How a worker answers a request for token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenIdReply {
    Sent,
    Refused,
}

impl TokenIdReply {
    const fn bit(self, route: Route) -> u32 {
        1 << (2 * route as u32 + self as u32)
    }
}

/// The name of a worker: its address, and the rank where there are several.
pub(crate) fn url(worker: &WorkerUrl, rank: Option<u32>) -> String {
    match rank {
        None => worker.address.to_string(),
        Some(rank) => format!("{}#{rank}", worker.address),
    }
}

/// Counts a request that waits for its first byte.
pub(crate) struct AwaitsFirstByte<'a>(&'a AtomicU32);

impl Drop for AwaitsFirstByte<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Link {
    pub(crate) fn new(id: WorkerId, serial: u64, worker: &WorkerUrl, rank: Option<u32>) -> Link {
        let address = worker.address.clone();
        let url = url(worker, rank);
        let name = HeaderValue::from_str(&url);
        Link {
            worker: id,
            serial,
            key: maitre_fleet::worker::key(&url),
            rank,
            role: worker.options.role,
            transfer: worker.options.transfer,
            bootstrap: worker.options.bootstrap.clone(),
            engine_id: worker.options.engine_id.clone(),
            tensor_parallel: worker.options.tensor_parallel,
            pull: worker.options.pull.as_ref().map(|it| {
                let host = it.host.as_deref().unwrap_or(worker.address.host());
                (host.to_owned(), it.port.saturating_add(rank.unwrap_or(0).try_into().unwrap_or(u16::MAX)))
            }),
            store: worker.options.store.clone(),
            chunks: worker.options.chunks,
            events: worker.options.events.clone(),
            replay: worker.options.replay.clone(),
            url,
            // Cannot fail: the same host is already the value of a `host` header.
            name: name.unwrap_or_else(|_| address.header().clone()),
            endpoint: address.endpoint(),
            address,
            probe: Notify::new(),
            outs: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            waiting_then: AtomicU32::new(0),
            interrupts: Notify::new(),
            gone: CancellationToken::new(),
            heard: AtomicU64::new(0),
            tally: Tally::default(),
            failure: Mutex::new(None),
            tls_failed: AtomicBool::new(false),
            token_ids: AtomicU32::new(0),
            has_reasoned: AtomicBool::new(false),
            hands_over: Mutex::default(),
            about: Mutex::new(About::default()),
        }
    }

    /// Something was received: the worker is alive, whatever a probe says.
    pub(crate) fn hear(&self, now: Instant) {
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        if self.tls_failed.load(Ordering::Relaxed) {
            self.tls_failed.store(false, Ordering::Relaxed);
        }
    }

    /// TLS with the worker failed. Logged once, not with every probe: it lasts until an operator fixes it.
    pub(crate) fn tls_failed(&self, reason: &str) {
        self.failed(format!("TLS: {reason}"));
        if !self.tls_failed.swap(true, Ordering::Relaxed) {
            warn!(
                worker = self.url,
                reason, "TLS to the worker failed; it gets no requests until it succeeds"
            );
        }
    }

    /// Whether TLS has failed since anything was received.
    pub(crate) fn has_tls_failed(&self) -> bool {
        self.tls_failed.load(Ordering::Relaxed)
    }

    /// A probe or an attempt failed, with this reason.
    pub(crate) fn failed(&self, reason: impl Into<String>) {
        *self.failure.lock() = Some(reason.into());
    }

    /// Why the last probe or attempt failed; None if none has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(crate) fn last_failure(&self) -> String {
        self.failure().unwrap_or_else(|| "no response".to_owned())
    }

    /// A connection broke. That may be how the worker rejects our certificate: in TLS 1.3 it sees the certificate after
    /// the handshake has succeeded on our side.
    pub(crate) fn broke(&self, error: &UpstreamError) {
        if let UpstreamError::Io(error) = error
            && let Some(failure) = TlsFailure::in_io(error)
        {
            self.tls_failed(&failure.advice("worker_tls"));
        }
    }

    /// When anything was last received; None for never.
    pub(crate) fn heard(&self) -> Option<Instant> {
        Some(self.heard.load(Ordering::Relaxed)).filter(|&it| it > 0).map(Instant::from_nanos)
    }

    pub(crate) fn heard_since(&self, then: Instant) -> bool {
        self.heard.load(Ordering::Relaxed) > then.as_nanos()
    }

    /// The worker is unhealthy: wakes all requests that wait here for their first byte.
    pub(crate) fn take_out(&self) {
        self.waiting_then.store(self.waiting.load(Ordering::Relaxed), Ordering::Relaxed);
        self.outs.fetch_add(1, Ordering::Release);
        self.interrupts.notify_waiters();
    }

    /// A request that waits here for its first byte is recalled; the brain knows which.
    pub(crate) fn recall(&self) {
        self.interrupts.notify_waiters();
    }

    /// A request waits here for its first byte until the result is dropped.
    pub(crate) fn wait(&self) -> AwaitsFirstByte<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        AwaitsFirstByte(&self.waiting)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether no more than one request waited here when the worker last became unhealthy.
    pub(crate) fn had_one_waiting(&self) -> bool {
        self.waiting_then.load(Ordering::Relaxed) <= 1
    }

    pub(crate) fn outs(&self) -> u32 {
        self.outs.load(Ordering::Acquire)
    }

    /// Resolves at the next `take_out` or `recall`. To be enabled before the caller checks for either.
    pub(crate) fn interrupted(&self) -> Notified<'_> {
        self.interrupts.notified()
    }

    /// It has sent token ids with a stream of this route, or refused to.
    pub(crate) fn note_token_ids(&self, route: Route, reply: TokenIdReply) {
        self.token_ids.fetch_or(reply.bit(route), Ordering::Relaxed);
    }

    /// Whether it has ever answered so.
    pub(crate) fn has_replied(&self, route: Route, reply: TokenIdReply) -> bool {
        self.token_ids.load(Ordering::Relaxed) & reply.bit(route) != 0
    }

    /// Its streams should go on elsewhere from now on, or no longer.
    pub(crate) fn hand_over(&self, is_wanted: bool) {
        let mut token = self.hands_over.lock();
        match is_wanted {
            true => token.cancel(),
            false if token.is_cancelled() => *token = CancellationToken::new(),
            false => {}
        }
    }

    /// Cancelled as soon as its streams should go on elsewhere.
    pub(crate) fn hands_over(&self) -> CancellationToken {
        self.hands_over.lock().clone()
    }

    pub(crate) fn note_reasoning(&self) {
        self.has_reasoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_reasoned(&self) -> bool {
        self.has_reasoned.load(Ordering::Relaxed)
    }

    pub(crate) fn about(&self) -> About {
        self.about.lock().clone()
    }

    pub(crate) fn kind(&self) -> Option<EngineKind> {
        self.about.lock().kind
    }

    /// The kind, or that of before the worker failed: most engines come back as they were.
    pub(crate) fn expected_kind(&self) -> Option<EngineKind> {
        let about = self.about.lock();
        about.kind.or(about.last_kind)
    }

    /// Its role: as the engine reports it, else as configured.
    pub(crate) fn role(&self) -> Role {
        let reported = self.about.lock().disaggregation.map(|it| it.role);
        reported.filter(|&it| it != Role::Both).unwrap_or(self.role)
    }

    /// How it hands KV cache over: as configured, else as its engine usually does.
    pub(crate) fn handoff_style(&self) -> HandoffStyle {
        self.transfer.unwrap_or_else(|| legs::usual_style(self.expected_kind()))
    }

    pub(crate) fn handoff(&self) -> Handoff {
        let reported = self.about.lock().disaggregation;
        legs::handoff(self.handoff_style(), self.role(), reported.as_ref())
    }

    /// The worker has failed: another engine may run there next.
    pub(crate) fn forget_engine(&self) {
        let mut about = self.about.lock();
        about.reported_engine_id = None;
        about.last_kind = about.kind.take().or(about.last_kind);
        self.token_ids.store(0, Ordering::Relaxed);
        self.has_reasoned.store(false, Ordering::Relaxed);
    }

    pub(crate) fn learn(&self, change: impl FnOnce(&mut About)) {
        change(&mut self.about.lock());
    }
}

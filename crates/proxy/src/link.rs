//! What the sockets know of a worker: its address, when it was last heard, what it says of itself.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderValue;
use maitre_base::{Instant, WorkerId};
use maitre_dialect::engine::Kind;
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
    /// No other link ever has it, whoever else gets the worker's number.
    pub(crate) serial: u64,
    /// Of the worker, as in the brain: by it a record that names a number tells whose it was.
    pub(crate) key: u64,
    pub(crate) address: Address,
    /// Which of the engine's data-parallel ranks it is, if each is a worker of its own.
    pub(crate) rank: Option<u32>,
    pub(crate) events: EventSource,
    pub(crate) replay: Option<ZmqEndpoint>,
    /// What people and metrics call it.
    pub(crate) url: String,
    /// The same as a response header.
    pub(crate) name: HeaderValue,
    /// Asks the watcher for a probe now.
    pub(crate) probe: Notify,
    /// How often the worker was taken out.
    outs: AtomicU32,
    /// Tells requests that wait here for their first byte: the worker is out, or one of them is called back.
    news: Notify,
    pub(crate) gone: CancellationToken,
    heard: AtomicU64,
    pub(crate) tally: Tally,
    /// TLS with it failed, and that has been told; until it speaks again.
    distrusted: AtomicBool,
    about: Mutex<About>,
}

/// What the worker said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) kind: Option<Kind>,
    /// Its `/v1/models`, verbatim.
    pub(crate) models: Option<Bytes>,
}

/// What became of what was sent there.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) seated: AtomicU64,
    /// Attempts that came to nothing, and answers that broke off.
    pub(crate) failures: AtomicU64,
    /// Of answers that told how much of the prompt was cached.
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
}

/// The name of a worker: its address, and the rank where there are several.
pub(crate) fn url(worker: &WorkerUrl, rank: Option<u32>) -> String {
    match rank {
        None => worker.address.to_string(),
        Some(rank) => format!("{}#{rank}", worker.address),
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
            events: worker.events.clone(),
            replay: worker.replay.clone(),
            url,
            // A host that made a `host` header makes this one too.
            name: name.unwrap_or_else(|_| address.header().clone()),
            address,
            probe: Notify::new(),
            outs: AtomicU32::new(0),
            news: Notify::new(),
            gone: CancellationToken::new(),
            heard: AtomicU64::new(0),
            tally: Tally::default(),
            distrusted: AtomicBool::new(false),
            about: Mutex::new(About::default()),
        }
    }

    /// Something was received: whatever a probe says, the worker lives.
    pub(crate) fn hear(&self, now: Instant) {
        self.heard.store(now.as_nanos(), Ordering::Relaxed);
        if self.distrusted.load(Ordering::Relaxed) {
            self.distrusted.store(false, Ordering::Relaxed);
        }
    }

    /// TLS with the worker failed. Told once, not with every probe: it lasts until somebody mends it.
    pub(crate) fn distrust(&self, why: &str) {
        if !self.distrusted.swap(true, Ordering::Relaxed) {
            warn!(worker = self.url, why, "no TLS with the worker; it gets no requests until there is");
        }
    }

    /// A connection broke. With TLS that may be how the worker says whom it does not accept: in version 1.3 it hears
    /// who we are only after we take the handshake for done.
    pub(crate) fn heard_no(&self, error: &UpstreamError) {
        if let UpstreamError::Io(error) = error
            && let Some(why) = TlsFailure::in_io(error)
        {
            self.distrust(&why.advice("worker_tls"));
        }
    }

    /// None: nothing ever was.
    pub(crate) fn heard(&self) -> Option<Instant> {
        Some(self.heard.load(Ordering::Relaxed)).filter(|&it| it > 0).map(Instant::from_nanos)
    }

    pub(crate) fn heard_since(&self, then: Instant) -> bool {
        self.heard.load(Ordering::Relaxed) > then.as_nanos()
    }

    /// The worker is out: tells all requests that wait here for their first byte.
    pub(crate) fn take_out(&self) {
        self.outs.fetch_add(1, Ordering::Release);
        self.news.notify_waiters();
    }

    /// Some request that waits here for its first byte is called back: the house knows which.
    pub(crate) fn call_back(&self) {
        self.news.notify_waiters();
    }

    pub(crate) fn outs(&self) -> u32 {
        self.outs.load(Ordering::Acquire)
    }

    /// Ready once there is news for those that wait here. To be enabled before one looks what it may be.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    pub(crate) fn about(&self) -> About {
        self.about.lock().clone()
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        self.about.lock().kind
    }

    pub(crate) fn learn(&self, change: impl FnOnce(&mut About)) {
        change(&mut self.about.lock());
    }
}

//! One thread's connections to workers: idle ones in a pool, new ones opened by the TLS settings in force.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use maitre_base::Instant;
use maitre_net::address::Address;
use maitre_net::connect::ConnectError;
use maitre_net::pool::UpstreamPool;
use maitre_net::tls::TlsClient;
use maitre_net::upstream::{Upstream, UpstreamRequest};

use crate::clock::Clock;
use crate::link::Link;
use crate::settings::SharedSettings;

pub(crate) struct Upstreams {
    pool: UpstreamPool,
    tls: Arc<TlsClient>,
    pub(crate) settings: Arc<SharedSettings>,
    pub(crate) clock: Clock,
}

impl Upstreams {
    pub(crate) fn new(tls: Arc<TlsClient>, settings: Arc<SharedSettings>, clock: Clock) -> Upstreams {
        let pool = UpstreamPool::new(settings.load().limits.idle_per_worker);
        Upstreams { pool, tls, settings, clock }
    }

    /// An idle connection to the worker, if there is one.
    pub(crate) fn take(&self, link: &Link) -> Option<Box<Upstream>> {
        self.pool.take(link.serial)
    }

    /// A new connection to the worker.
    pub(crate) async fn open(&self, link: &Link, timeout: Duration) -> Result<Box<Upstream>, ConnectError> {
        Upstream::open(&link.address, &self.tls, timeout).await.map(Box::new)
    }

    /// A new connection to something that is no worker.
    pub(crate) async fn open_at(
        &self,
        address: &Address,
        timeout: Duration,
    ) -> Result<Upstream, ConnectError> {
        Upstream::open(address, &self.tls, timeout).await
    }

    /// A question of the router's own, which does no harm if the worker sees it twice: asked on an idle connection, and on a new
    /// one if that has just closed. `None`: the worker does not answer, or with more than this many bytes.
    pub(crate) async fn ask(
        &self,
        link: &Link,
        question: impl Fn() -> UpstreamRequest,
        bytes_max: usize,
    ) -> Option<(StatusCode, Bytes)> {
        let ask = async |mut upstream: Box<Upstream>| {
            let head = upstream.send(question()).await.ok()?;
            let answer = upstream.read_all(bytes_max).await.ok()?;
            self.put(link, upstream);
            Some((head.status, answer))
        };
        if let Some(idle) = self.take(link)
            && let Some(answer) = ask(idle).await
        {
            return Some(answer);
        }
        let connect = self.settings.load().timeouts.connect;
        ask(self.open(link, connect).await.ok()?).await
    }

    /// Keeps a connection for the next request, if it can be reused.
    pub(crate) fn put(&self, link: &Link, upstream: Box<Upstream>) {
        self.put_at(self.clock.now(), link, upstream);
    }

    /// The same at this moment.
    pub(crate) fn put_at(&self, now: Instant, link: &Link, upstream: Box<Upstream>) {
        self.pool.put(now, link.serial, upstream);
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn sweep(&self) {
        self.pool.sweep(self.clock.now(), self.settings.load().timeouts.worker_idle);
    }
}

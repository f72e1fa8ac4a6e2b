//! The engine behind sockets: one process that looks to a router like a vLLM server.
//!
//! A `Host` owns a listener, its connections and the task that drives the engine in wall time; all of them
//! die with it, so stopping a host is a crash as seen from outside. A `Handle` is the door for tests and
//! demos: it reads counters, waits for a condition, and injects faults while requests are in flight.
//!
//! HTTP/1.1 only, as vLLM's own server. No TLS, no API keys.

mod answer;
mod ask;
mod body;
mod chat;
mod completion;
mod desk;
mod error;
pub mod fault;
mod messages;
mod metrics;
mod pooling;
mod responses;
mod route;
mod tool;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::engine;
use crate::profile::Profile;
use desk::Desk;
use fault::{Faults, Injection};

#[derive(Clone, Debug)]
pub struct Settings {
    pub engine: engine::Settings,
    /// The name requests ask for.
    pub model: String,
    /// LoRA adapters: further names, with caches and answers of their own.
    pub adapters: Vec<String>,
    /// How many times faster than the profile the steps run.
    pub speedup: f64,
    /// How many request bodies to keep for `Handle::bodies`, the latest ones.
    pub bodies_max: usize,
}

impl Settings {
    pub fn new(profile: Profile) -> Settings {
        Settings {
            engine: engine::Settings { profile, changes_max: 0 },
            model: "maitre-sim".to_owned(),
            adapters: Vec::new(),
            speedup: 1.0,
            bodies_max: 0,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("listen on {addr}: {cause}")]
pub struct BindError {
    pub addr: SocketAddr,
    #[source]
    pub cause: std::io::Error,
}

/// A running engine. Dropping it kills it.
pub struct Host {
    addr: SocketAddr,
    shared: Arc<Shared>,
    /// The listener (which owns the connections) and the desk.
    tasks: JoinSet<()>,
}

/// Reads and disturbs a running engine.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub connections_open: u64,
    /// Requests whose answer is not yet sent or abandoned, on every route.
    pub requests_open: u64,
    pub requests_received: u64,
    pub engine: engine::Stats,
}

/// A request as it came in, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub path: String,
    pub body: Bytes,
}

struct Shared {
    settings: Settings,
    addr: SocketAddr,
    desk: Desk,
    faults: Faults,
    connections: Gauge,
    requests: Gauge,
    bodies: Mutex<VecDeque<Recorded>>,
    /// Told whenever `Stats` may have changed.
    changed: Arc<Notify>,
}

impl Host {
    /// Listens on `addr` (port 0 picks one) and serves on the runtime of the caller.
    pub async fn bind(addr: SocketAddr, settings: Settings) -> Result<Host, BindError> {
        let fail = |cause| BindError { addr, cause };
        let listener = TcpListener::bind(addr).await.map_err(fail)?;
        let addr = listener.local_addr().map_err(fail)?;
        let changed = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            addr,
            desk: Desk::new(&settings, Arc::clone(&changed)),
            settings,
            faults: Faults::default(),
            connections: Gauge::new(Arc::clone(&changed)),
            requests: Gauge::new(Arc::clone(&changed)),
            bodies: Mutex::default(),
            changed,
        });
        let mut tasks = JoinSet::new();
        let driven = Arc::clone(&shared);
        tasks.spawn(async move { driven.desk.run(&driven.faults).await });
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Host { addr, shared, tasks })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// Dies as a killed process does: every connection is dropped where it stands, the port refuses. All of
    /// that has happened when this returns.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        let handle = self.handle();
        handle.until(|stats| stats.connections_open == 0).await;
    }
}

impl Handle {
    pub fn stats(&self) -> Stats {
        Stats {
            connections_open: self.0.connections.open.load(Ordering::Relaxed),
            requests_open: self.0.requests.open.load(Ordering::Relaxed),
            requests_received: self.0.requests.total.load(Ordering::Relaxed),
            engine: self.0.desk.stats(),
        }
    }

    /// Waits until the counters are as wanted.
    pub async fn until(&self, mut wanted: impl FnMut(&Stats) -> bool) -> Stats {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Listens before it looks, so that a change in between is not missed.
            changed.as_mut().enable();
            let stats = self.stats();
            if wanted(&stats) {
                return stats;
            }
            changed.await;
        }
    }

    /// Replaces the present fault, if any.
    pub fn inject(&self, injection: Injection) {
        self.0.faults.inject(injection);
    }

    pub fn clear_fault(&self) {
        self.0.faults.clear();
    }

    /// The latest requests that had a body, up to `Settings::bodies_max`.
    pub fn bodies(&self) -> Vec<Recorded> {
        self.0.bodies.lock().iter().cloned().collect()
    }

    /// What the engine stored and removed since the last call, if `engine::Settings::changes_max` allows.
    pub fn take_changes(&self) -> (Vec<crate::kv::Change>, u64) {
        self.0.desk.take_changes()
    }
}

impl Shared {
    fn record(&self, path: &str, body: &Bytes) {
        let limit = self.settings.bodies_max;
        if limit == 0 {
            return;
        }
        let mut bodies = self.bodies.lock();
        if bodies.len() == limit {
            bodies.pop_front();
        }
        bodies.push_back(Recorded { path: path.to_owned(), body: body.clone() });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
                // Out of descriptors, or a client gone before we came: neither is a reason to die, and the
                // yield keeps a lasting error from starving the connections that would end it.
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let _open = shared.connections.enter();
    if shared.faults.take_connection() {
        // A reset, the nearest to a refusal that a listening socket can give.
        let _ = stream.set_zero_linger();
        return;
    }
    // Tokens are small and late ones useless: never wait to fill a packet.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| route::serve(Arc::clone(&shared), request));
    // Chunks are a few hundred bytes: copying them into one buffer costs less than a vector of three
    // slices for each.
    let served = http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), service);
    // A client that leaves and a fault that cuts both end here as errors; both are counted elsewhere.
    let _ = served.await;
}

/// How many of something are open, and how many there ever were.
#[derive(Clone)]
struct Gauge {
    open: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

/// Counts as open until dropped.
struct Open(Gauge);

impl Gauge {
    fn new(changed: Arc<Notify>) -> Gauge {
        Gauge { open: Arc::default(), total: Arc::default(), changed }
    }

    fn enter(&self) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
        Open(self.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;

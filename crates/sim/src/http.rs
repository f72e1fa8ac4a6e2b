//! A simulated engine behind sockets: to a router it looks like a vLLM server.
//!
//! A `Host` owns a listener, its connections and the task that drives the engine in wall time; dropping it stops all
//! of them, which looks like a crash from outside. A `Handle` is for tests and demos: it reads counters, waits for a
//! condition, and injects faults while requests are in flight.
//!
//! HTTP/1.1 only, as vLLM's own server. No TLS, no API keys.

mod answer;
mod api_format;
mod body;
pub mod brand;
mod chat;
mod completion;
mod driver;
mod error;
pub mod fault;
mod generate;
mod messages;
mod metrics;
pub mod misconfiguration;
mod pooling;
mod render;
mod reply;
mod request;
mod responses;
mod route;
mod tool;
pub mod transfer;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::accept::accept;
use crate::engine;
use crate::events::disturbance::Disturbance;
use crate::events::socket::{self, Service};
use crate::events::{self, Publisher};
use crate::kv::Root;
use crate::link::LinkModel;
use crate::profile::Profile;
use crate::store::SharedStore;
use brand::Brand;
use driver::EngineDriver;
use fault::{Faults, Injection};
use misconfiguration::Misconfigurations;
use transfer::{BoundChannel, KvTransfer, TransferConfig};

#[derive(Clone, Debug)]
pub struct HostConfig {
    pub engine: engine::EngineConfig,
    pub brand: Brand,
    /// The name in requests.
    pub model: String,
    /// LoRA adapters: further model names, each with its own cache and answers.
    pub adapters: Vec<String>,
    /// Speed of the steps relative to the profile.
    pub speedup: f64,
    /// How many request bodies to keep for `Handle::bodies`, the latest ones.
    pub bodies_max: usize,
    /// Where cache changes are published; `None`: nowhere.
    pub events: Option<events::PublisherConfig>,
    /// How KV is exchanged with other engines; `None`: not at all.
    pub transfer: Option<TransferConfig>,
    /// A store that it shares with other engines.
    pub store: Option<StoreMember>,
    /// Deliberate misconfigurations.
    pub misconfigurations: Misconfigurations,
}

/// An engine's part in a store.
#[derive(Clone, Debug)]
pub struct StoreMember {
    pub store: SharedStore,
    /// What it costs to load from it.
    pub link: LinkModel,
}

impl HostConfig {
    pub fn new(profile: Profile) -> HostConfig {
        HostConfig {
            engine: engine::EngineConfig::new(profile),
            brand: Brand::default(),
            model: "maitre-sim".to_owned(),
            adapters: Vec::new(),
            speedup: 1.0,
            bodies_max: 0,
            events: None,
            transfer: None,
            store: None,
            misconfigurations: Misconfigurations::default(),
        }
    }
}

impl HostConfig {
    /// Whether a prompt can hit what another one computed. SGLang's decode engines have no prefix cache.
    fn caches_prefixes(&self) -> bool {
        let only_decodes = self.transfer.as_ref().is_some_and(TransferConfig::only_decodes);
        self.misconfigurations.caches_prefixes() && !only_decodes
    }
}

#[derive(Debug, thiserror::Error)]
#[error("listen on {addr}: {cause}")]
pub struct BindError {
    pub addr: SocketAddr,
    pub cause: std::io::Error,
}

/// A running engine. Dropping it kills it.
pub struct Host {
    addr: SocketAddr,
    state: Arc<HostState>,
    /// One task that owns all others: the listeners (which own the connections) and the driver.
    tasks: JoinSet<()>,
}

/// Observes and disturbs a running engine.
#[derive(Clone)]
pub struct Handle(Arc<HostState>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    pub connections_open: u64,
    /// Requests in progress, on every route.
    pub requests_open: u64,
    pub requests_received: u64,
    pub engine: engine::EngineStats,
    pub events: events::PublisherStats,
    /// Connections of the side channel.
    pub transfer_connections: u64,
}

/// A received request, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

struct HostState {
    config: HostConfig,
    addr: SocketAddr,
    driver: EngineDriver,
    publisher: Option<Arc<Publisher>>,
    transfer: Option<KvTransfer>,
    died: watch::Sender<bool>,
    /// Changes when every connection must be dropped.
    crash: watch::Sender<u64>,
    faults: Faults,
    connections: Gauge,
    requests: Gauge,
    bodies: Mutex<VecDeque<RecordedRequest>>,
    /// Notified whenever `HostStats` may have changed.
    changed: Arc<Notify>,
}

impl Host {
    /// Listens on `addr` (port 0 picks one) and serves on the runtime of the caller.
    pub async fn bind(addr: SocketAddr, config: HostConfig) -> Result<Host, BindError> {
        let (listener, addr) = bind(addr).await?;
        let changed = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        let publisher = publish(&config, &changed, &mut tasks).await?;
        let side = match &config.transfer {
            Some(transfer) => Some(BoundChannel::bind(transfer, &changed).await?),
            None => None,
        };
        let (transfer, side_tasks) = side.map(|it| (it.transfer, (it.listener, it.orders))).unzip();
        let state = Arc::new(HostState {
            addr,
            driver: EngineDriver::new(&config, publisher.clone(), Arc::clone(&changed)),
            publisher,
            transfer,
            died: watch::Sender::new(false),
            crash: watch::Sender::new(0),
            config,
            faults: Faults::default(),
            connections: Gauge::new(Arc::clone(&changed)),
            requests: Gauge::new(Arc::clone(&changed)),
            bodies: Mutex::default(),
            changed,
        });
        let driven = Arc::clone(&state);
        tasks.spawn(async move { driven.driver.run(&driven.faults).await });
        let served = Arc::clone(&state);
        tasks.spawn(accept(listener, move |it| connection(it, Arc::clone(&served))));
        if let Some((listener, orders)) = side_tasks {
            tasks.spawn(transfer::listen(listener, Arc::clone(&state)));
            tasks.spawn(transfer::run(Arc::clone(&state), orders));
        }
        let mut died = state.died.subscribe();
        let mut owner = JoinSet::new();
        owner.spawn(async move {
            let _ = died.wait_for(|it| *it).await;
            tasks.shutdown().await;
        });
        Ok(Host { addr, state, tasks: owner })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where events are published, if they are.
    pub fn events(&self) -> Option<events::Addrs> {
        self.state.publisher.as_ref().map(|it| it.addrs())
    }

    /// The side channel, if there is one.
    pub fn side_channel(&self) -> Option<SocketAddr> {
        self.state.transfer.as_ref().map(|it| it.addr())
    }

    /// Returns once a request has killed the engine.
    pub async fn died(&self) {
        let _ = self.state.died.subscribe().wait_for(|it| *it).await;
    }

    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.state))
    }

    /// Stops like a killed process: when this returns, every connection is dropped and the port refuses.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        let handle = self.handle();
        let is_closed = |stats: &HostStats| {
            stats.connections_open == 0 && stats.events.connections == 0 && stats.transfer_connections == 0
        };
        handle.until(is_closed).await;
    }
}

impl Handle {
    pub fn stats(&self) -> HostStats {
        HostStats {
            connections_open: self.0.connections.open(),
            requests_open: self.0.requests.open(),
            requests_received: self.0.requests.total.load(Ordering::Relaxed),
            engine: self.0.driver.stats(),
            events: self.0.publisher.as_ref().map(|it| it.stats()).unwrap_or_default(),
            transfer_connections: self.0.transfer.as_ref().map_or(0, |it| it.connections.open()),
        }
    }

    /// Waits until the counters satisfy the condition.
    pub async fn until(&self, mut wanted: impl FnMut(&HostStats) -> bool) -> HostStats {
        loop {
            let changed = self.0.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registers before it reads, so that no change is missed.
            changed.as_mut().enable();
            let stats = self.stats();
            if wanted(&stats) {
                return stats;
            }
            changed.await;
        }
    }

    /// Replaces the current fault, if any.
    pub fn inject(&self, injection: Injection) {
        self.0.faults.inject(injection);
    }

    pub fn clear_fault(&self) {
        self.0.faults.clear();
    }

    /// The latest requests that had a body, up to `Settings::bodies_max`.
    pub fn bodies(&self) -> Vec<RecordedRequest> {
        self.0.bodies.lock().iter().cloned().collect()
    }

    /// Disturbs the event stream, if there is one.
    pub fn disturb(&self, disturbance: Disturbance) {
        self.0.publisher.iter().for_each(|it| it.disturb(disturbance));
    }

    /// Ends lasting disturbances. A batch held back by a swap is sent.
    pub fn clear_disturbances(&self) {
        self.0.publisher.iter().for_each(|it| it.clear_disturbances());
    }

    /// Crashes and restarts at once: every connection of clients and subscribers is dropped, jobs and cache are gone,
    /// counters and event numbers start over. For a longer outage, stop the host and bind another.
    pub fn restart_engine(&self) {
        self.0.restart();
    }

    /// Clears the cache unless a job holds blocks. Returns whether it did. Subscribers are notified with the next
    /// step, as in vLLM.
    pub fn clear_cache(&self) -> bool {
        self.0.driver.clear_cache()
    }

    /// The ground truth for an index: every cached block by its name, as in events, with its number of copies.
    pub fn resident(&self) -> BTreeMap<u64, u32> {
        self.0.driver.resident()
    }

    /// The ground truth by prompt: how many leading blocks are cached.
    pub fn holds(&self, tokens: &[u32], root: &Root) -> usize {
        self.0.driver.holds(tokens, root)
    }

    /// What the engine stored and removed since the last call, if `engine::Settings::changes_max` allows.
    /// With events on there is nothing here: the publisher takes it.
    pub fn take_changes(&self) -> (Vec<crate::kv::Change>, u64) {
        self.0.driver.take_changes()
    }
}

impl HostState {
    fn restart(&self) {
        // First of all: an old connection must not report what is true after the restart.
        self.crash.send_modify(|times| *times += 1);
        self.driver.restart();
        self.transfer.iter().for_each(KvTransfer::restart);
    }

    /// Ends the engine as a failed assertion does. The response in progress is still sent.
    fn die(&self) {
        self.died.send_replace(true);
    }

    fn record(&self, path: &str, headers: &HeaderMap, body: &Bytes) {
        let limit = self.config.bodies_max;
        if limit == 0 {
            return;
        }
        let mut bodies = self.bodies.lock();
        if bodies.len() == limit {
            bodies.pop_front();
        }
        bodies.push_back(RecordedRequest {
            path: path.to_owned(),
            headers: headers.clone(),
            body: body.clone(),
        });
    }
}

async fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let fail = |cause| BindError { addr, cause };
    let listener = TcpListener::bind(addr).await.map_err(fail)?;
    let addr = listener.local_addr().map_err(fail)?;
    Ok((listener, addr))
}

/// Opens the event sockets, if configured.
async fn publish(
    config: &HostConfig,
    changed: &Arc<Notify>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<Arc<Publisher>>, BindError> {
    let published = config.events.clone().filter(|_| config.caches_prefixes());
    let Some(events) = published else { return Ok(None) };
    let (stream, stream_addr) = bind(events.stream).await?;
    let replay = match events.replay {
        Some(addr) => Some(bind(addr).await?),
        None => None,
    };
    let addrs = events::Addrs { stream: stream_addr, replay: replay.as_ref().map(|it| it.1) };
    let model = events::PublishedModel {
        block_tokens: config.engine.profile.block_tokens.max(1),
        adapters: config.adapters.clone(),
    };
    let publisher = Arc::new(Publisher::new(events, addrs, model, Arc::clone(changed)));
    tasks.spawn(socket::listen(stream, Service::Stream, Arc::clone(&publisher)));
    if let Some((replay, _)) = replay {
        tasks.spawn(socket::listen(replay, Service::Replay, Arc::clone(&publisher)));
    }
    Ok(Some(publisher))
}

async fn connection(stream: TcpStream, state: Arc<HostState>) {
    let _open = state.connections.enter();
    let mut crash = state.crash.subscribe();
    if state.faults.take_connection() {
        // A reset is the closest that a listening socket can come to a refusal.
        let _ = stream.set_zero_linger();
        return;
    }
    // Tokens are small and must not be late: never wait to fill a packet.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| route::serve(Arc::clone(&state), request));
    // Chunks are a few hundred bytes: copying them into one buffer costs less than a vector of three slices for each.
    let served = http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // In this order, so that the client that requested the crash still receives its response.
        biased;
        // A client disconnect and an injected cut both end here as errors; other code counts both.
        _ = served => {}
        _ = crash.changed() => {}
    }
}

/// How many of something are open, and how many there have been.
#[derive(Clone)]
struct Gauge {
    open: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    changed: Arc<Notify>,
}

/// Counts as open until dropped.
struct OpenGuard(Gauge);

impl Gauge {
    fn new(changed: Arc<Notify>) -> Gauge {
        Gauge { open: Arc::default(), total: Arc::default(), changed }
    }

    fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    fn enter(&self) -> OpenGuard {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_waiters();
        OpenGuard(self.clone())
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;

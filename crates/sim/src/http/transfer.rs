//! KV between engines over sockets: a side channel that other engines read from, and tasks that fetch.
//!
//! Control messages travel over TCP, so a dead or silent engine is noticed as in reality. The KV itself is only time,
//! which the link model computes. A fetch is a task of the engine and not of the request: a client disconnect does
//! not end it, as in vLLM.

mod bootstrap;
mod channel;
mod nixl;
mod params;
mod peer;
mod room;
mod stats;
mod submit;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, hash};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::{BindError, Gauge, HostState};
use crate::accept::accept;
use crate::clock;
use crate::engine::transfer::KvFetch;
use crate::link::{Link, LinkModel};
use crate::profile::Profile;

pub use bootstrap::{BootstrapConfig, RoomRole};
pub use nixl::{LoadFailure, NixlConfig};
pub use peer::PeerConfig;
pub(super) use stats::TransferMetrics;

/// How an engine exchanges KV with others.
#[derive(Clone, Debug)]
pub struct TransferConfig {
    pub connector: Connector,
    /// The side channel; port 0 picks one.
    pub listen: SocketAddr,
    /// What it costs to receive KV here.
    pub link: LinkModel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connector {
    /// vLLM's `NixlConnector` in pull mode.
    Nixl(NixlConfig),
    /// vLLM's `OffloadingConnector` with a peer-to-peer tier: any engine can pull from any other.
    Peer(PeerConfig),
    /// SGLang's disaggregation: an engine either prefills or decodes.
    Bootstrap(BootstrapConfig),
}

impl TransferConfig {
    pub fn new(connector: Connector, listen: SocketAddr, profile: &Profile) -> TransferConfig {
        TransferConfig { connector, listen, link: LinkModel::of(profile) }
    }

    /// Whether the engine only decodes what others have computed.
    pub(super) fn only_decodes(&self) -> bool {
        matches!(self.connector, Connector::Bootstrap(BootstrapConfig { role: RoomRole::Decode, .. }))
    }
}

/// The side channel of a running engine and everything that it has fetched.
pub(super) struct KvTransfer {
    config: TransferConfig,
    addr: SocketAddr,
    /// Differs between processes; with the number of restarts it identifies an engine.
    nonce: u64,
    link: Mutex<Link>,
    orders: mpsc::UnboundedSender<Order>,
    pub(super) metrics: Mutex<TransferMetrics>,
    met: Mutex<nixl::MetEngines>,
    rooms: room::Rooms,
    pub(super) connections: Gauge,
}

/// A side channel that is bound, but not served yet.
pub(super) struct BoundChannel {
    pub(super) transfer: KvTransfer,
    pub(super) listener: TcpListener,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
}

impl BoundChannel {
    pub(super) async fn bind(
        config: &TransferConfig,
        changed: &Arc<Notify>,
    ) -> Result<BoundChannel, BindError> {
        let (listener, addr) = super::bind(config.listen).await?;
        let connections = Gauge::new(Arc::clone(changed));
        let (transfer, orders) = KvTransfer::new(config.clone(), addr, connections);
        Ok(BoundChannel { transfer, listener, orders })
    }
}

/// What a request asks of the connector.
#[derive(Clone, Debug)]
pub(super) enum Leg {
    Plain,
    /// The engine holds its blocks for another engine.
    Prefill,
    /// Its KV comes from another engine.
    Decode(Source),
    /// The engine computes its KV for another engine, which waits for it in this room.
    Room(params::RoomAddress),
    /// It kills the engine.
    Fatal,
}

/// Where the KV of a prompt is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Nixl(params::RemoteBlocks),
    Peer(params::PeerAddress),
    Room(params::RoomAddress),
}

/// What identifies a prompt's KV.
pub(super) struct PromptIdentity {
    /// The seed of its answer.
    seed: u64,
    /// The names of its full blocks, as far as they can be hit.
    names: Vec<u64>,
}

/// What a task needs to fetch the KV of one prompt.
pub(super) struct Fetch {
    source: Source,
    prompt: PromptIdentity,
    /// Set once the engine has reserved the blocks.
    start: oneshot::Receiver<KvFetch>,
    /// Closed as soon as no request waits for the answer.
    wanted: oneshot::Receiver<()>,
}

/// Work of the fetching task.
pub(super) enum Order {
    /// Fetch, once the engine has reserved the blocks.
    Fetch(Fetch),
    /// The request was refused: its source need not be kept.
    Release(Source),
}

impl KvTransfer {
    fn new(
        config: TransferConfig,
        addr: SocketAddr,
        connections: Gauge,
    ) -> (KvTransfer, mpsc::UnboundedReceiver<Order>) {
        let (orders, ordered) = mpsc::unbounded_channel();
        let nanos = clock::since_1970().as_nanos() as u64;
        let transfer = KvTransfer {
            nonce: hash::pair(nanos, u64::from(addr.port())),
            link: Mutex::new(Link::new(config.link)),
            metrics: Mutex::default(),
            met: Mutex::default(),
            rooms: room::Rooms::default(),
            config,
            addr,
            orders,
            connections,
        };
        (transfer, ordered)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn connector(&self) -> Connector {
        self.config.connector
    }

    pub(super) fn restart(&self) {
        *self.metrics.lock() = TransferMetrics::default();
        *self.met.lock() = nixl::MetEngines::default();
    }

    /// The host under which other engines reach it.
    fn host(&self) -> String {
        let ip = self.addr.ip();
        if ip.is_unspecified() { "127.0.0.1".to_owned() } else { ip.to_string() }
    }

    /// Begins a transfer of `bytes` and returns when it is complete.
    fn send(&self, state: &HostState, bytes: u64) -> Instant {
        let slowness = state.faults.link_slowness() / state.driver.speedup();
        self.link.lock().send(state.driver.now(), bytes, slowness)
    }

    /// Looks like a UUID. It changes with every restart, as in vLLM.
    fn engine_id(&self, state: &HostState) -> String {
        let one = hash::pair(self.nonce, *state.crash.borrow());
        let other = hash::mix(one);
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            one >> 32,
            one >> 16 & 0xffff,
            one & 0xfff,
            other >> 48 & 0x3fff | 0x8000,
            other & 0xffff_ffff_ffff
        )
    }

    fn order(&self, order: Order) {
        // Fails only after the engine has died.
        let _ = self.orders.send(order);
    }
}

/// Carries out all orders for ever. A crash ends those in progress.
pub(super) async fn run(state: Arc<HostState>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut fetches = JoinSet::new();
    let mut crash = state.crash.subscribe();
    loop {
        tokio::select! {
            Some(order) = orders.recv() => {
                fetches.spawn(carry_out(Arc::clone(&state), order));
            }
            Some(_) = fetches.join_next() => {}
            Ok(()) = crash.changed() => fetches.abort_all(),
        }
    }
}

async fn carry_out(state: Arc<HostState>, order: Order) {
    let Some(transfer) = &state.transfer else { return };
    match (order, transfer.connector()) {
        (Order::Fetch(fetch), connector) => fetch.carry_out(&state, transfer, connector).await,
        (Order::Release(Source::Nixl(remote)), Connector::Nixl(config)) => {
            nixl::Fetcher { state: &state, transfer, config, remote }.release().await;
        }
        // Other connectors hold nothing for us.
        (Order::Release(_), _) => {}
    }
}

impl Fetch {
    async fn carry_out(self, state: &HostState, transfer: &KvTransfer, connector: Connector) {
        let Fetch { source, prompt, start, wanted } = self;
        match (source, connector) {
            (Source::Nixl(remote), Connector::Nixl(config)) => {
                nixl::Fetcher { state, transfer, config, remote }.run(prompt.seed, start).await;
            }
            (Source::Peer(peer), Connector::Peer(config)) => {
                peer::Puller { state, transfer, config, peer }.run(&prompt.names, start).await;
            }
            (Source::Room(address), Connector::Bootstrap(config)) => {
                let receiver = bootstrap::Receiver { state, transfer, config, address };
                receiver.run(prompt.seed, start, wanted).await;
            }
            // A source is always one of the engine's own connector.
            _ => {}
        }
    }
}

/// Serves the side channel for ever.
pub(super) async fn listen(listener: TcpListener, state: Arc<HostState>) {
    accept(listener, move |it| serve(it, Arc::clone(&state))).await;
}

async fn serve(stream: TcpStream, state: Arc<HostState>) {
    let Some(transfer) = &state.transfer else { return };
    let _open = transfer.connections.enter();
    let mut crash = state.crash.subscribe();
    if state.faults.take_side_channel() {
        // Reads until the other end closes.
        let (mut stream, mut sink) = (stream, tokio::io::sink());
        tokio::select! {
            _ = tokio::io::copy(&mut stream, &mut sink) => {}
            _ = crash.changed() => {}
        }
        return;
    }
    tokio::select! {
        // A disconnect or a malformed message ends the connection; nothing is reported.
        _ = transfer.serve(&state, stream, crash.clone()) => {}
        _ = crash.changed() => {}
    }
}

impl KvTransfer {
    async fn serve(
        &self,
        state: &HostState,
        stream: TcpStream,
        crash: watch::Receiver<u64>,
    ) -> io::Result<()> {
        if matches!(self.connector(), Connector::Bootstrap(_)) {
            return bootstrap::serve(stream, state, self).await;
        }
        let mut channel = channel::ServerChannel::new(stream)?;
        while let Some(message) = channel.next().await? {
            let reply = match self.connector() {
                Connector::Nixl(config) => nixl::answer(state, self, config, message),
                Connector::Peer(_) => peer::answer(state, message),
                Connector::Bootstrap(_) => channel::Reply::No,
            };
            // A connection's request to one engine must not be answered by the next.
            if crash.has_changed().unwrap_or(true) {
                break;
            }
            channel.reply(&reply).await?;
        }
        Ok(())
    }
}

/// A part of a lease.
fn fraction(span: Duration, numerator: u32, denominator: u32) -> Duration {
    span / denominator * numerator
}

//! KV between engines over sockets: a side channel that other engines read from, and tasks that fetch.
//!
//! Control messages travel over TCP, so that a dead or silent engine is noticed as in reality; the KV itself is only
//! time, which the link model computes. A fetch is a task of the engine and not of the request: a client that leaves
//! does not end it, as in vLLM.

mod channel;
mod nixl;
mod params;
mod stats;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, hash};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use super::driver::{Ticket, TransferPlan};
use super::error::ApiError;
use super::{BindError, Gauge, HostState};
use crate::clock;
use crate::engine::transfer::{HoldId, KvFetch, Transfer};
use crate::engine::{Job, Reject};
use crate::link::{Link, LinkModel};
use crate::profile::Profile;

pub use nixl::{LoadFailure, NixlConfig};
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

#[derive(Clone, Copy, Debug)]
pub enum Connector {
    /// vLLM's `NixlConnector` in pull mode.
    Nixl(NixlConfig),
}

impl TransferConfig {
    pub fn new(connector: Connector, listen: SocketAddr, profile: &Profile) -> TransferConfig {
        TransferConfig { connector, listen, link: LinkModel::of(profile) }
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
    pub(super) connections: Gauge,
}

/// A side channel that nobody serves yet.
pub(super) struct SideChannel {
    pub(super) transfer: KvTransfer,
    pub(super) listener: TcpListener,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
}

impl SideChannel {
    pub(super) async fn bind(
        config: &TransferConfig,
        changed: &Arc<Notify>,
    ) -> Result<SideChannel, BindError> {
        let (listener, addr) = super::bind(config.listen).await?;
        let connections = Gauge::new(Arc::clone(changed));
        let (transfer, orders) = KvTransfer::new(config.clone(), addr, connections);
        Ok(SideChannel { transfer, listener, orders })
    }
}

/// What a request asks of the connector.
#[derive(Clone, Debug)]
pub(super) enum Leg {
    Plain,
    /// Its blocks are held for another engine.
    Prefill,
    /// Its KV comes from another engine.
    Decode(Source),
    /// It kills the engine.
    Fatal,
}

/// Where the KV of a prompt is.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Nixl(params::RemoteBlocks),
}

/// Work of the fetching task.
pub(super) enum Order {
    /// Fetch, once the engine has reserved the blocks.
    Fetch { source: Source, seed: u64, start: oneshot::Receiver<KvFetch> },
    /// The request was refused: its source is not needed.
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

    /// As other engines reach it.
    fn host(&self) -> String {
        let ip = self.addr.ip();
        if ip.is_unspecified() { "127.0.0.1".to_owned() } else { ip.to_string() }
    }

    /// Begins a transfer of `bytes` and returns when it is complete.
    fn send(&self, state: &HostState, bytes: u64) -> Instant {
        let slowness = state.faults.link_slowness() / state.driver.speedup();
        self.link.lock().send(state.driver.now(), bytes, slowness)
    }

    /// Looks like a UUID. Another one after every restart, as in vLLM.
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
}

impl HostState {
    /// Which leg this request is. Without a connector its parameters mean nothing, as in vLLM.
    pub(super) fn leg(&self, kv_transfer_params: Option<&str>) -> Result<Leg, ApiError> {
        match (&self.transfer, kv_transfer_params) {
            (Some(transfer), Some(text)) => match transfer.connector() {
                Connector::Nixl(_) => params::nixl_leg(text),
            },
            _ => Ok(Leg::Plain),
        }
    }

    /// Submits a job as the leg that it is.
    pub(super) fn submit_leg(&self, arrived: Instant, job: Job, leg: Leg) -> Result<Ticket, Reject> {
        match (leg, &self.transfer) {
            (Leg::Prefill, Some(transfer)) => {
                let Connector::Nixl(config) = transfer.connector();
                let transfer = Transfer::Out { lease: config.lease };
                self.driver.submit_transfer(
                    arrived,
                    job,
                    TransferPlan { transfer, ..TransferPlan::default() },
                )
            }
            (Leg::Decode(source), Some(transfer)) => transfer.submit_decode(self, arrived, job, source),
            _ => self.driver.submit(arrived, job),
        }
    }

    /// The request failed before the engine had it: its source need not be kept.
    pub(super) fn release_source(&self, leg: Leg) {
        if let (Leg::Decode(source), Some(transfer)) = (leg, &self.transfer) {
            transfer.order(Order::Release(source));
        }
    }

    /// The value of `kv_transfer_params` in the answer to a prefill leg. `null` if nothing is held.
    pub(super) fn transfer_params(&self, request_id: &str, ticket: &Ticket, cached_tokens: u32) -> String {
        let id = HoldId::from(ticket.job());
        match (&self.transfer, self.driver.hold(id)) {
            (Some(transfer), Some(hold)) => params::render(&params::HandOver {
                engine_id: transfer.engine_id(self),
                request_id: params::request_id(request_id, id),
                host: transfer.host(),
                port: transfer.addr.port(),
                blocks: hold.blocks,
                num_tokens: hold.tokens,
                cached_tokens,
            }),
            _ => "null".to_owned(),
        }
    }
}

impl KvTransfer {
    fn submit_decode(
        &self,
        state: &HostState,
        arrived: Instant,
        job: Job,
        source: Source,
    ) -> Result<Ticket, Reject> {
        let (sender, start) = oneshot::channel();
        let seed = job.seed;
        let plan = TransferPlan {
            transfer: Transfer::In,
            cached_tokens: source.cached_tokens(),
            fetch: Some(sender),
        };
        let ticket = state.driver.submit_transfer(arrived, job, plan)?;
        self.order(Order::Fetch { source, seed, start });
        Ok(ticket)
    }

    fn order(&self, order: Order) {
        // Fails only after the engine has died.
        let _ = self.orders.send(order);
    }
}

impl Source {
    fn cached_tokens(&self) -> Option<u32> {
        match self {
            Source::Nixl(remote) => remote.cached_tokens,
        }
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
        (Order::Fetch { source: Source::Nixl(remote), seed, start }, Connector::Nixl(config)) => {
            let fetcher = nixl::Fetcher { state: &state, transfer, config, remote };
            fetcher.run(seed, start).await;
        }
        (Order::Release(Source::Nixl(remote)), Connector::Nixl(config)) => {
            nixl::Fetcher { state: &state, transfer, config, remote }.release().await;
        }
    }
}

/// Serves the side channel for ever.
pub(super) async fn listen(listener: TcpListener, state: Arc<HostState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, Arc::clone(&state)));
                }
                // As with HTTP: neither fatal nor a reason to spin.
                Err(_) => tokio::task::yield_now().await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: tokio::net::TcpStream, state: Arc<HostState>) {
    let Some(transfer) = &state.transfer else { return };
    let _open = transfer.connections.enter();
    let mut crash = state.crash.subscribe();
    if state.faults.take_side_channel() {
        // Until the other end has had enough.
        let (mut stream, mut sink) = (stream, tokio::io::sink());
        tokio::select! {
            _ = tokio::io::copy(&mut stream, &mut sink) => {}
            _ = crash.changed() => {}
        }
        return;
    }
    tokio::select! {
        // A disconnect or a malformed message ends the connection; nothing is reported.
        _ = channel::serve(stream, |message| transfer.answer(&state, message)) => {}
        _ = crash.changed() => {}
    }
}

impl KvTransfer {
    fn answer(&self, state: &HostState, message: channel::Message) -> channel::Reply {
        match self.connector() {
            Connector::Nixl(config) => nixl::answer(state, self, config, message),
        }
    }
}

/// A part of a lease.
fn fraction(span: Duration, numerator: u32, denominator: u32) -> Duration {
    span / denominator * numerator
}

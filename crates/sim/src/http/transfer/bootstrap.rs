//! SGLang's prefill/decode disaggregation: both legs start at once and meet in a room of the prefill engine.
//!
//! The prefill engine waits for the decode engine before it computes, and answers once its KV has been read. The
//! decode engine reserves its blocks, joins the room and waits. It does not learn that the other leg was refused or
//! cancelled: it waits for its timeout. It notices a dead prefill engine after two heartbeats.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use maitre_base::Instant;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::KvTransfer;
use super::channel::{Message, Reply, ServerChannel, SideChannel};
use super::params::RoomAddress;
use super::room::{DecodeSeat, Spoiled};
use crate::engine::transfer::{Content, FetchOutcome, HoldId, KvFetch};
use crate::engine::{Job, Transfer};
use crate::http::HostState;
use crate::http::driver::{Ticket, TransferPlan};
use crate::http::error::ApiError;

/// The blocks are released by hand.
const HELD_AT_MOST: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapConfig {
    pub role: RoomRole,
    /// How long each leg waits for the other (SGLang: `SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT` and
    /// `.._WAITING_TIMEOUT`).
    pub timeout: Duration,
    /// How long a decode engine takes to notice that the prefill engine is dead: two heartbeats.
    pub lost_after: Duration,
}

/// SGLang's `--disaggregation-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomRole {
    Prefill,
    Decode,
}

impl BootstrapConfig {
    /// With SGLang's timeouts.
    pub fn new(role: RoomRole) -> BootstrapConfig {
        BootstrapConfig { role, timeout: Duration::from_secs(300), lost_after: Duration::from_secs(10) }
    }
}

/// Computes a prefill leg and waits until its KV has been read.
pub(super) async fn prefill(
    state: &HostState,
    config: BootstrapConfig,
    arrived: Instant,
    job: Job,
    room: u64,
) -> Result<Ticket, ApiError> {
    let Some(transfer) = &state.transfer else { return Ok(state.driver.submit(arrived, job)?) };
    let mut seat = match transfer.rooms.enter_prefill(room) {
        Ok(seat) => seat,
        Err(Spoiled::Abandoned) => return Err(ApiError::internal()),
        // The decode leg does not wait in a poisoned room.
        Err(Spoiled::Poisoned) => {
            let ticket = state.driver.submit(arrived, job)?;
            ticket.finished().await;
            return Ok(ticket);
        }
    };
    let lost = |_| ApiError::internal();
    tokio::time::timeout(config.timeout, seat.decode_joined()).await.map_err(lost)?;
    let plan = TransferPlan { transfer: Transfer::Out { lease: HELD_AT_MOST }, ..TransferPlan::default() };
    let seed = job.seed;
    let ticket = state.driver.submit_transfer(arrived, job, plan)?;
    let _hold = HeldBlocks { state, id: HoldId::from(ticket.job()) };
    ticket.finished().await;
    seat.ready(seed);
    match tokio::time::timeout(config.timeout, seat.decode_done()).await.map_err(lost)? {
        true => Ok(ticket),
        false => Err(ApiError::internal()),
    }
}

/// Frees the blocks when the leg ends, for any reason.
struct HeldBlocks<'a> {
    state: &'a HostState,
    id: HoldId,
}

impl Drop for HeldBlocks<'_> {
    fn drop(&mut self) {
        self.state.driver.release_hold(self.id);
    }
}

/// Receives the KV of one prompt.
pub(super) struct Receiver<'a> {
    pub(super) state: &'a HostState,
    pub(super) transfer: &'a KvTransfer,
    pub(super) config: BootstrapConfig,
    pub(super) address: RoomAddress,
}

impl Receiver<'_> {
    /// Ends with its request: SGLang frees the blocks at once.
    pub(super) async fn run(
        self,
        seed: u64,
        start: oneshot::Receiver<KvFetch>,
        wanted: oneshot::Receiver<()>,
    ) {
        // An error: the engine restarted.
        let Ok(fetch) = start.await else { return };
        if !fetch.is_wanted {
            return;
        }
        let outcome = tokio::select! {
            outcome = self.outcome(&fetch, seed) => outcome,
            _ = wanted => FetchOutcome::Failed,
        };
        self.state.driver.finish_fetch(fetch.job, outcome);
    }

    async fn outcome(&self, fetch: &KvFetch, seed: u64) -> FetchOutcome {
        match self.receive(fetch, seed).await {
            Ok(content) => FetchOutcome::Arrived { tokens: fetch.prompt_tokens, content },
            Err(error) => {
                if error.kind() != io::ErrorKind::TimedOut {
                    let noticed = self.state.driver.now() + self.config.lost_after;
                    self.state.driver.sleep_until(noticed).await;
                }
                FetchOutcome::Failed
            }
        }
    }

    async fn receive(&self, fetch: &KvFetch, seed: u64) -> io::Result<Content> {
        let RoomAddress { host, port, room } = &self.address;
        let mut channel = SideChannel::open(host, *port, self.config.timeout).await?;
        if channel.ask(&Message::Join { room: *room, seed }).await? != Reply::Yes {
            return Ok(Content::Wrong);
        }
        let block_tokens = self.state.config.engine.profile.block_tokens.max(1);
        let blocks = u64::from(fetch.prompt_tokens.div_ceil(block_tokens));
        let bytes = self.transfer.config.link.bytes(blocks, block_tokens);
        let end = self.transfer.send(self.state, bytes);
        tokio::select! {
            biased;
            () = self.state.driver.sleep_until(end) => {}
            () = channel.closed() => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        channel.ask(&Message::Leave).await?;
        Ok(Content::Right)
    }
}

/// Serves the bootstrap port of a prefill engine: decode engines that join rooms, and HTTP.
pub(super) async fn serve(stream: TcpStream, state: &HostState, transfer: &KvTransfer) -> io::Result<()> {
    let mut beginning = [0; 4];
    if stream.peek(&mut beginning).await? == 4 && beginning == *b"GET " {
        let service = service_fn(|request| std::future::ready(answer(state, &request)));
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        return served.await.map_err(io::Error::other);
    }
    let mut channel = ServerChannel::new(stream)?;
    let mut seat: Option<DecodeSeat> = None;
    while let Some(message) = channel.next().await? {
        let reply = match message {
            Message::Join { room, seed } => match transfer.rooms.enter_decode(room) {
                Err(Spoiled::Poisoned) => Reply::No,
                Err(Spoiled::Abandoned) => {
                    channel.closed().await;
                    return Ok(());
                }
                Ok(entered) => {
                    let seat = seat.insert(entered);
                    tokio::select! {
                        ready = seat.prefill_ready() => if ready == seed { Reply::Yes } else { Reply::No },
                        () = channel.closed() => return Ok(()),
                    }
                }
            },
            Message::Leave => {
                seat.iter().for_each(DecodeSeat::done);
                Reply::Yes
            }
            _ => Reply::No,
        };
        channel.reply(&reply).await?;
    }
    Ok(())
}

/// The bootstrap server's own routes.
fn answer(state: &HostState, request: &Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (status, text) = match request.uri().path() {
        "/health" => (StatusCode::OK, "OK".to_owned()),
        "/route" => (StatusCode::OK, route(state).to_string()),
        _ => (StatusCode::NOT_FOUND, String::new()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

fn route(state: &HostState) -> Value {
    json!({
        "attn_tp_size": 1,
        "attn_cp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": state.config.engine.profile.block_tokens,
        "kv_cache_dtype": "auto",
        "follow_bootstrap_room": true,
        "prefill_http_port": state.addr.port(),
    })
}

/// `/server_info`, from which a router learns which engine prefills and where to join.
pub(super) fn server_info(state: &HostState, transfer: &KvTransfer, config: BootstrapConfig) -> Value {
    json!({
        "disaggregation_mode": match config.role {
            RoomRole::Prefill => "prefill",
            RoomRole::Decode => "decode",
        },
        "disaggregation_bootstrap_port": transfer.addr.port(),
        "page_size": state.config.engine.profile.block_tokens,
        "dp_size": 1,
        "load_balance_method": "follow_bootstrap_room",
        "served_model_name": state.config.model,
    })
}

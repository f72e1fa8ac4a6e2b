//! vLLM's NIXL connector in pull mode: the decode engine reads the blocks that the prefill engine holds for it.
//!
//! As observed with vLLM 0.32: an engine met before is used without a handshake, so its death is noticed at once; any
//! other costs the whole handshake timeout. No check tells whether the blocks still belong to the request.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use maitre_base::Instant;
use tokio::sync::oneshot;

use super::channel::{Message, Reply, SideChannel};
use super::params::{self, RemoteBlocks};
use super::{KvTransfer, fraction};
use crate::engine::transfer::{Content, FetchOutcome, KvFetch};
use crate::http::HostState;

/// Engines that are remembered as met; the oldest is forgotten first.
const MET_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NixlConfig {
    /// How long the blocks of a prefill leg are held (vLLM: `kv_lease_duration`). A heartbeat every sixth of it
    /// extends it by two thirds.
    pub lease: Duration,
    /// How long to wait for an unknown engine.
    pub handshake_timeout: Duration,
    pub on_failure: LoadFailure,
}

/// What happens to a request whose KV cannot be fetched (vLLM: `kv_load_failure_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFailure {
    /// It ends with an error.
    #[default]
    Fail,
    /// Its prompt is computed here.
    Recompute,
}

impl Default for NixlConfig {
    /// vLLM's.
    fn default() -> NixlConfig {
        NixlConfig {
            lease: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(5),
            on_failure: LoadFailure::default(),
        }
    }
}

/// The ids of the engines with which a handshake succeeded.
#[derive(Debug, Default)]
pub(super) struct MetEngines(VecDeque<String>);

impl MetEngines {
    fn contains(&self, engine_id: &str) -> bool {
        self.0.iter().any(|it| it == engine_id)
    }

    fn insert(&mut self, engine_id: &str) {
        if self.contains(engine_id) {
            return;
        }
        if self.0.len() == MET_MAX {
            self.0.pop_front();
        }
        self.0.push_back(engine_id.to_owned());
    }
}

/// Answers another engine that reads from this one.
pub(super) fn answer(
    state: &HostState,
    transfer: &KvTransfer,
    config: NixlConfig,
    message: Message,
) -> Reply {
    let yes_if = |it: bool| if it { Reply::Yes } else { Reply::No };
    match message {
        Message::Handshake { engine_id } => yes_if(engine_id == transfer.engine_id(state)),
        Message::Read { request_id, seed } => {
            let hold = params::hold_of(&request_id).and_then(|it| state.driver.hold(it));
            yes_if(hold.is_some_and(|it| it.seed == seed))
        }
        Message::Heartbeat { request_id } => {
            let until = state.driver.now() + fraction(config.lease, 2, 3);
            params::hold_of(&request_id).iter().for_each(|&it| state.driver.extend_hold(it, until));
            Reply::Yes
        }
        Message::Done { request_id } => {
            let is_held = params::hold_of(&request_id).is_some_and(|it| state.driver.release_hold(it));
            if !is_held {
                transfer.metrics.lock().after_expiry += 1;
            }
            yes_if(is_held)
        }
        _ => Reply::No,
    }
}

/// Fetches the KV of one prompt.
pub(super) struct Fetcher<'a> {
    pub(super) state: &'a HostState,
    pub(super) transfer: &'a KvTransfer,
    pub(super) config: NixlConfig,
    pub(super) remote: RemoteBlocks,
}

impl Fetcher<'_> {
    /// Keeps the lease alive until the engine has reserved the blocks, then fetches.
    pub(super) async fn run(self, seed: u64, mut start: oneshot::Receiver<KvFetch>) {
        let fetch = loop {
            tokio::select! {
                biased;
                // An error: the engine restarted.
                started = &mut start => match started {
                    Ok(fetch) => break fetch,
                    Err(_) => return,
                },
                () = self.sleep(fraction(self.config.lease, 1, 6)) => self.heartbeat().await,
            }
        };
        if !fetch.is_wanted {
            return self.release().await;
        }
        let outcome = match self.fetch(&fetch, seed).await {
            Ok(content) => FetchOutcome::Arrived { tokens: fetch.prompt_tokens, content },
            Err(_) => self.fail(&fetch),
        };
        self.state.driver.finish_fetch(fetch.job, outcome);
    }

    /// Frees the blocks that no engine will read.
    pub(super) async fn release(&self) {
        let released = async { self.connect().await?.ask(&self.done()).await };
        if released.await.is_err() {
            self.transfer.metrics.lock().failed_notifications += 1;
        }
    }

    async fn fetch(&self, fetch: &KvFetch, seed: u64) -> io::Result<Content> {
        let mut channel = self.connect().await?;
        let begun = self.state.driver.now();
        let request_id = self.remote.request_id.clone();
        let at_first = channel.ask(&Message::Read { request_id, seed }).await?;
        let block_tokens = self.state.config.engine.profile.block_tokens.max(1);
        let blocks = u64::from(fetch.prompt_tokens.div_ceil(block_tokens) - fetch.held_tokens / block_tokens);
        let bytes = self.transfer.config.link.bytes(blocks, block_tokens);
        self.wait(&mut channel, self.transfer.send(self.state, bytes)).await?;
        let at_last = channel.ask(&self.done()).await?;
        let took = self.state.driver.now().since(begun);
        self.transfer.metrics.lock().observe(took, bytes, blocks);
        Ok(if at_first == Reply::Yes { at_last.content() } else { at_first.content() })
    }

    /// Waits until the blocks are here, or the other engine has disconnected.
    async fn wait(&self, channel: &mut SideChannel, end: Instant) -> io::Result<()> {
        loop {
            tokio::select! {
                biased;
                () = self.state.driver.sleep_until(end) => return Ok(()),
                () = channel.closed() => return Err(io::ErrorKind::ConnectionReset.into()),
                () = self.sleep(fraction(self.config.lease, 1, 6)) => {}
            }
            channel.ask(&Message::Heartbeat { request_id: self.remote.request_id.clone() }).await?;
        }
    }

    fn fail(&self, fetch: &KvFetch) -> FetchOutcome {
        self.transfer.metrics.lock().failed_transfers += 1;
        match self.config.on_failure {
            LoadFailure::Fail => FetchOutcome::Failed,
            LoadFailure::Recompute => {
                FetchOutcome::Arrived { tokens: fetch.held_tokens, content: Content::Right }
            }
        }
    }

    /// An engine that was met before answers at once or is dead; any other has until the timeout.
    async fn connect(&self) -> io::Result<SideChannel> {
        let deadline = self.state.driver.now() + self.config.handshake_timeout;
        let engine_id = &self.remote.engine_id;
        let channel = self.handshake().await;
        match channel {
            Ok(_) => self.transfer.met.lock().insert(engine_id),
            Err(_) if self.transfer.met.lock().contains(engine_id) => {}
            Err(_) => self.state.driver.sleep_until(deadline).await,
        }
        channel
    }

    async fn handshake(&self) -> io::Result<SideChannel> {
        let RemoteBlocks { host, port, engine_id, .. } = &self.remote;
        let mut channel = SideChannel::open(host, *port, self.config.handshake_timeout).await?;
        match channel.ask(&Message::Handshake { engine_id: engine_id.clone() }).await? {
            Reply::Yes => Ok(channel),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    async fn heartbeat(&self) {
        let message = Message::Heartbeat { request_id: self.remote.request_id.clone() };
        // The fetch will notice what is wrong.
        let _ = async { self.handshake().await?.ask(&message).await }.await;
    }

    fn done(&self) -> Message {
        Message::Done { request_id: self.remote.request_id.clone() }
    }

    async fn sleep(&self, span: Duration) {
        self.state.driver.sleep_until(self.state.driver.now() + span).await;
    }
}

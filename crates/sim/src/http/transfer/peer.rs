//! vLLM's peer-to-peer tier: a request names an engine that may have blocks of its prompt, and pulls them from it.
//!
//! A wrong guess costs a look-up. A peer that does not answer costs the whole timeout, after which this engine
//! computes the prompt. In vLLM a peer offers what its CPU tier has; here, its cache.

use std::io;
use std::time::Duration;

use maitre_base::Instant;
use maitre_index::prefix::PrefixHash;
use tokio::sync::oneshot;

use super::KvTransfer;
use super::channel::{Message, Reply, SideChannel};
use super::params::PeerAddress;
use crate::engine::transfer::{Content, FetchOutcome, KvFetch};
use crate::http::HostState;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// How long to wait for a peer, from look-up to the last block.
    pub timeout: Duration,
}

impl Default for PeerConfig {
    /// vLLM's.
    fn default() -> PeerConfig {
        PeerConfig { timeout: Duration::from_secs(30) }
    }
}

/// Counters of pulls, in blocks and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::http) struct PullCounters {
    pub(in crate::http) queried_blocks: u64,
    pub(in crate::http) hit_blocks: u64,
    pub(in crate::http) read_bytes: u64,
    pub(in crate::http) failures: u64,
}

/// Answers a peer that looks for blocks.
pub(super) fn answer(state: &HostState, message: Message) -> Reply {
    match message {
        Message::Lookup { names } => {
            let names: Vec<PrefixHash> = names.into_iter().map(PrefixHash).collect();
            Reply::Found { blocks: state.driver.holds_named(&names) }
        }
        _ => Reply::No,
    }
}

/// Pulls the KV of one prompt.
pub(super) struct Puller<'a> {
    pub(super) state: &'a HostState,
    pub(super) transfer: &'a KvTransfer,
    pub(super) config: PeerConfig,
    pub(super) peer: PeerAddress,
}

impl Puller<'_> {
    /// `names` are those of all blocks that may be pulled.
    pub(super) async fn run(self, names: &[u64], start: oneshot::Receiver<KvFetch>) {
        // An error: the engine restarted.
        let Ok(fetch) = start.await else { return };
        if !fetch.is_wanted {
            return;
        }
        let block_tokens = self.state.config.engine.profile.block_tokens.max(1);
        let missing = names.get((fetch.held_tokens / block_tokens) as usize..).unwrap_or_default();
        let deadline = self.state.driver.now() + self.config.timeout;
        let pulled = match self.pull(missing, block_tokens, deadline).await {
            Ok(blocks) => blocks,
            Err(_) => {
                self.transfer.metrics.lock().pulls.failures += 1;
                self.state.driver.sleep_until(deadline).await;
                0
            }
        };
        let tokens = fetch.held_tokens + pulled * block_tokens;
        self.state.driver.finish_fetch(fetch.job, FetchOutcome::Arrived { tokens, content: Content::Right });
    }

    /// Returns how many blocks came.
    async fn pull(&self, missing: &[u64], block_tokens: u32, deadline: Instant) -> io::Result<u32> {
        if missing.is_empty() {
            return Ok(0);
        }
        let mut channel = SideChannel::open(&self.peer.host, self.peer.port, self.config.timeout).await?;
        let reply = channel.ask(&Message::Lookup { names: missing.to_vec() }).await?;
        let Reply::Found { blocks } = reply else { return Err(io::ErrorKind::InvalidData.into()) };
        let blocks = blocks.min(missing.len() as u32);
        let bytes = self.transfer.config.link.bytes(u64::from(blocks), block_tokens);
        self.record(missing.len() as u64, u64::from(blocks));
        if blocks == 0 {
            return Ok(0);
        }
        let end = self.transfer.send(self.state, bytes);
        tokio::select! {
            biased;
            () = self.state.driver.sleep_until(end.min(deadline)) => {}
            () = channel.closed() => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        if end > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.transfer.metrics.lock().pulls.read_bytes += bytes;
        Ok(blocks)
    }

    /// A look-up stops at the first block that the peer lacks.
    fn record(&self, missing: u64, found: u64) {
        let pulls = &mut self.transfer.metrics.lock().pulls;
        pulls.queried_blocks += (found + 1).min(missing);
        pulls.hit_blocks += found;
    }
}

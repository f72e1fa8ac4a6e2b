//! A transport through a shared Redis server.
//!
//! Each flush is appended to one stream, `maitre:<group>:stream`, which every router reads; its order is the order in
//! which each router receives the others' frames. Frames that queue up during a round trip go together in the next
//! one. For joining routers, each stores a snapshot, `maitre:<group>:snapshot:<router>`, and its name in
//! `maitre:<group>:members`. All keys are bounded and expire some minutes after the last router.
//!
//! Without the server a router works alone and keeps trying. Frames are of little use after a second, so few are
//! kept. After a reconnect the router sends hello, and peers ask for what they missed.
//!
//! One future does all the work and spawns nothing: one connection writes, one blocks on reads. An idle cluster costs
//! one query every five seconds.
//!
//! Left out: Redis Cluster and Sentinel. One server suffices for many routers, and a host name that moves with a
//! failover is resolved again on each attempt.

mod backlog;
mod clock;
mod entry;
mod failure;
mod link;
mod refusal;
mod state;
pub mod url;
mod wire;

use crate::seal::ClusterKey;
use crate::{Outgoing, Transport, TransportStatus};
use bytes::Bytes;
use failure::RedisFailure;
use maitre_base::Rng;
use refusal::RefusalCause;
use state::LinkState;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use url::Server;

/// Maximum frame length for all transports.
const FRAME_MAX: usize = 256 << 10;

/// Capacities of the channels. The router never waits for the server, only for this task.
const OUTGOING: usize = 1_024;
const INCOMING: usize = 256;

/// Reconnect backoff, doubling between these limits. Chosen: routers agree again within two seconds of a server's
/// return, and an absent server costs one refused connection per second.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A connection that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Time limit for sending what is left after the transport was dropped.
const FINAL_FLUSH_MAX: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct RedisConfig {
    /// redis:// or rediss://, with user and password if required. `url::check` reports what is wrong with it.
    pub url: String,
    /// Separates clusters that share a server.
    pub group: String,
    /// This router's name.
    pub name: String,
    pub key: Option<ClusterKey>,
}

/// Without the password.
impl std::fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = Server::parse(&self.url).map_or_else(|bad| bad.to_string(), |server| server.to_string());
        let RedisConfig { url: _, group, name, key } = self;
        f.debug_struct("RedisConfig")
            .field("url", &url)
            .field("group", group)
            .field("name", name)
            .field("key", key)
            .finish()
    }
}

/// Returns the transport and the future that runs it.
///
/// An unreachable server is not an error: `TransportStatus` says what is wrong, and attempts continue. An invalid URL
/// is reported there too, without attempts. After the transport is dropped, queued frames are still sent if that
/// takes at most half a second.
pub fn connect(config: RedisConfig) -> (Transport, impl Future<Output = ()> + Send + 'static) {
    let (outgoing, frames_to_send) = mpsc::channel(OUTGOING);
    let (recent, incoming) = mpsc::channel(INCOMING);
    let (status, watched) = watch::channel(TransportStatus::default());
    let line = Transport { outgoing, incoming, status: watched };
    let work = async move {
        match Server::parse(&config.url) {
            Ok(server) => run(LinkState::new(config, server, recent, status), frames_to_send).await,
            Err(bad) => {
                tracing::error!("cluster.via: {bad}; this router works alone");
                status.send_modify(|it| it.trouble = Some(format!("cluster.via: {bad}")));
                discard(&status, frames_to_send).await;
            }
        }
    };
    (line, work)
}

async fn run(state: LinkState, frames_to_send: mpsc::Receiver<Outgoing>) {
    let mut kept = std::pin::pin!(keep(&state));
    tokio::select! {
        () = &mut kept => return,
        () = fill(&state, frames_to_send) => {}
    }
    // The transport was dropped; `keep` ends once everything is written. If it does not, peers notice our silence.
    let _ = tokio::time::timeout(FINAL_FLUSH_MAX, kept).await;
}

/// Queues outgoing frames, whether or not there is a server.
async fn fill(state: &LinkState, mut frames_to_send: mpsc::Receiver<Outgoing>) {
    while let Some(outgoing) = frames_to_send.recv().await {
        match outgoing {
            Outgoing::Frame(frame) if is_too_long(&frame) => state.refuse(RefusalCause::OwnTooLong, None),
            Outgoing::Frame(frame) => state.push(frame),
            Outgoing::Snapshot(frames) => state.put(frames),
        }
    }
    state.close();
}

fn is_too_long(frame: &Bytes) -> bool {
    frame.len() > FRAME_MAX
}

/// Connects, and reconnects after every loss, until there is nothing left to send.
async fn keep(state: &LinkState) {
    let mut failures = 0;
    let mut rng = Rng::new(state.instance());
    loop {
        let Err(failure) = link::run(state).await else { return };
        if failure == RedisFailure::TooLong {
            // The oversized entry stays in the stream: continue after it.
            state.set_position(None);
        }
        if state.lose(&failure) >= STABLE_AFTER {
            failures = 0;
        }
        tokio::time::sleep(wait(failures, rng.unit())).await;
        failures += 1;
    }
}

/// Backoff after this many failures in a row. Half of it is random, so that routers do not reconnect all at once.
fn wait(failures: u32, dice: f64) -> Duration {
    let span = BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
    span.mul_f64(0.5 + dice / 2.0)
}

/// Counts frames that can never be sent.
async fn discard(status: &watch::Sender<TransportStatus>, mut frames_to_send: mpsc::Receiver<Outgoing>) {
    while let Some(outgoing) = frames_to_send.recv().await {
        if let Outgoing::Frame(_) = outgoing {
            status.send_modify(|it| it.dropped += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        for (failures, millis) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1_000), (60, 1_000)] {
            let span = Duration::from_millis(millis);
            assert_eq!(wait(failures, 0.0), span / 2);
            assert!(wait(failures, 0.999) < span);
        }
    }

    #[test]
    fn settings_show_no_password() {
        let config = RedisConfig {
            url: "redis://joe:s3cret@cache".into(),
            group: "g".into(),
            name: "a".into(),
            key: Some(ClusterKey::new(b"s3cret too")),
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("redis://cache:6379") && !shown.contains("s3cret"), "{shown}");
    }
}

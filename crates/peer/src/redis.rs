//! Frames by way of a Redis server that routers share.
//!
//! Each flush is appended to one stream, `maitre:<group>:stream`, which every router reads on: the order of the stream
//! is the order in which each router hears the others. Frames that queue up while a round trip is under way go
//! together in the next. For routers that join, each keeps a snapshot, `maitre:<group>:snapshot:<router>`, and its name
//! in `maitre:<group>:members`. All of it is bounded, and vanishes by itself some minutes after the last router.
//!
//! Without the server a router carries on alone and keeps trying. What it would have said is of little use a second
//! later, so that little is kept; who comes back says hello, and hearers ask for what they missed.
//!
//! One future does all the work and spawns nothing: one connection writes, one waits for what is new. When nobody has
//! anything to say, one question every five seconds is all that passes.
//!
//! Left out: Redis Cluster and Sentinel. One server is enough for many routers, and a name that moves with a failover is
//! resolved anew with each attempt.

mod backlog;
mod clock;
mod entry;
mod failure;
mod link;
mod refusal;
mod shared;
pub mod url;
mod wire;

use crate::seal::Key;
use crate::{Outgoing, Status, Transport};
use bytes::Bytes;
use failure::Failure;
use maitre_base::Rng;
use refusal::Cause;
use shared::Shared;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use url::Server;

/// A frame may be so long: what all who speak through a line agree on.
const FRAME_MAX: usize = 256 << 10;

/// Frames on their way between the driver and us. The driver never waits for a server, only for this task to be run.
const OUTGOING: usize = 1_024;
const INCOMING: usize = 256;

/// Between attempts: from the least, doubling, to the most. Chosen: routers are to be of one mind within two seconds of a server's return,
/// and one that is not there costs a refused connection a second.
const BACKOFF_LEAST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(1);

/// A connection that lasted so long was a good one: the next attempt comes soon again.
const STEADY: Duration = Duration::from_secs(5);

/// For what is still to be said once the near end is dropped.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Settings {
    /// redis:// or rediss://, with name and password if it asks for them. `url::check` tells what is wrong with it.
    pub url: String,
    /// Routers of other fleets may use the same server under another name.
    pub group: String,
    /// This router's name.
    pub name: String,
    pub key: Option<Key>,
}

/// Without the password.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = Server::parse(&self.url).map_or_else(|bad| bad.to_string(), |server| server.to_string());
        let Settings { url: _, group, name, key } = self;
        f.debug_struct("Settings")
            .field("url", &url)
            .field("group", group)
            .field("name", name)
            .field("key", key)
            .finish()
    }
}

/// The near end, and what must be polled for it to work.
///
/// A server that is not there is no failure: `Status` says what is wrong, and attempts go on. A URL that cannot be read
/// is told there too, and nothing is tried. Once the near end is dropped, what was given to it still goes out, if that
/// takes no longer than half a second.
pub fn connect(settings: Settings) -> (Transport, impl Future<Output = ()> + Send + 'static) {
    let (outgoing, given) = mpsc::channel(OUTGOING);
    let (heard, incoming) = mpsc::channel(INCOMING);
    let (status, watched) = watch::channel(Status::default());
    let line = Transport { outgoing, incoming, status: watched };
    let work = async move {
        match Server::parse(&settings.url) {
            Ok(server) => run(Shared::new(settings, server, heard, status), given).await,
            Err(bad) => {
                tracing::error!("cluster.via: {bad}; this router carries on alone");
                status.send_modify(|it| it.trouble = Some(format!("cluster.via: {bad}")));
                waste(&status, given).await;
            }
        }
    };
    (line, work)
}

async fn run(shared: Shared, given: mpsc::Receiver<Outgoing>) {
    let mut kept = std::pin::pin!(keep(&shared));
    tokio::select! {
        () = &mut kept => return,
        () = fill(&shared, given) => {}
    }
    // The near end is gone; `keep` ends once all is written. If it does not, others will notice our silence.
    let _ = tokio::time::timeout(LAST_WORDS, kept).await;
}

/// Takes what is given at once, server or no server.
async fn fill(shared: &Shared, mut given: mpsc::Receiver<Outgoing>) {
    while let Some(outgoing) = given.recv().await {
        match outgoing {
            Outgoing::Frame(frame) if is_too_long(&frame) => shared.refuse(Cause::OwnTooLong, None),
            Outgoing::Frame(frame) => shared.push(frame),
            Outgoing::Snapshot(frames) => shared.put(frames),
        }
    }
    shared.close();
}

fn is_too_long(frame: &Bytes) -> bool {
    frame.len() > FRAME_MAX
}

/// Connects, and again whenever the connection is lost, until there is nothing more to be sent.
async fn keep(shared: &Shared) {
    let mut failures = 0;
    let mut rng = Rng::new(shared.instance());
    loop {
        let Err(failure) = link::run(shared).await else { return };
        if failure == Failure::TooLong {
            // Whatever was too long stands in the stream: go on behind it.
            shared.set_place(None);
        }
        if shared.lose(&failure) >= STEADY {
            failures = 0;
        }
        tokio::time::sleep(wait(failures, rng.unit())).await;
        failures += 1;
    }
}

/// How long to wait after so many failures in a row. Half of it is by dice, so that routers that lost one server do not
/// come back to it all at once.
fn wait(failures: u32, dice: f64) -> Duration {
    let span = BACKOFF_LEAST.saturating_mul(1 << failures.min(10)).min(BACKOFF_MOST);
    span.mul_f64(0.5 + dice / 2.0)
}

/// Nothing can be sent, ever.
async fn waste(status: &watch::Sender<Status>, mut given: mpsc::Receiver<Outgoing>) {
    while let Some(outgoing) = given.recv().await {
        if let Outgoing::Frame(_) = outgoing {
            status.send_modify(|it| it.dropped += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most() {
        for (failures, millis) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1_000), (60, 1_000)] {
            let span = Duration::from_millis(millis);
            assert_eq!(wait(failures, 0.0), span / 2);
            assert!(wait(failures, 0.999) < span);
        }
    }

    #[test]
    fn settings_show_no_password() {
        let settings = Settings {
            url: "redis://joe:s3cret@cache".into(),
            group: "g".into(),
            name: "a".into(),
            key: Some(Key::new(b"s3cret too")),
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("redis://cache:6379") && !shown.contains("s3cret"), "{shown}");
    }
}

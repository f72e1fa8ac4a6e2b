//! The threads that serve clients, each with its own runtime and its own lane.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::lane::Lane;
use crate::server::{self, Accepted};
use crate::state::RouterState;

/// Between two searches for idle connections to close.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Starts a thread that serves the connections it is handed, until no more will come and all have ended.
#[expect(clippy::disallowed_methods, reason = "the connections of a thread are tracked here")]
pub(crate) fn start(
    number: usize,
    state: Arc<RouterState>,
    mut accepted: mpsc::Receiver<Accepted>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = async move {
        let lane = Arc::new(Lane::new(state));
        let connections = TaskTracker::new();
        let sweeping = tokio::spawn(sweep(lane.clone()));
        while let Some(Accepted { stream, permit }) = accepted.recv().await {
            if let Ok(stream) = TcpStream::from_std(stream) {
                connections.spawn(server::connection(lane.clone(), stream, permit));
            }
        }
        connections.close();
        connections.wait().await;
        lane.tasks.close();
        lane.tasks.wait().await;
        sweeping.abort();
    };
    Builder::new().name(format!("lane-{number}")).spawn(move || runtime.block_on(body))
}

/// Closes idle connections to workers, until aborted.
pub(crate) async fn sweep(lane: Arc<Lane>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        lane.upstreams.sweep();
    }
}

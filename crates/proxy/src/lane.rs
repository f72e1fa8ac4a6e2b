//! One thread's share of the house: its own runtime and its own connections to workers.
//!
//! Threads share the brain and nothing else. A connection, its requests and its upstream connections all
//! stay on the thread that accepted it, so a request wakes no other core.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use maitre_net::pool::UpstreamPool;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::task::TaskTracker;

use crate::house::RouterState;
use crate::server;

pub(crate) struct Lane {
    pub(crate) house: Arc<RouterState>,
    pub(crate) pool: UpstreamPool,
}

/// A client connection as the listener hands it over; its place is free again when it is dropped.
pub(crate) struct Connection {
    pub(crate) stream: std::net::TcpStream,
    pub(crate) place: OwnedSemaphorePermit,
}

/// Between two looks for idle connections to close.
const SWEEP: Duration = Duration::from_secs(1);

/// Starts a thread that serves the guests it is handed until there are no more to come and all have
/// left.
#[expect(clippy::disallowed_methods, reason = "the connections of a lane are tracked here")]
pub(crate) fn start(
    number: usize,
    house: Arc<RouterState>,
    mut guests: mpsc::Receiver<Connection>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = async move {
        let pool = UpstreamPool::new(house.settings().limits.idle_per_worker);
        let lane = Arc::new(Lane { house, pool });
        let seated = TaskTracker::new();
        let sweeping = tokio::spawn(sweep(lane.clone()));
        while let Some(guest) = guests.recv().await {
            if let Ok(stream) = TcpStream::from_std(guest.stream) {
                seated.spawn(server::connection(lane.clone(), stream, guest.place));
            }
        }
        seated.close();
        seated.wait().await;
        sweeping.abort();
    };
    Builder::new().name(format!("lane-{number}")).spawn(move || runtime.block_on(body))
}

async fn sweep(lane: Arc<Lane>) {
    let mut ticks = tokio::time::interval(SWEEP);
    loop {
        ticks.tick().await;
        lane.pool.sweep(lane.house.now(), lane.house.settings().timeouts.worker_idle);
    }
}

//! Shares knowledge with other routers in front of the same workers.
//!
//! Three parts that know nothing of each other meet here. The brain emits what it did and takes what peers did. The node
//! (`maitre_cluster`) turns that into rows and frames and back. The transport (`maitre_peer`) carries frames. The driver
//! is one task that moves data between them and decides nothing: if it stops, each router continues alone.

mod batch;
mod driver;
mod rejected;
mod shares;
mod view;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use maitre_peer::{Transport, mesh, redis};
use tokio::task::{AbortHandle, JoinHandle};
use tracing::info;

use crate::cluster::{ClusterSettings, Via};
use driver::Driver;
pub(crate) use driver::Handles;
pub(crate) use view::{ClusterHandle, RouterStatus};

/// How long a stop waits until the goodbye is sent. Chosen: without it, peers notice a little later by themselves.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// The error itself names the step and the address.
    #[error("{0}")]
    Mesh(io::Error),
    #[error("a mesh of routers needs a key that all of them share; set cluster.key (`maitre key` makes one)")]
    NoKey,
}

/// A running router's membership in the cluster.
pub(crate) struct ClusterMember {
    /// Where other routers of a mesh reach this one.
    pub(crate) address: Option<SocketAddr>,
    view: Arc<ClusterHandle>,
    driver: JoinHandle<()>,
    transport: AbortHandle,
}

impl ClusterMember {
    /// Starts to exchange frames. `handles.view` was made with the same settings.
    pub(crate) async fn join(
        handles: Handles,
        settings: ClusterSettings,
    ) -> Result<ClusterMember, NotJoined> {
        let (name, join_timeout) = (handles.view.name.clone(), settings.join_timeout);
        match settings.via {
            Via::Redis(url) => {
                let (group, key) = (settings.group, settings.key);
                info!(name, group, via = "redis", "joining the other routers");
                let (transport, task) = redis::connect(redis::RedisConfig { url, group, name, key });
                Ok(ClusterMember::run(handles, None, (transport, join_timeout), task))
            }
            Via::Mesh { listen, advertise, peers } => {
                let key = settings.key.ok_or(NotJoined::NoKey)?;
                let mesh = mesh::MeshConfig { listen, advertise, peers, name, key };
                let (transport, address, task) = mesh::join(mesh).await.map_err(NotJoined::Mesh)?;
                info!(name = handles.view.name, listen = %address, via = "mesh", "joining the other routers");
                Ok(ClusterMember::run(handles, Some(address), (transport, join_timeout), task))
            }
        }
    }

    /// Exchanges frames over a transport that `task` runs.
    #[expect(clippy::disallowed_methods, reason = "the router's own tasks, ended when it stops")]
    pub(crate) fn run(
        handles: Handles,
        address: Option<SocketAddr>,
        (transport, join_timeout): (Transport, Duration),
        task: impl Future<Output = ()> + Send + 'static,
    ) -> ClusterMember {
        let view = handles.view.clone();
        let driver = Driver::new(handles, transport, join_timeout);
        let task = tokio::spawn(task);
        let abort = task.abort_handle();
        let driver = tokio::spawn(async move {
            driver.run().await;
            // The driver has dropped its end: the transport sends what it was given, and ends.
            let _ = task.await;
        });
        ClusterMember { address, view, driver, transport: abort }
    }

    /// Says goodbye to the other routers, if they can be reached in time.
    pub(crate) async fn leave(mut self) {
        self.view.leave();
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, &mut self.driver).await;
    }
}

/// Without a goodbye, the other routers notice by the silence.
impl Drop for ClusterMember {
    fn drop(&mut self) {
        self.driver.abort();
        self.transport.abort();
    }
}

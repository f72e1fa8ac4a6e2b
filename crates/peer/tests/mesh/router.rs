//! One router of the mesh, and helpers that wait for its state.

use std::net::SocketAddr;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;
use maitre_peer::mesh::{self, MeshConfig};
use maitre_peer::seal::ClusterKey;
use maitre_peer::{Incoming, Outgoing, Transport, TransportStatus};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Time limit for anything: far longer than a busy machine takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "how long something takes is what some tests are about")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) struct Router {
    pub(crate) line: Transport,
    pub(crate) address: SocketAddr,
    pub(crate) task: JoinSet<()>,
}

pub(crate) fn config(name: &str, peers: &[String]) -> MeshConfig {
    MeshConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        peers: peers.to_vec(),
        name: name.to_owned(),
        key: ClusterKey::new(b"one key for all of them"),
    }
}

pub(crate) async fn start(name: &str, peers: &[&Router]) -> Router {
    let peers: Vec<String> = peers.iter().map(|it| it.address.to_string()).collect();
    Router::new(config(name, &peers)).await
}

impl Router {
    pub(crate) async fn new(config: MeshConfig) -> Router {
        let (line, address, run) = mesh::join(config).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(run);
        Router { line, address, task }
    }

    pub(crate) fn send_text(&self, text: &str) {
        self.send(Bytes::copy_from_slice(text.as_bytes()));
    }

    #[track_caller]
    pub(crate) fn send(&self, frame: Bytes) {
        self.line.outgoing.try_send(Outgoing::Frame(frame)).unwrap();
    }

    pub(crate) fn status(&self) -> TransportStatus {
        self.line.status.borrow().clone()
    }

    /// Waits until its status satisfies the condition.
    #[track_caller]
    pub(crate) fn until(
        &mut self,
        what: impl ToString,
        is_so: impl Fn(&TransportStatus) -> bool,
    ) -> impl Future<Output = TransportStatus> {
        let (caller, what) = (Location::caller(), what.to_string());
        async move {
            let found = timeout(LIMIT, self.line.status.wait_for(is_so)).await.map(|it| it.unwrap().clone());
            found.unwrap_or_else(|_| panic!("{caller}: waited for {what}, but {:#?}", self.status()))
        }
    }

    /// Waits until it is connected to exactly these peers.
    #[track_caller]
    pub(crate) fn peers(&mut self, names: &[&str]) -> impl Future<Output = TransportStatus> {
        let names: Vec<String> = names.iter().map(|&it| it.to_owned()).collect();
        self.until(format!("peers {names:?}"), move |it| it.peers == names)
    }

    #[track_caller]
    pub(crate) fn incoming(&mut self) -> impl Future<Output = Incoming> {
        let caller = Location::caller();
        async move {
            let incoming = timeout(LIMIT, self.line.incoming.recv()).await;
            incoming.unwrap_or_else(|_| panic!("{caller}: nothing came, {:#?}", self.status())).unwrap()
        }
    }

    /// The next frame.
    #[track_caller]
    pub(crate) fn frame(&mut self) -> impl Future<Output = Bytes> {
        let caller = Location::caller();
        async move {
            let next = async {
                loop {
                    if let Incoming::Frame(frame) = self.line.incoming.recv().await.unwrap() {
                        return frame;
                    }
                }
            };
            let found = timeout(LIMIT, next).await;
            found.unwrap_or_else(|_| panic!("{caller}: no frame came, {:#?}", self.status()))
        }
    }

    #[track_caller]
    pub(crate) fn expect_frame(&mut self, text: &str) -> impl Future<Output = ()> {
        let (caller, text) = (Location::caller(), text.to_owned());
        async move { assert_eq!(self.frame().await, text, "{caller}") }
    }

    /// Leaves, and waits until it has left.
    pub(crate) async fn leave(self) {
        let Router { line, mut task, .. } = self;
        drop(line);
        timeout(LIMIT, task.join_next()).await.expect("it ends when its line is dropped");
    }
}

/// Waits until all are connected to all.
pub(crate) async fn meet(routers: &mut [&mut Router]) {
    let others = routers.len() - 1;
    for router in routers {
        router.until(format!("{others} peers"), |it| it.peers.len() == others).await;
    }
}

/// Repeats a frame until it is received: two routers that dial each other may lose frames before the surplus
/// connection is closed.
pub(crate) async fn reach(from: &Router, to: &mut Router, text: &str) {
    let heard = async {
        loop {
            from.send_text(text);
            let next = timeout(Duration::from_millis(300), to.line.incoming.recv()).await;
            if matches!(next, Ok(Some(Incoming::Frame(frame))) if frame == text) {
                return;
            }
        }
    };
    timeout(LIMIT, heard).await.expect("it is heard");
}

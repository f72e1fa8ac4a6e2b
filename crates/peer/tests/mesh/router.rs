//! One router's part of the mesh, and waiting for what becomes of it.

use std::net::SocketAddr;
use std::panic::Location;
use std::time::Duration;

use bytes::Bytes;
use maitre_peer::mesh::{self, Settings};
use maitre_peer::seal::Key;
use maitre_peer::{Incoming, Outgoing, Status, Transport};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// For anything: far longer than a busy machine takes.
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

pub(crate) fn settings(name: &str, peers: &[String]) -> Settings {
    Settings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        peers: peers.to_vec(),
        name: name.to_owned(),
        key: Key::new(b"one key for all of them"),
    }
}

pub(crate) async fn start(name: &str, peers: &[&Router]) -> Router {
    let peers: Vec<String> = peers.iter().map(|it| it.address.to_string()).collect();
    Router::new(settings(name, &peers)).await
}

impl Router {
    pub(crate) async fn new(settings: Settings) -> Router {
        let (line, address, run) = mesh::join(settings).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(run);
        Router { line, address, task }
    }

    pub(crate) fn say(&self, text: &str) {
        self.send(Bytes::copy_from_slice(text.as_bytes()));
    }

    #[track_caller]
    pub(crate) fn send(&self, frame: Bytes) {
        self.line.outgoing.try_send(Outgoing::Frame(frame)).unwrap();
    }

    pub(crate) fn status(&self) -> Status {
        self.line.status.borrow().clone()
    }

    /// Waits until its status is so.
    #[track_caller]
    pub(crate) fn until(
        &mut self,
        what: impl ToString,
        is_so: impl Fn(&Status) -> bool,
    ) -> impl Future<Output = Status> {
        let (caller, what) = (Location::caller(), what.to_string());
        async move {
            let found = timeout(LIMIT, self.line.status.wait_for(is_so)).await.map(|it| it.unwrap().clone());
            found.unwrap_or_else(|_| panic!("{caller}: waited for {what}, but {:#?}", self.status()))
        }
    }

    /// Waits until it is connected with exactly these.
    #[track_caller]
    pub(crate) fn peers(&mut self, names: &[&str]) -> impl Future<Output = Status> {
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
    pub(crate) fn hears(&mut self, text: &str) -> impl Future<Output = ()> {
        let (caller, text) = (Location::caller(), text.to_owned());
        async move { assert_eq!(self.frame().await, text, "{caller}") }
    }

    /// Leaves, and waits until it has.
    pub(crate) async fn leave(self) {
        let Router { line, mut task, .. } = self;
        drop(line);
        timeout(LIMIT, task.join_next()).await.expect("it ends when its line is dropped");
    }
}

/// Waits until all are connected with all.
pub(crate) async fn meet(routers: &mut [&mut Router]) {
    let others = routers.len() - 1;
    for router in routers {
        router.until(format!("{others} peers"), |it| it.peers.len() == others).await;
    }
}

/// Says it again and again until it is heard: two that dial each other may lose what they say before one of the two
/// connections is given up.
pub(crate) async fn reach(from: &Router, to: &mut Router, text: &str) {
    let heard = async {
        loop {
            from.say(text);
            let next = timeout(Duration::from_millis(300), to.line.incoming.recv()).await;
            if matches!(next, Ok(Some(Incoming::Frame(frame))) if frame == text) {
                return;
            }
        }
    };
    timeout(LIMIT, heard).await.expect("it is heard");
}

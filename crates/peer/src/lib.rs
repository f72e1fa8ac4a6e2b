//! How routers reach each other: frames of bytes to all others, and from them.
//!
//! Two ways, with one face. Frames are opaque here. What is sent reaches each other router in the order in which it was
//! sent, or not at all: a backlog that grows too long is dropped, the oldest first, and counted; whoever speaks through
//! this must be able to ask again.

pub mod mesh;
pub mod redis;
pub mod seal;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

/// What is to go out.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// To every other router.
    Frame(Bytes),
    /// For routers that will join: takes the place of the last one. Kept where there is somewhere to keep it.
    Snapshot(Vec<Bytes>),
}

/// What came in.
#[derive(Clone, Debug)]
pub enum Incoming {
    Frame(Bytes),
    /// What a router left for those who join, perhaps long ago: it may be gone, and what it had promised with it.
    Kept(Bytes),
    /// A connection to others was made, or made again: say hello.
    Connected,
}

/// How it fares, for metrics and the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub connected: bool,
    /// Others that we can send to now, as far as the transport knows.
    pub peers: Vec<String>,
    /// What is wrong, if anything is.
    pub trouble: Option<String>,
    pub frames_out: u64,
    pub frames_in: u64,
    /// On the wire, seals and lengths included.
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Frames that made way for newer ones.
    pub dropped: u64,
    /// Connections or frames that were refused: a wrong key, an old version, nonsense.
    pub refused: u64,
}

/// The near end. Dropped, the transport ends.
#[derive(Debug)]
pub struct Transport {
    pub outgoing: mpsc::Sender<Outgoing>,
    pub incoming: mpsc::Receiver<Incoming>,
    pub status: watch::Receiver<Status>,
}

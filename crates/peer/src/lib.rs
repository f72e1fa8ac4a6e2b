//! Transports between routers: opaque frames to all peers, and from them.
//!
//! There are two implementations with one interface. A peer receives frames in the order in which they were sent, or
//! not at all: an overfull backlog drops its oldest frames and counts them. The protocol above must therefore be able
//! to request them again.

pub mod mesh;
pub mod redis;
pub mod seal;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

/// What the router sends.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// To every peer.
    Frame(Bytes),
    /// A snapshot for routers that join later; replaces the previous one. Only transports with storage keep it.
    Snapshot(Vec<Bytes>),
}

/// What the router receives.
#[derive(Clone, Debug)]
pub enum Incoming {
    Frame(Bytes),
    /// A stored frame for joining routers. It may be old, and its sender may be gone.
    Stored(Bytes),
    /// A connection to peers was established: send hello.
    Connected,
}

/// Transport state for metrics and the admin API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportStatus {
    pub connected: bool,
    /// Peers that the transport can send to now.
    pub peers: Vec<String>,
    /// What is wrong, if anything.
    pub trouble: Option<String>,
    pub frames_out: u64,
    pub frames_in: u64,
    /// On the wire, including encryption and length prefixes.
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Frames dropped in favour of newer ones.
    pub dropped: u64,
    /// Refused connections or frames: wrong key, old version or malformed data.
    pub refused: u64,
}

/// The router's end of a transport. Dropping it ends the transport.
#[derive(Debug)]
pub struct Transport {
    pub outgoing: mpsc::Sender<Outgoing>,
    pub incoming: mpsc::Receiver<Incoming>,
    pub status: watch::Receiver<TransportStatus>,
}

//! Rows that a router publishes, and the updates that other routers derive from them.

use std::time::Duration;

use maitre_base::{Instant, PromisedWork, hash};

/// A router's identity, derived from its name: the same after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u64);

impl RouterId {
    pub fn named(name: &str) -> RouterId {
        RouterId(hash::bytes(1, name.as_bytes()))
    }
}

/// One run of a router process: a later start has a larger number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// Seconds as a linear function of their cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearFit {
    pub base: f32,
    pub slope: f32,
}

/// Whether a router would send new requests to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Healthy,
    Suspect,
    Ejected,
}

/// What a router has learned about a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerFacts {
    pub verdict: Verdict,
    /// Seconds to the first token over prefill tokens, and seconds between tokens over requests. `None` until the
    /// router has seen enough requests.
    pub rates: Option<(LinearFit, LinearFit)>,
}

/// A tenant's total usage since its router started counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub requests: u64,
    pub tokens: u64,
}

/// The unit that a chain's blocks are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    Tokens,
    Words,
}

/// A prompt as prefix hashes, one per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    pub unit: Unit,
    /// Units per block.
    pub block: u32,
    /// Units of the whole prompt, including the tail that fills no block.
    pub units: u64,
    pub links: &'a [u64],
}

/// A prompt that a peer sent to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerPlacement {
    pub worker: u64,
    pub unit: Unit,
    pub block: u32,
    pub units: u64,
    pub links: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    Live,
    /// Silent for too long.
    Lost,
}

/// A peer as operators see it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub id: RouterId,
    /// Its id in hex until its name has arrived.
    pub name: String,
    pub incarnation: Incarnation,
    pub state: PeerState,
    /// One-way delay of its frames; `None` until it was measured.
    pub lag: Option<Duration>,
    /// When its last frame arrived.
    pub last_heard: Instant,
    /// Requests served since it started, and requests in flight.
    pub served: u64,
    pub in_flight: u32,
}

/// A change in the view. Workers, models and tenants are identified by hashes of their names.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerUpdate {
    /// The load that all peers together have promised to this worker now.
    Promised {
        worker: u64,
        load: PromisedWork,
    },
    /// A peer has changed its assessment of a worker.
    Assessed {
        worker: u64,
        facts: WorkerFacts,
    },
    /// A peer pinned a session to this worker.
    Pinned {
        model: u64,
        session: u64,
        worker: u64,
    },
    /// A tenant used this much more through a peer.
    Spent {
        model: u64,
        tenant: u64,
        more: Spent,
    },
    Placed(PeerPlacement),
    /// Routers that are live and routers that are known, this one included.
    Routers {
        live: u32,
        known: u32,
    },
}

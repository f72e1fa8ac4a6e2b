//! State that routers share, without sockets, clocks or randomness: bytes and time in, updates and bytes out.
//!
//! Each router owns rows: the load it has promised to each worker, what it has learned about the worker, the sessions
//! it pinned there and the tokens its tenants used. A row holds an absolute value and a version, so a duplicate, late
//! or reordered row changes nothing. The view is the join of all rows of live routers. Prompts travel as hashes
//! relative to segments that both sides know (`directory`).
//!
//! Left out: delivery and authentication of frames, which the transport does, and the routing decisions that follow
//! from an update.

mod directory;
mod frame;
mod node;
mod own_rows;
mod row;
mod stream;
mod view;

pub use frame::FrameError;
pub use node::{FLUSH, HEARTBEAT, Node, NodeConfig, NodeStats, Received, SILENCE_MAX};
pub use row::{
    Chain, Incarnation, LinearFit, Peer, PeerPlacement, PeerState, PeerUpdate, RouterId, Spent, Unit,
    Verdict, WorkerFacts,
};

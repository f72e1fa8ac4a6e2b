//! What routers tell each other, without sockets, clocks or dice: bytes and time in, news and bytes out.
//!
//! Each router owns rows: what it has promised to each worker, what it thinks of it, which sessions it pinned, what
//! tenants spent there. A row is absolute and versioned, so hearing it twice, late or out of order changes nothing; the
//! view is the join of all rows, and those of a router that has fallen silent are no part of it. Prefixes are told as
//! hashes against pages that both sides know (`book`).
//!
//! Left out: how frames get to the others and whom to trust, which a transport sees to; and what follows from the news,
//! which is for whoever picks workers.

mod directory;
mod frame;
pub mod node;
mod own;
pub mod row;
mod stream;
mod view;

pub use node::{BEAT, FLUSH, Heard, Node, Numbers, Peer, PeerState, Settings, Unheard};
pub use row::{Chain, Facts, Fit, Incarnation, Load, PeerUpdate, RouterId, Seated, Spent, Unit, Verdict};

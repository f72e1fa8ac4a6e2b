//! ZeroMQ's wire format (ZMTP 3), as much of it as KV events need: bytes in, frames out.
//!
//! Four kinds of socket, the NULL mechanism, TCP's bytes. There is no buffer and no allocation for what is
//! received: `Peer` looks at the front of a buffer the caller owns and says what stands there, so a frame
//! can be cut out of it without a copy, and a peer that announces more than the limits allow is refused by
//! the nine bytes in which it does. What is left out: security (PLAIN, CURVE), the older protocols (1, 2),
//! fan-out and reconnection, which are the business of whoever owns the socket.

pub mod error;
pub mod frame;
pub mod greeting;
pub mod peer;
pub mod role;
pub mod subscription;

mod command;

pub use error::Error;
pub use peer::{Limits, Next, Peer};
pub use role::Role;

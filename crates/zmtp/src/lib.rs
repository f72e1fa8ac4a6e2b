//! ZeroMQ's wire format (ZMTP 3), as far as KV events need it: bytes in, frames out.
//!
//! Four socket types, the NULL mechanism, TCP. Receiving needs no buffer and no allocation: `ZmtpPeer` inspects the
//! front of the caller's buffer, so a frame can be cut out without a copy, and a frame beyond the limits is rejected
//! by its nine-byte head. Left out: security (PLAIN, CURVE), the older protocols (1, 2), fan-out and reconnection,
//! which the owner of the socket does.

pub mod error;
pub mod frame;
pub mod greeting;
pub mod peer;
pub mod role;
pub mod subscription;

mod command;

pub use error::ZmtpError;
pub use peer::{Next, ZmtpLimits, ZmtpPeer};
pub use role::Role;

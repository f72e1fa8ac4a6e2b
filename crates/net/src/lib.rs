//! Everything between an address and the bytes of an HTTP exchange: TLS, connections of clients,
//! connections to workers and their pool.
//!
//! Knows nothing of requests, routing, metrics or error responses: callers get values and errors, and count them.

pub mod address;
pub mod bearer;
pub mod client;
pub mod connect;
pub mod dial;
pub mod downstream;
mod http1;
pub mod pool;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod spare;
pub mod stream;
pub mod tls;
pub mod upstream;
pub mod wake_gate;
pub mod worker_url;

//! Sources over real sockets and real files: a name server and an API server of our own, on this machine, that
//! misbehave in every way we have thought of.
//!
//! Nothing here sleeps and hopes: each test waits for a state, with a limit. That something does not happen is
//! shown by something later that does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod api;
mod dns;
mod file;
mod follower;
mod kubernetes;
mod name_server;

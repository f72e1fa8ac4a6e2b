//! Sources over real sockets and real files: a fake name server and API server on this machine, with every
//! fault we know of.
//!
//! No test sleeps for a fixed time: each waits for a state, with a limit. That an event does not happen is
//! shown by a later one that does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod api;
mod dns;
mod file;
mod follower;
mod kubernetes;
mod name_server;

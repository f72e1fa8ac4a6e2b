//! Routers that meet over real sockets on this machine: what reaches whom, who is refused, and what comes of cuts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "mesh/cuts.rs"]
mod cuts;
#[path = "mesh/frames.rs"]
mod frames;
#[path = "mesh/guests.rs"]
mod guests;
#[path = "mesh/log.rs"]
mod log;
#[path = "mesh/proxy.rs"]
mod proxy;
#[path = "mesh/router.rs"]
mod router;

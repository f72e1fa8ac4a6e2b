//! Routers on real sockets of this machine: delivery, refusals and partitions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "mesh/frames.rs"]
mod frames;
#[path = "mesh/partitions.rs"]
mod partitions;
#[path = "mesh/proxy.rs"]
mod proxy;
#[path = "mesh/refusals.rs"]
mod refusals;
#[path = "mesh/router.rs"]
mod router;

//! Three routers before one fleet, as processes over sockets: what one does the others know, whatever becomes of one
//! of them or of what is between them.
//!
//! Each scene is played through Redis and as a mesh, where it has a meaning in both. The engines publish no KV events,
//! so that all a router knows of what another did, it knows from that one. Delays are printed; see them with
//! `cargo test -p maitre-cli --test cluster -- --nocapture`.
//!
//! Left out: what follows from other numbers of routers, in virtual time (`lab` of maitre-sim), and the transports by
//! themselves (the tests of maitre-peer).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../process/client.rs"]
#[expect(dead_code, reason = "the other tests of processes use the rest")]
mod client;
mod clients;
mod delays;
mod door;
mod hostile;
mod operator;
mod outage;
mod partition;
#[path = "../process/program.rs"]
#[expect(dead_code, reason = "the other tests of processes use the rest")]
mod program;
mod restart;
mod stage;
mod suspended;
mod watch;

//! Three routers in front of one fleet, as processes over sockets: each knows what the others do, whatever
//! happens to one of them or to the connections between them.
//!
//! Each scenario runs through Redis and as a mesh, where it makes sense in both. The engines publish no KV
//! events, so everything a router knows of another's requests comes from that router. Delays are printed; see
//! them with `cargo test -p maitre-cli --test cluster -- --nocapture`.
//!
//! Not included: other numbers of routers, which run in virtual time (`lab` of maitre-sim), and the
//! transports alone (the tests of maitre-peer).
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

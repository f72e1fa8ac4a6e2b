//! The data plane over real sockets, in front of simulated engines.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod abort;
mod admin;
mod bytes;
mod cluster;
mod deadline;
mod disorder;
mod door;
mod events;
mod failure;
mod keys;
mod numbers;
mod protocol;
mod queue;
mod reading;
mod record;
mod refusal;
mod salts;
mod table;
mod tls;
mod traces;

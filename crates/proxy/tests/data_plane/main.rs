//! The data plane over real sockets, in front of simulated engines.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod abort;
mod admin;
mod api_paths;
mod bodies;
mod bytes;
mod chunks;
mod cluster;
mod continuation;
mod cors;
mod deadline;
mod desync;
mod events;
mod failure;
mod fixture;
mod hostile_publisher;
mod in_flight;
mod keys;
mod large_prompts;
mod metrics;
mod misbehaviour;
mod priority;
mod probes;
mod protocol;
mod pull;
mod queue;
mod record;
mod refusal;
mod salts;
mod slowdown;
mod split;
mod stalls;
mod tls;
mod tokenize;
mod traces;
mod worker_ids;

//! The binary as its users run it: processes, signals, exit codes, on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod bench;
mod client;
mod commands;
mod compat;
mod demo;
mod descriptors;
mod discovery;
mod drain;
mod examples;
mod health;
mod keys;
mod log;
mod notify;
mod operator;
mod packaging;
mod page;
mod program;
mod recorded;
mod reload;
mod secrecy;
mod serve;
mod tls;

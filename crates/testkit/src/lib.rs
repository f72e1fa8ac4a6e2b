//! What the tests of several crates need: a folder of a test's own, a fuzzer, log lines, and a Redis server.
//!
//! A dev-dependency only. Depends on no other crate of ours, so that any of them can use it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

pub mod folder;
pub mod fuzz;
pub mod log;
pub mod redis;

//! A simulated engine: vLLM's scheduler and prefix cache as arithmetic, without a GPU.
//!
//! `engine` and its parts (`kv`, `link`, `profile`, `histogram`, `store`) are pure: time is a parameter, so the same model runs in
//! virtual time and behind sockets. `http` drives it in wall time and speaks vLLM's API, and `events` publishes its
//! cache changes. `workload` is a demo's traffic, `trace` a recorded one, and `generate` writes traces. `lab` is a
//! whole fleet in virtual time behind the router's own brain.

pub mod engine;
pub mod events;
pub mod generate;
mod histogram;
pub mod http;
pub mod kv;
pub mod lab;
pub mod link;
pub mod profile;
pub mod report;
pub mod sessions;
mod speech;
pub mod store;
pub mod text;
pub mod trace;
pub mod workload;

mod accept;
mod clock;

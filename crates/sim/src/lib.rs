//! An engine made of arithmetic: vLLM's scheduler and prefix cache, without a GPU.
//!
//! `engine` and what it stands on (`kv`, `profile`, `histogram`) are pure: time comes in as a value, so
//! the same model runs in virtual time and behind sockets. `http` is the wall-clock driver that speaks
//! vLLM, `events` tells routers what it caches; `workload` is the traffic a demo sends to it. `trace` is
//! traffic on paper, and `generate` writes some. `lab` is a whole fleet in virtual time, with the router's
//! own brain in front.

pub mod engine;
pub mod events;
pub mod generate;
pub mod histogram;
pub mod http;
pub mod kv;
pub mod lab;
pub mod profile;
pub mod report;
pub mod text;
pub mod trace;
pub mod workload;

mod clock;

//! What clients and engines say on the wire, turned into values: bytes in, values out.
//!
//! Nothing here opens a socket, reads a clock or logs, so every byte that arrives from outside can be
//! replayed in a test. Only this crate knows a brand name or the shape of an API; the rest of Maitre
//! sees requests, usage, load and models.
//!
//! Two speeds live side by side. What runs per request, chunk or event (`openai`, `usage`, `sse`, `kv`)
//! borrows, or fills what is there, and does not allocate; what runs per scrape (`engine`, `exposition`,
//! `models`) is plain and bounded.

pub mod engine;
pub mod exposition;
pub mod failure;
mod json;
pub mod kv;
pub mod models;
pub mod openai;
pub mod route;
pub mod sse;
pub mod usage;

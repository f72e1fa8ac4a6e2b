//! What clients and engines say on the wire, turned into values: bytes in, values out.
//!
//! Nothing here opens a socket, reads a clock or logs, so every byte that arrives from outside can be
//! replayed in a test. Only this crate knows a brand name or the shape of an API; the rest of Maitre
//! sees requests, usage, load and models.
//!
//! Two speeds live side by side. What runs per request or per chunk (`openai`, `usage`, `sse`) borrows
//! and does not allocate; what runs per scrape (`engine`, `exposition`, `models`) is plain and bounded.

pub mod engine;
pub mod exposition;
pub mod failure;
mod json;
pub mod models;
pub mod openai;
pub mod route;
pub mod sse;
pub mod usage;

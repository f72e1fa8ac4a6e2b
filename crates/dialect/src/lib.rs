//! Decodes what clients and engines send over the wire: bytes in, values out.
//!
//! Nothing here opens a socket, reads a clock or logs, so tests can replay every byte that arrives from
//! outside. Only this crate knows engine brands and API formats; the rest of Maitre sees requests, usage,
//! load and models.
//!
//! Code that runs per request, chunk or event (`openai`, `usage`, `sse`, `kv`) borrows or reuses buffers, and
//! does not allocate; `legs` allocates each body that it makes, once. Code that runs per scrape (`engine`,
//! `exposition`, `models`) is plain and bounded.

pub mod abort;
pub mod continuation;
pub mod engine;
pub mod exposition;
pub mod failure;
mod json;
pub mod kv;
pub mod legs;
pub mod models;
pub mod openai;
pub mod response_id;
pub mod route;
pub mod sse;
pub mod usage;

//! From a prompt to token ids: tokenizer, chat template and a cache over turns.
//!
//! An engine identifies the blocks of its cache by token ids. To know which worker holds a prompt, the router must
//! compute the same ids before the engine does. That takes the model's own files: its chat template, run as
//! transformers runs it (`template`), over messages shaped as vLLM shapes them (`conversation`), and its tokenizer
//! (`encoder`). Correctness comes before speed: the result is the ids of the whole text or an error, because a
//! slightly wrong prefix identifies blocks that no worker holds.
//!
//! `cut` makes it affordable: a tokenizer never looks across a special token, so a rendered chat splits into pieces
//! that are tokenized once and cached (`cache`). A growing conversation pays for its last turn.
//!
//! Nothing here reads a clock or opens a socket; `Model::load` reads a folder, once.

mod cache;
pub mod chat;
mod conversation;
mod cut;
pub mod date;
mod encoder;
pub mod folder;
mod json;
pub mod model;
pub mod options;
pub mod template;

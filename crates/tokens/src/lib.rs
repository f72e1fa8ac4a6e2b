//! Prompt to token ids: tokenizer, chat template, the cache over turns.
//!
//! An engine names the blocks of its cache by token ids, so to know which worker holds a prompt the router
//! must turn it into the same ids, before the engine does. That takes the model's own files: its chat
//! template, run as transformers runs it (`template`), over messages shaped as vLLM shapes them
//! (`conversation`), and its tokenizer (`encoder`). One rule stands above speed: ids are those of the whole
//! text or an error, never nearly right, for a nearly right prefix names blocks nobody holds.
//!
//! What makes it affordable is `cut`: a tokenizer never looks across a special token, so a rendered chat
//! falls into pieces that are tokenized once and remembered (`cache`). A growing conversation pays for its
//! last turn.
//!
//! Nothing here reads a clock or opens a socket; `Model::load` reads a folder, once.

mod cache;
pub mod chat;
mod conversation;
mod cut;
pub mod date;
mod encoder;
mod folder;
mod json;
pub mod model;
mod template;

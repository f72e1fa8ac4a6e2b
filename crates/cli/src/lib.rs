//! The commands of the binary `maitre`, and how its settings are read.

pub mod bench;
pub mod check;
pub mod commands;
pub mod compat;
pub mod completions;
pub mod demo;
pub mod discovery;
pub mod drain;
pub mod engine;
pub mod explain;
pub mod generate;
pub mod key;
pub mod man;
pub mod picker;
pub mod serve;
pub mod top;

mod key_file;
mod log;
mod notify;
mod operator;
mod reload;
mod signals;

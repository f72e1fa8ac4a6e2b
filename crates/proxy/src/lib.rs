//! Every socket Maitre has: clients in, workers out, probes, metrics. The decisions are made elsewhere.

pub mod address;
pub mod program;
pub mod roster;
pub mod router;
pub mod secret;
pub mod settings;
pub mod worker;

mod account;
mod admin;
mod arrive;
mod bell;
mod client;
mod clock;
mod decision;
mod door;
mod forward;
mod headers;
mod house;
mod ids;
mod lane;
mod line;
mod link;
mod metrics;
mod models;
mod page;
mod pool;
mod reading;
mod recent;
mod record;
mod refuse;
mod serve;
mod server;
mod subscribe;
mod visit;
mod watch;

pub use address::Address;
pub use program::{Program, Reloaded, Reloading};
pub use roster::Difference;
pub use router::{NotStarted, Router, Stopped};
pub use secret::Secret;
pub use settings::Settings;
pub use worker::Worker;

//! Every socket Maitre has: clients in, workers out, probes, metrics. The decisions are made elsewhere.

pub mod cluster;
pub mod keys;
pub mod program;
pub mod roster;
pub mod router;
pub mod salt;
pub mod secret;
pub mod settings;
pub mod subscribe;

mod account;
mod admin;
mod arrive;
mod client;
mod clock;
mod decision;
mod forward;
mod headers;
mod house;
mod ids;
mod lane;
mod link;
mod metrics;
mod models;
mod page;
mod priority;
mod reading;
mod recent;
mod record;
mod refuse;
mod serve;
mod server;
mod tls;
mod traces;
mod visit;
mod watch;

pub use keys::{Key, Keys};
pub use program::{Program, Reloaded, Reloading};
pub use roster::Difference;
pub use router::{NotStarted, Router, Stopped};
pub use salt::Salter;
pub use secret::Secret;
pub use settings::Settings;
pub use traces::{BadCollector, Collector};

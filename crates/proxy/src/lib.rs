//! The running router: clients in, workers out, probes, metrics, the admin API. Decisions are made in `maitre_dispatch`.

pub mod cluster;
pub mod descriptors;
pub mod keys;
pub mod program;
pub mod roster;
pub mod router;
pub mod salt;
pub mod secret;
pub mod settings;
pub mod subscribe;

mod admin;
mod body_memory;
mod brain;
mod client;
mod clock;
mod collector;
mod cors;
mod explain;
mod headers;
mod in_flight;
mod lane;
mod link;
mod metrics;
mod model_log;
mod outcome;
mod page;
mod peering;
mod picker;
#[cfg(test)]
mod planted;
mod probes;
mod readiness;
mod recent;
mod record;
mod refuse;
mod request;
mod request_ids;
mod server;
mod shown;
mod shutdown;
#[cfg(test)]
mod simulation;
mod state;
mod threads;
mod tls;
mod token_memory;
mod tokenize;
mod traces;
mod upstreams;
mod watch;

pub use collector::{BadCollector, Collector};
pub use keys::{ApiKey, ApiKeys};
pub use program::{Program, Reloaded, Reloading};
pub use roster::Difference;
pub use router::{NotStarted, Router, Stopped};
pub use salt::Salter;
pub use secret::Secret;
pub use settings::RouterSettings;

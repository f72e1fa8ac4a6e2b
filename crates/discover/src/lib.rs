//! Where workers come from: a file, a name server, Kubernetes.
//!
//! Each source is followed by a task of its own and says what it has; what it says is settled (`settle`), so
//! that a hiccup of a source is not a hiccup of the fleet; and the settled lists are merged into one, which is
//! told whole whenever it changes. Whoever listens compares it with what he has: nothing here knows which
//! workers are in use, whether they are well, or what they serve.
//!
//! Left out: what the router can ask a worker itself, and other registries (Consul, etcd).

pub mod api_address;
pub mod run;
pub mod settings;
pub mod source;
pub mod update;

mod backoff;
mod dns;
mod escape;
mod file;
mod kubernetes;
mod settle;
mod small_file;
mod tell;

pub use run::run;
pub use settings::Settings;
pub use source::Source;
pub use update::Update;

//! Where workers come from: a file, a name server, Kubernetes.
//!
//! One task follows each source and reports its workers. `stable_list` smooths the reports, so that a short
//! fault of a source does not become a fault of the fleet. The lists are merged into one, which is published
//! whole whenever it changes. The receiver compares it with its own list: nothing here knows which workers
//! are in use, healthy, or what they serve.
//!
//! Not included: facts that the router can ask a worker for, and other registries (Consul, etcd).

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
mod report;
mod small_file;
mod stable_list;

pub use run::run;
pub use settings::DiscoverySettings;
pub use source::WorkerSource;
pub use update::Update;

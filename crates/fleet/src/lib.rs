//! The state of all workers: identity, health, models, rates and promised work. It changes only through calls
//! that carry their own time; nothing here does I/O.

pub mod adapters;
pub mod attention;
pub mod backlog;
mod barred;
pub mod estimate;
pub mod fleet;
pub mod health;
pub mod knee;
pub mod load;
pub mod model;
pub mod pulls;
pub mod rates;
pub mod scaling;
pub mod shared_rates;
mod staleness;
pub mod transfers;
pub mod worker;

pub use barred::Barred;
pub use fleet::{Fleet, HealthChange, WorkerSnapshot};
pub use health::{Evidence, HealthState};
pub use model::{Card, ModelId, Wanted};
pub use worker::{Models, Worker};

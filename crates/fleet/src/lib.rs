//! What we believe about workers: who they are, how they are, what they serve and what is promised to
//! them. Beliefs change only through events that carry their own time; nothing here asks anybody.

pub mod adapters;
pub mod backlog;
pub mod estimate;
pub mod fleet;
pub mod health;
pub mod knee;
pub mod load;
pub mod model;
pub mod rates;
pub mod worker;

pub use fleet::{Fleet, HealthChange, WorkerSnapshot};
pub use health::{Evidence, HealthState};
pub use model::{Card, ModelId, Wanted};
pub use worker::{Models, Worker};

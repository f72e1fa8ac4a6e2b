//! What we believe about workers: who they are, how they are, what they serve and what is promised to
//! them. Beliefs change only through events that carry their own time; nothing here asks anybody.

pub mod adapters;
pub mod backlog;
pub mod bend;
pub mod estimate;
pub mod fleet;
pub mod health;
pub mod load;
pub mod rates;
pub mod worker;

pub use fleet::{Card, Change, Fleet, ModelId, Wanted, WorkerSnapshot};
pub use health::{Evidence, State};
pub use worker::{Models, Worker};

//! Admission: which requests wait, which goes next and which is refused. Numbers in, an order out; nothing
//! here knows a worker, a socket or a clock.

pub mod allowance;
mod drain_rate;
pub mod limits;
mod retry_schedule;
pub mod settings;
pub mod spare_capacity;
pub mod wait_queue;

pub use allowance::{Allowances, Budget, Budgets, OverLimit, PeerUsage, RateLimit, RouterShare, Taken};
pub use drain_rate::DrainRate;
pub use limits::{Caps, WorkerLimits};
pub use retry_schedule::RetrySchedule;
pub use settings::{Class, QueueSettings, Tenant, Terms};
pub use spare_capacity::SpareCapacity;
pub use wait_queue::{Addition, ClassFull, ClassMask, QueueEntry, QueueView, WaitQueue, Waiting};

//! Who waits, who goes next, who is refused. Numbers in, an order out: nothing here knows a worker, a socket or
//! a clock.

pub mod allowance;
pub mod drain;
pub mod knee;
pub mod retry_schedule;
pub mod settings;
pub mod spare;
pub mod wait_queue;

pub use allowance::{Allowances, Passed, Share, Taken};
pub use drain::Drain;
pub use knee::{Caps, Limits, Scale};
pub use retry_schedule::RetrySchedule;
pub use settings::{Class, Settings, Tenant, Terms};
pub use spare::Spare;
pub use wait_queue::{ClassMask, Entry, Full, WaitQueue, Waiting};

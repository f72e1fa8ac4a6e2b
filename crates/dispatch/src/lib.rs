//! The brain: `on(now, event, &mut effects)`. The only crate that knows fleet, index, policies and queue.
//!
//! Three parts decide and record: the scheduler (which request goes, waits or is refused), the placer (which worker) and
//! the observer (records, shadows, what other routers learn). `Brain` drives them.
//!
//! Sockets drive the brain in production, virtual time drives it in replay. It opens nothing, waits for nothing and reads
//! no clock, so it behaves the same in both.

pub mod brain;
pub mod cache;
mod capacity;
pub mod event;
mod long_prefills;
mod move_budget;
pub mod observer;
pub mod peers;
pub mod placer;
pub mod programs;
mod request;
mod reservations;
pub mod scaling;
pub mod scheduler;
pub mod settings;

pub use brain::{Brain, PromptReader, ReadPlan, Scratch};
pub use cache::{BLOCK_WORDS, CacheIndex, Found, PromptChain};
pub use event::{
    Arrival, Effect, Event, Failure, Form, Placement, PullFrom, Refusal, RetryLimit, SecondCause,
    reports_progress,
};
pub use settings::{BrainSettings, HedgeSettings};

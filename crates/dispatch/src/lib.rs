//! The brain: `on(now, event, &mut effects)`. The only crate that knows fleet, index and policies.
//!
//! It is driven: by sockets in production, by virtual time in replay. It opens nothing, waits for
//! nothing and reads no clock, so what it does in one it does in the other.

pub mod brain;
pub mod cache;
mod capacity;
pub mod event;
pub mod observer;
pub mod peers;
pub mod placer;
mod request;
mod reservations;
pub mod scheduler;
pub mod settings;

pub use brain::{Brain, Plan, Reader};
pub use cache::Prompt;
pub use event::{Arrival, Effect, Event, Failure, Form, Placement, Refusal, reports_progress};
pub use settings::Settings;

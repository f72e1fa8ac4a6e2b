//! The brain: `on(now, event, &mut effects)`. The only crate that knows both the fleet and the policies.
//!
//! It is driven: by sockets in production, by virtual time in replay. It opens nothing, waits for
//! nothing and reads no clock, so what it does in one it does in the other.

pub mod brain;
pub mod budget;
pub mod event;

pub use brain::{Brain, Settings};
pub use event::{Arrival, Effect, Event, Failure, Refusal, Seat};

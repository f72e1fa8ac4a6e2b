//! The brain: `on(now, event, &mut effects)`. The only crate that knows fleet, index and policies.
//!
//! It is driven: by sockets in production, by virtual time in replay. It opens nothing, waits for
//! nothing and reads no clock, so what it does in one it does in the other.

mod awaited;
pub mod brain;
pub mod budget;
pub mod cache;
mod dirty;
pub mod event;
pub mod explain;
pub mod forecast;
pub mod hot;
pub mod in_use;
pub mod peers;
pub mod settings;
pub mod shadow;

pub use brain::{Brain, Plan, Reader};
pub use cache::Prompt;
pub use event::{Arrival, Blocks, Effect, Event, Failure, Form, Placement, Refusal, is_told};
pub use settings::Settings;

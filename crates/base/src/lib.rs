//! The words everyone uses. No dependencies, no clock, no dice of its own: time and randomness come in
//! as values, so that the same brain runs in production and in the simulator, byte for byte.

pub mod hash;
pub mod id;
pub mod recent;
pub mod rng;
pub mod time;
pub mod tokens;

pub use id::{ClassId, RequestId, TenantId, WorkerId};
pub use recent::Recent;
pub use rng::Rng;
pub use time::Instant;
pub use tokens::Tokens;

//! Types that every crate shares. No dependencies, no clock and no random source: time and randomness are
//! parameters, so the same code makes the same decisions in production and in the simulator.

pub mod chunk_reuse;
pub mod handoff;
pub mod hash;
pub mod id;
pub mod kv;
pub mod load;
pub mod promise;
pub mod recent;
pub mod rng;
pub mod role;
pub mod spin;
pub mod time;
pub mod tokens;
mod words;

pub use chunk_reuse::ChunkReuse;
pub use handoff::{Handoff, HandoffStyle, PrefillAnswer};
pub use id::{ClassId, RequestId, TenantId, WorkerId};
pub use kv::{KvEvent, StoredBlocks, Tier};
pub use load::{AdapterSlot, EngineLoad, FreshLoad, Knee, KvRoom};
pub use promise::{PrefillWork, Promise, PromisedWork};
pub use recent::Recent;
pub use rng::Rng;
pub use role::Role;
pub use time::Instant;
pub use tokens::Tokens;

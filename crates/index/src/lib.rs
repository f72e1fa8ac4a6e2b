//! Finds which worker holds which prefix of a prompt, and in which tier. One look-up combines what was routed
//! to a worker and what its engine reports.

mod adopt;
mod adopted;
mod believed;
mod budget;
mod chunk_holdings;
pub mod chunks;
mod coverage;
pub mod feed;
mod heads;
mod holders;
mod holdings;
mod index;
mod look_up;
mod names;
mod parked;
mod predicted;
pub mod prefix;
mod reported;
mod run;
mod slab;
mod stored;
mod table;
mod worker;

pub use budget::BUDGET_MIN;
pub use chunk_holdings::{ChunkHoldings, ReusedUnits};
pub use chunks::PromptChunk;
pub use holdings::{Holding, Holdings};
pub use index::{Index, IndexSettings};
pub use predicted::{FADE, PENDING_MAX, PredictedBlocks};
pub use prefix::{PrefixHash, Root, Running};
pub use reported::Applied;
pub use table::{Chain, Trace};
pub use worker::{CacheSource, GRAIN, Numbers};

//! Which worker holds which prefix of a prompt, in which tier: what we routed there, and what its engine
//! reports, in one look-up.

pub mod feed;
pub mod prefix;
pub mod report;

pub use prefix::{PrefixHash, Root};
pub use report::{Report, Stored, Tier};

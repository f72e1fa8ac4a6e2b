//! The worker that a session is pinned to.

use maitre_base::WorkerId;

use crate::Candidate;

/// A worker, recognised even after its number went to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub worker: WorkerId,
    /// Half of the worker's key. It keeps a pin small; a collision, one in four thousand million, costs a
    /// cache miss.
    mark: u32,
}

impl Pin {
    pub fn to(candidate: &Candidate) -> Pin {
        Pin::new(candidate.worker, candidate.key)
    }

    pub fn new(worker: WorkerId, key: u64) -> Pin {
        Pin { worker, mark: key as u32 }
    }
}

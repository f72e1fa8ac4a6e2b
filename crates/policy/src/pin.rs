//! Where a session sits.

use maitre_base::WorkerId;

use crate::Candidate;

/// A worker, known again also when its number has become another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub worker: WorkerId,
    /// Half of the worker's key: a pin is no larger for it, and two that are mistaken for each other once in four
    /// thousand million cost a cache miss.
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

//! Dense ids, so that tables are arrays and sets are bits.

use std::fmt;

/// One engine replica that takes requests. Numbers are dense: a fleet whose workers change for months needs only as
/// many numbers as it had workers at once. A number is reused once nothing refers to its previous worker. Code that
/// keeps a number for longer also keeps the worker's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u32);

impl WorkerId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// A priority class, by its position: the first goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u8);

impl ClassId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A tenant, as a hash of what identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// One request, from its arrival to the last byte of its answer, over all its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

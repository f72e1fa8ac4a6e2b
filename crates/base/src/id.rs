//! Who is who: dense numbers, so that tables are arrays and sets are bits.

use std::fmt;

/// One engine replica that takes requests. Numbers are dense, so that a fleet whose workers come and go for months
/// needs no more of them than it had workers at once: a number is given to another worker once nothing speaks of the
/// last one any more. Whoever remembers a number for longer than that remembers also whose it was.
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

/// A tier of priority, by its place: the first goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u8);

impl ClassId {
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Who pays, as a hash of what it is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// One request, from its arrival to the last byte of its answer, over all its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

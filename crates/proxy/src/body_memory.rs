//! The memory that request bodies may take together. A request whose body does not fit is refused, so that a burst of
//! long prompts cannot exhaust the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::SharedSettings;

pub(crate) struct BodyMemory {
    settings: Arc<SharedSettings>,
    /// Bytes reserved now.
    reserved: AtomicU64,
}

impl BodyMemory {
    pub(crate) fn new(settings: Arc<SharedSettings>) -> BodyMemory {
        BodyMemory { settings, reserved: AtomicU64::new(0) }
    }

    /// Reserves memory for a body; None if there is not enough.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<BodyReservation> {
        let bytes = bytes as u64;
        let reserved = self.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Made before the check, so that dropping it takes the addition back.
        let reservation = BodyReservation { memory: self.clone(), bytes };
        (reserved <= self.limit()).then_some(reservation)
    }

    fn limit(&self) -> u64 {
        self.settings.load().limits.bodies_bytes as u64
    }
}

/// Memory reserved for one body, released when dropped.
pub(crate) struct BodyReservation {
    memory: Arc<BodyMemory>,
    bytes: u64,
}

impl BodyReservation {
    /// Reserves memory for a body that has grown to `bytes`; false if there is not enough.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        self.bytes += more;
        let reserved = self.memory.reserved.fetch_add(more, Ordering::Relaxed) + more;
        more == 0 || reserved <= self.memory.limit()
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.memory.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{RouterLimits, RouterSettings};

    #[test]
    fn a_reservation_that_does_not_fit_takes_nothing() {
        let limits = RouterLimits { bodies_bytes: 10, ..RouterLimits::default() };
        let settings = SharedSettings::new(RouterSettings { limits, ..RouterSettings::default() });
        let memory = Arc::new(BodyMemory::new(Arc::new(settings)));
        let mut first = memory.reserve(4).unwrap();
        assert!(memory.reserve(7).is_none());
        assert!(first.grow(10));
        assert!(!first.grow(11));
        drop(first);
        assert!(memory.reserve(10).is_some());
    }
}

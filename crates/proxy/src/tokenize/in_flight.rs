//! The text that is being tokenized. Tokenizers take 150 to 300 bytes of memory for each byte of text, so what they work on at
//! the same time is limited; a prompt that would exceed the limit is split into words.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

/// Large bodies that are worked on at the same time, for each core. Chosen: two, so that a short one need not wait for
/// a long one.
const LARGE_BODIES_PER_CORE: usize = 2;

/// The expensive work under way.
pub(crate) struct WorkInFlight {
    /// Permits for large bodies, which are parsed and tokenized beside their lanes.
    pub(crate) large_bodies: Arc<Semaphore>,
    pub(super) text: Arc<TextInFlight>,
}

impl Default for WorkInFlight {
    fn default() -> WorkInFlight {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let large_bodies = Arc::new(Semaphore::new(cores * LARGE_BODIES_PER_CORE));
        WorkInFlight { large_bodies, text: Arc::default() }
    }
}

/// The text in flight, with the limit of this moment.
#[derive(Clone, Copy)]
pub(super) struct TextLimit<'a> {
    pub(super) all: &'a Arc<TextInFlight>,
    pub(super) limit: usize,
}

impl TextLimit<'_> {
    /// None if the text does not fit beside the others.
    pub(super) fn reserve(self, bytes: usize) -> Option<TextReservation> {
        self.all.reserve(bytes, self.limit)
    }
}

/// Bytes of text that are being tokenized.
#[derive(Default)]
pub(super) struct TextInFlight(AtomicUsize);

/// A text that is being tokenized, until it is dropped. Moves with the work: a client that disconnects does not end it.
pub(super) struct TextReservation {
    all: Arc<TextInFlight>,
    bytes: usize,
}

impl TextInFlight {
    fn reserve(self: &Arc<Self>, bytes: usize, limit: usize) -> Option<TextReservation> {
        let all = self.0.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        // Made before the check, so that dropping it takes the addition back.
        let reservation = TextReservation { all: self.clone(), bytes };
        (all <= limit).then_some(reservation)
    }
}

impl Drop for TextReservation {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_does_not_fit_takes_nothing() {
        let all: Arc<TextInFlight> = Arc::default();
        let first = all.reserve(6, 10).unwrap();
        assert!(all.reserve(5, 10).is_none());
        let second = all.reserve(4, 10).unwrap();
        drop(first);
        assert!(all.reserve(6, 10).is_some());
        drop(second);
        assert!(all.reserve(10, 10).is_some());
    }
}

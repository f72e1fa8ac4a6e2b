//! The memory that the token ids of streams take, all together.
//!
//! A stream that would exceed the limit is served all the same, and cannot be continued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Token ids of all streams. Chosen: those of ten thousand streams of four thousand tokens.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// What a stream takes at a time, so that not every chunk is counted.
const STEP_BYTES: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct TokenMemory {
    kept: AtomicUsize,
}

/// The part of one stream. Returned when dropped.
pub(crate) struct TokenReservation {
    memory: Arc<TokenMemory>,
    bytes: usize,
}

impl TokenMemory {
    pub(crate) fn reserve(self: &Arc<TokenMemory>) -> TokenReservation {
        TokenReservation { memory: self.clone(), bytes: 0 }
    }
}

impl TokenReservation {
    /// Makes room for so many bytes in all. False: there is none.
    #[must_use]
    pub(crate) fn hold(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let more = bytes.next_multiple_of(STEP_BYTES) - self.bytes;
        let before = self.memory.kept.fetch_add(more, Ordering::Relaxed);
        if before + more > KEPT_BYTES_MAX {
            self.memory.kept.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }

    /// The stream keeps nothing any more.
    pub(crate) fn release(&mut self) {
        self.memory.kept.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for TokenReservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stream_held_is_free_when_it_ends() {
        let memory = Arc::new(TokenMemory::default());
        let (mut large, mut small) = (memory.reserve(), memory.reserve());
        assert!(large.hold(KEPT_BYTES_MAX - STEP_BYTES) && small.hold(1) && small.hold(STEP_BYTES));
        assert!(!small.hold(STEP_BYTES + 1), "all is taken");
        drop(large);
        assert!(small.hold(STEP_BYTES + 1));
        small.release();
        assert_eq!(memory.kept.load(Ordering::Relaxed), 0);
    }
}

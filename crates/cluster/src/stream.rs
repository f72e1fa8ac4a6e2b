//! Which deltas of a peer have arrived, and which are missing.
//!
//! Deltas are numbered from 1. The applied prefix grows by the next delta or by a snapshot. Deltas that arrive out of
//! order are recorded in a bitmap of the last 64 numbers, so a late delta closes the gap.

use crate::frame::{PARTS_MAX, Part};
use maitre_base::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeltaStream {
    /// Every delta up to this number is applied.
    applied: u64,
    /// The largest delta number known to exist.
    latest: u64,
    /// Bitmap of received deltas: bit 0 is `latest`.
    received: u64,
    /// The delta after which this router began to listen. Usage from before it does not count.
    pub(crate) listening_since: Option<u64>,
    /// While deltas are missing, when to ask for them again.
    pub(crate) ask_at: Instant,
}

impl DeltaStream {
    pub(crate) fn applied(&self) -> u64 {
        self.applied
    }

    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// Whether deltas from this peer are missing.
    pub(crate) fn has_gaps(&self) -> bool {
        self.applied < self.latest
    }

    /// Records a delta. Returns whether it is new.
    pub(crate) fn record(&mut self, seq: u64) -> bool {
        if seq <= self.applied {
            return false;
        }
        self.announce(seq);
        let bit = 1u64.checked_shl(u32::try_from(self.latest - seq).unwrap_or(u32::MAX)).unwrap_or(0);
        let is_new = self.received & bit == 0;
        self.received |= bit;
        self.advance();
        is_new
    }

    /// Notes that a delta of this number exists.
    pub(crate) fn announce(&mut self, seq: u64) {
        if seq > self.latest {
            let shift = u32::try_from(seq - self.latest).unwrap_or(u32::MAX);
            self.received = self.received.checked_shl(shift).unwrap_or(0);
            self.latest = seq;
        }
    }

    /// Notes that a snapshot covers every delta up to this number.
    pub(crate) fn fill_upto(&mut self, applied: u64) {
        self.announce(applied);
        self.applied = self.applied.max(applied);
        self.advance();
    }

    fn advance(&mut self) {
        while self.applied < self.latest {
            let back = self.latest - self.applied - 1;
            if back >= 64 || self.received >> back & 1 == 0 {
                return;
            }
            self.applied += 1;
        }
    }
}

const WORDS: usize = PARTS_MAX as usize / 64;

/// Which parts of a snapshot have arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedParts {
    edition: u64,
    count: u32,
    received: [u64; WORDS],
}

impl ReceivedParts {
    /// Records a part. Returns whether the snapshot is now complete. Parts of an older edition are ignored.
    pub(crate) fn record(&mut self, part: Part) -> bool {
        if part.edition < self.edition {
            return false;
        }
        if part.edition > self.edition || part.count != self.count {
            *self = ReceivedParts { edition: part.edition, count: part.count, received: [0; WORDS] };
        }
        if let Some(word) = self.received.get_mut(part.index as usize / 64) {
            *word |= 1 << (part.index % 64);
        }
        self.received.iter().map(|it| it.count_ones()).sum::<u32>() == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn a_late_delta_closes_its_gap_and_a_snapshot_closes_any() {
        let mut stream = DeltaStream::default();
        assert!(stream.record(1) && stream.record(3) && stream.has_gaps());
        assert!(!stream.record(3), "received twice");
        assert!(stream.record(2) && !stream.has_gaps());
        assert_eq!(stream.applied(), 3);
        assert!(stream.record(500) && stream.record(501) && stream.has_gaps());
        stream.fill_upto(499);
        assert_eq!((stream.applied(), stream.has_gaps()), (501, false));
        stream.announce(502);
        assert!(stream.has_gaps());
    }

    #[test]
    fn the_largest_numbers_break_nothing() {
        let mut stream = DeltaStream::default();
        assert!(stream.record(u64::MAX) && stream.record(1));
        stream.fill_upto(u64::MAX);
        assert!(!stream.has_gaps() && !stream.record(u64::MAX));
    }

    #[test]
    fn a_snapshot_is_complete_once_each_part_of_one_edition_arrived() {
        let part = |edition, index| Part { edition, index, count: 3 };
        let mut parts = ReceivedParts::default();
        assert!(!parts.record(part(7, 2)) && !parts.record(part(7, 0)) && !parts.record(part(7, 0)));
        assert!(!parts.record(part(6, 1)), "part of an older edition");
        assert!(parts.record(part(7, 1)));
        assert!(!parts.record(part(8, 1)), "part of a newer edition");
    }

    proptest! {
        #[test]
        fn all_deltas_in_any_order_leave_no_gap(
            mut order in prop::collection::vec(1..40u64, 0..80),
            late in prop::collection::vec(1..40u64, 0..10),
        ) {
            let mut stream = DeltaStream::default();
            order.extend(1..40);
            order.extend(&late);
            let new = order.iter().filter(|&&seq| stream.record(seq)).count();
            prop_assert_eq!(new, 39);
            prop_assert!(!stream.has_gaps());
        }
    }
}

//! How far another router's deltas were heard, and what is missing of them.
//!
//! Deltas are numbered from 1 on, so at 0 everything is known: there is nothing. From there on knowledge grows by the
//! delta that comes next, or by a snapshot. What comes out of turn is noted, for the last 64 numbers, so that what was
//! late closes the gap.

use crate::frame::{PARTS_MAX, Part};
use maitre_base::Instant;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// Up to here all is known.
    upto: u64,
    /// The largest number that exists, as far as we know.
    seen: u64,
    /// Which of the last numbers were heard: bit 0 is `seen`.
    heard: u64,
    /// Where we began to listen: what was spent before is not ours to count.
    pub(crate) begin: Option<u64>,
    /// When to ask again, while something is missing.
    pub(crate) ask: Instant,
}

impl Stream {
    pub(crate) fn upto(&self) -> u64 {
        self.upto
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Whether something is missing.
    pub(crate) fn is_torn(&self) -> bool {
        self.upto < self.seen
    }

    /// Takes note of a delta. Whether it is new.
    pub(crate) fn take(&mut self, seq: u64) -> bool {
        if seq <= self.upto {
            return false;
        }
        self.expect(seq);
        let bit = 1u64.checked_shl(u32::try_from(self.seen - seq).unwrap_or(u32::MAX)).unwrap_or(0);
        let is_new = self.heard & bit == 0;
        self.heard |= bit;
        self.advance();
        is_new
    }

    /// There is a delta of this number.
    pub(crate) fn expect(&mut self, seq: u64) {
        if seq > self.seen {
            let shift = u32::try_from(seq - self.seen).unwrap_or(u32::MAX);
            self.heard = self.heard.checked_shl(shift).unwrap_or(0);
            self.seen = seq;
        }
    }

    /// All up to here is known, by a snapshot.
    pub(crate) fn fill(&mut self, upto: u64) {
        self.expect(upto);
        self.upto = self.upto.max(upto);
        self.advance();
    }

    fn advance(&mut self) {
        while self.upto < self.seen {
            let back = self.seen - self.upto - 1;
            if back >= 64 || self.heard >> back & 1 == 0 {
                return;
            }
            self.upto += 1;
        }
    }
}

const WORDS: usize = PARTS_MAX as usize / 64;

/// Which parts of a snapshot have come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    edition: u64,
    count: u32,
    heard: [u64; WORDS],
}

impl Parts {
    /// Takes note of a part. Whether all have come with it; an older edition than the last heard of is none.
    pub(crate) fn take(&mut self, part: Part) -> bool {
        if part.edition < self.edition {
            return false;
        }
        if part.edition > self.edition || part.count != self.count {
            *self = Parts { edition: part.edition, count: part.count, heard: [0; WORDS] };
        }
        if let Some(word) = self.heard.get_mut(part.index as usize / 64) {
            *word |= 1 << (part.index % 64);
        }
        self.heard.iter().map(|it| it.count_ones()).sum::<u32>() == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn a_late_delta_closes_the_gap_and_a_snapshot_any() {
        let mut stream = Stream::default();
        assert!(stream.take(1) && stream.take(3) && stream.is_torn());
        assert!(!stream.take(3), "heard twice");
        assert!(stream.take(2) && !stream.is_torn());
        assert_eq!(stream.upto(), 3);
        assert!(stream.take(500) && stream.take(501) && stream.is_torn());
        stream.fill(499);
        assert_eq!((stream.upto(), stream.is_torn()), (501, false));
        stream.expect(502);
        assert!(stream.is_torn());
    }

    #[test]
    fn the_largest_numbers_break_nothing() {
        let mut stream = Stream::default();
        assert!(stream.take(u64::MAX) && stream.take(1));
        stream.fill(u64::MAX);
        assert!(!stream.is_torn() && !stream.take(u64::MAX));
    }

    #[test]
    fn parts_are_all_there_once_each_of_one_edition_came() {
        let part = |edition, index| Part { edition, index, count: 3 };
        let mut parts = Parts::default();
        assert!(!parts.take(part(7, 2)) && !parts.take(part(7, 0)) && !parts.take(part(7, 0)));
        assert!(!parts.take(part(6, 1)), "of an older edition");
        assert!(parts.take(part(7, 1)));
        assert!(!parts.take(part(8, 1)), "of a newer one");
    }

    proptest! {
        #[test]
        fn any_order_of_all_deltas_leaves_nothing_missing(
            mut order in prop::collection::vec(1..40u64, 0..80),
            late in prop::collection::vec(1..40u64, 0..10),
        ) {
            let mut stream = Stream::default();
            order.extend(1..40);
            order.extend(&late);
            let new = order.iter().filter(|&&seq| stream.take(seq)).count();
            prop_assert_eq!(new, 39);
            prop_assert!(!stream.is_torn());
        }
    }
}

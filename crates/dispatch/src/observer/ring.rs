//! The latest decisions, by number, and which of them changed since a reader last asked.
//!
//! A decision changes twice: when it is made and when its attempt ends. Each change has a revision. A reader asks for the
//! changes after the last revision it has seen, and pays for those only.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::RequestId;
use maitre_fleet::estimate::Counted;

use super::decision::{AttemptOutcome, Considered, DECISIONS_MAX, Decision, NOTHING_COUNTED};

#[derive(Clone, Debug, Default)]
pub struct Ring {
    /// By number; grows to `kept`, then the oldest is overwritten.
    records: Vec<Decision>,
    kept: usize,
    /// The number of the newest, which is how many there ever were.
    newest: u64,
    /// The numbers of the latest changes, the newest at the end.
    changes: VecDeque<u64>,
    /// How many changes there ever were.
    revision: u64,
}

/// What changed since a revision.
#[derive(Clone, Debug)]
pub struct Changed<'a> {
    /// Each once, in the order of their last change; if there were too many, the newest.
    pub decisions: Vec<&'a Decision>,
    /// Changes of decisions that are left out.
    pub skipped: u64,
    /// The revision to ask for next time.
    pub revision: u64,
}

impl Ring {
    pub(crate) fn new(kept: usize) -> Ring {
        Ring { kept: kept.min(DECISIONS_MAX), ..Ring::default() }
    }

    /// How many are kept at most; zero if recording is off.
    pub fn kept(&self) -> usize {
        self.kept
    }

    pub fn is_on(&self) -> bool {
        self.kept > 0
    }

    /// The number of the newest; zero if there was none yet.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How many changes there were.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// None if there is no such decision yet, or it was overwritten.
    pub fn get(&self, number: u64) -> Option<&Decision> {
        self.records.get(self.place(number)?).filter(|it| it.number == number)
    }

    /// The newest decision of this request, which has one for each attempt.
    pub fn of(&self, request: RequestId) -> Option<&Decision> {
        self.newest_first().find(|it| it.request == request)
    }

    /// All decisions, the newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Decision> {
        (self.oldest()..=self.newest).rev().filter_map(|it| self.get(it))
    }

    /// The newest decisions that pass the filter, the newest first.
    pub fn recent(&self, limit: usize, passes: impl Fn(&Decision) -> bool) -> Vec<&Decision> {
        self.newest_first().filter(|it| passes(it)).take(limit).collect()
    }

    /// Decisions after this number, the oldest first.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &Decision> {
        let first = number.saturating_add(1).max(self.oldest());
        (first..=self.newest).filter_map(|it| self.get(it))
    }

    /// Decisions that were made or ended after this revision, at most `limit`.
    pub fn changed(&self, revision: u64, limit: usize) -> Changed<'_> {
        let behind = self.revision.saturating_sub(revision);
        let known = usize::try_from(behind).unwrap_or(usize::MAX).min(self.changes.len());
        let mut skipped = behind - known as u64;
        let mut decisions: Vec<&Decision> = Vec::with_capacity(known.min(limit));
        let changes = (0..).map(|it| self.revision - it).zip(self.changes.iter().rev());
        for (revision, &number) in changes.take(known) {
            match self.get(number) {
                // It changed again: the later change is shown.
                Some(it) if it.revision != revision => {}
                Some(it) if decisions.len() < limit => decisions.push(it),
                _ => skipped += 1,
            }
        }
        decisions.reverse();
        Changed { decisions, skipped, revision: self.revision }
    }

    /// A blank record with the next number, and with the memory of the one it replaces.
    pub(crate) fn lend(&mut self) -> Decision {
        let number = self.newest + 1;
        let place = self.place(number);
        let slot = place.and_then(|it| self.records.get_mut(it));
        let (candidates, shadows) = slot
            .map(|it| (std::mem::take(&mut it.candidates), std::mem::take(&mut it.shadows)))
            .unwrap_or_default();
        Decision { number, candidates, shadows, ..Decision::default() }
    }

    /// Keeps a record that was lent.
    pub(crate) fn keep(&mut self, decision: Decision) {
        let Some(place) = self.place(decision.number) else { return };
        let number = decision.number;
        match self.records.get_mut(place) {
            Some(slot) => *slot = decision,
            None => self.records.push(decision),
        }
        self.newest = number;
        self.change(number);
    }

    /// The list of a record that was kept without it. It is lost if the record is overwritten.
    pub(crate) fn complete(&mut self, number: u64, candidates: Vec<Considered>) {
        if let Some(it) = self.get_mut(number) {
            it.candidates = candidates;
        }
    }

    pub(crate) fn begin(&mut self, number: u64, took: Duration) {
        if let Some(it) = self.get_mut(number) {
            it.first_token = Some(took);
        }
    }

    pub(crate) fn end(&mut self, number: u64, end: End) {
        let Some(it) = self.get_mut(number).filter(|it| it.is_open()) else { return };
        (it.outcome, it.total) = (end.outcome, Some(end.total));
        it.counted = end.counted.unwrap_or(NOTHING_COUNTED);
        self.change(number);
    }

    /// Changes how many are kept; the newest stay.
    pub(crate) fn resize(&mut self, kept: usize) {
        let kept = kept.min(DECISIONS_MAX);
        if kept == self.kept {
            return;
        }
        let mut records = std::mem::take(&mut self.records);
        records.sort_unstable_by_key(|it| it.number);
        let first = records.len().saturating_sub(kept);
        let left = records.split_off(first);
        self.kept = kept;
        // Numbers go on, and each has its place: places without a decision are filled with blanks.
        let oldest = left.first().map_or(self.newest + 1, |it| it.number);
        if kept > 0 && (oldest > 1 || !left.is_empty()) {
            self.records.resize_with(kept, Decision::default);
        }
        for decision in left {
            if let Some(place) = self.place(decision.number) {
                self.records[place] = decision;
            }
        }
        self.forget_changes();
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Decision> {
        let place = self.place(number)?;
        self.records.get_mut(place).filter(|it| it.number == number)
    }

    fn change(&mut self, number: u64) {
        self.revision += 1;
        let revision = self.revision;
        if let Some(it) = self.get_mut(number) {
            it.revision = revision;
        }
        self.changes.push_back(number);
        self.forget_changes();
    }

    /// Each decision has changed twice at most.
    fn forget_changes(&mut self) {
        while self.changes.len() > 2 * self.kept {
            self.changes.pop_front();
        }
    }

    fn oldest(&self) -> u64 {
        (self.newest + 1).saturating_sub(self.kept as u64).max(1)
    }

    fn place(&self, number: u64) -> Option<usize> {
        (self.kept > 0 && number > 0).then(|| ((number - 1) % self.kept as u64) as usize)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) outcome: AttemptOutcome,
    pub(crate) total: Duration,
    pub(crate) counted: Option<Counted>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(ring: &mut Ring, request: u64) -> u64 {
        let mut decision = ring.lend();
        decision.request = RequestId(request);
        let number = decision.number;
        ring.keep(decision);
        number
    }

    fn end(ring: &mut Ring, number: u64) {
        ring.end(number, End { outcome: AttemptOutcome::Answered, total: Duration::ZERO, counted: None });
    }

    fn numbers(changed: &Changed<'_>) -> Vec<u64> {
        changed.decisions.iter().map(|it| it.number).collect()
    }

    #[test]
    fn the_newest_are_kept_and_found_by_number_and_by_request() {
        let mut ring = Ring::new(3);
        for request in 10..15 {
            push(&mut ring, request);
        }
        assert_eq!(ring.newest_first().map(|it| it.number).collect::<Vec<_>>(), [5, 4, 3]);
        assert_eq!(ring.since(3).map(|it| it.number).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(ring.since(0).count(), 3);
        assert!(ring.get(2).is_none() && ring.get(6).is_none() && ring.get(0).is_none());
        assert_eq!(ring.get(4).map(|it| it.request), Some(RequestId(13)));
        push(&mut ring, 13);
        assert_eq!(ring.of(RequestId(13)).map(|it| it.number), Some(6), "the last attempt");
        assert_eq!(ring.recent(1, |it| it.request.0 < 14).first().map(|it| it.number), Some(6));
    }

    #[test]
    fn a_reader_sees_each_change_once_and_how_many_were_left_out() {
        let mut ring = Ring::new(4);
        (1..=3).for_each(|it| assert!(push(&mut ring, it) > 0));
        let changed = ring.changed(0, 10);
        assert_eq!((numbers(&changed), changed.skipped, changed.revision), (vec![1, 2, 3], 0, 3));
        end(&mut ring, 2);
        push(&mut ring, 4);
        end(&mut ring, 4);
        end(&mut ring, 4);
        let changed = ring.changed(3, 10);
        assert_eq!((numbers(&changed), changed.skipped, changed.revision), (vec![2, 4], 0, 6));
        assert_eq!(numbers(&ring.changed(6, 10)), [0u64; 0]);
        assert_eq!((numbers(&ring.changed(0, 2)), ring.changed(0, 2).skipped), (vec![2, 4], 2));
        (5..30).for_each(|it| assert!(push(&mut ring, it) > 0));
        let changed = ring.changed(6, 10);
        assert_eq!((numbers(&changed), changed.skipped), (vec![26, 27, 28, 29], 21));
    }

    #[test]
    fn a_ring_of_none_keeps_nothing() {
        let mut ring = Ring::new(0);
        let decision = ring.lend();
        ring.keep(decision);
        assert_eq!((ring.newest(), ring.newest_first().count(), ring.is_on()), (0, 0, false));
    }

    #[test]
    fn another_size_keeps_the_newest_and_numbers_go_on() {
        for (before, count, after) in [(4, 9, 2), (4, 9, 7), (4, 2, 7), (4, 2, 1), (3, 0, 5), (4, 9, 0)] {
            let mut ring = Ring::new(before);
            (1..=count).for_each(|it| assert!(push(&mut ring, it) > 0));
            ring.resize(after);
            let expected: Vec<u64> = (1..=count).rev().take(before.min(after)).collect();
            assert_eq!(ring.newest_first().map(|it| it.number).collect::<Vec<_>>(), expected);
            if after > 0 {
                (0..20).for_each(|it| assert_eq!(push(&mut ring, it), count + it + 1));
                assert_eq!(ring.newest_first().count(), after);
                end(&mut ring, count + 20);
                assert_eq!(ring.of(RequestId(19)).map(|it| it.outcome), Some(AttemptOutcome::Answered));
            }
        }
    }
}

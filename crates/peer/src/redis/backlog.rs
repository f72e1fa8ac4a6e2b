//! Frames waiting to be written, during a round trip or while there is no server.
//!
//! Bounded in frames and bytes; the oldest are dropped, because the latest state matters. Of snapshots, only the last
//! one is kept.

use super::clock::Instant;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// One second of the busiest router: 50 flushes of some frames each.
const FRAMES_MAX: usize = 1_024;
const BYTES_MAX: usize = 4 << 20;

/// Limits of one round trip.
const BATCH_FRAMES_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    frames: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    snapshot: Option<Vec<Bytes>>,
    closed: bool,
}

/// What to write next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WriteBatch {
    pub(super) frames: Vec<Bytes>,
    pub(super) snapshot: Option<Vec<Bytes>>,
}

impl Backlog {
    /// Returns how many older frames were dropped.
    pub(super) fn push(&mut self, now: Instant, frame: Bytes) -> u64 {
        self.bytes += frame.len();
        self.frames.push_back((now, frame));
        let mut dropped = 0;
        while self.frames.len() > FRAMES_MAX || self.bytes > BYTES_MAX {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    pub(super) fn put(&mut self, snapshot: Vec<Bytes>) {
        self.snapshot = Some(snapshot);
    }

    /// Drops frames older than `age`. Returns how many.
    pub(super) fn forget(&mut self, now: Instant, age: Duration) -> u64 {
        let mut dropped = 0;
        while self.frames.front().is_some_and(|(since, _)| now.duration_since(*since) > age) {
            self.pop();
            dropped += 1;
        }
        dropped
    }

    /// The oldest frames that fit into one round trip; `None` if there is nothing.
    pub(super) fn take(&mut self) -> Option<WriteBatch> {
        let mut batch = WriteBatch { frames: Vec::new(), snapshot: self.snapshot.take() };
        let mut bytes = 0;
        while batch.frames.len() < BATCH_FRAMES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(frame) = self.pop() else { break };
            bytes += frame.len();
            batch.frames.push(frame);
        }
        (batch != WriteBatch::default()).then_some(batch)
    }

    /// No more frames will come.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    fn pop(&mut self) -> Option<Bytes> {
        let (_, frame) = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::clock;

    fn frame(number: u32) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    #[test]
    fn the_oldest_frames_are_dropped() {
        let (now, mut backlog) = (clock::now(), Backlog::default());
        let dropped: u64 = (0..2_000).map(|it| backlog.push(now, frame(it))).sum();
        assert_eq!(dropped, 2_000 - FRAMES_MAX as u64);
        let mut left = Vec::new();
        while let Some(batch) = backlog.take() {
            assert!(batch.frames.len() <= BATCH_FRAMES_MAX);
            left.extend(batch.frames);
        }
        assert_eq!(left, (2_000 - FRAMES_MAX as u32..2_000).map(frame).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_are_bounded_too() {
        let (now, mut backlog) = (clock::now(), Backlog::default());
        let big = Bytes::from(vec![0; 256 << 10]);
        let dropped: u64 = (0..20).map(|_| backlog.push(now, big.clone())).sum();
        assert_eq!(dropped, 4);
        assert_eq!(backlog.take().unwrap().frames.len(), 4);
    }

    #[test]
    fn old_frames_are_dropped() {
        let (now, mut backlog) = (clock::now(), Backlog::default());
        let second = Duration::from_secs(1);
        backlog.push(now, frame(1));
        backlog.push(now + second, frame(2));
        assert_eq!(backlog.forget(now + second + second / 2, second), 1);
        assert_eq!(backlog.take().unwrap().frames, [frame(2)]);
        assert_eq!(backlog.take(), None);
    }

    #[test]
    fn only_the_last_snapshot_is_kept() {
        let mut backlog = Backlog::default();
        backlog.put(vec![frame(1)]);
        backlog.put(vec![frame(2), frame(3)]);
        let batch = backlog.take().unwrap();
        assert_eq!(batch, WriteBatch { frames: vec![], snapshot: Some(vec![frame(2), frame(3)]) });
    }
}

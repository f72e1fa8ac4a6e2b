//! Frames waiting to be written to one peer: membership messages first, then data in order.
//!
//! Bounded in count and bytes. A full backlog drops its oldest data, because newer rows supersede older ones and a
//! peer asks for what it misses. Membership messages may be dropped too; SWIM tolerates loss.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::wire::{self, HEADER, MeshFrameKind};

pub(super) const FRAMES_MAX: usize = 1024;
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
const GOSSIP_MAX: usize = 256;
/// Maximum bytes per write: large enough to make the system call cheap, small enough that membership messages do not
/// wait long.
const BATCH: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    queued: Mutex<QueuedFrames>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct QueuedFrames {
    gossip: VecDeque<Bytes>,
    data: VecDeque<Bytes>,
    /// Bytes of `data`.
    bytes: usize,
    is_last: bool,
}

/// The result of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// This many data frames, and possibly membership messages.
    Some(u64),
    /// The backlog is empty and closed.
    End,
}

impl Backlog {
    /// Returns how many older frames were dropped.
    pub(super) fn push(&self, frame: Bytes) -> u64 {
        let mut queued = self.queued.lock();
        queued.bytes += frame.len();
        queued.data.push_back(frame);
        let mut dropped = 0;
        while queued.data.len() > FRAMES_MAX || queued.bytes > BYTES_MAX {
            let Some(oldest) = queued.data.pop_front() else { break };
            queued.bytes -= oldest.len();
            dropped += 1;
        }
        drop(queued);
        self.ready.notify_one();
        dropped
    }

    pub(super) fn push_gossip(&self, message: Bytes) {
        let mut queued = self.queued.lock();
        if queued.gossip.len() >= GOSSIP_MAX {
            queued.gossip.pop_front();
        }
        queued.gossip.push_back(message);
        drop(queued);
        self.ready.notify_one();
    }

    /// Closes the backlog: what it holds now is the last.
    pub(super) fn end(&self) {
        self.queued.lock().is_last = true;
        self.ready.notify_one();
    }

    /// Waits until there is something, then appends as much as fits into one write. Cancel safe while it waits. If
    /// the caller drops what it returned, that is lost.
    pub(super) async fn take(&self, bytes: &mut Vec<u8>) -> Taken {
        loop {
            if let Some(taken) = self.try_take(bytes) {
                return taken;
            }
            self.ready.notified().await;
        }
    }

    fn try_take(&self, bytes: &mut Vec<u8>) -> Option<Taken> {
        let mut queued = self.queued.lock();
        let is_empty = queued.gossip.is_empty() && queued.data.is_empty();
        if is_empty {
            return queued.is_last.then_some(Taken::End);
        }
        for message in queued.gossip.drain(..) {
            wire::put_frame(bytes, MeshFrameKind::Gossip, &message);
        }
        let mut frames = 0;
        while let Some(frame) = queued.data.front()
            && (frames == 0 || bytes.len() + HEADER + frame.len() <= BATCH)
        {
            wire::put_frame(bytes, MeshFrameKind::Data, frame);
            queued.bytes -= frame.len();
            queued.data.pop_front();
            frames += 1;
        }
        Some(Taken::Some(frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(bytes: &[u8]) -> Vec<(MeshFrameKind, Vec<u8>)> {
        let (mut rest, mut found) = (bytes, Vec::new());
        while let Some((kind, length)) = wire::frame(rest).unwrap() {
            found.push((kind, rest[HEADER..HEADER + length].to_vec()));
            rest = &rest[HEADER + length..];
        }
        found
    }

    #[test]
    fn gossip_goes_first_and_data_in_order() {
        let (backlog, mut bytes) = (Backlog::default(), Vec::new());
        assert_eq!(backlog.try_take(&mut bytes), None);
        backlog.push(Bytes::from_static(b"1"));
        backlog.push(Bytes::from_static(b"2"));
        backlog.push_gossip(Bytes::from_static(b"g"));
        assert_eq!(backlog.try_take(&mut bytes), Some(Taken::Some(2)));
        let expected = [
            (MeshFrameKind::Gossip, b"g".to_vec()),
            (MeshFrameKind::Data, b"1".to_vec()),
            (MeshFrameKind::Data, b"2".to_vec()),
        ];
        assert_eq!(bodies(&bytes), expected);
        backlog.end();
        assert_eq!(backlog.try_take(&mut bytes), Some(Taken::End));
    }

    #[test]
    fn the_oldest_frames_are_dropped_by_count() {
        let (backlog, mut bytes) = (Backlog::default(), Vec::new());
        let frame = |it: u16| Bytes::copy_from_slice(&it.to_be_bytes());
        let dropped: u64 = (0..2_000).map(|it| backlog.push(frame(it))).sum();
        assert_eq!(dropped, 2_000 - FRAMES_MAX as u64);
        backlog.try_take(&mut bytes);
        assert_eq!(bodies(&bytes).first().unwrap().1, (2_000 - FRAMES_MAX as u16).to_be_bytes());
    }

    #[test]
    fn the_oldest_frames_are_dropped_by_bytes_and_batches_are_bounded() {
        let (backlog, mut bytes) = (Backlog::default(), Vec::new());
        let frame = Bytes::from(vec![0; 100_000]);
        let dropped: u64 = (0..100).map(|_| backlog.push(frame.clone())).sum();
        assert_eq!(dropped, 100 - (BYTES_MAX / 100_000) as u64);
        assert_eq!(backlog.try_take(&mut bytes), Some(Taken::Some(2)));
        assert!(bytes.len() <= BATCH);
        backlog.push(Bytes::from(vec![0; wire::FRAME_MAX]));
        while backlog.try_take(&mut bytes).is_some() {}
        assert_eq!(backlog.queued.lock().bytes, 0);
    }
}

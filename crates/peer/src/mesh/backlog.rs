//! What waits to be written to one peer: what membership says first, then data in the order in which it was given.
//!
//! Bounded in number and bytes. When it is full the oldest data makes way, since newer rows say more than older ones
//! and whoever misses something asks for it. Gossip makes way too; membership is built to lose messages.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::wire::{self, HEADER, Kind};

pub(super) const FRAMES_MAX: usize = 1024;
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
const GOSSIP_MAX: usize = 256;
/// Written in one go: large enough that a system call costs nothing, small enough that gossip need not wait long.
const BATCH: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    held: Mutex<Held>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Held {
    gossip: VecDeque<Bytes>,
    data: VecDeque<Bytes>,
    /// Of the data.
    bytes: usize,
    is_last: bool,
}

/// What was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// That many frames of data, and perhaps gossip.
    Some(u64),
    /// Nothing is held, and nothing will come.
    End,
}

impl Backlog {
    /// Returns how many older ones made way.
    pub(super) fn push(&self, frame: Bytes) -> u64 {
        let mut held = self.held.lock();
        held.bytes += frame.len();
        held.data.push_back(frame);
        let mut dropped = 0;
        while held.data.len() > FRAMES_MAX || held.bytes > BYTES_MAX {
            let Some(oldest) = held.data.pop_front() else { break };
            held.bytes -= oldest.len();
            dropped += 1;
        }
        drop(held);
        self.bell.notify_one();
        dropped
    }

    pub(super) fn push_gossip(&self, message: Bytes) {
        let mut held = self.held.lock();
        if held.gossip.len() >= GOSSIP_MAX {
            held.gossip.pop_front();
        }
        held.gossip.push_back(message);
        drop(held);
        self.bell.notify_one();
    }

    /// What is held now is the last.
    pub(super) fn end(&self) {
        self.held.lock().is_last = true;
        self.bell.notify_one();
    }

    /// Waits until there is something, and appends as much of it as goes well in one write. What it took is lost if
    /// it is dropped afterwards; while it waits it has taken nothing.
    pub(super) async fn take(&self, bytes: &mut Vec<u8>) -> Taken {
        loop {
            if let Some(taken) = self.try_take(bytes) {
                return taken;
            }
            self.bell.notified().await;
        }
    }

    fn try_take(&self, bytes: &mut Vec<u8>) -> Option<Taken> {
        let mut held = self.held.lock();
        let is_empty = held.gossip.is_empty() && held.data.is_empty();
        if is_empty {
            return held.is_last.then_some(Taken::End);
        }
        for message in held.gossip.drain(..) {
            wire::put_frame(bytes, Kind::Gossip, &message);
        }
        let mut frames = 0;
        while let Some(frame) = held.data.front()
            && (frames == 0 || bytes.len() + HEADER + frame.len() <= BATCH)
        {
            wire::put_frame(bytes, Kind::Data, frame);
            held.bytes -= frame.len();
            held.data.pop_front();
            frames += 1;
        }
        Some(Taken::Some(frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(bytes: &[u8]) -> Vec<(Kind, Vec<u8>)> {
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
        let expected =
            [(Kind::Gossip, b"g".to_vec()), (Kind::Data, b"1".to_vec()), (Kind::Data, b"2".to_vec())];
        assert_eq!(bodies(&bytes), expected);
        backlog.end();
        assert_eq!(backlog.try_take(&mut bytes), Some(Taken::End));
    }

    #[test]
    fn the_oldest_makes_way_by_number() {
        let (backlog, mut bytes) = (Backlog::default(), Vec::new());
        let frame = |it: u16| Bytes::copy_from_slice(&it.to_be_bytes());
        let dropped: u64 = (0..2_000).map(|it| backlog.push(frame(it))).sum();
        assert_eq!(dropped, 2_000 - FRAMES_MAX as u64);
        backlog.try_take(&mut bytes);
        assert_eq!(bodies(&bytes).first().unwrap().1, (2_000 - FRAMES_MAX as u16).to_be_bytes());
    }

    #[test]
    fn the_oldest_makes_way_by_bytes_and_batches_are_bounded() {
        let (backlog, mut bytes) = (Backlog::default(), Vec::new());
        let frame = Bytes::from(vec![0; 100_000]);
        let dropped: u64 = (0..100).map(|_| backlog.push(frame.clone())).sum();
        assert_eq!(dropped, 100 - (BYTES_MAX / 100_000) as u64);
        assert_eq!(backlog.try_take(&mut bytes), Some(Taken::Some(2)));
        assert!(bytes.len() <= BATCH);
        backlog.push(Bytes::from(vec![0; wire::FRAME_MAX]));
        while backlog.try_take(&mut bytes).is_some() {}
        assert_eq!(backlog.held.lock().bytes, 0);
    }
}

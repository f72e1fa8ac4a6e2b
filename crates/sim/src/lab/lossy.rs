//! KV events that get lost on their way, as the router's own feed sees them.
//!
//! The engine has no replay here: one lost batch is a gap that nothing fills, and the feed starts over. With a
//! replay, a lost batch is only late.

use maitre_base::{Instant, Rng};
use maitre_index::feed::{Action, Feed, Input, Numbered, Replay, Trust};

/// The subscription to one worker's events.
pub(super) struct LossyFeed {
    feed: Feed<[u8; 8]>,
    next: u64,
    rng: Rng,
    /// The part of the batches that is lost.
    loss: f64,
    trust: Trust,
}

impl LossyFeed {
    pub(super) fn new(loss: f64, seed: u64) -> LossyFeed {
        let mut feed = LossyFeed {
            feed: Feed::new(Replay::Absent),
            next: 0,
            rng: Rng::new(seed),
            loss,
            trust: Trust::None,
        };
        feed.feed.on(Instant::ZERO, Input::Connected);
        feed
    }

    /// The engine was restarted, and the subscription starts again.
    pub(super) fn reconnect(&mut self) {
        self.feed.on(Instant::ZERO, Input::Gone);
        self.feed.on(Instant::ZERO, Input::Connected);
        self.next = 0;
    }

    /// Sends the next batch. Returns false if it is lost.
    pub(super) fn send(&mut self, now: Instant) -> bool {
        let seq = self.next;
        self.next += 1;
        if self.rng.unit() < self.loss {
            return false;
        }
        self.feed.on(now, Input::Batch(Numbered::new(seq, seq.to_le_bytes())));
        true
    }

    pub(super) fn next_action(&mut self, now: Instant) -> Option<Action<[u8; 8]>> {
        self.feed.next_action(now)
    }

    pub(super) fn is_cold(&self) -> bool {
        self.feed.trust() == Trust::Cold
    }

    pub(super) fn complete(&mut self, now: Instant) {
        self.feed.on(now, Input::Complete);
    }

    /// The trust, if it has changed since the last call.
    pub(super) fn changed_trust(&mut self) -> Option<Trust> {
        let trust = self.feed.trust();
        (std::mem::replace(&mut self.trust, trust) != trust).then_some(trust)
    }
}

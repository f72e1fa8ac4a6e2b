//! Loads from the store that engines share. A load begins when a prompt has room, and the link decides when it ends.
//!
//! They need no task of their own. A load that ends during a step could not run before the next one anyway.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use maitre_base::Instant;

use crate::engine::transfer::{Content, FetchOutcome, KvFetch};
use crate::engine::{Engine, JobId};
use crate::link::{Link, LinkModel};

#[derive(Debug)]
pub(super) struct StoreLoads {
    link: Link,
    block_tokens: u32,
    begun: Vec<(KvFetch, u32)>,
    /// When each ends, in the order in which they began.
    under_way: BinaryHeap<Reverse<(Instant, u64)>>,
    jobs: Vec<(u64, JobId, u32)>,
    next: u64,
}

impl StoreLoads {
    pub(super) fn new(link: LinkModel, block_tokens: u32) -> StoreLoads {
        StoreLoads {
            link: Link::new(link),
            block_tokens,
            begun: Vec::new(),
            under_way: BinaryHeap::new(),
            jobs: Vec::new(),
            next: 0,
        }
    }

    /// A prompt has room for its first `tokens` tokens, which the store has.
    pub(super) fn push(&mut self, fetch: KvFetch, tokens: u32) {
        self.begun.push((fetch, tokens));
    }

    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Sends over the link what was pushed.
    pub(super) fn send(&mut self, now: Instant, slowness: f64) {
        for (fetch, tokens) in self.begun.drain(..) {
            let blocks = u64::from(tokens.saturating_sub(fetch.held_tokens) / self.block_tokens);
            let bytes = self.link.model.bytes(blocks, self.block_tokens);
            self.under_way.push(Reverse((self.link.send(now, bytes, slowness), self.next)));
            self.jobs.push((self.next, fetch.job, tokens));
            self.next += 1;
        }
    }

    pub(super) fn next_end(&self) -> Option<Instant> {
        self.under_way.peek().map(|it| it.0.0)
    }

    /// Ends the loads that are complete.
    pub(super) fn finish(&mut self, now: Instant, engine: &mut Engine) {
        while let Some(&Reverse((end, number))) = self.under_way.peek()
            && end <= now
        {
            self.under_way.pop();
            if let Some(place) = self.jobs.iter().position(|it| it.0 == number) {
                let (_, job, tokens) = self.jobs.swap_remove(place);
                engine.finish_fetch(job, FetchOutcome::Arrived { tokens, content: Content::Right });
            }
        }
    }

    /// The engine has restarted.
    pub(super) fn clear(&mut self) {
        *self = StoreLoads::new(self.link.model, self.block_tokens);
    }
}

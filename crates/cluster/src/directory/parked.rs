//! Received prompts whose segments are unknown, kept until the segments arrive.
//!
//! The sender is asked for the missing segment once a second, for a minute; then the prompt is dropped.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::directory::Origin;
use crate::frame::{EncodedPlacement, Links, PlacedChain};
use crate::row::RouterId;
use maitre_base::Instant;

/// Maximum parked prompts.
pub(crate) const PARKED_MAX: usize = 256;
/// Maximum links of all parked prompts: half a megabyte.
pub(crate) const PARKED_LINKS_MAX: usize = 65_536;
/// Chosen: longer than any answer takes.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often one segment is requested. Chosen: for a minute. With 3, a router that lost half of all frames for four seconds
/// never learned of a prompt, though the sender still had it.
const REQUESTS_MAX: u32 = 60;

/// A segment that we lack, the block size of its chains, and the router to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRequest {
    pub(crate) router: RouterId,
    pub(crate) block: u32,
    pub(crate) segment: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct ParkedPlacement {
    origin: Origin,
    placed: PlacedChain,
    parent: u64,
    links: Vec<u64>,
    missing: u64,
    tries: u32,
}

impl ParkedPlacement {
    pub(crate) fn placement(&self) -> EncodedPlacement<'_> {
        EncodedPlacement { placed: self.placed, parent: self.parent, links: Links::Numbers(&self.links) }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ParkedPlacements {
    /// Oldest first.
    queue: VecDeque<ParkedPlacement>,
    links: usize,
    dropped: u64,
}

impl ParkedPlacements {
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn park(&mut self, origin: Origin, placement: &EncodedPlacement<'_>, missing: u64) {
        let &EncodedPlacement { placed, parent, links } = placement;
        let links = links.to_vec();
        self.push(ParkedPlacement { origin, placed, parent, links, missing, tries: 0 });
    }

    /// Whether one of the missing segments has arrived.
    pub(crate) fn can_continue(&self, has_arrived: impl Fn(u64) -> bool) -> bool {
        self.queue.iter().any(|it| has_arrived(it.missing))
    }

    pub(crate) fn take_all(&mut self) -> VecDeque<ParkedPlacement> {
        self.links = 0;
        mem::take(&mut self.queue)
    }

    /// Parks the prompt again. If another segment is missing now, it is requested at once.
    pub(crate) fn park_again(&mut self, mut parked: ParkedPlacement, missing: u64, now: Instant) {
        if parked.missing != missing {
            (parked.missing, parked.tries, parked.origin.ask_at) = (missing, 0, now);
        }
        self.push(parked);
    }

    /// When the next request is due.
    pub(crate) fn next_request_at(&self) -> Option<Instant> {
        self.queue.iter().filter(|it| it.tries < REQUESTS_MAX).map(|it| it.origin.ask_at).min()
    }

    /// Requests that are due now, each segment once. Drops prompts that have used up their requests.
    pub(crate) fn due_requests(&mut self, now: Instant, requests: &mut Vec<SegmentRequest>) {
        let before = self.queue.len();
        self.queue.retain(|it| it.origin.ask_at > now || it.tries < REQUESTS_MAX);
        self.dropped += (before - self.queue.len()) as u64;
        self.links = self.queue.iter().map(|it| it.links.len()).sum();
        for parked in self.queue.iter_mut().filter(|it| it.origin.ask_at <= now) {
            parked.tries += 1;
            parked.origin.ask_at = now + ASK_AGAIN;
            let request = SegmentRequest {
                router: parked.origin.router,
                block: parked.placed.block,
                segment: parked.missing,
            };
            if !requests.contains(&request) {
                requests.push(request);
            }
        }
    }

    fn push(&mut self, parked: ParkedPlacement) {
        self.links += parked.links.len();
        self.queue.push_back(parked);
        while self.queue.len() > PARKED_MAX || self.links > PARKED_LINKS_MAX {
            let Some(oldest) = self.queue.pop_front() else {
                return;
            };
            self.links -= oldest.links.len();
            self.dropped += 1;
        }
    }
}

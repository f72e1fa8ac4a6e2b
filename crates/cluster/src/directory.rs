//! The cache directory: which prompts were sent to which worker, by this router and by its peers.
//!
//! A prompt is a chain of hashes, and the next prompt of a conversation starts with the previous one. Chains are
//! therefore cut into segments that are identified by their content, the same in every router. A prompt is published
//! as its last known segment and the links after it. A peer that lacks the segment requests it and parks the prompt
//! until the segment arrives.
//!
//! A claim says that a worker was sent a chain. Received claims are kept like our own, because a cache outlives the
//! router that filled it. A claim is dropped once a longer chain at the same worker contains it.
//!
//! Left out: evictions by workers. The index, which receives the updates, tracks those.

mod parked;
pub(crate) mod segments;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;

use crate::directory::parked::{ParkedPlacements, SegmentRequest};
use crate::directory::segments::{PathError, Segment, SegmentStore};
use crate::frame::{
    EncodedPlacement, LINKS_MAX, Links, PlacedChain, RECORD_LINKS_MAX, Record, SEGMENT_LINKS,
};
use crate::row::{Chain, PeerPlacement, PeerUpdate, RouterId};
use maitre_base::{Instant, Recent, hash};

pub(crate) use crate::directory::segments::SEGMENTS_MAX;

/// Maximum claims: 9 MB with their tables, which hold seven eighths of a power of two before they double.
pub(crate) const CLAIMS_MAX: usize = 2 * 28_672;
/// A prompt that adds less than a segment to what the worker was last sent is published again only after this many
/// deltas: a third of a second under load. Peers miss at most seven blocks of it. Publishing every use of a shared
/// prefix cost a router three times as much.
const REPUBLISH_AFTER: u64 = 8;
/// Maximum pairs of worker and segment whose last publication is remembered.
const PUBLISHED_MAX: usize = 2 * 7_168;
/// Maximum links waiting for the next flush. Chosen: 2 MiB, fifty times what a router receives between two flushes.
const PENDING_LINKS_MAX: usize = 262_144;

/// A chain that a worker was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    placed: PlacedChain,
    /// The last full segment; 0 if there is none.
    segment: u64,
    /// The links after it, `total_links % SEGMENT_LINKS` of them.
    tail: [u64; SEGMENT_LINKS - 1],
    /// The delta that published it, or the next delta while it is pending; 0 if a peer published it.
    published: u64,
    /// Grows with every claim.
    age: u64,
}

impl Claim {
    pub(crate) fn tail(&self) -> &[u64] {
        &self.tail[..self.placed.total_links as usize % SEGMENT_LINKS]
    }
}

/// A chain of ours that the next flush publishes.
#[derive(Clone, Copy, Debug)]
struct PendingPlacement {
    claim: u64,
    placed: PlacedChain,
    parent: u64,
    /// How many of `pending_links` belong to it.
    links: usize,
}

/// A segment that a chain needs is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MissingSegment(u64);

/// Whether a record describes an event or is part of stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// A delta: the event just happened.
    Live,
    /// A snapshot: claims that we already have are skipped.
    Stored,
}

/// Where a placement came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) router: RouterId,
    pub(crate) freshness: Freshness,
    /// When to request missing segments.
    pub(crate) ask_at: Instant,
}

#[derive(Debug)]
pub(crate) struct CacheDirectory {
    segments: SegmentStore,
    claims: Recent<Claim>,
    /// When it was last published that a worker used a segment: the worker and the delta number.
    published: Recent<(u64, u64)>,
    age: u64,
    pending: Vec<PendingPlacement>,
    pending_links: Vec<u64>,
    parked: ParkedPlacements,
    path: Vec<u64>,
    /// Chains that could be neither published nor applied.
    dropped: u64,
}

impl CacheDirectory {
    pub(crate) fn new(segments_max: usize, claims_max: usize) -> CacheDirectory {
        CacheDirectory {
            segments: SegmentStore::new(segments_max),
            claims: Recent::new(claims_max),
            published: Recent::new(PUBLISHED_MAX),
            age: 0,
            pending: Vec::new(),
            pending_links: Vec::new(),
            parked: ParkedPlacements::default(),
            path: Vec::new(),
            dropped: 0,
        }
    }

    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.parked.dropped()
    }

    pub(crate) fn has_segment(&self, segment: u64) -> bool {
        self.segments.get(segment).is_some()
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// This router sent a prompt to the worker: publish it with the next delta or one soon after it.
    pub(crate) fn place(&mut self, worker: u64, chain: Chain<'_>, next: u64) {
        let is_publishable = (1..=LINKS_MAX).contains(&chain.links.len()) && chain.block > 0;
        if !is_publishable || chain.links.contains(&0) {
            self.dropped += u64::from(!chain.links.is_empty());
            return;
        }
        let known = self.known(&chain);
        if !self.is_worth_publishing(worker, &chain, known, next) {
            return;
        }
        let Some(parent) = self.learn(&chain, known) else {
            self.dropped += 1;
            return;
        };
        let new = &chain.links[known * SEGMENT_LINKS..];
        let claim = self.claim(worker, &chain, known);
        self.mark(claim, next);
        if self.pending_links.len() + new.len() > PENDING_LINKS_MAX {
            self.dropped += 1;
            return;
        }
        self.pending_links.extend_from_slice(new);
        self.pending.push(PendingPlacement {
            claim,
            placed: PlacedChain::new(worker, &chain),
            parent,
            links: new.len(),
        });
    }

    /// Whether peers would learn something: a new segment, or one that was not recently published for this worker. A
    /// chain shorter than a segment is always published.
    fn is_worth_publishing(&mut self, worker: u64, chain: &Chain<'_>, known: usize, next: u64) -> bool {
        let (segments, _) = chain.links.as_chunks::<SEGMENT_LINKS>();
        let Some(last) = segments.last() else { return true };
        let key = hash::pair(worker, segments::id(last[SEGMENT_LINKS - 1], chain.block));
        let is_recent = |(_, published): (u64, u64)| next < published + REPUBLISH_AFTER;
        if known == segments.len() && self.published.peek(key).is_some_and(is_recent) {
            return false;
        }
        self.published.put(key, (worker, next));
        true
    }

    /// Publishes pending chains. `push` takes a record and returns the number of its delta.
    pub(crate) fn publish(&mut self, mut push: impl FnMut(&Record<'_>) -> u64) {
        let mut links = &self.pending_links[..];
        for pending in &self.pending {
            let (mut new, rest) = links.split_at(pending.links);
            links = rest;
            let (block, mut parent) = (pending.placed.block, pending.parent);
            while new.len() > RECORD_LINKS_MAX {
                let (segments, rest) = new.split_at(RECORD_LINKS_MAX);
                push(&Record::Segments { block, parent, links: Links::Numbers(segments) });
                parent = segments::id(segments[RECORD_LINKS_MAX - 1], block);
                new = rest;
            }
            let seq = push(&Record::Placement(EncodedPlacement {
                placed: pending.placed,
                parent,
                links: Links::Numbers(new),
            }));
            if let Some(claim) = self.claims.get(pending.claim) {
                claim.published = seq;
            }
        }
        self.pending.clear();
        self.pending_links.clear();
    }

    /// A peer sent a prompt to a worker.
    pub(crate) fn receive(
        &mut self,
        origin: Origin,
        placement: &EncodedPlacement<'_>,
        updates: &mut Vec<PeerUpdate>,
    ) {
        if origin.freshness == Freshness::Stored && self.claims(placement) {
            return;
        }
        if let Err(MissingSegment(segment)) = self.rebuild(placement, updates) {
            self.parked.park(origin, placement, segment);
        }
    }

    /// A peer sent segments. They are dropped if the segment before them is unknown.
    pub(crate) fn receive_segments(&mut self, block: u32, parent: u64, links: Links<'_>) {
        let (mut parent, links) = (parent, links.to_vec());
        let (segments, _) = links.as_chunks::<SEGMENT_LINKS>();
        if !self.segments.keep_path(parent, segments.len(), &mut self.path) {
            return;
        }
        for segment in segments {
            let id = segments::id(segment[SEGMENT_LINKS - 1], block);
            self.segments.put(id, Segment { parent, links: *segment });
            parent = id;
        }
    }

    /// Applies parked prompts whose segments have arrived.
    pub(crate) fn retry_parked(&mut self, now: Instant, updates: &mut Vec<PeerUpdate>) {
        if !self.parked.can_continue(|segment| self.segments.get(segment).is_some()) {
            return;
        }
        for parked in self.parked.take_all() {
            if let Err(MissingSegment(segment)) = self.rebuild(&parked.placement(), updates) {
                self.parked.park_again(parked, segment, now);
            }
        }
    }

    /// Segments to request now, and from which router.
    pub(crate) fn due_requests(&mut self, now: Instant, requests: &mut Vec<SegmentRequest>) {
        self.parked.due_requests(now, requests);
    }

    pub(crate) fn next_request_at(&self) -> Option<Instant> {
        self.parked.next_request_at()
    }

    /// Forgets what this worker has cached.
    pub(crate) fn forget(&mut self, worker: u64) {
        self.claims.retain(|it| it.placed.worker != worker);
        self.published.retain(|it| it.0 != worker);
    }

    /// How many of the chain's segments are known. Searched from the end, because a growing conversation shares all
    /// but its last segments.
    fn known(&self, chain: &Chain<'_>) -> usize {
        let (segments, _) = chain.links.as_chunks::<SEGMENT_LINKS>();
        let is_known = |segment: &[u64; SEGMENT_LINKS]| {
            self.segments.get(segments::id(segment[SEGMENT_LINKS - 1], chain.block)).is_some()
        };
        segments.iter().rposition(is_known).map_or(0, |it| it + 1)
    }

    /// Stores the segments after the first `known` ones. Returns the last known segment's id, or `None` if there is
    /// no room.
    fn learn(&mut self, chain: &Chain<'_>, known: usize) -> Option<u64> {
        let (segments, _) = chain.links.as_chunks::<SEGMENT_LINKS>();
        let number = |it: &[u64; SEGMENT_LINKS]| segments::id(it[SEGMENT_LINKS - 1], chain.block);
        let parent = known.checked_sub(1).map_or(0, |last| number(&segments[last]));
        if known == segments.len() && (parent == 0 || self.segments.is_young(parent)) {
            return Some(parent);
        }
        if !self.segments.keep_path(parent, segments.len() - known, &mut self.path) {
            return None;
        }
        let mut before = parent;
        for segment in &segments[known..] {
            let id = number(segment);
            self.segments.put(id, Segment { parent: before, links: *segment });
            before = id;
        }
        Some(parent)
    }

    /// Records that the worker was sent the chain. Returns the claim's key.
    fn claim(&mut self, worker: u64, chain: &Chain<'_>, known: usize) -> u64 {
        let key = |link: u64| hash::pair(worker, segments::id(link, chain.block));
        let (segments, tail) = chain.links.as_chunks::<SEGMENT_LINKS>();
        let last = chain.links.len() - 1;
        // The previous prompt of a conversation ended with a known segment, or less than a segment after it. A peer
        // that missed it asks for later publications and receives this claim instead.
        let first = (known * SEGMENT_LINKS).saturating_sub(1);
        let replaced = chain.links[first..last].iter().take(SEGMENT_LINKS).chain([&chain.links[last]]);
        let published =
            replaced.filter_map(|&link| self.claims.remove(key(link))).map(|it| it.published).max();
        self.age += 1;
        let mut claim = Claim {
            placed: PlacedChain::new(worker, chain),
            segment: segments.last().map_or(0, |it| segments::id(it[SEGMENT_LINKS - 1], chain.block)),
            tail: [0; SEGMENT_LINKS - 1],
            published: published.unwrap_or(0),
            age: self.age,
        };
        claim.tail[..tail.len()].copy_from_slice(tail);
        let key = key(chain.links[last]);
        self.claims.put(key, claim);
        key
    }

    fn mark(&mut self, claim: u64, published: u64) {
        if let Some(claim) = self.claims.get(claim) {
            claim.published = published;
        }
    }

    /// Whether we have this claim. Its last link decides, so the chain need not be rebuilt.
    fn claims(&self, placement: &EncodedPlacement<'_>) -> bool {
        let PlacedChain { worker, block, .. } = placement.placed;
        let parent_end = || Some(self.segments.get(placement.parent)?.links[SEGMENT_LINKS - 1]);
        let last = placement.links.last().or_else(parent_end);
        last.is_some_and(|it| self.claims.peek(hash::pair(worker, segments::id(it, block))).is_some())
    }

    /// Rebuilds the whole chain, records the claim and emits the update.
    fn rebuild(
        &mut self,
        placement: &EncodedPlacement<'_>,
        updates: &mut Vec<PeerUpdate>,
    ) -> Result<(), MissingSegment> {
        let PlacedChain { worker, unit, block, units, total_links } = placement.placed;
        let known = (total_links as usize - placement.links.len()) / SEGMENT_LINKS;
        match self.segments.trace(placement.parent, known, &mut self.path) {
            Ok(()) => {}
            Err(PathError::Missing(segment)) => return Err(MissingSegment(segment)),
            Err(PathError::TooLong) => {
                self.dropped += 1;
                return Ok(());
            }
        }
        let mut links = Vec::with_capacity(total_links as usize);
        let segments = self.path.iter().filter_map(|&it| self.segments.get(it));
        segments.for_each(|it| links.extend_from_slice(&it.links));
        // The segment may belong to a chain of another length or block size.
        let ends_at_parent = links.last().is_none_or(|&it| segments::id(it, block) == placement.parent);
        let fits = links.len() == known * SEGMENT_LINKS && ends_at_parent;
        placement.links.append_to(&mut links);
        let chain = Chain { unit, block, units, links: &links };
        if !fits || self.learn(&chain, known).is_none() {
            self.dropped += 1;
            return Ok(());
        }
        self.claim(worker, &chain, known);
        updates.push(PeerUpdate::Placed(PeerPlacement { worker, unit, block, units, links }));
        Ok(())
    }
}

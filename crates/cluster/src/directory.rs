//! What is believed of caches: which prompts were sent to which worker, by us and by others.
//!
//! A prompt is a chain of hashes, and a conversation's next prompt begins with the whole of its last one. So chains are
//! cut into pages that are named by what they hold, the same in every router, and a prompt is told as the last page
//! that is known and the links after it. Whoever lacks that page asks for it and parks the prompt until it comes.
//!
//! A claim is that a worker was sent a chain. What was heard is our own belief from then on: a cache outlives the router
//! that filled it. A claim within a longer one at the same worker says nothing more and goes.
//!
//! Left out: what workers evict. That is the index's matter, where the news goes.

pub(crate) mod pages;
mod parked;
pub(crate) mod recital;

#[cfg(test)]
mod tests;

use crate::directory::pages::{Astray, Page, Pages};
use crate::directory::parked::{Parked, Want};
use crate::frame::{LINKS_MAX, Links, PAGE, RECORD_LINKS_MAX, Record, Seat};
use crate::row::{Chain, PeerUpdate, RouterId, Seated, Unit};
use maitre_base::{Instant, Recent, hash};

pub(crate) use crate::directory::pages::PAGES_MAX;

/// Most claims kept: 9 MB with their tables, which hold seven eighths of a power of two before they double.
pub(crate) const CLAIMS_MAX: usize = 2 * 28_672;
/// For how many deltas a prompt that adds less than a page to what a worker was last sent is not told: a third of a second
/// where there is much to tell. Others lack at most seven blocks of it; to be told each time that a shared beginning is used
/// cost a router three times as much.
const TOLD_AGAIN: u64 = 8;
/// Pages of workers of which it is known when they were last told.
const TOLD_MAX: usize = 2 * 7_168;
/// Most links that wait to be told. Chosen: 2 MiB, fifty times what a router takes in between two flushes.
const PENDING_LINKS_MAX: usize = 262_144;

/// That a worker was sent a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) worker: u64,
    unit: Unit,
    block: u32,
    units: u64,
    whole: u32,
    /// The last full page; 0 if there is none.
    page: u64,
    /// What follows it, `whole % PAGE` links.
    tail: [u64; PAGE - 1],
    /// The delta in which we told it, or at least that after which we do; 0 if it was heard.
    told: u64,
    /// Grows with every claim.
    age: u64,
}

impl Claim {
    pub(crate) fn tail(&self) -> &[u64] {
        &self.tail[..self.whole as usize % PAGE]
    }
}

/// A chain of ours that is still to be told.
#[derive(Clone, Copy, Debug)]
struct Pending {
    claim: u64,
    worker: u64,
    unit: Unit,
    block: u32,
    units: u64,
    whole: u32,
    parent: u64,
    /// How many of the pending links are its.
    links: usize,
}

/// A page that a chain needs is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missing(u64);

/// How a chain came to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// As it happened.
    Delta,
    /// From somebody's memory: what we know already is no news.
    Memory,
}

/// Who told a chain, how, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Teller {
    pub(crate) router: RouterId,
    pub(crate) source: Source,
    /// When to ask for pages that are missing.
    pub(crate) ask: Instant,
}

#[derive(Debug)]
pub(crate) struct CacheDirectory {
    pages: Pages,
    claims: Recent<Claim>,
    /// When all were last told that a worker used a page: the worker, and how many deltas we had told then.
    told: Recent<(u64, u64)>,
    age: u64,
    pending: Vec<Pending>,
    pending_links: Vec<u64>,
    parked: Parked,
    path: Vec<u64>,
    /// Chains that were neither told nor heard.
    dropped: u64,
}

impl CacheDirectory {
    pub(crate) fn new(pages_max: usize, claims_max: usize) -> CacheDirectory {
        CacheDirectory {
            pages: Pages::new(pages_max),
            claims: Recent::new(claims_max),
            told: Recent::new(TOLD_MAX),
            age: 0,
            pending: Vec::new(),
            pending_links: Vec::new(),
            parked: Parked::default(),
            path: Vec::new(),
            dropped: 0,
        }
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.parked.dropped()
    }

    pub(crate) fn has_page(&self, page: u64) -> bool {
        self.pages.get(page).is_some()
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A prompt of ours went to this worker: to be told, in the next delta or one soon after it.
    pub(crate) fn seat(&mut self, worker: u64, chain: Chain<'_>, next: u64) {
        let is_told = (1..=LINKS_MAX).contains(&chain.links.len()) && chain.block > 0;
        if !is_told || chain.links.contains(&0) {
            self.dropped += u64::from(!chain.links.is_empty());
            return;
        }
        let known = self.known(&chain);
        if !self.is_worth_telling(worker, &chain, known, next) {
            return;
        }
        let Some(parent) = self.learn(&chain, known) else {
            self.dropped += 1;
            return;
        };
        let new = &chain.links[known * PAGE..];
        let claim = self.claim(worker, &chain, known);
        self.mark(claim, next);
        if self.pending_links.len() + new.len() > PENDING_LINKS_MAX {
            self.dropped += 1;
            return;
        }
        self.pending_links.extend_from_slice(new);
        self.pending.push(Pending {
            claim,
            worker,
            unit: chain.unit,
            block: chain.block,
            units: chain.units,
            whole: chain.links.len() as u32,
            parent,
            links: new.len(),
        });
    }

    /// Whether it says more than what all have just heard of this worker: a page that is new, or one that was not used there of
    /// late. Less than a page is told by itself only if there is nothing before it.
    fn is_worth_telling(&mut self, worker: u64, chain: &Chain<'_>, known: usize, next: u64) -> bool {
        let (pages, _) = chain.links.as_chunks::<PAGE>();
        let Some(last) = pages.last() else { return true };
        let key = hash::pair(worker, pages::id(last[PAGE - 1], chain.block));
        let of_late = |(_, told): (u64, u64)| next < told + TOLD_AGAIN;
        if known == pages.len() && self.told.peek(key).is_some_and(of_late) {
            return false;
        }
        self.told.put(key, (worker, next));
        true
    }

    /// Tells what is pending. `push` takes a record and says in which delta it goes.
    pub(crate) fn tell(&mut self, mut push: impl FnMut(&Record<'_>) -> u64) {
        let mut links = &self.pending_links[..];
        for pending in &self.pending {
            let (mut new, rest) = links.split_at(pending.links);
            links = rest;
            let (block, mut parent) = (pending.block, pending.parent);
            while new.len() > RECORD_LINKS_MAX {
                let (pages, rest) = new.split_at(RECORD_LINKS_MAX);
                push(&Record::Pages { block, parent, links: Links::Numbers(pages) });
                parent = pages::id(pages[RECORD_LINKS_MAX - 1], block);
                new = rest;
            }
            let seq = push(&Record::Seat(Seat {
                worker: pending.worker,
                unit: pending.unit,
                block,
                units: pending.units,
                whole: pending.whole,
                parent,
                links: Links::Numbers(new),
            }));
            if let Some(claim) = self.claims.get(pending.claim) {
                claim.told = seq;
            }
        }
        self.pending.clear();
        self.pending_links.clear();
    }

    /// Another router sent a prompt to a worker.
    pub(crate) fn hear(&mut self, teller: Teller, seat: &Seat<'_>, news: &mut Vec<PeerUpdate>) {
        if teller.source == Source::Memory && self.claims(seat) {
            return;
        }
        if let Err(Missing(page)) = self.unfold(seat, news) {
            self.parked.park(teller, seat, page);
        }
    }

    /// Another router told pages. What does not follow one that we know is of no use.
    pub(crate) fn hear_pages(&mut self, block: u32, parent: u64, links: Links<'_>) {
        let (mut parent, links) = (parent, links.to_vec());
        let (pages, _) = links.as_chunks::<PAGE>();
        if !self.pages.keep_path(parent, pages.len(), &mut self.path) {
            return;
        }
        for page in pages {
            let id = pages::id(page[PAGE - 1], block);
            self.pages.put(id, Page { parent, links: *page });
            parent = id;
        }
    }

    /// Tells parked prompts whose pages have come.
    pub(crate) fn settle(&mut self, now: Instant, news: &mut Vec<PeerUpdate>) {
        if !self.parked.waits_for(|page| self.pages.get(page).is_some()) {
            return;
        }
        for waiting in self.parked.take_all() {
            if let Err(Missing(page)) = self.unfold(&waiting.seat(), news) {
                self.parked.again(waiting, page, now);
            }
        }
    }

    /// What we lack, and of whom to ask it.
    pub(crate) fn wants(&mut self, now: Instant, wants: &mut Vec<Want>) {
        self.parked.wants(now, wants);
    }

    pub(crate) fn wants_by(&self) -> Option<Instant> {
        self.parked.wants_by()
    }

    /// We know nothing of this worker's cache any more.
    pub(crate) fn forget(&mut self, worker: u64) {
        self.claims.retain(|it| it.worker != worker);
        self.told.retain(|it| it.0 != worker);
    }

    /// How many of the chain's pages are known. From the end, where a conversation that grows has its last one.
    fn known(&self, chain: &Chain<'_>) -> usize {
        let (pages, _) = chain.links.as_chunks::<PAGE>();
        let is_known = |page: &[u64; PAGE]| self.pages.get(pages::id(page[PAGE - 1], chain.block)).is_some();
        pages.iter().rposition(is_known).map_or(0, |it| it + 1)
    }

    /// Puts the pages of a chain, of which the first so many are known. Returns the last of those, or none if there is
    /// no room.
    fn learn(&mut self, chain: &Chain<'_>, known: usize) -> Option<u64> {
        let (pages, _) = chain.links.as_chunks::<PAGE>();
        let number = |it: &[u64; PAGE]| pages::id(it[PAGE - 1], chain.block);
        let parent = known.checked_sub(1).map_or(0, |last| number(&pages[last]));
        if known == pages.len() && (parent == 0 || self.pages.is_young(parent)) {
            return Some(parent);
        }
        if !self.pages.keep_path(parent, pages.len() - known, &mut self.path) {
            return None;
        }
        let mut before = parent;
        for page in &pages[known..] {
            let id = number(page);
            self.pages.put(id, Page { parent: before, links: *page });
            before = id;
        }
        Some(parent)
    }

    /// Remembers that the worker was sent the chain, of which so many pages were known. Returns the claim's key.
    fn claim(&mut self, worker: u64, chain: &Chain<'_>, known: usize) -> u64 {
        let key = |link: u64| hash::pair(worker, pages::id(link, chain.block));
        let (pages, tail) = chain.links.as_chunks::<PAGE>();
        let last = chain.links.len() - 1;
        // The prompt before this one in a conversation ended with a known page, or less than a page later. Whoever missed
        // it asks us for what we told since, and is told this one in its place.
        let first = (known * PAGE).saturating_sub(1);
        let replaced = chain.links[first..last].iter().take(PAGE).chain([&chain.links[last]]);
        let told = replaced.filter_map(|&link| self.claims.remove(key(link))).map(|it| it.told).max();
        self.age += 1;
        let mut claim = Claim {
            worker,
            unit: chain.unit,
            block: chain.block,
            units: chain.units,
            whole: chain.links.len() as u32,
            page: pages.last().map_or(0, |it| pages::id(it[PAGE - 1], chain.block)),
            tail: [0; PAGE - 1],
            told: told.unwrap_or(0),
            age: self.age,
        };
        claim.tail[..tail.len()].copy_from_slice(tail);
        let key = key(chain.links[last]);
        self.claims.put(key, claim);
        key
    }

    fn mark(&mut self, claim: u64, told: u64) {
        if let Some(claim) = self.claims.get(claim) {
            claim.told = told;
        }
    }

    /// Whether we believe this already. Its last link says so; nothing has to be rebuilt for it.
    fn claims(&self, seat: &Seat<'_>) -> bool {
        let last = seat.links.last().or_else(|| Some(self.pages.get(seat.parent)?.links[PAGE - 1]));
        last.is_some_and(|it| self.claims.peek(hash::pair(seat.worker, pages::id(it, seat.block))).is_some())
    }

    /// Rebuilds the whole chain, believes it, and tells it.
    fn unfold(&mut self, seat: &Seat<'_>, news: &mut Vec<PeerUpdate>) -> Result<(), Missing> {
        let known = (seat.whole as usize - seat.links.len()) / PAGE;
        match self.pages.trace(seat.parent, known, &mut self.path) {
            Ok(()) => {}
            Err(Astray::Missing(page)) => return Err(Missing(page)),
            Err(Astray::TooFar) => {
                self.dropped += 1;
                return Ok(());
            }
        }
        let mut links = Vec::with_capacity(seat.whole as usize);
        let pages = self.path.iter().filter_map(|&it| self.pages.get(it));
        pages.for_each(|it| links.extend_from_slice(&it.links));
        // A page says nothing of chains in blocks of another size, or of another length.
        let is_its = links.last().is_none_or(|&it| pages::id(it, seat.block) == seat.parent);
        let fits = links.len() == known * PAGE && is_its;
        seat.links.append_to(&mut links);
        let chain = Chain { unit: seat.unit, block: seat.block, units: seat.units, links: &links };
        if !fits || self.learn(&chain, known).is_none() {
            self.dropped += 1;
            return Ok(());
        }
        self.claim(seat.worker, &chain, known);
        let &Seat { worker, unit, block, units, .. } = seat;
        news.push(PeerUpdate::Seated(Seated { worker, unit, block, units, links }));
        Ok(())
    }
}

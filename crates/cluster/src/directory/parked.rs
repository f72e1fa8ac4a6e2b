//! Prompts whose pages are unknown, kept until these come.
//!
//! The router that told one is asked for what is missing, once a second and a few times; then the prompt is given up.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use crate::directory::Teller;
use crate::frame::{Links, Seat};
use crate::row::{RouterId, Unit};
use maitre_base::Instant;

/// Most prompts that wait.
pub(crate) const PARKED_MAX: usize = 256;
/// Most links of all of them together: half a megabyte.
pub(crate) const PARKED_LINKS_MAX: usize = 65_536;
/// Chosen: longer than any answer takes.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often one page is asked for.
const TRIES: u32 = 3;

/// A page that we lack, of chains of such blocks, and whoever has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) router: RouterId,
    pub(crate) block: u32,
    pub(crate) page: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    teller: Teller,
    worker: u64,
    unit: Unit,
    block: u32,
    units: u64,
    whole: u32,
    parent: u64,
    links: Vec<u64>,
    missing: u64,
    tries: u32,
}

impl Waiting {
    pub(crate) fn seat(&self) -> Seat<'_> {
        Seat {
            worker: self.worker,
            unit: self.unit,
            block: self.block,
            units: self.units,
            whole: self.whole,
            parent: self.parent,
            links: Links::Numbers(&self.links),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Parked {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
    links: usize,
    dropped: u64,
}

impl Parked {
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn park(&mut self, teller: Teller, seat: &Seat<'_>, missing: u64) {
        let &Seat { worker, unit, block, units, whole, parent, links } = seat;
        let links = links.to_vec();
        self.push(Waiting { teller, worker, unit, block, units, whole, parent, links, missing, tries: 0 });
    }

    /// Whether one of the pages that are waited for has come.
    pub(crate) fn waits_for(&self, has_come: impl Fn(u64) -> bool) -> bool {
        self.waiting.iter().any(|it| has_come(it.missing))
    }

    pub(crate) fn take_all(&mut self) -> VecDeque<Waiting> {
        self.links = 0;
        mem::take(&mut self.waiting)
    }

    /// Waits on. If it is for another page than before, that is asked for at once.
    pub(crate) fn again(&mut self, mut waiting: Waiting, missing: u64, now: Instant) {
        if waiting.missing != missing {
            (waiting.missing, waiting.tries, waiting.teller.ask) = (missing, 0, now);
        }
        self.push(waiting);
    }

    /// When to ask next.
    pub(crate) fn wants_by(&self) -> Option<Instant> {
        self.waiting.iter().filter(|it| it.tries < TRIES).map(|it| it.teller.ask).min()
    }

    /// What to ask for now: each page once. Gives up what was asked for often enough.
    pub(crate) fn wants(&mut self, now: Instant, wants: &mut Vec<Want>) {
        let before = self.waiting.len();
        self.waiting.retain(|it| it.teller.ask > now || it.tries < TRIES);
        self.dropped += (before - self.waiting.len()) as u64;
        self.links = self.waiting.iter().map(|it| it.links.len()).sum();
        for waiting in self.waiting.iter_mut().filter(|it| it.teller.ask <= now) {
            waiting.tries += 1;
            waiting.teller.ask = now + ASK_AGAIN;
            let want = Want { router: waiting.teller.router, block: waiting.block, page: waiting.missing };
            if !wants.contains(&want) {
                wants.push(want);
            }
        }
    }

    fn push(&mut self, waiting: Waiting) {
        self.links += waiting.links.len();
        self.waiting.push_back(waiting);
        while self.waiting.len() > PARKED_MAX || self.links > PARKED_LINKS_MAX {
            let Some(oldest) = self.waiting.pop_front() else {
                return;
            };
            self.links -= oldest.links.len();
            self.dropped += 1;
        }
    }
}

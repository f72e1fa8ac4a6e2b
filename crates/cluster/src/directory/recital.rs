//! The directory told to others, so that it stands for itself: pages, and then claims from the oldest on.

use crate::directory::pages::{PATH_MAX, Page};
use crate::directory::{CacheDirectory, Claim};
use crate::frame::{Links, PAGE, RECORD_LINKS_MAX, Record, Seat, UNFOLD_MAX};
use maitre_base::hash::NumberMap;
use std::hash::BuildHasherDefault;

/// Most links that all claims told at once unfold to. Each is news to whoever joins, who has to take it in.
const RECITAL_LINKS_MAX: usize = 128 * UNFOLD_MAX;
/// What a claim without its links costs on the wire, at most, and the run of pages before it.
const CLAIM_BYTES: usize = 80;

/// Which claims are told, and how much of them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope {
    /// Whoever made them.
    All,
    /// Those that we told after this delta.
    OursSince(u64),
}

impl CacheDirectory {
    /// Tells claims within so many bytes, the newest if they do not all fit: first their pages, then the claims from the
    /// oldest on.
    pub(crate) fn recite(&self, scope: Scope, bytes_max: usize, mut push: impl FnMut(&Record<'_>)) {
        let mut run = Run::new(self, bytes_max);
        let (mut bytes, mut unfolded, mut chosen) = (0, 0, Vec::new());
        for claim in self.newest_first(scope) {
            if !run.gather(claim.page) {
                // Its pages made way. It will too.
                continue;
            }
            bytes += CLAIM_BYTES + 8 * claim.tail().len() + run.bytes();
            unfolded += claim.whole as usize;
            if bytes > bytes_max || unfolded > RECITAL_LINKS_MAX {
                break;
            }
            run.tell(claim.block, &mut push);
            chosen.push(claim);
        }
        for claim in chosen.iter().rev() {
            push(&Record::Seat(Seat {
                worker: claim.worker,
                unit: claim.unit,
                block: claim.block,
                units: claim.units,
                whole: claim.whole,
                parent: claim.page,
                links: Links::Numbers(claim.tail()),
            }));
        }
    }

    /// Tells the pages from the root to each of these, none twice. Those we do not have are left out.
    pub(crate) fn answer(&self, wanted: &[(u32, u64)], bytes_max: usize, mut push: impl FnMut(&Record<'_>)) {
        let (mut run, mut bytes) = (Run::new(self, bytes_max), 0);
        for &(block, page) in wanted {
            if run.gather(page) && bytes + run.bytes() <= bytes_max {
                bytes += run.bytes();
                run.tell(block, &mut push);
            }
        }
    }

    fn newest_first(&self, scope: Scope) -> impl Iterator<Item = &Claim> {
        let since = match scope {
            Scope::All => None,
            Scope::OursSince(since) => Some(since),
        };
        let claims =
            self.claims.iter().map(|(_, it)| it).filter(|it| since.is_none_or(|since| it.told > since));
        // By a copy of the ages: the claims lie all over the memory.
        let mut claims: Vec<(u64, &Claim)> = claims.map(|it| (it.age, it)).collect();
        claims.sort_unstable_by_key(|it| std::cmp::Reverse(it.0));
        claims.into_iter().map(|it| it.1)
    }
}

/// Pages told so far, and those about to be.
struct Run<'a> {
    directory: &'a CacheDirectory,
    told: NumberMap<()>,
    pages: Vec<(u64, &'a Page)>,
    links: Vec<u64>,
}

impl<'a> Run<'a> {
    fn new(directory: &'a CacheDirectory, bytes_max: usize) -> Run<'a> {
        // Room for all from the start, and each page looked up once: a full directory took 190 ms without either, 63 with both.
        let pages_max = directory.pages.len().min(bytes_max / (8 * PAGE));
        let told = NumberMap::with_capacity_and_hasher(pages_max, BuildHasherDefault::default());
        Run { directory, told, pages: Vec::new(), links: Vec::new() }
    }

    /// Finds the pages up to this one that were not told. Whether they are all there.
    fn gather(&mut self, last: u64) -> bool {
        self.pages.clear();
        let mut id = last;
        while id != 0 && !self.told.contains_key(&id) {
            let Some(page) = self.directory.pages.get(id).filter(|_| self.pages.len() < PATH_MAX) else {
                return false;
            };
            self.pages.push((id, page));
            id = page.parent;
        }
        self.pages.reverse();
        true
    }

    fn bytes(&self) -> usize {
        8 * PAGE * self.pages.len()
    }

    /// Tells what was gathered.
    fn tell(&mut self, block: u32, push: &mut impl FnMut(&Record<'_>)) {
        for run in self.pages.chunks(RECORD_LINKS_MAX / PAGE) {
            self.links.clear();
            run.iter().for_each(|it| self.links.extend_from_slice(&it.1.links));
            push(&Record::Pages { block, parent: run[0].1.parent, links: Links::Numbers(&self.links) });
        }
        self.told.extend(self.pages.drain(..).map(|it| (it.0, ())));
    }
}

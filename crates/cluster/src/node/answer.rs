//! What we ask of others, and what we answer them.
//!
//! Answers go to everybody, so what several ask at once is told once, and not again right away: whoever asked in the
//! meantime has heard it. The book is sent over several flushes, because a transport that gets too much at once
//! drops the oldest.

use std::time::Duration;

use crate::directory::recital::Scope;
use crate::frame::write::{self, Sheet};
use crate::frame::{PARTS_MAX, Part, Record, Since};
use crate::node::Node;
use crate::row::RouterId;
use maitre_base::Instant;

/// How long after asking for a router's rows we ask again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often our rows are told as a whole, at most.
const ROWS_GAP: Duration = Duration::from_millis(100);
/// How often the book is told, at most.
const BOOK_GAP: Duration = Duration::from_millis(500);
/// Most bytes of the book that are told.
const SNAPSHOT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most bytes of chains that are told to one who missed some.
const CHAINS_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of pages told in one flush.
const PAGES_BYTES_MAX: usize = 1024 * 1024;
/// Frames of the book in one flush. Chosen, by sums: as large as it may be, the book is out in a third of a second, which
/// is before it is told again; and a backlog of 4 MB to each of ten others behind a gigabit holds what is not sent yet.
const BOOK_FRAMES: usize = 2;
/// Most pages that others want, until the next flush.
const WANTED_MAX: usize = 256;

impl Node {
    /// All our rows and what we know of caches, as frames that stand for themselves.
    pub fn snapshot(&mut self, _now: Instant) -> Vec<Vec<u8>> {
        let mut frames = self.rows(Since { rows: 0, chains: self.seq });
        frames.extend(self.recital());
        frames
    }

    /// Takes note that somebody lacks rows of ours.
    pub(super) fn asked_for_rows(&mut self, since: Since) {
        let asked = self.asked.rows.get_or_insert(since);
        asked.rows = asked.rows.min(since.rows);
        asked.chains = asked.chains.min(since.chains);
    }

    pub(super) fn asked_for_book(&mut self) {
        self.asked.wants_book = true;
    }

    pub(super) fn asked_for_page(&mut self, block: u32, page: u64) {
        let is_new = self.directory.has_page(page) && !self.asked.pages.contains(&(block, page));
        if is_new && self.asked.pages.len() < WANTED_MAX {
            self.asked.pages.push((block, page));
        }
    }

    /// Whether there is something to ask.
    pub(super) fn asks(&self, now: Instant) -> bool {
        let is_torn = self.view.live().any(|it| it.stream.is_torn() && it.stream.ask <= now);
        is_torn || self.directory.wants_by().is_some_and(|it| it <= now)
    }

    /// Whether there is something to answer.
    pub(super) fn answers(&self, now: Instant) -> bool {
        !self.asked.pages.is_empty()
            || !self.asked.book.is_empty()
            || self.asked.rows.is_some() && is_over(self.asked.rows_told, ROWS_GAP, now)
            || self.asked.wants_book && is_over(self.asked.book_told, BOOK_GAP, now)
    }

    /// Asks for what we lack, and sends the pages that others do.
    pub(super) fn ask(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        let mut sheets = Sheets::default();
        for router in self.view.live_mut() {
            let (upto, chains) = (router.stream.upto(), router.chains);
            if router.stream.is_torn() && router.stream.ask <= now {
                router.stream.ask = now + ASK_AGAIN;
                self.repairs += 1;
                let since = Since { rows: upto, chains: chains.max(upto) };
                sheets.push(&Record::Resync { router: router.peer.id, since });
            }
        }
        let mut wants = Vec::new();
        self.directory.wants(now, &mut wants);
        for want in wants {
            sheets.push(&Record::Want { router: want.router, block: want.block, page: want.page });
        }
        let wanted = std::mem::take(&mut self.asked.pages);
        self.directory.answer(&wanted, PAGES_BYTES_MAX, |record| sheets.push(record));
        let head = self.head();
        frames.extend(sheets.0.iter_mut().map(|sheet| write::aside(&head, sheet)));
    }

    /// Tells our rows and the book if somebody asked for them.
    pub(super) fn answer(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        if is_over(self.asked.rows_told, ROWS_GAP, now)
            && let Some(since) = self.asked.rows.take()
        {
            self.asked.rows_told = Some(now);
            frames.extend(self.rows(since));
        }
        if self.asked.wants_book && is_over(self.asked.book_told, BOOK_GAP, now) {
            (self.asked.wants_book, self.asked.book_told) = (false, Some(now));
            // What is left of an earlier telling is part of this one.
            self.asked.book = self.recital().into();
        }
        let count = self.asked.book.len().min(BOOK_FRAMES);
        frames.extend(self.asked.book.drain(..count));
    }

    /// Our rows as of the last delta, and chains that we told after `since.chains`.
    fn rows(&mut self, since: Since) -> Vec<Vec<u8>> {
        let mut sheets = Sheets::default();
        self.own.recite(since.rows, |record| sheets.push(record));
        if since.chains < self.seq {
            let scope = Scope::OursSince(since.chains);
            self.directory.recite(scope, CHAINS_BYTES_MAX, |record| sheets.push(record));
        }
        let (head, edition) = (self.head(), self.next_edition());
        let name = self.name.as_str();
        sheets.finish(edition, |part, sheet| {
            let name = if part.index == 0 { name } else { "" };
            write::snapshot(&head, part, since, name, sheet)
        })
    }

    /// The book.
    fn recital(&mut self) -> Vec<Vec<u8>> {
        let mut sheets = Sheets::default();
        self.directory.recite(Scope::All, SNAPSHOT_BYTES_MAX, |record| sheets.push(record));
        let (head, edition) = (self.head(), self.next_edition());
        let routers: Vec<RouterId> = self.view.live().map(|it| it.peer.id).collect();
        sheets.finish(edition, |part, sheet| {
            let routers = if part.index == 0 { &routers[..] } else { &[] };
            write::book(&head, part, routers, sheet)
        })
    }

    fn next_edition(&mut self) -> u64 {
        self.asked.edition += 1;
        self.asked.edition
    }
}

fn is_over(told: Option<Instant>, gap: Duration, now: Instant) -> bool {
    told.is_none_or(|it| now.since(it) >= gap)
}

/// Records over as many frames as they need.
#[derive(Default)]
struct Sheets(Vec<Sheet>);

impl Sheets {
    fn push(&mut self, record: &Record<'_>) {
        if self.0.last_mut().is_none_or(|sheet| !sheet.takes(record)) {
            let mut sheet = Sheet::default();
            sheet.takes(record);
            self.0.push(sheet);
        }
    }

    /// The frames of one edition: at least one, so that who asked knows that this is all.
    fn finish(mut self, edition: u64, mut frame: impl FnMut(Part, &mut Sheet) -> Vec<u8>) -> Vec<Vec<u8>> {
        if self.0.is_empty() {
            self.0.push(Sheet::default());
        }
        debug_assert!(self.0.len() <= PARTS_MAX as usize, "bounded by what is recited");
        let count = self.0.len() as u32;
        let parts = (0..count).map(|index| Part { edition, index, count });
        parts.zip(&mut self.0).map(|(part, sheet)| frame(part, sheet)).collect()
    }
}

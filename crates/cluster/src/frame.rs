//! Frames: what routers tell each other, as bytes.
//!
//! A format of our own, because it is small: numbers are varints, hashes are eight bytes, and the keys of workers and
//! models stand once at the head of a frame, so that a record names them in a byte. A frame is parsed as a whole before
//! anything of it is believed: half a frame changes nothing. Nothing is allocated by a length that was not checked
//! against the bytes there are.
//!
//! Left out: secrecy and authenticity, which the transport has.

pub(crate) mod read;
pub(crate) mod write;

#[cfg(test)]
pub(crate) mod tests;

use crate::row::{Facts, Incarnation, Load, RouterId, Spent, Unit};

pub(crate) const MAGIC: [u8; 2] = *b"Mr";
/// Of the language. Routers of another do not understand each other, and say so.
pub(crate) const VERSION: u8 = 1;
/// Most bytes of a frame.
pub(crate) const FRAME_MAX: usize = 256 * 1024;
/// Most bytes of a router's name.
pub(crate) const NAME_MAX: usize = 128;
/// Most routers of a cluster, we included.
pub(crate) const ROUTERS_MAX: usize = 64;
/// Most links of a chain. Chosen: two million tokens in blocks of sixteen.
pub(crate) const LINKS_MAX: usize = 131_072;
/// Most links that the chains of one frame unfold to, where each stands for all its pages. The hearer holds them at
/// once, and whoever hears the news does so behind a lock; twice this is refused.
pub(crate) const UNFOLD_MAX: usize = LINKS_MAX;
/// Most links in one record; a longer chain is told as pages first.
pub(crate) const RECORD_LINKS_MAX: usize = 16_384;
/// Links in a page. Chosen: a conversation grows by some blocks a turn, and what fills no page is told again each turn.
pub(crate) const PAGE: usize = 8;
/// Most frames of one snapshot.
pub(crate) const PARTS_MAX: u32 = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) router: RouterId,
    pub(crate) incarnation: Incarnation,
    /// The number of this delta; in other frames, that of the last one sent before.
    pub(crate) seq: u64,
    /// The sender's Lamport clock.
    pub(crate) stamp: u64,
    /// Whether the sender has heard what others know.
    pub(crate) is_warm: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) head: Head,
    pub(crate) body: Body<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body<'a> {
    /// What changed.
    Delta(Vec<Record<'a>>),
    /// A sign of life.
    Beat(Beat<'a>),
    /// Asks the others for what they know.
    Hello(Hello<'a>),
    /// The sender's rows are no longer its own.
    Bye,
    /// All rows of the sender as of `head.seq`.
    Snapshot { part: Part, since: Since, name: &'a str, records: Vec<Record<'a>> },
    /// What the sender believes of caches, whoever told it. The first part names the routers that it hears.
    CacheDirectory { part: Part, routers: Vec<RouterId>, records: Vec<Record<'a>> },
    /// What is asked of others, and pages they asked for.
    Aside(Vec<Record<'a>>),
}

/// What a snapshot leaves out: that which was told up to these deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// Of pins and of what tenants spent. Rows of workers are always there.
    pub(crate) rows: u64,
    pub(crate) chains: u64,
}

/// Which part of how many, and of which snapshot: a later one has a larger edition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) edition: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beat<'a> {
    pub(crate) name: &'a str,
    pub(crate) number: u64,
    pub(crate) served: u64,
    pub(crate) open: u32,
    pub(crate) echoes: Vec<Echo>,
}

/// The last beat heard of another router, and how long ago that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) router: RouterId,
    pub(crate) number: u64,
    pub(crate) held_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello<'a> {
    pub(crate) name: &'a str,
    pub(crate) attempt: u32,
    pub(crate) wants_book: bool,
    /// Whose rows the sender has already, and which life of theirs.
    pub(crate) has: Vec<(RouterId, Incarnation)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Record<'a> {
    Load {
        worker: u64,
        load: Load,
    },
    Facts {
        worker: u64,
        facts: Facts,
    },
    /// The sender no longer knows the worker.
    Gone {
        worker: u64,
    },
    Pin {
        model: u64,
        session: u64,
        worker: u64,
        stamp: u64,
    },
    Spent {
        model: u64,
        tenant: u64,
        /// The delta that told this row first: a row that was forgotten and begun anew is known by it.
        born: u64,
        total: Spent,
    },
    Seat(Seat<'a>),
    /// Pages that follow each other, the first of them `parent`.
    Pages {
        block: u32,
        parent: u64,
        links: Links<'a>,
    },
    /// Tell your rows again.
    Resync {
        router: RouterId,
        since: Since,
    },
    /// Tell the pages from the root to this one.
    Want {
        router: RouterId,
        block: u32,
        page: u64,
    },
}

/// A prompt that was sent to a worker: a page that both sides know, and the links after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seat<'a> {
    pub(crate) worker: u64,
    pub(crate) unit: Unit,
    pub(crate) block: u32,
    pub(crate) units: u64,
    /// Links of the whole chain.
    pub(crate) whole: u32,
    /// 0 if the links begin at the root.
    pub(crate) parent: u64,
    pub(crate) links: Links<'a>,
}

/// Links as they lie in memory, or as they came.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Links<'a> {
    Numbers(&'a [u64]),
    Bytes(&'a [[u8; 8]]),
}

impl Links<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Links::Numbers(numbers) => numbers.len(),
            Links::Bytes(bytes) => bytes.len(),
        }
    }

    pub(crate) fn last(&self) -> Option<u64> {
        match self {
            Links::Numbers(numbers) => numbers.last().copied(),
            Links::Bytes(bytes) => bytes.last().map(|&it| u64::from_le_bytes(it)),
        }
    }

    pub(crate) fn append_to(&self, links: &mut Vec<u64>) {
        match self {
            Links::Numbers(numbers) => links.extend_from_slice(numbers),
            Links::Bytes(bytes) => links.extend(bytes.iter().map(|&it| u64::from_le_bytes(it))),
        }
    }

    pub(crate) fn to_vec(self) -> Vec<u64> {
        let mut links = Vec::with_capacity(self.len());
        self.append_to(&mut links);
        links
    }
}

impl PartialEq for Links<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.to_vec() == other.to_vec()
    }
}

/// What a frame is, on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Delta = 1,
    Beat = 2,
    Hello = 3,
    Bye = 4,
    Snapshot = 5,
    CacheDirectory = 6,
    Aside = 7,
}

/// In the byte of the kind: the sender is warm.
pub(crate) const WARM: u8 = 0x80;

/// What a record is, on the wire.
pub(crate) mod tag {
    pub(crate) const LOAD: u8 = 1;
    pub(crate) const FACTS: u8 = 2;
    pub(crate) const GONE: u8 = 3;
    pub(crate) const PIN: u8 = 4;
    pub(crate) const SPENT: u8 = 5;
    pub(crate) const SEAT: u8 = 6;
    pub(crate) const PAGES: u8 = 7;
    pub(crate) const RESYNC: u8 = 8;
    pub(crate) const WANT: u8 = 9;
}

impl Record<'_> {
    /// Whether a record of this kind may stand in such a frame.
    pub(crate) fn belongs_in(&self, kind: Kind) -> bool {
        match self {
            Record::Load { .. } | Record::Facts { .. } | Record::Pin { .. } | Record::Spent { .. } => {
                matches!(kind, Kind::Delta | Kind::Snapshot)
            }
            Record::Gone { .. } => kind == Kind::Delta,
            Record::Seat(_) => matches!(kind, Kind::Delta | Kind::Snapshot | Kind::CacheDirectory),
            Record::Pages { .. } => {
                matches!(kind, Kind::Delta | Kind::Snapshot | Kind::CacheDirectory | Kind::Aside)
            }
            Record::Resync { .. } | Record::Want { .. } => kind == Kind::Aside,
        }
    }
}

//! Frames: the wire format between routers.
//!
//! The format is our own because it is small: numbers are varints, hashes are eight bytes, and the keys of workers
//! and models are listed once per frame, so that a record names them in one byte. A frame is parsed completely before
//! any record is applied: a truncated frame changes nothing. A length is checked against the remaining bytes before
//! it allocates memory.
//!
//! Left out: encryption and authentication, which the transport does.

pub(crate) mod read;
pub(crate) mod write;

#[cfg(test)]
pub(crate) mod tests;

use crate::row::{Chain, Incarnation, RouterId, Spent, Unit, WorkerFacts};
use maitre_base::PromisedWork;

pub(crate) const MAGIC: [u8; 2] = *b"Mr";
/// Version of the wire format. Routers reject frames of other versions and log it.
pub(crate) const VERSION: u8 = 2;
/// Maximum bytes per frame.
pub(crate) const FRAME_MAX: usize = 256 * 1024;
/// Maximum bytes of a router's name.
pub(crate) const NAME_MAX: usize = 128;
/// Maximum routers per cluster, this one included.
pub(crate) const ROUTERS_MAX: usize = 64;
/// Maximum links per chain. Chosen: two million tokens in blocks of sixteen.
pub(crate) const LINKS_MAX: usize = 131_072;
/// Maximum links that the placements of one frame expand to, segments included. The receiver holds them at once and
/// applies them under a lock. A frame with twice as many is rejected.
pub(crate) const EXPANDED_LINKS_MAX: usize = LINKS_MAX;
/// Maximum links per record; the start of a longer chain is sent as segments first.
pub(crate) const RECORD_LINKS_MAX: usize = 16_384;
/// Links per segment. Chosen: a conversation grows by some blocks per turn, and links that fill no segment are sent
/// again each turn.
pub(crate) const SEGMENT_LINKS: usize = 8;
/// Maximum frames per snapshot.
pub(crate) const PARTS_MAX: u32 = 1_024;

/// Why a received frame was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("not a Maitre cluster frame")]
    Foreign,
    #[error("cluster protocol version {theirs}; this router speaks version {ours}")]
    Version { theirs: u8, ours: u8 },
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    #[error("another router uses our name, \"{0}\"; give each its own (cluster.name)")]
    NameTaken(String),
    #[error(
        "there are more than {ROUTERS_MAX} routers, and this one does not count what those beyond do; run fewer, or give \
         each part of the fleet routers of its own"
    )]
    TooManyRouters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) router: RouterId,
    pub(crate) incarnation: Incarnation,
    /// The number of this delta; in other frames, the number of the last delta sent.
    pub(crate) seq: u64,
    /// The sender's Lamport clock.
    pub(crate) stamp: u64,
    /// Whether the sender has applied every peer's snapshot.
    pub(crate) is_synced: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame<'a> {
    pub(crate) head: Head,
    pub(crate) body: Body<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body<'a> {
    /// Rows that changed.
    Delta(Vec<Record<'a>>),
    /// Liveness, counters and the latest delta number.
    Heartbeat(Heartbeat<'a>),
    /// Asks peers for their snapshots.
    Hello(Hello<'a>),
    /// The sender shuts down; its rows are void.
    Leave,
    /// All rows of the sender as of `head.seq`.
    Snapshot { part: Part, since: Since, name: &'a str, records: Vec<Record<'a>> },
    /// The sender's cache directory, including what it learned from peers. The first part names the live routers.
    CacheDirectory { part: Part, routers: Vec<RouterId>, records: Vec<Record<'a>> },
    /// Requests for missing data, and segments that peers requested.
    Repair(Vec<Record<'a>>),
}

/// What a snapshot leaves out: data published up to these deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// For pins and accounts. Worker rows are always included.
    pub(crate) rows: u64,
    pub(crate) chains: u64,
}

/// A frame's position in its snapshot. A later snapshot has a larger edition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) edition: u64,
    pub(crate) index: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat<'a> {
    pub(crate) name: &'a str,
    pub(crate) number: u64,
    pub(crate) served: u64,
    pub(crate) in_flight: u32,
    pub(crate) echoes: Vec<Echo>,
}

/// The last heartbeat received from a peer, and how long ago.
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
    pub(crate) wants_directory: bool,
    /// Routers whose rows the sender already has, with their incarnations.
    pub(crate) has: Vec<(RouterId, Incarnation)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Record<'a> {
    Load {
        worker: u64,
        load: PromisedWork,
    },
    Facts {
        worker: u64,
        facts: WorkerFacts,
    },
    /// The sender no longer knows the worker.
    Removed {
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
        /// The first delta that carried this row. It tells a new account from one that was evicted and started again.
        first_delta: u64,
        total: Spent,
    },
    Placement(EncodedPlacement<'a>),
    /// Consecutive segments; the first one follows `parent`.
    Segments {
        block: u32,
        parent: u64,
        links: Links<'a>,
    },
    /// Asks this router to send its rows again.
    Resync {
        router: RouterId,
        since: Since,
    },
    /// Asks this router for the segments from the root to this one.
    WantSegments {
        router: RouterId,
        block: u32,
        segment: u64,
    },
}

/// A chain that was sent to a worker, without its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedChain {
    pub(crate) worker: u64,
    pub(crate) unit: Unit,
    pub(crate) block: u32,
    /// Units of the whole prompt.
    pub(crate) units: u64,
    /// Links of the whole chain.
    pub(crate) total_links: u32,
}

impl PlacedChain {
    pub(crate) fn new(worker: u64, chain: &Chain<'_>) -> PlacedChain {
        let &Chain { unit, block, units, links } = chain;
        PlacedChain { worker, unit, block, units, total_links: links.len() as u32 }
    }
}

/// A prompt that was sent to a worker: a segment that both sides know, and the links after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EncodedPlacement<'a> {
    pub(crate) placed: PlacedChain,
    /// 0 if the links begin at the root.
    pub(crate) parent: u64,
    pub(crate) links: Links<'a>,
}

/// Links in memory, or as bytes of a received frame.
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

/// The frame kind on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    Delta = 1,
    Heartbeat = 2,
    Hello = 3,
    Leave = 4,
    Snapshot = 5,
    CacheDirectory = 6,
    Repair = 7,
}

/// Flag in the kind byte: the sender is synced.
pub(crate) const SYNCED: u8 = 0x80;

/// Record tags on the wire.
pub(crate) mod tag {
    pub(crate) const LOAD: u8 = 1;
    pub(crate) const FACTS: u8 = 2;
    pub(crate) const REMOVED: u8 = 3;
    pub(crate) const PIN: u8 = 4;
    pub(crate) const SPENT: u8 = 5;
    pub(crate) const PLACEMENT: u8 = 6;
    pub(crate) const SEGMENTS: u8 = 7;
    pub(crate) const RESYNC: u8 = 8;
    pub(crate) const WANT_SEGMENTS: u8 = 9;
}

impl Record<'_> {
    /// Whether a record of this kind is allowed in such a frame.
    pub(crate) fn belongs_in(&self, kind: FrameKind) -> bool {
        match self {
            Record::Load { .. } | Record::Facts { .. } | Record::Pin { .. } | Record::Spent { .. } => {
                matches!(kind, FrameKind::Delta | FrameKind::Snapshot)
            }
            Record::Removed { .. } => kind == FrameKind::Delta,
            Record::Placement(_) => {
                matches!(kind, FrameKind::Delta | FrameKind::Snapshot | FrameKind::CacheDirectory)
            }
            Record::Segments { .. } => {
                matches!(
                    kind,
                    FrameKind::Delta | FrameKind::Snapshot | FrameKind::CacheDirectory | FrameKind::Repair
                )
            }
            Record::Resync { .. } | Record::WantSegments { .. } => kind == FrameKind::Repair,
        }
    }
}

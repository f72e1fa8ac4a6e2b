//! Decodes KV cache events: the payload of one message in, stored and removed blocks out.
//!
//! vLLM and SGLang publish the same three events, encoded in a dozen ways over the years: as arrays that grew
//! at the end, as maps with a `type`, with names that are signed, unsigned or bytes. All are decoded into one
//! form, event by event, so callers do not need the engine's version.
//!
//! A batch is flat: all names in one vector, all tokens in another, and each event is a set of ranges in
//! them. It is reused, so in a steady state nothing is allocated. It never exceeds a few tens of bytes per
//! byte of payload, whatever lengths the payload claims.
//!
//! Some events are skipped and counted: events of an unknown type, and blocks of layers with a window or a state, whose
//! prefix the engine can no longer continue. Tokens are customer data: never print a batch.

mod draft;
mod msgpack;
#[cfg(test)]
mod tests;

use maitre_base::{KvEvent, StoredBlocks, Tier};

use crate::kv::draft::Draft;
use crate::kv::msgpack::{Head, Reader};

/// Maximum payload size. Chosen: a step of a million tokens takes 5 MB.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;

/// How many names, tokens or events a batch keeps allocated between payloads. Chosen: those of a large step,
/// 4 MB of tokens.
const KEPT_MAX: usize = 1 << 20;

/// The events of one message.
#[derive(Default)]
pub struct EventBatch {
    unix_seconds: f64,
    rank: Option<u32>,
    skipped: Skipped,
    records: Vec<EventRecord>,
    names: Vec<u64>,
    tokens: Vec<u32>,
    extras: Vec<u64>,
    texts: String,
}

/// How many events of a batch were skipped, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Events of an unknown type.
    pub unknown: u32,
    /// Blocks of layers that do not form a prefix.
    pub groups: u32,
}

/// Which groups of layers an engine has declared to be full attention.
///
/// Models that mix kinds of attention report each block once per group of layers. A stored event names the
/// group's kind, but a removed event only its number. So the kinds are remembered, separately for each
/// publisher, and reset when the publisher restarts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups {
    /// One bit for each group whose kind is known.
    known: u64,
    full: u64,
    /// Whether any kind was declared.
    declares: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("decode kv events: {what} at byte {at}")]
pub struct Malformed {
    pub at: usize,
    pub what: &'static str,
}

/// Decodes the payload of one message. On an error the batch is empty: half a message is useless.
pub fn decode(payload: &[u8], groups: &mut Groups, batch: &mut EventBatch) -> Result<(), Malformed> {
    batch.clear();
    read_batch(payload, groups, batch).inspect_err(|_| batch.clear())
}

impl EventBatch {
    pub fn events(&self) -> impl Iterator<Item = KvEvent<'_>> {
        self.events_from(0)
    }

    /// The events without the first `skipped`, which must not be more than there are.
    pub fn events_from(&self, skipped: usize) -> impl Iterator<Item = KvEvent<'_>> {
        self.records[skipped..].iter().map(|record| match *record {
            EventRecord::Stored(stored) => KvEvent::Stored(StoredBlocks {
                names: stored.names.of(&self.names),
                parent: stored.parent,
                tokens: stored.tokens.of(&self.tokens),
                block_tokens: stored.block_tokens,
                adapter: stored.adapter.map(|it| it.of_text(&self.texts)),
                salt: stored.salt.map(|it| it.of_text(&self.texts)),
                extras: stored.extras.of(&self.extras),
                tier: stored.tier,
            }),
            EventRecord::Removed { names, tier } => KvEvent::Removed { names: names.of(&self.names), tier },
            EventRecord::Cleared => KvEvent::Cleared,
        })
    }

    /// When the engine created the batch, by its own wall clock.
    pub fn unix_seconds(&self) -> f64 {
        self.unix_seconds
    }

    /// The data-parallel rank, if the engine sends it.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    fn clear(&mut self) {
        (self.unix_seconds, self.rank, self.skipped) = (0.0, None, Skipped::default());
        self.texts.clear();
        self.texts.shrink_to(KEPT_MAX);
        empty(&mut self.records);
        empty(&mut self.names);
        empty(&mut self.tokens);
        empty(&mut self.extras);
    }
}

fn empty<T>(list: &mut Vec<T>) {
    list.clear();
    list.shrink_to(KEPT_MAX);
}

/// The largest group number that is tracked. Chosen: models have at most a handful.
const GROUPS_MAX: u64 = 64;

impl Groups {
    /// Records the kind that an engine declares for a group.
    fn declare(&mut self, group: u64, kind: &[u8]) {
        self.declares = true;
        let is_full = match kind {
            b"full_attention" | b"mla_attention" | b"sink_full_attention" => true,
            b"unknown" => return,
            _ => false,
        };
        self.note(group, is_full);
    }

    /// Records that a group of no declared kind leaves blocks out of its events. Full attention leaves out none.
    fn leaves_out(&mut self, group: u64) {
        self.note(group, false);
    }

    fn note(&mut self, group: u64, is_full: bool) {
        if group < GROUPS_MAX {
            self.known |= 1 << group;
            self.full = self.full & !(1 << group) | u64::from(is_full) << group;
        }
    }

    /// Whether blocks of this group form a prefix. vLLM 0.20 and 0.21 number groups in the order of their first layers, but
    /// declare no kinds: then all count, as in earlier versions, which do not number them. A block is known until every
    /// group has removed it.
    fn is_full(&self, group: u64) -> bool {
        if group < GROUPS_MAX && self.known >> group & 1 == 1 {
            self.full >> group & 1 == 1
        } else {
            group == 0 || !self.declares
        }
    }
}

#[derive(Clone, Copy)]
enum EventRecord {
    Stored(StoredRecord),
    Removed { names: Span, tier: Tier },
    Cleared,
}

#[derive(Clone, Copy)]
struct StoredRecord {
    names: Span,
    tokens: Span,
    extras: Span,
    adapter: Option<Span>,
    salt: Option<Span>,
    parent: Option<u64>,
    block_tokens: u32,
    tier: Tier,
}

/// A range of one of the flat vectors. None is longer than a few payloads, so 32 bits are enough.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    fn of<T>(self, all: &[T]) -> &[T] {
        &all[self.start as usize..self.end as usize]
    }

    fn of_text(self, all: &str) -> &str {
        &all[self.start as usize..self.end as usize]
    }
}

fn read_batch(payload: &[u8], groups: &mut Groups, batch: &mut EventBatch) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(reader.malformed("a payload past its bound"));
    }
    // The rank was added in vLLM 0.9.1; more fields may follow.
    let fields = reader.count()?;
    if fields < 2 {
        return Err(reader.malformed("fewer than two fields in a batch"));
    }
    batch.unix_seconds = match reader.head()? {
        Head::Float(seconds) => seconds,
        Head::Unsigned(seconds) => seconds as f64,
        _ => return Err(reader.malformed("no time of a batch")),
    };
    for _ in 0..reader.count()? {
        read_event(&mut reader, groups, batch)?;
    }
    if fields > 2 {
        batch.rank = if reader.nil() { None } else { Some(reader.u32()?) };
        reader.skip(fields - 3)?;
    }
    if !reader.is_at_end() {
        return Err(reader.malformed("more after the end"));
    }
    Ok(())
}

/// The layout of an event's fields, and how many are left to read.
#[derive(Clone, Copy)]
enum Layout {
    /// In the order of their declaration.
    Array(usize),
    /// Each field after its name.
    Map(usize),
}

fn read_event(reader: &mut Reader<'_>, groups: &mut Groups, batch: &mut EventBatch) -> Result<(), Malformed> {
    let (tag, layout) = match reader.head()? {
        Head::Array(count) if count > 0 => (reader.text()?, Layout::Array(count - 1)),
        Head::Map(count) => (find_type(*reader, count)?, Layout::Map(count)),
        _ => return Err(reader.malformed("no event")),
    };
    match tag {
        b"BlockStored" => Draft::read_stored(reader, layout, batch)?.finish_stored(groups, batch),
        b"BlockRemoved" => {
            Draft::read_removed(reader, layout, batch)?.finish_removed(groups, batch);
            Ok(())
        }
        b"AllBlocksCleared" => {
            batch.records.push(EventRecord::Cleared);
            skip_fields(reader, layout)
        }
        _ => {
            batch.skipped.unknown += 1;
            skip_fields(reader, layout)
        }
    }
}

/// The `type` of the event whose `count` pairs follow. In practice it comes first, but this is not
/// documented.
fn find_type(mut reader: Reader<'_>, count: usize) -> Result<&[u8], Malformed> {
    for _ in 0..count {
        match reader.text()? {
            b"type" => return reader.text(),
            _ => reader.skip(1)?,
        }
    }
    Err(reader.malformed("an event without a type"))
}

fn skip_fields(reader: &mut Reader<'_>, layout: Layout) -> Result<(), Malformed> {
    match layout {
        Layout::Array(left) => reader.skip(left),
        Layout::Map(left) => reader.skip(2 * left),
    }
}

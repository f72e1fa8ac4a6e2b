//! Encodes frames; `read` is the inverse.

use crate::frame::{
    EXPANDED_LINKS_MAX, EncodedPlacement, FRAME_MAX, FrameKind, Head, Heartbeat, Hello, Links, MAGIC, Part,
    PlacedChain, Record, SYNCED, Since, VERSION, tag,
};
use crate::row::{LinearFit, RouterId, Unit, Verdict, WorkerFacts};
use maitre_base::PromisedWork;
use maitre_base::hash::NumberMap;

/// Maximum bytes for keys and records. The rest of the frame is for the head (at most 44 bytes) and what follows it:
/// a name and numbers in a snapshot, or router ids in a directory snapshot (550 bytes).
const BUFFER_BYTES_MAX: usize = FRAME_MAX - 1_024;
/// Upper bound for a record without links: a load is five numbers and a key of its own.
const RECORD_BYTES: usize = 96;

/// The encoded records of one frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordBuffer {
    records: Vec<u8>,
    keys: Vec<u64>,
    key_indexes: NumberMap<u32>,
    count: u64,
    /// Links that the placements in it expand to.
    expanded_links: usize,
}

impl RecordBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() + 8 * self.keys.len()
    }

    /// Appends the record and returns true, unless the buffer is too full. An empty buffer accepts any record.
    pub(crate) fn try_push(&mut self, record: &Record<'_>) -> bool {
        let (links, total_links) = match record {
            Record::Placement(placement) => (placement.links.len(), placement.placed.total_links as usize),
            Record::Segments { links, .. } => (links.len(), 0),
            _ => (0, 0),
        };
        let is_too_long = self.bytes() + RECORD_BYTES + 8 * links > BUFFER_BYTES_MAX;
        if !self.is_empty() && (is_too_long || self.expanded_links + total_links > EXPANDED_LINKS_MAX) {
            return false;
        }
        self.expanded_links += total_links;
        self.count += 1;
        self.write(record);
        true
    }

    fn write(&mut self, record: &Record<'_>) {
        match *record {
            Record::Load { worker, load } => self.load(worker, &load),
            Record::Facts { worker, facts } => self.facts(worker, &facts),
            Record::Removed { worker } => {
                self.records.push(tag::REMOVED);
                self.key(worker);
            }
            Record::Pin { model, session, worker, stamp } => {
                self.records.push(tag::PIN);
                self.key(model);
                word(&mut self.records, session);
                self.key(worker);
                varint(&mut self.records, stamp);
            }
            Record::Spent { model, tenant, first_delta, total } => {
                self.records.push(tag::SPENT);
                self.key(model);
                word(&mut self.records, tenant);
                for number in [first_delta, total.requests, total.tokens] {
                    varint(&mut self.records, number);
                }
            }
            Record::Placement(placement) => self.placement(&placement),
            Record::Segments { block, parent, links } => {
                self.records.push(tag::SEGMENTS);
                varint(&mut self.records, u64::from(block));
                word(&mut self.records, parent);
                self.links(links);
            }
            Record::Resync { router, since } => {
                self.records.push(tag::RESYNC);
                word(&mut self.records, router.0);
                varint(&mut self.records, since.rows);
                varint(&mut self.records, since.chains);
            }
            Record::WantSegments { router, block, segment } => {
                self.records.push(tag::WANT_SEGMENTS);
                word(&mut self.records, router.0);
                varint(&mut self.records, u64::from(block));
                word(&mut self.records, segment);
            }
        }
    }

    fn load(&mut self, worker: u64, load: &PromisedWork) {
        self.records.push(tag::LOAD);
        self.key(worker);
        let PromisedWork { requests, prefilling, prefill, decode, context } = *load;
        let numbers = [u64::from(requests), u64::from(prefilling), prefill.tokens.0, prefill.attended];
        for number in numbers.into_iter().chain([decode.0, context.0]) {
            varint(&mut self.records, number);
        }
    }

    fn facts(&mut self, worker: u64, facts: &WorkerFacts) {
        self.records.push(tag::FACTS);
        self.key(worker);
        let verdict = match facts.verdict {
            Verdict::Healthy => 0,
            Verdict::Suspect => 1,
            Verdict::Ejected => 2,
        };
        self.records.push(verdict | u8::from(facts.rates.is_some()) << 4);
        if let Some((first, next)) = facts.rates {
            for LinearFit { base, slope } in [first, next] {
                self.records.extend_from_slice(&base.to_le_bytes());
                self.records.extend_from_slice(&slope.to_le_bytes());
            }
        }
    }

    fn placement(&mut self, placement: &EncodedPlacement<'_>) {
        self.records.push(tag::PLACEMENT);
        let PlacedChain { worker, unit, block, units, total_links } = placement.placed;
        self.key(worker);
        let unit = match unit {
            Unit::Tokens => 0,
            Unit::Words => 1,
        };
        self.records.push(unit | u8::from(placement.parent != 0) << 4);
        for number in [u64::from(block), units, u64::from(total_links)] {
            varint(&mut self.records, number);
        }
        if placement.parent != 0 {
            word(&mut self.records, placement.parent);
        }
        self.links(placement.links);
    }

    fn links(&mut self, links: Links<'_>) {
        varint(&mut self.records, links.len() as u64);
        match links {
            Links::Numbers(numbers) => numbers.iter().for_each(|&it| word(&mut self.records, it)),
            Links::Bytes(bytes) => self.records.extend_from_slice(bytes.as_flattened()),
        }
    }

    /// Writes the key's index in the key table.
    fn key(&mut self, key: u64) {
        let next = self.keys.len() as u32;
        let index = *self.key_indexes.entry(key).or_insert(next);
        if index == next {
            self.keys.push(key);
        }
        varint(&mut self.records, u64::from(index));
    }

    /// Appends keys and records to a frame and empties the buffer.
    fn drain(&mut self, frame: &mut Vec<u8>) {
        frame.reserve(self.bytes() + 8);
        varint(frame, self.keys.len() as u64);
        self.keys.drain(..).for_each(|it| word(frame, it));
        varint(frame, self.count);
        frame.append(&mut self.records);
        self.key_indexes.clear();
        (self.count, self.expanded_links) = (0, 0);
    }
}

pub(crate) fn delta(head: &Head, buffer: &mut RecordBuffer) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::Delta);
    buffer.drain(&mut frame);
    frame
}

pub(crate) fn repair(head: &Head, buffer: &mut RecordBuffer) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::Repair);
    buffer.drain(&mut frame);
    frame
}

pub(crate) fn snapshot(
    head: &Head,
    part: Part,
    since: Since,
    name: &str,
    buffer: &mut RecordBuffer,
) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::Snapshot);
    put_part(&mut frame, part);
    varint(&mut frame, since.rows);
    varint(&mut frame, since.chains);
    text(&mut frame, name);
    buffer.drain(&mut frame);
    frame
}

pub(crate) fn directory(head: &Head, part: Part, routers: &[RouterId], buffer: &mut RecordBuffer) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::CacheDirectory);
    put_part(&mut frame, part);
    varint(&mut frame, routers.len() as u64);
    routers.iter().for_each(|it| word(&mut frame, it.0));
    buffer.drain(&mut frame);
    frame
}

pub(crate) fn heartbeat(head: &Head, heartbeat: &Heartbeat<'_>) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::Heartbeat);
    text(&mut frame, heartbeat.name);
    for number in
        [heartbeat.number, heartbeat.served, u64::from(heartbeat.in_flight), heartbeat.echoes.len() as u64]
    {
        varint(&mut frame, number);
    }
    for echo in &heartbeat.echoes {
        word(&mut frame, echo.router.0);
        varint(&mut frame, echo.number);
        varint(&mut frame, echo.held_us);
    }
    frame
}

pub(crate) fn hello(head: &Head, hello: &Hello<'_>) -> Vec<u8> {
    let mut frame = begin(head, FrameKind::Hello);
    text(&mut frame, hello.name);
    varint(&mut frame, u64::from(hello.attempt));
    frame.push(u8::from(hello.wants_directory));
    varint(&mut frame, hello.has.len() as u64);
    for (router, incarnation) in &hello.has {
        word(&mut frame, router.0);
        varint(&mut frame, incarnation.0);
    }
    frame
}

pub(crate) fn leave(head: &Head) -> Vec<u8> {
    begin(head, FrameKind::Leave)
}

fn begin(head: &Head, kind: FrameKind) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend_from_slice(&MAGIC);
    frame.push(VERSION);
    frame.push(kind as u8 | if head.is_synced { SYNCED } else { 0 });
    word(&mut frame, head.router.0);
    for number in [head.incarnation.0, head.seq, head.stamp] {
        varint(&mut frame, number);
    }
    frame
}

fn put_part(frame: &mut Vec<u8>, part: Part) {
    for number in [part.edition, u64::from(part.index), u64::from(part.count)] {
        varint(frame, number);
    }
}

fn text(frame: &mut Vec<u8>, text: &str) {
    varint(frame, text.len() as u64);
    frame.extend_from_slice(text.as_bytes());
}

fn word(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

/// LEB128: seven bits per byte, lowest first; all but the last byte have the eighth bit set.
fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

//! Frames in the making. What is written here is what `read` reads.

use crate::frame::{
    Beat, FRAME_MAX, Head, Hello, Kind, Links, MAGIC, Part, Record, Seat, Since, UNFOLD_MAX, VERSION, WARM,
    tag,
};
use crate::row::{Facts, Fit, Load, RouterId, Unit, Verdict};
use maitre_base::hash::NumberMap;

/// Most bytes of the keys and records of a frame. What is left is for what stands before them: the head, 44 bytes at
/// most, and of a snapshot a name and numbers, or of a book routers, 550.
const SHEET_MAX: usize = FRAME_MAX - 1_024;
/// No record without links is longer: a load is five numbers and a key of its own.
const RECORD_BYTES: usize = 96;

/// The records of one frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet {
    records: Vec<u8>,
    keys: Vec<u64>,
    places: NumberMap<u32>,
    count: u64,
    /// Links that the chains on it stand for.
    unfolded: usize,
}

impl Sheet {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() + 8 * self.keys.len()
    }

    /// Writes the record, unless the sheet is too full for it. An empty one takes any.
    pub(crate) fn takes(&mut self, record: &Record<'_>) -> bool {
        let (links, whole) = match record {
            Record::Seat(seat) => (seat.links.len(), seat.whole as usize),
            Record::Pages { links, .. } => (links.len(), 0),
            _ => (0, 0),
        };
        let is_too_long = self.bytes() + RECORD_BYTES + 8 * links > SHEET_MAX;
        if !self.is_empty() && (is_too_long || self.unfolded + whole > UNFOLD_MAX) {
            return false;
        }
        self.unfolded += whole;
        self.count += 1;
        self.write(record);
        true
    }

    fn write(&mut self, record: &Record<'_>) {
        match *record {
            Record::Load { worker, load } => self.load(worker, &load),
            Record::Facts { worker, facts } => self.facts(worker, &facts),
            Record::Gone { worker } => {
                self.records.push(tag::GONE);
                self.key(worker);
            }
            Record::Pin { model, session, worker, stamp } => {
                self.records.push(tag::PIN);
                self.key(model);
                word(&mut self.records, session);
                self.key(worker);
                varint(&mut self.records, stamp);
            }
            Record::Spent { model, tenant, born, total } => {
                self.records.push(tag::SPENT);
                self.key(model);
                word(&mut self.records, tenant);
                for number in [born, total.requests, total.tokens] {
                    varint(&mut self.records, number);
                }
            }
            Record::Seat(seat) => self.seat(&seat),
            Record::Pages { block, parent, links } => {
                self.records.push(tag::PAGES);
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
            Record::Want { router, block, page } => {
                self.records.push(tag::WANT);
                word(&mut self.records, router.0);
                varint(&mut self.records, u64::from(block));
                word(&mut self.records, page);
            }
        }
    }

    fn load(&mut self, worker: u64, load: &Load) {
        self.records.push(tag::LOAD);
        self.key(worker);
        let Load { requests, prefilling, prefill_tokens, decode_tokens, context_tokens } = *load;
        for number in
            [u64::from(requests), u64::from(prefilling), prefill_tokens, decode_tokens, context_tokens]
        {
            varint(&mut self.records, number);
        }
    }

    fn facts(&mut self, worker: u64, facts: &Facts) {
        self.records.push(tag::FACTS);
        self.key(worker);
        let verdict = match facts.verdict {
            Verdict::Fit => 0,
            Verdict::Doubted => 1,
            Verdict::Out => 2,
        };
        self.records.push(verdict | u8::from(facts.rates.is_some()) << 4);
        if let Some((first, next)) = facts.rates {
            for Fit { base, slope } in [first, next] {
                self.records.extend_from_slice(&base.to_le_bytes());
                self.records.extend_from_slice(&slope.to_le_bytes());
            }
        }
    }

    fn seat(&mut self, seat: &Seat<'_>) {
        self.records.push(tag::SEAT);
        self.key(seat.worker);
        let unit = match seat.unit {
            Unit::Tokens => 0,
            Unit::Words => 1,
        };
        self.records.push(unit | u8::from(seat.parent != 0) << 4);
        for number in [u64::from(seat.block), seat.units, u64::from(seat.whole)] {
            varint(&mut self.records, number);
        }
        if seat.parent != 0 {
            word(&mut self.records, seat.parent);
        }
        self.links(seat.links);
    }

    fn links(&mut self, links: Links<'_>) {
        varint(&mut self.records, links.len() as u64);
        match links {
            Links::Numbers(numbers) => numbers.iter().for_each(|&it| word(&mut self.records, it)),
            Links::Bytes(bytes) => self.records.extend_from_slice(bytes.as_flattened()),
        }
    }

    /// The place of a key among those at the head.
    fn key(&mut self, key: u64) {
        let next = self.keys.len() as u32;
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            self.keys.push(key);
        }
        varint(&mut self.records, u64::from(place));
    }

    /// Moves what was written to the end of a frame, and is empty again.
    fn drain(&mut self, frame: &mut Vec<u8>) {
        frame.reserve(self.bytes() + 8);
        varint(frame, self.keys.len() as u64);
        self.keys.drain(..).for_each(|it| word(frame, it));
        varint(frame, self.count);
        frame.append(&mut self.records);
        self.places.clear();
        (self.count, self.unfolded) = (0, 0);
    }
}

pub(crate) fn delta(head: &Head, sheet: &mut Sheet) -> Vec<u8> {
    let mut frame = begin(head, Kind::Delta);
    sheet.drain(&mut frame);
    frame
}

pub(crate) fn aside(head: &Head, sheet: &mut Sheet) -> Vec<u8> {
    let mut frame = begin(head, Kind::Aside);
    sheet.drain(&mut frame);
    frame
}

pub(crate) fn snapshot(head: &Head, part: Part, since: Since, name: &str, sheet: &mut Sheet) -> Vec<u8> {
    let mut frame = begin(head, Kind::Snapshot);
    put_part(&mut frame, part);
    varint(&mut frame, since.rows);
    varint(&mut frame, since.chains);
    text(&mut frame, name);
    sheet.drain(&mut frame);
    frame
}

pub(crate) fn book(head: &Head, part: Part, routers: &[RouterId], sheet: &mut Sheet) -> Vec<u8> {
    let mut frame = begin(head, Kind::CacheDirectory);
    put_part(&mut frame, part);
    varint(&mut frame, routers.len() as u64);
    routers.iter().for_each(|it| word(&mut frame, it.0));
    sheet.drain(&mut frame);
    frame
}

pub(crate) fn beat(head: &Head, beat: &Beat<'_>) -> Vec<u8> {
    let mut frame = begin(head, Kind::Beat);
    text(&mut frame, beat.name);
    for number in [beat.number, beat.served, u64::from(beat.open), beat.echoes.len() as u64] {
        varint(&mut frame, number);
    }
    for echo in &beat.echoes {
        word(&mut frame, echo.router.0);
        varint(&mut frame, echo.number);
        varint(&mut frame, echo.held_us);
    }
    frame
}

pub(crate) fn hello(head: &Head, hello: &Hello<'_>) -> Vec<u8> {
    let mut frame = begin(head, Kind::Hello);
    text(&mut frame, hello.name);
    varint(&mut frame, u64::from(hello.attempt));
    frame.push(u8::from(hello.wants_book));
    varint(&mut frame, hello.has.len() as u64);
    for (router, incarnation) in &hello.has {
        word(&mut frame, router.0);
        varint(&mut frame, incarnation.0);
    }
    frame
}

pub(crate) fn bye(head: &Head) -> Vec<u8> {
    begin(head, Kind::Bye)
}

fn begin(head: &Head, kind: Kind) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend_from_slice(&MAGIC);
    frame.push(VERSION);
    frame.push(kind as u8 | if head.is_warm { WARM } else { 0 });
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

/// Seven bits a byte, the lowest first; all but the last byte have the eighth set.
fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

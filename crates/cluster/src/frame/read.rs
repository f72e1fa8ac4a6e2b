//! Parses frames, each one completely before anything is applied.

use crate::frame::{
    Body, EXPANDED_LINKS_MAX, Echo, EncodedPlacement, FRAME_MAX, Frame, FrameError, FrameKind, Head,
    Heartbeat, Hello, LINKS_MAX, Links, MAGIC, NAME_MAX, PARTS_MAX, Part, PlacedChain, ROUTERS_MAX, Record,
    SEGMENT_LINKS, SYNCED, Since, VERSION, tag,
};
use crate::row::{Incarnation, LinearFit, RouterId, Spent, Unit, Verdict, WorkerFacts};
use maitre_base::{PrefillWork, PromisedWork, Tokens};

type Result<T> = std::result::Result<T, FrameError>;

pub(crate) fn parse(bytes: &[u8]) -> Result<Frame<'_>> {
    let Some((magic, rest)) = bytes.split_first_chunk::<2>() else {
        return Err(FrameError::Foreign);
    };
    if *magic != MAGIC {
        return Err(FrameError::Foreign);
    }
    let mut rest = Rest(rest);
    let version = rest.byte()?;
    if version != VERSION {
        return Err(FrameError::Version { theirs: version, ours: VERSION });
    }
    if bytes.len() > FRAME_MAX {
        return Err(FrameError::Malformed("frame is too long"));
    }
    let byte = rest.byte()?;
    let kind = kind(byte & !SYNCED)?;
    let head = Head {
        router: RouterId(rest.word()?),
        incarnation: Incarnation(rest.varint()?),
        seq: rest.varint()?,
        stamp: rest.varint()?,
        is_synced: byte & SYNCED != 0,
    };
    let body = match kind {
        FrameKind::Delta if head.seq == 0 => return Err(FrameError::Malformed("delta number is 0")),
        FrameKind::Delta => Body::Delta(records(&mut rest, kind)?),
        FrameKind::Heartbeat => Body::Heartbeat(heartbeat(&mut rest)?),
        FrameKind::Hello => Body::Hello(hello(&mut rest)?),
        FrameKind::Leave => Body::Leave,
        FrameKind::Snapshot => Body::Snapshot {
            part: part(&mut rest)?,
            since: Since { rows: rest.varint()?, chains: rest.varint()? },
            name: rest.name()?,
            records: records(&mut rest, kind)?,
        },
        FrameKind::CacheDirectory => Body::CacheDirectory {
            part: part(&mut rest)?,
            routers: routers(&mut rest)?,
            records: records(&mut rest, kind)?,
        },
        FrameKind::Repair => Body::Repair(records(&mut rest, kind)?),
    };
    match rest.0 {
        [] => Ok(Frame { head, body }),
        _ => Err(FrameError::Malformed("bytes after the end")),
    }
}

fn kind(byte: u8) -> Result<FrameKind> {
    let kinds = [
        FrameKind::Delta,
        FrameKind::Heartbeat,
        FrameKind::Hello,
        FrameKind::Leave,
        FrameKind::Snapshot,
        FrameKind::CacheDirectory,
        FrameKind::Repair,
    ];
    kinds.into_iter().find(|&it| it as u8 == byte).ok_or(FrameError::Malformed("unknown frame kind"))
}

fn heartbeat<'a>(rest: &mut Rest<'a>) -> Result<Heartbeat<'a>> {
    let (name, number, served, in_flight) = (rest.name()?, rest.varint()?, rest.varint()?, rest.small()?);
    let count = rest.routers()?;
    let mut echoes = Vec::with_capacity(count);
    for _ in 0..count {
        let (router, number, held_us) = (RouterId(rest.word()?), rest.varint()?, rest.varint()?);
        echoes.push(Echo { router, number, held_us });
    }
    Ok(Heartbeat { name, number, served, in_flight, echoes })
}

fn hello<'a>(rest: &mut Rest<'a>) -> Result<Hello<'a>> {
    let (name, attempt) = (rest.name()?, rest.small()?);
    let wants_directory = match rest.byte()? {
        0 => false,
        1 => true,
        _ => return Err(FrameError::Malformed("invalid boolean")),
    };
    let count = rest.routers()?;
    let mut has = Vec::with_capacity(count);
    for _ in 0..count {
        has.push((RouterId(rest.word()?), Incarnation(rest.varint()?)));
    }
    Ok(Hello { name, attempt, wants_directory, has })
}

fn routers(rest: &mut Rest<'_>) -> Result<Vec<RouterId>> {
    let count = rest.routers()?;
    (0..count).map(|_| rest.word().map(RouterId)).collect()
}

fn part(rest: &mut Rest<'_>) -> Result<Part> {
    let part = Part { edition: rest.varint()?, index: rest.small()?, count: rest.small()? };
    match part {
        Part { count, index, .. } if index < count && count <= PARTS_MAX => Ok(part),
        _ => Err(FrameError::Malformed("invalid part number")),
    }
}

/// The key table, then the records.
fn records<'a>(rest: &mut Rest<'a>, kind: FrameKind) -> Result<Vec<Record<'a>>> {
    let count = rest.varint()?;
    let keys = Keys(rest.words(count)?);
    let count = rest.varint()?;
    let (mut records, mut expanded_links) = (Vec::new(), 0);
    for _ in 0..count {
        let record = record(rest, keys)?;
        if !record.belongs_in(kind) {
            return Err(FrameError::Malformed("record is not allowed in this kind of frame"));
        }
        if let Record::Placement(placement) = &record {
            expanded_links += placement.placed.total_links as usize;
        }
        if expanded_links > 2 * EXPANDED_LINKS_MAX {
            return Err(FrameError::Malformed("chains that rebuild too far"));
        }
        records.push(record);
    }
    Ok(records)
}

fn record<'a>(rest: &mut Rest<'a>, keys: Keys<'a>) -> Result<Record<'a>> {
    Ok(match rest.byte()? {
        tag::LOAD => Record::Load {
            worker: keys.key(rest)?,
            load: PromisedWork {
                requests: rest.small()?,
                prefilling: rest.small()?,
                prefill: PrefillWork { tokens: Tokens(rest.varint()?), attended: rest.varint()? },
                decode: Tokens(rest.varint()?),
                context: Tokens(rest.varint()?),
            },
        },
        tag::FACTS => Record::Facts { worker: keys.key(rest)?, facts: facts(rest)? },
        tag::REMOVED => Record::Removed { worker: keys.key(rest)? },
        tag::PIN => Record::Pin {
            model: keys.key(rest)?,
            session: rest.word()?,
            worker: keys.key(rest)?,
            stamp: rest.varint()?,
        },
        tag::SPENT => Record::Spent {
            model: keys.key(rest)?,
            tenant: rest.word()?,
            first_delta: rest.varint()?,
            total: Spent { requests: rest.varint()?, tokens: rest.varint()? },
        },
        tag::PLACEMENT => Record::Placement(placement(rest, keys)?),
        tag::SEGMENTS => segments(rest)?,
        tag::RESYNC => Record::Resync {
            router: RouterId(rest.word()?),
            since: Since { rows: rest.varint()?, chains: rest.varint()? },
        },
        tag::WANT_SEGMENTS => Record::WantSegments {
            router: RouterId(rest.word()?),
            block: rest.block()?,
            segment: rest.word()?,
        },
        _ => return Err(FrameError::Malformed("unknown record tag")),
    })
}

fn facts(rest: &mut Rest<'_>) -> Result<WorkerFacts> {
    let byte = rest.byte()?;
    let verdict = match byte & 0x0F {
        0 => Verdict::Healthy,
        1 => Verdict::Suspect,
        2 => Verdict::Ejected,
        _ => return Err(FrameError::Malformed("unknown verdict")),
    };
    let rates = match byte >> 4 {
        0 => None,
        1 => Some((fit(rest)?, fit(rest)?)),
        _ => return Err(FrameError::Malformed("invalid rates flag")),
    };
    Ok(WorkerFacts { verdict, rates })
}

fn fit(rest: &mut Rest<'_>) -> Result<LinearFit> {
    Ok(LinearFit { base: rest.rate()?, slope: rest.rate()? })
}

fn placement<'a>(rest: &mut Rest<'a>, keys: Keys<'a>) -> Result<EncodedPlacement<'a>> {
    let worker = keys.key(rest)?;
    let byte = rest.byte()?;
    let unit = match byte & 0x0F {
        0 => Unit::Tokens,
        1 => Unit::Words,
        _ => return Err(FrameError::Malformed("unknown unit")),
    };
    let (block, units, total_links) = (rest.block()?, rest.varint()?, rest.small()?);
    let parent = match byte >> 4 {
        0 => 0,
        1 => rest.word()?,
        _ => return Err(FrameError::Malformed("invalid parent flag")),
    };
    let links = rest.links()?;
    let before = (total_links as usize).checked_sub(links.len());
    let fits = before.is_some_and(|it| it.is_multiple_of(SEGMENT_LINKS) && (it == 0) == (parent == 0));
    if total_links == 0 || total_links as usize > LINKS_MAX || !fits {
        return Err(FrameError::Malformed("invalid chain length"));
    }
    let placed = PlacedChain { worker, unit, block, units, total_links };
    Ok(EncodedPlacement { placed, parent, links })
}

fn segments<'a>(rest: &mut Rest<'a>) -> Result<Record<'a>> {
    let (block, parent, links) = (rest.block()?, rest.word()?, rest.links()?);
    if links.len() == 0 || !links.len().is_multiple_of(SEGMENT_LINKS) {
        return Err(FrameError::Malformed("incomplete segment"));
    }
    Ok(Record::Segments { block, parent, links })
}

/// The key table of a frame.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a [[u8; 8]]);

impl Keys<'_> {
    fn key(self, rest: &mut Rest<'_>) -> Result<u64> {
        let index = usize::try_from(rest.varint()?).unwrap_or(usize::MAX);
        let key = self.0.get(index).ok_or(FrameError::Malformed("key index out of range"))?;
        Ok(u64::from_le_bytes(*key))
    }
}

/// The bytes that are still to be read.
struct Rest<'a>(&'a [u8]);

const SHORT: FrameError = FrameError::Malformed("truncated frame");

impl<'a> Rest<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(chunk)
    }

    fn byte(&mut self) -> Result<u8> {
        self.chunk::<1>().map(|it| it[0])
    }

    fn word(&mut self) -> Result<u64> {
        self.chunk().map(|it| u64::from_le_bytes(*it))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0;
        for index in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if index == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * index);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(FrameError::Malformed("number is too large"))
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| FrameError::Malformed("number is too large"))
    }

    fn block(&mut self) -> Result<u32> {
        match self.small()? {
            0 => Err(FrameError::Malformed("block size is 0")),
            block => Ok(block),
        }
    }

    /// A count of routers.
    fn routers(&mut self) -> Result<usize> {
        match self.small()? as usize {
            count if count <= ROUTERS_MAX => Ok(count),
            _ => Err(FrameError::Malformed("too many routers")),
        }
    }

    fn rate(&mut self) -> Result<f32> {
        let rate = f32::from_le_bytes(*self.chunk()?);
        match rate.is_finite() && rate >= 0.0 {
            true => Ok(rate),
            false => Err(FrameError::Malformed("rate is negative or not finite")),
        }
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8]> {
        let count = usize::try_from(count).map_err(|_| SHORT)?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn words(&mut self, count: u64) -> Result<&'a [[u8; 8]]> {
        let bytes = self.bytes(count.checked_mul(8).ok_or(SHORT)?)?;
        Ok(bytes.as_chunks().0)
    }

    fn links(&mut self) -> Result<Links<'a>> {
        let count = self.varint()?;
        let words = self.words(count)?;
        match words.contains(&[0; 8]) {
            true => Err(FrameError::Malformed("link is 0")),
            false => Ok(Links::Bytes(words)),
        }
    }

    /// Empty if the sender left it out.
    fn name(&mut self) -> Result<&'a str> {
        let length = self.varint()?;
        if length > NAME_MAX as u64 {
            return Err(FrameError::Malformed("name is too long"));
        }
        let name = std::str::from_utf8(self.bytes(length)?).ok();
        let name = name.filter(|it| !it.contains(char::is_control));
        name.ok_or(FrameError::Malformed("name is not printable text"))
    }
}

//! Frames as they came, checked as a whole.

use crate::frame::{
    Beat, Body, Echo, FRAME_MAX, Frame, Head, Hello, Kind, LINKS_MAX, Links, MAGIC, NAME_MAX, PAGE,
    PARTS_MAX, Part, ROUTERS_MAX, Record, Seat, Since, UNFOLD_MAX, VERSION, WARM, tag,
};
use crate::node::Unheard;
use crate::row::{Facts, Fit, Incarnation, Load, RouterId, Spent, Unit, Verdict};

type Result<T> = std::result::Result<T, Unheard>;

pub(crate) fn parse(bytes: &[u8]) -> Result<Frame<'_>> {
    let Some((magic, rest)) = bytes.split_first_chunk::<2>() else {
        return Err(Unheard::Foreign);
    };
    if *magic != MAGIC {
        return Err(Unheard::Foreign);
    }
    let mut rest = Rest(rest);
    let version = rest.byte()?;
    if version != VERSION {
        return Err(Unheard::Version { theirs: version, ours: VERSION });
    }
    if bytes.len() > FRAME_MAX {
        return Err(Unheard::Malformed("longer than a frame may be"));
    }
    let byte = rest.byte()?;
    let kind = kind(byte & !WARM)?;
    let head = Head {
        router: RouterId(rest.word()?),
        incarnation: Incarnation(rest.varint()?),
        seq: rest.varint()?,
        stamp: rest.varint()?,
        is_warm: byte & WARM != 0,
    };
    let body = match kind {
        Kind::Delta if head.seq == 0 => return Err(Unheard::Malformed("a delta without a number")),
        Kind::Delta => Body::Delta(records(&mut rest, kind)?),
        Kind::Beat => Body::Beat(beat(&mut rest)?),
        Kind::Hello => Body::Hello(hello(&mut rest)?),
        Kind::Bye => Body::Bye,
        Kind::Snapshot => Body::Snapshot {
            part: part(&mut rest)?,
            since: Since { rows: rest.varint()?, chains: rest.varint()? },
            name: rest.name()?,
            records: records(&mut rest, kind)?,
        },
        Kind::CacheDirectory => Body::CacheDirectory {
            part: part(&mut rest)?,
            routers: routers(&mut rest)?,
            records: records(&mut rest, kind)?,
        },
        Kind::Aside => Body::Aside(records(&mut rest, kind)?),
    };
    match rest.0 {
        [] => Ok(Frame { head, body }),
        _ => Err(Unheard::Malformed("bytes after its end")),
    }
}

fn kind(byte: u8) -> Result<Kind> {
    let kinds =
        [Kind::Delta, Kind::Beat, Kind::Hello, Kind::Bye, Kind::Snapshot, Kind::CacheDirectory, Kind::Aside];
    kinds.into_iter().find(|&it| it as u8 == byte).ok_or(Unheard::Malformed("a kind nobody knows"))
}

fn beat<'a>(rest: &mut Rest<'a>) -> Result<Beat<'a>> {
    let (name, number, served, open) = (rest.name()?, rest.varint()?, rest.varint()?, rest.small()?);
    let count = rest.routers()?;
    let mut echoes = Vec::with_capacity(count);
    for _ in 0..count {
        let (router, number, held_us) = (RouterId(rest.word()?), rest.varint()?, rest.varint()?);
        echoes.push(Echo { router, number, held_us });
    }
    Ok(Beat { name, number, served, open, echoes })
}

fn hello<'a>(rest: &mut Rest<'a>) -> Result<Hello<'a>> {
    let (name, attempt) = (rest.name()?, rest.small()?);
    let wants_book = match rest.byte()? {
        0 => false,
        1 => true,
        _ => return Err(Unheard::Malformed("neither yes nor no")),
    };
    let count = rest.routers()?;
    let mut has = Vec::with_capacity(count);
    for _ in 0..count {
        has.push((RouterId(rest.word()?), Incarnation(rest.varint()?)));
    }
    Ok(Hello { name, attempt, wants_book, has })
}

fn routers(rest: &mut Rest<'_>) -> Result<Vec<RouterId>> {
    let count = rest.routers()?;
    (0..count).map(|_| rest.word().map(RouterId)).collect()
}

fn part(rest: &mut Rest<'_>) -> Result<Part> {
    let part = Part { edition: rest.varint()?, index: rest.small()?, count: rest.small()? };
    match part {
        Part { count, index, .. } if index < count && count <= PARTS_MAX => Ok(part),
        _ => Err(Unheard::Malformed("a part that is none")),
    }
}

/// The keys, and then so many records.
fn records<'a>(rest: &mut Rest<'a>, kind: Kind) -> Result<Vec<Record<'a>>> {
    let count = rest.varint()?;
    let keys = Keys(rest.words(count)?);
    let count = rest.varint()?;
    let (mut records, mut unfolded) = (Vec::new(), 0);
    for _ in 0..count {
        let record = record(rest, keys)?;
        if !record.belongs_in(kind) {
            return Err(Unheard::Malformed("a record where it does not belong"));
        }
        if let Record::Seat(seat) = &record {
            unfolded += seat.whole as usize;
        }
        if unfolded > 2 * UNFOLD_MAX {
            return Err(Unheard::Malformed("chains that unfold too far"));
        }
        records.push(record);
    }
    Ok(records)
}

fn record<'a>(rest: &mut Rest<'a>, keys: Keys<'a>) -> Result<Record<'a>> {
    Ok(match rest.byte()? {
        tag::LOAD => Record::Load {
            worker: keys.key(rest)?,
            load: Load {
                requests: rest.small()?,
                prefilling: rest.small()?,
                prefill_tokens: rest.varint()?,
                decode_tokens: rest.varint()?,
                context_tokens: rest.varint()?,
            },
        },
        tag::FACTS => Record::Facts { worker: keys.key(rest)?, facts: facts(rest)? },
        tag::GONE => Record::Gone { worker: keys.key(rest)? },
        tag::PIN => Record::Pin {
            model: keys.key(rest)?,
            session: rest.word()?,
            worker: keys.key(rest)?,
            stamp: rest.varint()?,
        },
        tag::SPENT => Record::Spent {
            model: keys.key(rest)?,
            tenant: rest.word()?,
            born: rest.varint()?,
            total: Spent { requests: rest.varint()?, tokens: rest.varint()? },
        },
        tag::SEAT => Record::Seat(seat(rest, keys)?),
        tag::PAGES => pages(rest)?,
        tag::RESYNC => Record::Resync {
            router: RouterId(rest.word()?),
            since: Since { rows: rest.varint()?, chains: rest.varint()? },
        },
        tag::WANT => {
            Record::Want { router: RouterId(rest.word()?), block: rest.block()?, page: rest.word()? }
        }
        _ => return Err(Unheard::Malformed("a record nobody knows")),
    })
}

fn facts(rest: &mut Rest<'_>) -> Result<Facts> {
    let byte = rest.byte()?;
    let verdict = match byte & 0x0F {
        0 => Verdict::Fit,
        1 => Verdict::Doubted,
        2 => Verdict::Out,
        _ => return Err(Unheard::Malformed("a verdict nobody knows")),
    };
    let rates = match byte >> 4 {
        0 => None,
        1 => Some((fit(rest)?, fit(rest)?)),
        _ => return Err(Unheard::Malformed("rates that are none")),
    };
    Ok(Facts { verdict, rates })
}

fn fit(rest: &mut Rest<'_>) -> Result<Fit> {
    Ok(Fit { base: rest.rate()?, slope: rest.rate()? })
}

fn seat<'a>(rest: &mut Rest<'a>, keys: Keys<'a>) -> Result<Seat<'a>> {
    let worker = keys.key(rest)?;
    let byte = rest.byte()?;
    let unit = match byte & 0x0F {
        0 => Unit::Tokens,
        1 => Unit::Words,
        _ => return Err(Unheard::Malformed("a unit nobody knows")),
    };
    let (block, units, whole) = (rest.block()?, rest.varint()?, rest.small()?);
    let parent = match byte >> 4 {
        0 => 0,
        1 => rest.word()?,
        _ => return Err(Unheard::Malformed("a parent that is none")),
    };
    let links = rest.links()?;
    let before = (whole as usize).checked_sub(links.len());
    let fits = before.is_some_and(|it| it.is_multiple_of(PAGE) && (it == 0) == (parent == 0));
    if whole == 0 || whole as usize > LINKS_MAX || !fits {
        return Err(Unheard::Malformed("a chain of a length that cannot be"));
    }
    Ok(Seat { worker, unit, block, units, whole, parent, links })
}

fn pages<'a>(rest: &mut Rest<'a>) -> Result<Record<'a>> {
    let (block, parent, links) = (rest.block()?, rest.word()?, rest.links()?);
    if links.len() == 0 || !links.len().is_multiple_of(PAGE) {
        return Err(Unheard::Malformed("a page that is not full"));
    }
    Ok(Record::Pages { block, parent, links })
}

/// The keys at the head of a frame.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a [[u8; 8]]);

impl Keys<'_> {
    fn key(self, rest: &mut Rest<'_>) -> Result<u64> {
        let place = usize::try_from(rest.varint()?).unwrap_or(usize::MAX);
        let key = self.0.get(place).ok_or(Unheard::Malformed("a key that is not at its head"))?;
        Ok(u64::from_le_bytes(*key))
    }
}

/// What is still to be read.
struct Rest<'a>(&'a [u8]);

const SHORT: Unheard = Unheard::Malformed("it ends too soon");

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
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if place == 9 && bits > 1 {
                break;
            }
            number |= bits << (7 * place);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Unheard::Malformed("a number too large"))
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| Unheard::Malformed("a number too large"))
    }

    fn block(&mut self) -> Result<u32> {
        match self.small()? {
            0 => Err(Unheard::Malformed("a block of nothing")),
            block => Ok(block),
        }
    }

    /// A count of routers.
    fn routers(&mut self) -> Result<usize> {
        match self.small()? as usize {
            count if count <= ROUTERS_MAX => Ok(count),
            _ => Err(Unheard::Malformed("more routers than there may be")),
        }
    }

    fn rate(&mut self) -> Result<f32> {
        let rate = f32::from_le_bytes(*self.chunk()?);
        match rate.is_finite() && rate >= 0.0 {
            true => Ok(rate),
            false => Err(Unheard::Malformed("a rate that cannot be")),
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
            true => Err(Unheard::Malformed("a link that names nothing")),
            false => Ok(Links::Bytes(words)),
        }
    }

    /// Empty where it is not told.
    fn name(&mut self) -> Result<&'a str> {
        let length = self.varint()?;
        if length > NAME_MAX as u64 {
            return Err(Unheard::Malformed("a name too long"));
        }
        let name = std::str::from_utf8(self.bytes(length)?).ok();
        let name = name.filter(|it| !it.contains(char::is_control));
        name.ok_or(Unheard::Malformed("a name that is no text"))
    }
}

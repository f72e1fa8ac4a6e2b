//! Bytes between two routers, as far as they mean something to the mesh itself.
//!
//! A connection begins with a preamble in the clear, so that an old version can be told from a wrong key and both
//! from a stranger. Records follow: a length of two bytes and as many bytes as it says, which Noise has sealed. The
//! first ones are a hello of each side and the verdict of the one that was dialled. What the others hold is one
//! stream of frames, so that a large frame takes several records and many small ones share one.
//!
//! Nothing here reads a socket: bytes in, values out.

use std::net::IpAddr;

/// Ours, and not text: no client of another protocol begins like this.
const MAGIC: [u8; 8] = *b"maitre\xF5\x0A";
/// Of all that is said in this file. Routers of different versions do not speak with each other.
pub(super) const VERSION: u8 = 1;
pub(super) const PREAMBLE: usize = MAGIC.len() + 1;
/// By Noise.
pub(super) const RECORD_MAX: usize = 65_535;
/// What sealing adds to a record.
pub(super) const TAG: usize = 16;
pub(super) const LENGTH: usize = 2;
/// The kind of a frame and its length.
pub(super) const HEADER: usize = 5;
/// What those who speak through us may send at once, 256 KiB, with room for a header of theirs.
pub(super) const FRAME_MAX: usize = 256 * 1024 + 1024;
/// Enough for the names and addresses of a hundred routers.
pub(super) const GOSSIP_MAX: usize = 60_000;
/// A name or an address; longer than any host name.
pub(super) const TEXT_MAX: usize = 255;

/// What was read makes no sense, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Nonsense(pub(super) &'static str);

/// Not one of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stranger;

pub(super) fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [VERSION; PREAMBLE];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes
}

/// The version of whoever began like this; nothing yet, if that was not all of a preamble.
pub(super) fn version(heard: &[u8]) -> Result<Option<u8>, Stranger> {
    let magic = heard.len().min(MAGIC.len());
    match heard[..magic] == MAGIC[..magic] {
        true => Ok(heard.get(MAGIC.len()).copied()),
        false => Err(Stranger),
    }
}

/// How many sealed bytes follow a length.
pub(super) fn record(length: [u8; LENGTH]) -> Result<usize, Nonsense> {
    match usize::from(u16::from_be_bytes(length)) {
        length if length > TAG => Ok(length),
        _ => Err(Nonsense("a record that is too short to hold anything")),
    }
}

/// What each side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    /// By chance, for each process: tells a second router of one name from the first.
    pub(super) instance: u64,
    /// Where others reach it; if it was not told, at the address it comes from and this port.
    pub(super) advertise: Option<String>,
    pub(super) port: u16,
    /// Whom it is speaking to, as it sees him: that is how a router learns its own address.
    pub(super) you: IpAddr,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_text(&mut bytes, &self.name);
        bytes.extend(self.instance.to_be_bytes());
        put_text(&mut bytes, self.advertise.as_deref().unwrap_or_default());
        bytes.extend(self.port.to_be_bytes());
        let you = match self.you {
            IpAddr::V4(it) => it.to_ipv6_mapped(),
            IpAddr::V6(it) => it,
        };
        bytes.extend(you.octets());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Hello, Nonsense> {
        let mut reader = Reader(bytes);
        let (name, instance) = (reader.text()?, reader.u64()?);
        let (advertise, port) = (Some(reader.text()?).filter(|it| !it.is_empty()), reader.u16()?);
        let you = IpAddr::from(reader.array::<16>()?).to_canonical();
        match reader.0.is_empty() && !name.is_empty() {
            true => Ok(Hello { name, instance, advertise, port, you }),
            false => Err(Nonsense("a hello that is not one")),
        }
    }
}

/// The answer of the one that was dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    /// It is connected already with a router of this name.
    SameName,
    Full,
    /// It has a connection with the same router that it would rather keep.
    Spare,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Welcome, Verdict::SameName, Verdict::Full, Verdict::Spare];

    pub(super) fn encode(self) -> [u8; 1] {
        [self as u8]
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Verdict, Nonsense> {
        let verdict = Verdict::ALL.into_iter().find(|it| it.encode() == bytes);
        verdict.ok_or(Nonsense("a verdict that is not one"))
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing else was said for a while.
    Beat,
    /// Who is up and who is down.
    Gossip,
    Data,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Beat, Kind::Gossip, Kind::Data];

    fn max(self) -> usize {
        match self {
            Kind::Beat => 0,
            Kind::Gossip => GOSSIP_MAX,
            Kind::Data => FRAME_MAX,
        }
    }
}

pub(super) fn put_frame(bytes: &mut Vec<u8>, kind: Kind, body: &[u8]) {
    debug_assert!(body.len() <= kind.max(), "a frame of {} bytes would end the connection", body.len());
    bytes.push(kind as u8);
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
}

/// The frame at the beginning of what was read, if all of it is there: what it is, and how long its body is, which
/// begins after the header.
pub(super) fn frame(read: &[u8]) -> Result<Option<(Kind, usize)>, Nonsense> {
    let Some(&first) = read.first() else { return Ok(None) };
    let kind = Kind::ALL.into_iter().find(|&it| it as u8 == first);
    let kind = kind.ok_or(Nonsense("a frame of a kind that does not exist"))?;
    let Some(header) = read.first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
    match length > kind.max() {
        true => Err(Nonsense("a frame that is longer than frames are")),
        false => Ok((read.len() >= HEADER + length).then_some((kind, length))),
    }
}

/// A length of one byte before it; whoever comes here has seen to it that it fits.
pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= TEXT_MAX, "a text of {} bytes", text.len());
    bytes.push(text.len().min(TEXT_MAX) as u8);
    bytes.extend(text.bytes().take(TEXT_MAX));
}

/// Takes values off the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Nonsense> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Nonsense("it ends too early"))?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Nonsense> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Nonsense> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Nonsense> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Nonsense> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(super) fn text(&mut self) -> Result<String, Nonsense> {
        let length = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(Nonsense("it ends too early"))?;
        self.0 = rest;
        let text = str::from_utf8(text).map_err(|_| Nonsense("a text that is not UTF-8"))?;
        match text.chars().any(char::is_control) {
            true => Err(Nonsense("a text with control characters")),
            false => Ok(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;

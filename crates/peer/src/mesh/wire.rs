//! The byte format between two routers of the mesh.
//!
//! A connection begins with a plaintext preamble, which distinguishes an old version from a wrong key and both from
//! another protocol. Records follow: a two-byte length and that many bytes of Noise ciphertext. The first records are
//! one hello per side and the listener's verdict. The rest is one stream of frames: a large frame spans several
//! records, and small frames share one.
//!
//! Nothing here reads a socket: bytes in, values out.

use std::net::IpAddr;

/// Not text, so no client of another protocol begins like this.
const MAGIC: [u8; 8] = *b"maitre\xF5\x0A";
/// Version of everything in this file. Routers of different versions refuse each other.
pub(super) const VERSION: u8 = 1;
pub(super) const PREAMBLE: usize = MAGIC.len() + 1;
/// Noise's limit.
pub(super) const RECORD_MAX: usize = 65_535;
/// Bytes that encryption adds to a record.
pub(super) const TAG: usize = 16;
pub(super) const LENGTH: usize = 2;
/// Frame kind and length.
pub(super) const HEADER: usize = 5;
/// Maximum data frame: 256 KiB, plus room for the caller's header.
pub(super) const FRAME_MAX: usize = 256 * 1024 + 1024;
/// Enough for the names and addresses of a hundred routers.
pub(super) const GOSSIP_MAX: usize = 60_000;
/// Maximum length of a name or an address; longer than any host name.
pub(super) const TEXT_MAX: usize = 255;

/// What is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ProtocolError(pub(super) &'static str);

/// The other side does not speak our protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotARouter;

pub(super) fn preamble() -> [u8; PREAMBLE] {
    let mut bytes = [VERSION; PREAMBLE];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes
}

/// The version in a preamble; `None` while it is incomplete.
pub(super) fn version(received: &[u8]) -> Result<Option<u8>, NotARouter> {
    let magic = received.len().min(MAGIC.len());
    match received[..magic] == MAGIC[..magic] {
        true => Ok(received.get(MAGIC.len()).copied()),
        false => Err(NotARouter),
    }
}

/// The ciphertext length in a length prefix.
pub(super) fn record(length: [u8; LENGTH]) -> Result<usize, ProtocolError> {
    match usize::from(u16::from_be_bytes(length)) {
        length if length > TAG => Ok(length),
        _ => Err(ProtocolError("a record without content")),
    }
}

/// Each side's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    /// Random per process: distinguishes two routers with the same name.
    pub(super) instance: u64,
    /// The address for other routers; by default the source address and this port.
    pub(super) advertise: Option<String>,
    pub(super) port: u16,
    /// The receiver's address as the sender sees it. This is how a router learns its own address.
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

    pub(super) fn decode(bytes: &[u8]) -> Result<Hello, ProtocolError> {
        let mut reader = ByteReader(bytes);
        let (name, instance) = (reader.text()?, reader.u64()?);
        let (advertise, port) = (Some(reader.text()?).filter(|it| !it.is_empty()), reader.u16()?);
        let you = IpAddr::from(reader.array::<16>()?).to_canonical();
        match reader.0.is_empty() && !name.is_empty() {
            true => Ok(Hello { name, instance, advertise, port, you }),
            false => Err(ProtocolError("a malformed hello")),
        }
    }
}

/// The listener's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DialVerdict {
    Welcome,
    /// It is already connected to another router with this name.
    SameName,
    Full,
    /// It keeps an existing connection to the same router.
    Redundant,
}

impl DialVerdict {
    const ALL: [DialVerdict; 4] =
        [DialVerdict::Welcome, DialVerdict::SameName, DialVerdict::Full, DialVerdict::Redundant];

    pub(super) fn encode(self) -> [u8; 1] {
        [self as u8]
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<DialVerdict, ProtocolError> {
        let verdict = DialVerdict::ALL.into_iter().find(|it| it.encode() == bytes);
        verdict.ok_or(ProtocolError("an unknown verdict"))
    }
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeshFrameKind {
    /// Nothing else was sent for a while.
    Heartbeat,
    /// A membership message.
    Gossip,
    Data,
}

impl MeshFrameKind {
    const ALL: [MeshFrameKind; 3] = [MeshFrameKind::Heartbeat, MeshFrameKind::Gossip, MeshFrameKind::Data];

    fn max(self) -> usize {
        match self {
            MeshFrameKind::Heartbeat => 0,
            MeshFrameKind::Gossip => GOSSIP_MAX,
            MeshFrameKind::Data => FRAME_MAX,
        }
    }
}

pub(super) fn put_frame(bytes: &mut Vec<u8>, kind: MeshFrameKind, body: &[u8]) {
    debug_assert!(body.len() <= kind.max(), "a frame of {} bytes would end the connection", body.len());
    bytes.push(kind as u8);
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
}

/// The kind and body length of the first frame, if it is complete. The body begins after the header.
pub(super) fn frame(read: &[u8]) -> Result<Option<(MeshFrameKind, usize)>, ProtocolError> {
    let Some(&first) = read.first() else { return Ok(None) };
    let kind = MeshFrameKind::ALL.into_iter().find(|&it| it as u8 == first);
    let kind = kind.ok_or(ProtocolError("a frame of unknown kind"))?;
    let Some(header) = read.first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
    match length > kind.max() {
        true => Err(ProtocolError("a frame that is too long")),
        false => Ok((read.len() >= HEADER + length).then_some((kind, length))),
    }
}

/// Text with a one-byte length prefix. The caller ensures that it fits.
pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    debug_assert!(text.len() <= TEXT_MAX, "a text of {} bytes", text.len());
    bytes.push(text.len().min(TEXT_MAX) as u8);
    bytes.extend(text.bytes().take(TEXT_MAX));
}

/// Takes values off the front.
pub(super) struct ByteReader<'a>(pub(super) &'a [u8]);

impl ByteReader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ProtocolError("it handles too early"))?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, ProtocolError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, ProtocolError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, ProtocolError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(super) fn text(&mut self) -> Result<String, ProtocolError> {
        let length = usize::from(self.u8()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(ProtocolError("it handles too early"))?;
        self.0 = rest;
        let text = str::from_utf8(text).map_err(|_| ProtocolError("a text that is not UTF-8"))?;
        match text.chars().any(char::is_control) {
            true => Err(ProtocolError("a text with control characters")),
            false => Ok(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;

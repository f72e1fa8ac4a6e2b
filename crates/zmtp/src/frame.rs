//! Frames: a flags byte, a length of one or eight bytes, and a body.

use crate::error::ZmtpError;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// The longest possible head.
pub const HEAD_BYTES_MAX: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    /// Length of this head; the body follows.
    pub(crate) bytes: usize,
    pub(crate) body_bytes: u64,
    pub(crate) kind: FrameKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Part of a message that continues in the next frame.
    Part,
    /// The last part of a message, often the only one.
    Last,
    Command,
}

/// The head at the front of `bytes`, if it is complete.
pub(crate) fn head(bytes: &[u8]) -> Result<Option<FrameHead>, ZmtpError> {
    let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
    let kind = match flags & !LONG {
        0 => FrameKind::Last,
        MORE => FrameKind::Part,
        COMMAND => FrameKind::Command,
        _ => return Err(ZmtpError::Flags(flags)),
    };
    let (bytes, body_bytes) = match (flags & LONG, rest) {
        (0, [length, ..]) => (2, u64::from(*length)),
        (LONG, _) => match rest.first_chunk::<8>() {
            Some(length) => (HEAD_BYTES_MAX, u64::from_be_bytes(*length)),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(FrameHead { bytes, body_bytes, kind }))
}

/// Appends a whole message.
pub fn put_message<T: AsRef<[u8]>>(frames: &[T], out: &mut Vec<u8>) {
    for (index, frame) in frames.iter().enumerate() {
        let flags = if index + 1 < frames.len() { MORE } else { 0 };
        put(flags, frame.as_ref(), out);
    }
}

pub(crate) fn put_command(body: &[u8], out: &mut Vec<u8>) {
    put(COMMAND, body, out);
}

fn put(flags: u8, body: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend([flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Option<(usize, u64, FrameKind)>, ZmtpError>) {
        let actual = head(bytes).map(|it| it.map(|it| (it.bytes, it.body_bytes, it.kind)));
        assert_eq!(actual, expected, "{bytes:02x?}");
    }

    #[test]
    fn heads_are_short_or_long() {
        check(b"", Ok(None));
        check(b"\x00", Ok(None));
        check(b"\x00\x05hello", Ok(Some((2, 5, FrameKind::Last))));
        check(b"\x01\x00", Ok(Some((2, 0, FrameKind::Part))));
        check(b"\x04\x07", Ok(Some((2, 7, FrameKind::Command))));
        check(b"\x02\0\0\0\0\0\0\x01", Ok(None));
        check(b"\x02\0\0\0\0\0\0\x01\0", Ok(Some((9, 256, FrameKind::Last))));
        check(b"\x06\0\0\0\x10\0\0\0\0", Ok(Some((9, 64 << 30, FrameKind::Command))));
    }

    #[test]
    fn flags_that_mean_nothing_are_refused_at_once() {
        // A command never continues in another frame.
        check(b"\x05", Err(ZmtpError::Flags(5)));
        check(b"\x08", Err(ZmtpError::Flags(8)));
        check(b"\xff", Err(ZmtpError::Flags(0xff)));
    }

    #[test]
    fn a_message_is_its_frames_and_says_where_it_ends() {
        let long = vec![7; 256];
        let mut out = Vec::new();
        put_message(&[b"".as_slice(), &long, b"x"], &mut out);
        assert_eq!(out[..11], *b"\x01\0\x03\0\0\0\0\0\0\x01\0");
        assert_eq!(out[11..11 + 256], long);
        assert_eq!(out[11 + 256..], *b"\0\x01x");
    }
}

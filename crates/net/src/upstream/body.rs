//! The body of a response, taken off the front of the read buffer without copying.

use bytes::{Buf, Bytes, BytesMut};

use super::UpstreamError;

/// Longest line that frames a chunk: its size and extensions.
const LINE_BYTES_MAX: usize = 1_024;

/// Hex digits of a chunk's size: as many as a `u64` has.
const DIGITS_MAX: usize = 16;

/// Most trailer lines. All are dropped.
const TRAILERS_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BodyReader {
    Length { left: u64 },
    UntilClose,
    Chunked(Chunk),
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Size,
    Data {
        left: u64,
    },
    /// The line break after a chunk's data.
    Break,
    Trailers {
        lines: u32,
    },
    End,
    /// The framing is wrong, for this reason. Nothing after it can be read.
    Broken(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// The buffer holds no more data of the body.
    More,
    End,
}

impl Default for BodyReader {
    fn default() -> BodyReader {
        BodyReader::Length { left: 0 }
    }
}

impl BodyReader {
    pub(super) const fn length(left: u64) -> BodyReader {
        BodyReader::Length { left }
    }

    pub(super) const fn chunked() -> BodyReader {
        BodyReader::Chunked(Chunk::Size)
    }

    pub(super) const fn until_close() -> BodyReader {
        BodyReader::UntilClose
    }

    pub(super) fn ends_at_close(&self) -> bool {
        *self == BodyReader::UntilClose
    }

    /// Whether all of it has been taken. Reads the end mark of a chunked body if it is there already.
    pub(super) fn is_complete(&mut self, buffer: &mut BytesMut) -> bool {
        match self {
            BodyReader::Length { left } => *left == 0,
            BodyReader::UntilClose => false,
            BodyReader::Chunked(Chunk::End) => true,
            // Anything but the end, data or an error, is for the next call.
            BodyReader::Chunked(chunk) => {
                !buffer.is_empty() && chunk.frame(buffer).is_ok() && *chunk == Chunk::End
            }
        }
    }

    pub(super) fn bytes_left(&self) -> Option<u64> {
        match self {
            BodyReader::Length { left } => Some(*left),
            BodyReader::UntilClose | BodyReader::Chunked(_) => None,
        }
    }

    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, UpstreamError> {
        match self {
            BodyReader::Length { left } => Ok(take(left, buffer)),
            BodyReader::UntilClose if buffer.is_empty() => Ok(Piece::More),
            BodyReader::UntilClose => Ok(Piece::Data(buffer.split().freeze())),
            BodyReader::Chunked(chunk) => {
                chunk.frame(buffer)?;
                match chunk {
                    Chunk::Data { left } => Ok(take(left, buffer)),
                    Chunk::End => Ok(Piece::End),
                    Chunk::Size | Chunk::Break | Chunk::Trailers { .. } | Chunk::Broken(_) => Ok(Piece::More),
                }
            }
        }
    }
}

fn take(left: &mut u64, buffer: &mut BytesMut) -> Piece {
    if *left == 0 {
        return Piece::End;
    }
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
    if length == 0 {
        return Piece::More;
    }
    *left -= length as u64;
    Piece::Data(buffer.split_to(length).freeze())
}

impl Chunk {
    /// Reads the framing up to the next data, the end of the body, or the end of the buffer. Once it is broken it stays
    /// so, for every caller: the bytes that broke it are gone, and what follows must not pass for a body.
    fn frame(&mut self, buffer: &mut BytesMut) -> Result<(), UpstreamError> {
        loop {
            match self.step(buffer) {
                Ok(Some(next)) => *self = next,
                Ok(None) => return Ok(()),
                Err(why) => {
                    *self = Chunk::Broken(why);
                    return Err(UpstreamError::NotHttp(why));
                }
            }
        }
    }

    /// The next position; none if there is data, nothing more to come, or too little in the buffer.
    fn step(&self, buffer: &mut BytesMut) -> Result<Option<Chunk>, &'static str> {
        Ok(match *self {
            Chunk::Data { left: 0 } => Some(Chunk::Break),
            Chunk::Data { .. } | Chunk::End => None,
            Chunk::Break => match line(buffer)? {
                None => None,
                Some(0) => Some(Chunk::Size),
                Some(_) => return Err("a chunk longer than its size"),
            },
            Chunk::Size => size(buffer)?.map(|size| match size {
                0 => Chunk::Trailers { lines: 0 },
                left => Chunk::Data { left },
            }),
            Chunk::Trailers { lines: TRAILERS_MAX } => return Err("too many trailers"),
            Chunk::Trailers { lines } => line(buffer)?.map(|length| match length {
                0 => Chunk::End,
                _ => Chunk::Trailers { lines: lines + 1 },
            }),
            Chunk::Broken(why) => return Err(why),
        })
    }
}

/// Takes a line off the buffer and returns its length without the line break; none if it is incomplete.
fn line(buffer: &mut BytesMut) -> Result<Option<usize>, &'static str> {
    if buffer.starts_with(b"\r\n") {
        buffer.advance(2);
        return Ok(Some(0));
    }
    match memchr::memchr(b'\n', &buffer[..buffer.len().min(LINE_BYTES_MAX)]) {
        Some(end) if end > 0 && buffer[end - 1] == b'\r' => {
            buffer.advance(end + 1);
            Ok(Some(end - 1))
        }
        Some(_) => Err("a bare line feed"),
        None if buffer.len() >= LINE_BYTES_MAX => Err("an endless line"),
        None => Ok(None),
    }
}

fn size(buffer: &mut BytesMut) -> Result<Option<u64>, &'static str> {
    let digits = buffer.iter().take(DIGITS_MAX + 1).take_while(|it| it.is_ascii_hexdigit()).count();
    if digits > DIGITS_MAX {
        return Err("an invalid chunk size");
    }
    let value = |digit: &u8| u64::from((*digit as char).to_digit(16).unwrap_or_default());
    let size = buffer[..digits].iter().fold(0, |size, digit| size << 4 | value(digit));
    if digits > 0 && buffer[digits..].starts_with(b"\r\n") {
        buffer.advance(digits + 2);
        return Ok(Some(size));
    }
    match buffer.get(digits) {
        // Extensions are skipped.
        Some(b'\r' | b';' | b' ' | b'\t') if digits > 0 => Ok(line(buffer)?.map(|_| size)),
        Some(_) => Err("an invalid chunk size"),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;

//! The body of an answer, taken off the front of what was read without copying it.

use bytes::{Buf, Bytes, BytesMut};

use super::Broken;

/// Longest line that frames a chunk: its size, and extensions nobody sends.
const LINE_BYTES_MAX: usize = 1_024;

/// Digits of a chunk's size: as many as a `u64` has.
const DIGITS_MAX: usize = 16;

/// Most trailer lines, all of which are dropped.
const TRAILERS_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    Length { left: u64 },
    UntilClose,
    Chunked(Chunk),
}

/// Where we stand in a chunked body.
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
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// More must be read first.
    More,
    End,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::Length { left: 0 }
    }
}

impl Reader {
    pub(super) const fn length(left: u64) -> Reader {
        Reader::Length { left }
    }

    pub(super) const fn chunked() -> Reader {
        Reader::Chunked(Chunk::Size)
    }

    pub(super) const fn until_close() -> Reader {
        Reader::UntilClose
    }

    pub(super) fn ends_at_close(&self) -> bool {
        *self == Reader::UntilClose
    }

    /// Whether all of it has been taken. Reads the end mark of a chunked body if it is there already.
    pub(super) fn is_complete(&mut self, buffer: &mut BytesMut) -> bool {
        match self {
            Reader::Length { left } => *left == 0,
            Reader::UntilClose => false,
            Reader::Chunked(Chunk::End) => true,
            // What is there but the end, data or nonsense, is for the next look.
            Reader::Chunked(chunk) => {
                !buffer.is_empty() && chunk.frame(buffer).is_ok() && *chunk == Chunk::End
            }
        }
    }

    pub(super) fn bytes_left(&self) -> Option<u64> {
        match self {
            Reader::Length { left } => Some(*left),
            Reader::UntilClose | Reader::Chunked(_) => None,
        }
    }

    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, Broken> {
        match self {
            Reader::Length { left } => Ok(take(left, buffer)),
            Reader::UntilClose if buffer.is_empty() => Ok(Piece::More),
            Reader::UntilClose => Ok(Piece::Data(buffer.split().freeze())),
            Reader::Chunked(chunk) => {
                chunk.frame(buffer)?;
                match chunk {
                    Chunk::Data { left } => Ok(take(left, buffer)),
                    Chunk::End => Ok(Piece::End),
                    Chunk::Size | Chunk::Break | Chunk::Trailers { .. } => Ok(Piece::More),
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
    /// Reads the framing up to the next data, the end, or the end of what is there.
    fn frame(&mut self, buffer: &mut BytesMut) -> Result<(), Broken> {
        loop {
            *self = match *self {
                Chunk::Data { left: 0 } => Chunk::Break,
                Chunk::Data { .. } | Chunk::End => return Ok(()),
                Chunk::Break => match line(buffer)? {
                    None => return Ok(()),
                    Some(0) => Chunk::Size,
                    Some(_) => return Err(Broken::NotHttp("a chunk longer than its size")),
                },
                Chunk::Size => match size(buffer)? {
                    None => return Ok(()),
                    Some(0) => Chunk::Trailers { lines: 0 },
                    Some(left) => Chunk::Data { left },
                },
                Chunk::Trailers { lines: TRAILERS_MAX } => return Err(Broken::NotHttp("too many trailers")),
                Chunk::Trailers { lines } => match line(buffer)? {
                    None => return Ok(()),
                    Some(0) => Chunk::End,
                    Some(_) => Chunk::Trailers { lines: lines + 1 },
                },
            };
        }
    }
}

/// Takes a line off the buffer; its length without the break, or none if it is not all there.
fn line(buffer: &mut BytesMut) -> Result<Option<usize>, Broken> {
    if buffer.starts_with(b"\r\n") {
        buffer.advance(2);
        return Ok(Some(0));
    }
    match memchr::memchr(b'\n', &buffer[..buffer.len().min(LINE_BYTES_MAX)]) {
        Some(end) if end > 0 && buffer[end - 1] == b'\r' => {
            buffer.advance(end + 1);
            Ok(Some(end - 1))
        }
        Some(_) => Err(Broken::NotHttp("a bare line feed")),
        None if buffer.len() >= LINE_BYTES_MAX => Err(Broken::NotHttp("an endless line")),
        None => Ok(None),
    }
}

fn size(buffer: &mut BytesMut) -> Result<Option<u64>, Broken> {
    let digits = buffer.iter().take(DIGITS_MAX + 1).take_while(|it| it.is_ascii_hexdigit()).count();
    if digits > DIGITS_MAX {
        return Err(Broken::NotHttp("an odd chunk size"));
    }
    let value = |digit: &u8| u64::from((*digit as char).to_digit(16).unwrap_or_default());
    let size = buffer[..digits].iter().fold(0, |size, digit| size << 4 | value(digit));
    if digits > 0 && buffer[digits..].starts_with(b"\r\n") {
        buffer.advance(digits + 2);
        return Ok(Some(size));
    }
    match buffer.get(digits) {
        // Extensions are passed over.
        Some(b'\r' | b';' | b' ' | b'\t') if digits > 0 => Ok(line(buffer)?.map(|_| size)),
        Some(_) => Err(Broken::NotHttp("an odd chunk size")),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;

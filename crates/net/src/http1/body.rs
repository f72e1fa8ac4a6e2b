//! The body of a message, taken off the front of the read buffer without copying.

use bytes::{Buf, Bytes, BytesMut};

use super::Malformed;

/// Longest line that frames a chunk: its size and extensions.
const LINE_BYTES_MAX: usize = 1_024;

/// Hex digits of a chunk's size: as many as a `u64` has.
const DIGITS_MAX: usize = 16;

/// Most trailer lines. All are dropped.
const TRAILERS_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BodyReader {
    Length { left: u64 },
    UntilClose,
    Chunked(Chunk),
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
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
    Broken(Malformed),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
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
    pub(crate) const fn length(left: u64) -> BodyReader {
        BodyReader::Length { left }
    }

    pub(crate) const fn chunked() -> BodyReader {
        BodyReader::Chunked(Chunk::Size)
    }

    pub(crate) const fn until_close() -> BodyReader {
        BodyReader::UntilClose
    }

    pub(crate) fn ends_at_close(&self) -> bool {
        *self == BodyReader::UntilClose
    }

    /// Whether all of it has been taken, and of a chunked body the end mark.
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, BodyReader::Length { left: 0 } | BodyReader::Chunked(Chunk::End))
    }

    /// The same, but reads the end mark of a chunked body if it is there already.
    pub(crate) fn is_complete(&mut self, buffer: &mut BytesMut) -> bool {
        if let BodyReader::Chunked(chunk) = self
            && *chunk != Chunk::End
            && !buffer.is_empty()
        {
            // Anything but the end, data or an error, is for the next call.
            return chunk.frame(buffer).is_ok() && *chunk == Chunk::End;
        }
        self.is_taken()
    }

    pub(crate) fn bytes_left(&self) -> Option<u64> {
        match self {
            BodyReader::Length { left } => Some(*left),
            BodyReader::UntilClose | BodyReader::Chunked(_) => None,
        }
    }

    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, Malformed> {
        match self {
            BodyReader::Length { left } => Ok(take(left, buffer)),
            BodyReader::UntilClose if buffer.is_empty() => Ok(Piece::More),
            BodyReader::UntilClose => Ok(Piece::Data(buffer.split().freeze())),
            // Where a stream stands between two of its chunks.
            BodyReader::Chunked(Chunk::Size) if buffer.is_empty() => Ok(Piece::More),
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
    fn frame(&mut self, buffer: &mut BytesMut) -> Result<(), Malformed> {
        loop {
            match self.step(buffer) {
                Ok(Some(next)) => *self = next,
                Ok(None) => return Ok(()),
                Err(why) => {
                    *self = Chunk::Broken(why);
                    return Err(why);
                }
            }
        }
    }

    /// The next position; none if there is data, nothing more to come, or too little in the buffer.
    fn step(&self, buffer: &mut BytesMut) -> Result<Option<Chunk>, Malformed> {
        Ok(match *self {
            Chunk::Data { left: 0 } if buffer.starts_with(LINE_BREAK) => {
                buffer.advance(LINE_BREAK.len());
                Some(Chunk::Size)
            }
            Chunk::Data { left: 0 } => Some(Chunk::Break),
            Chunk::Data { .. } | Chunk::End => None,
            Chunk::Broken(why) => return Err(why),
            Chunk::Size | Chunk::Break if buffer.is_empty() => None,
            Chunk::Break => match line_length(buffer)? {
                None => None,
                Some(0) => {
                    buffer.advance(LINE_BREAK.len());
                    Some(Chunk::Size)
                }
                Some(_) => return Err("a chunk longer than its size"),
            },
            Chunk::Size => size(buffer)?.map(|size| match size {
                0 => Chunk::Trailers { lines: 0 },
                left => Chunk::Data { left },
            }),
            Chunk::Trailers { lines: TRAILERS_MAX } => return Err("too many trailers"),
            Chunk::Trailers { lines } => match line_length(buffer)? {
                None => None,
                Some(length) if length > 0 && !is_header(&buffer[..length]) => {
                    return Err("an invalid trailer");
                }
                Some(length) => {
                    buffer.advance(length + LINE_BREAK.len());
                    Some(if length == 0 { Chunk::End } else { Chunk::Trailers { lines: lines + 1 } })
                }
            },
        })
    }
}

const LINE_BREAK: &[u8] = b"\r\n";

/// The length of the first line, without its break; none if it is incomplete.
fn line_length(buffer: &[u8]) -> Result<Option<usize>, Malformed> {
    if buffer.starts_with(LINE_BREAK) {
        return Ok(Some(0));
    }
    let within = &buffer[..buffer.len().min(LINE_BYTES_MAX)];
    match memchr::memchr2(b'\r', b'\n', within) {
        Some(end) if within[end..].starts_with(LINE_BREAK) => Ok(Some(end)),
        // The line feed may follow.
        Some(end) if within[end..] == *b"\r" && buffer.len() < LINE_BYTES_MAX => Ok(None),
        Some(_) => Err("a bare line break"),
        None if buffer.len() >= LINE_BYTES_MAX => Err("an endless line"),
        None => Ok(None),
    }
}

/// Whether a line has the form of a header.
fn is_header(line: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 1];
    let whole = [line, b"\r\n\r\n"].concat();
    httparse::parse_headers(&whole, &mut headers).is_ok_and(|it| it.is_complete())
}

fn size(buffer: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    let (mut size, mut digits) = (0, 0);
    while let Some(digit) = buffer.get(digits).and_then(|&it| char::from(it).to_digit(16)) {
        if digits == DIGITS_MAX {
            return Err("an invalid chunk size");
        }
        size = size << 4 | u64::from(digit);
        digits += 1;
    }
    if digits > 0 && buffer[digits..].starts_with(LINE_BREAK) {
        buffer.advance(digits + LINE_BREAK.len());
        return Ok(Some(size));
    }
    // Extensions are skipped. Blanks may stand before one, and nothing else.
    match buffer.get(digits) {
        None => Ok(None),
        Some(b'\r' | b';' | b' ' | b'\t') if digits > 0 => {
            let Some(length) = line_length(buffer)? else { return Ok(None) };
            let mut after = buffer[digits..length].iter().skip_while(|it| matches!(it, b' ' | b'\t'));
            if after.next().is_some_and(|&it| it != b';') {
                return Err("an invalid chunk size");
            }
            buffer.advance(length + LINE_BREAK.len());
            Ok(Some(size))
        }
        Some(_) => Err("an invalid chunk size"),
    }
}

#[cfg(test)]
mod tests;

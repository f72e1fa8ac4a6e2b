//! Reads MessagePack from a slice, value by value, as far as KV events need it.
//!
//! Written by hand because the bytes come over an unauthenticated socket, and here both attacks on a reader
//! are visible. A length that promises more than the payload holds fails before any memory is reserved,
//! because every element takes at least a byte. Nesting costs nothing, because skipping counts the values
//! left instead of recursing. It borrows, and allocates nothing.

use crate::kv::Malformed;

/// A position in the bytes. A copy is a bookmark.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A value, or the start of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Head<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// This many values follow.
    Array(usize),
    /// This many pairs follow.
    Map(usize),
    Extension,
}

const NIL: u8 = 0xc0;
const U8: u8 = 0xcc;
const U16: u8 = 0xcd;
const U32: u8 = 0xce;
const U64: u8 = 0xcf;

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(super) fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    #[inline]
    pub(super) fn head(&mut self) -> Result<Head<'a>, Malformed> {
        let [marker] = self.chunk()?;
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(marker.into()),
            0x80..=0x8f => self.map(usize::from(marker & 0x0f))?,
            0x90..=0x9f => self.array(usize::from(marker & 0x0f))?,
            0xa0..=0xbf => Head::Text(self.take(usize::from(marker & 0x1f))?),
            NIL => Head::Nil,
            0xc1 => return Err(self.malformed("a marker that means nothing")),
            0xc2 | 0xc3 => Head::Bool,
            0xc4..=0xc6 => {
                let length = self.length(marker - 0xc4)?;
                Head::Bytes(self.take(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.length(marker - 0xc7)?;
                self.extension(length)?
            }
            0xca => Head::Float(f32::from_be_bytes(self.chunk()?).into()),
            0xcb => Head::Float(f64::from_be_bytes(self.chunk()?)),
            U8 => Head::Unsigned(u8::from_be_bytes(self.chunk()?).into()),
            U16 => Head::Unsigned(u16::from_be_bytes(self.chunk()?).into()),
            U32 => Head::Unsigned(u32::from_be_bytes(self.chunk()?).into()),
            U64 => Head::Unsigned(u64::from_be_bytes(self.chunk()?)),
            0xd0 => signed(i8::from_be_bytes(self.chunk()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.chunk()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.chunk()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.chunk()?)),
            0xd4..=0xd8 => self.extension(1 << (marker - 0xd4))?,
            0xd9..=0xdb => {
                let length = self.length(marker - 0xd9)?;
                Head::Text(self.take(length)?)
            }
            0xdc | 0xdd => {
                let count = self.length(marker - 0xdc + 1)?;
                self.array(count)?
            }
            0xde | 0xdf => {
                let count = self.length(marker - 0xde + 1)?;
                self.map(count)?
            }
            0xe0..=0xff => Head::Negative((marker as i8).into()),
        })
    }

    /// Skips `values` whole values and everything inside them.
    pub(super) fn skip(&mut self, values: usize) -> Result<(), Malformed> {
        // Cannot overflow: no head promises more values than there are bytes.
        let mut left = values;
        while left > 0 {
            left -= 1;
            left += match self.head()? {
                Head::Array(count) => count,
                Head::Map(count) => 2 * count,
                _ => 0,
            };
        }
        Ok(())
    }

    /// The bytes of the next value, with everything inside it.
    pub(super) fn raw(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        self.skip(1)?;
        Ok(&self.bytes[start..self.at])
    }

    /// Skips a nil, if there is one.
    pub(super) fn nil(&mut self) -> bool {
        let is_nil = self.bytes.get(self.at) == Some(&NIL);
        self.at += usize::from(is_nil);
        is_nil
    }

    /// True if the next `values` values are all nil.
    pub(super) fn are_nil(&self, values: usize) -> bool {
        let values = self.bytes[self.at..].get(..values);
        values.is_some_and(|it| it.iter().all(|&byte| byte == NIL))
    }

    /// The number of values in the array that begins here.
    pub(super) fn count(&mut self) -> Result<usize, Malformed> {
        match self.head()? {
            Head::Array(count) => Ok(count),
            _ => Err(self.malformed("not an array")),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        match self.head()? {
            Head::Text(text) => Ok(text),
            _ => Err(self.malformed("not a string")),
        }
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        match self.head()? {
            Head::Unsigned(number) => u32::try_from(number).ok(),
            _ => None,
        }
        .ok_or_else(|| self.malformed("not a number of 32 bits"))
    }

    /// Reads `count` numbers, the token ids of a prompt: nearly the whole payload.
    ///
    /// Ids of one, two and four bytes alternate at random, and a branch on the size would be mispredicted for
    /// every other token: 6.8 M blocks of 16 a second with it (`benches/kv.rs`), 9.0 M without.
    #[inline]
    pub(super) fn u32s(&mut self, count: usize, numbers: &mut Vec<u32>) -> Result<(), Malformed> {
        numbers.reserve(count);
        for _ in 0..count {
            let number = match self.bytes[self.at..].first_chunk().map(|it| short(u64::from_be_bytes(*it))) {
                Some(Some((number, width))) => {
                    self.at += width;
                    number
                }
                _ => self.u32()?,
            };
            numbers.push(number);
        }
        Ok(())
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let chunk = self.bytes[self.at..].first_chunk().ok_or_else(|| self.malformed("cut short"))?;
        self.at += N;
        Ok(*chunk)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let taken = self.bytes[self.at..].get(..length).ok_or_else(|| self.malformed("cut short"))?;
        self.at += length;
        Ok(taken)
    }

    /// A length of 1, 2 or 4 bytes, for a `width` of 0, 1 or 2.
    fn length(&mut self, width: u8) -> Result<usize, Malformed> {
        let length = match width {
            0 => u8::from_be_bytes(self.chunk()?).into(),
            1 => u16::from_be_bytes(self.chunk()?).into(),
            _ => u32::from_be_bytes(self.chunk()?),
        };
        Ok(length as usize)
    }

    fn array(&self, count: usize) -> Result<Head<'a>, Malformed> {
        self.has(count).map(|()| Head::Array(count))
    }

    fn map(&self, count: usize) -> Result<Head<'a>, Malformed> {
        self.has(count.saturating_mul(2)).map(|()| Head::Map(count))
    }

    /// Every value takes at least one byte.
    fn has(&self, values: usize) -> Result<(), Malformed> {
        match self.bytes.len() - self.at {
            left if values <= left => Ok(()),
            _ => Err(self.malformed("cut short")),
        }
    }

    fn extension(&mut self, length: usize) -> Result<Head<'a>, Malformed> {
        self.take(length.saturating_add(1)).map(|_| Head::Extension)
    }
}

const fn signed(number: i64) -> Head<'static> {
    if number < 0 { Head::Negative(number) } else { Head::Unsigned(number as u64) }
}

/// The number at the top of a word and its length in bytes, if it is a number of up to 32 bits.
#[inline]
fn short(word: u64) -> Option<(u32, usize)> {
    let marker = (word >> 56) as u8;
    let is_small = marker < 0x80;
    let log = marker.wrapping_sub(U8);
    if !is_small && log > U32 - U8 {
        return None;
    }
    // Compute both results, so that the choice is a move and not a branch.
    let bytes = 1usize << (log & 3);
    let long = ((word << 8) >> (64 - 8 * bytes)) as u32;
    let number = if is_small { u32::from(marker) } else { long };
    Some((number, if is_small { 1 } else { bytes + 1 }))
}

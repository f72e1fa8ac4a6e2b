//! The header lines of a message, and what they say of its body and its connection.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};

use super::Malformed;
use super::body::BodyReader;
use crate::spare;

/// Start and length of a part of a head, so that it can become a slice of the head's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Span(usize, usize);

impl Span {
    pub(crate) fn of(buffer: &[u8], part: &[u8]) -> Span {
        match part.len() {
            // An empty part may point anywhere.
            0 => Span(0, 0),
            length => Span((part.as_ptr() as usize).saturating_sub(buffer.as_ptr() as usize), length),
        }
    }

    pub(crate) fn slice(self, head: &Bytes) -> Bytes {
        head.slice(self.0..self.0 + self.1)
    }
}

/// Appends a number in decimal digits. A `HeaderValue` of it would allocate.
pub(crate) fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A header line: its name and its value.
pub(crate) type HeaderSpan = (Span, Span);

thread_local! {
    /// Memory for the lines of the next head: each head would allocate it otherwise.
    static LINES: Cell<Vec<HeaderSpan>> = const { Cell::new(Vec::new()) };
}

pub(crate) fn spans(buffer: &BytesMut, headers: &[httparse::Header<'_>]) -> Vec<HeaderSpan> {
    let span = |it: &httparse::Header<'_>| (Span::of(buffer, it.name.as_bytes()), Span::of(buffer, it.value));
    let mut lines = LINES.take();
    lines.clear();
    lines.extend(headers.iter().map(span));
    lines
}

/// The headers of a message, with room for as many as the proxy adds to it: to grow costs a thousand instructions.
pub(crate) fn collect(head: &Bytes, spans: Vec<HeaderSpan>, added: usize) -> Result<HeaderMap, Malformed> {
    let mut headers = spare::headers(spans.len() + added);
    for (name, value) in &spans {
        let name = HeaderName::from_bytes(&head[name.0..name.0 + name.1]);
        match (name, HeaderValue::from_maybe_shared(value.slice(head))) {
            (Ok(name), Ok(value)) => drop(headers.append(name, value)),
            _ => return Err("an invalid header"),
        }
    }
    LINES.set(spans);
    Ok(headers)
}

/// The headers that say how a message is framed, and a few more, from one pass over all of them: to look each up by its hash
/// took 600 instructions more for a request and its response.
#[derive(Default)]
pub(crate) struct FramingHeaders<'a> {
    length: Option<&'a HeaderValue>,
    has_other_length: bool,
    pub(crate) encoding: Option<&'a HeaderValue>,
    has_second_encoding: bool,
    /// How many name connection options.
    connections: usize,
    /// How many name a host.
    pub(crate) hosts: usize,
    /// The first of these.
    pub(crate) expect: Option<&'a HeaderValue>,
}

impl<'a> FramingHeaders<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> FramingHeaders<'a> {
        let mut found = FramingHeaders::default();
        for (name, value) in headers {
            if name == CONTENT_LENGTH {
                found.has_other_length |= *found.length.get_or_insert(value) != value;
            } else if name == TRANSFER_ENCODING {
                found.has_second_encoding |= found.encoding.replace(value).is_some();
            } else if name == CONNECTION {
                found.connections += 1;
            } else if name == HOST {
                found.hosts += 1;
            } else if name == EXPECT {
                found.expect = found.expect.or(Some(value));
            }
        }
        found
    }

    /// How the body is framed; `otherwise`, if no header says so. RFC 9112 §6.3. Ambiguous framing is an error: it allows
    /// smuggling.
    pub(crate) fn framing(&self, otherwise: BodyReader) -> Result<BodyReader, Malformed> {
        match (self.encoding, self.length) {
            (Some(_), _) if self.has_second_encoding => Err("two transfer encodings"),
            (Some(_), Some(_)) => Err("both a length and an encoding"),
            (Some(encoding), None) if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
                Ok(BodyReader::chunked())
            }
            (Some(_), None) => Err("an unknown transfer encoding"),
            (None, Some(_)) if self.has_other_length => Err("two lengths"),
            (None, Some(length)) => match parse_length(length) {
                Some(length) => Ok(BodyReader::length(length)),
                None => Err("an invalid length"),
            },
            (None, None) => Ok(otherwise),
        }
    }

    /// Whether the sender keeps the connection open after this message. `headers` are the same.
    pub(crate) fn keeps_alive(&self, is_http10: bool, headers: &HeaderMap) -> bool {
        if self.connections == 0 {
            return !is_http10;
        }
        let has = |word: &str| {
            let values = headers.get_all(CONNECTION).iter().filter_map(|it| it.to_str().ok());
            values.flat_map(|it| it.split(',')).any(|it| it.trim().eq_ignore_ascii_case(word))
        };
        !has("close") && (!is_http10 || has("keep-alive"))
    }
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| (byte - b'0').into())
}

fn parse_length(value: &HeaderValue) -> Option<u64> {
    let (&first, rest) = value.as_bytes().split_first()?;
    // Not `parse`, which would take a plus sign.
    rest.iter().try_fold(digit(first)?, |number, &it| number.checked_mul(10)?.checked_add(digit(it)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_header_values_write_them() {
        for number in [0, 9, 10, 65_536, 1 << 33, u64::MAX] {
            let mut out = b"x".to_vec();
            push_number(&mut out, number);
            assert_eq!(out[1..], *HeaderValue::from(number).as_bytes());
        }
    }
}

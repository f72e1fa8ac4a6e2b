//! The head of an answer: status, headers, and how its body is framed.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use super::Broken;
use super::body::Reader;

/// Largest head of a worker's answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Header lines of a worker's answer.
const LINES_MAX: usize = 100;

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Whether the connection may carry another request.
    pub(super) keep: bool,
}

/// Takes a head off the front of what was read; none if it is not all there yet. Interim answers (100,
/// 103) are passed over.
pub(super) fn parse(buffer: &mut BytesMut, method: &Method) -> Result<Option<(Head, Reader)>, Broken> {
    loop {
        let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
        let mut parsed = httparse::Response::new(&mut lines);
        let length = match parsed.parse(buffer) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if buffer.len() > HEAD_BYTES_MAX => {
                return Err(Broken::NotHttp("the head is too long"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Broken::NotHttp("the head cannot be read")),
        };
        let code = parsed.code.unwrap_or_default();
        let status = StatusCode::from_u16(code).map_err(|_| Broken::NotHttp("an odd status"))?;
        if status.is_informational() {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(Broken::NotHttp("an upgrade nobody asked for"));
            }
            buffer.advance(length);
            continue;
        }
        let old = parsed.version == Some(0);
        let places: Vec<Place> = parsed.headers.iter().map(|it| Place::of(buffer, it)).collect();
        let bytes = buffer.split_to(length).freeze();
        let headers = collect(&bytes, &places)?;
        let body = framing(method, status, &headers)?;
        let keep = keeps(old, &headers) && !body.ends_at_close();
        return Ok(Some((Head { status, headers, keep }, body)));
    }
}

/// Where a header line stands in the buffer, so that its value can be a slice of it.
struct Place {
    name: (usize, usize),
    value: (usize, usize),
}

impl Place {
    fn of(buffer: &BytesMut, header: &httparse::Header<'_>) -> Place {
        let start = buffer.as_ptr() as usize;
        // An empty part may point anywhere.
        let place = |part: &[u8]| match part.len() {
            0 => (0, 0),
            length => ((part.as_ptr() as usize).saturating_sub(start), length),
        };
        Place { name: place(header.name.as_bytes()), value: place(header.value) }
    }
}

fn collect(bytes: &Bytes, places: &[Place]) -> Result<HeaderMap, Broken> {
    // Room for the three that are added on the way out.
    let mut headers = HeaderMap::with_capacity(places.len() + 3);
    for Place { name, value } in places {
        let name = HeaderName::from_bytes(&bytes[name.0..name.0 + name.1]);
        let value = HeaderValue::from_maybe_shared(bytes.slice(value.0..value.0 + value.1));
        match (name, value) {
            (Ok(name), Ok(value)) => drop(headers.append(name, value)),
            _ => return Err(Broken::NotHttp("an odd header")),
        }
    }
    Ok(headers)
}

/// RFC 9112 §6.3. What could be read in two ways is refused: it is how answers are smuggled.
fn framing(method: &Method, status: StatusCode, headers: &HeaderMap) -> Result<Reader, Broken> {
    if method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(Reader::length(0));
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (headers.get(TRANSFER_ENCODING), lengths.next()) {
        (Some(_), Some(_)) => Err(Broken::NotHttp("both a length and an encoding")),
        (Some(encoding), None) if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Ok(Reader::chunked())
        }
        (Some(_), None) => Err(Broken::NotHttp("an unknown transfer encoding")),
        (None, Some(length)) if lengths.all(|it| it == length) => match parse_length(length) {
            Some(length) => Ok(Reader::length(length)),
            None => Err(Broken::NotHttp("an odd length")),
        },
        (None, Some(_)) => Err(Broken::NotHttp("two lengths")),
        (None, None) => Ok(Reader::until_close()),
    }
}

fn parse_length(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    // `parse` would take a plus sign.
    text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse().ok())?
}

fn keeps(old: bool, headers: &HeaderMap) -> bool {
    let says = |word: &str| {
        let values = headers.get_all(CONNECTION).iter().filter_map(|it| it.to_str().ok());
        values.flat_map(|it| it.split(',')).any(|it| it.trim().eq_ignore_ascii_case(word))
    };
    if !headers.contains_key(CONNECTION) {
        return !old;
    }
    if old { says("keep-alive") } else { !says("close") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(Head, Reader)>, Broken> {
        parse(&mut BytesMut::from(text), &Method::POST)
    }

    /// Status, whether the connection is kept, and how the body is framed.
    #[track_caller]
    fn check(text: &str, expected: Option<(u16, bool, Reader)>) {
        let actual = read(text).ok().flatten().map(|(head, body)| (head.status.as_u16(), head.keep, body));
        assert_eq!(actual, expected, "{text:?}");
    }

    #[test]
    fn bodies_are_framed_as_the_standard_says() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", Some((200, true, Reader::length(5))));
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", Some((200, true, Reader::chunked())));
        check("HTTP/1.1 200 OK\r\n\r\n", Some((200, false, Reader::until_close())));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some((204, true, Reader::length(0))));
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n",
            Some((200, false, Reader::length(1))),
        );
        check("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", Some((200, false, Reader::length(1))));
        check(
            "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: Keep-Alive\r\n\r\n",
            Some((200, true, Reader::length(1))),
        );
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n",
            Some((200, true, Reader::length(2))),
        );
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for lines in [
            "content-length: 2\r\ntransfer-encoding: chunked",
            "content-length: 2\r\ncontent-length: 3",
            "content-length: +2",
            "content-length: 2, 2",
            "content-length: -1",
            "content-length: 99999999999999999999999",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, identity",
        ] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n")).is_err(), "{lines}");
        }
    }

    #[test]
    fn interim_answers_are_passed_over() {
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Some((200, true, Reader::length(0))),
        );
        assert!(read("HTTP/1.1 101 Switching Protocols\r\n\r\n").is_err());
    }

    #[test]
    fn half_a_head_waits_and_an_endless_one_does_not() {
        assert!(matches!(read("HTTP/1.1 200 OK\r\nx-a: "), Ok(None)));
        let endless = format!("HTTP/1.1 200 OK\r\nx-a: {}", "a".repeat(HEAD_BYTES_MAX));
        assert!(read(&endless).is_err());
        assert!(read("SSH-2.0-OpenSSH\r\n").is_err());
    }

    #[test]
    fn every_header_line_is_kept() {
        let (head, _) =
            read("HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX-Empty:\r\n\r\n").unwrap().unwrap();
        let cookies: Vec<_> = head.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a", "b"]);
        assert!(head.headers["x-empty"].is_empty());
    }
}

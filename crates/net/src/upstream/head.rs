//! The head of a response: status, headers, and how its body is framed.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode};

use super::UpstreamError;
use super::body::BodyReader;

/// Largest head of a worker's response.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Header lines of a worker's response.
const LINES_MAX: usize = 100;

#[derive(Debug)]
pub struct ResponseHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Whether the connection may carry another request.
    pub(super) keep_alive: bool,
}

/// Interim responses (100, 103) before one head. A worker has no use for more, and each would extend its deadline.
const INTERIM_MAX: u32 = 8;

/// Takes a head off the front of the buffer; none if it is incomplete. Interim responses are skipped, and counted in
/// `interim`.
pub(super) fn parse(
    buffer: &mut BytesMut,
    method: &Method,
    interim: &mut u32,
) -> Result<Option<(ResponseHead, BodyReader)>, UpstreamError> {
    loop {
        let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
        let mut parsed = httparse::Response::new(&mut lines);
        let length = match parsed.parse(buffer) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if buffer.len() > HEAD_BYTES_MAX => {
                return Err(UpstreamError::NotHttp("the head is too long"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(UpstreamError::NotHttp("the head cannot be read")),
        };
        let code = parsed.code.unwrap_or_default();
        let status = StatusCode::from_u16(code).map_err(|_| UpstreamError::NotHttp("an invalid status"))?;
        if status.is_informational() {
            if status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(UpstreamError::NotHttp("an unrequested upgrade"));
            }
            *interim += 1;
            if *interim > INTERIM_MAX {
                return Err(UpstreamError::NotHttp("too many interim responses"));
            }
            buffer.advance(length);
            continue;
        }
        let is_http10 = parsed.version == Some(0);
        let spans: Vec<HeaderSpan> = parsed.headers.iter().map(|it| HeaderSpan::of(buffer, it)).collect();
        let bytes = buffer.split_to(length).freeze();
        let headers = collect(&bytes, &spans)?;
        let body = framing(method, status, &headers)?;
        let keep_alive = keeps_alive(is_http10, &headers) && !body.ends_at_close();
        return Ok(Some((ResponseHead { status, headers, keep_alive }, body)));
    }
}

/// Start and length of a header in the buffer, so that its value can be a slice of it.
struct HeaderSpan {
    name: (usize, usize),
    value: (usize, usize),
}

impl HeaderSpan {
    fn of(buffer: &BytesMut, header: &httparse::Header<'_>) -> HeaderSpan {
        let start = buffer.as_ptr() as usize;
        // An empty part may point anywhere.
        let span = |part: &[u8]| match part.len() {
            0 => (0, 0),
            length => ((part.as_ptr() as usize).saturating_sub(start), length),
        };
        HeaderSpan { name: span(header.name.as_bytes()), value: span(header.value) }
    }
}

fn collect(bytes: &Bytes, spans: &[HeaderSpan]) -> Result<HeaderMap, UpstreamError> {
    // Room for three headers that the proxy adds.
    let mut headers = HeaderMap::with_capacity(spans.len() + 3);
    for HeaderSpan { name, value } in spans {
        let name = HeaderName::from_bytes(&bytes[name.0..name.0 + name.1]);
        let value = HeaderValue::from_maybe_shared(bytes.slice(value.0..value.0 + value.1));
        match (name, value) {
            (Ok(name), Ok(value)) => drop(headers.append(name, value)),
            _ => return Err(UpstreamError::NotHttp("an invalid header")),
        }
    }
    Ok(headers)
}

/// RFC 9112 §6.3. Ambiguous framing is an error: it allows response smuggling.
fn framing(method: &Method, status: StatusCode, headers: &HeaderMap) -> Result<BodyReader, UpstreamError> {
    if method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(BodyReader::length(0));
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), lengths.next()) {
        (Some(_), _) if encodings.next().is_some() => Err(UpstreamError::NotHttp("two transfer encodings")),
        (Some(_), Some(_)) => Err(UpstreamError::NotHttp("both a length and an encoding")),
        (Some(encoding), None) if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyReader::chunked())
        }
        (Some(_), None) => Err(UpstreamError::NotHttp("an unknown transfer encoding")),
        (None, Some(length)) if lengths.all(|it| it == length) => match parse_length(length) {
            Some(length) => Ok(BodyReader::length(length)),
            None => Err(UpstreamError::NotHttp("an invalid length")),
        },
        (None, Some(_)) => Err(UpstreamError::NotHttp("two lengths")),
        (None, None) => Ok(BodyReader::until_close()),
    }
}

fn parse_length(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    // `parse` would take a plus sign.
    text.bytes().all(|it| it.is_ascii_digit()).then(|| text.parse().ok())?
}

fn keeps_alive(is_http10: bool, headers: &HeaderMap) -> bool {
    let has = |word: &str| {
        let values = headers.get_all(CONNECTION).iter().filter_map(|it| it.to_str().ok());
        values.flat_map(|it| it.split(',')).any(|it| it.trim().eq_ignore_ascii_case(word))
    };
    if !headers.contains_key(CONNECTION) {
        return !is_http10;
    }
    if is_http10 { has("keep-alive") } else { !has("close") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<(ResponseHead, BodyReader)>, UpstreamError> {
        parse(&mut BytesMut::from(text), &Method::POST, &mut 0)
    }

    /// Status, whether the connection is kept, and how the body is framed.
    #[track_caller]
    fn check(text: &str, expected: Option<(u16, bool, BodyReader)>) {
        let actual =
            read(text).ok().flatten().map(|(head, body)| (head.status.as_u16(), head.keep_alive, body));
        assert_eq!(actual, expected, "{text:?}");
    }

    #[test]
    fn bodies_are_framed_as_the_standard_says() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", Some((200, true, BodyReader::length(5))));
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n",
            Some((200, true, BodyReader::chunked())),
        );
        check("HTTP/1.1 200 OK\r\n\r\n", Some((200, false, BodyReader::until_close())));
        check("HTTP/1.1 204 No Content\r\n\r\n", Some((204, true, BodyReader::length(0))));
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\n",
            Some((200, false, BodyReader::length(1))),
        );
        check("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n", Some((200, false, BodyReader::length(1))));
        check(
            "HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: Keep-Alive\r\n\r\n",
            Some((200, true, BodyReader::length(1))),
        );
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\n",
            Some((200, true, BodyReader::length(2))),
        );
    }

    #[test]
    fn ambiguous_framing_is_an_error() {
        for lines in [
            "content-length: 2\r\ntransfer-encoding: chunked",
            "content-length: 2\r\ncontent-length: 3",
            "content-length: +2",
            "content-length: 2, 2",
            "content-length: -1",
            "content-length: 99999999999999999999999",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked, identity",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        ] {
            assert!(read(&format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n")).is_err(), "{lines}");
        }
    }

    #[test]
    fn interim_responses_are_skipped() {
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Some((200, true, BodyReader::length(0))),
        );
        assert!(read("HTTP/1.1 101 Switching Protocols\r\n\r\n").is_err());
    }

    #[test]
    fn interim_responses_without_end_are_an_error_however_they_are_cut() {
        let mut interim = 0;
        let mut one =
            || parse(&mut BytesMut::from("HTTP/1.1 100 Continue\r\n\r\n"), &Method::POST, &mut interim);
        assert!((0..INTERIM_MAX).all(|_| matches!(one(), Ok(None))));
        assert!(one().is_err());
    }

    #[test]
    fn half_a_head_waits_for_more_and_an_endless_one_is_an_error() {
        assert!(matches!(read("HTTP/1.1 200 OK\r\nx-a: "), Ok(None)));
        let endless = format!("HTTP/1.1 200 OK\r\nx-a: {}", "a".repeat(HEAD_BYTES_MAX));
        assert!(read(&endless).is_err());
        assert!(read("SSH-2.0-OpenSSH\r\n").is_err());
    }

    #[test]
    fn repeated_and_empty_headers_are_kept() {
        let (head, _) =
            read("HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nX-Empty:\r\n\r\n").unwrap().unwrap();
        let cookies: Vec<_> = head.headers.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a", "b"]);
        assert!(head.headers["x-empty"].is_empty());
    }
}

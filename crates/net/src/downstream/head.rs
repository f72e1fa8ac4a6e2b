//! The head of a request: method, target, headers, and how its body is framed.

use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use http::header::HeaderValue;
use http::uri::InvalidUri;
use http::{Method, Request, Uri, Version};
use httparse::Status;

use super::Exchange;
use crate::http1::body::BodyReader;
use crate::http1::head::{self, FramingHeaders, Span};

/// Header lines of a request.
pub const LINES_MAX: usize = 128;

/// Headers that a request gets on its way to a worker: its id, a trace, a rank.
const ADDED: usize = 3;

/// Longest target, as in `http::Uri`.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// The client sent something that is not a request that we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    #[error("the head is not HTTP/1.1: {0}")]
    NotHttp(&'static str),
    #[error("the head has too many bytes or lines")]
    TooLarge,
    #[error("the target has more than {TARGET_BYTES_MAX} bytes")]
    TargetTooLong,
}

/// Takes a head off the front of the buffer; none if it is incomplete. `searched` counts the bytes that are known not to
/// end it, so that a head which arrives byte by byte is not parsed each time.
pub(super) fn parse(
    buffer: &mut BytesMut,
    searched: &mut usize,
    bytes_max: usize,
) -> Result<Option<(Request<()>, Exchange)>, BadHead> {
    skip_line_breaks(buffer, searched);
    if buffer.is_empty() || *searched > 0 && !ends_after(buffer, *searched) {
        *searched = buffer.len();
        return if buffer.len() > bytes_max { Err(BadHead::TooLarge) } else { Ok(None) };
    }
    let mut lines = [MaybeUninit::uninit(); LINES_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(buffer, &mut lines) {
        Ok(Status::Complete(length)) if length > bytes_max => return Err(BadHead::TooLarge),
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if buffer.len() > bytes_max => return Err(BadHead::TooLarge),
        Ok(Status::Partial) => {
            *searched = buffer.len();
            return Ok(None);
        }
        Err(httparse::Error::TooManyHeaders) => return Err(BadHead::TooLarge),
        Err(error) => return Err(BadHead::NotHttp(why(error))),
    };
    *searched = 0;
    let is_http10 = parsed.version == Some(0);
    let target = Span::of(buffer, parsed.path.unwrap_or_default().as_bytes());
    let method = Method::from_bytes(parsed.method.unwrap_or_default().as_bytes());
    let spans = head::spans(buffer, parsed.headers);
    let bytes = buffer.split_to(length).freeze();
    let target = target.slice(&bytes);
    if target.len() > TARGET_BYTES_MAX {
        return Err(BadHead::TargetTooLong);
    }
    let mut request = Request::new(());
    *request.method_mut() = method.map_err(|_| BadHead::NotHttp("an invalid method"))?;
    *request.uri_mut() =
        Uri::from_maybe_shared(target).map_err(|_: InvalidUri| BadHead::NotHttp("an invalid target"))?;
    *request.version_mut() = if is_http10 { Version::HTTP_10 } else { Version::HTTP_11 };
    *request.headers_mut() = head::collect(&bytes, spans, ADDED).map_err(BadHead::NotHttp)?;
    let exchange = exchange(&request).map_err(BadHead::NotHttp)?;
    Ok(Some((request, exchange)))
}

/// What the head says of the body and the connection.
fn exchange(request: &Request<()>) -> Result<Exchange, &'static str> {
    let (headers, is_http10) = (request.headers(), request.version() == Version::HTTP_10);
    let found = FramingHeaders::of(headers);
    if is_http10 && found.encoding.is_some() {
        return Err("a transfer encoding in HTTP/1.0");
    }
    // None is no contradiction, and probes forget it.
    if found.hosts > 1 {
        return Err("more than one Host");
    }
    let body = found.framing(BodyReader::length(0))?;
    let expects = |it: &HeaderValue| it.as_bytes().eq_ignore_ascii_case(b"100-continue");
    Ok(Exchange {
        body,
        method: request.method().clone(),
        version: request.version(),
        awaits_continue: !is_http10 && found.expect.is_some_and(expects),
        keep_alive: found.keeps_alive(is_http10, headers),
        ..Exchange::default()
    })
}

/// Drops empty lines before a head: some clients send one after a body. They are no part of a request.
fn skip_line_breaks(buffer: &mut BytesMut, searched: &mut usize) {
    let mut rest = &buffer[..];
    while let Some(after) = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n")) {
        rest = after;
    }
    let skipped = buffer.len() - rest.len();
    buffer.advance(skipped);
    *searched = searched.saturating_sub(skipped);
}

/// Whether an empty line, the end of a head, ends after the first `searched` bytes. A line break of one byte is one, too:
/// httparse reads it so.
fn ends_after(buffer: &[u8], searched: usize) -> bool {
    let new = &buffer[searched.saturating_sub(3)..];
    memchr::memchr_iter(b'\n', new).any(|at| matches!(new[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]))
}

fn why(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => "an invalid header name",
        httparse::Error::HeaderValue => "an invalid header value",
        httparse::Error::NewLine => "an invalid line break",
        httparse::Error::Token => "an invalid request line",
        httparse::Error::Version => "an unknown version",
        _ => "it cannot be read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 1_000;

    fn read(text: &str) -> Result<Option<(Request<()>, Exchange)>, BadHead> {
        parse(&mut BytesMut::from(text), &mut 0, BYTES_MAX)
    }

    /// How the body is framed, and whether the connection is kept.
    #[track_caller]
    fn check(lines: &str, body: BodyReader, keep_alive: bool) {
        let (request, exchange) = read(&format!("POST /v1/x?y=1 {lines}\r\n\r\n")).unwrap().unwrap();
        assert_eq!((exchange.body, exchange.keep_alive), (body, keep_alive), "{lines}");
        assert_eq!((request.uri().path(), request.uri().query()), ("/v1/x", Some("y=1")));
    }

    #[test]
    fn requests_are_framed_as_the_standard_says() {
        check("HTTP/1.1", BodyReader::length(0), true);
        check("HTTP/1.1\r\ncontent-length: 5", BodyReader::length(5), true);
        check("HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5", BodyReader::length(5), true);
        check("HTTP/1.1\r\nTransfer-Encoding: Chunked", BodyReader::chunked(), true);
        check("HTTP/1.1\r\nconnection: x, Close", BodyReader::length(0), false);
        check("HTTP/1.0\r\ncontent-length: 5", BodyReader::length(5), false);
        check("HTTP/1.0\r\nconnection: keep-alive", BodyReader::length(0), true);
        check("HTTP/1.0\r\nconnection: keep-alive, close", BodyReader::length(0), false);
    }

    #[test]
    fn what_two_servers_could_read_differently_is_refused() {
        for lines in [
            "HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked",
            "HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2",
            "HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3",
            "HTTP/1.1\r\ncontent-length: 2, 2",
            "HTTP/1.1\r\ncontent-length: +2",
            "HTTP/1.1\r\ncontent-length:",
            "HTTP/1.1\r\ncontent-length : 2",
            "HTTP/1.1\r\ntransfer-encoding: gzip, chunked",
            "HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "HTTP/1.1\r\nhost: a\r\nhost: b",
            "HTTP/1.0\r\ntransfer-encoding: chunked",
            "HTTP/1.1\r\nx-a: b\r\n folded: yes",
            "HTTP/1.9",
            "HTTP/2.0",
        ] {
            assert!(matches!(read(&format!("POST / {lines}\r\n\r\n")), Err(BadHead::NotHttp(_))), "{lines}");
        }
        assert!(read("GET\r\n\r\n").is_err() && read("\u{1}").is_err());
    }

    #[test]
    fn heads_are_limited_however_they_arrive() {
        let long = format!("GET / HTTP/1.1\r\nx-a: {}\r\n\r\n", "a".repeat(BYTES_MAX));
        assert!(matches!(read(&long), Err(BadHead::TooLarge)));
        let (mut buffer, mut searched) = (BytesMut::new(), 0);
        let end = long.bytes().position(|it| {
            buffer.extend_from_slice(&[it]);
            parse(&mut buffer, &mut searched, BYTES_MAX).is_err()
        });
        assert_eq!(end, Some(BYTES_MAX));
        let lines = format!("GET / HTTP/1.1\r\n{}\r\n", "a:\r\n".repeat(LINES_MAX + 1));
        assert!(matches!(read(&lines), Err(BadHead::TooLarge)));
    }

    #[test]
    fn a_head_that_arrives_byte_by_byte_is_read() {
        for text in [
            "GET / HTTP/1.1\r\nx-a: b\r\n\r\n",
            "GET / HTTP/1.1\nx-a: b\n\n",
            "\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            let (mut buffer, mut searched) = (BytesMut::new(), 0);
            let end = text.bytes().position(|it| {
                buffer.extend_from_slice(&[it]);
                parse(&mut buffer, &mut searched, BYTES_MAX).unwrap().is_some()
            });
            assert_eq!(end, Some(text.len() - 1), "{text:?}");
        }
    }
}

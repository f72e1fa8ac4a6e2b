//! The head of a response: status, headers, and how its body is framed.

use std::mem::MaybeUninit;

use bytes::{Buf, BytesMut};
use http::header::HeaderMap;
use http::{Method, StatusCode};
use httparse::{ParserConfig, Status};

use super::UpstreamError;
use crate::http1::body::BodyReader;
use crate::http1::head::{self, FramingHeaders};

/// Largest head of a worker's response.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Header lines of a worker's response.
const LINES_MAX: usize = 100;

/// Headers that a response gets on its way to the client: its id, and four that explain the choice.
const ADDED: usize = 5;

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
        let mut lines = [MaybeUninit::uninit(); LINES_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let config = ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut parsed, buffer, &mut lines) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if buffer.len() > HEAD_BYTES_MAX => {
                return Err(UpstreamError::NotHttp("the head is too long"));
            }
            Ok(Status::Partial) => return Ok(None),
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
        let spans = head::spans(buffer, parsed.headers);
        let headers = head::collect(&buffer.split_to(length).freeze(), spans, ADDED)?;
        let found = FramingHeaders::of(&headers);
        let body = framing(method, status, &found)?;
        let keep_alive = found.keeps_alive(is_http10, &headers) && !body.ends_at_close();
        return Ok(Some((ResponseHead { status, headers, keep_alive }, body)));
    }
}

/// How the body of a response is framed.
fn framing(
    method: &Method,
    status: StatusCode,
    found: &FramingHeaders<'_>,
) -> Result<BodyReader, UpstreamError> {
    if method == Method::HEAD || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(BodyReader::length(0));
    }
    Ok(found.framing(BodyReader::until_close())?)
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

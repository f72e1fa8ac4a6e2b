//! A request on its way to a worker: its head as bytes, its body as the client sent it.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderName, Method};

use crate::secret::Bearer;

pub(crate) struct Outgoing {
    pub(super) method: Method,
    pub(super) head: Bytes,
    pub(super) body: Bytes,
}

/// Room for the head of an ordinary request.
const HEAD_BYTES: usize = 1_024;

impl Outgoing {
    /// A question of our own.
    pub(crate) fn get(path: &str, host: &HeaderValue, key: Option<&Bearer>) -> Outgoing {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        begin(&mut head, &Method::GET, path, host);
        show(&mut head, key);
        head.put_slice(b"\r\n");
        Outgoing { method: Method::GET, head: head.freeze(), body: Bytes::new() }
    }

    /// JSON of our own.
    pub(crate) fn post(path: &str, host: &HeaderValue, key: Option<&Bearer>, body: Bytes) -> Outgoing {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        begin(&mut head, &Method::POST, path, host);
        show(&mut head, key);
        line(&mut head, &CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        line(&mut head, &CONTENT_LENGTH, &HeaderValue::from(body.len()));
        head.put_slice(b"\r\n");
        Outgoing { method: Method::POST, head: head.freeze(), body }
    }

    /// The client's own headers and body; the host and the length are ours to say.
    pub(crate) fn new(
        method: &Method,
        target: &PathAndQuery,
        host: &HeaderValue,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Outgoing {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        begin(&mut head, method, target.as_str(), host);
        for (name, value) in headers {
            if name != HOST && name != CONTENT_LENGTH {
                line(&mut head, name, value);
            }
        }
        if !body.is_empty() || method == Method::POST {
            line(&mut head, &CONTENT_LENGTH, &HeaderValue::from(body.len()));
        }
        head.put_slice(b"\r\n");
        Outgoing { method: method.clone(), head: head.freeze(), body }
    }
}

fn begin(head: &mut BytesMut, method: &Method, target: &str, host: &HeaderValue) {
    head.put_slice(method.as_str().as_bytes());
    head.put_slice(b" ");
    head.put_slice(target.as_bytes());
    head.put_slice(b" HTTP/1.1\r\n");
    line(head, &HOST, host);
}

fn show(head: &mut BytesMut, key: Option<&Bearer>) {
    if let Some(key) = key {
        line(head, &AUTHORIZATION, key.header());
    }
}

/// Neither part can hold a line break: both types refuse them.
fn line(head: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    head.put_slice(name.as_str().as_bytes());
    head.put_slice(b": ");
    head.put_slice(value.as_bytes());
    head.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_host_and_length_once_and_the_rest_as_it_came() {
        let headers: HeaderMap = [
            (HOST, HeaderValue::from_static("client-said")),
            (CONTENT_LENGTH, HeaderValue::from_static("99")),
            (HeaderName::from_static("x-a"), HeaderValue::from_static("1")),
            (HeaderName::from_static("x-a"), HeaderValue::from_static("2")),
        ]
        .into_iter()
        .collect();
        let target = PathAndQuery::from_static("/v1/models?x=1");
        let host = HeaderValue::from_static("w:80");
        let request = Outgoing::new(&Method::POST, &target, &host, &headers, Bytes::from_static(b"{}"));
        let head = String::from_utf8(request.head.to_vec()).unwrap();
        assert!(head.starts_with("POST /v1/models?x=1 HTTP/1.1\r\nhost: w:80\r\n"), "{head}");
        assert!(head.ends_with("content-length: 2\r\n\r\n"), "{head}");
        assert_eq!((head.matches("host").count(), head.matches("x-a: ").count()), (1, 2));
    }

    #[test]
    fn a_request_without_a_body_announces_none() {
        let host = HeaderValue::from_static("w");
        assert_eq!(
            &Outgoing::get("/health", &host, None).head[..],
            b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n"
        );
    }

    #[test]
    fn a_worker_that_wants_a_key_is_shown_it_with_our_own_questions() {
        let (host, key) = (HeaderValue::from_static("w"), "sk-w".parse().unwrap());
        let shown = "host: w\r\nauthorization: Bearer sk-w\r\n";
        for question in [
            Outgoing::get("/health", &host, Some(&key)),
            Outgoing::post("/tokenize", &host, Some(&key), Bytes::new()),
        ] {
            assert!(String::from_utf8_lossy(&question.head).contains(shown));
        }
    }
}

//! A request to a worker: the head as bytes, the body as the client sent it.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{HeaderName, Method};

use crate::bearer::Bearer;
use crate::http1::head::push_number;

pub struct UpstreamRequest {
    pub(super) method: Method,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
}

/// Initial capacity of a head. Chosen: fits an ordinary request.
const HEAD_BYTES: usize = 1_024;

impl UpstreamRequest {
    /// A GET of the router itself.
    pub fn get(path: &str, host: &HeaderValue, key: Option<&Bearer>) -> UpstreamRequest {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        begin(&mut head, &Method::GET, path, host);
        authorize(&mut head, key);
        head.extend_from_slice(b"\r\n");
        UpstreamRequest { method: Method::GET, head, body: Bytes::new() }
    }

    /// A POST of the router itself, with a JSON body.
    pub fn post(path: &str, host: &HeaderValue, key: Option<&Bearer>, body: Bytes) -> UpstreamRequest {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        begin(&mut head, &Method::POST, path, host);
        authorize(&mut head, key);
        header(&mut head, &CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        length(&mut head, &body);
        head.extend_from_slice(b"\r\n");
        UpstreamRequest { method: Method::POST, head, body }
    }

    /// A client's request. Its headers and body pass through; host and length are set here.
    pub fn new(
        method: &Method,
        target: &PathAndQuery,
        host: &HeaderValue,
        headers: &HeaderMap,
        body: Bytes,
    ) -> UpstreamRequest {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        begin(&mut head, method, target.as_str(), host);
        for (name, value) in headers {
            if name != HOST && name != CONTENT_LENGTH {
                header(&mut head, name, value);
            }
        }
        if !body.is_empty() || method == Method::POST {
            length(&mut head, &body);
        }
        head.extend_from_slice(b"\r\n");
        UpstreamRequest { method: method.clone(), head, body }
    }
}

fn begin(head: &mut Vec<u8>, method: &Method, target: &str, host: &HeaderValue) {
    head.extend_from_slice(method.as_str().as_bytes());
    head.extend_from_slice(b" ");
    head.extend_from_slice(target.as_bytes());
    head.extend_from_slice(b" HTTP/1.1\r\n");
    header(head, &HOST, host);
}

fn authorize(head: &mut Vec<u8>, key: Option<&Bearer>) {
    if let Some(key) = key {
        header(head, &AUTHORIZATION, key.header());
    }
}

fn length(head: &mut Vec<u8>, body: &Bytes) {
    head.extend_from_slice(b"content-length: ");
    push_number(head, body.len() as u64);
    head.extend_from_slice(b"\r\n");
}

/// Neither part can contain a line break: both types reject them.
fn header(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    head.extend_from_slice(name.as_str().as_bytes());
    head.extend_from_slice(b": ");
    head.extend_from_slice(value.as_bytes());
    head.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_length_are_set_once_and_other_headers_pass_through() {
        let headers: HeaderMap = [
            (HOST, HeaderValue::from_static("from-the-client")),
            (CONTENT_LENGTH, HeaderValue::from_static("99")),
            (HeaderName::from_static("x-a"), HeaderValue::from_static("1")),
            (HeaderName::from_static("x-a"), HeaderValue::from_static("2")),
        ]
        .into_iter()
        .collect();
        let target = PathAndQuery::from_static("/v1/models?x=1");
        let host = HeaderValue::from_static("w:80");
        let request =
            UpstreamRequest::new(&Method::POST, &target, &host, &headers, Bytes::from_static(b"{}"));
        let head = String::from_utf8(request.head).unwrap();
        assert!(head.starts_with("POST /v1/models?x=1 HTTP/1.1\r\nhost: w:80\r\n"), "{head}");
        assert!(head.ends_with("content-length: 2\r\n\r\n"), "{head}");
        assert_eq!((head.matches("host").count(), head.matches("x-a: ").count()), (1, 2));
    }

    #[test]
    fn a_get_has_no_content_length() {
        let host = HeaderValue::from_static("w");
        assert_eq!(
            &UpstreamRequest::get("/health", &host, None).head[..],
            b"GET /health HTTP/1.1\r\nhost: w\r\n\r\n"
        );
    }

    #[test]
    fn requests_of_the_router_itself_carry_the_worker_key() {
        let (host, key) = (HeaderValue::from_static("w"), "sk-w".parse().unwrap());
        let expected = "host: w\r\nauthorization: Bearer sk-w\r\n";
        for request in [
            UpstreamRequest::get("/health", &host, Some(&key)),
            UpstreamRequest::post("/tokenize", &host, Some(&key), Bytes::new()),
        ] {
            assert!(String::from_utf8_lossy(&request.head).contains(expected));
        }
    }
}

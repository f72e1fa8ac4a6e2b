//! A small HTTP/1.1 client for the commands and for discovery, on the connection that the router uses for workers.
//!
//! Left out: redirects, HTTP/2, a pool and time limits. Each caller has its own idea of the last two.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::uri::{InvalidUri, PathAndQuery};
use http::{Method, StatusCode};

use crate::address::Address;
use crate::connect::ConnectError;
use crate::dial::Dialer;
use crate::tls::TlsFailure;
use crate::upstream::{ResponseHead, Upstream, UpstreamError, UpstreamRequest};

/// One server, how to connect to it, and the key to present.
#[derive(Clone, Debug)]
pub struct HttpClient {
    address: Address,
    dialer: Arc<Dialer>,
    /// The value of the `authorization` header.
    authorization: Option<HeaderValue>,
}

#[derive(Clone, Debug)]
pub struct HttpRequest<'a> {
    method: Method,
    path: &'a str,
    headers: HeaderMap,
    body: Bytes,
}

/// A response whose head has arrived. Dropping it closes the connection.
pub struct HttpResponse {
    head: ResponseHead,
    upstream: Upstream,
}

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("not a path: {0}")]
    Path(#[from] InvalidUri),
    #[error("connect: {0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Exchange(#[from] UpstreamError),
}

impl<'a> HttpRequest<'a> {
    pub fn get(path: &'a str) -> HttpRequest<'a> {
        HttpRequest { method: Method::GET, path, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// With a JSON body.
    pub fn post(path: &'a str, body: Bytes) -> HttpRequest<'a> {
        let json = HeaderValue::from_static("application/json");
        let request = HttpRequest { method: Method::POST, path, headers: HeaderMap::new(), body };
        request.header(CONTENT_TYPE, json)
    }

    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> HttpRequest<'a> {
        self.headers.insert(name, value);
        self
    }
}

impl HttpClient {
    pub fn new(address: Address, dialer: Arc<Dialer>, authorization: Option<HeaderValue>) -> HttpClient {
        HttpClient { address, dialer, authorization }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// A new connection.
    pub async fn open(&self) -> Result<Upstream, ConnectError> {
        Ok(Upstream::new(self.dialer.dial(&self.address).await?))
    }

    /// Sends on a new connection and waits for the head of the response.
    pub async fn send(&self, request: HttpRequest<'_>) -> Result<HttpResponse, HttpError> {
        let upstream = self.open().await?;
        self.send_on(upstream, request).await
    }

    /// Sends on an open connection and waits for the head of the response.
    pub async fn send_on(
        &self,
        mut upstream: Upstream,
        request: HttpRequest<'_>,
    ) -> Result<HttpResponse, HttpError> {
        let HttpRequest { method, path, mut headers, body } = request;
        let path: PathAndQuery = path.parse()?;
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let request = UpstreamRequest::new(&method, &path, self.address.header(), &headers, body);
        let head = upstream.send(request).await?;
        Ok(HttpResponse { head, upstream })
    }
}

impl HttpResponse {
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The next chunk of the body; none at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        self.upstream.chunk().await.transpose()
    }

    /// The rest of the body; an error if it has more than `bytes_max` bytes.
    pub async fn read_all(&mut self, bytes_max: usize) -> Result<Bytes, UpstreamError> {
        self.upstream.read_all(bytes_max).await
    }

    /// The connection, if another request may be sent on it.
    pub fn into_idle(mut self) -> Option<Upstream> {
        self.upstream.is_reusable().then_some(self.upstream)
    }
}

impl HttpError {
    /// The TLS failure behind it. With TLS 1.3 a server that rejects our certificate says so only after the handshake.
    pub fn tls_failure(&self) -> Option<TlsFailure> {
        match self {
            HttpError::Connect(ConnectError::Handshake { why, .. }) => Some(why.clone()),
            HttpError::Exchange(error) => error.tls_failure(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Serves one connection: for each response, reads a request of `bytes` and answers it.
    async fn serve(listener: TcpListener, responses: Vec<&'static str>) -> Vec<String> {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut requests = Vec::new();
        for response in responses {
            let mut request = vec![0; 4_096];
            let length = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
            stream.write_all(response.as_bytes()).await.unwrap();
        }
        requests
    }

    async fn client() -> (HttpClient, TcpListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = Address::from(listener.local_addr().unwrap());
        let key = Some(HeaderValue::from_static("Bearer k"));
        (HttpClient::new(address, Arc::default(), key), listener)
    }

    #[tokio::test]
    async fn a_connection_carries_one_request_after_another() {
        let (client, listener) = client().await;
        let responses = vec![
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ];
        let asks = async {
            let mut first = client.send(HttpRequest::get("/a?b=c")).await.unwrap();
            assert_eq!(&first.read_all(5).await.unwrap()[..], b"hello");
            let upstream = first.into_idle().unwrap();
            let post = HttpRequest::post("/p", Bytes::from_static(b"{}"));
            let mut second = client.send_on(upstream, post).await.unwrap();
            assert_eq!(second.status(), 201);
            assert_eq!(second.chunk().await.unwrap().as_deref(), Some(&b"ok"[..]));
            assert_eq!(second.chunk().await.unwrap(), None);
        };
        let (requests, ()) = tokio::join!(serve(listener, responses), asks);
        assert!(requests[0].starts_with("GET /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:"), "{requests:?}");
        assert!(requests[0].contains("authorization: Bearer k\r\n"), "{requests:?}");
        assert!(requests[1].contains("content-type: application/json\r\n"), "{requests:?}");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_and_a_malformed_path_are_errors() {
        let (client, listener) = client().await;
        let asks = async {
            let mut response = client.send(HttpRequest::get("/")).await.unwrap();
            let error = response.read_all(4).await.unwrap_err().to_string();
            assert_eq!(error, "the body has more than 4 bytes");
        };
        tokio::join!(serve(listener, vec!["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"]), asks);
        let (client, _listener) = self::client().await;
        assert!(matches!(client.send(HttpRequest::get("/a\r\nb")).await, Err(HttpError::Path(_))));
    }
}

//! Foreign bytes from a client: no panic, the same requests for all cuts, and no request that hyper reads otherwise.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use maitre_testkit::fuzz::fuzz;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use http::Response;
use http::header::{CONTENT_LENGTH, HeaderMap};

/// Larger than all inputs, and than all responses to one.
const SPACE: usize = 1 << 20;

/// A request as it was read; without a body if that could not be read.
type Seen = (Method, String, HeaderMap, Option<Bytes>);

/// A stream on which these bytes arrive in pieces, and then the end.
async fn stream(pieces: &[&[u8]]) -> (DuplexStream, DuplexStream) {
    let (mut client, server) = duplex(SPACE);
    for piece in pieces {
        client.write_all(piece).await.unwrap();
    }
    client.shutdown().await.unwrap();
    (client, server)
}

/// The framing is compared by the bodies that it gives: hyper removes the second of two equal lengths.
fn seen(head: &Request<()>, body: Option<Bytes>) -> Seen {
    let mut headers = head.headers().clone();
    headers.remove(CONTENT_LENGTH);
    (head.method().clone(), head.uri().to_string(), headers, body)
}

/// The requests that we read, and whether the last bytes were refused.
async fn ours(pieces: &[&[u8]]) -> (Vec<Seen>, bool) {
    let (_client, server) = stream(pieces).await;
    let (mut client, mut requests) = (Downstream::new(server, SPACE), Vec::new());
    loop {
        let request = match poll_fn(|cx| client.poll_head(cx)).await {
            Ok(Some(request)) => request,
            Ok(None) => return (requests, false),
            Err(_) => return (requests, true),
        };
        let body = loop {
            match client.receive_body().await {
                Ok(BodyProgress::Partial(_)) => {}
                Ok(BodyProgress::Complete(body)) => break Some(body),
                Err(_) => break None,
            }
        };
        let is_broken = body.is_none();
        requests.push(seen(&request, body));
        let response = Response::new(Full::new(Bytes::from_static(b"ok")));
        if is_broken || !client.respond(response, false).await.unwrap_or(false) {
            return (requests, is_broken);
        }
    }
}

async fn hypers(bytes: &[u8]) -> Vec<Seen> {
    let (_client, server) = stream(&[bytes]).await;
    let requests: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let service = service_fn(|request: Request<hyper::body::Incoming>| async {
        let (head, body) = request.into_parts();
        let body = body.collect().await.ok().map(http_body_util::Collected::to_bytes);
        requests.lock().unwrap().push(seen(&Request::from_parts(head, ()), body));
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
    });
    let mut builder = http1::Builder::new();
    let _ =
        builder.half_close(true).max_headers(LINES_MAX).serve_connection(TokioIo::new(server), service).await;
    std::mem::take(&mut *requests.lock().unwrap())
}

#[test]
fn fuzz_client_request() {
    let seeds: [&[u8]; 6] = [
        b"POST /v1/completions HTTP/1.1\r\nhost: m\r\ncontent-length: 5\r\n\r\nhelloGET /v1/models HTTP/1.1\r\nhost: m\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: m\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nx-t: 1\r\n\r\nGET / HTTP/1.0\r\n\r\n",
        b"POST /x HTTP/1.1\r\nhost: m\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST /x HTTP/1.1\r\nExpect: 100-continue\r\ncontent-length: 2\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}GET / HTTP/1.1\r\n\r\n",
        b"\r\nHEAD http://m/a?b#c HTTP/1.1\nhost: m\n\nOPTIONS * HTTP/1.1\r\n\r\nCONNECT m:80 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    fuzz(env!("CARGO_MANIFEST_DIR"), "client-request", &seeds, |input, dice| {
        runtime.block_on(async {
            let (seen, is_refused) = ours(&[input]).await;
            assert_eq!((seen.clone(), is_refused), ours(&dice.cut(input)).await, "cut otherwise");
            let hypers = hypers(input).await;
            let agree = |(ours, hypers): (&Seen, &Seen)| {
                // What we refuse in the middle of a body, hyper may read.
                ours.0 == hypers.0
                    && ours.1 == hypers.1
                    && ours.2 == hypers.2
                    && (ours.3 == hypers.3 || ours.3.is_none())
            };
            assert!(seen.len() <= hypers.len(), "hyper refused: {seen:?} {hypers:?}");
            assert!(seen.iter().zip(&hypers).all(agree), "{seen:?} {hypers:?}");
            assert!(is_refused || seen.len() == hypers.len(), "hyper read more: {seen:?} {hypers:?}");
        });
    });
}

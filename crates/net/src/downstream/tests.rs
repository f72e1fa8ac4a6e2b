//! What a client sees of its connection.

use std::collections::VecDeque;

use http::Response;
use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use super::*;

impl Peer for DuplexStream {
    fn has_left(&self) -> bool {
        false
    }
}

/// A body of these chunks. None: it breaks off there. It never ends if `waits`.
struct Chunks {
    chunks: VecDeque<Option<Bytes>>,
    length: Option<u64>,
    waits: bool,
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.chunks.pop_front() {
            Some(Some(chunk)) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
            Some(None) => Poll::Ready(Some(Err(io::ErrorKind::Other.into()))),
            None if self.waits => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

fn response(chunks: &[Option<&str>], length: Option<u64>) -> Response<Chunks> {
    let chunks = chunks.iter().map(|it| it.map(|it| Bytes::from(it.to_owned()))).collect();
    let mut response = Response::new(Chunks { chunks, length, waits: false });
    response.headers_mut().insert(DATE, HeaderValue::from_static("today"));
    response
}

/// A connection on which the client has sent this.
async fn connection(sent: &str) -> (DuplexStream, Downstream<DuplexStream>) {
    let (mut client, server) = duplex(1 << 20);
    client.write_all(sent.as_bytes()).await.unwrap();
    (client, Downstream::new(server, 1_000))
}

async fn head(served: &mut Downstream<DuplexStream>) -> Option<Request<()>> {
    poll_fn(|cx| served.poll_head(cx)).await.unwrap()
}

async fn body(served: &mut Downstream<DuplexStream>) -> Result<Bytes, BodyError> {
    loop {
        if let BodyProgress::Complete(body) = served.receive_body().await? {
            return Ok(body);
        }
    }
}

/// What the client gets for a request of these lines, and whether the connection is kept.
async fn answered(lines: &str, response: Response<Chunks>) -> (String, Option<bool>) {
    let (mut client, mut served) = connection(&format!("{lines}\r\n\r\n")).await;
    head(&mut served).await.unwrap();
    let kept = served.respond(response, false).await.ok();
    drop(served);
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    (text, kept)
}

#[tokio::test]
async fn a_body_is_framed_as_the_client_can_read_it() {
    let head = |more: &str| format!("HTTP/1.1 200 OK\r\ndate: today\r\n{more}\r\n");
    let hello = || response(&[Some("hel"), Some(""), Some("lo")], None);
    let chunked = head("transfer-encoding: chunked\r\n") + "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
    assert_eq!(answered("GET / HTTP/1.1", hello()).await, (chunked, Some(true)));
    let with_length = head("content-length: 5\r\n") + "hello";
    let sized = || response(&[Some("hel"), Some("lo")], Some(5));
    assert_eq!(answered("GET / HTTP/1.1", sized()).await, (with_length, Some(true)));
    let until_close = "HTTP/1.0 200 OK\r\ndate: today\r\nconnection: close\r\n\r\nhello".to_owned();
    let old = "GET / HTTP/1.0\r\nconnection: keep-alive";
    assert_eq!(answered(old, hello()).await, (until_close, Some(false)));
    let kept = "HTTP/1.0 200 OK\r\ndate: today\r\ncontent-length: 5\r\nconnection: keep-alive\r\n\r\nhello";
    assert_eq!(answered(old, sized()).await, (kept.to_owned(), Some(true)));
    let closed = head("content-length: 5\r\nconnection: close\r\n") + "hello";
    assert_eq!(answered("GET / HTTP/1.1\r\nconnection: close", sized()).await, (closed, Some(false)));
}

#[tokio::test]
async fn a_response_without_a_body_keeps_its_length() {
    let mut sized = response(&[Some("hello")], Some(5));
    sized.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
    let text = "HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 5\r\n\r\n".to_owned();
    assert_eq!(answered("HEAD / HTTP/1.1", sized).await, (text, Some(true)));
}

#[tokio::test]
async fn a_response_to_head_says_how_long_the_body_would_be_and_a_204_has_no_length() {
    let text = "HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 5\r\n\r\n".to_owned();
    assert_eq!(answered("HEAD / HTTP/1.1", response(&[Some("hello")], Some(5))).await, (text, Some(true)));
    let mut empty = response(&[], Some(0));
    *empty.status_mut() = http::StatusCode::NO_CONTENT;
    empty.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("5"));
    let text = "HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n".to_owned();
    assert_eq!(answered("GET / HTTP/1.1", empty).await, (text, Some(true)));
}

/// A large body must be freed with its request, although the connection stays.
#[tokio::test]
async fn nothing_of_a_large_body_is_kept_once_it_is_taken() {
    let large = "x".repeat(3 * READ_BYTES_MIN);
    for follows in ["", "G", "GET / HTTP/1.1\r\n\r\n"] {
        let post = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{large}{follows}", large.len());
        for read_bytes in [READ_BYTES_MIN, READ_BYTES_MAX] {
            let (_client, mut served) = connection(&post).await;
            served.read_bytes = read_bytes;
            drop(head(&mut served).await);
            let body = body(&mut served).await.unwrap();
            assert!(body == large && body.is_unique(), "{follows}, read {read_bytes} bytes at a time");
        }
    }
    // Small bodies share the buffer of the connection, until it waits for the next request.
    let (_client, mut served) = connection("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}").await;
    drop(head(&mut served).await);
    let body = body(&mut served).await.unwrap();
    assert!(served.respond(response(&[], Some(0)), false).await.unwrap());
    assert!(poll_fn(|cx| Poll::Ready(served.poll_head(cx).is_pending())).await);
    assert!(body.is_unique() && served.buffer.capacity() == 0);
}

#[tokio::test]
async fn an_empty_line_after_a_body_is_no_request() {
    let (_client, mut served) = connection("POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}\r\n\r\n\n").await;
    head(&mut served).await.unwrap();
    body(&mut served).await.unwrap();
    assert!(served.respond(response(&[], Some(0)), false).await.unwrap() && !served.is_idle());
    assert!(poll_fn(|cx| Poll::Ready(served.poll_head(cx).is_pending())).await);
    assert!(served.is_idle());
}

#[tokio::test]
async fn what_came_before_a_break_arrives_without_an_end() {
    let (text, kept) = answered("GET / HTTP/1.1", response(&[Some("hel"), None], None)).await;
    assert!(text.ends_with("\r\n\r\n3\r\nhel\r\n") && kept.is_none(), "{text}");
    // A body that is shorter than its length.
    let (text, kept) = answered("GET / HTTP/1.1", response(&[Some("hel")], Some(5))).await;
    assert!(text.ends_with("\r\n\r\nhel") && kept.is_none(), "{text}");
    // One that is longer.
    let (text, kept) = answered("GET / HTTP/1.1", response(&[Some("hello")], Some(3))).await;
    assert!(text.ends_with("\r\n\r\nhel") && kept == Some(true), "{text}");
}

#[tokio::test]
async fn large_chunks_pass_however_the_client_reads() {
    let large = "x".repeat(50_000);
    let (mut client, server) = duplex(1_000);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut served = Downstream::new(server, 1_000);
    head(&mut served).await.unwrap();
    let sending = async {
        served
            .respond(response(&[Some("a"), Some(&large), Some(&large), Some("b")], None), true)
            .await
            .unwrap();
        drop(served);
    };
    let mut text = String::new();
    let (_, read) = tokio::join!(sending, client.read_to_string(&mut text));
    read.unwrap();
    let expected = format!("1\r\na\r\nc350\r\n{large}\r\nc350\r\n{large}\r\n1\r\nb\r\n0\r\n\r\n");
    assert_eq!(text.split_once("\r\n\r\n").unwrap().1, expected);
}

/// A body whose chunks are sent while it is read.
struct Streamed(mpsc::UnboundedReceiver<Bytes>);

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(cx).map(|it| it.map(|it| Ok(Frame::data(it))))
    }
}

/// The second chunk wakes the task while it cannot write, and not again.
#[tokio::test]
async fn a_chunk_that_comes_while_the_client_does_not_read_leaves_once_it_does() {
    let (mut client, server) = duplex(64);
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut served = Downstream::new(server, 1_000);
    head(&mut served).await.unwrap();
    let (chunks, body) = mpsc::unbounded_channel();
    let mut serving = JoinSet::new();
    serving.spawn(async move { served.respond(Response::new(Streamed(body)), true).await.is_ok() });
    // The head alone is longer than what the client's end holds.
    for chunk in ["first", "second"] {
        chunks.send(Bytes::from_static(chunk.as_bytes())).unwrap();
        yield_now().await;
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let mut space = [0; 64];
        let mut read = ReadBuf::new(&mut space);
        let _ = poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_read(cx, &mut read))).await;
        seen.extend_from_slice(read.filled());
        yield_now().await;
    }
    assert!(seen.ends_with(b"\r\n\r\n5\r\nfirst\r\n6\r\nsecond\r\n"), "{}", String::from_utf8_lossy(&seen));
    drop(chunks);
    assert_eq!(serving.join_next().await.unwrap().ok(), Some(true));
}

#[tokio::test]
async fn requests_follow_each_other_on_one_connection() {
    let first = "POST /1 HTTP/1.1\r\ncontent-length: 3\r\n\r\none";
    let second = "POST /2 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n";
    let (mut client, mut served) = connection(&format!("{first}{second}GET /3 HTTP/1.1\r\n\r\n")).await;
    for (path, expected) in [("/1", "one"), ("/2", "two"), ("/3", "")] {
        assert_eq!(head(&mut served).await.unwrap().uri().path(), path);
        // The second one is not read, and skipped.
        if path != "/2" {
            assert_eq!(body(&mut served).await.unwrap(), expected);
        }
        assert!(served.respond(response(&[], Some(0)), false).await.unwrap());
    }
    client.shutdown().await.unwrap();
    assert!(head(&mut served).await.is_none());
}

#[tokio::test]
async fn a_body_that_has_not_arrived_ends_the_connection_after_the_response() {
    let (mut client, mut served) = connection("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhal").await;
    head(&mut served).await.unwrap();
    assert!(!served.respond(response(&[], Some(0)), false).await.unwrap());
    let reading = async {
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        assert!(text.contains("connection: close"), "{text}");
        // It still sends, and is heard until it has finished.
        client.write_all(b"f of it").await.unwrap();
        drop(client);
    };
    tokio::join!(served.close(), reading);
}

#[tokio::test]
async fn a_client_that_expects_it_is_told_to_continue() {
    let expects = "POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    let (mut client, mut served) = connection(expects).await;
    head(&mut served).await.unwrap();
    let sending = async {
        let mut interim = [0; CONTINUE.len()];
        client.read_exact(&mut interim).await.unwrap();
        assert_eq!(interim, CONTINUE);
        client.write_all(b"{}").await.unwrap();
    };
    let (body, ()) = tokio::join!(body(&mut served), sending);
    assert_eq!(body.unwrap(), "{}");
}

#[tokio::test]
async fn a_client_that_disconnects_is_noticed_while_a_response_waits() {
    let (client, mut served) = connection("GET / HTTP/1.1\r\n\r\n").await;
    head(&mut served).await.unwrap();
    let mut waiting = response(&[Some("a")], None);
    waiting.body_mut().waits = true;
    let leaving = async {
        yield_now().await;
        drop(client);
    };
    let (responded, ()) = tokio::join!(served.respond(waiting, false), leaving);
    assert!(matches!(responded, Err(ResponseError::Closed | ResponseError::Io(_))));
}

#[tokio::test]
async fn half_a_body_is_an_error_and_half_a_head_is_none() {
    let (mut client, mut served) = connection("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhal").await;
    client.shutdown().await.unwrap();
    head(&mut served).await.unwrap();
    assert!(matches!(body(&mut served).await, Err(BodyError::Closed)));
    let (mut client, mut served) = connection("POST / HT").await;
    client.shutdown().await.unwrap();
    assert!(head(&mut served).await.is_none());
}

//! One connection to a worker, driven by the task that uses it.
//!
//! The upstream half of a proxy needs little of HTTP: send one request, read one response, keep the connection if it
//! can be reused. This module and its submodules do that for a third of the cost of a general client: hyper's needs a
//! task or a driver beside the request and hands every chunk through a channel. It took 4,500 instructions per chunk of
//! a stream where this takes a few hundred. Heads are parsed by httparse, as in hyper. Dropping a request in progress
//! closes its connection, which makes the engine stop.

#[cfg(test)]
mod fuzz;
mod head;
mod request;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderValue, Method};
use maitre_base::Instant;
use tokio::io::AsyncWrite as _;
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;

use crate::address::Address;
use crate::connect::{ConnectError, connect};
use crate::http1::Malformed;
use crate::http1::body::{BodyReader, Piece};
use crate::stream::ByteStream;
use crate::tls::{TlsClient, TlsFailure};
use crate::wake_gate::WakeGate;
pub use head::ResponseHead;
pub use request::UpstreamRequest;

/// Buffer space for one read: starts small and doubles while reads fill it. Chunks of a token stream are far smaller.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;

pub struct Upstream {
    stream: ByteStream,
    buffer: BytesMut,
    read_bytes: usize,
    body: BodyReader,
    /// Opens when there is more to read.
    gate: WakeGate,
    keep_alive: bool,
    /// What is left of a request whose response has begun.
    unsent: Option<Box<UnsentRequest>>,
    /// Interim responses since the last request.
    interim: u32,
    /// The worker repeats the id of a request in its response.
    repeats_ids: bool,
    /// Set by the code that keeps the connection for later.
    pub idle_since: Instant,
}

/// The rest of a request. A worker may begin its response early and still read on before it goes on with it.
struct UnsentRequest {
    head: Bytes,
    body: Bytes,
}

/// The connection failed, or what came over it is not HTTP.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection closed in the middle of a response")]
    Closed,
    #[error("the connection closed without a response")]
    Unanswered,
    #[error("not HTTP: a response before its request")]
    Early,
    #[error("not HTTP: {0}")]
    NotHttp(&'static str),
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
}

impl From<Malformed> for UpstreamError {
    fn from(why: Malformed) -> UpstreamError {
        UpstreamError::NotHttp(why)
    }
}

impl UpstreamError {
    /// Whether the worker may have closed the connection before it read the request: not one byte of a response to it has come.
    pub fn may_be_unread(&self) -> bool {
        matches!(self, UpstreamError::Unanswered | UpstreamError::Early)
    }

    /// The TLS failure behind it. With TLS 1.3 a server that rejects our certificate says so only after the handshake.
    pub fn tls_failure(&self) -> Option<TlsFailure> {
        match self {
            UpstreamError::Io(error) => TlsFailure::in_io(error),
            _ => None,
        }
    }
}

/// Whether the connection has ended. Over TLS it may without a farewell.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

impl Upstream {
    /// Connects and, for `https`, performs the handshake, all within `limit`.
    pub async fn open(address: &Address, tls: &TlsClient, limit: Duration) -> Result<Upstream, ConnectError> {
        let connecting = timeout(limit, connect(address, tls));
        let stream = connecting.await.map_err(|_| ConnectError::TimedOut(limit))??;
        Ok(Upstream::new(stream))
    }

    /// On a connection that is open already.
    pub fn new(stream: ByteStream) -> Upstream {
        Upstream {
            stream,
            buffer: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            body: BodyReader::default(),
            gate: WakeGate::default(),
            keep_alive: true,
            unsent: None,
            interim: 0,
            repeats_ids: false,
            idle_since: Instant::ZERO,
        }
    }

    /// Sends a request and waits for the head of the response. What is not sent by then is sent while the body is read.
    pub async fn send(&mut self, request: UpstreamRequest) -> Result<ResponseHead, UpstreamError> {
        let UpstreamRequest { method, head, mut body } = request;
        self.interim = 0;
        self.unsent = None;
        let mut sending = true;
        let mut sent_all = false;
        let mut left = &head[..];
        poll_fn(|cx| {
            if sending && let Poll::Ready(sent) = self.poll_send(&mut left, &mut body, cx) {
                sending = false;
                sent_all = sent.is_ok();
            }
            // A worker may respond before it has read the whole request, and then stop reading or close. So read while
            // sending, and also after a failed write: the response may be there.
            let response = ready!(self.poll_head(&method, cx));
            if left.len() == head.len() && response.is_ok() {
                return Poll::Ready(Err(UpstreamError::Early));
            }
            // A connection with half a request on it cannot be reused.
            self.keep_alive &= sent_all;
            if sending && response.is_ok() {
                let (head, body) = (Bytes::copy_from_slice(left), std::mem::take(&mut body));
                self.unsent = Some(Box::new(UnsentRequest { head, body }));
            }
            Poll::Ready(response)
        })
        .await
    }

    /// Whether a response that names this id may be the one to a request that was sent with `sent`. Workers need not
    /// repeat ids, and may make their own. But one that did repeat them on this connection, and now names another, has
    /// responded to another request.
    pub fn may_be_response(&mut self, sent: Option<&HeaderValue>, named: Option<&HeaderValue>) -> bool {
        let (Some(sent), Some(named)) = (sent, named) else { return true };
        self.repeats_ids |= sent == named;
        sent == named || !self.repeats_ids
    }

    fn poll_send(
        &mut self,
        head: &mut &[u8],
        body: &mut Bytes,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while head.has_remaining() || body.has_remaining() {
            let pieces = [IoSlice::new(head), IoSlice::new(body)];
            let sent = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &pieces))?;
            let of_head = sent.min(head.len());
            head.advance(of_head);
            body.advance(sent - of_head);
        }
        // TLS may have buffered the bytes without sending them.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Sends on what is left of the request. The worker may have stopped to read it: the response decides, not this.
    fn poll_send_rest(&mut self, cx: &mut Context<'_>) {
        let Some(mut unsent) = self.unsent.take() else { return };
        let UnsentRequest { head, body } = &mut *unsent;
        let mut left = &head[..];
        let sent = self.poll_send(&mut left, body, cx);
        let sent_of_head = head.len() - left.len();
        head.advance(sent_of_head);
        if sent.is_pending() {
            self.unsent = Some(unsent);
        }
    }

    fn poll_head(
        &mut self,
        method: &Method,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, UpstreamError>> {
        loop {
            if let Some((head, body)) = head::parse(&mut self.buffer, method, &mut self.interim)? {
                self.keep_alive = head.keep_alive;
                self.body = body;
                return Poll::Ready(Ok(head));
            }
            let has_come = !self.buffer.is_empty() || self.interim > 0;
            match ready!(self.poll_fill(cx)) {
                Ok(0) if has_come => return Poll::Ready(Err(UpstreamError::Closed)),
                Ok(0) => return Poll::Ready(Err(UpstreamError::Unanswered)),
                Err(error) if is_end(&error) && !has_come => {
                    return Poll::Ready(Err(UpstreamError::Unanswered));
                }
                filled => drop(filled?),
            }
        }
    }

    /// The next chunk of the response body; none when it is complete.
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, UpstreamError>>> {
        if self.unsent.is_some() {
            self.poll_send_rest(cx);
        }
        loop {
            match self.body.next(&mut self.buffer) {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(malformed) => return Poll::Ready(Some(Err(malformed.into()))),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if self.body.ends_at_close() => {
                    self.keep_alive = false;
                    return Poll::Ready(None);
                }
                Ok(0) => return Poll::Ready(Some(Err(UpstreamError::Closed))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// The next chunk of the response body; none when it is complete.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, UpstreamError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// The whole body, up to a limit.
    pub async fn read_all(&mut self, bytes_max: usize) -> Result<Bytes, UpstreamError> {
        let mut body = BytesMut::new();
        while let Some(chunk) = self.chunk().await {
            let chunk = chunk?;
            if body.len() + chunk.len() > bytes_max {
                return Err(UpstreamError::TooLarge(bytes_max));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Whether the body is known to be complete. Never true for a body that ends when the connection closes.
    pub fn is_complete(&mut self) -> bool {
        self.body.is_complete(&mut self.buffer)
    }

    /// Bytes of body still to come, if the head had a length.
    pub fn bytes_left(&self) -> Option<u64> {
        self.body.bytes_left()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(mut cx) = self.gate.pass(cx) else { return Poll::Pending };
        if self.buffer.capacity() - self.buffer.len() < self.read_bytes / 4 {
            self.buffer.reserve(self.read_bytes);
        }
        let space = self.buffer.capacity() - self.buffer.len();
        let read = ready!(poll_read_buf(Pin::new(&mut self.stream), &mut cx, &mut self.buffer))?;
        // Only a pending read registers a waker; after this one the next poll must go through.
        self.gate.open();
        if read == space {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Whether another request may be sent: the last response was read to its end, and the worker keeps the connection
    /// open and has sent nothing since. Asks the socket: to be called right before the connection is used again.
    pub fn is_reusable(&mut self) -> bool {
        // `is_silent` may have removed our waker from the socket.
        self.gate.open();
        self.is_done() && self.stream.is_silent()
    }

    /// Whether the last response was read to its end, and nothing after it.
    pub(crate) fn is_done(&self) -> bool {
        self.keep_alive && self.buffer.is_empty() && self.body.is_taken()
    }
}

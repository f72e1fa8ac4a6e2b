//! One connection to a worker, driven by whoever uses it.
//!
//! The upstream half of a proxy needs little of HTTP: send one request, read one answer, keep the
//! connection if it can be used again. Written out it is this folder, and it costs a third of a general
//! client: hyper's wants a task or a driver beside the request, hands every piece through a channel, and
//! took four and a half thousand instructions for each piece of a stream where this takes a few hundred.
//! Heads are still parsed by httparse, as in hyper. A request that is dropped takes its connection with
//! it, which is what tells the engine to stop.

mod body;
mod head;
mod request;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use maitre_base::Instant;
use tokio::io::AsyncWrite as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;

use crate::address::Address;
use crate::bell::Bell;
use crate::stream::Stream;
use crate::tls::Outward;
use body::{Piece, Reader};
pub(crate) use head::Head;
pub(crate) use request::Outgoing;

/// Least room a read is given; grows while reads fill it. The pieces of a stream are far smaller.
const READ_BYTES_MIN: usize = 8 << 10;
const READ_BYTES_MAX: usize = 256 << 10;

pub(crate) struct Upstream {
    stream: Stream,
    buffer: BytesMut,
    read_bytes: usize,
    body: Reader,
    /// Rings when there is more to read.
    bell: Bell,
    keep: bool,
    pub(crate) idle_since: Instant,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Unopened {
    #[error("{0}")]
    Refused(io::Error),
    /// Out of descriptors, ports or memory: says nothing of the worker.
    #[error("no socket: {0}")]
    NoSocket(io::Error),
    #[error("no connection after {0:?}")]
    TimedOut(Duration),
    /// Somebody listens, and we do not believe them, or they us.
    #[error("{0}")]
    Handshake(String),
}

/// The connection ended, or what came over it is not HTTP.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection closed in the middle of an answer")]
    Cut,
    #[error("not HTTP: {0}")]
    NotHttp(&'static str),
}

fn unopened(error: io::Error) -> Unopened {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, OutOfMemory};
    // EMFILE and ENFILE have no kind of their own.
    let spent = matches!(error.raw_os_error(), Some(23 | 24));
    match error.kind() {
        AddrInUse | AddrNotAvailable | OutOfMemory => Unopened::NoSocket(error),
        _ if spent => Unopened::NoSocket(error),
        _ => Unopened::Refused(error),
    }
}

async fn connect(address: &Address, tls: &Outward) -> Result<Stream, Unopened> {
    let stream = TcpStream::connect((address.host(), address.port())).await.map_err(unopened)?;
    // A lost option costs latency, not correctness.
    let _ = stream.set_nodelay(true);
    match address.is_tls() {
        false => Ok(Stream::Plain(stream)),
        true => {
            let shaken = tls.shake(address, stream).await;
            shaken.map_err(|why| Unopened::Handshake(why.told(tls.section())))
        }
    }
}

impl Upstream {
    /// A new connection, with its handshake if the address asks for TLS, all within `patience`.
    pub(crate) async fn open(
        address: &Address,
        tls: &Outward,
        patience: Duration,
    ) -> Result<Upstream, Unopened> {
        let connecting = timeout(patience, connect(address, tls));
        let stream = connecting.await.map_err(|_| Unopened::TimedOut(patience))??;
        Ok(Upstream {
            stream,
            buffer: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            body: Reader::default(),
            bell: Bell::default(),
            keep: true,
            idle_since: Instant::ZERO,
        })
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn ask(&mut self, request: Outgoing) -> Result<Head, Broken> {
        let Outgoing { method, mut head, mut body } = request;
        let mut sending = true;
        let mut whole = false;
        poll_fn(|cx| {
            if sending && let Poll::Ready(sent) = self.poll_send(&mut head, &mut body, cx) {
                sending = false;
                whole = sent.is_ok();
            }
            // A worker may answer before it has read all, and then read no more, or close: listen while
            // we send, and after a write that failed hear what it has said, if only that it is gone.
            let answer = ready!(self.poll_head(&method, cx));
            // What was half sent cannot be followed by anything.
            self.keep &= whole;
            Poll::Ready(answer)
        })
        .await
    }

    fn poll_send(
        &mut self,
        head: &mut Bytes,
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
        // TLS may have taken it and not sent it yet.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_head(&mut self, method: &Method, cx: &mut Context<'_>) -> Poll<Result<Head, Broken>> {
        loop {
            if let Some((head, body)) = head::parse(&mut self.buffer, method)? {
                self.keep = head.keep;
                self.body = body;
                return Poll::Ready(Ok(head));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(Broken::Cut));
            }
        }
    }

    /// The next piece of the answer's body; none when it is complete.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        loop {
            match self.body.next(&mut self.buffer) {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(broken) => return Poll::Ready(Some(Err(broken))),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) if self.body.ends_at_close() => {
                    self.keep = false;
                    return Poll::Ready(None);
                }
                Ok(0) => return Poll::Ready(Some(Err(Broken::Cut))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// The whole body, up to a limit.
    pub(crate) async fn read_all(&mut self, bytes_max: usize) -> Result<Bytes, Broken> {
        let mut whole = BytesMut::new();
        while let Some(piece) = poll_fn(|cx| self.poll_piece(cx)).await {
            let piece = piece?;
            if whole.len() + piece.len() > bytes_max {
                return Err(Broken::NotHttp("larger than anyone should send"));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// Whether the body is known to be complete. One that ends when the connection does never is.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.body.is_complete(&mut self.buffer)
    }

    /// Bytes of body still to come, where the head said how many.
    pub(crate) fn bytes_left(&self) -> Option<u64> {
        self.body.bytes_left()
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(mut cx) = self.bell.answer(cx) else { return Poll::Pending };
        if self.buffer.capacity() - self.buffer.len() < self.read_bytes / 4 {
            self.buffer.reserve(self.read_bytes);
        }
        let room = self.buffer.capacity() - self.buffer.len();
        let read = ready!(poll_read_buf(Pin::new(&mut self.stream), &mut cx, &mut self.buffer))?;
        // Only a read that has to wait leaves a waker behind.
        self.bell.ring();
        if read == room {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Whether another request may be sent: the last answer was read to its end, and the worker keeps
    /// the connection open and has said nothing since.
    pub(crate) fn settle(&mut self) -> bool {
        let is_done = self.keep && self.buffer.is_empty() && self.body.is_complete(&mut BytesMut::new());
        // The look may have taken our waker off the socket.
        self.bell.ring();
        is_done && self.stream.is_silent()
    }
}

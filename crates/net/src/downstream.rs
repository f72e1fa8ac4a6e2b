//! One HTTP/1.1 connection from a client, driven by the task that serves it.
//!
//! The server half of a proxy, as `upstream` is its client half: read a request, write one response, and read the next
//! request. It replaces hyper's server, which boxes a future for each request, hands bodies through a channel and polls
//! a response body several times per chunk. Heads are parsed by httparse, as in hyper. What two servers could read
//! differently is refused. hyper is the oracle of its fuzz test.
//!
//! Clients that are gone are noticed while a response is awaited or written: the socket is read all the time. At most
//! one read of a following request is kept meanwhile.

mod clock;
#[cfg(test)]
mod fuzz;
mod head;
mod response;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Version};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;
use tokio_util::io::poll_read_buf;

use crate::http1::body::{BodyReader, Piece};
use crate::spare;
use crate::stream::Peer;
use crate::wake_gate::WakeGate;
pub use head::{BadHead, LINES_MAX};
use response::Outgoing;

/// Buffer space for one read: starts small, doubles while reads fill it, and halves for requests that need less.
const READ_BYTES_MIN: usize = 8 << 10;
const READ_BYTES_MAX: usize = 256 << 10;

/// Space for the rest of a body whose length was announced: so many times what has arrived. An announcement costs a client
/// nothing.
const ANNOUNCED_SHARE: usize = 8;

/// Bytes of a following request that are read while a response is under way.
const AHEAD_BYTES: usize = 256;

/// How long a connection with an unread body is read after the response. If it were closed at once, the kernel would
/// reset it, and the client might lose the response.
const LINGER: Duration = Duration::from_secs(2);

/// Sent to a client that waits for it before it sends its body.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub struct Downstream<S> {
    stream: S,
    head_bytes_max: usize,
    /// Bytes that were read, from the start of the next head or the rest of a body.
    buffer: BytesMut,
    /// Of `buffer`, how much was searched for the end of a head.
    searched: usize,
    read_bytes: usize,
    /// Opens when there is more to read.
    gate: WakeGate,
    current: Exchange,
    outgoing: Outgoing,
}

/// The request that is being served.
struct Exchange {
    body: BodyReader,
    /// A chunked body up to here. One with a length stays in the buffer until it is complete.
    chunks: BytesMut,
    method: Method,
    version: Version,
    /// The client waits for a `100 Continue` before it sends its body.
    awaits_continue: bool,
    keep_alive: bool,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            body: BodyReader::default(),
            chunks: BytesMut::new(),
            method: Method::GET,
            version: Version::HTTP_11,
            awaits_continue: false,
            keep_alive: true,
        }
    }
}

/// How much of a request's body has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyProgress {
    /// So many bytes, and more are to come.
    Partial(usize),
    Complete(Bytes),
}

/// The client disconnected, or what it sent is not the rest of a body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the client disconnected in the middle of a body")]
    Closed,
    #[error("not HTTP: {0}")]
    NotHttp(&'static str),
}

/// The response was not sent to its end.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the client disconnected")]
    Closed,
    #[error("the response broke off")]
    BrokeOff,
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> Downstream<S> {
    pub fn new(stream: S, head_bytes_max: usize) -> Downstream<S> {
        Downstream {
            stream,
            head_bytes_max,
            buffer: BytesMut::new(),
            searched: 0,
            read_bytes: READ_BYTES_MIN,
            gate: WakeGate::default(),
            current: Exchange::default(),
            outgoing: Outgoing::default(),
        }
    }

    /// Whether no byte of a next request has arrived.
    pub fn is_idle(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The head of the next request; none if the client disconnected. To be called after the last response.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Request<()>>, BadHead>> {
        loop {
            match head::parse(&mut self.buffer, &mut self.searched, self.head_bytes_max) {
                Ok(Some((request, exchange))) => {
                    self.current = exchange;
                    return Poll::Ready(Ok(Some(request)));
                }
                Ok(None) => {}
                Err(bad) => {
                    self.current = Exchange::unreadable();
                    return Poll::Ready(Err(bad));
                }
            }
            // A connection that breaks between requests or within a head has lost nothing that could be answered.
            if !matches!(ready!(self.poll_fill(cx, self.read_bytes / 2, self.read_bytes)), Ok(1..)) {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Bytes of the body that are still to come; none if the client did not announce its length.
    pub fn bytes_announced(&self) -> Option<u64> {
        self.current.body.bytes_left()
    }

    /// Waits for more of the request's body. To be called until it is complete, and not after.
    pub async fn receive_body(&mut self) -> Result<BodyProgress, BodyError> {
        if let Some(body) = self.take_body().map_err(BodyError::NotHttp)? {
            return Ok(BodyProgress::Complete(body));
        }
        self.send_continue().await?;
        let space = match self.current.body.bytes_left() {
            Some(left) => {
                let held = self.buffer.len();
                let left = usize::try_from(left).unwrap_or(usize::MAX) - held;
                // One byte more than the body has: tokio takes a read that fills its space for one that left something,
                // and asks the socket again, in vain. A body of 64 KB took a system call more for that.
                left.saturating_add(1).min((ANNOUNCED_SHARE * held).max(self.read_bytes))
            }
            None => self.read_bytes,
        };
        if poll_fn(|cx| self.poll_fill(cx, space, space)).await? == 0 {
            return Err(BodyError::Closed);
        }
        Ok(match self.take_body().map_err(BodyError::NotHttp)? {
            Some(body) => BodyProgress::Complete(body),
            None => BodyProgress::Partial(self.buffer.len() + self.current.chunks.len()),
        })
    }

    /// The body, if all of it has arrived.
    fn take_body(&mut self) -> Result<Option<Bytes>, &'static str> {
        let Exchange { body, chunks, .. } = &mut self.current;
        if body.bytes_left().is_some_and(|left| left > self.buffer.len() as u64) {
            return Ok(None);
        }
        loop {
            match body.next(&mut self.buffer)? {
                Piece::Data(data) if body.bytes_left() == Some(0) => {
                    // What follows moves out of a large body's allocation, which would live as long as the connection
                    // otherwise. Not if there is more of it than of the body: to move it each time would be quadratic.
                    if data.len() >= READ_BYTES_MIN && self.buffer.len() <= data.len() {
                        self.buffer = BytesMut::from(&self.buffer[..]);
                    }
                    return Ok(Some(data));
                }
                Piece::Data(data) => chunks.extend_from_slice(&data),
                Piece::More => return Ok(None),
                Piece::End => return Ok(Some(std::mem::take(chunks).freeze())),
            }
        }
    }

    async fn send_continue(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.current.awaits_continue) && self.buffer.is_empty() {
            self.stream.write_all(CONTINUE).await?;
            self.stream.flush().await?;
        }
        Ok(())
    }

    /// Resolves when the client has disconnected. Keeps a few bytes of a following request, and then reads no further: from there
    /// on it looks at each poll, of which the watchdog of the connection causes one every other second.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.buffer.len() < AHEAD_BYTES {
            let Some(mut cx) = self.gate.pass(cx) else { return Poll::Pending };
            let mut space = [0; AHEAD_BYTES];
            let mut ahead = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.stream).poll_read(&mut cx, &mut ahead));
            self.gate.open();
            if read.is_err() || ahead.filled().is_empty() {
                return Poll::Ready(());
            }
            self.buffer.extend_from_slice(ahead.filled());
        }
        if self.stream.has_left() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads into the buffer. If that has room for less than `least` bytes, it gets room for `space`.
    fn poll_fill(&mut self, cx: &Context<'_>, least: usize, space: usize) -> Poll<io::Result<usize>> {
        let Some(mut cx) = self.gate.pass(cx) else {
            self.release_buffer();
            return Poll::Pending;
        };
        if self.buffer.capacity() - self.buffer.len() < least {
            if self.buffer.capacity() == 0 {
                self.buffer = spare::buffer();
            }
            self.buffer.reserve(space);
        }
        let space = self.buffer.capacity() - self.buffer.len();
        let Poll::Ready(read) = poll_read_buf(Pin::new(&mut self.stream), &mut cx, &mut self.buffer)? else {
            self.release_buffer();
            return Poll::Pending;
        };
        // Only a pending read registers a waker; after this one the next poll must go through.
        self.gate.open();
        if read == space {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        } else if self.buffer.len() < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES_MIN);
        }
        Poll::Ready(Ok(read))
    }

    /// Gives the buffer away if nothing is in it: neither a stream that waits nor an idle connection needs one. Without
    /// capacity it may still share the allocation of a body that was taken out of it.
    fn release_buffer(&mut self) {
        if self.buffer.is_empty() {
            let buffer = std::mem::take(&mut self.buffer);
            // A large one would cost the next connection as much memory.
            if self.read_bytes == READ_BYTES_MIN {
                spare::keep_buffer(buffer, READ_BYTES_MIN);
            }
        }
    }

    /// Closes the connection, so that the client gets the last response even if it still sends.
    pub async fn close(mut self) {
        let is_read = self.current.is_body_read(&mut self.buffer);
        self.buffer = BytesMut::new();
        let _ = self.stream.shutdown().await;
        if !is_read {
            let drain = async {
                loop {
                    self.buffer.clear();
                    let read = poll_fn(|cx| self.poll_fill(cx, 1, READ_BYTES_MIN)).await;
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                }
            };
            let _ = timeout(LINGER, drain).await;
        }
    }
}

impl Exchange {
    /// What cannot be read as a request. It is answered, and the connection ends.
    fn unreadable() -> Exchange {
        Exchange { body: BodyReader::until_close(), keep_alive: false, ..Exchange::default() }
    }

    /// Whether all of the body was read. Skips what is left of it in the buffer.
    fn is_body_read(&mut self, buffer: &mut BytesMut) -> bool {
        loop {
            match self.body.next(buffer) {
                Ok(Piece::Data(_)) => {}
                Ok(Piece::End) => return true,
                Ok(Piece::More) | Err(_) => return false,
            }
        }
    }
}

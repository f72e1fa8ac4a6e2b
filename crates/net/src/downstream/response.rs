//! Writing a response: its head, and its body as it comes.
//!
//! Small chunks are copied behind their framing and leave in one write. Large ones are written from where they are.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Method, Response, StatusCode, Version};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Downstream, Exchange, ResponseError, clock};
use crate::http1::head::push_number;
use crate::spare;
use crate::stream::Peer;

/// Chunks up to this size are copied. Chosen: a copy of 2 KB costs less than one more piece of a vectored write.
const COPY_BYTES_MAX: usize = 2 << 10;

/// Ready chunks are gathered up to this size before they are written.
const GATHER_BYTES_MAX: usize = 16 << 10;

/// The buffer of a connection keeps this much between responses.
const KEEP_BYTES_MAX: usize = 4 << 10;

/// How the body of a response is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is none, whatever the headers say.
    None,
    Length {
        left: u64,
    },
    Chunked,
    UntilClose,
}

/// Bytes on their way to the client, in this order: copied ones, one large chunk, and the framing after it.
#[derive(Default)]
pub(super) struct Outgoing {
    copied: Vec<u8>,
    /// Of `copied`, how much is written.
    written: usize,
    large: Bytes,
    after: &'static [u8],
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.copied.is_empty() && self.large.is_empty() && self.after.is_empty()
    }

    /// Whether more can be gathered before the next write.
    fn has_room(&self) -> bool {
        self.large.is_empty() && self.copied.len() < GATHER_BYTES_MAX
    }

    fn push(&mut self, data: Bytes) {
        if data.len() <= COPY_BYTES_MAX {
            self.copied.extend_from_slice(&data);
        } else {
            self.large = data;
        }
    }

    /// Framing that follows the last chunk.
    fn push_after(&mut self, framing: &'static [u8]) {
        if self.large.is_empty() {
            self.copied.extend_from_slice(framing);
        } else {
            self.after = framing;
        }
    }

    fn advance(&mut self, mut written: usize) {
        let copied = written.min(self.copied.len() - self.written);
        self.written += copied;
        if self.written == self.copied.len() {
            self.copied.clear();
            self.written = 0;
        }
        written -= copied;
        let large = written.min(self.large.len());
        self.large.advance(large);
        self.after = &self.after[written - large..];
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let copied = &self.copied[self.written..];
            let stream = Pin::new(&mut *stream);
            let written = if self.large.is_empty() && self.after.is_empty() {
                ready!(stream.poll_write(cx, copied))?
            } else {
                let pieces = [copied, &self.large, self.after].map(IoSlice::new);
                ready!(stream.poll_write_vectored(cx, &pieces))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

/// Why no more of a body is gathered at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathered {
    /// There is enough to write.
    Full,
    /// The body has no chunk yet.
    Waits,
    Ended,
    /// It has no end: the client gets what came before, and then the connection closes.
    Broken,
}

impl Framing {
    fn of(exchange: &Exchange, status: StatusCode, length: Option<u64>) -> Framing {
        let has_none = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        match length {
            _ if exchange.method == Method::HEAD || has_none => Framing::None,
            Some(left) => Framing::Length { left },
            None if exchange.version == Version::HTTP_10 => Framing::UntilClose,
            None => Framing::Chunked,
        }
    }

    /// Takes chunks that are ready.
    fn gather<B>(&mut self, body: &mut B, outgoing: &mut Outgoing, cx: &mut Context<'_>) -> Gathered
    where
        B: Body<Data = Bytes> + Unpin,
    {
        if *self == Framing::None {
            return Gathered::Ended;
        }
        while outgoing.has_room() {
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.push(outgoing, data);
                    }
                    // The end mark leaves with the last chunk.
                    if body.is_end_stream() {
                        return self.end(outgoing);
                    }
                }
                Poll::Ready(None) => return self.end(outgoing),
                Poll::Ready(Some(Err(_))) => return Gathered::Broken,
                Poll::Pending => return Gathered::Waits,
            }
        }
        Gathered::Full
    }

    fn push(&mut self, outgoing: &mut Outgoing, mut data: Bytes) {
        match self {
            // An empty chunk would end the body.
            _ if data.is_empty() => {}
            Framing::Length { left } => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= data.len() as u64;
                outgoing.push(data);
            }
            Framing::Chunked => {
                outgoing.push_size(data.len());
                outgoing.push(data);
                outgoing.push_after(b"\r\n");
            }
            Framing::None | Framing::UntilClose => outgoing.push(data),
        }
    }

    fn end(self, outgoing: &mut Outgoing) -> Gathered {
        match self {
            Framing::Length { left: 1.. } => return Gathered::Broken,
            Framing::Chunked if outgoing.large.is_empty() => {
                outgoing.copied.extend_from_slice(b"0\r\n\r\n");
            }
            Framing::Chunked => outgoing.after = b"\r\n0\r\n\r\n",
            Framing::Length { left: 0 } | Framing::None | Framing::UntilClose => {}
        }
        Gathered::Ended
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> Downstream<S> {
    /// Sends a response to its end. Returns whether the connection may carry another request; not if it is the last one.
    pub async fn respond<B>(&mut self, response: Response<B>, is_last: bool) -> Result<bool, ResponseError>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (mut head, body) = response.into_parts();
        // Of a body that was refused.
        self.current.chunks = BytesMut::new();
        let length = body.size_hint().exact();
        if let Some(length @ 1..) = length.filter(|_| self.current.method == Method::HEAD) {
            head.headers.entry(CONTENT_LENGTH).or_insert(length.into());
        }
        let mut framing = Framing::of(&self.current, head.status, length);
        // After a 2xx to CONNECT the connection would be a tunnel. The router opens none.
        let is_tunnel = self.current.method == Method::CONNECT && head.status.is_success();
        let may_follow = !is_last && !is_tunnel && framing != Framing::UntilClose;
        let keep_alive = may_follow && self.current.keep_alive && self.current.is_body_read(&mut self.buffer);
        self.outgoing.begin(&head, framing, (self.current.version, keep_alive));
        spare::keep_headers(head.headers);
        let (mut body, mut gathered, mut is_blocked) = (Some(body), Gathered::Full, false);
        poll_fn(|cx| {
            loop {
                let was_blocked = is_blocked;
                // A client that does not take what it has got is given no more.
                if !was_blocked && let Some(it) = &mut body {
                    gathered = framing.gather(it, &mut self.outgoing, cx);
                }
                if matches!(gathered, Gathered::Ended | Gathered::Broken) {
                    // Before its last bytes leave: when the client has them, the request has ended.
                    body = None;
                }
                is_blocked = true;
                ready!(self.outgoing.poll_write(&mut self.stream, cx))?;
                // TLS may have buffered the bytes without sending them.
                ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
                is_blocked = false;
                match gathered {
                    Gathered::Full => {}
                    // A chunk that came meanwhile has woken this task once, and will not again.
                    Gathered::Waits if was_blocked => {}
                    Gathered::Waits => {
                        self.release_buffer();
                        return self.poll_closed(cx).map(|()| Err(ResponseError::Closed));
                    }
                    Gathered::Ended => return Poll::Ready(Ok(())),
                    Gathered::Broken => return Poll::Ready(Err(ResponseError::BrokeOff)),
                }
            }
        })
        .await?;
        if self.outgoing.copied.capacity() > KEEP_BYTES_MAX {
            self.outgoing.copied = Vec::new();
        }
        Ok(keep_alive)
    }
}

impl Outgoing {
    /// Writes the head. The framing of the body is ours; what the response says of it counts only where there is none.
    fn begin(&mut self, head: &Parts, framing: Framing, (version, keep_alive): (Version, bool)) {
        let is_http10 = version == Version::HTTP_10;
        let out = &mut self.copied;
        out.extend_from_slice(if is_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
        out.extend_from_slice(head.status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
        out.extend_from_slice(b"\r\n");
        // The length that a response to HEAD or a 304 would have had stays.
        let keeps_length = framing == Framing::None && head.status != StatusCode::NO_CONTENT;
        let mut has_date = false;
        for (name, value) in &head.headers {
            has_date |= name == DATE;
            let is_framing = name == CONTENT_LENGTH && !keeps_length;
            if !is_framing && name != TRANSFER_ENCODING && name != CONNECTION {
                header(out, name.as_str().as_bytes(), value.as_bytes());
            }
        }
        match framing {
            Framing::Length { left } => {
                out.extend_from_slice(b"content-length: ");
                push_number(out, left);
                out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => header(out, b"transfer-encoding", b"chunked"),
            Framing::None | Framing::UntilClose => {}
        }
        match (keep_alive, is_http10) {
            (false, _) => header(out, b"connection", b"close"),
            (true, true) => header(out, b"connection", b"keep-alive"),
            (true, false) => {}
        }
        if !has_date {
            header(out, b"date", httpdate::fmt_http_date(clock::wall()).as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }

    /// The line before a chunk: its size in hexadecimal digits.
    fn push_size(&mut self, mut size: usize) {
        let mut line = *b"................\r\n";
        let mut at = line.len() - 2;
        while at > 0 {
            at -= 1;
            line[at] = b"0123456789abcdef"[size & 15];
            size >>= 4;
            if size == 0 {
                break;
            }
        }
        self.copied.extend_from_slice(&line[at..]);
    }
}

/// Neither part can contain a line break: the types that they come from reject them.
fn header(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

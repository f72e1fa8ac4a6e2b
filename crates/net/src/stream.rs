//! The bytes of a connection, plain or TLS, from a client or to a worker.
//!
//! An enum: a plain connection pays one branch per read or write, and no allocation or virtual call. TLS is boxed
//! because its state is a kilobyte and a half, for which every plain connection would reserve space.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

pub enum ByteStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ByteStream {
    /// Whether the peer keeps the connection open and no unread bytes have arrived.
    pub(crate) fn is_silent(&mut self) -> bool {
        match self {
            ByteStream::Plain(stream) => {
                let read = stream.try_read(&mut [0]);
                read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            // TLS records of its own (tickets, key updates) carry no data: only a read can tell them apart. This read
            // registers no waker, so the next reader must poll once without waiting for a wake.
            ByteStream::Tls(stream) => {
                let mut byte = [0];
                let mut cx = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// The protocol negotiated by ALPN. None without TLS, or if the peer named none.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self {
            ByteStream::Plain(_) => None,
            ByteStream::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ByteStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ByteStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            ByteStream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ByteStream::Plain(stream) => stream.is_write_vectored(),
            ByteStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ByteStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ByteStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

//! The bytes of a connection, plain or TLS, from a client or to a worker.
//!
//! An enum: a plain connection pays one branch per read or write, and no allocation or virtual call. TLS is boxed
//! because its state is a kilobyte and a half, for which every plain connection would reserve space.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

#[cfg(feature = "simulated")]
use crate::simulated::SimulatedStream;

/// A connection whose peer can be asked after without reading.
pub trait Peer {
    /// Whether the peer will send nothing more, even if bytes of it are unread.
    fn has_left(&self) -> bool;
}

pub enum ByteStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(feature = "simulated")]
    Simulated(SimulatedStream),
}

impl ByteStream {
    /// Whether the peer keeps the connection open and no unread bytes have arrived.
    ///
    /// Asks the socket itself. tokio remembers that a socket had nothing to read until it polls again, which a busy
    /// thread does late: bytes that have arrived since would be taken for the answer to the next request.
    pub(crate) fn is_silent(&mut self) -> bool {
        match self {
            ByteStream::Plain(stream) => has_nothing(stream),
            // rustls may hold data that it has decrypted already. Records of TLS itself (tickets, key updates) carry
            // none, but only a read could tell them apart, so a connection with any bytes counts as not silent. The
            // read registers no waker, so the next reader must poll once without waiting for a wake.
            ByteStream::Tls(stream) => {
                let mut byte = [0];
                let mut cx = Context::from_waker(Waker::noop());
                has_nothing(stream.get_ref().0)
                    && Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
            }
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => stream.is_silent(),
        }
    }

    /// The protocol negotiated by ALPN. None without TLS, or if the peer named none.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self {
            ByteStream::Plain(_) => None,
            ByteStream::Tls(stream) => stream.get_ref().1.alpn_protocol(),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(_) => None,
        }
    }
}

impl Peer for ByteStream {
    fn has_left(&self) -> bool {
        match self {
            ByteStream::Plain(stream) => is_half_closed(stream),
            ByteStream::Tls(stream) => is_half_closed(stream.get_ref().0),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => stream.has_left(),
        }
    }
}

/// Whether the peer has closed its direction. tokio tells that only to who reads on.
#[cfg(target_os = "linux")]
fn is_half_closed(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|answers| answers > 0)
}

/// Other systems do not say while bytes are unread.
#[cfg(not(target_os = "linux"))]
fn is_half_closed(_: &TcpStream) -> bool {
    false
}

/// Whether a read would wait: no bytes, no end, no error.
fn has_nothing(stream: &TcpStream) -> bool {
    let peeked = SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
    peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            ByteStream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            ByteStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => Pin::new(stream).poll_write(cx, bytes),
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
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ByteStream::Plain(stream) => stream.is_write_vectored(),
            ByteStream::Tls(stream) => stream.is_write_vectored(),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            ByteStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ByteStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            ByteStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(feature = "simulated")]
            ByteStream::Simulated(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    /// The runtime has polled nothing in between, so it knows neither of the byte nor of the end.
    #[tokio::test]
    async fn a_stream_is_not_silent_as_soon_as_anything_has_arrived() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for close in [false, true] {
            let mut stream = ByteStream::Plain(TcpStream::connect(address).await.unwrap());
            let (mut peer, _) = listener.accept().unwrap();
            assert!(stream.is_silent());
            if close {
                drop(peer);
            } else {
                peer.write_all(b"x").unwrap();
            }
            assert!(!stream.is_silent(), "closed: {close}");
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_peer_has_left_though_its_bytes_are_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = ByteStream::Plain(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(&[b'x'; 1_000]).unwrap();
        assert!(!stream.has_left());
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(stream.has_left());
    }
}

//! The two ZeroMQ sockets a router needs: one subscribes to a publisher, one requests a replay.
//!
//! Each is one TCP connection and does not reconnect by itself: a subscription that breaks has missed events, and the
//! caller must know. Nothing a peer sends is trusted: a header that announces more than the limits ends the connection,
//! and the buffer grows only with bytes that arrived.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use maitre_zmtp::subscription::Subscription;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer, frame, greeting};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Largest message of a peer. A step of 131,072 new tokens and as many evictions packs to about 3 MiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Most frames of a message. The longest we know of, a reply of a replay, has four.
pub(super) const FRAMES_MAX: usize = 8;

/// The smallest buffer for a read. Batches are a few kilobytes; replays arrive in one burst.
const READ_BYTES: usize = 64 << 10;

/// An idle publisher is silent for hours, so only TCP keepalive can tell it from one whose host is gone. Chosen: a dead
/// host is detected after 25 s, for one small packet each 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// One message: its frames, in the memory they arrived in.
pub type ZmqMessage = Vec<Bytes>;

/// Where a publisher or a replay listens. The host as a resolver wants it, IPv6 without brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmqAddress<'a> {
    pub host: &'a str,
    pub port: u16,
}

/// Why there is no connection, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("connect: {0}")]
    Unreachable(io::Error),
    /// No connection, or no ZMTP greeting.
    #[error("no handshake after {0:?}")]
    TimedOut(Duration),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    /// The peer violates the protocol.
    #[error(transparent)]
    Protocol(#[from] maitre_zmtp::ZmtpError),
}

impl SocketError {
    /// Whether the connection was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self, SocketError::Unreachable(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// A subscription to a publisher. Dropping it closes the connection.
#[derive(Debug)]
pub struct Subscriber(Connection);

impl Subscriber {
    /// Connects and subscribes to all topics that begin with `topic`. Everything that the publisher sends after it has
    /// read the subscription will arrive, or the connection ends, or there is a gap in the numbers.
    pub async fn connect(
        address: ZmqAddress<'_>,
        topic: &[u8],
        patience: Duration,
    ) -> Result<Subscriber, SocketError> {
        let mut connection = Connection::open(address, Role::Sub, patience).await?;
        connection.send(&[Subscription::Add(topic).to_frame()]).await?;
        Ok(Subscriber(connection))
    }

    /// The next message. Safe to cancel. After an error there is none.
    pub async fn next(&mut self) -> Result<ZmqMessage, SocketError> {
        self.0.next().await
    }
}

/// A DEALER socket, for requests to a ROUTER.
#[derive(Debug)]
pub(super) struct Dealer(Connection);

impl Dealer {
    pub(super) async fn connect(address: ZmqAddress<'_>, patience: Duration) -> Result<Dealer, SocketError> {
        Ok(Dealer(Connection::open(address, Role::Dealer, patience).await?))
    }

    /// Sends a message. Must not be cancelled: nothing can follow half a message.
    pub(super) async fn send<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), SocketError> {
        self.0.send(frames).await
    }

    /// The next message. Safe to cancel. After an error there is none.
    pub(super) async fn next(&mut self) -> Result<ZmqMessage, SocketError> {
        self.0.next().await
    }
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: ZmtpPeer,
    buffer: BytesMut,
    /// The first frames of an incomplete message.
    frames: ZmqMessage,
    /// The part of a reply to the peer that is not sent yet.
    reply: Bytes,
}

/// What the front of the buffer holds.
enum Parsed {
    /// Nothing complete.
    Short,
    /// A frame or command, which has been handled.
    Handled,
    Whole(ZmqMessage),
}

impl Connection {
    async fn open(
        address: ZmqAddress<'_>,
        role: Role,
        patience: Duration,
    ) -> Result<Connection, SocketError> {
        let opening = async {
            let connected = TcpStream::connect((address.host, address.port)).await;
            let mut connection = Connection::new(connected.map_err(SocketError::Unreachable)?, role);
            connection.stream.write_all(&greeting::OPENING).await?;
            while !connection.peer.is_ready() {
                match connection.step()? {
                    Parsed::Short => connection.fill().await?,
                    Parsed::Handled | Parsed::Whole(_) => connection.write(Vec::new()).await?,
                }
            }
            Ok(connection)
        };
        timeout(patience, opening).await.unwrap_or(Err(SocketError::TimedOut(patience)))
    }

    fn new(stream: TcpStream, role: Role) -> Connection {
        // Without the options there is more latency and slower failure detection, but no error.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        let limits = ZmtpLimits { message_bytes_max: MESSAGE_BYTES_MAX, frames_max: FRAMES_MAX };
        Connection {
            stream,
            peer: ZmtpPeer::new(role, limits),
            buffer: BytesMut::new(),
            frames: Vec::new(),
            reply: Bytes::new(),
        }
    }

    async fn send<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), SocketError> {
        let mut message = Vec::new();
        frame::put_message(frames, &mut message);
        self.write(message).await
    }

    /// Sends the pending reply, and these bytes.
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), SocketError> {
        let bytes = [&std::mem::take(&mut self.reply)[..], &bytes].concat();
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// Safe to cancel: all state is in `self`, and a cancelled read has read nothing.
    async fn next(&mut self) -> Result<ZmqMessage, SocketError> {
        loop {
            match self.step()? {
                Parsed::Whole(message) => return Ok(message),
                Parsed::Handled => {}
                Parsed::Short => {
                    self.send_reply();
                    self.fill().await?;
                }
            }
        }
    }

    /// Takes one frame or command off the front of the buffer, if it is complete.
    fn step(&mut self) -> Result<Parsed, SocketError> {
        match self.peer.next(&self.buffer)? {
            Next::Wait { .. } => return Ok(Parsed::Short),
            Next::Handled { bytes, reply } => {
                self.buffer.advance(bytes);
                // One reply at a time: a peer that does not read its replies gets no more.
                if self.reply.is_empty() {
                    self.reply = reply.into();
                }
            }
            Next::Frame { head_bytes, body_bytes, is_last } => {
                self.buffer.advance(head_bytes);
                self.frames.push(self.buffer.split_to(body_bytes).freeze());
                if is_last {
                    return Ok(Parsed::Whole(std::mem::take(&mut self.frames)));
                }
            }
        }
        Ok(Parsed::Handled)
    }

    /// Sends as much of the reply as fits without waiting. The rest is sent before the next read.
    fn send_reply(&mut self) {
        if !self.reply.is_empty()
            && let Ok(sent) = self.stream.try_write(&self.reply)
        {
            self.reply.advance(sent);
        }
    }

    /// Reads once. The buffer grows with the bytes that arrived, never by an announced size.
    async fn fill(&mut self) -> Result<(), SocketError> {
        // Messages keep the buffer alive that they arrived in. A new buffer is begun only when the last one is nearly
        // full, so that many small messages do not keep much more memory than they need.
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES.max(self.buffer.len()));
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(SocketError::Closed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;

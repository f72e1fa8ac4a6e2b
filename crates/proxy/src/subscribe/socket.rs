//! ZeroMQ sockets, as far as a router needs them: one that listens to a publisher, one that asks a replay.
//!
//! Each is one TCP connection and does not come back by itself: a subscription that breaks has missed
//! something, and whoever listens must know. Nothing a peer sends is believed: a head that announces more
//! than the limits ends the connection, and the buffer grows only with bytes that came.

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

/// Least room a read is given. Batches are a few kilobytes, replays come in one rush.
const READ_BYTES: usize = 64 << 10;

/// A publisher with nothing to say is silent for hours, so that only the kernel can tell it from one whose
/// host is gone. Chosen: found out after 25 s, for one small packet each 10 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// One message: its frames, in the memory they arrived in.
pub type Message = Vec<Bytes>;

/// Where a publisher or a replay listens. The host as a resolver wants it, IPv6 without brackets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub host: &'a str,
    pub port: u16,
}

/// Why there is no connection, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect: {0}")]
    Unreachable(io::Error),
    /// Nobody there, or somebody who does not greet.
    #[error("no handshake after {0:?}")]
    TimedOut(Duration),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    /// What the peer says is not what such a peer may say.
    #[error(transparent)]
    Protocol(#[from] maitre_zmtp::ZmtpError),
}

impl Error {
    /// Whether nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, Error::Unreachable(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// Listens to a publisher. Dropped, it is gone.
#[derive(Debug)]
pub struct Subscriber(Connection);

impl Subscriber {
    /// Connects, shakes hands and subscribes to all topics that begin with `topic`. Whatever the publisher
    /// sends from the moment it has read the subscription will be heard, or the connection ends, or there is
    /// a gap in the numbers.
    pub async fn connect(place: Place<'_>, topic: &[u8], patience: Duration) -> Result<Subscriber, Error> {
        let mut connection = Connection::open(place, Role::Sub, patience).await?;
        connection.send(&[Subscription::Add(topic).to_frame()]).await?;
        Ok(Subscriber(connection))
    }

    /// The next message. Cancelled, it has lost nothing. After an error there is no other.
    pub async fn next(&mut self) -> Result<Message, Error> {
        self.0.next().await
    }
}

/// Asks a ROUTER.
#[derive(Debug)]
pub(super) struct Dealer(Connection);

impl Dealer {
    pub(super) async fn connect(place: Place<'_>, patience: Duration) -> Result<Dealer, Error> {
        Ok(Dealer(Connection::open(place, Role::Dealer, patience).await?))
    }

    /// Sends a message. Not to be cancelled: half a message cannot be followed by anything.
    pub(super) async fn send<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), Error> {
        self.0.send(frames).await
    }

    /// The next message. Cancelled, it has lost nothing. After an error there is no other.
    pub(super) async fn next(&mut self) -> Result<Message, Error> {
        self.0.next().await
    }
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: ZmtpPeer,
    buffer: BytesMut,
    /// The beginning of a message that is not all here.
    frames: Message,
    /// What the peer wants answered, as far as it is not sent.
    reply: Bytes,
}

/// What a look at the front of the buffer came to.
enum Step {
    /// Nothing that is all there.
    Short,
    /// Something, and it is dealt with.
    Gone,
    Whole(Message),
}

impl Connection {
    async fn open(place: Place<'_>, role: Role, patience: Duration) -> Result<Connection, Error> {
        let opening = async {
            let connected = TcpStream::connect((place.host, place.port)).await;
            let mut connection = Connection::new(connected.map_err(Error::Unreachable)?, role);
            connection.stream.write_all(&greeting::OPENING).await?;
            while !connection.peer.is_ready() {
                match connection.step()? {
                    Step::Short => connection.fill().await?,
                    Step::Gone | Step::Whole(_) => connection.write(Vec::new()).await?,
                }
            }
            Ok(connection)
        };
        timeout(patience, opening).await.unwrap_or(Err(Error::TimedOut(patience)))
    }

    fn new(stream: TcpStream, role: Role) -> Connection {
        // A lost option costs latency or patience, not correctness.
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

    async fn send<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), Error> {
        let mut message = Vec::new();
        frame::put_message(frames, &mut message);
        self.write(message).await
    }

    /// Sends what the peer wants answered, and this.
    async fn write(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        let bytes = [&std::mem::take(&mut self.reply)[..], &bytes].concat();
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// All state is in `self` whenever this waits, and a read that is cancelled has read nothing.
    async fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.step()? {
                Step::Whole(message) => return Ok(message),
                Step::Gone => {}
                Step::Short => {
                    self.send_reply();
                    self.fill().await?;
                }
            }
        }
    }

    /// Takes one thing off the front of the buffer, if one is all there.
    fn step(&mut self) -> Result<Step, Error> {
        match self.peer.next(&self.buffer)? {
            Next::Wait { .. } => return Ok(Step::Short),
            Next::Handled { bytes, reply } => {
                self.buffer.advance(bytes);
                // One answer at a time: a peer that does not read them gets no more.
                if self.reply.is_empty() {
                    self.reply = reply.into();
                }
            }
            Next::Frame { head_bytes, body_bytes, is_last } => {
                self.buffer.advance(head_bytes);
                self.frames.push(self.buffer.split_to(body_bytes).freeze());
                if is_last {
                    return Ok(Step::Whole(std::mem::take(&mut self.frames)));
                }
            }
        }
        Ok(Step::Gone)
    }

    /// Sends what goes without waiting. The rest goes before the next read.
    fn send_reply(&mut self) {
        if !self.reply.is_empty()
            && let Ok(sent) = self.stream.try_write(&self.reply)
        {
            self.reply.advance(sent);
        }
    }

    /// Reads once. Room for it is made by what came before, never by what is announced.
    async fn fill(&mut self) -> Result<(), Error> {
        // Messages keep alive the memory they came in: a new piece is begun only when the last is nearly
        // full, so that many small ones do not keep much more than they are.
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
            self.buffer.reserve(READ_BYTES.max(self.buffer.len()));
        }
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;

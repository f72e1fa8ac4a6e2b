//! In-memory connections, for a simulation of the router in one thread and in virtual time.
//!
//! A connection is two bounded buffers. A seeded random source chooses how many bytes each read and each write moves, so
//! the same seed gives the same connection. Either end can reset it, as a process that dies does.
//!
//! Left out: latency. Bytes arrive when they are written; who writes late sleeps before.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use maitre_base::Rng;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::address::Address;

/// How an address answers a connection attempt.
pub enum Dialed {
    Open(SimulatedStream),
    Refused,
    /// Neither accepts nor refuses.
    Silent,
}

type Network = Box<dyn Fn(&Address) -> Dialed>;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
    static IGNORES_UNREAD: Cell<bool> = const { Cell::new(false) };
}

/// Connections of this thread are answered by `network` from now on. None: by the real one.
pub fn set_network(network: Option<Network>) {
    NETWORK.set(network);
}

/// Plants a fault: streams count as silent although they have unread bytes, like a socket whose readiness is cached.
pub fn ignore_unread(ignores: bool) {
    IGNORES_UNREAD.set(ignores);
}

/// Connects by this thread's network. None if it has none.
pub(crate) fn dial(address: &Address) -> Option<impl Future<Output = io::Result<SimulatedStream>> + use<>> {
    let dialed = NETWORK.with_borrow(|network| network.as_ref().map(|it| it(address)))?;
    Some(async {
        match dialed {
            Dialed::Open(stream) => Ok(stream),
            Dialed::Refused => Err(io::ErrorKind::ConnectionRefused.into()),
            Dialed::Silent => std::future::pending().await,
        }
    })
}

/// One end of a connection. Dropping it closes the connection.
pub struct SimulatedStream(ConnectionHandle);

/// Looks at a connection from one of its ends, without keeping it open.
#[derive(Clone)]
pub struct ConnectionHandle {
    wire: Arc<Mutex<Wire>>,
    /// Reads `lanes[end]`, writes the other one.
    end: usize,
}

struct Wire {
    lanes: [WireLane; 2],
    is_reset: bool,
    rng: Rng,
}

/// The bytes in one direction.
struct WireLane {
    unread: VecDeque<u8>,
    bytes_max: usize,
    /// The writer has finished.
    is_ended: bool,
    /// The reader has closed its end.
    is_abandoned: bool,
    reader: Waker,
    writer: Waker,
}

/// A connection whose buffers hold `bytes_max` bytes in each direction.
pub fn pair(rng: Rng, bytes_max: usize) -> (SimulatedStream, SimulatedStream) {
    let lane = || WireLane {
        unread: VecDeque::new(),
        bytes_max,
        is_ended: false,
        is_abandoned: false,
        reader: Waker::noop().clone(),
        writer: Waker::noop().clone(),
    };
    let wire = Arc::new(Mutex::new(Wire { lanes: [lane(), lane()], is_reset: false, rng }));
    let end = |end| SimulatedStream(ConnectionHandle { wire: wire.clone(), end });
    (end(0), end(1))
}

impl Wire {
    /// How many of `available` bytes one call moves: all, one, or some.
    fn piece(&mut self, available: usize) -> usize {
        match self.rng.below(4) {
            0 => available.min(1),
            1 => available.min(1 + self.rng.below(available)),
            _ => available,
        }
    }

    fn reset(&mut self) {
        self.is_reset = true;
        self.wake();
    }

    fn wake(&self) {
        for lane in &self.lanes {
            lane.reader.wake_by_ref();
            lane.writer.wake_by_ref();
        }
    }
}

impl ConnectionHandle {
    /// Breaks the connection: both ends fail, and unread bytes are lost.
    pub fn reset(&self) {
        self.wire.lock().reset();
    }

    /// Whether both look at the same connection.
    pub fn is_same(&self, other: &ConnectionHandle) -> bool {
        Arc::ptr_eq(&self.wire, &other.wire)
    }

    /// Whether both ends have read all that was written.
    pub fn is_quiet(&self) -> bool {
        self.wire.lock().lanes.iter().all(|it| it.unread.is_empty())
    }

    /// Whether the other end still holds the connection.
    pub fn is_peer_open(&self) -> bool {
        let wire = self.wire.lock();
        !wire.is_reset && !wire.lanes[1 - self.end].is_abandoned
    }
}

impl SimulatedStream {
    pub fn handle(&self) -> ConnectionHandle {
        self.0.clone()
    }

    /// Whether the peer keeps the connection open and no unread bytes have arrived.
    pub(crate) fn is_silent(&self) -> bool {
        let wire = self.0.wire.lock();
        let lane = &wire.lanes[self.0.end];
        let has_unread = !lane.unread.is_empty() && !IGNORES_UNREAD.get();
        !has_unread && !lane.is_ended && !wire.is_reset
    }

    /// Whether the peer will send nothing more.
    pub(crate) fn has_left(&self) -> bool {
        let wire = self.0.wire.lock();
        wire.lanes[self.0.end].is_ended || wire.is_reset
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        let end = self.0.end;
        let mut wire = self.0.wire.lock();
        wire.lanes[1 - end].is_ended = true;
        let lane = &mut wire.lanes[end];
        lane.is_abandoned = true;
        // As in TCP: a socket that is closed with unread bytes resets the connection. What it wrote may be lost or not.
        if !lane.unread.is_empty() && wire.rng.below(2) == 0 {
            wire.is_reset = true;
        }
        wire.wake();
    }
}

impl AsyncRead for SimulatedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let end = self.0.end;
        let mut wire = self.0.wire.lock();
        if wire.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let available = wire.lanes[end].unread.len().min(buf.remaining());
        let piece = wire.piece(available);
        let lane = &mut wire.lanes[end];
        if lane.unread.is_empty() && !lane.is_ended {
            lane.reader.clone_from(cx.waker());
            return Poll::Pending;
        }
        lane.unread.drain(..piece).for_each(|byte| buf.put_slice(&[byte]));
        lane.writer.wake_by_ref();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let end = 1 - self.0.end;
        let mut wire = self.0.wire.lock();
        if wire.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let lane = &wire.lanes[end];
        if lane.is_abandoned || lane.is_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = lane.bytes_max.saturating_sub(lane.unread.len());
        let length = pieces.iter().map(|it| it.len()).sum::<usize>();
        let piece = wire.piece(room.min(length));
        let lane = &mut wire.lanes[end];
        if room == 0 && length > 0 {
            lane.writer.clone_from(cx.waker());
            return Poll::Pending;
        }
        lane.unread.extend(pieces.iter().flat_map(|it| it.iter()).take(piece));
        lane.reader.wake_by_ref();
        Poll::Ready(Ok(piece))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let end = self.0.end;
        let lane = &mut self.0.wire.lock().lanes[1 - end];
        lane.is_ended = true;
        lane.reader.wake_by_ref();
        Poll::Ready(Ok(()))
    }
}

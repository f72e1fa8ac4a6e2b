//! One peer's connection: writes the backlog and delivers received frames until it ends.
//!
//! Everything in the backlog goes out in one write. An idle connection sends a heartbeat every second. A peer that
//! sends nothing for five seconds is unreachable: a partition leaves connections that look healthy.
//!
//! Reading pauses while the router is busy, which slows the peer down, but for at most one second. A longer pause
//! would also hide heartbeats, and every peer would appear dead. After that second, frames are dropped until there is
//! room.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::backlog::{Backlog, Taken};
use super::handshake::{RecordOpener, RecordSealer, SecureConnection};
use super::wire::{self, DialVerdict, HEADER, LENGTH, MeshFrameKind, ProtocolError, RECORD_MAX};
use crate::Incoming;

/// Interval between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Several heartbeats: without any, the connection is closed.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a frame waits for room.
const DELIVERY_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the other end to close after the last byte.
const LINGER: Duration = Duration::from_millis(250);

/// Counters over all connections.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) frames_out: AtomicU64,
    pub(super) frames_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) dropped: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// When data last arrived, in milliseconds since the connection was made.
#[derive(Debug)]
pub(super) struct LastReceived {
    since: Instant,
    last_ms: AtomicU64,
}

impl LastReceived {
    pub(super) fn new(now: Instant) -> LastReceived {
        LastReceived { since: now, last_ms: AtomicU64::new(0) }
    }

    fn note(&self) {
        self.last_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }
}

/// What a connection needs from the hub.
pub(super) struct ConnectionHandles {
    /// Identifies this connection.
    pub(super) id: u64,
    pub(super) backlog: Arc<Backlog>,
    pub(super) last_received: Arc<LastReceived>,
    pub(super) counters: Arc<Counters>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) gossip: mpsc::Sender<(u64, Bytes)>,
}

/// What precedes the first frame.
pub(super) struct ConnectionStart {
    /// The listener's verdict on the dialler.
    pub(super) verdict: Option<DialVerdict>,
    /// Resolves when the replaced connection has ended, so that its frames are delivered first.
    pub(super) predecessor: Option<oneshot::Receiver<()>>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("it hung up")]
    Closed,
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("it sent nothing for {SILENCE_MAX:?}")]
    Silent,
    #[error("it sent {0}")]
    Malformed(#[from] ProtocolError),
    /// Closed by us.
    #[error("we are leaving")]
    Done,
}

/// Runs the connection until it ends.
pub(super) async fn run(
    connection: SecureConnection,
    start: ConnectionStart,
    handles: ConnectionHandles,
) -> CloseReason {
    let SecureConnection { stream, sealer, opener, .. } = connection;
    let (read, write) = stream.into_split();
    let writer = FrameWriter { write, sealer, plain: Vec::new(), sealed: Vec::new() };
    let reader = FrameReader {
        read,
        opener,
        sealed: BytesMut::new(),
        plain: Vec::new(),
        delivery: Delivery { incoming: handles.incoming.clone(), is_stuck: false, owes_connected: true },
    };
    let writing = writer.run(start.verdict, &handles);
    let mut reading = std::pin::pin!(reader.run(start.predecessor, &handles));
    tokio::select! {
        ended = writing => match ended {
            Err(reason) => reason,
            Ok(()) => {
                // Closing a socket with unread bytes resets it and discards what was sent.
                let _ = timeout(LINGER, reading).await;
                CloseReason::Done
            }
        },
        reason = &mut reading => reason,
    }
}

struct FrameWriter {
    write: OwnedWriteHalf,
    sealer: RecordSealer,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl FrameWriter {
    /// Returns `Ok` once the backlog is closed and written.
    async fn run(
        mut self,
        verdict: Option<DialVerdict>,
        handles: &ConnectionHandles,
    ) -> Result<(), CloseReason> {
        if let Some(verdict) = verdict {
            self.plain.extend(verdict.encode());
            self.write(handles).await?;
        }
        loop {
            let frames = match timeout(HEARTBEAT, handles.backlog.take(&mut self.plain)).await {
                Ok(Taken::Some(frames)) => frames,
                Ok(Taken::End) => return Ok(self.write.shutdown().await?),
                Err(_) => {
                    wire::put_frame(&mut self.plain, MeshFrameKind::Heartbeat, &[]);
                    0
                }
            };
            self.write(handles).await?;
            add(&handles.counters.frames_out, frames);
        }
    }

    async fn write(&mut self, handles: &ConnectionHandles) -> Result<(), CloseReason> {
        self.sealed.clear();
        self.sealer.seal(&self.plain, &mut self.sealed)?;
        self.plain.clear();
        self.write.write_all(&self.sealed).await?;
        add(&handles.counters.bytes_out, self.sealed.len() as u64);
        Ok(())
    }
}

struct FrameReader {
    read: OwnedReadHalf,
    opener: RecordOpener,
    /// Encrypted records; the last one may be incomplete.
    sealed: BytesMut,
    /// Decrypted frames; the last one may be incomplete.
    plain: Vec<u8>,
    delivery: Delivery,
}

impl FrameReader {
    async fn run(
        mut self,
        predecessor: Option<oneshot::Receiver<()>>,
        handles: &ConnectionHandles,
    ) -> CloseReason {
        if let Some(predecessor) = predecessor {
            let _ = predecessor.await;
        }
        self.delivery.open().await;
        loop {
            if let Err(reason) = self.step(handles).await {
                return reason;
            }
        }
    }

    /// Reads once and delivers what arrived.
    async fn step(&mut self, handles: &ConnectionHandles) -> Result<(), CloseReason> {
        self.sealed.reserve(LENGTH + RECORD_MAX);
        let read = timeout(SILENCE_MAX, self.read.read_buf(&mut self.sealed)).await;
        match read.map_err(|_| CloseReason::Silent)?? {
            0 => return Err(CloseReason::Closed),
            length => add(&handles.counters.bytes_in, length as u64),
        }
        handles.last_received.note();
        while let Some(&length) = self.sealed.first_chunk::<LENGTH>() {
            let length = wire::record(length)?;
            if self.sealed.len() < LENGTH + length {
                break;
            }
            self.opener.open(&self.sealed[LENGTH..LENGTH + length], &mut self.plain)?;
            self.sealed.advance(LENGTH + length);
            self.hand_on(handles).await?;
        }
        Ok(())
    }

    /// Delivers all complete frames.
    async fn hand_on(&mut self, handles: &ConnectionHandles) -> Result<(), CloseReason> {
        let mut rest = &self.plain[..];
        while let Some((kind, length)) = wire::frame(rest)? {
            let body = &rest[HEADER..HEADER + length];
            match kind {
                MeshFrameKind::Heartbeat => (),
                // The receiver is gone only if the hub is.
                MeshFrameKind::Gossip => {
                    drop(handles.gossip.send((handles.id, Bytes::copy_from_slice(body))).await)
                }
                MeshFrameKind::Data => {
                    add(&handles.counters.frames_in, 1);
                    let is_taken = self.delivery.hand_on(Bytes::copy_from_slice(body)).await;
                    add(&handles.counters.dropped, u64::from(!is_taken));
                }
            }
            rest = &rest[HEADER + length..];
        }
        let done = self.plain.len() - rest.len();
        self.plain.drain(..done);
        Ok(())
    }
}

/// Delivers frames to the router.
struct Delivery {
    incoming: mpsc::Sender<Incoming>,
    /// A delivery timed out: do not wait again until one succeeds.
    is_stuck: bool,
    /// The router must see `Connected` before the first frame.
    owes_connected: bool,
}

impl Delivery {
    /// Returns whether the frame was delivered.
    async fn hand_on(&mut self, frame: Bytes) -> bool {
        self.open().await && self.pass(Incoming::Frame(frame)).await
    }

    async fn open(&mut self) -> bool {
        if self.owes_connected && self.pass(Incoming::Connected).await {
            self.owes_connected = false;
        }
        !self.owes_connected
    }

    /// Fails if the router is gone, in which case the transport is about to end.
    async fn pass(&mut self, incoming: Incoming) -> bool {
        let is_taken = match self.incoming.try_send(incoming) {
            Ok(()) => true,
            Err(TrySendError::Full(incoming)) if !self.is_stuck => {
                self.incoming.send_timeout(incoming, DELIVERY_MAX).await.is_ok()
            }
            Err(_) => false,
        };
        self.is_stuck = !is_taken;
        is_taken
    }
}

//! One peer's connection: takes what waits to be written, and hands on what is read, until it ends.
//!
//! All that waits goes out in one write. If nothing did for a second a beat goes out, so that a peer from whom
//! nothing came for five is one we cannot hear: a partition leaves connections that look well.
//!
//! Reading stops while whoever should take the frames is busy, so that the peer slows down; but not for longer than a
//! second, because who does not read does not hear signs of life either, and would take all others for gone. After
//! that frames are dropped until there is room again.

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
use super::handshake::{Opening, Sealing, Shaken};
use super::wire::{self, HEADER, Kind, LENGTH, Nonsense, RECORD_MAX, Verdict};
use crate::Incoming;

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Several beats: without any the connection is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a frame waits for room.
const PATIENCE: Duration = Duration::from_secs(1);
/// After the last byte, for the other end to close first.
const LINGER: Duration = Duration::from_millis(250);

/// What all connections count together.
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

/// When something last came, in milliseconds since it was made.
#[derive(Debug)]
pub(super) struct Heard {
    since: Instant,
    last_ms: AtomicU64,
}

impl Heard {
    pub(super) fn new(now: Instant) -> Heard {
        Heard { since: now, last_ms: AtomicU64::new(0) }
    }

    fn note(&self) {
        self.last_ms.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub(super) fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.since.elapsed().saturating_sub(last)
    }
}

/// What a connection needs of the rest.
pub(super) struct Ends {
    /// Which connection this is.
    pub(super) id: u64,
    pub(super) backlog: Arc<Backlog>,
    pub(super) heard: Arc<Heard>,
    pub(super) counters: Arc<Counters>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) gossip: mpsc::Sender<(u64, Bytes)>,
}

/// What comes before the first frame.
pub(super) struct Start {
    /// Of the one that was dialled.
    pub(super) verdict: Option<Verdict>,
    /// Ends with the connection this one takes the place of: what that one still hands on comes first.
    pub(super) predecessor: Option<oneshot::Receiver<()>>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("it hung up")]
    Closed,
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("nothing came from it for {SILENCE_MAX:?}")]
    Silent,
    #[error("it sent {0}")]
    Nonsense(#[from] Nonsense),
    /// We wanted it so.
    #[error("we are leaving")]
    Done,
}

/// Runs until it ends.
pub(super) async fn run(shaken: Shaken, start: Start, ends: Ends) -> Why {
    let Shaken { stream, sealing, opening, .. } = shaken;
    let (read, write) = stream.into_split();
    let writer = Writer { write, sealing, plain: Vec::new(), sealed: Vec::new() };
    let reader = Reader {
        read,
        opening,
        sealed: BytesMut::new(),
        plain: Vec::new(),
        door: Door { incoming: ends.incoming.clone(), is_stuck: false, owes_connected: true },
    };
    let writing = writer.run(start.verdict, &ends);
    let mut reading = std::pin::pin!(reader.run(start.predecessor, &ends));
    tokio::select! {
        ended = writing => match ended {
            Err(why) => why,
            Ok(()) => {
                // A socket that is closed with bytes unread takes back what it has sent.
                let _ = timeout(LINGER, reading).await;
                Why::Done
            }
        },
        why = &mut reading => why,
    }
}

struct Writer {
    write: OwnedWriteHalf,
    sealing: Sealing,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl Writer {
    /// Ends well when all is said.
    async fn run(mut self, verdict: Option<Verdict>, ends: &Ends) -> Result<(), Why> {
        if let Some(verdict) = verdict {
            self.plain.extend(verdict.encode());
            self.write(ends).await?;
        }
        loop {
            let frames = match timeout(BEAT, ends.backlog.take(&mut self.plain)).await {
                Ok(Taken::Some(frames)) => frames,
                Ok(Taken::End) => return Ok(self.write.shutdown().await?),
                Err(_) => {
                    wire::put_frame(&mut self.plain, Kind::Beat, &[]);
                    0
                }
            };
            self.write(ends).await?;
            add(&ends.counters.frames_out, frames);
        }
    }

    async fn write(&mut self, ends: &Ends) -> Result<(), Why> {
        self.sealed.clear();
        self.sealing.seal(&self.plain, &mut self.sealed)?;
        self.plain.clear();
        self.write.write_all(&self.sealed).await?;
        add(&ends.counters.bytes_out, self.sealed.len() as u64);
        Ok(())
    }
}

struct Reader {
    read: OwnedReadHalf,
    opening: Opening,
    /// Records, the last of them perhaps not whole.
    sealed: BytesMut,
    /// Frames, likewise.
    plain: Vec<u8>,
    door: Door,
}

impl Reader {
    async fn run(mut self, predecessor: Option<oneshot::Receiver<()>>, ends: &Ends) -> Why {
        if let Some(predecessor) = predecessor {
            let _ = predecessor.await;
        }
        self.door.open().await;
        loop {
            if let Err(why) = self.step(ends).await {
                return why;
            }
        }
    }

    /// What one read brings.
    async fn step(&mut self, ends: &Ends) -> Result<(), Why> {
        self.sealed.reserve(LENGTH + RECORD_MAX);
        let read = timeout(SILENCE_MAX, self.read.read_buf(&mut self.sealed)).await;
        match read.map_err(|_| Why::Silent)?? {
            0 => return Err(Why::Closed),
            length => add(&ends.counters.bytes_in, length as u64),
        }
        ends.heard.note();
        while let Some(&length) = self.sealed.first_chunk::<LENGTH>() {
            let length = wire::record(length)?;
            if self.sealed.len() < LENGTH + length {
                break;
            }
            self.opening.open(&self.sealed[LENGTH..LENGTH + length], &mut self.plain)?;
            self.sealed.advance(LENGTH + length);
            self.hand_on(ends).await?;
        }
        Ok(())
    }

    /// All frames that are whole.
    async fn hand_on(&mut self, ends: &Ends) -> Result<(), Why> {
        let mut rest = &self.plain[..];
        while let Some((kind, length)) = wire::frame(rest)? {
            let body = &rest[HEADER..HEADER + length];
            match kind {
                Kind::Beat => (),
                // The other end is gone only if all of us is.
                Kind::Gossip => drop(ends.gossip.send((ends.id, Bytes::copy_from_slice(body))).await),
                Kind::Data => {
                    add(&ends.counters.frames_in, 1);
                    let is_taken = self.door.hand_on(Bytes::copy_from_slice(body)).await;
                    add(&ends.counters.dropped, u64::from(!is_taken));
                }
            }
            rest = &rest[HEADER + length..];
        }
        let done = self.plain.len() - rest.len();
        self.plain.drain(..done);
        Ok(())
    }
}

/// Where frames leave for whoever takes them.
struct Door {
    incoming: mpsc::Sender<Incoming>,
    /// Something waited in vain: nothing else waits until something was taken.
    is_stuck: bool,
    /// That we are connected must be known before the first frame.
    owes_connected: bool,
}

impl Door {
    /// Whether it was taken.
    async fn hand_on(&mut self, frame: Bytes) -> bool {
        self.open().await && self.pass(Incoming::Frame(frame)).await
    }

    async fn open(&mut self) -> bool {
        if self.owes_connected && self.pass(Incoming::Connected).await {
            self.owes_connected = false;
        }
        !self.owes_connected
    }

    /// If nobody takes anything any more, we are about to leave.
    async fn pass(&mut self, incoming: Incoming) -> bool {
        let is_taken = match self.incoming.try_send(incoming) {
            Ok(()) => true,
            Err(TrySendError::Full(incoming)) if !self.is_stuck => {
                self.incoming.send_timeout(incoming, PATIENCE).await.is_ok()
            }
            Err(_) => false,
        };
        self.is_stuck = !is_taken;
        is_taken
    }
}

//! One router of the cluster. It takes local events and returns frames to send; it takes received frames and returns
//! updates.
//!
//! Deltas carry changes and are numbered without gaps; a receiver that misses one asks and gets a snapshot of all
//! rows. Heartbeats carry the latest delta number, so that a lost last delta is noticed. A starting router sends
//! hello, receives every peer's rows and one peer's directory, and is then synced. Every frame goes to all peers, so
//! one answer serves every peer that misses the same data.
//!
//! Left out: clocks and sockets. The caller calls `flush`, `heartbeat` and `tick` in time.

mod join;
mod receive;
mod repair;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::directory::{CLAIMS_MAX, CacheDirectory, SEGMENTS_MAX};
use crate::frame::write::{self, RecordBuffer};
use crate::frame::{Echo, Head, Heartbeat, NAME_MAX, Record, Since};
use crate::node::join::Join;
use crate::own_rows::{self, OwnRows, PINS_MAX, SPENT_MAX};
use crate::row::{Chain, Incarnation, Peer, PeerUpdate, RouterId, Spent, WorkerFacts};
use crate::view::{ClusterView, RankedPin};
use maitre_base::{Instant, PromisedWork};

/// Minimum interval between two deltas. Chosen: well below any time to first token.
pub const FLUSH: Duration = Duration::from_millis(40);
/// Interval between two heartbeats.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Default silence limit: six heartbeats. Chosen: a pause of a second or two does not lose a router, and the load of
/// a dead router is dropped as soon as a dead worker would be noticed.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How many of our heartbeats an echo may refer to.
const HEARTBEATS_KEPT: usize = 16;

#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Unique within the cluster.
    pub name: String,
    pub incarnation: Incarnation,
    /// How long a router may be silent before its rows are dropped from the view.
    pub silence_max: Duration,
}

/// What happened to a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Applied, or already known.
    Applied,
    /// Our own frame, or from an incarnation that is over.
    Ignored,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Rows and chains dropped because of a limit or a missing segment, since the start.
    pub dropped: u64,
    /// How often missing rows had to be requested.
    pub repairs: u64,
    pub segments: usize,
    pub rows: usize,
}

#[derive(Debug)]
pub struct Node {
    id: RouterId,
    name: String,
    incarnation: Incarnation,
    silence_max: Duration,
    /// The last delta's number.
    seq: u64,
    /// Lamport clock: larger than any stamp received.
    stamp: u64,
    own_rows: OwnRows,
    view: ClusterView,
    directory: CacheDirectory,
    join: Join,
    heartbeats: Heartbeats,
    requests: PeerRequests,
    buffer: RecordBuffer,
    repairs: u64,
}

/// Our heartbeats and what they report.
#[derive(Debug, Default)]
struct Heartbeats {
    number: u64,
    sent: VecDeque<(u64, Instant)>,
    served: u64,
    in_flight: u32,
}

/// What peers have requested.
#[derive(Debug, Default)]
struct PeerRequests {
    rows: Option<Since>,
    rows_sent_at: Option<Instant>,
    wants_directory: bool,
    directory_sent_at: Option<Instant>,
    /// Frames of the directory snapshot that are still to be sent.
    directory_frames: VecDeque<Vec<u8>>,
    /// Segments, each with the block size of its chains.
    segments: Vec<(u32, u64)>,
    edition: u64,
}

impl Node {
    pub fn new(config: NodeConfig) -> Node {
        let NodeConfig { name, incarnation, silence_max } = config;
        Node {
            id: RouterId::named(&name),
            name: sanitized_name(&name),
            incarnation,
            silence_max,
            seq: 0,
            stamp: 0,
            own_rows: OwnRows::new(PINS_MAX, SPENT_MAX),
            view: ClusterView::default(),
            directory: CacheDirectory::new(SEGMENTS_MAX, CLAIMS_MAX),
            join: Join::default(),
            heartbeats: Heartbeats::default(),
            requests: PeerRequests::default(),
            buffer: RecordBuffer::default(),
            repairs: 0,
        }
    }

    /// Sets the load that this router has promised to the worker.
    pub fn promise(&mut self, worker: u64, load: PromisedWork) {
        self.own_rows.promise(worker, load);
    }

    /// Sets what this router has learned about the worker. Published if the verdict changed or a rate moved by a
    /// tenth.
    pub fn set_facts(&mut self, worker: u64, facts: WorkerFacts) {
        self.own_rows.set_facts(worker, facts);
    }

    /// This router no longer knows the worker.
    pub fn forget(&mut self, worker: u64) {
        self.own_rows.forget(worker);
        self.directory.forget(worker);
    }

    /// Pins a session to the worker. Repeating a pin sends nothing.
    pub fn pin(&mut self, model: u64, session: u64, worker: u64) {
        let key = own_rows::row_key(model, session);
        let ours = self.our_pin(key);
        let is_known = ours.is_some_and(|it| it.2 == worker)
            && self.view.pin(key, ours).is_some_and(|it| it.2 == worker);
        if is_known {
            self.own_rows.keep_pin(key);
            return;
        }
        self.stamp = self.stamp.saturating_add(1);
        self.own_rows.set_pin(model, session, worker, self.stamp);
    }

    /// Adds to a tenant's usage.
    pub fn spend(&mut self, model: u64, tenant: u64, more: Spent) {
        self.own_rows.spend(model, tenant, more);
    }

    /// This router sent a prompt to the worker. Links are never 0. A chain without links, or with too many, is not
    /// published.
    pub fn place(&mut self, worker: u64, chain: Chain<'_>) {
        self.directory.place(worker, chain, self.seq + 1);
    }

    /// Sets the counters that heartbeats report.
    pub fn serve(&mut self, served: u64, in_flight: u32) {
        (self.heartbeats.served, self.heartbeats.in_flight) = (served, in_flight);
    }

    /// Appends frames of everything that changed since the last flush and of everything that peers requested.
    pub fn flush(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        self.publish(frames);
        self.ask(now, frames);
        if self.join.is_due() {
            frames.push(self.hello(now));
        }
        self.answer(now, frames);
    }

    /// Whether a flush would send something now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.own_rows.has_pending()
            || self.directory.has_pending()
            || self.join.is_due()
            || self.asks(now)
            || self.answers(now)
    }

    /// A heartbeat, due every `HEARTBEAT`.
    pub fn heartbeat(&mut self, now: Instant) -> Vec<u8> {
        self.heartbeats.number += 1;
        self.heartbeats.sent.push_back((self.heartbeats.number, now));
        if self.heartbeats.sent.len() > HEARTBEATS_KEPT {
            self.heartbeats.sent.pop_front();
        }
        let echo = |router: RouterId, (number, received): (u64, Instant)| Echo {
            router,
            number,
            held_us: u64::try_from(now.since(received).as_micros()).unwrap_or(u64::MAX),
        };
        let heartbeat = Heartbeat {
            name: &self.name,
            number: self.heartbeats.number,
            served: self.heartbeats.served,
            in_flight: self.heartbeats.in_flight,
            echoes: self.view.live().filter_map(|it| Some(echo(it.peer.id, it.heartbeat?))).collect(),
        };
        write::heartbeat(&self.head(), &heartbeat)
    }

    /// The last frame: this router's rows are void.
    pub fn leave(&self) -> Vec<u8> {
        write::leave(&self.head())
    }

    /// Drops the rows of silent peers. Call it with each heartbeat.
    pub fn tick(&mut self, now: Instant, updates: &mut Vec<PeerUpdate>) {
        self.view.tick(now, self.silence_max);
        self.view.emit(updates);
        self.retry_hello(now);
    }

    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.view.routers().map(|it| &it.peer)
    }

    /// For metrics.
    pub fn stats(&self) -> NodeStats {
        NodeStats {
            dropped: self.own_rows.dropped() + self.view.dropped() + self.directory.dropped(),
            repairs: self.repairs,
            segments: self.directory.segments(),
            rows: self.own_rows.rows() + self.view.rows(),
        }
    }

    fn head(&self) -> Head {
        Head {
            router: self.id,
            incarnation: self.incarnation,
            seq: self.seq,
            stamp: self.stamp,
            is_synced: self.is_synced(),
        }
    }

    fn our_pin(&self, key: u64) -> Option<RankedPin> {
        self.own_rows.pin(key).map(|it| (it.stamp, self.id, it.worker))
    }

    /// Appends deltas of everything that changed.
    fn publish(&mut self, frames: &mut Vec<Vec<u8>>) {
        let mut deltas = DeltaWriter { head: self.head(), buffer: &mut self.buffer, frames };
        self.own_rows.publish(|make| deltas.push(make));
        self.directory.publish(|record| deltas.push(&|_| *record));
        deltas.close();
        self.seq = deltas.head.seq;
    }
}

/// Packs records into deltas.
struct DeltaWriter<'a> {
    /// The head of the last finished delta.
    head: Head,
    buffer: &'a mut RecordBuffer,
    frames: &'a mut Vec<Vec<u8>>,
}

impl DeltaWriter<'_> {
    /// Writes a record. Returns the number of its delta.
    fn push<'r>(&mut self, make: &dyn Fn(u64) -> Record<'r>) -> u64 {
        if !self.buffer.try_push(&make(self.head.seq + 1)) {
            self.close();
            self.buffer.try_push(&make(self.head.seq + 1));
        }
        self.head.seq + 1
    }

    fn close(&mut self) {
        if !self.buffer.is_empty() {
            self.head.seq += 1;
            self.frames.push(write::delta(&self.head, self.buffer));
        }
    }
}

/// A name that is safe to send and to log: short, without control characters.
fn sanitized_name(name: &str) -> String {
    let mut name: String = name.chars().filter(|it| !it.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    name
}

//! The task between brain, node and transport.
//!
//! When the brain announces updates the driver takes them, at most every `FLUSH`, and sends one frame: at once after a
//! quiet time, gathered for a while in a busy one. Updates from peers go to the brain as they come. Nothing here waits
//! for the network: a frame that finds no room is dropped, and the node repairs the loss.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::Instant;
use maitre_cluster::{FLUSH, HEARTBEAT, Node, PeerState, PeerUpdate, SILENCE_MAX};
use maitre_dispatch::Event;
use maitre_dispatch::peers::Outbox;
use maitre_dispatch::peers::exchange::{self, ReceivedUpdate};
use maitre_peer::{Incoming, Outgoing, Transport};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::batch::batches;
use super::rejected::RejectedFrames;
use super::shares::Shares;
use super::view::{ClusterHandle, ClusterStatus, RouterStatus, live};
use crate::brain::SharedBrain;
use crate::request_ids::RequestIds;

/// Between two stored snapshots while there are changes. Chosen: to write a full cache directory takes tens of
/// milliseconds, and a router that joins asks live peers first; a stored snapshot is for when there are none.
const SNAPSHOT: Duration = Duration::from_secs(30);

/// The same without changes: Redis expires stored snapshots.
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(60);

/// Between two requests for all peers' snapshots: when many peers connect at once, one request is enough.
const HELLO_INTERVAL: Duration = Duration::from_millis(200);

/// Frames taken from the transport before other work gets its turn.
const INCOMING_MAX: usize = 64;

/// Updates gathered from several frames before the brain applies them.
const UPDATES_MAX: usize = 256;

/// What the driver needs of the router.
pub(crate) struct Handles {
    pub(crate) brain: Arc<SharedBrain>,
    pub(crate) view: Arc<ClusterHandle>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) in_flight: Gauge,
}

impl Handles {
    fn now(&self) -> Instant {
        self.brain.now()
    }

    /// Requests that have arrived since the start.
    fn served(&self) -> u64 {
        self.request_ids.issued()
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight.get()).unwrap_or(0)
    }
}

pub(super) struct Driver {
    handles: Handles,
    node: Node,
    transport: Transport,
    /// None: the transport cannot store snapshots.
    snapshots: Option<SnapshotSchedule>,
    started: Instant,
    join_timeout: Duration,
    flushed: Instant,
    rhythm: Rhythm,
    greeted: Option<Instant>,
    due: Due,
    rejected: RejectedFrames,
    shares: Shares,
    undelivered: u64,
    overflowed: u64,
    buffers: Buffers,
}

/// What is to be done soon.
#[derive(Debug, Default)]
struct Due {
    /// There may be something to send.
    flush: bool,
    /// A peer has connected that has not got our request for its snapshot.
    hello: bool,
}

/// Whether our own heartbeats are on time. After this process was suspended it has heard no peer for a while, although
/// they were not silent: their frames are still to be read.
#[derive(Debug)]
struct Rhythm {
    last: Instant,
    spared: u32,
}

impl Rhythm {
    /// A heartbeat, now. Returns whether silent peers may be declared lost: not after a late heartbeat, but if all are
    /// late, after every second one.
    fn beat(&mut self, now: Instant) -> bool {
        let is_late = now.since(self.last) >= 2 * HEARTBEAT;
        self.last = now;
        self.spared = if is_late && self.spared == 0 { 1 } else { 0 };
        self.spared == 0
    }
}

/// When the next snapshot is stored for routers that join later.
#[derive(Debug)]
struct SnapshotSchedule {
    stored: Instant,
    /// There were changes since.
    changed: bool,
}

/// Kept from turn to turn, so that a turn allocates little.
#[derive(Default)]
struct Buffers {
    outbox: Outbox,
    links: Vec<u64>,
    frames: Vec<Vec<u8>>,
    incoming: Vec<Incoming>,
    updates: Vec<PeerUpdate>,
}

/// What a turn of the loop is about.
enum DriverTurn {
    Incoming(usize),
    Outbox,
    Flush,
    Beat,
    Waited,
    Leave,
}

impl Driver {
    pub(super) fn new(handles: Handles, transport: Transport, join_timeout: Duration) -> Driver {
        let (now, view) = (handles.now(), &handles.view);
        let (name, incarnation) = (view.name.clone(), view.incarnation);
        let node = Node::new(maitre_cluster::NodeConfig { name, incarnation, silence_max: SILENCE_MAX });
        view.follow(transport.status.clone());
        Driver {
            // A mesh stores nothing: there, a router that joins asks a live peer.
            snapshots: (view.via == "redis").then_some(SnapshotSchedule { stored: now, changed: true }),
            handles,
            node,
            transport,
            started: now,
            join_timeout,
            flushed: Instant::ZERO,
            rhythm: Rhythm { last: now, spared: 0 },
            greeted: None,
            due: Due::default(),
            rejected: RejectedFrames::default(),
            shares: Shares::default(),
            undelivered: 0,
            overflowed: 0,
            buffers: Buffers::default(),
        }
    }

    /// Until the router leaves, or the transport ends.
    pub(super) async fn run(mut self) {
        let hello = self.node.hello(self.handles.now());
        self.send(hello);
        let mut beats = interval(HEARTBEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = self.handles.now();
            let flush = pin!(sleep((self.flushed + FLUSH).since(now)));
            let waited = pin!(sleep((self.started + self.join_timeout).since(now)));
            let turn = tokio::select! {
                // In a fixed order, so that a simulated run can be repeated. Frames come last: all else is seldom due,
                // and must not wait while peers send a lot.
                biased;
                () = self.handles.view.leaving.cancelled() => DriverTurn::Leave,
                _ = beats.tick() => DriverTurn::Beat,
                () = waited, if self.handles.view.is_joining() => DriverTurn::Waited,
                () = flush, if self.due.flush => DriverTurn::Flush,
                () = self.handles.view.outbox.notified(), if !self.due.flush => DriverTurn::Outbox,
                count = self.transport.incoming.recv_many(&mut self.buffers.incoming, INCOMING_MAX) => {
                    DriverTurn::Incoming(count)
                }
            };
            match turn {
                DriverTurn::Incoming(0) => {
                    return self.continue_alone().await;
                }
                DriverTurn::Incoming(_) => self.receive().await,
                DriverTurn::Outbox => self.due.flush = true,
                DriverTurn::Flush => self.flush(),
                DriverTurn::Beat => self.beat().await,
                DriverTurn::Waited => {}
                DriverTurn::Leave => break,
            }
            self.check_joined();
        }
        self.goodbye().await;
    }

    /// Reads the frames that came, and passes their updates to the brain.
    async fn receive(&mut self) {
        let now = self.handles.now();
        let mut incoming = std::mem::take(&mut self.buffers.incoming);
        for it in incoming.drain(..) {
            match it {
                Incoming::Connected => self.due.hello = true,
                Incoming::Frame(_) | Incoming::Stored(_) => {
                    let received = match &it {
                        Incoming::Stored(frame) => {
                            self.node.receive_stored(now, frame, &mut self.buffers.updates)
                        }
                        Incoming::Frame(frame) => self.node.receive(now, frame, &mut self.buffers.updates),
                        Incoming::Connected => continue,
                    };
                    if let Err(error) = received {
                        self.rejected.note(now, &error);
                    }
                    // One frame may hold thousands of long prompts: applied before the next one is read.
                    if self.buffers.updates.len() >= UPDATES_MAX {
                        self.update_brain().await;
                    }
                }
            }
        }
        self.buffers.incoming = incoming;
        self.update_brain().await;
        // A frame may have been a request.
        self.due.flush |= self.due.hello || self.node.is_due(now);
    }

    /// Applies the node's updates to the brain.
    async fn update_brain(&mut self) {
        let mut updates = std::mem::take(&mut self.buffers.updates);
        self.has_changed(!updates.is_empty());
        if updates.iter().any(|it| matches!(it, PeerUpdate::Routers { .. })) {
            self.show(self.handles.now());
        }
        for (place, batch) in batches(&updates).enumerate() {
            if place > 0 {
                // Other tasks on this thread get their turn, and other threads the lock.
                tokio::task::yield_now().await;
            }
            let received: Vec<ReceivedUpdate> = batch.iter().map(ReceivedUpdate::new).collect();
            self.handles.brain.on_all(received.iter().map(|it| Event::Peers(it.update())));
        }
        updates.clear();
        self.buffers.updates = updates;
    }

    /// Sends what has changed, and requests what is missing.
    fn flush(&mut self) {
        let now = self.handles.now();
        self.flushed = now;
        if self.due.hello && self.greeted.is_none_or(|it| now.since(it) >= HELLO_INTERVAL) {
            self.due.hello = false;
            self.greeted = Some(now);
            let hello = self.node.hello(now);
            self.send(hello);
        }
        self.take_outbox();
        let mut frames = std::mem::take(&mut self.buffers.frames);
        self.node.flush(now, &mut frames);
        self.has_changed(!frames.is_empty());
        frames.drain(..).for_each(|it| self.send(it));
        self.buffers.frames = frames;
        // A cache directory takes several flushes.
        self.due.flush = self.node.is_due(now);
    }

    /// Takes from the brain what peers should receive.
    fn take_outbox(&mut self) {
        let Buffers { outbox, links, .. } = &mut self.buffers;
        self.handles.brain.take_outbox(outbox);
        self.overflowed += outbox.dropped;
        exchange::publish(&mut self.node, outbox, links);
    }

    /// A heartbeat, and everything else that is done twice a second.
    async fn beat(&mut self) {
        let now = self.handles.now();
        self.node.serve(self.handles.served(), self.handles.in_flight());
        let heartbeat = self.node.heartbeat(now);
        self.send(heartbeat);
        let may_lose = self.rhythm.beat(now);
        #[cfg(test)]
        let may_lose = may_lose && crate::planted::loses_peers();
        if may_lose {
            self.node.tick(now, &mut self.buffers.updates);
        }
        self.update_brain().await;
        self.flush();
        self.store_snapshot(now);
        self.sample();
        self.show(now);
    }

    fn has_changed(&mut self, changed: bool) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.changed |= changed;
        }
    }

    /// Stores a snapshot for routers that join later, if one is due.
    fn store_snapshot(&mut self, now: Instant) {
        let due = |it: &&mut SnapshotSchedule| {
            now.since(it.stored) >= if it.changed { SNAPSHOT } else { SNAPSHOT_AGAIN }
        };
        let Some(snapshots) = self.snapshots.as_mut().filter(due) else { return };
        *snapshots = SnapshotSchedule { stored: now, changed: false };
        let frames = self.node.snapshot(now).into_iter().map(Bytes::from).collect();
        self.give(Outgoing::Snapshot(frames));
    }

    fn send(&mut self, frame: Vec<u8>) {
        #[cfg(test)]
        if !crate::planted::sends(&frame) {
            return;
        }
        self.give(Outgoing::Frame(Bytes::from(frame)));
    }

    fn give(&mut self, outgoing: Outgoing) {
        // The queue is full, or closed because the transport has ended: either way the frame is lost.
        if self.transport.outgoing.try_send(outgoing).is_err() {
            self.undelivered += 1;
        }
    }

    /// Counts the requests of all live routers.
    fn sample(&mut self) {
        let live = self.node.peers().filter(|it| it.state == PeerState::Live);
        let mut counts: Vec<_> = live.map(|it| (it.id, it.incarnation, it.served)).collect();
        counts.push((self.handles.view.id(), self.handles.view.incarnation, self.handles.served()));
        self.shares.sample(&counts);
    }

    fn show(&self, now: Instant) {
        let own = RouterStatus {
            name: self.handles.view.name.clone(),
            is_self: true,
            state: PeerState::Live,
            lag: None,
            heard: now,
            served: self.handles.served(),
            in_flight: self.handles.in_flight(),
            share: self.shares.of(self.handles.view.id()),
            incarnation: self.handles.view.incarnation,
        };
        let mut routers: Vec<RouterStatus> =
            self.node.peers().map(|it| RouterStatus::of(it, self.shares.of(it.id))).collect();
        routers.sort_by(|one, other| one.name.cmp(&other.name));
        routers.insert(0, own);
        self.handles.view.show(ClusterStatus {
            routers,
            synced: self.node.is_synced(),
            stats: self.node.stats(),
            rejected: self.rejected.counts(),
            problem: self.rejected.problem(now).map(str::to_owned),
            undelivered: self.undelivered,
            overflowed: self.overflowed,
        });
    }

    /// Ends the wait for peers' snapshots, once they have arrived or the time is over.
    fn check_joined(&mut self) {
        let took = self.handles.now().since(self.started);
        let synced = self.node.is_synced();
        if !self.handles.view.is_joining() || !synced && took < self.join_timeout {
            return;
        }
        self.handles.view.has_joined();
        let routers = live(&self.node);
        let (others, took_ms) = (routers.len(), took.as_millis() as u64);
        let stats = self.node.stats();
        let (routers, rows, segments) = (routers.join(" "), stats.rows, stats.segments);
        match (others, synced) {
            (0, _) => info!(took_ms, "no other router found; continuing alone"),
            (_, true) => info!(routers, rows, segments, took_ms, "joined the other routers"),
            (_, false) => {
                warn!(
                    routers,
                    rows, segments, took_ms, "snapshots of other routers are incomplete; ready anyway"
                );
            }
        }
        self.show(self.handles.now());
    }

    /// The transport has ended, which it should not while this router runs. What peers promised must not count for ever.
    async fn continue_alone(mut self) {
        warn!("the connection to other routers has ended; continuing alone");
        let now = self.handles.now();
        self.node.tick(now + SILENCE_MAX, &mut self.buffers.updates);
        self.update_brain().await;
        self.show(now);
        self.handles.view.has_joined();
    }

    /// The last frame: this router's promises no longer count. Its knowledge of caches is stored for routers that start
    /// when all are gone.
    async fn goodbye(mut self) {
        let now = self.handles.now();
        self.flush();
        let kept = self.snapshots.is_some().then(|| self.node.snapshot(now));
        let goodbye = self.node.leave();
        let Transport { outgoing, mut incoming, .. } = self.transport;
        if let Some(frames) = kept {
            let _ = outgoing.send(Outgoing::Snapshot(frames.into_iter().map(Bytes::from).collect())).await;
        }
        let _ = outgoing.send(Outgoing::Frame(Bytes::from(goodbye))).await;
        // The incoming end stays open until the transport has sent everything: it stops at once when that is closed.
        drop(outgoing);
        while incoming.recv().await.is_some() {}
        info!("left the other routers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_heartbeat_spares_peers_once_and_constant_lateness_does_not_for_ever() {
        let mut rhythm = Rhythm { last: Instant::ZERO, spared: 0 };
        let mut beats = |millis: &[u64]| -> Vec<bool> {
            millis.iter().map(|&it| rhythm.beat(Instant::from_millis(it))).collect()
        };
        assert_eq!(beats(&[500, 1_000, 1_999]), [true; 3]);
        assert_eq!(beats(&[20_000, 20_500, 21_000]), [false, true, true]);
        assert_eq!(beats(&[23_000, 25_000, 27_000, 29_000]), [false, true, false, true]);
    }
}

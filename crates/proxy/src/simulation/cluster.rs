//! The network between routers: it carries frames as a mesh does, and fails as the seed says.
//!
//! Two routers share one connection. It delivers frames in the order in which they were sent, or not at all, as
//! `maitre_peer` promises. A frame is lost when a backlog overflows, when the connection breaks, and at random where the
//! seed says so. A cut stops one direction: frames wait, and arrive late if it heals in time. After `SILENCE_MAX` both
//! sides close the connection. A new connection announces itself to both routers before its first frame.
//!
//! A frame may also arrive twice. No transport does that; the node says that it makes no difference.
//!
//! Left out: who is dialled, handshakes, and stored snapshots, which only Redis has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::{Instant, Rng, hash};
use maitre_peer::{Incoming, Outgoing, Transport, TransportStatus};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::clock::Clock;

/// A connection over which nothing arrives for so long is closed, as in the mesh.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long a frame waits for room at the router that receives it, as in the mesh.
const DELIVERY_MAX: Duration = Duration::from_secs(1);

/// How long a router that leaves waits until its last frames are delivered, as in the mesh.
const LEAVE_MAX: Duration = Duration::from_millis(500);

/// Longest time between two routers that can reach each other and their connection.
pub(super) const DIAL_MAX: Duration = Duration::from_millis(1_500);

/// Frames that wait for a peer, as in the mesh.
const BACKLOG_MAX: usize = 1_024;

pub(super) struct Network {
    clock: Clock,
    state: Mutex<NetworkState>,
    /// Notified when anything in `state` has changed.
    changed: Notify,
}

struct NetworkState {
    /// By router: where it receives. None while it is down.
    ends: Vec<Option<mpsc::Sender<Incoming>>>,
    /// By sender and receiver.
    links: Vec<Vec<OneWay>>,
    faults: FrameFaults,
    rng: Rng,
    /// When a router, a cut or a connection last came or went.
    changed_at: Instant,
    /// A hash of all frames so far, in the order in which they were sent.
    fingerprint: u64,
}

/// One direction between two routers.
struct OneWay {
    is_open: bool,
    is_cut: bool,
    /// Each with its arrival time.
    frames: VecDeque<(Instant, Bytes)>,
    latency_ms: usize,
}

/// What goes wrong with single frames.
struct FrameFaults {
    lost_percent: usize,
    doubled_percent: usize,
    backlog_max: usize,
    /// Of the channels between a router and its transport.
    outgoing_max: usize,
    incoming_max: usize,
}

impl Network {
    pub(super) fn new(clock: Clock, count: usize, rng: &mut Rng) -> Network {
        let link = |rng: &mut Rng| OneWay {
            is_open: false,
            is_cut: false,
            frames: VecDeque::new(),
            latency_ms: [1, 5, 40, 250][rng.below(4)],
        };
        let is_lossy = rng.below(2) == 0;
        let faults = FrameFaults {
            lost_percent: if is_lossy { [5, 15, 40][rng.below(3)] } else { 0 },
            doubled_percent: if is_lossy { 2 } else { 0 },
            backlog_max: [16, 64, BACKLOG_MAX][rng.below(3)],
            outgoing_max: if is_lossy { [8, 64, 1_024][rng.below(3)] } else { 1_024 },
            incoming_max: [2, 16, 256][rng.below(3)],
        };
        let state = NetworkState {
            ends: vec![None; count],
            links: (0..count).map(|_| (0..count).map(|_| link(rng)).collect()).collect(),
            faults,
            rng: Rng::new(rng.next_u64()),
            changed_at: clock.now(),
            fingerprint: 0,
        };
        Network { clock, state: Mutex::new(state), changed: Notify::new() }
    }

    /// A router starts: its end of a transport, and the task that runs the transport. Dropping the task cuts it off.
    pub(super) fn attach(self: Arc<Network>, router: usize) -> (Transport, impl Future<Output = ()> + use<>) {
        let (outgoing_max, incoming_max) = {
            let faults = &self.state.lock().faults;
            (faults.outgoing_max, faults.incoming_max)
        };
        let (outgoing, to_send) = mpsc::channel(outgoing_max);
        let (received, incoming) = mpsc::channel(incoming_max);
        let (_, status) = watch::channel(TransportStatus::default());
        let end = received.downgrade();
        self.change(|state| {
            // A process that has just crashed may not have been taken off yet.
            state.detach(router);
            state.ends[router] = Some(received);
        });
        let attached = Attached { network: self, router, end };
        (Transport { outgoing, incoming, status }, attached.run(to_send))
    }

    /// Keeps two routers connected whenever both are up and reach each other.
    pub(super) async fn keep_connected(self: Arc<Network>, a: usize, b: usize) {
        loop {
            self.until(|state| state.can_connect(a, b)).await;
            let dialling = self.state.lock().rng.below(DIAL_MAX.as_millis() as usize) as u64;
            sleep(Duration::from_millis(dialling)).await;
            if !self.state.lock().can_connect(a, b) {
                continue;
            }
            self.set_open(a, b, true);
            tokio::select! {
                biased;
                () = self.until(|state| !state.links[a][b].is_open) => {}
                () = self.carry(a, b) => {}
                () = self.carry(b, a) => {}
            }
            self.set_open(a, b, false);
        }
    }

    /// Stops or heals one direction.
    pub(super) fn set_cut(&self, from: usize, to: usize, is_cut: bool) {
        self.change(|state| state.links[from][to].is_cut = is_cut);
    }

    /// Breaks the connection between two routers. Frames under way are lost.
    pub(super) fn reset(&self, a: usize, b: usize) {
        self.set_open(a, b, false);
    }

    /// From now on nothing goes wrong.
    pub(super) fn heal(&self) {
        self.change(|state| {
            let FrameFaults { lost_percent, doubled_percent, backlog_max, .. } = &mut state.faults;
            (*lost_percent, *doubled_percent, *backlog_max) = (0, 0, BACKLOG_MAX);
            state.links.iter_mut().flatten().for_each(|it| it.is_cut = false);
        });
    }

    /// Since when all routers that are up are connected and no frame is lost. None if that is not so now.
    pub(super) fn calm_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let up: Vec<usize> = (0..state.ends.len()).filter(|&it| state.ends[it].is_some()).collect();
        let reaches = |a: usize, b: usize| a == b || state.links[a][b].is_open && !state.links[a][b].is_cut;
        let is_whole = up.iter().all(|&a| up.iter().all(|&b| reaches(a, b)));
        (is_whole && state.faults.lost_percent == 0).then_some(state.changed_at)
    }

    /// Differs between two runs if any frame does.
    pub(super) fn fingerprint(&self) -> u64 {
        self.state.lock().fingerprint
    }

    fn change(&self, change: impl FnOnce(&mut NetworkState)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changed_at = self.clock.now();
        drop(state);
        self.changed.notify_waiters();
    }

    fn set_open(&self, a: usize, b: usize, is_open: bool) {
        self.change(|state| {
            for (from, to) in [(a, b), (b, a)] {
                let link = &mut state.links[from][to];
                link.is_open = is_open;
                link.frames.clear();
            }
        });
    }

    /// Waits until the condition holds.
    async fn until(&self, condition: impl Fn(&NetworkState) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if condition(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// A router sends a frame to all others.
    fn send(&self, from: usize, frame: &Bytes) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.fingerprint = hash::bytes(state.fingerprint, frame);
        (0..state.ends.len()).filter(|&to| to != from).for_each(|to| state.send(now, (from, to), frame));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Delivers in one direction, until dropped.
    async fn carry(&self, from: usize, to: usize) {
        self.deliver(to, Incoming::Connected).await;
        loop {
            self.until(|state| !state.links[from][to].frames.is_empty()).await;
            let due = self.state.lock().links[from][to].frames.front().map(|it| it.0);
            sleep(due.unwrap_or_default().since(self.clock.now())).await;
            self.until(|state| !state.links[from][to].is_cut).await;
            // An overfull backlog may have dropped the frame that was waited for: the next one may be taken early.
            let frame = self.state.lock().links[from][to].frames.pop_front();
            if let Some((_, frame)) = frame {
                self.deliver(to, Incoming::Frame(frame)).await;
            }
        }
    }

    async fn deliver(&self, to: usize, frame: Incoming) {
        let end = self.state.lock().ends[to].clone();
        if let Some(end) = end {
            let _ = end.send_timeout(frame, DELIVERY_MAX).await;
        }
    }
}

impl NetworkState {
    fn can_connect(&self, a: usize, b: usize) -> bool {
        let is_up = self.ends[a].is_some() && self.ends[b].is_some();
        is_up && !self.links[a][b].is_cut && !self.links[b][a].is_cut
    }

    /// A router is gone, and its connections with it.
    fn detach(&mut self, router: usize) {
        self.ends[router] = None;
        for peer in 0..self.ends.len() {
            for (from, to) in [(router, peer), (peer, router)] {
                self.links[from][to].is_open = false;
                self.links[from][to].frames.clear();
            }
        }
    }

    fn send(&mut self, now: Instant, (from, to): (usize, usize), frame: &Bytes) {
        let link = &mut self.links[from][to];
        if !link.is_open || self.rng.below(100) < self.faults.lost_percent {
            return;
        }
        let copies = 1 + usize::from(self.rng.below(100) < self.faults.doubled_percent);
        for _ in 0..copies {
            let latency = Duration::from_millis(self.rng.below(link.latency_ms + 1) as u64);
            // Never before the frame that was sent before it.
            let before = link.frames.back().map_or(now, |it| it.0);
            link.frames.push_back(((now + latency).max(before), frame.clone()));
        }
        while link.frames.len() > self.faults.backlog_max {
            link.frames.pop_front();
        }
    }
}

/// A router that is up. Dropping it breaks all its connections.
struct Attached {
    network: Arc<Network>,
    router: usize,
    /// Where this process receives.
    end: mpsc::WeakSender<Incoming>,
}

impl Attached {
    /// Takes frames from the router until it leaves, and then sends the last ones.
    async fn run(self, mut outgoing: mpsc::Receiver<Outgoing>) {
        while let Some(sent) = outgoing.recv().await {
            if let Outgoing::Frame(frame) = sent {
                self.network.send(self.router, &frame);
            }
        }
        let is_sent = |state: &NetworkState| state.links[self.router].iter().all(|it| it.frames.is_empty());
        let _ = timeout(LEAVE_MAX, self.network.until(is_sent)).await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let end = self.end.upgrade();
        self.network.change(|state| {
            let current = state.ends[self.router].as_ref();
            // The router may have been started again meanwhile.
            if current.zip(end.as_ref()).is_some_and(|(one, other)| one.same_channel(other)) {
                state.detach(self.router);
            }
        });
    }
}

//! State sharing between routers in virtual time: the production rows and frames over a network with delay and
//! without loss.
//!
//! Left out: the CPU cost of sending and receiving, and all failures.

use std::rc::Rc;
use std::time::Duration;

use maitre_base::Instant;
use maitre_base::hash::NumberMap;
use maitre_cluster::{self as cluster, Incarnation, Node, PeerUpdate};
use maitre_cluster::{FLUSH, HEARTBEAT, SILENCE_MAX};
use maitre_dispatch::Event;
use maitre_dispatch::peers::{Outbox, exchange};

use super::config::Via;
use super::{LabConfig, SimEvent, Simulation};

/// Traffic between routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncTraffic {
    /// Each frame counts once, regardless of the number of receivers.
    pub frames: u64,
    pub bytes: u64,
}

/// The routers' cluster nodes and the frames in transit.
#[derive(Default)]
pub(super) struct PeerNetwork {
    /// By router; empty if they do not share.
    sim_routers: Vec<SimRouter>,
    in_transit: NumberMap<FrameInTransit>,
    next: u64,
    pub(super) traffic: SyncTraffic,
    // Scratch.
    outbox: Outbox,
    links: Vec<u64>,
    frames: Vec<Vec<u8>>,
    updates: Vec<PeerUpdate>,
}

struct SimRouter {
    node: Node,
    /// When it last published, and whether a flush is scheduled.
    flushed: Option<Instant>,
    is_due: bool,
    served: u64,
}

struct FrameInTransit {
    frame: Rc<[u8]>,
    /// How many routers have not received it yet.
    receivers: usize,
}

impl PeerNetwork {
    pub(super) fn new(config: &LabConfig) -> PeerNetwork {
        let members = config.sync.map_or(0, |_| config.routers.max(1));
        let sim_router = |number: usize| SimRouter {
            node: Node::new(cluster::NodeConfig {
                name: format!("router-{number}"),
                incarnation: Incarnation(1),
                silence_max: SILENCE_MAX,
            }),
            flushed: None,
            is_due: false,
            served: 0,
        };
        PeerNetwork { sim_routers: (0..members).map(sim_router).collect(), ..PeerNetwork::default() }
    }
}

impl Simulation<'_> {
    pub(super) fn start_sync(&mut self) {
        for router in 0..self.network.sim_routers.len() {
            let hello = self.network.sim_routers[router].node.hello(Instant::ZERO);
            self.send(Instant::ZERO, router, &hello);
            self.schedule(Instant::ZERO + HEARTBEAT, SimEvent::Heartbeat { router });
        }
    }

    /// Schedules a flush if the router has something to publish.
    pub(super) fn schedule_flush(&mut self, now: Instant, router: usize) {
        let Some(sim_router) = self.network.sim_routers.get_mut(router) else { return };
        if sim_router.is_due || !self.routers[router].has_outbox() {
            return;
        }
        let pause = match self.config.sync {
            Some(sync) if sync.via == Via::Redis => sync.delay.max(FLUSH),
            _ => FLUSH,
        };
        sim_router.is_due = true;
        let at = sim_router.flushed.map_or(now, |it| (it + pause).max(now));
        self.schedule(at, SimEvent::Flush { router });
    }

    pub(super) fn flush(&mut self, now: Instant, router: usize) {
        let PeerNetwork { sim_routers, outbox, links, frames, .. } = &mut self.network;
        let sim_router = &mut sim_routers[router];
        (sim_router.flushed, sim_router.is_due) = (Some(now), false);
        self.routers[router].take_outbox(outbox);
        exchange::publish(&mut sim_router.node, outbox, links);
        let mut frames = std::mem::take(frames);
        sim_router.node.flush(now, &mut frames);
        for frame in frames.drain(..) {
            self.send(now, router, &frame);
        }
        self.network.frames = frames;
    }

    pub(super) fn heartbeat(&mut self, now: Instant, router: usize) {
        let mut updates = std::mem::take(&mut self.network.updates);
        let sim_router = &mut self.network.sim_routers[router];
        let pending = self.pending.values().filter(|it| it.router == router).count();
        sim_router.node.serve(sim_router.served, pending as u32);
        let heartbeat = sim_router.node.heartbeat(now);
        sim_router.node.tick(now, &mut updates);
        self.send(now, router, &heartbeat);
        self.apply_updates(now, router, &mut updates);
        self.network.updates = updates;
        // Answers to peers go out even if nothing else changed.
        self.flush(now, router);
        self.schedule_next(now, HEARTBEAT, SimEvent::Heartbeat { router });
    }

    pub(super) fn receive_frame(&mut self, now: Instant, router: usize, id: u64) {
        let Some(kept) = self.network.in_transit.get_mut(&id) else { return };
        kept.receivers -= 1;
        let (frame, is_last) = (kept.frame.clone(), kept.receivers == 0);
        if is_last {
            self.network.in_transit.remove(&id);
        }
        let mut updates = std::mem::take(&mut self.network.updates);
        let received = self.network.sim_routers[router].node.receive(now, &frame, &mut updates);
        debug_assert!(received.is_ok(), "a router of the same version sends valid frames: {received:?}");
        self.apply_updates(now, router, &mut updates);
        self.network.updates = updates;
    }

    pub(super) fn count_served(&mut self, router: usize) {
        if let Some(sim_router) = self.network.sim_routers.get_mut(router) {
            sim_router.served += 1;
        }
    }

    fn apply_updates(&mut self, now: Instant, router: usize, updates: &mut Vec<PeerUpdate>) {
        for updates in updates.drain(..) {
            let update = exchange::ReceivedUpdate::new(&updates);
            self.dispatch(router, now, Event::Peers(update.update()));
        }
    }

    fn send(&mut self, now: Instant, from: usize, frame: &[u8]) {
        let others = self.network.sim_routers.len() - 1;
        let Some(sync) = self.config.sync.filter(|_| others > 0) else { return };
        self.network.traffic.frames += 1;
        self.network.traffic.bytes += frame.len() as u64;
        let id = self.network.next;
        self.network.next += 1;
        self.network.in_transit.insert(id, FrameInTransit { frame: frame.into(), receivers: others });
        for router in (0..self.network.sim_routers.len()).filter(|&it| it != from) {
            self.schedule(now + delay(sync.delay), SimEvent::FrameArrival { router, frame: id });
        }
    }
}

/// A frame never arrives at the instant at which it is sent.
fn delay(delay: Duration) -> Duration {
    delay.max(Duration::from_nanos(1))
}

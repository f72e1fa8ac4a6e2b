//! The cluster as this router sees it: written by the driver, read by metrics, the admin API and readiness probes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use maitre_base::Instant;
use maitre_cluster::{Incarnation, Node, NodeStats, Peer, PeerState, RouterId};
use maitre_peer::TransportStatus;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::rejected::RejectCause;
use crate::cluster::ClusterSettings;
use crate::metrics::ClusterSample;

/// Shared by the driver and its readers.
pub(crate) struct ClusterHandle {
    pub(crate) name: String,
    pub(crate) via: &'static str,
    pub(crate) incarnation: Incarnation,
    /// Notified when the brain has something to send.
    pub(crate) outbox: Arc<Notify>,
    /// Set when this router leaves.
    pub(super) leaving: CancellationToken,
    /// This router still waits for the snapshots of others.
    joining: AtomicBool,
    status: Mutex<ClusterStatus>,
    transport: Mutex<Option<watch::Receiver<TransportStatus>>>,
}

/// As of the last heartbeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterStatus {
    /// All known routers, this one first.
    pub(crate) routers: Vec<RouterStatus>,
    pub(crate) synced: bool,
    pub(crate) stats: NodeStats,
    /// Frames that the node rejected, by cause.
    pub(super) rejected: [u64; RejectCause::ALL.len()],
    /// A problem that an operator must fix, besides those of the transport.
    pub(crate) problem: Option<String>,
    /// Frames that found no room in the transport's queue.
    pub(crate) undelivered: u64,
    /// Updates that the brain dropped because the driver did not take them in time.
    pub(crate) overflowed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct RouterStatus {
    pub(crate) name: String,
    pub(crate) is_self: bool,
    pub(crate) state: PeerState,
    pub(crate) lag: Option<Duration>,
    pub(crate) heard: Instant,
    pub(crate) served: u64,
    pub(crate) in_flight: u32,
    pub(crate) share: Option<f64>,
    pub(crate) incarnation: Incarnation,
}

impl ClusterStatus {
    fn count(&self, state: PeerState) -> usize {
        self.routers.iter().filter(|it| it.state == state).count()
    }
}

impl RouterStatus {
    pub(super) fn of(peer: &Peer, share: Option<f64>) -> RouterStatus {
        RouterStatus {
            name: peer.name.clone(),
            is_self: false,
            state: peer.state,
            lag: peer.lag,
            heard: peer.last_heard,
            served: peer.served,
            in_flight: peer.in_flight,
            share,
            incarnation: peer.incarnation,
        }
    }
}

impl ClusterHandle {
    /// `settings` have a name; `unix_ms` is the start of this router.
    pub(crate) fn new(settings: &ClusterSettings, unix_ms: u64) -> ClusterHandle {
        ClusterHandle {
            name: settings.name.clone(),
            via: settings.via.name(),
            incarnation: Incarnation(unix_ms),
            outbox: Arc::default(),
            leaving: CancellationToken::new(),
            joining: AtomicBool::new(!settings.join_timeout.is_zero()),
            status: Mutex::default(),
            transport: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> RouterId {
        RouterId::named(&self.name)
    }

    pub(super) fn leave(&self) {
        self.leaving.cancel();
    }

    /// Whether this router should get no requests yet, because others know what it does not.
    pub(crate) fn is_joining(&self) -> bool {
        self.joining.load(Ordering::Relaxed)
    }

    pub(super) fn has_joined(&self) {
        self.joining.store(false, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> ClusterStatus {
        self.status.lock().clone()
    }

    pub(super) fn show(&self, status: ClusterStatus) {
        *self.status.lock() = status;
    }

    /// The state of the transport.
    pub(crate) fn transport(&self) -> TransportStatus {
        self.transport.lock().as_ref().map(|it| it.borrow().clone()).unwrap_or_default()
    }

    pub(super) fn follow(&self, transport: watch::Receiver<TransportStatus>) {
        *self.transport.lock() = Some(transport);
    }

    /// What Prometheus sees. `limit_share` is known to the brain.
    pub(crate) fn sample(&self, limit_share: f64) -> ClusterSample {
        let (status, transport) = (self.status(), self.transport());
        let live = status.routers.iter().filter(|it| it.state == PeerState::Live);
        let stats = status.stats;
        let rejected = RejectCause::ALL.map(|it| (it.name(), status.rejected[it as usize]));
        ClusterSample {
            live: status.count(PeerState::Live),
            lost: status.count(PeerState::Lost),
            lags: live.filter_map(|it| Some((it.name.clone(), it.lag?))).collect(),
            frames: [("out", transport.frames_out), ("in", transport.frames_in)],
            bytes: [("out", transport.bytes_out), ("in", transport.bytes_in)],
            dropped: [
                ("frames", transport.dropped + status.undelivered),
                ("chains", stats.dropped),
                ("outbox", status.overflowed),
            ],
            rejected: rejected.into_iter().chain([("transport", transport.refused)]).collect(),
            repairs: stats.repairs,
            connected: transport.connected,
            limit_share,
            segments: stats.segments,
            rows: stats.rows,
        }
    }
}

/// Names of the live peers, for the log.
pub(super) fn live(node: &Node) -> Vec<String> {
    let live = node.peers().filter(|it| it.state == PeerState::Live);
    let mut names: Vec<String> = live.map(|it| it.name.clone()).collect();
    names.sort_unstable();
    names
}

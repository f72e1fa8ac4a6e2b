//! What the driver shows of the others, for people, metrics and probes; and the two ways to call for the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use maitre_base::Instant;
use maitre_cluster::NodeStats;
use maitre_cluster::{Incarnation, Node, Peer, PeerState, RouterId};
use maitre_peer::TransportStatus;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::refusals::Cause;

/// Shared by the house and the driver.
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) via: &'static str,
    pub(crate) incarnation: Incarnation,
    /// Rung when the brain has something to tell.
    pub(super) outbox: Notify,
    /// Set when we go.
    pub(super) leaving: CancellationToken,
    /// Others have yet to tell what they know, and we wait for that.
    joining: AtomicBool,
    shown: Mutex<Shown>,
    status: Mutex<Option<watch::Receiver<TransportStatus>>>,
}

/// As of the last beat.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// All that are known, we first.
    pub(crate) routers: Vec<Router>,
    pub(crate) warm: bool,
    pub(crate) numbers: NodeStats,
    /// Frames that were not heard, by cause.
    pub(crate) refused: [u64; Cause::ALL.len()],
    /// What somebody must mend, besides what the transport says.
    pub(crate) trouble: Option<String>,
    /// Frames that found no room on their way out.
    pub(crate) undelivered: u64,
    /// What the brain had to tell and nobody fetched in time.
    pub(crate) untold: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Router {
    pub(crate) name: String,
    pub(crate) is_self: bool,
    pub(crate) standing: PeerState,
    pub(crate) lag: Option<Duration>,
    pub(crate) heard: Instant,
    pub(crate) served: u64,
    pub(crate) open: u32,
    pub(crate) share: Option<f64>,
    pub(crate) incarnation: Incarnation,
}

impl Shown {
    pub(crate) fn count(&self, standing: PeerState) -> usize {
        self.routers.iter().filter(|it| it.standing == standing).count()
    }
}

impl Router {
    pub(super) fn of(peer: &Peer, share: Option<f64>) -> Router {
        Router {
            name: peer.name.clone(),
            is_self: false,
            standing: peer.state,
            lag: peer.lag,
            heard: peer.last_heard,
            served: peer.served,
            open: peer.in_flight,
            share,
            incarnation: peer.incarnation,
        }
    }
}

impl Seen {
    /// `settings` have a name; `unix_ms` is when we start.
    pub(crate) fn new(settings: &Settings, unix_ms: u64) -> Seen {
        Seen {
            name: settings.name.clone(),
            via: settings.via.name(),
            incarnation: Incarnation(unix_ms),
            outbox: Notify::new(),
            leaving: CancellationToken::new(),
            joining: AtomicBool::new(!settings.wait.is_zero()),
            shown: Mutex::default(),
            status: Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> RouterId {
        RouterId::named(&self.name)
    }

    /// The brain has something to tell.
    pub(crate) fn rouse(&self) {
        self.outbox.notify_one();
    }

    pub(super) fn leave(&self) {
        self.leaving.cancel();
    }

    /// Whether we should not be sent requests yet, for others know what we do not.
    pub(crate) fn is_joining(&self) -> bool {
        self.joining.load(Ordering::Relaxed)
    }

    /// True the first time.
    pub(super) fn has_joined(&self) -> bool {
        self.joining.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn shown(&self) -> Shown {
        self.shown.lock().clone()
    }

    pub(super) fn show(&self, shown: Shown) {
        *self.shown.lock() = shown;
    }

    /// How the transport fares.
    pub(crate) fn status(&self) -> TransportStatus {
        self.status.lock().as_ref().map(|it| it.borrow().clone()).unwrap_or_default()
    }

    pub(super) fn follow(&self, status: watch::Receiver<TransportStatus>) {
        *self.status.lock() = Some(status);
    }
}

/// Names of the others that can be heard, for the log.
pub(super) fn live(node: &Node) -> Vec<String> {
    let live = node.peers().filter(|it| it.state == PeerState::Live);
    let mut names: Vec<String> = live.map(|it| it.name.clone()).collect();
    names.sort_unstable();
    names
}

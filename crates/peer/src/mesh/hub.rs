//! The task that owns the mesh: connections, dial targets and membership.
//!
//! It never blocks. Slow work (dialling, handshakes, DNS lookups, a connection's lifetime) runs in tasks, whose
//! results return as `HubEvent`. Dropping the hub ends all of them.

mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::backlog::Backlog;
use super::clock;
use super::connection::{self, CloseReason, ConnectionHandles, ConnectionStart, Counters, LastReceived, add};
use super::handshake::{HandshakeError, LocalIdentity, SecureConnection};
use super::handshakes::Handshakes;
use super::log_limiter::{LogLimiter, RefusalCause};
use super::resolve::PeerAddress;
use super::swim::Swim;
use super::targets::{DialJob, Targets};
use super::wire::{DialVerdict, FRAME_MAX, Hello};
use crate::{Incoming, Outgoing, TransportStatus};

const CONNECTIONS_MAX: usize = 64;
/// Maximum membership messages waiting for the hub.
const GOSSIP_MAX: usize = 1024;
/// Interval between two status updates.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);
/// A connection silent for longer is replaced by a new one of the same router: two heartbeats.
const STALE: Duration = Duration::from_secs(2);
/// Time limit for writing the backlog when we leave.
const LEAVE_MAX: Duration = Duration::from_millis(500);
/// Pause after a failing accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long another router with our name stays in the status.
const NAMESAKE_SHOWN_FOR: Duration = Duration::from_secs(60);

/// The result of a task.
enum HubEvent {
    /// Somebody dialled us.
    Accepted {
        number: u64,
        from: IpAddr,
        connection: Result<SecureConnection, HandshakeError>,
    },
    /// We dialled and know the other side's identity.
    Dialled {
        at: SocketAddr,
        connection: Result<SecureConnection, HandshakeError>,
    },
    /// The other side knows our identity and has replied.
    Introduced {
        at: SocketAddr,
        name: String,
        verdict: Result<(SecureConnection, DialVerdict), HandshakeError>,
    },
    Resolved {
        address: PeerAddress,
        found: Result<Vec<SocketAddr>, String>,
    },
    Ended {
        id: u64,
        name: String,
        reason: CloseReason,
    },
    /// A rejected dialler has been informed.
    Informed,
}

/// Which side dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialledBy {
    Us,
    Them,
}

/// A connected router.
struct PeerConnection {
    id: u64,
    instance: u64,
    remote: SocketAddr,
    by: DialledBy,
    backlog: Arc<Backlog>,
    last_received: Arc<LastReceived>,
    task: AbortHandle,
    /// Resolves when the task ends.
    end: oneshot::Receiver<()>,
}

/// The transport's end of the channels.
pub(super) struct TransportBackend {
    pub(super) outgoing: mpsc::Receiver<Outgoing>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) status: watch::Sender<TransportStatus>,
}

pub(super) struct Hub {
    identity: Arc<LocalIdentity>,
    listen: SocketAddr,
    listener: TcpListener,
    backend: TransportBackend,
    targets: Targets,
    tasks: JoinSet<HubEvent>,
    peers: BTreeMap<String, PeerConnection>,
    /// Routers to which we are introducing ourselves, each at most once at a time.
    introducing: BTreeSet<String>,
    connections_made: u64,
    handshakes: Handshakes,
    /// Created with the first connection, which tells us our address.
    swim: Option<Swim>,
    gossip: mpsc::Receiver<(u64, Bytes)>,
    gossip_in: mpsc::Sender<(u64, Bytes)>,
    counters: Arc<Counters>,
    refused: u64,
    log_limiter: LogLimiter,
    /// Where and when we last met another router with our name.
    namesake: Option<(IpAddr, Instant)>,
    publish_at: Instant,
    accept_at: Instant,
}

impl Hub {
    pub(super) fn new(
        identity: LocalIdentity,
        listener: TcpListener,
        targets: Targets,
        backend: TransportBackend,
    ) -> io::Result<Hub> {
        let now = clock::now();
        let (gossip_in, gossip) = mpsc::channel(GOSSIP_MAX);
        Ok(Hub {
            identity: Arc::new(identity),
            listen: listener.local_addr()?,
            listener,
            backend,
            targets,
            tasks: JoinSet::new(),
            peers: BTreeMap::new(),
            introducing: BTreeSet::new(),
            connections_made: 0,
            handshakes: Handshakes::default(),
            swim: None,
            gossip,
            gossip_in,
            counters: Arc::default(),
            refused: 0,
            log_limiter: LogLimiter::default(),
            namesake: None,
            publish_at: now,
            accept_at: now,
        })
    }

    /// Runs until the transport is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let now = clock::now();
            self.tick(now);
            let next = self.next(now);
            tokio::select! {
                outgoing = self.backend.outgoing.recv() => match outgoing {
                    Some(Outgoing::Frame(frame)) => self.send(&frame),
                    // Joining routers ask their peers.
                    Some(Outgoing::Snapshot(_)) => (),
                    None => break,
                },
                () = self.backend.incoming.closed() => break,
                accepted = self.listener.accept(), if self.accept_at <= now => self.accept(accepted),
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => match done {
                    Ok(event) => self.on(event),
                    Err(error) if error.is_panic() => tracing::error!(%error, "a mesh task panicked"),
                    Err(_) => (),
                },
                Some((id, message)) = self.gossip.recv() => self.receive_gossip(id, &message),
                () = sleep_until(next) => (),
            }
        }
        self.leave().await;
    }

    /// Does everything that is due.
    fn tick(&mut self, now: Instant) {
        if let Some(swim) = &mut self.swim {
            swim.tick(now);
        }
        self.react(now);
        for job in self.targets.due(now) {
            let identity = self.identity.clone();
            match job {
                DialJob::Dial(at) => {
                    self.tasks
                        .spawn(async move { HubEvent::Dialled { at, connection: identity.dial(at).await } });
                }
                DialJob::Lookup(address) => {
                    self.tasks
                        .spawn(async move { HubEvent::Resolved { found: address.resolve().await, address } });
                }
            }
        }
        if self.publish_at <= now {
            self.publish(now);
        }
    }

    fn next(&self, now: Instant) -> Instant {
        let swim = self.swim.as_ref().and_then(Swim::next);
        let accept = Some(self.accept_at).filter(|&it| it > now);
        [swim, accept, self.targets.next()].into_iter().flatten().fold(self.publish_at, Instant::min)
    }

    /// Sends a frame to every peer.
    fn send(&mut self, frame: &Bytes) {
        if frame.len() > FRAME_MAX {
            add(&self.counters.dropped, 1);
            tracing::error!(
                bytes = frame.len(),
                max = FRAME_MAX,
                "a frame for the other routers is too long; it is dropped"
            );
            return;
        }
        for peer in self.peers.values() {
            add(&self.counters.dropped, peer.backlog.push(frame.clone()));
        }
    }

    fn accept(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let now = clock::now();
        let (stream, from) = match accepted {
            Ok((stream, remote)) => (stream, remote.ip().to_canonical()),
            Err(error) => {
                self.accept_at = now + ACCEPT_PAUSE;
                if self.log_limiter.is_due(self.listen, RefusalCause::Full, now) {
                    tracing::warn!(listen = %self.listen, %error, "cannot accept connections from other routers");
                }
                return;
            }
        };
        if let Some(displaced) = self.handshakes.make_room() {
            let what = "too many connections without a handshake; closed the least promising";
            self.refuse(displaced, RefusalCause::Full, &what);
        }
        let identity = self.identity.clone();
        let (number, proof) = self.handshakes.begin();
        let proved = proof.clone();
        let task = self.tasks.spawn(async move {
            HubEvent::Accepted { number, from, connection: identity.accept(stream, &proved).await }
        });
        self.handshakes.add(number, from, proof, task);
    }

    fn on(&mut self, event: HubEvent) {
        let now = clock::now();
        match event {
            HubEvent::Accepted { number, from, connection } => {
                self.handshakes.end(number);
                match connection {
                    Ok(connection) => self.accepted(connection, now),
                    Err(failure) => match failure.cause() {
                        Some(cause) => self.refuse(from, cause, &failure),
                        None => {
                            tracing::debug!(%from, %failure, "an incoming connection ended during the handshake")
                        }
                    },
                }
            }
            HubEvent::Dialled { at, connection } => match connection {
                Ok(connection) => self.dialled(at, connection, now),
                Err(failure) => self.failed(at, &failure, now),
            },
            HubEvent::Introduced { at, name, verdict } => {
                self.introducing.remove(&name);
                match verdict {
                    Ok((connection, verdict)) => self.introduced(at, connection, verdict, now),
                    Err(failure) => self.failed(at, &failure, now),
                }
            }
            HubEvent::Resolved { address, found } => {
                let problem = found.as_ref().err().cloned();
                if self.targets.found(&address, found, now) {
                    tracing::warn!(%address, "cannot find other routers: {}; trying again", problem.unwrap_or_default());
                }
            }
            HubEvent::Ended { id, name, reason } => {
                if self.peers.get(&name).is_some_and(|it| it.id == id) {
                    self.lose(&name, &reason, now);
                }
            }
            HubEvent::Informed => (),
        }
    }

    /// Decides about a connection with this router. Both sides reach the same decision.
    fn verdict_on(&self, theirs: &Hello, by: DialledBy) -> DialVerdict {
        let Some(peer) = self.peers.get(&theirs.name) else {
            return if self.peers.len() < CONNECTIONS_MAX { DialVerdict::Welcome } else { DialVerdict::Full };
        };
        // If both sides dialled at once, the connection dialled by the lower name stays. If one side dialled twice,
        // it has lost the first connection.
        let is_by_lower = (by == DialledBy::Us) == (self.identity.name < theirs.name);
        match peer.last_received.silence() > STALE {
            true => DialVerdict::Welcome,
            false if peer.instance != theirs.instance => DialVerdict::SameName,
            false if peer.by == by || is_by_lower => DialVerdict::Welcome,
            false => DialVerdict::Redundant,
        }
    }

    fn accepted(&mut self, connection: SecureConnection, now: Instant) {
        let (from, is_namesake) = (connection.remote.ip(), connection.theirs.name == self.identity.name);
        let verdict = if is_namesake {
            DialVerdict::SameName
        } else {
            self.verdict_on(&connection.theirs, DialledBy::Them)
        };
        match verdict {
            DialVerdict::Welcome => return self.connect(connection, DialledBy::Them, now),
            DialVerdict::SameName if is_namesake => self.meet_namesake(from, &connection.address(), now),
            DialVerdict::SameName => {
                let what = format!(
                    "this router is connected to another router called {}; give each its own cluster.name \
                     (a restarted router is accepted within seconds)",
                    connection.theirs.name
                );
                self.refuse(from, RefusalCause::SameName, &what);
            }
            DialVerdict::Full => {
                self.refuse(from, RefusalCause::Full, &"this router has reached its connection limit")
            }
            DialVerdict::Redundant => (),
        }
        let mut connection = connection;
        self.tasks.spawn(async move {
            // If the dialler does not receive it, it dials again.
            let _ = connection.send_record(&verdict.encode()).await;
            HubEvent::Informed
        });
    }

    /// We know the other side; it does not know us yet.
    fn dialled(&mut self, at: SocketAddr, connection: SecureConnection, now: Instant) {
        let (identity, name) = (self.identity.clone(), connection.theirs.name.clone());
        if name == identity.name {
            if connection.theirs.instance == identity.instance {
                return self.targets.is_ourselves(at, now);
            }
            self.meet_namesake(at.ip(), &at.to_string(), now);
            self.targets.failed(
                at,
                format!("it is also called {name}; give each router its own cluster.name"),
                now,
            );
            self.tasks.spawn(async move {
                // Introduce ourselves, so that the other side logs it too.
                let _ = identity.introduce(connection).await;
                HubEvent::Informed
            });
            return;
        }
        if self.introducing.contains(&name) {
            return self.targets.postpone(at, now);
        }
        let is_live = |it: &PeerConnection| {
            it.instance == connection.theirs.instance && it.last_received.silence() <= STALE
        };
        if self.peers.get(&name).is_some_and(is_live) {
            return self.targets.leads_to(at, &name);
        }
        match self.verdict_on(&connection.theirs, DialledBy::Us) {
            DialVerdict::Welcome => {
                self.introducing.insert(name.clone());
                self.tasks.spawn(async move {
                    HubEvent::Introduced { at, name, verdict: identity.introduce(connection).await }
                });
            }
            DialVerdict::Redundant => self.targets.leads_to(at, &name),
            DialVerdict::Full => {
                self.fail(at, "this router has reached its connection limit", RefusalCause::Full, now)
            }
            DialVerdict::SameName => {
                let problem = format!("this router is connected to another router called {name}");
                self.fail(at, &problem, RefusalCause::SameName, now);
            }
        }
    }

    fn introduced(
        &mut self,
        at: SocketAddr,
        connection: SecureConnection,
        verdict: DialVerdict,
        now: Instant,
    ) {
        let name = connection.theirs.name.clone();
        let verdict = if verdict == DialVerdict::Welcome {
            self.verdict_on(&connection.theirs, DialledBy::Us)
        } else {
            verdict
        };
        match verdict {
            DialVerdict::Welcome => {
                self.connect(connection, DialledBy::Us, now);
                self.targets.leads_to(at, &name);
            }
            DialVerdict::Redundant if self.peers.contains_key(&name) => self.targets.leads_to(at, &name),
            DialVerdict::Redundant => self.targets.postpone(at, now),
            DialVerdict::Full => {
                self.fail(at, "it has reached its connection limit", RefusalCause::Full, now)
            }
            DialVerdict::SameName => {
                let problem = format!(
                    "{name} is connected to another router called {}; give each its own cluster.name",
                    self.identity.name
                );
                self.fail(at, &problem, RefusalCause::SameName, now);
            }
        }
    }

    /// Starts a connection; it replaces an existing one to the same router.
    fn connect(&mut self, connection: SecureConnection, by: DialledBy, now: Instant) {
        self.connections_made += 1;
        let (id, name, instance) =
            (self.connections_made, connection.theirs.name.clone(), connection.theirs.instance);
        let (remote, you, address) = (connection.remote, connection.theirs.you, connection.address());
        let predecessor = self.peers.remove(&name).map(|old| {
            old.task.abort();
            old.end
        });
        let (backlog, last_received) = (Arc::new(Backlog::default()), Arc::new(LastReceived::new(now)));
        let handles = ConnectionHandles {
            id,
            backlog: backlog.clone(),
            last_received: last_received.clone(),
            counters: self.counters.clone(),
            incoming: self.backend.incoming.clone(),
            gossip: self.gossip_in.clone(),
        };
        let start =
            ConnectionStart { verdict: (by == DialledBy::Them).then_some(DialVerdict::Welcome), predecessor };
        let (guard, end) = oneshot::channel();
        let ended = name.clone();
        let task = self.tasks.spawn(async move {
            let _guard: oneshot::Sender<()> = guard;
            HubEvent::Ended { id, name: ended, reason: connection::run(connection, start, handles).await }
        });
        tracing::info!(router = %name, %remote, address, ?by, "connected to another router");
        self.peers.insert(
            name.clone(),
            PeerConnection { id, instance, remote, by, backlog, last_received, task, end },
        );
        self.join(&name, you, now);
        self.publish(now);
    }

    fn lose(&mut self, name: &str, reason: &dyn Lost, now: Instant) {
        let Some(peer) = self.peers.remove(name) else { return };
        peer.task.abort();
        self.targets.lost(name, now);
        match reason.is_refusal() {
            true => self.refuse(peer.remote.ip(), RefusalCause::Malformed, reason),
            false => {
                tracing::info!(router = name, remote = %peer.remote, %reason, "disconnected from another router")
            }
        }
        self.publish(now);
    }

    fn refuse(&mut self, from: IpAddr, cause: RefusalCause, what: &dyn std::fmt::Display) {
        self.refused += 1;
        if self.log_limiter.is_due(SocketAddr::new(from, 0), cause, clock::now()) {
            let hint = match cause {
                RefusalCause::NotARouter => "; point probes and scrapers at the other listeners",
                _ => "",
            };
            tracing::warn!(%from, ?cause, "refused a connection at cluster.listen: {what}{hint}");
        }
    }

    fn meet_namesake(&mut self, from: IpAddr, address: &str, now: Instant) {
        self.namesake = Some((from, now));
        self.refused += 1;
        if self.log_limiter.is_due(SocketAddr::new(from, 0), RefusalCause::SameName, now) {
            let name = &self.identity.name;
            tracing::error!(address, "another router is also called {name}; give each its own cluster.name");
        }
    }

    fn failed(&mut self, at: SocketAddr, failure: &HandshakeError, now: Instant) {
        let cause = failure.cause().filter(|&it| it != RefusalCause::Timeout);
        self.refused += u64::from(cause.is_some());
        self.fail(at, &failure.to_string(), cause.unwrap_or(RefusalCause::Unreachable), now);
    }

    fn fail(&mut self, at: SocketAddr, problem: &str, cause: RefusalCause, now: Instant) {
        let is_new = self.targets.failed(at, problem.to_owned(), now);
        tracing::debug!(%at, problem, "dial failed");
        if is_new && self.log_limiter.is_due(at, cause, now) {
            tracing::warn!(%at, "cannot connect to another router: {problem}; trying again");
        }
    }

    fn publish(&mut self, now: Instant) {
        self.publish_at = now + STATUS_INTERVAL;
        let read = |it: &std::sync::atomic::AtomicU64| it.load(Ordering::Relaxed);
        let namesake = self.namesake.filter(|(_, met)| now < *met + NAMESAKE_SHOWN_FOR);
        let namesake = namesake.map(|(from, _)| {
            format!(
                "another router, at {from}, is also called {}; give each its own cluster.name",
                self.identity.name
            )
        });
        let status = TransportStatus {
            connected: !self.peers.is_empty(),
            peers: self.peers.keys().cloned().collect(),
            trouble: namesake.or_else(|| self.targets.trouble(self.peers.len())),
            frames_out: read(&self.counters.frames_out),
            frames_in: read(&self.counters.frames_in),
            bytes_out: read(&self.counters.bytes_out),
            bytes_in: read(&self.counters.bytes_in),
            dropped: read(&self.counters.dropped),
            refused: self.refused,
        };
        self.backend.status.send_if_modified(|it| {
            let is_new = *it != status;
            *it = status;
            is_new
        });
    }

    /// Announces the departure, writes the backlogs and closes the connections.
    async fn leave(mut self) {
        let now = clock::now();
        while let Ok(outgoing) = self.backend.outgoing.try_recv() {
            if let Outgoing::Frame(frame) = outgoing {
                self.send(&frame);
            }
        }
        if let Some(swim) = &mut self.swim {
            swim.leave(now);
        }
        self.react(now);
        self.peers.values().for_each(|it| it.backlog.end());
        while !self.peers.is_empty()
            && let Ok(Some(done)) = timeout_at(now + LEAVE_MAX, self.tasks.join_next()).await
        {
            if let Ok(HubEvent::Ended { name, .. }) = done {
                self.peers.remove(&name);
            }
        }
    }
}

/// Why a connection was lost, and whether the peer is to blame.
trait Lost: std::fmt::Display {
    fn is_refusal(&self) -> bool {
        false
    }
}

impl Lost for &str {}

impl Lost for CloseReason {
    fn is_refusal(&self) -> bool {
        matches!(self, CloseReason::Malformed(_))
    }
}

//! The one task that knows all of the mesh: connections, targets and membership. The others tell it what they found.
//!
//! It never waits for any of them. What can take long (a dial, a handshake, a lookup, a connection's whole life) is a
//! task of its own, whose result comes back as an `Event`. When the hub is dropped they all end.

mod members;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::backlog::Backlog;
use super::clock;
use super::connection::{self, Counters, Ends, Heard, Start, Why, add};
use super::handshake::{Card, Failure, Shaken};
use super::notices::{Cause, Notices};
use super::resolve::Place;
use super::swim::Swim;
use super::targets::{Job, Targets};
use super::wire::{FRAME_MAX, Hello, Verdict};
use crate::{Incoming, Outgoing, Status};

const CONNECTIONS_MAX: usize = 64;
/// Of those who dialled us and are not done.
const HANDSHAKES_MAX: usize = 32;
/// Messages about members that wait for the hub.
const GOSSIP_MAX: usize = 1024;
/// Between two looks at the counters.
const PUBLISH: Duration = Duration::from_millis(500);
/// A connection that was silent for longer yields to a new one of the same router: two beats.
const STALE: Duration = Duration::from_secs(2);
/// For what is queued when we leave.
const LEAVE_MAX: Duration = Duration::from_millis(500);
/// After a listener that fails, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long another router with our name stays in the status after it was last met.
const NAMESAKE: Duration = Duration::from_secs(60);

/// What a task found.
enum Event {
    /// Somebody dialled us. Others may when his place is free again.
    Accepted {
        from: IpAddr,
        shaken: Result<Shaken, Failure>,
        place: OwnedSemaphorePermit,
    },
    /// We dialled, and know who is there.
    Dialled {
        at: SocketAddr,
        shaken: Result<Shaken, Failure>,
    },
    /// And he knows who we are.
    Introduced {
        at: SocketAddr,
        name: String,
        verdict: Result<(Shaken, Verdict), Failure>,
    },
    Found {
        place: Place,
        found: Result<Vec<SocketAddr>, String>,
    },
    Ended {
        id: u64,
        name: String,
        why: Why,
    },
    /// Somebody was told that he is not wanted.
    Told,
}

/// Who dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Us,
    Them,
}

/// A router we are connected with.
struct Peer {
    id: u64,
    instance: u64,
    remote: SocketAddr,
    by: By,
    backlog: Arc<Backlog>,
    heard: Arc<Heard>,
    task: AbortHandle,
    /// Its other end goes with the task.
    end: oneshot::Receiver<()>,
}

/// The far end of the line.
pub(super) struct Far {
    pub(super) outgoing: mpsc::Receiver<Outgoing>,
    pub(super) incoming: mpsc::Sender<Incoming>,
    pub(super) status: watch::Sender<Status>,
}

pub(super) struct Hub {
    card: Arc<Card>,
    listen: SocketAddr,
    listener: TcpListener,
    far: Far,
    targets: Targets,
    tasks: JoinSet<Event>,
    peers: BTreeMap<String, Peer>,
    /// Those we are introducing ourselves to: once each at a time.
    introducing: BTreeSet<String>,
    connections_made: u64,
    handshakes: Arc<Semaphore>,
    /// From the first connection on, since it is that which tells us our address.
    swim: Option<Swim>,
    gossip: mpsc::Receiver<(u64, Bytes)>,
    gossip_in: mpsc::Sender<(u64, Bytes)>,
    counters: Arc<Counters>,
    refused: u64,
    notices: Notices,
    /// Where another router with our name was met, and when.
    namesake: Option<(IpAddr, Instant)>,
    publish_at: Instant,
    accept_at: Instant,
}

impl Hub {
    pub(super) fn new(card: Card, listener: TcpListener, targets: Targets, far: Far) -> io::Result<Hub> {
        let now = clock::now();
        let (gossip_in, gossip) = mpsc::channel(GOSSIP_MAX);
        Ok(Hub {
            card: Arc::new(card),
            listen: listener.local_addr()?,
            listener,
            far,
            targets,
            tasks: JoinSet::new(),
            peers: BTreeMap::new(),
            introducing: BTreeSet::new(),
            connections_made: 0,
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            swim: None,
            gossip,
            gossip_in,
            counters: Arc::default(),
            refused: 0,
            notices: Notices::default(),
            namesake: None,
            publish_at: now,
            accept_at: now,
        })
    }

    /// Until the line is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let now = clock::now();
            self.tick(now);
            let next = self.next(now);
            tokio::select! {
                outgoing = self.far.outgoing.recv() => match outgoing {
                    Some(Outgoing::Frame(frame)) => self.send(&frame),
                    // Who joins asks those who are there.
                    Some(Outgoing::Snapshot(_)) => (),
                    None => break,
                },
                () = self.far.incoming.closed() => break,
                accepted = self.listener.accept(), if self.accept_at <= now => self.accept(accepted),
                Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => match done {
                    Ok(event) => self.on(event),
                    Err(error) if error.is_panic() => tracing::error!(%error, "a task of the mesh failed"),
                    Err(_) => (),
                },
                Some((id, message)) = self.gossip.recv() => self.hear(id, &message),
                () = sleep_until(next) => (),
            }
        }
        self.leave().await;
    }

    /// What is due by now.
    fn tick(&mut self, now: Instant) {
        if let Some(swim) = &mut self.swim {
            swim.tick(now);
        }
        self.react(now);
        for job in self.targets.due(now) {
            let card = self.card.clone();
            match job {
                Job::Dial(at) => {
                    self.tasks.spawn(async move { Event::Dialled { at, shaken: card.dial(at).await } });
                }
                Job::Lookup(place) => {
                    self.tasks.spawn(async move { Event::Found { found: place.resolve().await, place } });
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

    /// To everybody.
    fn send(&mut self, frame: &Bytes) {
        if frame.len() > FRAME_MAX {
            add(&self.counters.dropped, 1);
            tracing::error!(
                bytes = frame.len(),
                max = FRAME_MAX,
                "a frame for the other routers is too long"
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
                if self.notices.is_due(self.listen, Cause::Full, now) {
                    tracing::warn!(listen = %self.listen, %error, "cannot accept connections of other routers");
                }
                return;
            }
        };
        let Ok(place) = self.handshakes.clone().try_acquire_owned() else {
            return self.refuse(from, Cause::Full, &"too many are shaking hands; it may come again");
        };
        let card = self.card.clone();
        self.tasks.spawn(async move { Event::Accepted { from, shaken: card.accept(stream).await, place } });
    }

    fn on(&mut self, event: Event) {
        let now = clock::now();
        match event {
            Event::Accepted { from, shaken, place } => {
                drop(place);
                match shaken {
                    Ok(shaken) => self.accepted(shaken, now),
                    Err(failure) => match failure.cause() {
                        Some(cause) => self.refuse(from, cause, &failure),
                        None => tracing::debug!(%from, %failure, "a connection to the mesh ended early"),
                    },
                }
            }
            Event::Dialled { at, shaken } => match shaken {
                Ok(shaken) => self.dialled(at, shaken, now),
                Err(failure) => self.failed(at, &failure, now),
            },
            Event::Introduced { at, name, verdict } => {
                self.introducing.remove(&name);
                match verdict {
                    Ok((shaken, verdict)) => self.introduced(at, shaken, verdict, now),
                    Err(failure) => self.failed(at, &failure, now),
                }
            }
            Event::Found { place, found } => {
                let problem = found.as_ref().err().cloned();
                if self.targets.found(&place, found, now) {
                    tracing::warn!(%place, "cannot find other routers: {}; trying again", problem.unwrap_or_default());
                }
            }
            Event::Ended { id, name, why } => {
                if self.peers.get(&name).is_some_and(|it| it.id == id) {
                    self.lose(&name, &why, now);
                }
            }
            Event::Told => (),
        }
    }

    /// What a connection with this router would be to us. Both ends come to the same conclusion.
    fn judge(&self, theirs: &Hello, by: By) -> Verdict {
        let Some(peer) = self.peers.get(&theirs.name) else {
            return if self.peers.len() < CONNECTIONS_MAX { Verdict::Welcome } else { Verdict::Full };
        };
        // If both dialled at once, what the lower name dialled stays. If one dialled twice, he has lost the first.
        let is_by_lower = (by == By::Us) == (self.card.name < theirs.name);
        match peer.heard.silence() > STALE {
            true => Verdict::Welcome,
            false if peer.instance != theirs.instance => Verdict::SameName,
            false if peer.by == by || is_by_lower => Verdict::Welcome,
            false => Verdict::Spare,
        }
    }

    fn accepted(&mut self, shaken: Shaken, now: Instant) {
        let (from, is_namesake) = (shaken.remote.ip(), shaken.theirs.name == self.card.name);
        let verdict = if is_namesake { Verdict::SameName } else { self.judge(&shaken.theirs, By::Them) };
        match verdict {
            Verdict::Welcome => return self.connect(shaken, By::Them, now),
            Verdict::SameName if is_namesake => self.meet_namesake(from, &shaken.address(), now),
            Verdict::SameName => {
                let what = format!(
                    "we are connected with another router called {}; give each its own cluster.name \
                     (one that was restarted is let in within seconds)",
                    shaken.theirs.name
                );
                self.refuse(from, Cause::SameName, &what);
            }
            Verdict::Full => self.refuse(from, Cause::Full, &"we have as many connections as we may"),
            Verdict::Spare => (),
        }
        let mut shaken = shaken;
        self.tasks.spawn(async move {
            // If he does not hear it, he will ask again.
            let _ = shaken.say(&verdict.encode()).await;
            Event::Told
        });
    }

    /// We know who is there, and he does not know us yet.
    fn dialled(&mut self, at: SocketAddr, shaken: Shaken, now: Instant) {
        let (card, name) = (self.card.clone(), shaken.theirs.name.clone());
        if name == card.name {
            if shaken.theirs.instance == card.instance {
                return self.targets.is_ourselves(at, now);
            }
            self.meet_namesake(at.ip(), &at.to_string(), now);
            self.targets.failed(at, format!("it is called {name} as we are; set cluster.name"), now);
            self.tasks.spawn(async move {
                // So that he says so too.
                let _ = card.introduce(shaken).await;
                Event::Told
            });
            return;
        }
        if self.introducing.contains(&name) {
            return self.targets.postpone(at, now);
        }
        let is_live = |it: &Peer| it.instance == shaken.theirs.instance && it.heard.silence() <= STALE;
        if self.peers.get(&name).is_some_and(is_live) {
            return self.targets.leads_to(at, &name);
        }
        match self.judge(&shaken.theirs, By::Us) {
            Verdict::Welcome => {
                self.introducing.insert(name.clone());
                self.tasks.spawn(async move {
                    Event::Introduced { at, name, verdict: card.introduce(shaken).await }
                });
            }
            Verdict::Spare => self.targets.leads_to(at, &name),
            Verdict::Full => self.fail(at, "we have as many connections as we may", Cause::Full, now),
            Verdict::SameName => {
                let problem = format!("we are connected with another router called {name}");
                self.fail(at, &problem, Cause::SameName, now);
            }
        }
    }

    fn introduced(&mut self, at: SocketAddr, shaken: Shaken, verdict: Verdict, now: Instant) {
        let name = shaken.theirs.name.clone();
        let verdict = if verdict == Verdict::Welcome { self.judge(&shaken.theirs, By::Us) } else { verdict };
        match verdict {
            Verdict::Welcome => {
                self.connect(shaken, By::Us, now);
                self.targets.leads_to(at, &name);
            }
            Verdict::Spare if self.peers.contains_key(&name) => self.targets.leads_to(at, &name),
            Verdict::Spare => self.targets.postpone(at, now),
            Verdict::Full => self.fail(at, "it has as many connections as it may", Cause::Full, now),
            Verdict::SameName => {
                let problem = format!(
                    "{name} is connected with another router called {}; give each its own cluster.name",
                    self.card.name
                );
                self.fail(at, &problem, Cause::SameName, now);
            }
        }
    }

    /// From now on we are connected; if we were, this takes its place.
    fn connect(&mut self, shaken: Shaken, by: By, now: Instant) {
        self.connections_made += 1;
        let (id, name, instance) =
            (self.connections_made, shaken.theirs.name.clone(), shaken.theirs.instance);
        let (remote, you, address) = (shaken.remote, shaken.theirs.you, shaken.address());
        let predecessor = self.peers.remove(&name).map(|old| {
            old.task.abort();
            old.end
        });
        let (backlog, heard) = (Arc::new(Backlog::default()), Arc::new(Heard::new(now)));
        let ends = Ends {
            id,
            backlog: backlog.clone(),
            heard: heard.clone(),
            counters: self.counters.clone(),
            incoming: self.far.incoming.clone(),
            gossip: self.gossip_in.clone(),
        };
        let start = Start { verdict: (by == By::Them).then_some(Verdict::Welcome), predecessor };
        let (guard, end) = oneshot::channel();
        let ended = name.clone();
        let task = self.tasks.spawn(async move {
            let _guard: oneshot::Sender<()> = guard;
            Event::Ended { id, name: ended, why: connection::run(shaken, start, ends).await }
        });
        tracing::info!(router = %name, %remote, address, ?by, "connected with another router");
        self.peers.insert(name.clone(), Peer { id, instance, remote, by, backlog, heard, task, end });
        self.join(&name, you, now);
        self.publish(now);
    }

    fn lose(&mut self, name: &str, why: &dyn Lost, now: Instant) {
        let Some(peer) = self.peers.remove(name) else { return };
        peer.task.abort();
        self.targets.lost(name, now);
        match why.is_refusal() {
            true => self.refuse(peer.remote.ip(), Cause::Nonsense, why),
            false => tracing::info!(router = name, remote = %peer.remote, %why, "no longer connected"),
        }
        self.publish(now);
    }

    fn refuse(&mut self, from: IpAddr, cause: Cause, what: &dyn std::fmt::Display) {
        self.refused += 1;
        if self.notices.is_due(SocketAddr::new(from, 0), cause, clock::now()) {
            let hint = match cause {
                Cause::Stranger => {
                    "; probes and scrapers belong at the other listeners, not at cluster.listen"
                }
                _ => "",
            };
            tracing::warn!(%from, ?cause, "refused a connection at the cluster's listener: {what}{hint}");
        }
    }

    fn meet_namesake(&mut self, from: IpAddr, address: &str, now: Instant) {
        self.namesake = Some((from, now));
        self.refused += 1;
        if self.notices.is_due(SocketAddr::new(from, 0), Cause::SameName, now) {
            let name = &self.card.name;
            tracing::error!(address, "another router is called {name} too; give each its own cluster.name");
        }
    }

    fn failed(&mut self, at: SocketAddr, failure: &Failure, now: Instant) {
        let cause = failure.cause().filter(|&it| it != Cause::Late);
        self.refused += u64::from(cause.is_some());
        self.fail(at, &failure.to_string(), cause.unwrap_or(Cause::Unreachable), now);
    }

    fn fail(&mut self, at: SocketAddr, problem: &str, cause: Cause, now: Instant) {
        let is_news = self.targets.failed(at, problem.to_owned(), now);
        tracing::debug!(%at, problem, "dialled in vain");
        if is_news && self.notices.is_due(at, cause, now) {
            tracing::warn!(%at, "cannot connect with another router: {problem}; trying again");
        }
    }

    fn publish(&mut self, now: Instant) {
        self.publish_at = now + PUBLISH;
        let read = |it: &std::sync::atomic::AtomicU64| it.load(Ordering::Relaxed);
        let namesake = self.namesake.filter(|(_, met)| now < *met + NAMESAKE);
        let namesake = namesake.map(|(from, _)| {
            format!(
                "another router, at {from}, is called {} too; give each its own cluster.name",
                self.card.name
            )
        });
        let status = Status {
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
        self.far.status.send_if_modified(|it| {
            let is_news = *it != status;
            *it = status;
            is_news
        });
    }

    /// Says so, writes what is queued, and hangs up.
    async fn leave(mut self) {
        let now = clock::now();
        while let Ok(outgoing) = self.far.outgoing.try_recv() {
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
            if let Ok(Event::Ended { name, .. }) = done {
                self.peers.remove(&name);
            }
        }
    }
}

/// Why a connection was lost, and whether it was its fault.
trait Lost: std::fmt::Display {
    fn is_refusal(&self) -> bool {
        false
    }
}

impl Lost for &str {}

impl Lost for Why {
    fn is_refusal(&self) -> bool {
        matches!(self, Why::Nonsense(_))
    }
}

//! The peers and their rows: the join of everything that live peers have published.
//!
//! Only the latest incarnation of a router counts, and only while it is live. Its rows are removed together when it
//! leaves, falls silent or restarts. The view emits updates as differences to what it emitted before: load sums, the
//! winning pin, additional usage.

pub(crate) mod rows;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::frame::{Body, Head, ROUTERS_MAX};
use crate::own_rows;
use crate::row::{Incarnation, Peer, PeerState, PeerUpdate, RouterId, Spent, WorkerFacts};
use crate::stream::{DeltaStream, ReceivedParts};
use crate::view::rows::{PeerAccount, PeerPin, PeerRows};
use maitre_base::hash::NumberMap;
use maitre_base::{Instant, PromisedWork};

/// How long frames of an earlier incarnation may still arrive after the router left.
const STALE_FOR: Duration = Duration::from_secs(3);

/// How long a silent router still counts as known. Chosen: longer than operators leave a partition unrepaired.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct PeerRouter {
    pub(crate) peer: Peer,
    pub(crate) stream: DeltaStream,
    pub(crate) snapshot_parts: ReceivedParts,
    pub(crate) directory_parts: ReceivedParts,
    /// Number and arrival time of the last heartbeat.
    pub(crate) heartbeat: Option<(u64, Instant)>,
    pub(crate) is_synced: bool,
    /// Chains published up to this delta are known: they were received, also before the router fell silent, or are
    /// part of a directory snapshot.
    pub(crate) chains: u64,
    pub(crate) rows: PeerRows,
}

impl PeerRouter {
    fn new(now: Instant, head: &Head) -> PeerRouter {
        PeerRouter {
            peer: Peer {
                id: head.router,
                name: format!("{:016x}", head.router.0),
                incarnation: head.incarnation,
                state: PeerState::Live,
                lag: None,
                last_heard: now,
                served: 0,
                in_flight: 0,
            },
            stream: DeltaStream::default(),
            snapshot_parts: ReceivedParts::default(),
            directory_parts: ReceivedParts::default(),
            heartbeat: None,
            is_synced: false,
            chains: 0,
            rows: PeerRows::new(),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.peer.state == PeerState::Live
    }

    pub(crate) fn rename(&mut self, name: &str) {
        if !name.is_empty() && self.peer.name != name {
            name.clone_into(&mut self.peer.name);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ClusterView {
    routers: BTreeMap<RouterId, PeerRouter>,
    /// Incarnations that left. Frames of theirs that still arrive are stale.
    departed: BTreeMap<RouterId, (Incarnation, Instant)>,
    /// The load sum last emitted per worker; zero sums are not kept.
    sums: NumberMap<PromisedWork>,
    /// Workers whose sum may have changed.
    touched: Vec<u64>,
    /// The counts last emitted: live peers and known peers.
    emitted_counts: (usize, usize),
    dropped: u64,
}

/// Whether a frame is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Accepted,
    /// From an incarnation that is over.
    Stale,
    /// From one router more than the limit.
    TooManyRouters,
}

/// A pin and its router. Of two pins for one session, the larger wins.
pub(crate) type RankedPin = (u64, RouterId, u64);

impl ClusterView {
    pub(crate) fn routers(&self) -> impl Iterator<Item = &PeerRouter> {
        self.routers.values()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &PeerRouter> {
        self.routers.values().filter(|it| it.is_live())
    }

    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut PeerRouter> {
        self.routers.values_mut().filter(|it| it.is_live())
    }

    pub(crate) fn get_mut(&mut self, router: RouterId) -> Option<&mut PeerRouter> {
        self.routers.get_mut(&router)
    }

    pub(crate) fn rows(&self) -> usize {
        self.routers.values().map(|it| it.rows.len()).sum()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.routers.values().map(|it| it.rows.dropped()).sum::<u64>()
    }

    /// Decides whether to accept a frame of this router. A new incarnation removes all rows of the old one.
    ///
    /// A seemingly earlier incarnation is accepted if the later one is over and the earlier one sends heartbeats.
    /// Then its clock was set back before it started, or two routers shared a name and this one remains. Snapshots
    /// may come from storage, so they do not bring a router back.
    pub(crate) fn admit(&mut self, now: Instant, head: &Head, body: &Body<'_>) -> Admission {
        let is_heartbeat = matches!(body, Body::Heartbeat(_));
        let is_late = |(last, since): &(Incarnation, Instant)| match last.cmp(&head.incarnation) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => !is_heartbeat || now.since(*since) < STALE_FOR,
        };
        if self.departed.get(&head.router).is_some_and(is_late) {
            return Admission::Stale;
        }
        let is_kept = matches!(body, Body::Snapshot { .. } | Body::CacheDirectory { .. });
        match self.routers.get(&head.router).map(|it| (it.peer.incarnation, it.is_live())) {
            Some((known, is_live)) if known > head.incarnation && (is_live || !is_heartbeat) => {
                return Admission::Stale;
            }
            Some((known, false)) if known == head.incarnation && is_kept => return Admission::Stale,
            Some((known, _)) if known != head.incarnation => self.remove(head.router),
            Some(_) => {}
            None if self.routers.len() + 1 >= ROUTERS_MAX && !self.evict_lost() => {
                self.dropped += 1;
                return Admission::TooManyRouters;
            }
            None => {}
        }
        self.departed.remove(&head.router);
        let router = self.routers.entry(head.router).or_insert_with(|| PeerRouter::new(now, head));
        router.peer.last_heard = now;
        router.peer.state = PeerState::Live;
        router.is_synced = head.is_synced;
        Admission::Accepted
    }

    /// A router announced that it leaves. Accepted once per incarnation.
    pub(crate) fn leave(&mut self, now: Instant, head: &Head) -> Admission {
        let known = self.routers.get(&head.router).map(|it| it.peer.incarnation);
        let over = self.departed.get(&head.router).map(|it| it.0);
        if known.is_some_and(|it| it > head.incarnation) || over.is_some_and(|it| it >= head.incarnation) {
            return Admission::Stale;
        }
        self.remove(head.router);
        self.departed.insert(head.router, (head.incarnation, now));
        if self.departed.len() > ROUTERS_MAX {
            let oldest = self.departed.iter().min_by_key(|it| it.1.1).map(|it| *it.0);
            oldest.and_then(|it| self.departed.remove(&it));
        }
        Admission::Accepted
    }

    /// Drops the rows of peers that were silent for too long.
    pub(crate) fn tick(&mut self, now: Instant, silence_max: Duration) {
        let is_silent = |it: &PeerRouter| it.is_live() && now.since(it.peer.last_heard) >= silence_max;
        let silent: Vec<RouterId> = self.ids(is_silent);
        for id in silent {
            self.mark_lost(id);
        }
        let forgotten = self.ids(|it| !it.is_live() && now.since(it.peer.last_heard) >= KNOWN_FOR);
        forgotten.into_iter().for_each(|it| self.remove(it));
        self.departed.retain(|_, it| now.since(it.1) < KNOWN_FOR);
    }

    /// Emits what changed since the last call.
    pub(crate) fn emit(&mut self, updates: &mut Vec<PeerUpdate>) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for worker in touched.drain(..) {
            let load = self.sum(worker);
            let published = match load == PromisedWork::default() {
                true => self.sums.remove(&worker),
                false => self.sums.insert(worker, load),
            };
            if published.unwrap_or_default() != load {
                updates.push(PeerUpdate::Promised { worker, load });
            }
        }
        self.touched = touched;
        let emitted_counts = (self.live().count(), self.routers.len());
        if emitted_counts != self.emitted_counts {
            self.emitted_counts = emitted_counts;
            updates.push(PeerUpdate::Routers {
                live: emitted_counts.0 as u32 + 1,
                known: emitted_counts.1 as u32 + 1,
            });
        }
    }

    pub(crate) fn load(&mut self, from: RouterId, version: u64, worker: u64, load: PromisedWork) {
        if let Some(router) = self.routers.get_mut(&from) {
            let evicted = router.rows.set_load(version, worker, load);
            self.touched.extend(evicted.into_iter().chain([worker]));
        }
    }

    pub(crate) fn facts(
        &mut self,
        from: RouterId,
        version: u64,
        worker: u64,
        facts: WorkerFacts,
    ) -> Option<PeerUpdate> {
        let router = self.routers.get_mut(&from)?;
        router.rows.set_facts(version, worker, Some(facts)).then_some(PeerUpdate::Assessed { worker, facts })
    }

    pub(crate) fn remove_worker(&mut self, from: RouterId, version: u64, worker: u64) {
        self.load(from, version, worker, PromisedWork::default());
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.set_facts(version, worker, None);
        }
    }

    /// The winning pin for a session, ours included.
    pub(crate) fn pin(&self, key: u64, ours: Option<RankedPin>) -> Option<RankedPin> {
        let theirs =
            self.live().filter_map(|it| it.rows.pin(key).map(|pin| (pin.stamp, it.peer.id, pin.worker)));
        theirs.chain(ours).max()
    }

    pub(crate) fn set_pin(&mut self, key: u64, pin: RankedPin) {
        let (stamp, from, worker) = pin;
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.set_pin(key, PeerPin { stamp, worker });
        }
    }

    /// Applies a tenant's total usage. Returns the additional usage.
    pub(crate) fn spent(
        &mut self,
        from: RouterId,
        model: u64,
        tenant: u64,
        received: PeerAccount,
    ) -> Option<PeerUpdate> {
        let PeerRouter { rows, stream, .. } = self.routers.get_mut(&from)?;
        let forgotten = rows.accounts_forgotten();
        // The first total of an account counts only if the account began while this router listened; else it may
        // cover hours.
        let is_new = stream.listening_since.is_some_and(|it| received.first_delta > it);
        let more = rows.set_account(own_rows::row_key(model, tenant), received);
        if rows.accounts_forgotten() > forgotten {
            // An evicted account must not be counted from zero when it arrives again.
            stream.listening_since = Some(stream.latest().saturating_sub(1));
        }
        let more = more.unwrap_or(if is_new { received.total } else { Spent::default() });
        (more != Spent::default()).then_some(PeerUpdate::Spent { model, tenant, more })
    }

    /// A snapshot of this version is complete: rows that it does not name are gone.
    pub(crate) fn complete(&mut self, from: RouterId, version: u64) {
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.drop_before(version, &mut self.touched);
            router.stream.fill_upto(version);
        }
    }

    /// Once nothing is missing, no older delta of this router can arrive.
    pub(crate) fn drop_tombstones(&mut self, from: RouterId) {
        if let Some(router) = self.routers.get_mut(&from)
            && !router.stream.has_gaps()
        {
            router.rows.drop_tombstones();
            router.chains = router.stream.applied();
        }
    }

    fn sum(&self, worker: u64) -> PromisedWork {
        self.routers.values().map(|it| it.rows.load(worker)).fold(PromisedWork::default(), |a, b| a.plus(&b))
    }

    fn ids(&self, is_meant: impl Fn(&PeerRouter) -> bool) -> Vec<RouterId> {
        self.routers.values().filter(|it| is_meant(it)).map(|it| it.peer.id).collect()
    }

    /// Marks the router as lost: it is still known, but its rows are gone.
    fn mark_lost(&mut self, id: RouterId) {
        let Some(router) = self.routers.get_mut(&id) else {
            return;
        };
        router.peer.state = PeerState::Lost;
        router.peer.lag = None;
        self.touched.extend(router.rows.workers_with_load());
        self.dropped += router.rows.dropped();
        router.rows = PeerRows::new();
        router.stream = DeltaStream::default();
        (router.snapshot_parts, router.directory_parts, router.heartbeat) =
            (ReceivedParts::default(), ReceivedParts::default(), None);
    }

    fn remove(&mut self, id: RouterId) {
        if let Some(router) = self.routers.remove(&id) {
            self.touched.extend(router.rows.workers_with_load());
            self.dropped += router.rows.dropped();
        }
    }

    /// Forgets the router that fell silent longest ago. Returns whether there was one.
    fn evict_lost(&mut self) -> bool {
        let lost = self.routers.values().filter(|it| !it.is_live());
        let longest = lost.min_by_key(|it| it.peer.last_heard).map(|it| it.peer.id);
        longest.into_iter().for_each(|it| self.remove(it));
        longest.is_some()
    }
}

#[cfg(test)]
impl ClusterView {
    /// The rows of each live router, in a fixed order.
    pub(crate) fn dump(&self) -> Vec<(RouterId, Incarnation, Vec<String>)> {
        self.live().map(|it| (it.peer.id, it.peer.incarnation, it.rows.dump())).collect()
    }
}

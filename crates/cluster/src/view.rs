//! The other routers and their rows: the join of all that the living ones told.
//!
//! Of each router only the latest life counts, and its rows only while it is heard: with a bye, a silence or a new life
//! they are gone at once and together. What follows for whoever decides is told as the difference to what was told
//! last: sums of loads, the pin that holds, what was spent more.

pub(crate) mod rows;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::frame::{Body, Head, ROUTERS_MAX};
use crate::node::{Peer, PeerState};
use crate::own;
use crate::row::{Facts, Incarnation, Load, PeerUpdate, RouterId, Spent};
use crate::stream::{Parts, Stream};
use crate::view::rows::{Account, Pin, Rows};
use maitre_base::Instant;
use maitre_base::hash::NumberMap;

/// After a goodbye, what an earlier life said may still be under way so long.
const LATE: Duration = Duration::from_secs(3);

/// How long a router that fell silent is counted among those there are. Chosen: longer than a partition is left alone.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) struct Router {
    pub(crate) peer: Peer,
    pub(crate) stream: Stream,
    pub(crate) snapshot: Parts,
    pub(crate) book: Parts,
    /// The number of the last beat heard, and when that was.
    pub(crate) beat: Option<(u64, Instant)>,
    pub(crate) is_warm: bool,
    /// Chains told up to this delta are known: they were heard, also before it fell silent, or are in somebody's book.
    pub(crate) chains: u64,
    pub(crate) rows: Rows,
}

impl Router {
    fn new(now: Instant, head: &Head) -> Router {
        Router {
            peer: Peer {
                id: head.router,
                name: format!("{:016x}", head.router.0),
                incarnation: head.incarnation,
                standing: PeerState::Live,
                lag: None,
                heard: now,
                served: 0,
                open: 0,
            },
            stream: Stream::default(),
            snapshot: Parts::default(),
            book: Parts::default(),
            beat: None,
            is_warm: false,
            chains: 0,
            rows: Rows::new(),
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.peer.standing == PeerState::Live
    }

    pub(crate) fn rename(&mut self, name: &str) {
        if !name.is_empty() && self.peer.name != name {
            name.clone_into(&mut self.peer.name);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct View {
    routers: BTreeMap<RouterId, Router>,
    /// Lives that ended with a bye: what still comes of them is late.
    over: BTreeMap<RouterId, (Incarnation, Instant)>,
    /// What was told of each worker; all zero is not kept.
    sums: NumberMap<Load>,
    /// Workers whose sum may have changed.
    touched: Vec<u64>,
    /// How many routers were told: others that are heard, and others that are known.
    counted: (usize, usize),
    dropped: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Heard,
    /// Of a life that is over.
    Late,
    /// Of one router too many.
    Crowded,
}

/// A pin and whose it is. Of two for one session the larger holds.
pub(crate) type Ranked = (u64, RouterId, u64);

impl View {
    pub(crate) fn routers(&self) -> impl Iterator<Item = &Router> {
        self.routers.values()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &Router> {
        self.routers.values().filter(|it| it.is_live())
    }

    pub(crate) fn live_mut(&mut self) -> impl Iterator<Item = &mut Router> {
        self.routers.values_mut().filter(|it| it.is_live())
    }

    pub(crate) fn get_mut(&mut self, router: RouterId) -> Option<&mut Router> {
        self.routers.get_mut(&router)
    }

    pub(crate) fn rows(&self) -> usize {
        self.routers.values().map(|it| it.rows.len()).sum()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.routers.values().map(|it| it.rows.dropped()).sum::<u64>()
    }

    /// A frame of this router came: is it to be heard? With a new life all of the old one is gone.
    ///
    /// A life that seems to be an earlier one is heard if the later one is over and it still beats: a clock was set back
    /// before it began, or it is what is left of two with one name. What may have been kept somewhere brings nobody back.
    pub(crate) fn admit(&mut self, now: Instant, head: &Head, body: &Body<'_>) -> Admission {
        let beats = matches!(body, Body::Beat(_));
        let is_late = |(last, since): &(Incarnation, Instant)| match last.cmp(&head.incarnation) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => !beats || now.since(*since) < LATE,
        };
        if self.over.get(&head.router).is_some_and(is_late) {
            return Admission::Late;
        }
        let is_kept = matches!(body, Body::Snapshot { .. } | Body::CacheDirectory { .. });
        match self.routers.get(&head.router).map(|it| (it.peer.incarnation, it.is_live())) {
            Some((known, is_live)) if known > head.incarnation && (is_live || !beats) => {
                return Admission::Late;
            }
            Some((known, false)) if known == head.incarnation && is_kept => return Admission::Late,
            Some((known, _)) if known != head.incarnation => self.remove(head.router),
            Some(_) => {}
            None if self.routers.len() + 1 >= ROUTERS_MAX && !self.make_room() => {
                self.dropped += 1;
                return Admission::Crowded;
            }
            None => {}
        }
        self.over.remove(&head.router);
        let router = self.routers.entry(head.router).or_insert_with(|| Router::new(now, head));
        router.peer.heard = now;
        router.peer.standing = PeerState::Live;
        router.is_warm = head.is_warm;
        Admission::Heard
    }

    /// A router said that it leaves. Heard if it had not before.
    pub(crate) fn bye(&mut self, now: Instant, head: &Head) -> Admission {
        let known = self.routers.get(&head.router).map(|it| it.peer.incarnation);
        let over = self.over.get(&head.router).map(|it| it.0);
        if known.is_some_and(|it| it > head.incarnation) || over.is_some_and(|it| it >= head.incarnation) {
            return Admission::Late;
        }
        self.remove(head.router);
        self.over.insert(head.router, (head.incarnation, now));
        if self.over.len() > ROUTERS_MAX {
            let oldest = self.over.iter().min_by_key(|it| it.1.1).map(|it| *it.0);
            oldest.and_then(|it| self.over.remove(&it));
        }
        Admission::Heard
    }

    /// Lets go of what was silent for too long.
    pub(crate) fn tick(&mut self, now: Instant, silence_max: Duration) {
        let is_silent = |it: &Router| it.is_live() && now.since(it.peer.heard) >= silence_max;
        let silent: Vec<RouterId> = self.ids(is_silent);
        for id in silent {
            self.lose(id);
        }
        let forgotten = self.ids(|it| !it.is_live() && now.since(it.peer.heard) >= KNOWN_FOR);
        forgotten.into_iter().for_each(|it| self.remove(it));
        self.over.retain(|_, it| now.since(it.1) < KNOWN_FOR);
    }

    /// Tells what changed since it was told last.
    pub(crate) fn tell(&mut self, news: &mut Vec<PeerUpdate>) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for worker in touched.drain(..) {
            let load = self.sum(worker);
            let told = match load == Load::default() {
                true => self.sums.remove(&worker),
                false => self.sums.insert(worker, load),
            };
            if told.unwrap_or_default() != load {
                news.push(PeerUpdate::Promised { worker, load });
            }
        }
        self.touched = touched;
        let counted = (self.live().count(), self.routers.len());
        if counted != self.counted {
            self.counted = counted;
            news.push(PeerUpdate::Routers { heard: counted.0 as u32 + 1, known: counted.1 as u32 + 1 });
        }
    }

    pub(crate) fn load(&mut self, from: RouterId, version: u64, worker: u64, load: Load) {
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
        facts: Facts,
    ) -> Option<PeerUpdate> {
        let router = self.routers.get_mut(&from)?;
        router.rows.set_facts(version, worker, Some(facts)).then_some(PeerUpdate::Judged { worker, facts })
    }

    pub(crate) fn gone(&mut self, from: RouterId, version: u64, worker: u64) {
        self.load(from, version, worker, Load::default());
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.set_facts(version, worker, None);
        }
    }

    /// The pin that holds, ours among them.
    pub(crate) fn pin(&self, key: u64, ours: Option<Ranked>) -> Option<Ranked> {
        let theirs =
            self.live().filter_map(|it| it.rows.pin(key).map(|pin| (pin.stamp, it.peer.id, pin.worker)));
        theirs.chain(ours).max()
    }

    pub(crate) fn set_pin(&mut self, key: u64, pin: Ranked) {
        let (stamp, from, worker) = pin;
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.set_pin(key, Pin { stamp, worker });
        }
    }

    /// What a tenant had, in all. Returns how much of it is news.
    pub(crate) fn spent(
        &mut self,
        from: RouterId,
        model: u64,
        tenant: u64,
        heard: Account,
    ) -> Option<PeerUpdate> {
        let Router { rows, stream, .. } = self.routers.get_mut(&from)?;
        let forgotten = rows.accounts_forgotten();
        // What is first seen counts if it began while we listened; else it may be of hours ago.
        let is_new = stream.begin.is_some_and(|it| heard.born > it);
        let more = rows.set_account(own::key(model, tenant), heard);
        if rows.accounts_forgotten() > forgotten {
            // A row that made way must not be counted from zero when it comes again.
            stream.begin = Some(stream.seen().saturating_sub(1));
        }
        let more = more.unwrap_or(if is_new { heard.total } else { Spent::default() });
        (more != Spent::default()).then_some(PeerUpdate::Spent { model, tenant, more })
    }

    /// A snapshot of this version is complete: what it did not name is gone.
    pub(crate) fn complete(&mut self, from: RouterId, version: u64) {
        if let Some(router) = self.routers.get_mut(&from) {
            router.rows.drop_before(version, &mut self.touched);
            router.stream.fill(version);
        }
    }

    /// Nothing older can come of this router once nothing is missing.
    pub(crate) fn settle(&mut self, from: RouterId) {
        if let Some(router) = self.routers.get_mut(&from)
            && !router.stream.is_torn()
        {
            router.rows.forget_gone();
            router.chains = router.stream.upto();
        }
    }

    fn sum(&self, worker: u64) -> Load {
        self.routers.values().map(|it| it.rows.load(worker)).fold(Load::default(), |a, b| Load {
            requests: a.requests.saturating_add(b.requests),
            prefilling: a.prefilling.saturating_add(b.prefilling),
            prefill_tokens: a.prefill_tokens.saturating_add(b.prefill_tokens),
            decode_tokens: a.decode_tokens.saturating_add(b.decode_tokens),
            context_tokens: a.context_tokens.saturating_add(b.context_tokens),
        })
    }

    fn ids(&self, is_meant: impl Fn(&Router) -> bool) -> Vec<RouterId> {
        self.routers.values().filter(|it| is_meant(it)).map(|it| it.peer.id).collect()
    }

    /// The router is not heard any more: known, but without rows.
    fn lose(&mut self, id: RouterId) {
        let Some(router) = self.routers.get_mut(&id) else {
            return;
        };
        router.peer.standing = PeerState::Lost;
        router.peer.lag = None;
        self.touched.extend(router.rows.loaded());
        self.dropped += router.rows.dropped();
        router.rows = Rows::new();
        router.stream = Stream::default();
        (router.snapshot, router.book, router.beat) = (Parts::default(), Parts::default(), None);
    }

    fn remove(&mut self, id: RouterId) {
        if let Some(router) = self.routers.remove(&id) {
            self.touched.extend(router.rows.loaded());
            self.dropped += router.rows.dropped();
        }
    }

    /// Forgets the router that fell silent longest ago. Whether there was one.
    fn make_room(&mut self) -> bool {
        let lost = self.routers.values().filter(|it| !it.is_live());
        let longest = lost.min_by_key(|it| it.peer.heard).map(|it| it.peer.id);
        longest.into_iter().for_each(|it| self.remove(it));
        longest.is_some()
    }
}

#[cfg(test)]
impl View {
    /// The rows of each router that is heard, in an order of its own.
    pub(crate) fn dump(&self) -> Vec<(RouterId, Incarnation, Vec<String>)> {
        self.live().map(|it| (it.peer.id, it.peer.incarnation, it.rows.dump())).collect()
    }
}

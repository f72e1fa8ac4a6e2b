//! The task between brain, node and line.
//!
//! What the brain did is fetched when it says that there is something, at most every `FLUSH`: as one frame, sent at once
//! after a quiet time and gathered for a while in a busy one. What others say is told to the brain as it comes. Nothing
//! here waits for the network: what finds no room is dropped, and the node repairs it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::Instant;
use maitre_cluster::{FLUSH, HEARTBEAT, SILENCE_MAX};
use maitre_cluster::{Node, PeerState, PeerUpdate};
use maitre_dispatch::Event;
use maitre_dispatch::peers::Outbox;
use maitre_dispatch::peers::exchange::{self, ReceivedUpdate};
use maitre_peer::{Incoming, Outgoing, Transport};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::batch::batches;
use super::refusals::Refusals;
use super::seen::{Router, Seen, Shown, live};
use super::shares::Shares;
use crate::house::RouterState;

/// Between two snapshots for those who will join, while there is anything new to tell. Chosen: to write a full book takes tens of
/// milliseconds, and whoever joins asks those who are there; a snapshot is for when nobody is.
const SNAPSHOT: Duration = Duration::from_secs(30);

/// The same while there is not: whoever keeps one lets go of it after a while.
const SNAPSHOT_AGAIN: Duration = Duration::from_secs(60);

/// Between two questions to everybody for all they know: where many connect at once, one is enough.
const HELLO: Duration = Duration::from_millis(200);

/// Most that is taken from the line before anything else has its turn.
const INCOMING_MAX: usize = 64;

/// PeerUpdate that are gathered before the brain hears of them, if they come in several frames at once.
const NEWS_MAX: usize = 256;

pub(super) struct Driver {
    house: Arc<RouterState>,
    seen: Arc<Seen>,
    node: Node,
    line: Transport,
    /// None where nobody could keep one.
    snapshots: Option<Snapshots>,
    started: Instant,
    wait: Duration,
    flushed: Instant,
    rhythm: Rhythm,
    greeted: Option<Instant>,
    owed: Owed,
    refusals: Refusals,
    shares: Shares,
    undelivered: u64,
    untold: u64,
    room: Room,
}

/// What is to be done soon.
#[derive(Debug, Default)]
struct Owed {
    /// Others may have to be told something, or to be asked.
    flush: bool,
    /// Somebody has connected that has not heard our question.
    hello: bool,
}

/// Whether our own beats come as they should. Whoever was suspended has not heard anybody for a while, and it was not their
/// silence: what they said meanwhile is still to be read.
#[derive(Debug)]
struct Rhythm {
    last: Instant,
    spared: u32,
}

impl Rhythm {
    /// A beat, now. Whether the silence of others is theirs: if we are always late, every second time at least.
    fn beat(&mut self, now: Instant) -> bool {
        let is_late = now.since(self.last) >= 2 * HEARTBEAT;
        self.last = now;
        self.spared = if is_late && self.spared == 0 { 1 } else { 0 };
        self.spared == 0
    }
}

/// What is left for those who will join.
#[derive(Debug)]
struct Snapshots {
    /// When the last one was.
    left: Instant,
    /// Whether it is behind.
    changed: bool,
}

/// Kept from turn to turn, so that a turn allocates little.
#[derive(Default)]
struct Room {
    outbox: Outbox,
    links: Vec<u64>,
    frames: Vec<Vec<u8>>,
    incoming: Vec<Incoming>,
    news: Vec<PeerUpdate>,
}

/// What a turn of the loop is about.
enum Turn {
    Incoming(usize),
    Outbox,
    Flush,
    Beat,
    Waited,
    Leave,
}

impl Driver {
    pub(super) fn new(house: Arc<RouterState>, seen: Arc<Seen>, line: Transport, wait: Duration) -> Driver {
        let now = house.now();
        let (name, incarnation) = (seen.name.clone(), seen.incarnation);
        let node = Node::new(maitre_cluster::NodeConfig { name, incarnation, silence_max: SILENCE_MAX });
        seen.follow(line.status.clone());
        Driver {
            // A mesh has nowhere to keep one: there, who joins asks somebody.
            snapshots: (seen.via == "redis").then_some(Snapshots { left: now, changed: true }),
            house,
            seen,
            node,
            line,
            started: now,
            wait,
            flushed: Instant::ZERO,
            rhythm: Rhythm { last: now, spared: 0 },
            greeted: None,
            owed: Owed::default(),
            refusals: Refusals::default(),
            shares: Shares::default(),
            undelivered: 0,
            untold: 0,
            room: Room::default(),
        }
    }

    /// Until the router leaves, or the transport ends.
    pub(super) async fn run(mut self) {
        let hello = self.node.hello(self.house.now());
        self.send(hello);
        let mut beats = interval(HEARTBEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = self.house.now();
            let flush = pin!(sleep((self.flushed + FLUSH).since(now)));
            let waited = pin!(sleep((self.started + self.wait).since(now)));
            let turn = tokio::select! {
                count = self.line.incoming.recv_many(&mut self.room.incoming, INCOMING_MAX) => {
                    Turn::Incoming(count)
                }
                () = self.seen.outbox.notified(), if !self.owed.flush => Turn::Outbox,
                () = flush, if self.owed.flush => Turn::Flush,
                _ = beats.tick() => Turn::Beat,
                () = waited, if self.seen.is_joining() => Turn::Waited,
                () = self.seen.leaving.cancelled() => Turn::Leave,
            };
            match turn {
                Turn::Incoming(0) => {
                    return self.carry_on_alone().await;
                }
                Turn::Incoming(_) => self.hear().await,
                Turn::Outbox => self.owed.flush = true,
                Turn::Flush => self.flush(),
                Turn::Beat => self.beat().await,
                Turn::Waited => {}
                Turn::Leave => break,
            }
            self.look_whether_joined();
        }
        self.bye().await;
    }

    /// Hears what came, and lets the brain know.
    async fn hear(&mut self) {
        let now = self.house.now();
        let mut incoming = std::mem::take(&mut self.room.incoming);
        for it in incoming.drain(..) {
            match it {
                Incoming::Connected => self.owed.hello = true,
                Incoming::Frame(_) | Incoming::Stored(_) => {
                    let heard = match &it {
                        Incoming::Stored(frame) => self.node.receive_stored(now, frame, &mut self.room.news),
                        Incoming::Frame(frame) => self.node.receive(now, frame, &mut self.room.news),
                        Incoming::Connected => continue,
                    };
                    if let Err(unheard) = heard {
                        self.refusals.note(now, &unheard);
                    }
                    // One frame may name thousands of long prompts: told before the next one is read.
                    if self.room.news.len() >= NEWS_MAX {
                        self.tell_brain().await;
                    }
                }
            }
        }
        self.room.incoming = incoming;
        self.tell_brain().await;
        // It may have been a question.
        self.owed.flush |= self.owed.hello || self.node.is_due(now);
    }

    /// Tells the brain what the node has found out.
    async fn tell_brain(&mut self) {
        let mut news = std::mem::take(&mut self.room.news);
        self.has_changed(!news.is_empty());
        if news.iter().any(|it| matches!(it, PeerUpdate::Routers { .. })) {
            self.show(self.house.now());
        }
        for (place, batch) in batches(&news).enumerate() {
            if place > 0 {
                // Others on this thread have their turn, and on other threads the lock.
                tokio::task::yield_now().await;
            }
            let heard: Vec<ReceivedUpdate> = batch.iter().map(ReceivedUpdate::new).collect();
            self.house.on_some(heard.iter().map(|it| Event::Peers(it.update())));
        }
        news.clear();
        self.room.news = news;
    }

    /// Tells others what has changed, and asks what must be asked.
    fn flush(&mut self) {
        let now = self.house.now();
        self.flushed = now;
        if self.owed.hello && self.greeted.is_none_or(|it| now.since(it) >= HELLO) {
            self.owed.hello = false;
            self.greeted = Some(now);
            let hello = self.node.hello(now);
            self.send(hello);
        }
        self.fetch();
        let mut frames = std::mem::take(&mut self.room.frames);
        self.node.flush(now, &mut frames);
        self.has_changed(!frames.is_empty());
        frames.drain(..).for_each(|it| self.send(it));
        self.room.frames = frames;
        // A book is told over several.
        self.owed.flush = self.node.is_due(now);
    }

    /// Takes from the brain what others should know.
    fn fetch(&mut self) {
        let Room { outbox, links, .. } = &mut self.room;
        self.house.take_outbox(outbox);
        self.untold += outbox.dropped;
        exchange::publish(&mut self.node, outbox, links);
    }

    /// A sign of life, and all that is done twice a second.
    async fn beat(&mut self) {
        let now = self.house.now();
        self.node.serve(self.house.taken(), self.house.open());
        let beat = self.node.heartbeat(now);
        self.send(beat);
        if self.rhythm.beat(now) {
            self.node.tick(now, &mut self.room.news);
        }
        self.tell_brain().await;
        self.flush();
        self.leave_snapshot(now);
        self.sample();
        self.show(now);
    }

    fn has_changed(&mut self, changed: bool) {
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.changed |= changed;
        }
    }

    /// For those who will join, where there is a place for it.
    fn leave_snapshot(&mut self, now: Instant) {
        let due =
            |it: &&mut Snapshots| now.since(it.left) >= if it.changed { SNAPSHOT } else { SNAPSHOT_AGAIN };
        let Some(snapshots) = self.snapshots.as_mut().filter(due) else { return };
        *snapshots = Snapshots { left: now, changed: false };
        let frames = self.node.snapshot(now).into_iter().map(Bytes::from).collect();
        self.give(Outgoing::Snapshot(frames));
    }

    fn send(&mut self, frame: Vec<u8>) {
        self.give(Outgoing::Frame(Bytes::from(frame)));
    }

    fn give(&mut self, outgoing: Outgoing) {
        // Full, or closed because the transport has ended: either way nobody will have it.
        if self.line.outgoing.try_send(outgoing).is_err() {
            self.undelivered += 1;
        }
    }

    /// Takes down what everybody has taken.
    fn sample(&mut self) {
        let live = self.node.peers().filter(|it| it.state == PeerState::Live);
        let mut counts: Vec<_> = live.map(|it| (it.id, it.incarnation, it.served)).collect();
        counts.push((self.seen.id(), self.seen.incarnation, self.house.taken()));
        self.shares.sample(&counts);
    }

    fn show(&self, now: Instant) {
        let own = Router {
            name: self.seen.name.clone(),
            is_self: true,
            standing: PeerState::Live,
            lag: None,
            heard: now,
            served: self.house.taken(),
            open: self.house.open(),
            share: self.shares.of(self.seen.id()),
            incarnation: self.seen.incarnation,
        };
        let mut routers: Vec<Router> =
            self.node.peers().map(|it| Router::of(it, self.shares.of(it.id))).collect();
        routers.sort_by(|one, other| one.name.cmp(&other.name));
        routers.insert(0, own);
        self.seen.show(Shown {
            routers,
            warm: self.node.is_synced(),
            numbers: self.node.stats(),
            refused: self.refusals.counts(),
            trouble: self.refusals.trouble(now).map(str::to_owned),
            undelivered: self.undelivered,
            untold: self.untold,
        });
    }

    /// Ready, as far as the others go: once they have told what they know, or have had the time for it.
    fn look_whether_joined(&mut self) {
        let took = self.house.now().since(self.started);
        let warm = self.node.is_synced();
        if !self.seen.is_joining() || !warm && took < self.wait {
            return;
        }
        self.seen.has_joined();
        let routers = live(&self.node);
        let (others, took_ms) = (routers.len(), took.as_millis() as u64);
        let numbers = self.node.stats();
        let (routers, rows, pages) = (routers.join(" "), numbers.rows, numbers.segments);
        match (others, warm) {
            (0, _) => info!(took_ms, "no other router was heard; carrying on alone until one is"),
            (_, true) => info!(routers, rows, pages, took_ms, "joined the other routers"),
            (_, false) => {
                warn!(
                    routers,
                    rows, pages, took_ms, "other routers have not told all they know; ready all the same"
                );
            }
        }
        self.show(self.house.now());
    }

    /// The transport has ended, which it should not while we are here: what others promised must not stay for ever.
    async fn carry_on_alone(mut self) {
        warn!("the connection to other routers has ended; carrying on alone");
        let now = self.house.now();
        self.node.tick(now + SILENCE_MAX, &mut self.room.news);
        self.tell_brain().await;
        self.show(now);
        self.seen.has_joined();
    }

    /// The last word: nothing that we promised is there any more. What we knew of caches is left for whoever comes when all are gone.
    async fn bye(mut self) {
        let now = self.house.now();
        self.flush();
        let kept = self.snapshots.is_some().then(|| self.node.snapshot(now));
        let bye = self.node.leave();
        let Transport { outgoing, mut incoming, .. } = self.line;
        if let Some(frames) = kept {
            let _ = outgoing.send(Outgoing::Snapshot(frames.into_iter().map(Bytes::from).collect())).await;
        }
        let _ = outgoing.send(Outgoing::Frame(Bytes::from(bye))).await;
        // Only this end, until the transport has sent all it was given: it stops at once when nobody listens any more.
        drop(outgoing);
        while incoming.recv().await.is_some() {}
        info!("took leave of the other routers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_suspended_spares_others_once_and_who_is_always_late_does_not_for_ever() {
        let mut rhythm = Rhythm { last: Instant::ZERO, spared: 0 };
        let mut beats = |millis: &[u64]| -> Vec<bool> {
            millis.iter().map(|&it| rhythm.beat(Instant::from_millis(it))).collect()
        };
        assert_eq!(beats(&[500, 1_000, 1_999]), [true; 3]);
        assert_eq!(beats(&[20_000, 20_500, 21_000]), [false, true, true]);
        assert_eq!(beats(&[23_000, 25_000, 27_000, 29_000]), [false, true, false, true]);
    }
}

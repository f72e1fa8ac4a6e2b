//! What routers tell each other, in virtual time: the router's own rows and frames, with a post between them that takes
//! its time and loses nothing.
//!
//! Left out: what it costs a router to speak and to listen, and everything that can fail.

use std::rc::Rc;
use std::time::Duration;

use maitre_base::Instant;
use maitre_base::hash::NumberMap;
use maitre_cluster::{self as cluster, Incarnation, Node, PeerUpdate};
use maitre_cluster::{FLUSH, HEARTBEAT, SILENCE_MAX};
use maitre_dispatch::Event;
use maitre_dispatch::peers::{Outbox, exchange};

use super::settings::Via;
use super::{Happens, Lab, Settings};

/// What routers told each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Talk {
    /// As they were told: once each, however many heard them.
    pub frames: u64,
    pub bytes: u64,
}

/// The routers' places among each other, and what is on its way between them.
#[derive(Default)]
pub(super) struct Post {
    /// By router; empty if they do not talk.
    sim_routers: Vec<SimRouter>,
    letters: NumberMap<Letter>,
    next: u64,
    pub(super) talk: Talk,
    // Scratch.
    outbox: Outbox,
    links: Vec<u64>,
    frames: Vec<Vec<u8>>,
    news: Vec<PeerUpdate>,
}

struct SimRouter {
    node: Node,
    /// When it last told the others something, and whether it will again.
    flushed: Option<Instant>,
    is_due: bool,
    served: u64,
}

struct Letter {
    frame: Rc<[u8]>,
    /// How many have not read it yet.
    readers: usize,
}

impl Post {
    pub(super) fn new(settings: &Settings) -> Post {
        let talkers = settings.sync.map_or(0, |_| settings.routers.max(1));
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
        Post { sim_routers: (0..talkers).map(sim_router).collect(), ..Post::default() }
    }
}

impl Lab<'_> {
    pub(super) fn say_hello(&mut self) {
        for router in 0..self.post.sim_routers.len() {
            let hello = self.post.sim_routers[router].node.hello(Instant::ZERO);
            self.send(Instant::ZERO, router, &hello);
            self.foresee(Instant::ZERO + HEARTBEAT, Happens::Beat { router });
        }
    }

    /// A router that has something to tell will, when it is time.
    pub(super) fn foresee_flush(&mut self, now: Instant, router: usize) {
        let Some(sim_router) = self.post.sim_routers.get_mut(router) else { return };
        if sim_router.is_due || !self.routers[router].has_outbox() {
            return;
        }
        let pause = match self.settings.sync {
            Some(sync) if sync.via == Via::Redis => sync.delay.max(FLUSH),
            _ => FLUSH,
        };
        sim_router.is_due = true;
        let at = sim_router.flushed.map_or(now, |it| (it + pause).max(now));
        self.foresee(at, Happens::Flush { router });
    }

    pub(super) fn flush(&mut self, now: Instant, router: usize) {
        let Post { sim_routers, outbox, links, frames, .. } = &mut self.post;
        let sim_router = &mut sim_routers[router];
        (sim_router.flushed, sim_router.is_due) = (Some(now), false);
        self.routers[router].take_outbox(outbox);
        exchange::publish(&mut sim_router.node, outbox, links);
        let mut frames = std::mem::take(frames);
        sim_router.node.flush(now, &mut frames);
        for frame in frames.drain(..) {
            self.send(now, router, &frame);
        }
        self.post.frames = frames;
    }

    pub(super) fn beat(&mut self, now: Instant, router: usize) {
        let mut news = std::mem::take(&mut self.post.news);
        let sim_router = &mut self.post.sim_routers[router];
        let open = self.open.values().filter(|it| it.router == router).count();
        sim_router.node.serve(sim_router.served, open as u32);
        let beat = sim_router.node.heartbeat(now);
        sim_router.node.tick(now, &mut news);
        self.send(now, router, &beat);
        self.tell_news(now, router, &mut news);
        self.post.news = news;
        // What others asked for goes out even when there is nothing else to tell.
        self.flush(now, router);
        self.foresee_again(now, HEARTBEAT, Happens::Beat { router });
    }

    pub(super) fn hear(&mut self, now: Instant, router: usize, letter: u64) {
        let Some(kept) = self.post.letters.get_mut(&letter) else { return };
        kept.readers -= 1;
        let (frame, is_last) = (kept.frame.clone(), kept.readers == 0);
        if is_last {
            self.post.letters.remove(&letter);
        }
        let mut news = std::mem::take(&mut self.post.news);
        let heard = self.post.sim_routers[router].node.receive(now, &frame, &mut news);
        debug_assert!(heard.is_ok(), "a router of the same version makes sense: {heard:?}");
        self.tell_news(now, router, &mut news);
        self.post.news = news;
    }

    pub(super) fn count_served(&mut self, router: usize) {
        if let Some(sim_router) = self.post.sim_routers.get_mut(router) {
            sim_router.served += 1;
        }
    }

    fn tell_news(&mut self, now: Instant, router: usize, news: &mut Vec<PeerUpdate>) {
        for news in news.drain(..) {
            let heard = exchange::ReceivedUpdate::new(&news);
            self.tell(router, now, Event::Peers(heard.update()));
        }
    }

    fn send(&mut self, now: Instant, from: usize, frame: &[u8]) {
        let others = self.post.sim_routers.len() - 1;
        let Some(sync) = self.settings.sync.filter(|_| others > 0) else { return };
        self.post.talk.frames += 1;
        self.post.talk.bytes += frame.len() as u64;
        let letter = self.post.next;
        self.post.next += 1;
        self.post.letters.insert(letter, Letter { frame: frame.into(), readers: others });
        for router in (0..self.post.sim_routers.len()).filter(|&it| it != from) {
            self.foresee(now + delay(sync.delay), Happens::Letter { router, letter });
        }
    }
}

/// Nothing is heard in the moment in which it is said.
fn delay(delay: Duration) -> Duration {
    delay.max(Duration::from_nanos(1))
}

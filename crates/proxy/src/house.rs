//! What all threads share: the brain behind its lock, the links to workers, the numbers, the door.
//!
//! A decision takes a few microseconds and nothing waits while it holds the lock, so a mutex serves
//! better than a task with a queue: no hop, no wake-up, and answers in order.
//!
//! Whatever happens may give a placement to somebody who waits. Who is to be told is found under the lock; the telling,
//! and all else the brain wants done, comes after it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use maitre_base::{Instant, RequestId, WorkerId};
use maitre_dispatch::observer;
use maitre_dispatch::peers::Outbox;
use maitre_dispatch::{Arrival, Brain, Effect, Event, Refusal};
use maitre_fleet::{HealthChange, HealthState};
use maitre_net::worker_url::WorkerUrl;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::cluster::Seen;
use crate::decision::{Decision, Waiter, Waiters};
use crate::ids::Ids;
use crate::link::{self, Link};
use crate::metrics::Metrics;
use crate::reading::{Asks, Tokenizers};
use crate::recent::Recent;
use crate::record::{NotRecorded, Recorder};
use crate::roster::Source;
use crate::settings::Settings;
use crate::tls::Tls;
use crate::traces::Traces;

pub(crate) struct RouterState {
    /// What the operator wants, as of the last reload.
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) recent: Recent,
    pub(crate) ids: Ids,
    /// Where workers are found, as far as we were told.
    pub(crate) sources: Mutex<Vec<Source>>,
    pub(crate) tokenizers: Tokenizers,
    pub(crate) asks: Asks,
    pub(crate) tls: Tls,
    /// None: nothing is traced.
    pub(crate) traces: Option<Traces>,
    /// None: nothing is taken down.
    pub(crate) recorder: Option<Recorder>,
    /// None: we are the only router, as far as we were told.
    pub(crate) cluster: Option<Arc<Seen>>,
    mind: Mutex<SharedBrain>,
    /// Requests that were called back and have not noticed: read without the lock, for there mostly are none.
    recalls: AtomicUsize,
    /// By worker number, as in the brain.
    links: RwLock<Vec<Option<Arc<Link>>>>,
    /// The serial of the next link.
    serials: AtomicU64,
    requests: AtomicU64,
    /// Keeps the request ids of two routers, or of two runs, apart.
    pub(crate) salt: u64,
    /// Bytes of request bodies held now.
    bodies: AtomicU64,
    /// Told whenever a belief about a worker may have changed.
    changed: Notify,
    /// Told when a tick is wanted before the one that is due.
    pub(crate) hurry: Notify,
    /// Set when we want no new connections.
    pub(crate) closing: CancellationToken,
    /// Set when we are not to be sent new requests: earlier than `closing`, by the grace.
    pub(crate) leaving: CancellationToken,
}

impl RouterState {
    pub(crate) fn new(
        mut settings: Settings,
        tokenizers: Tokenizers,
        tls: Tls,
        traces: Option<Traces>,
    ) -> Result<RouterState, NotRecorded> {
        let (clock, metrics) = (Clock::start(), Metrics::new(&settings.brain.queue.classes));
        let recorder = Recorder::start(&settings, clock, metrics.record.clone())?;
        settings.brain.reads_all |= recorder.is_some();
        settings.brain.shares = settings.cluster.is_some();
        let cluster = settings.cluster.as_ref().map(|it| Arc::new(Seen::new(it, clock.unix_ms())));
        Ok(RouterState {
            cluster,
            tokenizers,
            asks: Asks::default(),
            tls,
            traces,
            recorder,
            clock,
            metrics,
            recent: Recent::default(),
            ids: Ids::default(),
            sources: Mutex::new(Vec::new()),
            mind: Mutex::new(SharedBrain::new(Brain::new(settings.brain.clone()))),
            recalls: AtomicUsize::new(0),
            links: RwLock::new(Vec::new()),
            serials: AtomicU64::new(0),
            requests: AtomicU64::new(1),
            salt: RandomState::new().build_hasher().finish(),
            bodies: AtomicU64::new(0),
            changed: Notify::new(),
            hurry: Notify::new(),
            closing: CancellationToken::new(),
            leaving: CancellationToken::new(),
            settings: ArcSwap::from_pointee(settings),
        })
    }

    /// The settings of this moment; whoever needs them to stay as they are keeps a copy of its own, as a visit does.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn link(&self, worker: WorkerId) -> Option<Arc<Link>> {
        self.links.read().get(worker.index())?.clone()
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.links.read().iter().flatten().cloned().collect()
    }

    /// Takes a worker in, and makes the link to it; the caller watches it.
    pub(crate) fn join(&self, worker: &WorkerUrl, rank: Option<u32>) -> Option<Arc<Link>> {
        // Locked around both, so that no request is seated where there is no link yet.
        let mut links = self.links.write();
        let mut mind = self.mind.lock();
        mind.on(self.now(), Event::WorkerJoined { url: &link::url(worker, rank) });
        let joined = mind.effects.iter().find_map(|it| match it {
            Effect::Watch { worker } => Some(*worker),
            _ => None,
        });
        let link = joined.map(|id| {
            let serial = self.serials.fetch_add(1, Ordering::Relaxed);
            let link = Arc::new(Link::new(id, serial, worker, rank));
            let places = links.len().max(id.index() + 1);
            links.resize(places, None);
            links[id.index()] = Some(link.clone());
            link
        });
        drop(links);
        self.carry_out(mind, None);
        link
    }

    /// Lets a worker go, and whoever watches it. What is under way there ends as it may.
    pub(crate) fn leave(&self, link: &Link) {
        // Locked around both, as when it joined: once the brain has let its number go it may be another's, whose link
        // must not be taken for this one.
        let mut links = self.links.write();
        let mut mind = self.mind.lock();
        mind.on(self.now(), Event::WorkerGone { worker: link.worker });
        if let Some(place) = links.get_mut(link.worker.index()) {
            place.take_if(|it| it.serial == link.serial);
        }
        drop(links);
        link.gone.cancel();
        self.carry_out(mind, None);
        self.changed.notify_waiters();
    }

    /// Takes room for a request's body; none if there is not enough.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let bytes = bytes as u64;
        let held = self.bodies.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let held_now = Held { house: self.clone(), bytes };
        (held <= self.settings().limits.bodies_bytes as u64).then_some(held_now)
    }

    /// Goes by other settings from now on; or changes nothing, and says why not.
    pub(crate) fn reconfigure(&self, mut settings: Settings) -> Result<(), String> {
        settings.brain.reads_all |= self.recorder.is_some();
        settings.brain.shares = self.cluster.is_some();
        let mut guard = self.mind.lock();
        let mind = &mut *guard;
        let brain = settings.brain.clone();
        mind.brain.reconfigure(self.now(), brain, &mut mind.effects).map_err(|error| error.to_string())?;
        self.settings.store(Arc::new(settings));
        self.carry_out(guard, None);
        self.changed.notify_waiters();
        Ok(())
    }

    /// What would be done with a request that came now; it is not done.
    pub(crate) fn consider(&self, arrival: &Arrival<'_>) -> Result<observer::decision::Decision, Refusal> {
        let now = self.now();
        self.mind.lock().brain.explain(now, arrival)
    }

    /// What a scraper of `/metrics` sees.
    pub(crate) fn metrics_page(&self) -> String {
        self.metrics.process.look();
        self.metrics.page(|metrics| {
            self.look(|brain| {
                metrics.gather(self.now(), brain);
                self.cluster.iter().for_each(|it| metrics.gather_routers(it, brain));
            });
        })
    }

    /// Looks at the brain; for reports, not for decisions.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Brain) -> T) -> T {
        look(&self.mind.lock().brain)
    }

    /// Waits until the brain is as wanted.
    pub(crate) async fn until(&self, wanted: impl Fn(&Brain) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Listens before it looks, so that no change falls between.
            changed.as_mut().enable();
            if self.look(&wanted) {
                return;
            }
            changed.await;
        }
    }

    /// Tells the brain what happened. The decision, if the event asked for one; whoever else it decided about is
    /// told of it.
    pub(crate) fn on(&self, event: Event<'_>) -> Decision {
        let now = self.now();
        let mut mind = self.mind.lock();
        mind.on(now, event);
        self.changed.notify_waiters();
        let own = asks(&event);
        match mind.effects.as_slice() {
            // The common case: nothing but the decision, and nothing to do after unlocking.
            [Effect::Place(placement)] if own == Some(placement.request) && mind.waiters.recalls() == 0 => {
                let placement = *placement;
                mind.effects.clear();
                self.hurry(&mut mind);
                Decision::Placed(placement)
            }
            [] if mind.waiters.recalls() == 0 => {
                self.hurry(&mut mind);
                Decision::Nothing
            }
            _ => self.carry_out(mind, own),
        }
    }

    /// Tells the brain of several things at once, none of which asks for anything; how many there were.
    pub(crate) fn on_some<'a>(&self, events: impl Iterator<Item = Event<'a>>) -> usize {
        let now = self.now();
        let mut mind = self.mind.lock();
        let mut count = 0;
        for event in events {
            mind.on(now, event);
            count += 1;
        }
        if mind.effects.is_empty() {
            self.hurry(&mut mind);
            drop(mind);
        } else {
            self.carry_out(mind, None);
        }
        self.changed.notify_waiters();
        count
    }

    /// Takes notice that a seated request was called back. Its attempt is over, whatever has come of it: the brain has
    /// it in line.
    pub(crate) fn take_recalled(&self, request: RequestId) -> Option<Waiter> {
        if self.recalls.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut mind = self.mind.lock();
        let waiter = mind.waiters.take_recalled(request);
        self.recalls.store(mind.waiters.recalls(), Ordering::Release);
        waiter
    }

    /// How long after the `last` tick the next one is due, from now: `usual` at most, and `pause` at least, however
    /// urgent the brain finds it.
    pub(crate) fn tick_in(&self, last: Instant, usual: Duration, pause: Duration) -> Duration {
        let mut mind = self.mind.lock();
        let usual = last + usual;
        mind.tick_at = mind.brain.due().map_or(usual, |it| it.min(usual));
        mind.tick_at.max(last + pause).since(self.now())
    }

    /// Whether other routers have yet to tell us what they know, and there is still time for it.
    pub(crate) fn is_joining(&self) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.is_joining())
    }

    /// Requests that have come since the start, whatever became of them.
    pub(crate) fn taken(&self) -> u64 {
        self.requests.load(Ordering::Relaxed) - 1
    }

    /// Those of them that have not ended.
    pub(crate) fn open(&self) -> u32 {
        u32::try_from(self.metrics.open.get()).unwrap_or(0)
    }

    /// Takes what other routers should be told; `outbox` are empty, and their room is used.
    pub(crate) fn take_outbox(&self, outbox: &mut Outbox) {
        let mut mind = self.mind.lock();
        mind.roused = false;
        mind.brain.take_outbox(outbox);
    }

    /// Tells whoever ticks if the brain wants it sooner than was said, and whoever tells other routers if it has
    /// something for them. Called after every event.
    fn hurry(&self, mind: &mut SharedBrain) {
        if !mind.roused
            && mind.brain.has_outbox()
            && let Some(cluster) = &self.cluster
        {
            mind.roused = true;
            cluster.rouse();
        }
        if let Some(due) = mind.brain.due().filter(|&it| it < mind.tick_at) {
            mind.tick_at = due;
            self.hurry.notify_one();
        }
    }

    /// Does what the brain wants done; the decision about `own`, if there is one.
    fn carry_out(&self, mut guard: MutexGuard<'_, SharedBrain>, own: Option<RequestId>) -> Decision {
        let mind = &mut *guard;
        let effects = std::mem::take(&mut mind.effects);
        let (mut decision, mut told) = (Decision::Nothing, Vec::new());
        for effect in &effects {
            let (request, decided) = match *effect {
                Effect::Place(placement) => (placement.request, Ok(placement)),
                Effect::Refuse { request, refusal } => (request, Err(refusal)),
                Effect::Wait { request } if own == Some(request) => {
                    decision = Decision::Wait(mind.waiters.wait(request));
                    continue;
                }
                Effect::Recall { request, .. } => {
                    mind.waiters.recall(request);
                    continue;
                }
                _ => continue,
            };
            if own == Some(request) {
                mind.waiters.forget(request);
                decision = decided.into();
            } else {
                // One whose client has left may not be there; the end of its visit is on its way to the brain.
                told.extend(mind.waiters.take(request).map(|teller| (teller, decided)));
            }
        }
        // An attempt that failed as it was called back: the brain has it in line already, and makes nothing of it.
        if let (Decision::Nothing, Some(waiter)) =
            (&decision, own.and_then(|it| mind.waiters.take_recalled(it)))
        {
            decision = Decision::Wait(waiter);
        }
        self.recalls.store(mind.waiters.recalls(), Ordering::Release);
        self.hurry(mind);
        drop(guard);
        for (teller, decided) in told {
            let _ = teller.send(decided);
        }
        effects.into_iter().for_each(|it| self.carry_out_one(it));
        decision
    }

    /// What has nothing to do with who waits.
    fn carry_out_one(&self, effect: Effect) {
        match effect {
            Effect::Changed(change) => self.announce(change),
            Effect::Probe { worker } => drop(self.link(worker).map(|it| it.probe.notify_one())),
            Effect::Recall { worker, .. } => {
                self.metrics.queue.recalls.inc();
                if let Some(link) = self.link(worker) {
                    link.call_back();
                }
            }
            // Whoever adds a worker makes its link and watches it, and whoever lets it go takes the link away; who waits
            // has been told.
            Effect::Watch { .. } | Effect::Forget { .. } => {}
            Effect::Place(_) | Effect::Wait { .. } | Effect::Refuse { .. } => {}
        }
    }

    fn announce(&self, change: HealthChange) {
        let Some(link) = self.link(change.worker) else { return };
        let (worker, from, to) = (&link.url, change.from.name(), change.to.name());
        if change.to.is_out() {
            link.take_out();
        }
        match change.to {
            HealthState::Ejected { .. } | HealthState::Suspect { .. } => {
                warn!(%worker, from, to, "worker is unwell")
            }
            _ => info!(%worker, from, to, "worker is well"),
        }
    }
}

/// The brain, and who waits for a word of it: behind one lock, so that nothing falls between the two.
struct SharedBrain {
    brain: Brain,
    /// Kept from event to event, so that a decision allocates nothing.
    effects: Vec<Effect>,
    waiters: Waiters,
    /// When the next tick is due, as whoever ticks knows it.
    tick_at: Instant,
    /// Whoever tells other routers knows that there is something to tell, and has not taken it yet.
    roused: bool,
}

impl SharedBrain {
    fn new(brain: Brain) -> SharedBrain {
        SharedBrain {
            brain,
            effects: Vec::new(),
            waiters: Waiters::default(),
            tick_at: Instant::ZERO,
            roused: false,
        }
    }

    fn on(&mut self, now: Instant, event: Event<'_>) {
        self.brain.on(now, event, &mut self.effects);
        match event {
            Event::Finished { request, .. }
            | Event::Declined { request }
            | Event::BrokeOff { request }
            | Event::Left { request } => self.waiters.forget(request),
            // Called back as its answer began: too late, the client has it.
            Event::FirstToken { request, .. } if self.waiters.recalls() > 0 => self.waiters.forget(request),
            _ => {}
        }
    }
}

/// The request that an event asks for a decision about.
fn asks(event: &Event<'_>) -> Option<RequestId> {
    match event {
        Event::Arrived(arrival) => Some(arrival.request),
        Event::Failed { request, .. } => Some(*request),
        _ => None,
    }
}

/// Room taken for a request's body, given back when dropped.
pub(crate) struct Held {
    house: Arc<RouterState>,
    bytes: u64,
}

impl Held {
    /// Takes room for a body that has grown to `bytes`; false if there is not enough.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        self.bytes += more;
        let held = self.house.bodies.fetch_add(more, Ordering::Relaxed) + more;
        more == 0 || held <= self.house.settings().limits.bodies_bytes as u64
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.house.bodies.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

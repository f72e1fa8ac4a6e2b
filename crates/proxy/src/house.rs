//! What all threads share: the brain behind its lock, the links to workers, the numbers, the door.
//!
//! A decision takes a few microseconds and nothing waits while it holds the lock, so a mutex serves
//! better than a task with a queue: no hop, no wake-up, and answers in order.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_dispatch::{Brain, Effect, Event, Refusal, Seat};
use maitre_fleet::{Change, State};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::link::{self, Link};
use crate::metrics::Metrics;
use crate::reading::{Asks, Tokenizers};
use crate::record::{NotRecorded, Recorder};
use crate::settings::Settings;
use crate::worker::Worker;

pub(crate) struct House {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) tokenizers: Tokenizers,
    pub(crate) asks: Asks,
    /// None: nothing is taken down.
    pub(crate) recorder: Option<Recorder>,
    brain: Mutex<(Brain, Vec<Effect>)>,
    /// By worker number, as in the brain.
    links: RwLock<Vec<Option<Arc<Link>>>>,
    requests: AtomicU64,
    /// Keeps the request ids of two routers, or of two runs, apart.
    pub(crate) salt: u64,
    /// Bytes of request bodies held now.
    bodies: AtomicU64,
    /// Told whenever a belief about a worker may have changed.
    changed: Notify,
    /// Set when we want no new connections.
    pub(crate) closing: CancellationToken,
    /// Set when we are not to be sent new requests: earlier than `closing`, by the grace.
    pub(crate) leaving: CancellationToken,
}

impl House {
    pub(crate) fn new(mut settings: Settings, tokenizers: Tokenizers) -> Result<House, NotRecorded> {
        let (clock, metrics) = (Clock::start(), Metrics::new());
        let recorder = Recorder::start(&settings.record, clock, metrics.record.clone())?;
        settings.brain.reads_all |= recorder.is_some();
        Ok(House {
            tokenizers,
            asks: Asks::default(),
            recorder,
            clock,
            metrics,
            brain: Mutex::new((Brain::new(settings.brain.clone()), Vec::new())),
            links: RwLock::new(Vec::new()),
            requests: AtomicU64::new(1),
            salt: RandomState::new().build_hasher().finish(),
            bodies: AtomicU64::new(0),
            changed: Notify::new(),
            closing: CancellationToken::new(),
            leaving: CancellationToken::new(),
            settings,
        })
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
    pub(crate) fn join(&self, worker: &Worker, rank: Option<u32>) -> Option<Arc<Link>> {
        // Locked around both, so that no request is seated where there is no link yet.
        let mut links = self.links.write();
        let (brain, effects) = &mut *self.brain.lock();
        brain.on(self.now(), Event::WorkerJoined { url: &link::url(worker, rank) }, effects);
        for effect in effects.drain(..) {
            if let Effect::Watch { worker: id } = effect {
                let link = Arc::new(Link::new(id, worker, rank));
                let places = links.len().max(id.index() + 1);
                links.resize(places, None);
                links[id.index()] = Some(link.clone());
                return Some(link);
            }
        }
        None
    }

    /// Takes room for a request's body; none if there is not enough.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let bytes = bytes as u64;
        let held = self.bodies.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let held_now = Held { house: self.clone(), bytes };
        (held <= self.settings.limits.bodies_bytes as u64).then_some(held_now)
    }

    /// Looks at the brain; for reports, not for decisions.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Brain) -> T) -> T {
        look(&self.brain.lock().0)
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

    /// Tells the brain what happened. The decision, if the event asked for one.
    pub(crate) fn on(&self, event: Event<'_>) -> Option<Result<Seat, Refusal>> {
        let now = self.now();
        let mut guard = self.brain.lock();
        let (brain, effects) = &mut *guard;
        brain.on(now, event, effects);
        self.changed.notify_waiters();
        match effects.as_slice() {
            [] => None,
            // The common case: nothing but the decision, and nothing to do after unlocking.
            [Effect::Seat(seat)] => {
                let seat = *seat;
                effects.clear();
                Some(Ok(seat))
            }
            _ => self.carry_out(guard),
        }
    }

    /// Tells the brain of several things at once, none of which asks for anything; how many there were.
    pub(crate) fn on_some<'a>(&self, events: impl Iterator<Item = Event<'a>>) -> usize {
        let now = self.now();
        let mut guard = self.brain.lock();
        let (brain, effects) = &mut *guard;
        let mut count = 0;
        for event in events {
            brain.on(now, event, effects);
            count += 1;
        }
        debug_assert!(effects.is_empty(), "an effect nobody carries out");
        drop(guard);
        self.changed.notify_waiters();
        count
    }

    fn carry_out(&self, mut guard: MutexGuard<'_, (Brain, Vec<Effect>)>) -> Option<Result<Seat, Refusal>> {
        let effects = std::mem::take(&mut guard.1);
        drop(guard);
        let mut decision = None;
        for effect in effects {
            match effect {
                Effect::Seat(seat) => decision = Some(Ok(seat)),
                Effect::Refuse { refusal, .. } => decision = Some(Err(refusal)),
                Effect::Changed(change) => self.announce(change),
                Effect::Probe { worker } => drop(self.link(worker).map(|it| it.probe.notify_one())),
                Effect::Forget { worker } => self.forget(worker),
                // Whoever adds a worker makes its link and watches it.
                Effect::Watch { .. } => {}
                Effect::Wait { .. } | Effect::Recall { .. } => {}
            }
        }
        decision
    }

    fn forget(&self, worker: WorkerId) {
        let link = self.links.write().get_mut(worker.index()).and_then(Option::take);
        if let Some(link) = link {
            link.gone.cancel();
        }
    }

    fn announce(&self, change: Change) {
        let Some(link) = self.link(change.worker) else { return };
        let (worker, from, to) = (&link.url, change.from.name(), change.to.name());
        if change.to.is_out() {
            link.take_out();
        }
        match change.to {
            State::Ejected { .. } | State::Suspect { .. } => warn!(%worker, from, to, "worker is unwell"),
            _ => info!(%worker, from, to, "worker is well"),
        }
    }
}

/// Room taken for a request's body, given back when dropped.
pub(crate) struct Held {
    house: Arc<House>,
    bytes: u64,
}

impl Held {
    /// Takes room for a body that has grown to `bytes`; false if there is not enough.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = (bytes as u64).saturating_sub(self.bytes);
        self.bytes += more;
        let held = self.house.bodies.fetch_add(more, Ordering::Relaxed) + more;
        more == 0 || held <= self.house.settings.limits.bodies_bytes as u64
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.house.bodies.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

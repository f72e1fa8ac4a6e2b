//! The brain behind its lock, with everything that must change together with it: the requests that wait for a
//! decision, the links to workers, and the notifications.
//!
//! A decision takes a few microseconds and nothing blocks while it holds the lock. So a mutex serves better than a task
//! with a queue: no hop, no wake-up, and answers in order. A prompt is looked up in the index and the workers are priced before
//! the lock is taken, and what follows from a decision is written there after it is released.
//!
//! Any event may place a request that waits. The waiters to notify are collected under the lock; they are notified, and
//! the brain's other effects are applied, after it is released.

mod waiters;

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use maitre_base::spin::spin;
use maitre_base::{HandoffStyle, Instant, RequestId, Role, WorkerId};
use maitre_dispatch::cache::stores::StoreId;
use maitre_dispatch::observer::decision;
use maitre_dispatch::peers::Outbox;
use maitre_dispatch::{Arrival, Brain, BrainSettings, CacheIndex, Effect, Event, ReadPlan, Refusal, Scratch};
use maitre_fleet::{HealthChange, HealthState};
use maitre_net::worker_url::WorkerUrl;
use parking_lot::{Mutex, MutexGuard, RwLock};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::link::{self, Link};
use waiters::Waiters;
pub(crate) use waiters::{Decided, Decision, Waiter};

/// Between two ticks of the brain.
const TICK: Duration = Duration::from_millis(500);

/// The shortest time between two ticks, however early the brain asks for one: work that is due again at once must not
/// keep a core busy.
const TICK_PAUSE: Duration = Duration::from_millis(1);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(crate) struct SharedBrain {
    pub(crate) clock: Clock,
    locked: Mutex<Locked>,
    /// The brain's, with a lock of its own.
    cache: Arc<CacheIndex>,
    /// Requests that were recalled and have not noticed yet. Read without the lock, because there mostly are none.
    recalls: AtomicUsize,
    /// By worker number, as in the brain.
    links: RwLock<Vec<Option<Arc<Link>>>>,
    /// The styles of those that only prefill, or can be pulled from, as bits.
    kv_styles: AtomicU32,
    /// Names of stores, at the places of their ids.
    stores: Mutex<Vec<String>>,
    /// The serial of the next link.
    serials: AtomicU64,
    /// Notified whenever a belief about a worker may have changed.
    changed: Notify,
    /// How many wait for that. Mostly none do, and to find that out in `changed` takes its lock.
    watchers: AtomicUsize,
    /// Notified when the brain wants a tick before the one that is due.
    tick_early: Notify,
    notify: Notifications,
}

/// Where the brain reports what concerns other parts of the router.
pub(crate) struct Notifications {
    /// Notified when there is something to send to other routers. None: this router is alone.
    pub(crate) outbox: Option<Arc<Notify>>,
    /// Counts placed requests that were taken back into the queue.
    pub(crate) recalls: Counter,
}

/// What the lock protects: the brain, and the requests that wait for its decisions. One lock for both, so that no
/// decision misses its waiter.
struct Locked {
    brain: Brain,
    /// Kept from event to event, so that a decision allocates nothing.
    effects: Vec<Effect>,
    waiters: Waiters,
    /// When the next tick is due, as the ticking task knows it.
    tick_at: Instant,
    /// The outbox has been announced and not been taken since.
    outbox_announced: bool,
}

impl Locked {
    fn on(&mut self, now: Instant, event: Event<'_>, scratch: &mut Scratch) {
        self.brain.decide(now, event, scratch, &mut self.effects);
        match event {
            Event::Finished { request, .. }
            | Event::Declined { request }
            | Event::BrokeOff { request }
            | Event::Outpaced { request, .. }
            | Event::HandedOver { request, .. }
            | Event::Left { request }
            | Event::GivenUp { request } => self.waiters.forget(request),
            // Recalled while its first byte arrived: too late, the client has it.
            Event::FirstToken { request, .. } if self.waiters.recalls() > 0 => self.waiters.forget(request),
            _ => {}
        }
    }
}

impl SharedBrain {
    pub(crate) fn new(clock: Clock, settings: BrainSettings, notify: Notifications) -> SharedBrain {
        let brain = Brain::new(settings);
        SharedBrain {
            clock,
            cache: brain.cache_index().clone(),
            locked: Mutex::new(Locked {
                brain,
                effects: Vec::new(),
                waiters: Waiters::default(),
                tick_at: Instant::ZERO,
                outbox_announced: false,
            }),
            recalls: AtomicUsize::new(0),
            links: RwLock::new(Vec::new()),
            kv_styles: AtomicU32::new(0),
            stores: Mutex::default(),
            serials: AtomicU64::new(0),
            changed: Notify::new(),
            watchers: AtomicUsize::new(0),
            tick_early: Notify::new(),
            notify,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn link(&self, worker: WorkerId) -> Option<Arc<Link>> {
        self.links.read().get(worker.index())?.clone()
    }

    /// How many workers there are.
    pub(crate) fn workers(&self) -> usize {
        self.links.read().iter().flatten().count()
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.links.read().iter().flatten().cloned().collect()
    }

    fn note_kv_styles(&self, links: &[Option<Arc<Link>>]) {
        let mut styles = 0;
        for link in links.iter().flatten() {
            if link.role() == Role::Prefill {
                styles |= 1 << link.handoff_style() as u32;
            }
            // Pulls have the same limits as vLLM's other transfers.
            if link.pull.is_some() {
                styles |= 1 << HandoffStyle::NixlPull as u32;
            }
        }
        self.kv_styles.store(styles, Ordering::Relaxed);
    }

    /// The ways in which KV cache moves between workers, now.
    pub(crate) fn kv_styles(&self) -> impl Iterator<Item = HandoffStyle> {
        let styles = self.kv_styles.load(Ordering::Relaxed);
        HandoffStyle::ALL.into_iter().filter(move |&it| styles & 1 << it as u32 != 0)
    }

    /// What a worker's engine is, and does, has become known.
    pub(crate) fn engine_found(&self, link: &Link) {
        let links = self.links.read();
        self.note_kv_styles(&links);
        drop(links);
        let (worker, role, handoff) = (link.worker, link.role(), link.handoff());
        self.on(Event::WorkerHandoff { worker, handoff });
        self.on(Event::WorkerRole { worker, role });
    }

    /// The id of a store: that of its name, or one that no worker uses any more.
    fn store_id(&self, links: &[Option<Arc<Link>>], name: &str) -> StoreId {
        let mut stores = self.stores.lock();
        let is_used = |store: &str| links.iter().flatten().any(|it| it.store.as_deref() == Some(store));
        let known = stores.iter().position(|it| it == name);
        let place = known.or_else(|| stores.iter().position(|it| !is_used(it))).unwrap_or(stores.len());
        match stores.get_mut(place) {
            Some(store) => name.clone_into(store),
            None => stores.push(name.to_owned()),
        }
        StoreId(place as u32)
    }

    /// Adds a worker to the fleet and makes the link to it; the caller watches it.
    pub(crate) fn join(&self, worker: &WorkerUrl, rank: Option<u32>) -> Option<Arc<Link>> {
        // Both locks are held, so that no request is placed on a worker that has no link yet.
        let mut links = self.links.write();
        let mut locked = self.locked.lock();
        let url = link::url(worker, rank);
        SCRATCH.with_borrow_mut(|it| locked.on(self.now(), Event::WorkerJoined { url: &url }, it));
        let joined = locked.effects.iter().find_map(|it| match it {
            Effect::Watch { worker } => Some(*worker),
            _ => None,
        });
        let link = joined.map(|id| {
            let serial = self.serials.fetch_add(1, Ordering::Relaxed);
            let link = Arc::new(Link::new(id, serial, worker, rank));
            let length = links.len().max(id.index() + 1);
            links.resize(length, None);
            links[id.index()] = Some(link.clone());
            self.note_kv_styles(&links);
            let role = Event::WorkerRole { worker: id, role: link.role() };
            let handoff = Event::WorkerHandoff { worker: id, handoff: link.handoff() };
            let pulls = Event::WorkerPulls { worker: id, pulls: link.pull.is_some() };
            let store = link.store.as_ref().map(|it| self.store_id(&links, it));
            let store = Event::WorkerStore { worker: id, store };
            for event in [role, handoff, pulls, store] {
                SCRATCH.with_borrow_mut(|it| locked.on(self.now(), event, it));
            }
            if let Some(reuse) = link.chunks {
                let chunks = Event::WorkerReusesChunks { worker: id, reuse };
                SCRATCH.with_borrow_mut(|it| locked.on(self.now(), chunks, it));
            }
            link
        });
        drop(links);
        self.apply(locked, None);
        link
    }

    /// Removes a worker from the fleet and ends the task that watches it. Requests in flight there end as they may.
    pub(crate) fn leave(&self, link: &Link) {
        // Both locks are held: once the brain has released the worker's number another worker may get it, and that
        // one's link must not be removed here.
        let mut links = self.links.write();
        let mut locked = self.locked.lock();
        let gone = Event::WorkerGone { worker: link.worker };
        SCRATCH.with_borrow_mut(|it| locked.on(self.now(), gone, it));
        if let Some(slot) = links.get_mut(link.worker.index()) {
            slot.take_if(|it| it.serial == link.serial);
        }
        self.note_kv_styles(&links);
        drop(links);
        link.gone.cancel();
        self.apply(locked, None);
        self.notify_watchers();
    }

    /// Replaces the brain's settings and then calls `store`, under the lock; or changes nothing, and returns why.
    pub(crate) fn reconfigure(&self, settings: BrainSettings, store: impl FnOnce()) -> Result<(), String> {
        let mut guard = self.locked.lock();
        let locked = &mut *guard;
        let changed = locked.brain.reconfigure(self.now(), settings, &mut locked.effects);
        changed.map_err(|error| error.to_string())?;
        store();
        self.apply(guard, None);
        self.notify_watchers();
        Ok(())
    }

    /// The decision a request would get if it arrived now. Nothing changes.
    pub(crate) fn explain(&self, arrival: &Arrival<'_>) -> Result<decision::Decision, Refusal> {
        let now = self.now();
        self.locked.lock().brain.explain(now, arrival)
    }

    /// The workers that a placed request could go to next, best first.
    pub(crate) fn fallbacks(&self, request: RequestId, most: usize) -> Vec<WorkerId> {
        let now = self.now();
        self.locked.lock().brain.fallbacks(now, request, most)
    }

    /// Reads the brain; for reports, not for decisions.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Brain) -> T) -> T {
        let now = self.now();
        let brain = &mut self.locked.lock().brain;
        brain.collect_records(now);
        read(brain)
    }

    /// How to name the prompt of a request for this model; none if nothing uses it.
    pub(crate) fn plan(&self, model: Option<&str>) -> Option<ReadPlan> {
        self.lock().brain.plan(model)
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, condition: impl Fn(&Brain) -> bool) {
        let _watching = Watching::begin(&self.watchers);
        loop {
            let mut changed = pin!(self.changed.notified());
            // Registers before it reads, so that no change is missed in between.
            changed.as_mut().enable();
            if self.read(&condition) {
                return;
            }
            changed.await;
        }
    }

    /// Wakes those that wait for a change. One that has read the brain before this event was counted before it did, and the
    /// brain's lock orders the two.
    fn notify_watchers(&self) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Applies an event. Returns the decision, if the event asked for one; other requests that it decided about are
    /// notified.
    pub(crate) fn on(&self, event: Event<'_>) -> Decision {
        self.on_at(self.now(), event)
    }

    /// The same for an event of this moment.
    pub(crate) fn on_at(&self, now: Instant, event: Event<'_>) -> Decision {
        #[cfg(test)]
        let Some(event) = crate::planted::bend(event) else { return Decision::Nothing };
        let locked = SCRATCH.with_borrow_mut(|scratch| {
            if let Event::Arrived(arrival) = &event {
                scratch.prepare(&self.cache, now, arrival);
            }
            let mut locked = self.lock();
            locked.on(now, event, scratch);
            locked
        });
        self.decided(locked, asks(&event))
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        spin(|| self.locked.try_lock()).unwrap_or_else(|| self.locked.lock())
    }

    /// Applies what came of an event.
    fn decided(&self, mut locked: MutexGuard<'_, Locked>, own: Option<RequestId>) -> Decision {
        self.notify_watchers();
        let decision = match locked.effects.as_slice() {
            // The common case: nothing but the decision, and nothing to do after unlocking.
            [Effect::Place(placement)] if own == Some(placement.request) && locked.waiters.recalls() == 0 => {
                let placement = *placement;
                locked.effects.clear();
                Decision::Placed(placement)
            }
            [] if locked.waiters.recalls() == 0 => Decision::Nothing,
            _ => return self.apply(locked, own),
        };
        self.announce(&mut locked);
        drop(locked);
        self.finish();
        decision
    }

    /// What is left of a decision after the lock is released.
    fn finish(&self) {
        SCRATCH.with_borrow_mut(Scratch::finish);
        self.cache.write();
    }

    /// Applies several events under one lock, none of which asks for a decision. Returns how many there were.
    pub(crate) fn on_all<'a>(&self, events: impl Iterator<Item = Event<'a>>) -> usize {
        let now = self.now();
        let mut locked = self.lock();
        let mut count = 0;
        SCRATCH.with_borrow_mut(|scratch| {
            for event in events {
                locked.on(now, event, scratch);
                count += 1;
            }
        });
        if locked.effects.is_empty() {
            self.announce(&mut locked);
            drop(locked);
            self.finish();
        } else {
            self.apply(locked, None);
        }
        self.notify_watchers();
        count
    }

    /// Takes the waiter of a placed request that was recalled. Its attempt is over, whatever has come of it: the brain
    /// has put the request back into the queue.
    pub(crate) fn take_recalled(&self, request: RequestId) -> Option<Waiter> {
        if self.recalls.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut locked = self.locked.lock();
        let waiter = locked.waiters.take_recalled(request);
        self.recalls.store(locked.waiters.recalls(), Ordering::Release);
        waiter
    }

    /// Requests that wait for a decision, and those that were recalled and have not noticed yet.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        let locked = self.locked.lock();
        (locked.waiters.len(), locked.waiters.recalls())
    }

    /// Takes what other routers should receive. `outbox` is empty, and its memory is reused.
    pub(crate) fn take_outbox(&self, outbox: &mut Outbox) {
        let mut locked = self.locked.lock();
        locked.outbox_announced = false;
        locked.brain.take_outbox(outbox);
    }

    /// Ticks every `TICK`, and earlier when the brain asks for it, as when a deadline passes in the queue.
    pub(crate) async fn tick(&self) {
        loop {
            self.on(Event::Tick);
            let last = self.now();
            let mut is_due = false;
            while !is_due {
                is_due = tokio::select! {
                    biased;
                    () = sleep(self.next_tick(last)) => true,
                    () = self.tick_early.notified() => false,
                };
            }
        }
    }

    /// How long from now until the tick after the `last` one.
    fn next_tick(&self, last: Instant) -> Duration {
        let mut locked = self.locked.lock();
        let regular = last + TICK;
        locked.tick_at = locked.brain.due().map_or(regular, |it| it.min(regular));
        locked.tick_at.max(last + TICK_PAUSE).since(self.now())
    }

    /// Wakes the ticking task if the brain wants a tick sooner, and the cluster's task if there is something to send.
    /// Called after every event.
    fn announce(&self, locked: &mut Locked) {
        if !locked.outbox_announced
            && locked.brain.has_outbox()
            && let Some(outbox) = &self.notify.outbox
        {
            locked.outbox_announced = true;
            outbox.notify_one();
        }
        if let Some(due) = locked.brain.due().filter(|&it| it < locked.tick_at) {
            locked.tick_at = due;
            self.tick_early.notify_one();
        }
    }

    /// Applies the brain's effects. Returns the decision about `own`, if there is one.
    fn apply(&self, mut guard: MutexGuard<'_, Locked>, own: Option<RequestId>) -> Decision {
        let locked = &mut *guard;
        let effects = std::mem::take(&mut locked.effects);
        let (mut decision, mut decided_others) = (Decision::Nothing, Vec::new());
        for effect in &effects {
            let (request, decided) = match *effect {
                Effect::Place(placement) => (placement.request, Ok(placement)),
                Effect::Refuse { request, refusal } => (request, Err(refusal)),
                Effect::Wait { request } if own == Some(request) => {
                    decision = Decision::Wait(locked.waiters.wait(request));
                    continue;
                }
                Effect::Recall { request, .. } => {
                    locked.waiters.recall(request);
                    continue;
                }
                _ => continue,
            };
            if own == Some(request) {
                locked.waiters.forget(request);
                decision = decided.into();
            } else {
                // The waiter is missing if its client has disconnected; that event is on its way to the brain.
                decided_others.extend(locked.waiters.take(request).map(|sender| (sender, decided)));
            }
        }
        // The attempt failed while the request was recalled. The brain has it in the queue already and decides nothing.
        if let (Decision::Nothing, Some(waiter)) =
            (&decision, own.and_then(|it| locked.waiters.take_recalled(it)))
        {
            decision = Decision::Wait(waiter);
        }
        self.recalls.store(locked.waiters.recalls(), Ordering::Release);
        self.announce(locked);
        drop(guard);
        self.finish();
        #[cfg(test)]
        let decided_others = crate::planted::keep_woken(decided_others);
        for (sender, decided) in decided_others {
            let _ = sender.send(decided);
        }
        effects.into_iter().for_each(|it| self.apply_to_worker(it));
        decision
    }

    /// Effects on workers and their links.
    fn apply_to_worker(&self, effect: Effect) {
        match effect {
            Effect::Changed(change) => self.worker_changed(change),
            Effect::Probe { worker } => drop(self.link(worker).map(|it| it.probe.notify_one())),
            Effect::Recall { worker, .. } => {
                self.notify.recalls.inc();
                let link = self.link(worker);
                #[cfg(test)]
                let link = link.filter(|_| crate::planted::recalls());
                if let Some(link) = link {
                    link.recall();
                }
            }
            // `join` and `leave` make and remove the link; the roster starts the task that watches the worker.
            Effect::Watch { .. } | Effect::Forget { .. } => {}
            // The waiters have been notified.
            Effect::Place(_) | Effect::Wait { .. } | Effect::Refuse { .. } => {}
        }
    }

    fn worker_changed(&self, change: HealthChange) {
        let Some(link) = self.link(change.worker) else { return };
        let (worker, from, to) = (link.url.as_str(), change.from.name(), change.to.name());
        if change.to.is_out() {
            link.take_out();
        }
        match change.to {
            HealthState::Ejected { .. } | HealthState::Suspect { .. } => {
                let reason = link.last_failure();
                warn!(worker, from, to, "worker unhealthy: {reason}");
            }
            _ => info!(worker, from, to, "worker healthy"),
        }
    }
}

/// Counts one that waits for a change.
struct Watching<'a>(&'a AtomicUsize);

impl<'a> Watching<'a> {
    fn begin(watchers: &'a AtomicUsize) -> Watching<'a> {
        watchers.fetch_add(1, Ordering::Relaxed);
        Watching(watchers)
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The request that an event asks for a decision about.
fn asks(event: &Event<'_>) -> Option<RequestId> {
    match event {
        Event::Arrived(arrival) => Some(arrival.request),
        Event::Failed { request, .. } | Event::Interrupted { request, .. } | Event::Moved { request, .. } => {
            Some(*request)
        }
        Event::Second { number, .. } => Some(*number),
        _ => None,
    }
}

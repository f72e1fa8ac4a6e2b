//! Follows what one worker publishes of its cache, from connection to connection.
//!
//! The order of things is `maitre_index::feed`'s to know; here are the sockets it speaks of. One task a
//! worker reads its publisher, runs the replays the feed asks for, and tells the brain. A subscription that
//! breaks is made again at once, and then at a pace that spares an engine that is not there.

pub mod replay;
pub mod socket;

#[cfg(test)]
mod peers;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use maitre_base::{Instant, KvEvent};
use maitre_dialect::kv::{self, EventBatch, Groups};
use maitre_dispatch::Event;
use maitre_index::feed::{Action, Counts, Feed, Input, Numbered, REPLAY_WAIT, Replay, Trust};
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::house::RouterState;
use crate::link::Link;
use replay::{Batch, Bound, ReplayError};
use socket::{Message, Place, Subscriber};

/// Connecting and shaking hands.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to connect; doubles.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(5);
/// From the subscription to the first question. The publisher confirms nothing, and what it publishes before
/// it has read the subscription we hear of only by asking later.
const SETTLE: Duration = Duration::from_millis(100);
/// How long it may be quiet before we ask whether anything was lost; doubles while it stays so.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_MAX: Duration = Duration::from_secs(60);
/// Events told to the brain under one lock: about 50 µs, or requests would feel it.
const EVENTS_AT_ONCE: usize = 128;

/// Where a worker publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) events: (String, u16),
    pub(crate) replay: Option<(String, u16)>,
    /// The beginning of the topics wanted.
    pub(crate) topic: String,
}

/// Follows until dropped.
pub(crate) async fn follow(house: Arc<RouterState>, link: Arc<Link>, source: Source) {
    let offered = if source.replay.is_some() { Replay::Offered } else { Replay::Absent };
    let mut follower = Follower {
        house,
        link,
        source,
        feed: Feed::new(offered),
        groups: Groups::default(),
        batch: EventBatch::default(),
        told: (Trust::None, Counts::default()),
        replaying: None,
        is_rank_warned: false,
    };
    let mut pause = PAUSE;
    loop {
        match follower.connect().await {
            Ok(subscriber) => {
                let begun = follower.house.now();
                follower.listen(subscriber).await;
                // One that hangs up at once, again and again, is not asked in a loop.
                if follower.house.now().since(begun) > STEADY {
                    pause = PAUSE;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => {
                debug!(worker = follower.link.url, %error, "no KV events");
                // Nobody listens where it published: the process is gone. One that cannot be reached may be
                // there yet, but not for ever.
                if error.is_refused() || pause == PAUSE_MAX {
                    follower.on(Input::Gone).await;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

type Replaying = Pin<Box<dyn Future<Output = Result<Vec<Batch>, ReplayError>> + Send>>;

struct Follower {
    house: Arc<RouterState>,
    link: Arc<Link>,
    source: Source,
    feed: Feed<Bytes>,
    groups: Groups,
    batch: EventBatch,
    /// What the brain and the metrics were last told.
    told: (Trust, Counts),
    replaying: Option<(u64, Replaying)>,
    /// Whether the log has said that the port belongs to another rank.
    is_rank_warned: bool,
}

impl Follower {
    async fn connect(&mut self) -> Result<Subscriber, socket::Error> {
        let (host, port) = &self.source.events;
        let place = Place { host, port: *port };
        Subscriber::connect(place, self.source.topic.as_bytes(), PATIENCE).await
    }

    /// Until the connection ends.
    async fn listen(&mut self, mut subscriber: Subscriber) {
        info!(worker = self.link.url, port = self.source.events.1, "subscribed to KV events");
        sleep(SETTLE).await;
        self.on(Input::Connected).await;
        let mut quiet = QUIET;
        loop {
            let input = tokio::select! {
                message = subscriber.next() => match message.map(numbered) {
                    Ok(Some(batch)) => {
                        quiet = QUIET;
                        Input::Batch(batch)
                    }
                    // Whatever it was, its number will be missed.
                    Ok(None) => continue,
                    Err(error) => {
                        debug!(worker = self.link.url, %error, "KV events broke off");
                        break;
                    }
                },
                input = replayed(&mut self.replaying) => input,
                () = until(&self.house, self.feed.deadline()) => Input::Tick,
                () = sleep(quiet) => {
                    quiet = (quiet * 2).min(QUIET_MAX);
                    Input::Quiet
                }
            };
            self.on(input).await;
        }
        self.replaying = None;
        self.on(Input::Disconnected).await;
    }

    /// Not to be cancelled, or what was handed out is lost.
    async fn on(&mut self, input: Input<Bytes>) {
        self.feed.on(self.house.now(), input);
        while let Some(action) = self.feed.next_action(self.house.now()) {
            match action {
                Action::Apply(batch) => {
                    self.apply(&batch);
                    // A replay is ten thousand of them, and this thread has connections to accept and workers
                    // to probe.
                    yield_now().await;
                }
                Action::Clear => {
                    self.groups = Groups::default();
                    self.house.on(Event::CacheChanged { worker: self.link.worker, event: KvEvent::Cleared });
                }
                Action::AskReplay { id, from } => self.replaying = Some((id, self.replay(from))),
            }
        }
        self.tell();
    }

    fn replay(&self, from: u64) -> Replaying {
        let source = self.source.replay.clone();
        Box::pin(async move {
            let Some((host, port)) = source else { return Ok(Vec::new()) };
            replay::replay(Place { host: &host, port }, from, Bound::within(REPLAY_WAIT)).await
        })
    }

    fn apply(&mut self, batch: &Numbered<Bytes>) {
        if let Err(error) = kv::decode(&batch.payload, &mut self.groups, &mut self.batch) {
            warn!(worker = self.link.url, seq = batch.seq, %error, "KV events that cannot be read");
            return self.feed.on(self.house.now(), Input::Undecodable { seq: batch.seq });
        }
        if let (Some(rank), Some(published)) = (self.link.rank, self.batch.rank())
            && rank != published
        {
            self.warn_of_rank(rank, published);
            return self.feed.on(self.house.now(), Input::Undecodable { seq: batch.seq });
        }
        let worker = self.link.worker;
        let mut events = self.batch.events().map(|event| Event::CacheChanged { worker, event });
        while self.house.on_some(events.by_ref().take(EVENTS_AT_ONCE)) == EVENTS_AT_ONCE {}
        let sent = self.batch.unix_seconds();
        let lag = (self.house.clock.unix().as_secs_f64() - sent).max(0.0);
        self.house.metrics.caches.feeds.lag.get_or_create(&[("worker", self.link.url.clone())]).set(lag);
    }

    /// The port belongs to another rank of the engine, so its cache is not this worker's. The feed counts the batch as
    /// unreadable and applies nothing; the log names the first one only, for the operator has to change the URL.
    fn warn_of_rank(&mut self, rank: u32, published: u32) {
        if !std::mem::replace(&mut self.is_rank_warned, true) {
            let (worker, port) = (&self.link.url, self.source.events.1);
            warn!(
                worker,
                port, rank, published, "KV events of another rank; check events= in the worker's URL"
            );
        }
    }

    /// Tells the brain and the metrics what has changed.
    fn tell(&mut self) {
        let (trust, counts) = (self.feed.trust(), self.feed.counts());
        if trust != self.told.0 {
            info!(worker = self.link.url, from = self.told.0.name(), to = trust.name(), "trust in KV events");
            self.house.on(Event::TrustChanged { worker: self.link.worker, trust });
        }
        if counts != self.told.1 {
            self.house.metrics.caches.feeds.count(&self.link.url, &self.told.1, &counts);
        }
        self.told = (trust, counts);
    }
}

impl Drop for Follower {
    /// Nobody hears of the cache any more. Of a worker that has left nothing is known anyhow, and its number may be
    /// another's.
    fn drop(&mut self) {
        if self.link.gone.is_cancelled() {
            return;
        }
        let worker = self.link.worker;
        self.house.on(Event::CacheChanged { worker, event: KvEvent::Cleared });
        self.house.on(Event::TrustChanged { worker, trust: Trust::None });
    }
}

/// The parts of a published message; none if it is not one.
fn numbered(message: Message) -> Option<Numbered<Bytes>> {
    let [_, number, payload] = <[Bytes; 3]>::try_from(message).ok()?;
    let number: [u8; 8] = number.as_ref().try_into().ok()?;
    Some(Numbered::new(u64::from_be_bytes(number), payload))
}

/// The end of the present replay; never, if there is none. Cancelled, it goes on.
async fn replayed(replaying: &mut Option<(u64, Replaying)>) -> Input<Bytes> {
    let Some((id, replay)) = replaying else { return std::future::pending().await };
    let (id, outcome) = (*id, replay.await);
    *replaying = None;
    match outcome {
        Ok(batches) => {
            let numbered = batches.into_iter().map(|it| Numbered::new(it.sequence, it.payload));
            Input::Replayed { id, batches: numbered.collect() }
        }
        Err(error) => {
            debug!(%error, "replay failed");
            Input::ReplayFailed { id }
        }
    }
}

async fn until(house: &RouterState, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep(deadline.since(house.now())).await,
        None => std::future::pending().await,
    }
}

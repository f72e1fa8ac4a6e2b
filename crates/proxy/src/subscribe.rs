//! Follows the KV events of one worker, across reconnects.
//!
//! `maitre_index::feed` decides about order, gaps and replays; the sockets are here. One task for each worker reads its
//! publisher, runs the replays that the feed requests, and passes events to the brain. A subscription that breaks is
//! made again at once, and then with backoff.

mod log_budget;
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

use crate::brain::SharedBrain;
use crate::link::Link;
use crate::metrics::Metrics;
use log_budget::LogBudget;
use replay::{Bound, ReplayError, ReplayedBatch};
use socket::{Subscriber, ZmqAddress, ZmqMessage};

/// For connecting and the ZMTP handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to connect; doubles.
const PAUSE: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(5);
/// From the subscription to the first replay request. The publisher confirms nothing: what it publishes before it has
/// read the subscription is only visible in a later replay.
const SETTLE: Duration = Duration::from_millis(100);
/// How long the publisher may be quiet before we check for lost batches; doubles while it stays quiet.
const QUIET: Duration = Duration::from_secs(1);
const QUIET_MAX: Duration = Duration::from_secs(60);
/// Events applied under one lock of the brain: about 50 µs. More would delay requests noticeably.
const EVENTS_AT_ONCE: usize = 128;
/// The same for their blocks: a message may have one event with more than a million, which held the lock for 0.11 s.
const BLOCKS_AT_ONCE: usize = 512;

/// Where a worker publishes its KV events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publisher {
    pub(crate) events: (String, u16),
    pub(crate) replay: Option<(String, u16)>,
    /// The prefix of the topics to subscribe to.
    pub(crate) topic: String,
    /// The data-parallel rank that its batches name; none if any may.
    pub(crate) rank: Option<u32>,
}

/// Follows until dropped.
pub(crate) async fn follow(
    brain: Arc<SharedBrain>,
    metrics: Arc<Metrics>,
    link: Arc<Link>,
    source: Publisher,
) {
    let offered = if source.replay.is_some() { Replay::Offered } else { Replay::Absent };
    let mut follower = Follower {
        brain,
        metrics,
        link,
        source,
        feed: Feed::new(offered),
        groups: Groups::default(),
        batch: EventBatch::default(),
        reported: (Trust::None, Counts::default()),
        replaying: None,
        is_rank_warned: false,
        log_budget: LogBudget::default(),
    };
    let mut pause = PAUSE;
    loop {
        match follower.connect().await {
            Ok(subscriber) => {
                let begun = follower.brain.now();
                follower.listen(subscriber).await;
                // A publisher that hangs up at once is retried with backoff, too.
                if follower.brain.now().since(begun) > STEADY {
                    pause = PAUSE;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => {
                debug!(worker = follower.link.url, %error, "cannot subscribe to KV events");
                // Connection refused: the process is gone. A publisher that cannot be reached may still be there, but
                // its cache is not believed for ever.
                if error.is_refused() || pause == PAUSE_MAX {
                    follower.on(Input::Gone).await;
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// How much of a batch is applied.
#[derive(Clone, Copy, Default)]
struct BatchPosition {
    event: usize,
    /// Of `BLOCKS_AT_ONCE` blocks each.
    piece: usize,
}

type Replaying = Pin<Box<dyn Future<Output = Result<Vec<ReplayedBatch>, ReplayError>> + Send>>;

struct Follower {
    brain: Arc<SharedBrain>,
    metrics: Arc<Metrics>,
    link: Arc<Link>,
    source: Publisher,
    feed: Feed<Bytes>,
    groups: Groups,
    batch: EventBatch,
    /// The trust and the counts that the brain and the metrics have.
    reported: (Trust, Counts),
    replaying: Option<(u64, Replaying)>,
    /// The log has reported that the port belongs to another rank.
    is_rank_warned: bool,
    /// Of everything that the publisher can cause.
    log_budget: LogBudget,
}

impl Follower {
    async fn connect(&mut self) -> Result<Subscriber, socket::SocketError> {
        let (host, port) = &self.source.events;
        let address = ZmqAddress { host, port: *port };
        Subscriber::connect(address, self.source.topic.as_bytes(), CONNECT_TIMEOUT).await
    }

    /// Until the connection ends.
    async fn listen(&mut self, mut subscriber: Subscriber) {
        if let Some(lines_left_out) = self.log_budget.spend(self.brain.now()) {
            let port = self.source.events.1;
            info!(worker = self.link.url, port, lines_left_out, "subscribed to KV events");
        }
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
                    // Not a batch. If it should have been one, the gap in the numbers shows it.
                    Ok(None) => continue,
                    Err(error) => {
                        debug!(worker = self.link.url, %error, "the subscription to KV events broke");
                        break;
                    }
                },
                input = replayed(&mut self.replaying) => input,
                () = until(&self.brain, self.feed.deadline()) => Input::Tick,
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

    /// Must not be cancelled: an action that the feed handed out would be lost.
    async fn on(&mut self, input: Input<Bytes>) {
        self.feed.on(self.brain.now(), input);
        while let Some(action) = self.feed.next_action(self.brain.now()) {
            match action {
                Action::Apply(batch) => {
                    self.apply(&batch).await;
                    // A replay has ten thousand batches, and this thread also accepts connections and probes workers.
                    yield_now().await;
                }
                Action::Clear => {
                    self.groups = Groups::default();
                    self.brain.on(Event::CacheChanged { worker: self.link.worker, event: KvEvent::Cleared });
                }
                Action::Doubt => {
                    self.groups = Groups::default();
                    self.brain.on(Event::ReportsLost { worker: self.link.worker });
                }
                Action::AskReplay { id, from } => self.replaying = Some((id, self.replay(from))),
            }
        }
        self.report();
    }

    fn replay(&self, from: u64) -> Replaying {
        let source = self.source.replay.clone();
        Box::pin(async move {
            let Some((host, port)) = source else { return Ok(Vec::new()) };
            replay::replay(ZmqAddress { host: &host, port }, from, Bound::within(REPLAY_WAIT)).await
        })
    }

    async fn apply(&mut self, batch: &Numbered<Bytes>) {
        if let Err(error) = kv::decode(&batch.payload, &mut self.groups, &mut self.batch) {
            if let Some(lines_left_out) = self.log_budget.spend(self.brain.now()) {
                warn!(worker = self.link.url, seq = batch.seq, %error, lines_left_out, "cannot decode KV events");
            }
            return self.feed.on(self.brain.now(), Input::Undecodable { seq: batch.seq });
        }
        if let (Some(rank), Some(published)) = (self.source.rank, self.batch.rank())
            && rank != published
        {
            self.warn_of_rank(rank, published);
            return self.feed.on(self.brain.now(), Input::Undecodable { seq: batch.seq });
        }
        let mut at = BatchPosition::default();
        while self.apply_slice(&mut at) {
            yield_now().await;
        }
        let sent = self.batch.unix_seconds();
        let lag = (self.brain.clock.unix().as_secs_f64() - sent).max(0.0);
        self.metrics.caches.feeds.lag.get_or_create(&[("worker", self.link.url.clone())]).set(lag);
        if self.feed.trust() == Trust::Cold && self.is_complete() {
            self.feed.on(self.brain.now(), Input::Complete);
        }
    }

    /// Applies the events of the batch from this position on, as many as under one lock, and moves it. Returns whether there
    /// are more.
    fn apply_slice(&self, at: &mut BatchPosition) -> bool {
        let (first, done, worker) = (at.event, at.piece, self.link.worker);
        let mut pieces = self
            .batch
            .events_from(first)
            .enumerate()
            .flat_map(|(number, event)| {
                let done = if number == 0 { done } else { 0 };
                let pieces = event.pieces(BLOCKS_AT_ONCE).enumerate().skip(done);
                pieces.map(move |(piece, event)| (BatchPosition { event: first + number, piece }, event))
            })
            .peekable();
        let mut blocks = 0;
        let slice = std::iter::from_fn(|| {
            let (_, event) = (blocks < BLOCKS_AT_ONCE).then(|| pieces.next()).flatten()?;
            blocks += event.blocks();
            Some(Event::CacheChanged { worker, event })
        });
        self.brain.on_all(slice.take(EVENTS_AT_ONCE));
        match pieces.peek() {
            Some((next, _)) => {
                *at = *next;
                true
            }
            None => false,
        }
    }

    /// Whether what the engine stored before the first batch no longer matters, now that the last batch is applied.
    fn is_complete(&self) -> bool {
        self.batch.events().any(|it| matches!(it, KvEvent::Cleared))
            || self.brain.read(|it| it.cache().is_complete(self.link.worker))
    }

    /// The port belongs to another rank of the engine, so its cache is not this worker's. The feed counts the batch as
    /// unreadable and applies nothing. The log names the first one only, because the operator has to change the URL.
    fn warn_of_rank(&mut self, rank: u32, published: u32) {
        if !std::mem::replace(&mut self.is_rank_warned, true) {
            let (worker, port) = (&self.link.url, self.source.events.1);
            warn!(
                worker,
                port, rank, published, "KV events of another rank; check events= in the worker's URL"
            );
        }
    }

    /// Reports changes of trust to the brain, and counts to the metrics.
    fn report(&mut self) {
        let (trust, counts) = (self.feed.trust(), self.feed.counts());
        if trust != self.reported.0 {
            if let Some(lines_left_out) = self.log_budget.spend(self.brain.now()) {
                let (from, to) = (self.reported.0.name(), trust.name());
                info!(worker = self.link.url, from, to, lines_left_out, "trust in KV events");
            }
            self.brain.on(Event::TrustChanged { worker: self.link.worker, trust });
        }
        if counts != self.reported.1 {
            self.metrics.caches.feeds.count(&self.link.url, &self.reported.1, &counts);
        }
        self.reported = (trust, counts);
    }
}

impl Drop for Follower {
    /// From now on the cache's contents are unknown. A worker that has left needs no event, and its number may belong to
    /// another one by now.
    fn drop(&mut self) {
        if self.link.gone.is_cancelled() {
            return;
        }
        let worker = self.link.worker;
        self.brain.on(Event::CacheChanged { worker, event: KvEvent::Cleared });
        self.brain.on(Event::TrustChanged { worker, trust: Trust::None });
    }
}

/// The batch in a published message; None if the message is something else.
fn numbered(message: ZmqMessage) -> Option<Numbered<Bytes>> {
    let [_, number, payload] = <[Bytes; 3]>::try_from(message).ok()?;
    let number: [u8; 8] = number.as_ref().try_into().ok()?;
    Some(Numbered::new(u64::from_be_bytes(number), payload))
}

/// Resolves at the end of the present replay; never, if there is none. Safe to cancel: the replay continues.
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

async fn until(brain: &SharedBrain, deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep(deadline.since(brain.now())).await,
        None => std::future::pending().await,
    }
}

//! The streams of an HTTP/2 connection, and the limit on clients that do not read them.
//!
//! A client that opens no window for a stream blocks no socket, so the watchdog of its connection sees nothing. hyper
//! has taken a chunk from the response's body and waits for the window; it does not poll the body meanwhile, so the
//! body's own timers do not run either. Such a stream occupied its place at a worker for an hour.
//!
//! Here the task of each stream observes how its body is polled. If the body waits for its worker, the worker's limits
//! apply. If hyper holds a chunk, the client is to blame: it gets `timeouts.client_stalled` from the last chunk that it
//! took. A slow client that reads is never cut off, for each chunk it takes begins a new period; chunks are at most
//! `CHUNK_BYTES_MAX` long for its sake.
//!
//! Within one connection only `STALLED_MAX` streams may use that whole time. Further ones are reset after
//! `GRACE`, so that one connection cannot hold a whole fleet.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use maitre_base::Instant;
use tokio::time::Sleep;

use crate::clock::Clock;
use crate::settings::Timeouts;

/// Most bytes of a response that a stream hands over at once: a frame of HTTP/2's default size. With the default limit
/// a client must take 270 bytes a second.
pub(crate) const CHUNK_BYTES_MAX: usize = 16 << 10;

/// Streams of one connection that may be stalled for longer than `GRACE`. Chosen: a browser has six, a gateway that is
/// itself slow a few dozen.
const STALLED_MAX: usize = 64;

/// Chosen: longer than a pause of a client's garbage collector or event loop.
const GRACE: Duration = Duration::from_secs(5);

/// What happened to the body of a response within one poll of its stream's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyPoll {
    /// Nothing: hyper waits for the client, or there is no response yet.
    None,
    /// It waits for its worker.
    Pending,
    /// It gave a chunk, and was not asked for another.
    Chunk,
    /// The stream is being dropped because its client stalled.
    Dropped,
}

thread_local! {
    /// hyper owns the body and polls it within the poll of the stream's task, so a note on the thread connects the two.
    static LAST: Cell<BodyPoll> = const { Cell::new(BodyPoll::None) };
}

/// Notes a poll of a response's body.
pub(crate) fn polled<T>(poll: &Poll<T>) {
    LAST.set(if poll.is_pending() { BodyPoll::Pending } else { BodyPoll::Chunk });
}

/// Whether the stream that is being dropped is dropped because its client stalled.
pub(crate) fn is_dropped_as_stalled() -> bool {
    LAST.get() == BodyPoll::Dropped
}

/// Runs the streams of one connection.
#[derive(Clone)]
pub(crate) struct Streams {
    clock: Clock,
    limits: StallLimits,
    /// Streams that are stalled for longer than the grace.
    stalled: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug)]
struct StallLimits {
    stalled: Duration,
    total: Duration,
}

impl Streams {
    pub(crate) fn new(clock: Clock, timeouts: &Timeouts) -> Streams {
        let limits = StallLimits { stalled: timeouts.client_stalled, total: timeouts.total };
        Streams { clock, limits, stalled: Arc::default() }
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    #[expect(clippy::disallowed_methods, reason = "ends with its connection, or at the limit")]
    fn execute(&self, stream: F) {
        let watch = StreamWatch::new(self.clone());
        tokio::spawn(run(stream, watch));
    }
}

async fn run<F: Future>(stream: F, mut watch: StreamWatch) {
    {
        let mut stream = pin!(stream);
        let is_stalled = poll_fn(|cx| {
            LAST.set(BodyPoll::None);
            match stream.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(false),
                Poll::Pending => {
                    watch.observe(LAST.get());
                    watch.poll_stalled(cx).map(|()| true)
                }
            }
        });
        if is_stalled.await {
            LAST.set(BodyPoll::Dropped);
        }
        // Dropped here, which resets the stream if it is not finished.
    }
    LAST.set(BodyPoll::None);
}

/// How long the client of one stream has read nothing.
struct StreamWatch {
    streams: Streams,
    began: Instant,
    /// The response has begun.
    has_response: bool,
    /// Since when hyper holds a chunk that the client does not take.
    blocked: Option<Instant>,
    /// One of `STALLED_MAX`, once the grace is over.
    place: Option<StalledPlace>,
    /// Not moved by each chunk: when it fires, it is set again for what is left.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Counts a stream that is stalled for longer than the grace.
struct StalledPlace(Arc<AtomicUsize>);

impl StalledPlace {
    fn take(stalled: &Arc<AtomicUsize>) -> Option<StalledPlace> {
        let count = stalled.fetch_add(1, Relaxed);
        // Made before the check, so that dropping it takes the addition back.
        let place = StalledPlace(stalled.clone());
        (count < STALLED_MAX).then_some(place)
    }
}

impl Drop for StalledPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl StreamWatch {
    fn new(streams: Streams) -> StreamWatch {
        let began = streams.clock.now();
        StreamWatch { streams, began, has_response: false, blocked: None, place: None, timer: None }
    }

    fn observe(&mut self, poll: BodyPoll) {
        self.has_response |= poll != BodyPoll::None;
        match poll {
            BodyPoll::Pending => self.unblock(),
            BodyPoll::Chunk => {
                self.unblock();
                self.blocked = Some(self.streams.clock.now());
            }
            // A worker's chunk arrived, or the client's window changed, and hyper still does not ask for more.
            BodyPoll::None if self.has_response && self.blocked.is_none() => {
                self.blocked = Some(self.streams.clock.now());
            }
            BodyPoll::None | BodyPoll::Dropped => {}
        }
    }

    fn unblock(&mut self) {
        self.blocked = None;
        // The timer was set for the end of the limit: the grace begins anew.
        if self.place.take().is_some() {
            self.timer = None;
        }
    }

    /// Ready when the client has stalled for too long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(since) = self.blocked else { return Poll::Pending };
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
            }
            match self.left(since, self.streams.clock.now()) {
                Some(left) => self.timer = Some(Box::pin(tokio::time::sleep(left))),
                None => return Poll::Ready(()),
            }
        }
    }

    /// Time until the stream is looked at again; None if its time is over.
    fn left(&mut self, since: Instant, now: Instant) -> Option<Duration> {
        let StallLimits { stalled, total } = self.streams.limits;
        let until = |limit: Duration, from: Instant| limit.saturating_sub(now.since(from));
        let left = until(stalled, since).min(until(total, self.began));
        if left.is_zero() {
            return None;
        }
        if self.place.is_some() {
            return Some(left);
        }
        match until(GRACE, since) {
            Duration::ZERO => {
                self.place = Some(StalledPlace::take(&self.streams.stalled)?);
                Some(left)
            }
            grace => Some(grace.min(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn streams() -> Streams {
        let timeouts = Timeouts { client_stalled: 60 * SECOND, total: 1_000 * SECOND, ..Timeouts::default() };
        Streams::new(Clock::start(), &timeouts)
    }

    fn after(seconds: u32) -> Instant {
        Instant::ZERO + seconds * SECOND
    }

    /// A stream that began at zero, and is blocked since then.
    fn blocked(streams: &Streams) -> StreamWatch {
        StreamWatch {
            began: Instant::ZERO,
            blocked: Some(Instant::ZERO),
            has_response: true,
            ..StreamWatch::new(streams.clone())
        }
    }

    #[test]
    fn a_stalled_stream_has_the_limit_and_not_longer_than_the_request() {
        let streams = streams();
        let mut watch = blocked(&streams);
        assert_eq!(watch.left(after(0), after(0)), Some(GRACE));
        assert_eq!(watch.left(after(0), after(5)), Some(55 * SECOND));
        assert_eq!(watch.left(after(0), after(59)), Some(SECOND));
        assert_eq!(watch.left(after(0), after(60)), None);
        assert_eq!(watch.left(after(990), after(995)), Some(5 * SECOND));
        assert_eq!(watch.left(after(990), after(1_000)), None);
    }

    #[test]
    fn a_chunk_that_the_client_takes_begins_a_new_period() {
        let mut watch = blocked(&streams());
        assert!(watch.left(after(0), after(30)).is_some() && watch.place.is_some());
        watch.observe(BodyPoll::Chunk);
        assert!(watch.place.is_none() && watch.blocked > Some(after(0)));
        // The worker is to blame from here on.
        watch.observe(BodyPoll::Pending);
        assert_eq!(watch.blocked, None);
        // Its chunk is there, and hyper does not take it because the client has closed its window.
        watch.observe(BodyPoll::None);
        assert!(watch.blocked.is_some());
    }

    #[test]
    fn a_stream_without_a_response_is_not_stalled() {
        let mut watch = StreamWatch::new(streams());
        watch.observe(BodyPoll::None);
        assert_eq!(watch.blocked, None);
    }

    #[test]
    fn one_connection_has_few_stalled_streams_after_the_grace() {
        let streams = streams();
        let mut all: Vec<StreamWatch> = (0..1_000).map(|_| blocked(&streams)).collect();
        let mut left = |now| all.iter_mut().filter_map(|it| it.left(after(0), now)).count();
        assert_eq!(left(after(4)), 1_000);
        assert_eq!(left(after(5)), STALLED_MAX);
        drop(all);
        assert_eq!(streams.stalled.load(Relaxed), 0);
    }
}

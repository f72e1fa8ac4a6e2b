//! A client's socket under watch: who sends a request head byte by byte, takes nothing of an answer, or
//! holds a connection without using it, is let go.
//!
//! Time is counted in ticks of a slow watchdog, so a read or a write costs a few plain stores and never
//! a timer or a look at the clock; a limit is kept to within two ticks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use maitre_net::stream::ByteStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::settings::Timeouts;

/// The grain of the watchdog.
const TICK: Duration = Duration::from_secs(2);

/// The moment of something, in ticks; zero for never.
type Moment = AtomicU32;

/// What is happening on one connection.
pub(crate) struct Pulse {
    now: AtomicU32,
    /// Requests that have arrived and not ended.
    busy: AtomicU32,
    /// When anything last moved.
    moved: Moment,
    /// When the head that is being read began.
    head: Moment,
    /// Since when a write has waited for the client.
    blocked: Moment,
    /// HTTP/2 says things that are not requests: no head to time.
    frames: AtomicBool,
    timeouts: Timeouts,
}

/// A request in progress.
pub(crate) struct Busy(Arc<Pulse>);

impl Pulse {
    pub(crate) fn new(timeouts: Timeouts) -> Pulse {
        Pulse {
            now: AtomicU32::new(1),
            busy: AtomicU32::new(0),
            moved: Moment::new(1),
            head: Moment::new(0),
            blocked: Moment::new(0),
            frames: AtomicBool::new(false),
            timeouts,
        }
    }

    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        self.head.store(0, Relaxed);
        Busy(self.clone())
    }

    /// Ends when the client has used up its patience.
    pub(crate) async fn watch(&self) {
        while !self.is_spent() {
            tokio::time::sleep(TICK).await;
            self.now.fetch_add(1, Relaxed);
        }
    }

    fn is_spent(&self) -> bool {
        let longer = |since: &Moment, limit: Duration| match since.load(Relaxed) {
            0 => false,
            then => TICK * self.now.load(Relaxed).saturating_sub(then) > limit,
        };
        let idle = self.busy.load(Relaxed) == 0;
        longer(&self.blocked, self.timeouts.client_stalled)
            || idle && longer(&self.head, self.timeouts.client_head)
            || idle && longer(&self.moved, self.timeouts.client_idle)
    }

    pub(crate) fn speaks_frames(&self) {
        self.frames.store(true, Relaxed);
    }

    fn has_read(&self) {
        let now = self.now.load(Relaxed);
        self.moved.store(now, Relaxed);
        let between = self.busy.load(Relaxed) == 0 && !self.frames.load(Relaxed);
        if between && self.head.load(Relaxed) == 0 {
            self.head.store(now, Relaxed);
        }
    }

    /// A plain socket is always flushed. TLS takes what is written before the socket does.
    fn has_flushed(&self, ready: bool) {
        if !ready || self.blocked.load(Relaxed) != 0 {
            self.has_written(ready);
        }
    }

    fn has_written(&self, ready: bool) {
        let now = self.now.load(Relaxed);
        match (ready, self.blocked.load(Relaxed)) {
            (true, _) => {
                self.moved.store(now, Relaxed);
                self.blocked.store(0, Relaxed);
            }
            (false, 0) => self.blocked.store(now, Relaxed),
            (false, _) => {}
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// The socket itself.
pub(crate) struct Client {
    stream: ByteStream,
    pulse: Arc<Pulse>,
}

impl Client {
    pub(crate) fn new(stream: ByteStream, pulse: Arc<Pulse>) -> Client {
        Client { stream, pulse }
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.pulse.has_read();
        }
        read
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.pulse.has_written(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.pulse.has_written(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.pulse.has_flushed(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks until the connection is let go, at most a hundred.
    fn ticks_left(pulse: &Pulse) -> u32 {
        let tick = |_: &u32| {
            pulse.now.fetch_add(1, Relaxed);
            !pulse.is_spent()
        };
        (0..100).take_while(tick).count() as u32
    }

    fn pulse() -> Arc<Pulse> {
        Arc::new(Pulse::new(Timeouts {
            client_head: Duration::from_secs(10),
            client_stalled: Duration::from_secs(20),
            client_idle: Duration::from_secs(60),
            ..Timeouts::default()
        }))
    }

    #[test]
    fn a_connection_without_a_request_is_let_go_when_idle_for_long() {
        assert_eq!(ticks_left(&pulse()), 30);
    }

    #[test]
    fn a_head_sent_byte_by_byte_is_timed_from_its_first_byte() {
        let pulse = pulse();
        pulse.has_read();
        pulse.now.fetch_add(3, Relaxed);
        pulse.has_read();
        assert_eq!(ticks_left(&pulse), 2);
    }

    #[test]
    fn a_request_in_progress_may_take_its_time() {
        let pulse = pulse();
        pulse.has_read();
        let busy = pulse.busy();
        assert_eq!(ticks_left(&pulse), 100);
        drop(busy);
        assert_eq!(ticks_left(&pulse), 0);
    }

    #[test]
    fn a_client_that_takes_nothing_is_let_go_even_in_mid_answer() {
        let pulse = pulse();
        let _busy = pulse.busy();
        pulse.has_written(false);
        assert_eq!(ticks_left(&pulse), 10);
        pulse.has_written(true);
        assert_eq!(ticks_left(&pulse), 100);
    }

    #[test]
    fn what_tls_took_and_the_client_does_not_is_a_stall_until_it_is_flushed() {
        let pulse = pulse();
        let _busy = pulse.busy();
        pulse.has_written(true);
        pulse.has_flushed(false);
        assert_eq!(ticks_left(&pulse), 10);
        pulse.has_flushed(true);
        assert_eq!(ticks_left(&pulse), 100);
    }

    #[test]
    fn http2_frames_are_no_slow_head() {
        let pulse = pulse();
        pulse.speaks_frames();
        pulse.has_read();
        assert_eq!(ticks_left(&pulse), 30);
    }
}

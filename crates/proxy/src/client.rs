//! A client's socket with a watchdog. It closes connections of clients that send a request head byte by byte, do not read
//! their response, or stay idle.
//!
//! Time is counted in ticks of the watchdog, so a read or a write costs a few plain stores and never a timer or a reading
//! of the clock. Limits are accurate to two ticks.

pub(crate) mod streams;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use maitre_net::stream::{ByteStream, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::settings::Timeouts;

/// The period of the watchdog.
const TICK: Duration = Duration::from_secs(2);

/// How long a connection without a request may be silent while the router closes. HTTP/2 ends with a round trip, and a client
/// that has disappeared would hold the router up until `timeouts.drain`. Chosen: longer than any round trip.
const CLOSING_IDLE: Duration = Duration::from_secs(2);

/// A moment, in ticks; zero for never.
type Moment = AtomicU32;

/// The activity on one connection.
pub(crate) struct Pulse {
    now: AtomicU32,
    /// Requests in flight.
    busy: AtomicU32,
    /// When anything was last read or written.
    moved: Moment,
    /// When the request head that is being read began.
    head: Moment,
    /// Since when a write has waited for the client.
    blocked: Moment,
    /// HTTP/2 sends frames that are not requests, so heads are not timed.
    http2: AtomicBool,
    /// The connection is closed because a write waited for too long.
    stalled: AtomicBool,
    timeouts: Timeouts,
}

/// A request in flight.
pub(crate) struct Busy(Arc<Pulse>);

impl Pulse {
    pub(crate) fn new(timeouts: Timeouts) -> Pulse {
        Pulse {
            now: AtomicU32::new(1),
            busy: AtomicU32::new(0),
            moved: Moment::new(1),
            head: Moment::new(0),
            blocked: Moment::new(0),
            http2: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
            timeouts,
        }
    }

    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        self.head.store(0, Relaxed);
        Busy(self.clone())
    }

    /// Resolves when the client has exceeded a limit.
    pub(crate) async fn watch(&self, is_closing: impl Fn() -> bool) {
        while !self.is_overdue(is_closing()) {
            tokio::time::sleep(TICK).await;
            self.now.fetch_add(1, Relaxed);
        }
    }

    fn is_overdue(&self, is_closing: bool) -> bool {
        let longer = |since: &Moment, limit: Duration| match since.load(Relaxed) {
            0 => false,
            then => TICK * self.now.load(Relaxed).saturating_sub(then) > limit,
        };
        if longer(&self.blocked, self.timeouts.client_stalled) {
            self.stalled.store(true, Relaxed);
            return true;
        }
        let idle = self.busy.load(Relaxed) == 0;
        // The end of a response may still wait for its client.
        let is_done = is_closing && self.blocked.load(Relaxed) == 0;
        let silence = if is_done { CLOSING_IDLE } else { self.timeouts.client_idle };
        idle && (longer(&self.head, self.timeouts.client_header) || longer(&self.moved, silence))
    }

    /// Bytes of a request head have arrived before: with the request before it, or while that was answered.
    pub(crate) fn head_began(&self) {
        if self.head.load(Relaxed) == 0 {
            self.head.store(self.now.load(Relaxed), Relaxed);
        }
    }

    pub(crate) fn is_http2(&self) {
        self.http2.store(true, Relaxed);
    }

    fn has_read(&self) {
        self.moved.store(self.now.load(Relaxed), Relaxed);
        let between_requests = self.busy.load(Relaxed) == 0 && !self.http2.load(Relaxed);
        if between_requests {
            self.head_began();
        }
    }

    /// A plain socket is always flushed. TLS buffers what the socket does not take yet.
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

impl Busy {
    pub(crate) fn is_http2(&self) -> bool {
        self.0.http2.load(Relaxed)
    }

    /// Whether a request that is dropped now ends because its client does not read.
    pub(crate) fn is_stalled(&self) -> bool {
        self.0.stalled.load(Relaxed) || streams::is_dropped_as_stalled()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

pub(crate) struct ClientSocket {
    stream: ByteStream,
    pulse: Arc<Pulse>,
}

impl ClientSocket {
    pub(crate) fn new(stream: ByteStream, pulse: Arc<Pulse>) -> ClientSocket {
        ClientSocket { stream, pulse }
    }
}

impl Peer for ClientSocket {
    fn has_left(&self) -> bool {
        self.stream.has_left()
    }
}

impl AsyncRead for ClientSocket {
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

impl AsyncWrite for ClientSocket {
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

    /// Ticks until the connection is closed, at most a hundred.
    fn ticks_left(pulse: &Pulse) -> u32 {
        ticks_left_while(pulse, false)
    }

    fn ticks_left_while(pulse: &Pulse, is_closing: bool) -> u32 {
        let tick = |_: &u32| {
            pulse.now.fetch_add(1, Relaxed);
            !pulse.is_overdue(is_closing)
        };
        (0..100).take_while(tick).count() as u32
    }

    fn pulse() -> Arc<Pulse> {
        Arc::new(Pulse::new(Timeouts {
            client_header: Duration::from_secs(10),
            client_stalled: Duration::from_secs(20),
            client_idle: Duration::from_secs(60),
            ..Timeouts::default()
        }))
    }

    #[test]
    fn an_idle_connection_is_closed() {
        assert_eq!(ticks_left(&pulse()), 30);
    }

    #[test]
    fn a_router_that_closes_waits_for_requests_and_the_ends_of_responses_only() {
        let pulse = pulse();
        assert_eq!(ticks_left_while(&pulse, true), 1);
        let busy = pulse.busy();
        assert_eq!(ticks_left_while(&pulse, true), 100);
        pulse.has_written(true);
        pulse.has_written(false);
        drop(busy);
        assert_eq!(ticks_left_while(&pulse, true), 10);
        pulse.has_written(true);
        assert_eq!(ticks_left_while(&pulse, true), 1);
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
    fn a_request_in_flight_has_no_idle_limit() {
        let pulse = pulse();
        pulse.has_read();
        let busy = pulse.busy();
        assert_eq!(ticks_left(&pulse), 100);
        drop(busy);
        assert_eq!(ticks_left(&pulse), 0);
    }

    #[test]
    fn a_client_that_does_not_read_is_closed_even_in_the_middle_of_a_response() {
        let pulse = pulse();
        let _busy = pulse.busy();
        pulse.has_written(false);
        assert_eq!(ticks_left(&pulse), 10);
        pulse.has_written(true);
        assert_eq!(ticks_left(&pulse), 100);
    }

    #[test]
    fn unflushed_tls_data_counts_as_stalled() {
        let pulse = pulse();
        let _busy = pulse.busy();
        pulse.has_written(true);
        pulse.has_flushed(false);
        assert_eq!(ticks_left(&pulse), 10);
        pulse.has_flushed(true);
        assert_eq!(ticks_left(&pulse), 100);
    }

    #[test]
    fn http2_frames_are_not_a_slow_head() {
        let pulse = pulse();
        pulse.is_http2();
        pulse.has_read();
        assert_eq!(ticks_left(&pulse), 30);
    }
}

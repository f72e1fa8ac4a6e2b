//! The only clock in production: monotonic time since the router started.

use std::time::Duration;

use maitre_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// tokio's, so that a test which drives tokio's timers drives this clock, too. In production both are the system's.
    start: tokio::time::Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn start() -> Clock {
        Clock { start: tokio::time::Instant::now() }
    }

    /// Wall time, for timestamps of engines and chat templates that print a date.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn unix(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        u64::try_from(self.unix().as_millis()).unwrap_or(0)
    }

    /// Wall time of an earlier moment.
    pub(crate) fn unix_ms_at(&self, then: Instant) -> u64 {
        let ago = self.now().since(then).as_millis();
        self.unix_ms().saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    }

    pub(crate) fn unix_seconds(&self) -> i64 {
        i64::try_from(self.unix().as_secs()).unwrap_or(0)
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }
}

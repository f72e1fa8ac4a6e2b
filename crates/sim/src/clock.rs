//! The wall clock of the HTTP face: the only place in this crate that reads one.
//!
//! It is tokio's clock, so that a test which pauses time pauses the engine too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use maitre_base::Instant;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: tokio::time::Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn start() -> Clock {
        Clock { origin: tokio::time::Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        let nanos = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos)
    }

    pub(crate) async fn sleep_until(&self, moment: Instant) {
        tokio::time::sleep_until(self.origin + moment.since(Instant::ZERO)).await;
    }
}

/// Seconds since 1970, for the `created` field of answers.
pub(crate) fn unix_seconds() -> u64 {
    since_1970().as_secs()
}

/// The time since 1970; `None` on a clock that was never set.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

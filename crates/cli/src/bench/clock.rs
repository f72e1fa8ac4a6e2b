//! The bench's clock: when a request is due, and how long its answer took.
//!
//! Tokio's timers have a grain of a millisecond and never wake early, so a request leaves up to two of them
//! after it was due. Spinning would be more exact and would take the core from an engine on the same machine.

use maitre_base::Instant;

/// Moments since it was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(tokio::time::Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the bench's clock")]
    pub(super) fn start() -> Clock {
        Clock(tokio::time::Instant::now())
    }

    pub(super) fn now(&self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }

    pub(super) async fn until(&self, at: Instant) {
        tokio::time::sleep_until(self.0 + at.since(Instant::ZERO)).await;
    }
}

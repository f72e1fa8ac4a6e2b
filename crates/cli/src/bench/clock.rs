//! The bench's clock: when a request is due, and how long its answer took.
//!
//! Tokio's timers have a resolution of a millisecond and never wake early, so a request is sent up to 2 ms
//! after it was due. Spinning would be more exact but would take the core from an engine on the same machine.

use maitre_base::Instant;

/// Time since the start.
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
